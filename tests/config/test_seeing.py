"""What ``opencqrs config`` shows: every value as it would be written, and where it comes from."""

import pytest
import yaml
from pydantic import SecretStr

from opencqrs_py.config import Configuration, EffectiveValue, Settings, effective_group, mask_url
from opencqrs_py.config.settings import Section
from opencqrs_py.errors import ConfigurationError


def shown(configuration, group=None):
    return {value.path: (value.value, str(value.origin)) for value in configuration.values(group)}


def test_the_settings_of_a_group_with_their_origins(project):
    project.yaml("""
        opencqrs.event-handling:
          standard:
            retry: {max-attempts: 5, initial-interval: 1500ms}
            progress.tracker-ref: mine
          groups:
            books:
              retry: {max-attempts: ~, max-elapsed-time: PT1H30M, multiplier: 2}
              progress.tracking: in-memory
    """)
    values = shown(project.load(), "BOOKS")
    books = "event-handling.groups.books."
    assert {path.removeprefix(books): value for path, value in values.items()} == {
        "fetch.subject": ("/", "built-in default"),
        "fetch.recursive": ("true", "built-in default"),
        "fetch.initial-position": ("tail", "built-in default"),
        "life-cycle.auto-start": ("true", "built-in default"),
        "life-cycle.controller": ("null", "built-in default"),
        "life-cycle.controller-registration": ("null", "built-in default"),
        "life-cycle.lock-registry": ("null", "built-in default"),
        "life-cycle.partitions": ("1", "built-in default"),
        "progress.tracking": ("in_memory", "application.yaml:9:26"),
        "progress.tracker-ref": ("null", "replaced by progress.tracking (application.yaml:9:26)"),
        "sequence.resolution": ("per_second_level_subject", "built-in default"),
        "sequence.resolver-ref": ("null", "built-in default"),
        "retry.policy": ("exponential_backoff", "built-in default"),
        "retry.initial-interval": ("1.5s", "standard (application.yaml:4:48)"),
        "retry.max-interval": ("30s", "built-in default"),
        "retry.max-elapsed-time": ("1h30m", "application.yaml:8:50"),
        "retry.multiplier": ("2", "application.yaml:8:71"),
        "retry.max-attempts": ("infinite", "built-in default (reset by application.yaml:8:29)"),
        "retry.on-exhausted": ("skip", "built-in default"),
        "retry.jitter": ("0", "built-in default"),
        "processing.engine": ("spark", "built-in default"),
        "processing.batch-size": ("null", "built-in default"),
    }


def test_the_whole_configuration_is_general_settings_the_standard_as_set_and_all_groups(project):
    project.yaml("""
        opencqrs:
          spark.conf: {spark.ui.enabled: no, my.password: secret}
          event-handling: {standard.fetch.subject: /all, groups.books.fetch.subject: /books}
    """)
    configuration = project.load(groups=["backup", "Books"])
    values = shown(configuration)
    assert configuration.group_names == ("Books", "backup")
    general = {path: value for path, value in values.items() if not path.startswith("event-handling.groups")}
    assert general == {
        "event-store.url": ("sqlite:///opencqrs.db", "built-in default"),
        "database.url": ("null", "built-in default"),
        "spark.master": ("local[*]", "built-in default"),
        "spark.conf.spark.ui.enabled": ("no", "application.yaml:3:34"),
        "spark.conf.my.password": ("***", "application.yaml:3:51"),
        "event-handling.standard.fetch.subject": ("/all", "application.yaml:4:44"),
        "config.unknown": ("error", "built-in default"),
        "config.import": ("[]", "built-in default"),
        "profiles.active": ("[]", "built-in default"),
    }
    assert values["event-handling.groups.Books.fetch.subject"] == ("/books", "application.yaml:4:78")
    assert values["event-handling.groups.backup.fetch.subject"] == ("/all", "standard (application.yaml:4:44)")


def test_what_is_shown_can_be_written_into_a_file_again(project):
    project.yaml(
        "opencqrs: {spark: {master: \"a: b # c\", conf: {x: 'null', y: '', z: '*', n: 017}}, profiles.active: [a, 'b']}"
    )
    configuration = project.load()
    again = "\n".join(f"opencqrs.{value.path}: {value.value}" for value in configuration.values())
    assert project.yaml(again).load().settings == configuration.settings


def test_values_carry_whether_anybody_chose_them(project):
    values = project.load(overrides=["spark.master=local[*]"]).values()
    assert {value.path for value in values if not value.is_default} == {"spark.master"}


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("spark.mastr", "did you mean spark.master?"),
        ("spark", "name one setting: spark.master, spark.conf"),
        ("database", "name one setting: database.url"),
    ],
)
def test_the_origin_of_what_is_no_setting_is_an_error(project, key, fix):
    with pytest.raises(ConfigurationError, match="there is no setting") as caught:
        project.load().origin(key)
    assert caught.value.fix == fix


def test_a_group_is_called_as_it_is_written_where_it_is_declared(project):
    project.yaml("opencqrs.event-handling.groups.book_catalog.fetch.subject: /books")
    assert project.load().group("BookCatalog").name == "book_catalog"
    assert project.load(groups=["Book-Catalog"]).group("bookcatalog").name == "Book-Catalog"
    assert project.load().group("never-heard-of").name == "never-heard-of"
    assert project.load().group("BookCatalog") == project.load().group("book_catalog")


def test_settings_made_in_code_have_a_configuration_too():
    settings = Settings(spark={"master": "local"}, event_handling={"groups": {"v1.2": {"fetch": {"subject": "/x"}}}})
    configuration = Configuration.from_settings(settings)
    assert configuration.group_names == ("v1.2",)
    assert configuration.group("V1.2") == effective_group(settings, "v1.2")
    assert str(configuration.origin("spark.master")) == "settings given in code"
    assert str(configuration.origin("event-handling.groups[v1.2].fetch.subject")) == "settings given in code"
    assert str(configuration.origin("event-handling.groups[v1.2].fetch.recursive")) == "built-in default"
    assert str(configuration.origin("spark.conf.some.key")) == "built-in default"
    assert (
        EffectiveValue("spark.master", "local", configuration.origin("spark.master"), is_default=False)
        in configuration.values()
    )
    assert configuration.losers("spark.master") == ()


def test_urls_are_masked_by_the_configuration_and_by_a_function(project):
    assert project.load().masked_url("a://b:c@d") == mask_url("a://b:c@d") == "a://b:***@d"


class Mail(Section):
    password: SecretStr = SecretStr("")


class WithMail(Settings):
    mail: Mail = Mail()


def test_secrets_of_the_users_own_settings_are_masked(project):
    configuration = project.yaml("opencqrs.mail.password: hunter2").load(settings_class=WithMail)
    assert configuration.settings.mail.password.get_secret_value() == "hunter2"
    assert "hunter2" not in str(configuration.values())
    assert shown(configuration)["mail.password"] == ("***", "application.yaml:1:25")


def test_written_values_are_yaml(project):
    project.yaml("opencqrs.spark.master: 'a: b'")
    text = shown(project.load())["spark.master"][0]
    assert yaml.safe_load(f"x: {text}") == {"x": "a: b"}

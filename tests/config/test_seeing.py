"""What ``opencqrs config`` shows: every value as it would be written, and where it comes from."""

import pytest
import yaml
from pydantic import SecretStr

from opencqrs_py.config import Configuration, EffectiveValue, Settings, effective_group, mask_url
from opencqrs_py.config.settings import Section
from opencqrs_py.errors import ConfigurationError


def shown(configuration, group=None):
    return {value.path: (value.value, str(value.origin)) for value in configuration.values(group)}


def test_the_settings_of_a_group_are_shown_with_their_origins(project):
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
        "life-cycle.max-partitions-per-node": ("null", "built-in default"),
        "life-cycle.lease.duration": ("10s", "built-in default"),
        "life-cycle.lease.heartbeat": ("3s", "built-in default"),
        "progress.tracking": ("in_memory", "application.yaml:9:26"),
        "progress.tracker-ref": ("null", "replaced by progress.tracking (application.yaml:9:26)"),
        "progress.on-lost": ("refuse", "built-in default"),
        "sequence.resolution": ("per_second_level_subject", "built-in default"),
        "sequence.resolver-ref": ("null", "built-in default"),
        "sequence.level": ("null", "built-in default"),
        "sequence.data-field": ("null", "built-in default"),
        "sequence.metadata-key": ("null", "built-in default"),
        "retry.policy": ("exponential_backoff", "built-in default"),
        "retry.back-off-ref": ("null", "built-in default"),
        "retry.initial-interval": ("1.5s", "standard (application.yaml:4:48)"),
        "retry.max-interval": ("30s", "built-in default"),
        "retry.max-elapsed-time": ("1h30m", "application.yaml:8:50"),
        "retry.multiplier": ("2", "application.yaml:8:71"),
        "retry.max-attempts": ("infinite", "built-in default (reset by application.yaml:8:29)"),
        "retry.on-exhausted": ("skip", "built-in default"),
        "retry.on-undecodable": ("stop", "built-in default"),
        "retry.jitter": ("0", "built-in default"),
        "park.max-sequences": ("1024", "built-in default"),
        "park.max-sequence-size": ("1024", "built-in default"),
        "park.retry.initial-interval": ("30s", "built-in default"),
        "park.retry.max-interval": ("1h", "built-in default"),
        "park.retry.multiplier": ("2", "built-in default"),
        "park.retry.max-attempts": ("5", "built-in default"),
        "schedule.initial-delay": ("10s", "built-in default"),
        "schedule.interval": ("6s", "built-in default"),
        "schedule.kind": ("fixed-delay", "built-in default"),
        "schedule.cron": ("null", "built-in default"),
        "schedule.time-zone": ("UTC", "built-in default"),
        "schedule.error-grace-period": ("0s", "built-in default"),
        "schedule.expires-after": ("infinite", "built-in default"),
        "schedule.on-exhausted": ("block", "built-in default"),
        "schedule.retry.initial-interval": ("1m", "built-in default"),
        "schedule.retry.max-interval": ("3h", "built-in default"),
        "schedule.retry.multiplier": ("2", "built-in default"),
        "schedule.retry.max-attempts": ("100", "built-in default"),
        "batch.mode": ("fail-first", "built-in default"),
        "batch.size": ("null", "built-in default"),
        "batch.ordering": ("inserted", "built-in default"),
        "batch.ordering-ref": ("null", "built-in default"),
        "batch.fetch-size": ("1000", "built-in default"),
        "processing.engine": ("spark", "built-in default"),
        "processing.mode": ("streaming", "built-in default"),
        "processing.batch-size": ("null", "built-in default"),
        "processing.handler-warn-after": ("30s", "built-in default"),
        "processing.handler-timeout": ("infinite", "built-in default"),
        "processing.on-changed-handlers": ("warn", "built-in default"),
        "rebuild.tables": ("[]", "built-in default"),
        "rebuild.shared-tables": ("[]", "built-in default"),
        "rebuild.run-all-handlers": ("false", "built-in default"),
        "rebuild.live": ("pause", "built-in default"),
        "rebuild.max-events-per-second": ("null", "built-in default"),
        "rebuild.max-tasks": ("null", "built-in default"),
        "checkpointing.mode": ("auto", "built-in default"),
        "checkpointing.timeout": ("30s", "built-in default"),
        "checkpointing.hold": ("30s", "built-in default"),
    }


MAPPED = ("table", "position", "id", "source", "source-value", "subject", "type", "time", "data", "metadata")


def test_the_whole_configuration_shows_general_settings_the_standard_as_set_and_all_groups(project):
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
        "event-store.ref": ("null", "built-in default"),
        "event-store.api-token": ("null", "built-in default"),
        **{f"event-store.mapping.{column}": ("null", "built-in default") for column in MAPPED},
        "events.format": ("plain", "built-in default"),
        "events.type-resolver-ref": ("null", "built-in default"),
        "discovery.modules": ("[]", "built-in default"),
        "discovery.exclude": ("[]", "built-in default"),
        "database.url": ("null", "built-in default"),
        "database.ref": ("null", "built-in default"),
        "database.schema": ("null", "built-in default"),
        "database.pool-size": ("null", "built-in default"),
        "clock.ref": ("null", "built-in default"),
        "node.name": ("null", "built-in default"),
        "node.max-partitions": ("null", "built-in default"),
        "node.max-runs": ("4", "built-in default"),
        "spark.master": ("local[*]", "built-in default"),
        "spark.allow-unauthenticated": ("false", "built-in default"),
        "spark.max-tasks-per-group": ("null", "built-in default"),
        "spark.driver-handles": ("while-starting", "built-in default"),
        "spark.conf.spark.ui.enabled": ("no", "application.yaml:3:34"),
        "spark.conf.my.password": ("***", "application.yaml:3:51"),
        "run.sigterm-exit-code": ("130", "built-in default"),
        "http.bind": ("null", "built-in default"),
        "http.token": ("null", "built-in default"),
        "health.max-lag": ("null", "built-in default"),
        "health.stalled-after": ("1m", "built-in default"),
        "logging.format": ("text", "built-in default"),
        "event-handling.standard.fetch.subject": ("/all", "application.yaml:4:44"),
        "config.unknown": ("error", "built-in default"),
        "config.import": ("[]", "built-in default"),
        "profiles.active": ("[]", "built-in default"),
    }
    assert values["event-handling.groups.Books.fetch.subject"] == ("/books", "application.yaml:4:78")
    assert values["event-handling.groups.backup.fetch.subject"] == ("/all", "standard (application.yaml:4:44)")


def test_the_output_can_be_used_as_a_settings_file(project):
    project.yaml(
        "opencqrs: {spark: {master: \"a: b # c\", conf: {x: 'null', y: '', z: '*', n: 017}}, profiles.active: [a, 'b']}"
    )
    configuration = project.load()
    again = "\n".join(f"opencqrs.{value.path}: {value.value}" for value in configuration.values())
    assert project.yaml(again).load().settings == configuration.settings


def test_each_value_tells_whether_it_was_configured(project):
    values = project.load(overrides=["spark.master=local[*]"]).values()
    assert {value.path for value in values if not value.is_default} == {"spark.master"}


@pytest.mark.parametrize(
    ("key", "fix"),
    [
        ("spark.mastr", "did you mean spark.master?"),
        (
            "spark",
            "name one setting: spark.master, spark.conf, spark.allow-unauthenticated, "
            "spark.max-tasks-per-group, spark.driver-handles",
        ),
        ("database", "name one setting: database.url, database.ref, database.schema, database.pool-size"),
    ],
)
def test_the_origin_of_an_unknown_setting_is_an_error(project, key, fix):
    with pytest.raises(ConfigurationError, match="there is no setting") as caught:
        project.load().origin(key)
    assert caught.value.fix == fix


def test_a_group_is_called_as_it_is_written_where_it_is_declared(project):
    project.yaml("opencqrs.event-handling.groups.book_catalog.fetch.subject: /books")
    assert project.load().group("BookCatalog").name == "book_catalog"
    assert project.load(groups=["Book-Catalog"]).group("bookcatalog").name == "Book-Catalog"
    assert project.load().group("never-heard-of").name == "never-heard-of"
    assert project.load().group("BookCatalog") == project.load().group("book_catalog")


def lost(configuration, key):
    return [(value.path, value.value, str(value.origin)) for value in configuration.losers(key)]


def test_overridden_values_are_listed_with_their_places_from_highest_to_lowest(project):
    project.yaml("opencqrs.spark.master: local[1]").write(".env", "OPENCQRS__SPARK__MASTER=local[2]")
    configuration = project.load(overrides=["spark.master=local[3]"], environ={"OPENCQRS_SPARK_MASTER": "local[4]"})
    assert lost(configuration, "spark.master") == [
        ("spark.master", "local[4]", "environment variable OPENCQRS_SPARK_MASTER"),
        ("spark.master", "local[2]", ".env:1"),
        ("spark.master", "local[1]", "application.yaml:1:24"),
    ]
    assert lost(project.load(), "spark.conf.any") == []


KEY = "event-handling.groups.books.retry.max-attempts"
STANDARD = "event-handling.standard.retry.max-attempts"


@pytest.mark.parametrize(
    ("yaml", "key", "value", "losers"),
    [
        (f"{{{STANDARD}: 5}}", KEY, "5", []),
        (f"{{{STANDARD}: 5, {KEY}: 3}}", KEY, "3", [(STANDARD, "5", "standard (application.yaml:1:56)")]),
        (f"{{{STANDARD}: 5, {KEY}: ~}}", KEY, "infinite", [(STANDARD, "5", "standard (application.yaml:1:56)")]),
        (f"{{{KEY}: ~}}", KEY, "infinite", []),
        ("{}", KEY, "infinite", []),
        (
            "{event-handling: {standard.progress.tracker-ref: a, groups.books.progress: {tracking: sql}}}",
            "event-handling.groups.books.progress.tracker-ref",
            "null",
            [("event-handling.standard.progress.tracker-ref", "a", "standard (application.yaml:1:60)")],
        ),
        (
            "{event-handling: {standard.progress.tracker-ref: a, groups.books.progress: {tracking: sql}}}",
            "event-handling.groups.books.progress.tracking",
            "sql",
            [],
        ),
    ],
)
def test_a_standard_overridden_by_a_group_is_listed_as_overridden(project, yaml, key, value, losers):
    configuration = project.yaml(f"opencqrs: {yaml}").load()
    assert configuration.value(key).value == value
    assert lost(configuration, key) == losers


def test_a_setting_of_a_section_in_a_section_is_inherited_with_its_origin(project):
    deep = "park.retry.max-attempts"
    project.yaml(f"opencqrs.event-handling: {{standard.{deep}: 3, groups: {{books.{deep}: 4, backup: {{}}}}}}")
    configuration = project.load()
    standard = ("3", "application.yaml:1:61")
    assert shown(configuration)[f"event-handling.standard.{deep}"] == standard
    assert str(configuration.origin(f"event-handling.groups.backup.{deep}")) == f"standard ({standard[1]})"
    assert lost(configuration, f"event-handling.groups.books.{deep}") == [
        (f"event-handling.standard.{deep}", "3", f"standard ({standard[1]})")
    ]
    assert len(project.errors(overrides=[f"event-handling.standard.{deep}=-1"])) == 1


def test_values_in_all_files_below_the_winning_one_are_listed_as_overridden(project):
    project.yaml(f"opencqrs: {{{STANDARD}: 5, {KEY}: 4}}").write("config/application.yaml", f"opencqrs: {{{KEY}: 3}}")
    configuration = project.load(environ={"OPENCQRS__EVENT_HANDLING__STANDARD__RETRY__MAX_ATTEMPTS": "2"})
    assert [(value, origin) for _, value, origin in lost(configuration, KEY)] == [
        ("4", "application.yaml:1:107"),
        ("2", "standard (environment variable OPENCQRS__EVENT_HANDLING__STANDARD__RETRY__MAX_ATTEMPTS)"),
        ("5", "standard (application.yaml:1:56)"),
    ]


def test_overridden_secrets_are_not_shown_either(project):
    project.yaml("""
        opencqrs:
          database.url: postgresql://u:hunter2@host/db
          spark.conf: {some.token: hunter2}
          config.import: secrets/
    """).write("secrets/opencqrs.spark.master", "hunter2")
    overrides = ["database.url=sqlite:///x", "spark.conf.some.token=x", "spark.master=local[1]"]
    configuration = project.load(overrides=overrides)
    for key, shown_ in (
        ("database.url", "postgresql://u:***@host/db"),
        ("spark.conf.some.token", "***"),
        ("spark.master", "***"),
    ):
        assert [value for _, value, _ in lost(configuration, key)] == [shown_]


def test_overridden_lists_and_null_are_shown_as_written(project):
    project.yaml("""
        opencqrs.profiles.active: [a, b]
        ---
        opencqrs.profiles.active: ~
        ---
        opencqrs.profiles.active: ${P:c}
        """)
    configuration = project.load(overrides=["profiles.active=x"])
    assert [value for _, value, _ in lost(configuration, "profiles.active")] == ["${P:c}", "null", "a, b"]


@pytest.mark.parametrize("ask", [Configuration.value, Configuration.losers, Configuration.origin])
def test_an_unknown_setting_has_no_value_origin_or_overridden_values(project, ask):
    with pytest.raises(ConfigurationError, match=r"there is no setting spark\.mastr"):
        ask(project.load(), "spark.mastr")


@pytest.mark.parametrize(
    ("key", "value"),
    [("SPARK.master", "local[*]"), ("database.url", "null"), ("event-handling.groups.any.fetch.subject", "/")],
)
def test_the_effective_value_of_one_setting_can_be_read(project, key, value):
    assert project.load().value(key).value == value


def test_a_standard_reset_by_a_higher_source_is_shown(project):
    project.yaml(f"opencqrs.{STANDARD}: 5")
    values = shown(project.load(overrides=[f"{STANDARD}=null"]))
    assert values[STANDARD] == ("infinite", f"built-in default (reset by argument --set {STANDARD})")


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


def test_the_password_of_a_url_is_masked():
    assert mask_url("a://b:c@d") == "a://b:***@d"


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

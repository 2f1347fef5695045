"""A user's subclass of the settings: own sections, former names, own sources, own validators."""

from typing import Annotated, Any

import pytest
from pydantic import Field, field_validator, model_validator
from pydantic_settings import InitSettingsSource, PydanticBaseSettingsSource

from opencqrs_py.config import FetchSettings, GroupSettings, Settings, pinned
from opencqrs_py.config.settings import EventHandlingSettings, Section
from opencqrs_py.config.value_types import Duration, Fact


class Mail(Section):
    host_name: Annotated[str, Fact(formerly=("server", "smtp-server"))] = "localhost"
    port: Annotated[int | None, Field(gt=0, lt=65_536)] = None
    timeout: Duration = 1.0
    receivers: tuple[str, ...] = ()
    labels: dict[str, str] = Field({})

    @field_validator("host_name")
    @classmethod
    def _no_dots(cls, value: str) -> str:
        if "." in value:
            msg = "it holds a dot"
            raise ValueError(msg)
        return value

    @model_validator(mode="after")
    def _port_needs_host(self) -> "Mail":
        if self.port and self.host_name == "localhost":
            msg = "a port needs a host"
            raise ValueError(msg)
        return self


class Library(Settings):
    mail: Mail = Mail()
    name: str = "library"


class Required(Settings):
    name: str


def test_the_users_own_sections_are_bound_from_all_sources(project):
    project.yaml("opencqrs: {mail: {host-name: a, labels: {Some.Key: v}}, name: b}")
    settings = project.load(
        settings_class=Library,
        environ={
            "OPENCQRS__MAIL__TIMEOUT": "2s",
            "OPENCQRS_MAIL_RECEIVERS_0": "x",
            "OPENCQRS__MAIL__LABELS__SOME_KEY": "w",
            "OPENCQRS_MAIL_LABELS_NEW_KEY": "n",
        },
        overrides=["mail.port=25"],
    ).settings
    assert isinstance(settings, Library)
    assert settings.mail == Mail(
        host_name="a", port=25, timeout=2.0, receivers=("x",), labels={"Some.Key": "w", "new.key": "n"}
    )
    assert settings.name == "b"


@pytest.mark.parametrize("former", ["server", "smtp-server", "smtpServer"])
def test_a_former_name_works_and_warns_of_the_new_one(project, former):
    configuration = project.yaml(f"opencqrs:\n  mail: {{{former}: a}}").load(settings_class=Library)
    assert configuration.settings.mail.host_name == "a"
    (warning,) = configuration.warnings
    assert warning.code == "OCQ-118"
    assert warning.what.endswith("is an old name of mail.host-name")
    assert (warning.where, warning.fix) == ("application.yaml:2:10", "write host-name; the old name still works")


def test_a_former_name_in_a_variable_works_too(project):
    configuration = project.load(settings_class=Library, environ={"OPENCQRS__MAIL__SMTP_SERVER": "a"})
    assert configuration.settings.mail.host_name == "a"
    assert configuration.warnings[0].where == "environment variable OPENCQRS__MAIL__SMTP_SERVER"


def test_a_former_and_the_new_name_together_are_an_error(project):
    error = project.yaml("opencqrs.mail: {server: a, host-name: b}").error(settings_class=Library)
    assert (error.code, error.what) == ("OCQ-106", "mail.host-name is set twice")


def test_former_names_are_not_suggested(project):
    assert project.error(settings_class=Library, overrides=["mail.sever=x"]).fix.startswith("use one of host-name")


@pytest.mark.parametrize(
    ("mail", "what", "where"),
    [
        ("{port: 0, host-name: a}", "mail.port cannot be '0': it is not above 0", "1:23"),
        ("{port: 65536, host-name: a}", "mail.port cannot be '65536': it is not below 65536", "1:23"),
        ("{host-name: a.b}", "mail.host-name cannot be 'a.b': it holds a dot", "1:28"),
        ("{port: 1}", "mail cannot be used: a port needs a host", "1:23"),
        (
            "{receivers: [x, y], labels: {a: b}, timeout: soon}",
            "mail.timeout cannot be 'soon': it is not a duration",
            "1:61",
        ),
    ],
)
def test_errors_of_the_users_own_validators_are_reported_with_their_place(project, mail, what, where):
    error = project.yaml(f"opencqrs.mail: {mail}").error(settings_class=Library)
    assert (error.what, error.where) == (what, f"application.yaml:{where}")


def test_a_missing_required_value_is_an_error(project):
    error = project.error(settings_class=Required)
    assert (error.code, error.what) == ("OCQ-115", "name has no value")
    missing = project.folder / "application.yaml"
    assert error.where == f"looked in {missing} (does not exist), environment variables, arguments"
    assert error.fix == "set it in a file, as a variable (OPENCQRS__NAME) or with --set name=…"


class Extra(InitSettingsSource):
    def __init__(self, settings_cls: Any, values: dict[str, Any]) -> None:
        super().__init__(settings_cls, init_kwargs=values)


def with_source(values):
    class Sourced(Settings):
        @classmethod
        def settings_customise_sources(cls, settings_cls, **sources):
            return (*super().settings_customise_sources(settings_cls, **sources), Extra(settings_cls, values))

    return Sourced


def test_the_users_own_source_ranks_below_the_others(project):
    sourced = with_source(
        {
            "event_handling": {"groups": {"books": {"fetch": {"subject": "/mine", "recursive": False}}}},
            "spark": {"master": "x"},
        }
    )
    project.yaml("opencqrs.event-handling.groups.books.fetch.subject: /books")
    configuration = project.load(settings_class=sourced)
    assert configuration.group("books").fetch.subject == "/books"
    assert configuration.group("books").fetch.recursive is False
    assert str(configuration.origin("spark.master")) == "settings given in code"
    assert str(configuration.origin("event-handling.groups.books.fetch.recursive")) == "settings given in code"


class Vault(PydanticBaseSettingsSource):
    """A source as the documentation of pydantic-settings has it."""

    def __init__(self, settings_cls, values):
        super().__init__(settings_cls)
        self.values = values

    def get_field_value(self, field, field_name):
        return self.values.get(field_name), field_name, False

    def __call__(self):
        return self.values


def with_vault(place, values):
    class Vaulted(Settings):
        @classmethod
        def settings_customise_sources(cls, settings_cls, **sources):
            ours = super().settings_customise_sources(settings_cls, **sources)
            at = {"highest": 0, "lowest": len(ours)}.get(place)
            at = ours.index(sources[place]) if at is None else at
            return (*ours[:at], Vault(settings_cls, values), *ours[at:])

    return Vaulted


MASTERS = {
    "environ": {"OPENCQRS__SPARK__MASTER": "environ"},
    "dotenv": "OPENCQRS__SPARK__MASTER=dotenv",
    "file": "opencqrs.spark.master: file",
}


@pytest.mark.parametrize(
    ("place", "given", "winner"),
    [
        ("highest", ("environ", "dotenv", "file"), "vault"),
        ("env_settings", ("environ", "dotenv", "file"), "vault"),
        ("dotenv_settings", ("environ", "dotenv", "file"), "environ"),
        ("dotenv_settings", ("dotenv", "file"), "vault"),
        ("lowest", ("file",), "file"),
        ("lowest", (), "vault"),
    ],
)
def test_the_users_own_source_ranks_where_it_is_inserted(project, place, given, winner):
    if "file" in given:
        project.yaml(MASTERS["file"])
    if "dotenv" in given:
        project.write(".env", MASTERS["dotenv"])
    configuration = project.load(
        settings_class=with_vault(place, {"spark": {"master": "vault"}}),
        environ=MASTERS["environ"] if "environ" in given else {},
    )
    assert configuration.settings.spark.master == winner
    shown = [configuration.value("spark.master"), *configuration.losers("spark.master")]
    assert [str(each.origin) for each in shown if each.value == "vault"] == ["source Vault"]


@pytest.mark.parametrize(
    "values",
    [
        {"opencqrs.eventHandling.groups.BOOKS.fetch.subject": "/vault"},
        {"event-handling": {"groups": {"books": {"fetch.subject": "${WHERE}"}}}},
        {"event_handling": {"groups": {"Books": {"fetch": FetchSettings(subject="/vault")}}}},
        {"event_handling": EventHandlingSettings(groups={"Books": GroupSettings(fetch=FetchSettings("/vault"))})},
    ],
)
def test_the_users_own_source_is_bound_like_all_others(project, values):
    project.yaml("opencqrs.event-handling.groups.Books.life-cycle.partitions: 2")
    books = project.load(settings_class=with_vault("highest", values), environ={"WHERE": "/vault"}).group("books")
    assert (books.name, books.fetch.subject, books.life_cycle.partitions) == ("Books", "/vault", 2)


def test_using_the_order_of_the_pydantic_documentation_drops_none_of_our_sources(project):
    class Documented(Settings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls, init_settings, env_settings, dotenv_settings, file_secret_settings
        ):
            vault = Vault(settings_cls, {"spark": {"master": "vault"}})
            return vault, init_settings, env_settings, dotenv_settings, file_secret_settings

    inline = {"OPENCQRS_APPLICATION_JSON": '{"spark.master": "json"}'}
    given = {"environ": MASTERS["environ"] | inline, "overrides": ["spark.master=argument"]}
    project.yaml(MASTERS["file"]).write(".env", MASTERS["dotenv"])
    configuration = project.load(settings_class=Documented, defaults={"spark.master": "code"}, **given)
    lost = [each.value for each in configuration.losers("spark.master")]
    assert [configuration.settings.spark.master, *lost] == [
        "vault",
        "argument",
        "json",
        "environ",
        "dotenv",
        "file",
        "code",
    ]
    with pinned({"spark.master": "test"}):
        assert project.load(settings_class=Documented, **given).settings.spark.master == "test"


def test_an_omitted_source_contributes_nothing(project):
    class WithoutVariables(Settings):
        @classmethod
        def settings_customise_sources(cls, settings_cls, init_settings, **sources):
            return (init_settings,)

    project.yaml(MASTERS["file"]).write(".env", MASTERS["dotenv"])
    given = {"environ": MASTERS["environ"], "overrides": ["spark.conf.a=b"]}
    spark = project.load(settings_class=WithoutVariables, **given).settings.spark
    assert (spark.master, spark.conf) == ("file", {"a": "b"})


def test_the_users_own_source_can_choose_profiles(project):
    project.yaml("opencqrs.profiles.active: b").write("application-a.yaml", "{}").write("application-b.yaml", "{}")
    values = {"profiles": {"active": ["a"]}}
    assert project.load(settings_class=with_vault("highest", values)).profiles == ("a",)
    assert project.load(settings_class=with_vault("lowest", values)).profiles == ("b",)


def test_our_sources_are_sources_of_pydantic_settings(project):
    found = {}

    class Watched(Settings):
        @classmethod
        def settings_customise_sources(cls, settings_cls, **sources):
            ours = super().settings_customise_sources(settings_cls, **sources)
            found.update({type(source).__name__: source for source in ours})
            return ours

    project.yaml("opencqrs.spark.master: file").write(".env", MASTERS["dotenv"])
    project.load(settings_class=Watched, environ=MASTERS["environ"], overrides=["spark.master=argument"])
    assert all(isinstance(source, PydanticBaseSettingsSource) for source in found.values())
    assert {name: source().get("spark", {}).get("master") for name, source in found.items()} == {
        "TestSource": None,
        "ArgumentSource": "argument",
        "InlineJsonSource": None,
        "EnvironmentSource": "environ",
        "SecretsSource": None,
        "DotenvSource": "dotenv",
        "FilesSource": "file",
        "DefaultsSource": None,
    }
    source = found["EnvironmentSource"]
    assert source.get_field_value(Settings.model_fields["spark"], "spark") == ({"master": "environ"}, "spark", False)


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"spark": {"mastr": "x"}}, "there is no setting spark.mastr"),
        ({"nothing": 1}, "there is no setting nothing"),
        ({"spark": {"master": 3.5j}}, "spark.master cannot be '3.5j': it is not text"),
        ({"spark": 3}, "spark is a section, not a single value or a list"),
    ],
)
def test_errors_in_the_users_own_source_are_reported(project, values, what):
    error = project.error(settings_class=with_source(values))
    assert (error.what, error.where) == (what, "settings given in code")


def test_settings_can_be_made_by_hand_and_ignore_the_environment(monkeypatch):
    monkeypatch.setenv("OPENCQRS__SPARK__MASTER", "x")
    monkeypatch.setenv("SPARK", '{"master": "x"}')
    assert Settings().spark.master == "local[*]"
    assert Library(mail={"host_name": "a"}).mail.host_name == "a"

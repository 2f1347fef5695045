"""Decisions: a choice with its candidates and reason, or an error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from dependency_injector import containers, providers
from sqlalchemy import Engine, create_engine, text

from opencqrs_py.assembly.conditions import Decision, decide_batch, decide_controller, raise_together
from opencqrs_py.assembly.databases import DatabaseRule, SettingValue, choose_database, decide_event_store
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.assembly.replacements import decide_tracking
from opencqrs_py.assembly.setting_conflicts import unfit_for_frames, unfit_for_parking
from opencqrs_py.assembly.stores import located
from opencqrs_py.config import Engine as EngineName
from opencqrs_py.config import Settings, effective_group
from opencqrs_py.errors import AssemblyError, AssemblyErrors, EventStoreError, HandlerSignatureError
from opencqrs_py.processing.ports import LockRegistry


class Locks:
    def obtain(self, name: str) -> None: ...


class OtherLocks(LockRegistry): ...


class Mailer: ...


def registered(**made) -> ContainerInjector:
    container = containers.DynamicContainer()
    for name, what in made.items():
        container.set_provider(name, what if isinstance(what, providers.Provider) else providers.Singleton(what))
    return ContainerInjector([container])


def group(standard=None, own=None):
    """Return the effective settings of a group, from leaves written ``section.leaf``."""

    def nested(leaves):
        tree = {}
        for path, value in (leaves or {}).items():
            section, leaf = path.split(".")
            tree.setdefault(section, {})[leaf] = value
        return tree

    settings = Settings(event_handling={"standard": nested(standard), "groups": {"books": nested(own)}})
    return effective_group(settings, "books")


# ------------------------------------------------------------------------------------------------------ database

DEFAULT_STORE = SettingValue("sqlite:////p/opencqrs.db", "sqlite:///opencqrs.db", "built-in default", is_default=True)
SET_STORE = SettingValue("sqlite:////p/events.db", "sqlite:///events.db", "application.yaml:1:1")
OTHER_STORE = SettingValue("https://store:3000", "https://store:3000", "application.yaml:1:1")
URL = SettingValue("postgresql://u:p@h/d", "postgresql://u:***@h/d", "application.yaml:2:2")
ENGINE = {"engine": Engine}
IN_FUNCTION = {"engine": providers.Singleton(create_engine, "sqlite://")}


@pytest.mark.parametrize(
    ("rule", "providers_", "choice", "reason", "candidates"),
    [
        (
            DatabaseRule(DEFAULT_STORE),
            {},
            "sqlite:///opencqrs.db",
            "the event store's, since no other one is configured or registered",
            ("event-store.url (built-in default)",),
        ),
        (
            DatabaseRule(SET_STORE),
            {"mailer": Mailer},
            "sqlite:///events.db",
            "the event store's, since no other one is configured or registered",
            ("event-store.url (application.yaml:1:1)",),
        ),
        (
            DatabaseRule(OTHER_STORE),
            {},
            "none",
            "the event store is not a SQL database, and no other one is configured or registered",
            (),
        ),
        (
            DatabaseRule(DEFAULT_STORE),
            IN_FUNCTION,
            "provider engine",
            "the only provider of an engine, and event-store.url is not set",
            ("provider engine",),
        ),
        (
            DatabaseRule(OTHER_STORE),
            ENGINE,
            "provider engine",
            "the only provider of an engine, and the event store is not a SQL database",
            ("provider engine",),
        ),
        (
            DatabaseRule(SET_STORE, url=URL),
            ENGINE,
            "postgresql://u:***@h/d",
            "set",
            (
                "database.url (application.yaml:2:2)",
                "event-store.url (application.yaml:1:1)",
                "provider engine",
            ),
        ),
        (
            DatabaseRule(SET_STORE, ref=SettingValue("one", "one", "here")),
            {"one": Engine, "two": Engine},
            "provider one",
            "named",
            ("event-store.url (application.yaml:1:1)", "provider one", "provider two"),
        ),
    ],
)
def test_the_database_is_the_named_one_or_the_only_one(rule, providers_, choice, reason, candidates):
    decision = choose_database(rule, registered(**providers_)).decision
    assert (decision.group, decision.subject, decision.error) == ("", "database", None)
    assert (decision.choice, decision.reason, decision.candidates) == (choice, reason, candidates)


@pytest.mark.parametrize(
    ("rule", "providers_", "url", "ref"),
    [
        (DatabaseRule(SET_STORE), {}, SET_STORE.value, ""),
        (DatabaseRule(OTHER_STORE), {}, "", ""),
        (DatabaseRule(DEFAULT_STORE), ENGINE, "", "engine"),
        (DatabaseRule(SET_STORE, url=URL), ENGINE, URL.value, ""),
        (DatabaseRule(SET_STORE, ref=SettingValue("engine", "engine", "")), ENGINE, "", "engine"),
    ],
)
def test_the_choice_is_a_url_or_a_provider_or_neither(rule, providers_, url, ref):
    choice = choose_database(rule, registered(**providers_))
    assert (choice.url, choice.ref) == (url, ref)


@pytest.mark.parametrize(
    ("rule", "providers_", "code", "says"),
    [
        (
            DatabaseRule(SET_STORE),
            ENGINE,
            "OCQ-520",
            "2 databases, and none is chosen: event-store.url (application.yaml:1:1), provider engine",
        ),
        (DatabaseRule(OTHER_STORE), {"one": Engine, "two": Engine}, "OCQ-520", "provider one, provider two"),
        (
            DatabaseRule(SET_STORE, URL, SettingValue("engine", "engine", "a.yaml:1:1")),
            ENGINE,
            "OCQ-521",
            "database.url and database.ref are both set",
        ),
        (
            DatabaseRule(SET_STORE, ref=SettingValue("engin", "engin", "x")),
            ENGINE,
            "OCQ-502",
            "no provider is called 'engin'",
        ),
        (
            DatabaseRule(SET_STORE, ref=SettingValue("mailer", "mailer", "x")),
            {"mailer": Mailer},
            "OCQ-502",
            "provider 'mailer' makes Mailer, no Engine",
        ),
    ],
)
def test_an_ambiguous_or_invalid_choice_of_the_database_is_an_error(rule, providers_, code, says):
    decision = choose_database(rule, registered(**providers_)).decision
    assert decision.choice == ""
    assert decision.error.code == code
    assert says in decision.error.what
    assert str(decision) == f"application: database = not decided: {decision.error.what}"


IN_MEMORY = {
    "sqlite://": True,
    "sqlite:///": True,
    "sqlite:///:memory:": True,
    "sqlite+pysqlite:///?timeout=5": True,
    "sqlite:///file:a?mode=memory&uri=true": True,
    "sqlite:///file::memory:?cache=shared&uri=true": False,
    "sqlite:///file:/a?vfs=memdb&uri=true": False,
    "sqlite:////srv/a.db?timeout=5": False,
    "postgresql:///": False,
}


@pytest.mark.parametrize(("url", "refused"), IN_MEMORY.items())
def test_an_in_memory_database_private_to_each_thread_is_refused(url, refused):
    store, said = DatabaseRule(SettingValue(url, url, "a.yaml:1:1")), SettingValue(url, url, "a.yaml:2:1")
    found = [
        (decide_event_store(store, registered()).error, "event-store.url names an in-memory database", "a.yaml:1:1"),
        (choose_database(store, registered()).decision.error, "event-store.url names an in-memory", "a.yaml:1:1"),
        (choose_database(DatabaseRule(SET_STORE, said), registered()).decision.error, "database.url", "a.yaml:2:1"),
    ]
    for error, says, where in found:
        assert (error is not None) is refused
        if refused:
            assert (error.code, error.where, error.fix) == ("OCQ-301", where, "name a file: sqlite:///events.db")
            assert error.what.startswith(says)


def test_two_choices_of_a_database_are_an_error_that_names_both_origins():
    rule = DatabaseRule(DEFAULT_STORE, URL, SettingValue("engine", "engine", "argument --set database.ref"))
    error = choose_database(rule, registered()).decision.error
    assert error.where == "application.yaml:2:2 and argument --set database.ref"


def test_a_driver_in_the_url_does_not_change_the_kind_of_the_store():
    store = SettingValue("postgresql+psycopg://h/d", "postgresql+psycopg://h/d", "x")
    assert choose_database(DatabaseRule(store), registered()).url == store.value


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:///a.db", "sqlite:////project/a.db"),
        ("sqlite:///../a.db", "sqlite:////project/../a.db"),
        ("sqlite:////srv/a.db", "sqlite:////srv/a.db"),
        ("sqlite+pysqlite:///a.db", "sqlite+pysqlite:////project/a.db"),
        ("sqlite:///a.db?timeout=5", "sqlite:////project/a.db?timeout=5"),
        ("sqlite+pysqlite:////srv/a.db", "sqlite+pysqlite:////srv/a.db"),
        ("sqlite+pysqlite:///:memory:", "sqlite+pysqlite:///:memory:"),
        ("sqlite://", "sqlite://"),
        ("sqlite:///:memory:", "sqlite:///:memory:"),
        ("sqlite:///file:a?mode=memory&uri=true", "sqlite:///file:a?mode=memory&uri=true"),
        ("sqlite:///file:a?vfs=memdb&uri=true", "sqlite:///file:a?vfs=memdb&uri=true"),
        ("sqlite:///file::memory:?uri=true", "sqlite:///file::memory:?uri=true"),
        ("sqlite:///file:/srv/a.db?uri=true", "sqlite:///file:/srv/a.db?uri=true"),
        ("sqlite:///file:///srv/a.db?uri=true", "sqlite:///file:///srv/a.db?uri=true"),
        ("sqlite:///file:%2Fsrv%2Fa.db?uri=true", "sqlite:///file:%2Fsrv%2Fa.db?uri=true"),
        ("sqlite:///file:a.db?uri=false", "sqlite:///file:a.db?uri=false"),
        ("sqlite:///file:a.db?uri=1", "sqlite:///file:/project/a.db?uri=1"),
        ("sqlite:///file:a.db?uri=True&mode=rw", "sqlite:///file:/project/a.db?uri=True&mode=rw"),
        ("sqlite:///file:a.db?mode=rw&uri=true", "sqlite:///file:/project/a.db?mode=rw&uri=true"),
        ("sqlite+pysqlite:///file:../a%20b.db?uri=true", "sqlite+pysqlite:///file:/project/../a%20b.db?uri=true"),
        ("postgresql://u@h/d", "postgresql://u@h/d"),
    ],
)
def test_a_relative_sqlite_path_is_relative_to_the_project(url, expected):
    assert located(url, Path("/project")) == expected


@pytest.mark.parametrize("folder", ["plain", "what?x=1", "50%25 of #1"])
def test_a_relative_sqlite_uri_works_whatever_the_name_of_the_project_folder(tmp_path, folder):
    project = tmp_path / folder
    project.mkdir()
    engine = create_engine(located("sqlite:///file:a%20b.db?mode=rwc&uri=true", project))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE t (x INT)"))
    engine.dispose()
    assert [file.name for file in project.iterdir()] == ["a b.db"]


@pytest.mark.parametrize("folder", ["/what?", "/what?x=1", "/50%25"])
def test_a_project_folder_with_url_syntax_in_its_name_is_refused(folder: str) -> None:
    assert located("sqlite:////srv/events.db", Path(folder)) == "sqlite:////srv/events.db"
    assert located("file:events/", Path(folder)).startswith("file:///")
    with pytest.raises(EventStoreError, match=r"(?s)OCQ-301.*project folder, /.*database\.url.*rename the folder"):
        located("sqlite:///events.db", Path(folder), "database.url")


@pytest.mark.parametrize("url", ["sqlite:///events.db", "sqlite:///file:events.db?uri=true"])
def test_a_project_folder_that_is_not_valid_utf_8_is_refused(url: str) -> None:
    folder = Path(os.fsdecode(b"/caf\xe9"))
    assert located("sqlite:////srv/events.db", folder) == "sqlite:////srv/events.db"
    assert located("file:events/", folder) == "file:///caf%E9/events"
    with pytest.raises(
        EventStoreError, match=r"(?s)OCQ-301.*/caf\\udce9, is not valid UTF-8.*rename the folder"
    ) as error:
        located(url, folder)
    assert str(error.value).isascii()


# ------------------------------------------------------------------------------------------------------ tracking

ONE = Decision("", "database", "sqlite:///opencqrs.db", "…")
NONE = Decision("", "database", "none", "…")
UNDECIDED = Decision("", "database", "", "…")
REFERENCE = {"progress.tracker_ref": "tracker"}


@pytest.mark.parametrize(
    ("settings", "database", "choice", "reason", "setting"),
    [
        ({}, ONE, "sql", "there is exactly one database", ""),
        ({}, NONE, "in_memory", "no database is configured or registered", ""),
        ({}, UNDECIDED, "", "the database is not decided", ""),
        ({"progress.tracking": "jdbc"}, ONE, "sql", "set", "progress.tracking"),
        ({"progress.tracking": "in-memory"}, ONE, "in_memory", "set", "progress.tracking"),
        ({"progress.tracking": "in-memory"}, UNDECIDED, "in_memory", "set", "progress.tracking"),
        ({"progress.tracking": "sql"}, UNDECIDED, "sql", "set", "progress.tracking"),
    ],
)
def test_without_a_tracker_provider_progress_is_kept_in_the_database_if_there_is_one(
    settings, database, choice, reason, setting
):
    decision = decide_tracking(group(settings), database, registered(mailer=Mailer))
    assert (decision.group, decision.subject) == ("books", "progress.tracking")
    assert (decision.choice, decision.reason, decision.setting) == (choice, reason, setting)
    assert decision.error is None


@pytest.mark.parametrize(
    ("settings", "providers_", "code", "says"),
    [
        ({"progress.tracking": "sql"}, {}, "OCQ-522", "progress.tracking is sql, but there is no database"),
        (REFERENCE, {}, "OCQ-502", "no provider is called 'tracker'"),
        (REFERENCE, {"tracker": Mailer}, "OCQ-502", "makes Mailer, which has no claim, unit, renewed, report"),
    ],
)
def test_a_choice_that_cannot_store_progress_is_an_error(settings, providers_, code, says):
    error = decide_tracking(group(settings), NONE, registered(**providers_)).error
    assert error.code == code
    assert says in error.what


# ---------------------------------------------------------------------------------------------------- controller

CONTEXT, ELECTION = "application_context", "leader_election"
CONTROLLER, LOCKS = "life_cycle.controller", "life_cycle.lock_registry"
REGISTRATION = "life_cycle.controller_registration"


IN_SQL = Decision("books", "progress.tracking", "sql", "…")
IN_MEMORY = Decision("books", "progress.tracking", "in_memory", "…")
BY_PROVIDER = Decision("books", "progress.tracking", "provider mine", "…", provider="mine")
UNDECIDED = Decision("books", "progress.tracking", "", "…")


@pytest.mark.parametrize(
    ("tracking", "settings", "choice", "reason"),
    [
        (IN_SQL, {}, ELECTION, "leases are stored in the progress database"),
        (IN_SQL, {CONTROLLER: ELECTION}, ELECTION, "set, and leases are stored in the progress database"),
        (IN_SQL, {CONTROLLER: CONTEXT}, CONTEXT, "set"),
        (IN_MEMORY, {}, CONTEXT, "leases need progress in a database"),
        (IN_MEMORY, {CONTROLLER: CONTEXT}, CONTEXT, "set"),
        (BY_PROVIDER, {}, CONTEXT, "leases need progress in a database"),
        (UNDECIDED, {}, "", "progress.tracking is not decided"),
        (UNDECIDED, {CONTROLLER: CONTEXT}, CONTEXT, "set"),
    ],
)
def test_leases_control_a_group_whose_progress_is_in_sql(tracking, settings, choice, reason):
    decision = decide_controller(group(settings), registered(mailer=Mailer), tracking)
    assert (decision.choice, decision.reason, decision.provider, decision.error) == (choice, reason, "", None)
    assert decision.setting == ("life-cycle.controller" if settings else "")


@pytest.mark.parametrize(
    ("standard", "own", "providers_", "choice", "reason"),
    [
        ({}, {}, {"locks": Locks}, ELECTION, "exactly one lock registry is registered, locks"),
        ({}, {}, {"locks": OtherLocks}, ELECTION, "exactly one lock registry is registered, locks"),
        ({CONTROLLER: CONTEXT}, {}, {"a": Locks, "b": Locks}, CONTEXT, "set"),
        ({CONTROLLER: ELECTION}, {}, {"a": Locks}, ELECTION, "set, and exactly one lock registry is registered, a"),
        ({LOCKS: "b"}, {}, {"a": Locks, "b": Locks}, ELECTION, "lock registry b is named"),
        ({LOCKS: "b"}, {CONTROLLER: ELECTION}, {"a": Locks, "b": Locks}, ELECTION, "lock registry b is named"),
        ({CONTROLLER: ELECTION}, {LOCKS: "b"}, {"a": Locks, "b": Locks}, ELECTION, "lock registry b is named"),
        ({LOCKS: "b"}, {CONTROLLER: CONTEXT}, {"a": Locks, "b": Locks}, CONTEXT, "set"),
        ({CONTROLLER: CONTEXT}, {LOCKS: "b"}, {"a": Locks, "b": Locks}, ELECTION, "lock registry b is named"),
        ({CONTROLLER: CONTEXT, LOCKS: "b"}, {}, {"a": Locks, "b": Locks}, CONTEXT, "set"),
        ({LOCKS: "b"}, {LOCKS: None}, {"a": Locks}, ELECTION, "exactly one lock registry is registered, a"),
        ({REGISTRATION: "mine"}, {}, {"mine": Mailer}, "provider mine", "named"),
        ({REGISTRATION: "mine"}, {CONTROLLER: CONTEXT}, {}, CONTEXT, "set"),
    ],
)
def test_the_controller_follows_lock_registries_registrations_and_settings(standard, own, providers_, choice, reason):
    injector = registered(**providers_)
    decision = decide_controller(group(standard, own), injector, IN_SQL)
    assert (decision.subject, decision.choice, decision.reason) == ("life-cycle.controller", choice, reason)
    assert decision.candidates == tuple(f"provider {name}" for name in injector.makers(LockRegistry))
    assert decision.error is None


@pytest.mark.parametrize(
    ("settings", "providers_", "code", "says"),
    [
        ({}, {"a": Locks, "b": Locks}, "OCQ-523", "2 lock registries are registered and none is chosen: a, b"),
        ({CONTROLLER: ELECTION}, {"a": Locks, "b": OtherLocks}, "OCQ-523", "none is chosen: a, b"),
        ({CONTROLLER: ELECTION}, {}, "OCQ-505", "is leader_election, but leases need progress in a database"),
        ({LOCKS: "lokcs"}, {"locks": Locks}, "OCQ-502", "no provider is called 'lokcs'"),
        ({LOCKS: "mailer"}, {"mailer": Mailer}, "OCQ-502", "provider 'mailer' makes Mailer, which has no obtain"),
        ({REGISTRATION: "mine"}, {}, "OCQ-502", "no provider is called 'mine'"),
    ],
)
def test_an_ambiguous_or_invalid_choice_of_the_controller_is_an_error(settings, providers_, code, says):
    decision = decide_controller(group(settings), registered(**providers_), IN_MEMORY)
    assert (decision.choice, decision.error.code) == ("", code)
    assert says in decision.error.what


@pytest.mark.parametrize(
    ("standard", "own", "provider"),
    [
        ({}, {}, "locks"),
        ({CONTROLLER: CONTEXT}, {}, "locks"),
        ({LOCKS: "locks"}, {}, "locks"),
        ({LOCKS: "locks"}, {CONTROLLER: CONTEXT}, "locks"),
        ({REGISTRATION: "mine"}, {}, "mine"),
    ],
)
def test_the_decision_names_the_provider_that_replaces_leases(standard, own, provider):
    decision = decide_controller(group(standard, own), registered(locks=Locks, mine=Mailer), IN_SQL)
    assert decision.provider == provider


def test_the_application_context_with_the_only_lock_registry_wants_all_of_its_locks():
    decision = decide_controller(group({CONTROLLER: CONTEXT}), registered(locks=Locks), IN_SQL)
    assert (decision.choice, decision.reason) == (CONTEXT, "set, and exactly one lock registry is registered, locks")


@pytest.mark.parametrize(
    ("settings", "tracking", "refused"),
    [
        ({}, "in_memory", False),
        ({"retry.on_exhausted": "park"}, "sql", False),
        ({"retry.on_exhausted": "park"}, "in_memory", True),
        ({"retry.on_undecodable": "park"}, "in_memory", True),
        ({"retry.on_exhausted": "park", "processing.engine": "thread"}, "in_memory", False),
        ({"processing.mode": "scheduled"}, "sql", False),
        ({"processing.mode": "scheduled"}, "in_memory", True),
        ({"processing.mode": "scheduled", "processing.engine": "thread"}, "in_memory", False),
    ],
)
def test_parking_in_memory_is_refused_on_spark(settings, tracking, refused):
    errors = list(unfit_for_parking(group(settings), Decision("books", "progress.tracking", tracking, "set")))
    assert [error.code for error in errors] == ["OCQ-604"] * refused
    scheduled = "processing.mode" in settings
    fix = "processing.mode: streaming" if scheduled else "retry.on-exhausted and retry.on-undecodable: skip or stop"
    assert [error.fix for error in errors] == [f"set progress.tracking: sql, or {fix}"] * refused


# --------------------------------------------------------------------------------------------------------- chunks


@pytest.mark.parametrize(
    ("settings", "transactional", "size", "reason", "setting"),
    [
        ({"processing.batch_size": 5}, True, 5, "set", "processing.batch-size"),
        ({}, True, 1_000, "every handler asks for the progress transaction", ""),
        ({}, False, 1_000, "every handler asks for the progress transaction or takes lists", ""),
        ({}, False, 1, "a handler works outside the progress transaction", ""),
    ],
)
def test_the_batch_size_depends_on_the_setting_and_the_handlers(settings, transactional, size, reason, setting):
    decision = decide_batch(group(settings), transactional=transactional, size=size)
    assert (decision.choice, decision.setting) == (str(size), setting)
    assert decision.reason.startswith(reason)


def test_the_chunk_of_data_frames_is_a_range_of_positions():
    decision = decide_batch(group({}), transactional=True, size=250_000, in_tables=True, in_frames=True)
    assert (decision.choice, decision.setting) == ("250000", "")
    assert decision.reason == "the handler takes data frames of Spark: positions of a range"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, []),
        ({"processing.engine": EngineName.THREAD}, ["its engine is thread"]),
        ({"processing.mode": "scheduled"}, ["is scheduled: a range has no batches"]),
        ({"life_cycle.partitions": 3, "processing.handler_timeout": 5.0}, ["3 partitions", "handler-timeout is set"]),
    ],
)
def test_settings_that_do_not_fit_a_group_of_data_frames_are_errors(settings, says):
    errors = list(unfit_for_frames(group(settings), "here.py:1 (lent)"))
    assert len(errors) == len(says)
    for found, said in zip(errors, says, strict=True):
        assert (found.code, found.where) == ("OCQ-541", "here.py:1 (lent)")
        assert said in found.what


# --------------------------------------------------------------------------------------------------------- errors


def error(where, what="it is wrong"):
    return AssemblyError("OCQ-599", what, where, "fix it")


def test_without_errors_nothing_is_raised():
    raise_together([])


def test_a_single_error_is_raised_unchanged():
    single = error("a")
    with pytest.raises(AssemblyError) as caught:
        raise_together([single])
    assert caught.value is single


def test_errors_that_differ_only_in_their_place_are_merged_into_one():
    with pytest.raises(AssemblyError) as caught:
        raise_together(error(where) for where in ["group a", "group b", "group a"])
    assert (caught.value.where, type(caught.value)) == ("group a, group b", AssemblyError)
    with pytest.raises(AssemblyError, match="group 9 and 90 more"):
        raise_together(error(f"group {number}") for number in range(100))


def test_several_errors_are_raised_together():
    other = HandlerSignatureError("OCQ-201", "no annotation", "handlers.py:3")
    with pytest.raises(AssemblyErrors) as caught:
        raise_together([error("a"), other, error("b")])
    assert [str(each) for each in caught.value.errors] == [str(error("a, b")), str(other)]
    assert caught.value.code == "OCQ-599"


def test_the_repr_of_a_rule_hides_secrets() -> None:
    rule = DatabaseRule(
        SettingValue("eventsourcingdb://token@h", "eventsourcingdb://***@h", "here"),
        SettingValue("p://u:pass@h", "", ""),
    )
    assert "eventsourcingdb://***@h" in repr(rule)
    assert "token" not in repr(rule)
    assert "pass" not in repr(rule)

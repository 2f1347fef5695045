"""Where progress and read models are, depending on settings and on the project's containers."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import inspect
from support.sqlite import rows_of

from opencqrs_py import Application
from opencqrs_py.adapters.sql import Database
from opencqrs_py.assembly.spark_source import EventStoreSource
from opencqrs_py.errors import AssemblyError, AssemblyErrors, EventStoreError
from opencqrs_py.model.cloudevents import parse_event

HANDLERS = """
from pathlib import Path
from dependency_injector import containers, providers
from opencqrs_py import Event, event_handling, on_start
from sqlalchemy import Connection, create_engine, text

class Container(containers.DeclarativeContainer):
    library = providers.Singleton(create_engine, f"sqlite:///{Path(__file__).parents[1]}/library.db")

@on_start("seen")
def table(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS seen (id TEXT PRIMARY KEY)"))

@event_handling("seen", types=["*"])
def see(event: Event, connection: Connection) -> None:
    connection.execute(text("INSERT INTO seen VALUES (:id)"), {"id": event.id})
"""
WITHOUT_CONTAINER = HANDLERS.replace("library = providers", "library = None and providers")
pytestmark = pytest.mark.usefixtures("databases_closed")
THREAD = {"event-handling.standard.processing.engine": "thread"}


def with_events(application: Application, count: int = 50) -> Application:
    lines = (f'{{"id": "{n}", "source": "s", "type": "t", "subject": "/x/{n}", "data": {{}}}}' for n in range(count))
    application.event_store.append(map(parse_event, lines))
    return application


def tables(file: Path) -> set[str]:
    return {name for (name,) in rows_of(file, "SELECT name FROM sqlite_master WHERE type = 'table'")}


def seen(file: Path) -> int:
    return int(rows_of(file, "SELECT count(*) FROM seen")[0][0])


@pytest.mark.release(engine="spark", settings={})
@pytest.mark.parametrize("settings", [{}, {"database.ref": "library", "event-store.url": "sqlite:///events.db"}])
@pytest.mark.parametrize("engine", ["thread", pytest.param("spark", marks=pytest.mark.spark)])
def test_the_engine_in_a_container_is_the_database(make_module, tmp_path, settings, engine):
    run_by = {
        "spark.master": "local[1]",
        "spark.driver-handles": "never",
        "event-handling.standard.processing.engine": engine,
    }
    application = with_events(Application({**run_by, **settings}, [make_module(HANDLERS)], tmp_path))
    assert application.conditions()[0].choice == "provider library"
    result = application.run(until_caught_up=True)
    assert not result.failed
    assert sum(result.handled.values()) == 50
    assert seen(tmp_path / "library.db") == 50
    assert {"seen", "opencqrs_progress"} <= tables(tmp_path / "library.db")
    store = tmp_path / ("events.db" if settings else "opencqrs.db")
    assert tables(store).isdisjoint({"seen", "opencqrs_progress"})
    assert [(status.group, status.lag) for status in application.status()] == [("seen", 0)]


def test_a_url_wins_over_the_engine_of_a_container(make_module, tmp_path):
    settings = {**THREAD, "database.url": "sqlite:///read.db"}
    application = with_events(Application(settings, [make_module(HANDLERS)], tmp_path))
    application.run(until_caught_up=True)
    assert seen(tmp_path / "read.db") == 50


def test_a_second_start_continues_in_the_same_database(make_module, tmp_path):
    module = make_module(HANDLERS)
    for _ in range(2):
        application = with_events(Application(THREAD, [module], tmp_path))
        result = application.run(until_caught_up=True)
    assert sum(result.handled.values()) == 0
    assert seen(tmp_path / "library.db") == 50


def test_two_databases_without_a_choice_are_refused_at_the_start_and_nothing_is_written(make_module, tmp_path):
    settings = {**THREAD, "event-store.url": "sqlite:///events.db"}
    application = with_events(Application(settings, [make_module(HANDLERS)], tmp_path))
    with pytest.raises(AssemblyError, match="there are 2 databases, and none is chosen") as caught:
        application.start()
    assert caught.value.code == "OCQ-520"
    assert caught.value.fix == "set database.url, or name a provider with database.ref"
    assert not (tmp_path / "library.db").exists()
    decisions = application.conditions()
    assert [d.choice for d in decisions if d.subject in ("database", "progress.tracking")] == ["", ""]


def test_both_a_url_and_a_provider_are_refused_with_both_origins(make_module, tmp_path):
    settings = {**THREAD, "database.url": "sqlite:///a.db", "database.ref": "library"}
    with pytest.raises(AssemblyError, match="default given in code and default given in code"):
        Application(settings, [make_module(HANDLERS)], tmp_path).start()


def test_without_a_database_a_handler_with_a_connection_is_refused_with_its_place(make_module, tmp_path):
    source = WITHOUT_CONTAINER + '\n@event_handling("other", types=["*"])\ndef other(event: Event) -> None: ...\n'
    module = make_module(source)
    application = Application({**THREAD, "event-store.url": "https://store:3000"}, [module], tmp_path)
    told = {(d.group, d.subject): d for d in application.conditions()}
    assert told["", "database"].choice == "none"
    assert told["other", "progress.tracking"].choice == "in_memory"
    with pytest.raises(AssemblyErrors) as caught:
        application.start()
    (refused,) = [error for error in caught.value.errors if error.code == "OCQ-524"]
    assert refused.where.endswith("(see)")


def test_errors_of_all_groups_are_raised_together(make_module, tmp_path):
    wrong = '\n@event_handling("other", types=["*"])\ndef other(event: Event, x) -> None: ...\n'
    settings = {
        **THREAD,
        "event-handling.standard.processing.engine": "spark",
        "event-handling.groups.other.retry.on-exhausted": "park",
        "event-handling.groups.seen.progress.tracker-ref": "nobody",
        "event-handling.groups.other.life-cycle.controller": "leader-election",
        "event-handling.groups.other.progress.tracking": "in-memory",
    }
    application = Application(settings, [make_module(HANDLERS + wrong)], tmp_path)
    with pytest.raises(AssemblyErrors) as caught:
        application.start()
    assert [error.code for error in caught.value.errors] == ["OCQ-502", "OCQ-505", "OCQ-201", "OCQ-604"]
    assert caught.value.errors[0].where == "progress.tracker-ref (default given in code)"
    assert caught.value.errors[-1].where == "group other"


SERVED = WITHOUT_CONTAINER.replace("TEXT PRIMARY KEY", "VARCHAR(20) PRIMARY KEY")


def names(url: str, schema: str | None) -> set[str]:
    engine = Database(url).engine
    found = set(inspect(engine).get_table_names(schema=schema))
    engine.dispose()
    return found


@pytest.mark.release(engine="spark")
@pytest.mark.postgresql
@pytest.mark.parametrize("engine", ["thread", pytest.param("spark", marks=pytest.mark.spark)])
def test_a_schema_holds_all_our_tables_and_none_of_the_users(make_module, tmp_path, postgresql_url, engine):
    settings = {
        "spark.master": "local[1]",
        "spark.driver-handles": "never",
        "event-handling.standard.processing.engine": engine,
        "event-store.url": postgresql_url,
        "database.schema": "our_log",
    }
    module = make_module(SERVED)
    for handled in (50, 0):
        application = with_events(Application(settings, [module], tmp_path))
        result = application.run(until_caught_up=True)
        assert (result.failed, sum(result.handled.values())) == (False, handled)
    assert names(postgresql_url, None) == {"seen"}
    assert {"opencqrs_events", "opencqrs_progress", "opencqrs_schema"} <= names(postgresql_url, "our_log")
    assert [(status.group, status.lag) for status in application.status()] == [("seen", 0)]


@pytest.mark.postgresql
def test_the_schema_applies_to_the_database_and_not_to_a_separate_event_store(make_module, tmp_path, postgresql_url):
    settings = {
        **THREAD,
        "event-store.url": "sqlite:///events.db",
        "database": {"url": postgresql_url, "schema": "our_log"},
    }
    application = with_events(Application(settings, [make_module(SERVED)], tmp_path))
    assert not application.run(until_caught_up=True).failed
    assert names(postgresql_url, None) == {"seen"}
    assert "opencqrs_events" not in names(postgresql_url, "our_log")
    assert "opencqrs_progress" in names(postgresql_url, "our_log")
    assert tables(tmp_path / "events.db") >= {"opencqrs_events"}


@pytest.mark.postgresql
def test_a_separate_event_store_names_its_schema_in_its_url(make_module, tmp_path, postgresql_url):
    with_schema = f"{postgresql_url}{'&' if '?' in postgresql_url else '?'}opencqrs_schema=our_log"
    settings = {**THREAD, "event-store.url": with_schema, "database.url": "sqlite:///read.db"}
    application = with_events(Application(settings, [make_module(SERVED)], tmp_path))
    assert not application.run(until_caught_up=True).failed
    assert names(postgresql_url, None) == set()
    assert names(postgresql_url, "our_log") == {"opencqrs_events", "opencqrs_schema"}
    assert EventStoreSource.open_source(with_schema).head() == 50


def test_a_schema_on_sqlite_is_refused_naming_the_setting(make_module, tmp_path):
    settings = {**THREAD, "event-store.url": "sqlite:///events.db", "database.schema": "our_log"}
    application = Application(settings, [make_module(WITHOUT_CONTAINER)], tmp_path)
    with pytest.raises(EventStoreError, match="SQLite has no schemas") as caught:
        application.run(until_caught_up=True)
    assert caught.value.code == "OCQ-321"
    assert caught.value.where.startswith("database.schema (")
    assert "remove database.schema" in caught.value.fix

"""Watches on the SQL event store: other programs that write, lost connections, and the cost of idling."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.event import listen, remove
from sqlalchemy.pool import StaticPool

from opencqrs_py.adapters.sql import Database, DatabaseTransactions, SqlEventStore, watching
from opencqrs_py.adapters.sql.dialects import postgresql
from opencqrs_py.engines.watching import HeadWatcher
from opencqrs_py.model import Event
from opencqrs_py.model.appending import SubjectIsPopulated

SECONDS = 30  # longest wait for another thread
POSTGRESQL = pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
SQLITE = pytest.mark.parametrize("kind", ["sqlite"])

FOREIGN = text(
    "INSERT INTO opencqrs_events (id, source, subject, type, content_type) VALUES (:id, 'foreign', '/', 't', 'x')"
)


def event(name: str) -> Event:
    return Event(0, name, "s", "/books/1", "lent", None, "application/json", None, None)


def others(database: Database) -> list[int]:
    """Return the server's processes that serve other connections than ours."""
    mine = text("SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
    with database.reading() as connection:
        return list(connection.execute(mine).scalars())


def await_others(database: Database, count: int) -> None:
    """Wait until at most so many exist: a server takes a moment to end a connection."""
    until = time.monotonic() + SECONDS
    while len(others(database)) > count and time.monotonic() < until:
        pass


def cut_other_connections(database: Database) -> None:
    """Let the server end the connections of everybody else, as a restart does."""
    cut = text("SELECT pg_terminate_backend(:process, 10000)")
    for process in others(database):
        with database.reading() as connection:
            connection.execute(cut, {"process": process})


@pytest.fixture
def store(open_database: Callable[[], Database]) -> SqlEventStore:
    return SqlEventStore(open_database())


def test_events_of_another_connection_are_noticed(store: SqlEventStore, open_database: Callable[[], Database]) -> None:
    writer = SqlEventStore(open_database())
    with ThreadPoolExecutor(1) as threads, store.watched() as watch:
        for number in range(1, 4):
            waiting = threads.submit(watch.wait, number - 1, SECONDS)
            writer.append([event(str(number))])
            assert waiting.result(SECONDS) == number


def test_other_programs_are_noticed_while_the_watch_waits(store: SqlEventStore, database: Database) -> None:
    with ThreadPoolExecutor(1) as threads, store.watched() as watch:
        assert watch.wait(0, 0) == 0
        waiting = threads.submit(watch.wait, 0, SECONDS)
        with database.writing() as connection:
            connection.execute(FOREIGN, {"id": "1"})
        assert waiting.result(SECONDS) == 1


@POSTGRESQL
def test_events_without_a_notification_are_still_noticed(store: SqlEventStore, database: Database) -> None:
    store.head()
    with database.writing() as connection:
        connection.execute(text("ALTER TABLE opencqrs_events DISABLE TRIGGER ALL"))
    with store.watched() as watch:
        assert watch.wait(0, 0) == 0
        with database.writing() as connection:
            connection.execute(FOREIGN, {"id": "1"})
        assert watch.wait(0, SECONDS) == 1


def test_changes_of_other_tables_do_not_wake_a_watch(store: SqlEventStore, database: Database) -> None:
    with store.watched() as watch:
        with database.writing() as connection:
            connection.execute(text("CREATE TABLE other (n INTEGER)"))
        assert watch.wait(0, 0.05) == 0


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def test_the_database_notifies_a_watch_before_it_polls_the_head(
    store: SqlEventStore, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "_LOOK_SECONDS", 3_600.0)
    writer = SqlEventStore(database)
    with store.watched() as watch:
        assert watch.wait(0, 0) == 0
        writer.append([event("1")])
        assert watch.wait(0, SECONDS) == 1
        writer.append(event(name) for name in ("2", "3"))
        assert watch.wait(1, SECONDS) == 3
        with database.writing() as connection:
            connection.execute(FOREIGN, {"id": "4"})
        assert watch.wait(3, SECONDS) == 4


@POSTGRESQL
def test_an_event_added_while_a_watch_opens_is_not_missed(
    store: SqlEventStore, open_database: Callable[[], Database]
) -> None:
    other = SqlEventStore(open_database())
    assert store.head() == other.head() == 0
    told: list[str] = []

    def tell(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("SELECT 'opencqrs_events'::regclass") and not told:
            told.append(statement)
            other.append([event("1")])

    listen(Engine, "before_cursor_execute", tell)
    try:
        with store.watched() as watch:
            assert watch.wait(0, SECONDS) == 1
    finally:
        remove(Engine, "before_cursor_execute", tell)
    assert told


@POSTGRESQL
def test_a_log_in_another_schema_does_not_wake_a_watch(url: str, database: Database) -> None:
    with database.writing() as connection:
        connection.execute(text("CREATE SCHEMA long; CREATE SCHEMA short"))
    with ExitStack() as opened:
        long, short = (
            SqlEventStore(opened.enter_context(closing(Database(f"{url}&options=-csearch_path%3D{schema}"))))
            for schema in ("long", "short")
        )
        with short.watched() as watch:
            long.append([event("1"), event("2"), event("3")])
            assert watch.wait(0, 0.05) == 0
            long.append((event(name) for name in ("4", "5")), [SubjectIsPopulated("/books/1")])
            assert watch.wait(0, 0.05) == 0
            short.append([event("1")])
            assert watch.wait(0, SECONDS) == 1


def test_a_rolled_back_append_does_not_wake_a_watch(
    store: SqlEventStore, open_database: Callable[[], Database]
) -> None:
    writer = SqlEventStore(open_database())

    def broken() -> object:
        yield event("1")
        raise KeyError

    with store.watched() as watch:
        with pytest.raises(KeyError):
            writer.append(broken())  # type: ignore[arg-type]
        assert watch.wait(0, 0.05) == 0


def test_a_handler_that_disposes_of_the_pool_does_not_end_a_watch(store: SqlEventStore, database: Database) -> None:
    with store.watched() as watch:
        store._database.close()
        with DatabaseTransactions(store._database).begin():
            pass
        store.append([event("1")])
        assert watch.wait(0, SECONDS) == 1


@POSTGRESQL
def test_a_watch_whose_connection_is_lost_raises_the_outage_and_the_next_one_misses_nothing(
    store: SqlEventStore, database: Database
) -> None:
    other = SqlEventStore(database)
    with ThreadPoolExecutor(1) as threads, store.watched() as watch:
        assert watch.wait(0, 0) == 0
        waiting = threads.submit(watch.wait, 0, SECONDS)
        cut_other_connections(database)
        error = waiting.exception(SECONDS)
        assert error is not None
        assert store.is_outage(error)
        other.append([event("1")])
    with store.watched() as watch:
        assert watch.wait(0, SECONDS) == 1


@POSTGRESQL
def test_a_watcher_continues_after_a_lost_connection(store: SqlEventStore, database: Database) -> None:
    other = SqlEventStore(database)
    other.append([event("1")])
    watcher = HeadWatcher(store)
    watcher.start()
    watcher.wait_beyond(0, SECONDS)
    cut_other_connections(database)
    other.append([event("2")])
    until = time.monotonic() + SECONDS
    while watcher.head < 2 and time.monotonic() < until:
        watcher.wait_beyond(1, SECONDS)
    watcher.stop()
    assert watcher.head == 2


@POSTGRESQL
def test_a_server_without_notifications_is_polled(store: SqlEventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = replace(postgresql.statements_in(None), channel="not a name")
    monkeypatch.setattr(postgresql, "statements_in", lambda _schema: wrong)
    with store.watched() as watch:
        assert watch.wait(0, 0.01) == 0
        store.append([event("1")])
        assert watch.wait(0, SECONDS) == 1


@POSTGRESQL
def test_a_watch_leaves_no_connection_open(store: SqlEventStore, database: Database) -> None:
    store.head()
    await_others(database, 1)  # those of the test before may be about to end
    before = len(others(database))
    for _ in range(3):
        with store.watched() as watch:
            watch.wait(0, 0)
            store.head()
            assert len(others(database)) == before + 1
        await_others(database, before)  # the server ends it when it finds the connection closed
        assert len(others(database)) == before


@SQLITE
def test_a_database_in_memory_can_be_watched(kind: str) -> None:
    url = "sqlite://"
    engine = create_engine(url, poolclass=StaticPool, connect_args={"check_same_thread": False})
    store = SqlEventStore(Database.of(engine))
    with store.watched() as watch:
        assert watch.wait(0, 0.01) == 0
        store.append([event("1")])
        assert watch.wait(0, SECONDS) == 1
    engine.dispose()


@pytest.mark.release(kind=("postgresql", "mariadb"))  # which the same thread asks
def test_an_idle_watch_costs_next_to_nothing(store: SqlEventStore) -> None:
    with store.watched() as watch:
        watch.wait(0, 1.2)  # the pauses grow
        began, used = time.monotonic(), time.thread_time()
        watch.wait(0, 1)
        share = (time.thread_time() - used) / (time.monotonic() - began)
    assert share < 0.2  # of a core; a hundredth on a machine that does nothing else

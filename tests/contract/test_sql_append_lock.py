"""The append lock: how long writers wait for it, the errors, and other programs that take it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from threading import Event as Signal
from time import monotonic
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.event import listens_for
from sqlalchemy.exc import OperationalError

from opencqrs_py.adapters.sql import Database, SqlEventStore, reading, tables
from opencqrs_py.adapters.sql.dialects.dialect import Dialect
from opencqrs_py.adapters.sql.dialects.faults import DatabaseAwayError
from opencqrs_py.errors import PreconditionFailedError
from opencqrs_py.model import Event, Selection
from opencqrs_py.model.appending import Appended, SubjectIsOnEventId, SubjectIsPristine

SECONDS = 60  # longest wait for another thread
POSTGRESQL = pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
Noted = Callable[[Callable[[str, Any], None]], AbstractContextManager[None]]
MARIADB = pytest.mark.parametrize("kind", [pytest.param("mariadb", marks=pytest.mark.mariadb)])
SERVERS = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("postgresql", "mariadb")]
)

FOREIGN = text(
    "INSERT INTO opencqrs_events (id, source, subject, type, content_type) VALUES (:id, 'foreign', '/', 't', 'x')"
)


@pytest.mark.parametrize("page", [1, 10_000])
def test_a_time_finds_events_of_other_programs(database: Database, page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They need not know that we search by another column. A time without an offset is UTC."""
    monkeypatch.setattr(reading, "_PAGE", page)
    store = SqlEventStore(database)
    store.append([event("1"), event("2")._replace(time="2026-03-01T00:00:00Z")])
    with database.writing() as connection:
        columns = "id, source, subject, type, time, content_type"
        add = text(f"INSERT INTO opencqrs_events ({columns}) VALUES (:id, 'foreign', '/', 't', :time, 'x')")
        times = [None, "2026-03-01T12:00:00Z", "in March", "2026-03-02T02:00:00+02:00", "2026-03-03 00:00:00"]
        for number, moment in enumerate(times, 3):
            connection.execute(add, {"id": str(number), "time": moment})
    store.append([event("8")._replace(time="2026-03-04T00:00:00Z")])

    def before(day: int) -> int:
        return store.position_before(datetime(2026, 3, day, tzinfo=UTC))

    assert [before(day) for day in range(1, 6)] == [1, 5, 6, 7, 8]
    assert [before(day) for day in range(1, 6)] == [1, 5, 6, 7, 8]


def test_a_time_that_is_not_a_text_is_passed_over(database: Database) -> None:
    if database.kind != "sqlite":
        pytest.skip("only SQLite keeps anything in any column")
    store = SqlEventStore(database)
    store.append([event("1")])
    with database.writing() as connection:
        columns = "id, source, subject, type, time, content_type"
        connection.execute(text(f"INSERT INTO opencqrs_events ({columns}) VALUES ('2', 'f', '/', 't', x'00', 'x')"))
    assert store.position_before(datetime(2026, 3, 1, tzinfo=UTC)) == 2


@pytest.mark.parametrize("moment", ["2026-03-01T00:00:00Z", None])
def test_searching_by_time_takes_one_statement(database: Database, moment: str | None) -> None:
    store, searches = SqlEventStore(database), list[str]()
    store.append([event(str(number))._replace(time=moment) for number in range(3)])

    @listens_for(database.engine, "before_cursor_execute")
    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        searches.extend([statement] * ("time_us" in statement))

    assert store.position_before(datetime(2026, 3, 1, tzinfo=UTC)) == (0 if moment else 3)
    assert len(searches) == 1


def event(name: str, subject: str = "/books/1") -> Event:
    return Event(0, name, "s", subject, "lent", None, "application/json", None, None)


class Dawdling:
    """Events that do not come to an end until they may."""

    def __init__(self) -> None:
        self.taken_in, self.go_on = Signal(), Signal()

    def __iter__(self) -> Iterator[Event]:
        yield event("slow")
        self.taken_in.set()
        assert self.go_on.wait(SECONDS)


OTHERS = {
    "mariadb": "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND db = database()",
    "postgresql": "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
}
CUT = {"mariadb": "KILL :process", "postgresql": "SELECT pg_terminate_backend(:process, 10000)"}


def cut_other_connections(database: Database) -> None:
    """Let the server end the connections of everybody else, as a restart does."""
    with database.reading() as connection:
        for process in connection.execute(text(OTHERS[database.kind])).scalars().all():
            connection.execute(text(CUT[database.kind]), {"process": process})


@SERVERS
def test_a_connection_lost_during_an_append_is_an_outage(
    open_database: Callable[[], Database], database: Database
) -> None:
    store = SqlEventStore(open_database())

    def cut_off() -> Iterator[Event]:
        yield event("1")
        cut_other_connections(database)

    with pytest.raises(DatabaseAwayError, match=r"OCQ-304.*no longer answers") as caught:
        store.append(cut_off())
    assert store.is_outage(caught.value)
    assert store.append([event("1")]) == Appended(1, 1)


@SERVERS
def test_a_connection_lost_while_tables_are_created_is_an_outage(
    open_database: Callable[[], Database], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqlEventStore(open_database())
    create = tables._create

    def cut_off(own: Database, connection: Any, table: Any) -> int:
        cut_other_connections(database)
        return create(own, connection, table)

    monkeypatch.setattr(tables, "_create", cut_off)
    with pytest.raises(DatabaseAwayError, match=r"OCQ-304.*no longer answers") as caught:
        store.head()
    assert store.is_outage(caught.value)
    monkeypatch.undo()
    assert store.head() == 0


@SERVERS
def test_other_programs_acquire_the_append_lock_before_they_get_a_position(
    open_database: Callable[[], Database], database: Database
) -> None:
    SqlEventStore(database).head()
    impatient = {"mariadb": "SET innodb_lock_wait_timeout = 0", "postgresql": "SET lock_timeout = '1ms'"}
    with open_database().engine.connect() as first, open_database().engine.connect() as second:
        first.execute(FOREIGN, {"id": "1"})
        second.execute(text(impatient[database.kind]))
        with pytest.raises(OperationalError):
            second.execute(FOREIGN, {"id": "2"})
        second.rollback()
        first.commit()
        second.execute(FOREIGN, {"id": "2"})
        second.commit()
    assert [one.id for one in SqlEventStore(database).read(0, 10, Selection()).events] == ["1", "2"]


def test_waiting_too_long_for_the_append_lock_raises_ocq_305(
    open_database: Callable[[], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dialect, "patience", 0.05)
    hanging, other, reader = (SqlEventStore(open_database()) for _ in range(3))
    assert [store.head() for store in (hanging, other, reader)] == [0, 0, 0]
    events = Dawdling()
    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(hanging.append, events)
        assert events.taken_in.wait(SECONDS)
        with pytest.raises(DatabaseAwayError, match=r"has been writing for .*(0\.05 seconds|too long)") as caught:
            other.append([event("quick")])
        assert reader.head() == 0  # readers are not blocked
        events.go_on.set()
        assert late.result(SECONDS) == (1, 1)
    assert caught.value.code == "OCQ-305"
    assert other.is_outage(caught.value)
    assert other.append([event("quick")]) == (1, 1)


@POSTGRESQL
def test_the_message_names_the_holder_of_the_append_lock(
    open_database: Callable[[], Database], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dialect, "patience", 0.05)
    store, hanging = SqlEventStore(open_database()), Database(f"{url}&application_name=nightly%20import")
    store.head()
    with hanging.writing() as connection:
        process = connection.execute(text("SELECT pg_backend_pid()")).scalar()
        connection.execute(FOREIGN, {"id": "1"})
        with pytest.raises(DatabaseAwayError) as caught:
            store.append([event("2")])
    hanging.close()
    assert caught.value.what.startswith(
        f"the server process {process} of 'nightly import', in a transaction that began at 20"
    )


@SERVERS
def test_appends_of_other_programs_are_serialised_with_ours_and_each_other(
    open_database: Callable[[], Database], database: Database
) -> None:
    """Without that, their second event would be seen before the first, and a reader would never come back."""
    store = SqlEventStore(database)
    assert store.head() == 0
    slow, quick = open_database(), open_database()

    def insert() -> None:
        with quick.writing() as connection:
            connection.execute(FOREIGN, {"id": "quick"})

    with ThreadPoolExecutor(2) as threads:
        with slow.writing() as connection:
            connection.execute(FOREIGN, {"id": "slow"})
            inserting = threads.submit(insert)
            appending = threads.submit(store.append, [event("ours")])
            assert store.read(0, 10, Selection()).upto == 0
        inserting.result(SECONDS)
        appending.result(SECONDS)
    read = store.read(0, 10, Selection()).events
    assert [one.position for one in read] == [1, 2, 3]
    assert read[0].id == "slow"


@MARIADB
def test_events_that_one_statement_sees_are_read_by_the_next_one(
    open_database: Callable[[], Database], database: Database, noted_statements: Noted
) -> None:
    """One statement may show an event without the one before it, if both are committed while it begins."""
    store = SqlEventStore(database)
    store.append([event("1"), event("2")])
    sent: list[tuple[str, tuple[object, ...]]] = []
    reader = SqlEventStore(database)
    reader.head()
    SqlEventStore(open_database()).append([event("3")])
    with noted_statements(lambda *one: sent.append(one)):
        for selection in (Selection(), Selection("/books"), Selection(types=frozenset({"lent"}))):
            del sent[:]
            assert reader.read(0, 10, selection).upto == 2  # the third is not known yet
            assert [values[-2] for statement, values in sent if statement.startswith("SELECT position,")] == [2]
        assert [one.id for one in reader.read(2, 10, Selection()).events] == ["3"]
    assert sent[-2][0].startswith("SELECT max(position)")


@MARIADB
def test_each_append_acquires_the_append_lock_again(open_database: Callable[[], Database], database: Database) -> None:
    """On the same connection, which knew that it had the turn."""
    store = SqlEventStore(database)
    with pytest.raises(PreconditionFailedError):
        store.append([event("1")], [SubjectIsOnEventId("/books/1", "0")])
    store.append([event("1")])
    ours = text("SELECT @opencqrs_turn")
    with database.writing() as connection:
        assert connection.execute(ours).scalar() is None
        connection.execute(FOREIGN, {"id": "2"})
        row = text("SELECT version FROM opencqrs_schema WHERE table_name = 'opencqrs_events' FOR UPDATE WAIT 0")
        with open_database().writing() as other, pytest.raises(OperationalError, match=r"1205|NOWAIT"):
            other.execute(row)


@MARIADB
def test_a_long_change_of_tables_makes_other_processes_wait(
    open_database: Callable[[], Database], database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dialect, "patience", 0.05)
    other = open_database()
    with other.dialect.change_lock(other), pytest.raises(DatabaseAwayError, match="OCQ-305"):
        SqlEventStore(database).head()
    assert SqlEventStore(database).head() == 0


@POSTGRESQL
def test_a_stricter_default_isolation_changes_nothing(
    open_database: Callable[[], Database], database: Database
) -> None:
    with database.writing() as connection:
        connection.execute(text("ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'"))
    try:
        hanging, other = SqlEventStore(open_database()), SqlEventStore(open_database())
        assert (hanging.head(), other.head()) == (0, 0)
        events = Dawdling()
        with ThreadPoolExecutor(3) as threads:
            late = threads.submit(hanging.append, events)
            assert events.taken_in.wait(SECONDS)
            refused = threads.submit(other.append, [event("1")], [SubjectIsPristine("/books/1")])
            known = threads.submit(
                hanging.append, [event("slow"), event("2")], [SubjectIsOnEventId("/books/1", "slow")]
            )
            events.go_on.set()
            assert late.result(SECONDS) == (1, 1)
            with pytest.raises(PreconditionFailedError):
                refused.result(SECONDS)
            assert known.result(SECONDS) == (2, 1)
    finally:
        with database.writing() as connection:
            connection.execute(text("ALTER DATABASE postgres RESET default_transaction_isolation"))


WAITING = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")


def when_another_waits(database: Database) -> None:
    """Return as soon as another writer waits for the append lock."""
    until = monotonic() + SECONDS
    with database.reading() as connection:
        while not connection.execute(WAITING).scalar():
            assert monotonic() < until


@POSTGRESQL
@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
def test_a_few_stored_events_are_left_out_under_a_stricter_isolation_too(
    open_database: Callable[[], Database], database: Database, isolation: str
) -> None:
    """Without preconditions, they are appended by one statement; it would not see what was added while it waited."""
    with database.writing() as connection:
        connection.execute(text(f"ALTER DATABASE postgres SET default_transaction_isolation = '{isolation}'"))
    try:
        hanging, other = SqlEventStore(open_database()), SqlEventStore(open_database())
        assert (hanging.head(), other.head()) == (0, 0)
        events = Dawdling()
        with ThreadPoolExecutor(2) as threads:
            late = threads.submit(hanging.append, events)
            assert events.taken_in.wait(SECONDS)
            known = threads.submit(other.append, [event("slow"), event("2")])
            try:
                when_another_waits(database)
            finally:
                events.go_on.set()
            assert late.result(SECONDS) == (1, 1)
            assert known.result(SECONDS) == (2, 1)
        assert other.append([event("2"), event("3")]) == (2, 1)
        assert [one.id for one in other.read(0, 10, Selection()).events] == ["slow", "2", "3"]
    finally:
        with database.writing() as connection:
            connection.execute(text("ALTER DATABASE postgres RESET default_transaction_isolation"))


@POSTGRESQL
def test_the_server_can_vacuum_the_table_during_an_append(
    open_database: Callable[[], Database], database: Database
) -> None:
    store = SqlEventStore(open_database())
    store.append([event("1")])
    events = Dawdling()
    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(store.append, events)
        assert events.taken_in.wait(SECONDS)
        with database.reading() as connection:
            connection.execute(text("SET lock_timeout = '5s'"))
            connection.execute(text("VACUUM ANALYZE opencqrs_events"))
            connection.execute(text("RESET lock_timeout"))
        events.go_on.set()
        late.result(SECONDS)

"""Real databases: transactions that handlers share with the progress, and outages."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from threading import Event as Signal
from typing import Any

import pytest
from pymysql.cursors import DictCursor
from sqlalchemy import URL, make_url, text
from sqlalchemy.exc import DBAPIError, IntegrityError, PendingRollbackError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from support.cutting import Cutter, session_of

from opencqrs_py.adapters.sql import Database, DatabaseTransactions, SqlEventStore, SqlProgressTracker
from opencqrs_py.adapters.sql.dialects.dialect import Dialect
from opencqrs_py.adapters.sql.dialects.faults import DatabaseAwayError
from opencqrs_py.adapters.sql.transactions import Unit
from opencqrs_py.errors import EventStoreError, NonTransientError, OpenCqrsError, TransactionEndedError
from opencqrs_py.model import layout
from opencqrs_py.processing.ports import UnitOfWork
from opencqrs_py.testing.contracts import ReadModel
from opencqrs_py.testing.contracts.inbox_units import brought_in, entry

pytestmark = pytest.mark.few(kind=("postgresql", "mariadb"))  # the transaction has ended, whatever has ended it

SECONDS = 60  # longest wait for another thread
SQLITE = pytest.mark.parametrize("kind", ["sqlite"])
POSTGRESQL = pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
MARIADB = pytest.mark.parametrize("kind", [pytest.param("mariadb", marks=pytest.mark.mariadb)])
SERVERS = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("postgresql", "mariadb")]
)


class Base(DeclarativeBase):
    pass


class Written(Base):
    __tablename__ = "written"
    number: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[str]


@pytest.fixture
def transactions(database: Database) -> DatabaseTransactions:
    return DatabaseTransactions(database)


def error_of(call: Callable[[], object]) -> DBAPIError | EventStoreError:
    with pytest.raises((DBAPIError, EventStoreError)) as caught:
        call()
    return caught.value


def execute(database: Database, *statements: str) -> None:
    with database.writing() as connection:
        for statement in statements:
            connection.execute(text(statement))


# Units of work


def test_connection_and_session_write_in_one_transaction(
    transactions: DatabaseTransactions, written: ReadModel
) -> None:
    with transactions.begin() as unit:
        written.write(unit, "by connection")
        unit.session.add(Written(value="by session"))
        assert unit.session is unit.session
        unit.session.flush()
    assert written.values() == ["by connection", "by session"]


def test_pending_changes_of_a_session_are_written_at_the_end(
    transactions: DatabaseTransactions, written: ReadModel
) -> None:
    with transactions.begin() as unit:
        unit.session.add(Written(value="late"))
    assert written.values() == ["late"]


def test_a_session_that_cannot_be_flushed_rolls_everything_back(
    transactions: DatabaseTransactions, written: ReadModel
) -> None:
    def write_twice(unit: UnitOfWork) -> None:
        written.write(unit, "same")
        unit.session.add(Written(value="same"))

    with pytest.raises(IntegrityError), transactions.begin() as unit:
        write_twice(unit)
    assert written.values() == []


def test_the_session_of_an_ended_transaction_counts_as_ended(transactions: DatabaseTransactions) -> None:
    with transactions.begin() as unit:
        pass
    assert unit.end_session()


@SERVERS
def test_the_session_of_a_transaction_with_a_lost_connection_counts_as_ended(
    transactions: DatabaseTransactions,
) -> None:
    with suppress(Exception), transactions.begin() as unit:  # which cannot be committed
        unit.connection.invalidate(OSError())  # as SQLAlchemy does it
        ended = unit.end_session()
    assert ended


def commit(unit: UnitOfWork) -> None:
    unit.connection.commit()


def roll_back(unit: UnitOfWork) -> None:
    unit.connection.rollback()


def roll_back_session(unit: UnitOfWork) -> None:
    unit.session.execute(text("SELECT 1"))
    unit.session.rollback()


def commit_in_spite_of_all(unit: UnitOfWork) -> None:
    try:
        unit.connection.commit()
    except NonTransientError:
        roll_back_session(unit)


@pytest.mark.parametrize("end", [commit, roll_back, roll_back_session, commit_in_spite_of_all])
def test_a_handler_must_not_end_the_transaction_that_holds_the_progress(
    database: Database, written: ReadModel, end: Callable[[UnitOfWork], None]
) -> None:
    tracker = SqlProgressTracker(database)
    (cursor,) = tracker.claim("group", layout(1), 0, "owner")

    def handle() -> None:
        with tracker.unit("group", cursor, 5) as unit:
            written.write(unit, "too early")
            end(unit)

    with pytest.raises(NonTransientError, match=r"remove commit\(\) and rollback\(\)"):
        handle()
    assert written.values() == []
    assert [status.position for status in tracker.statuses()] == [0]
    with tracker.unit("group", cursor, 5) as unit:  # the connection is fit for use
        written.write(unit, "right")
    assert written.values() == ["right"]


def test_a_session_can_commit_without_ending_the_transaction(
    transactions: DatabaseTransactions, written: ReadModel
) -> None:
    def write(unit: UnitOfWork) -> None:
        unit.session.add(Written(value="by session"))
        unit.session.commit()
        msg = "after all"
        raise ValueError(msg)

    with pytest.raises(ValueError, match="after all"), transactions.begin() as unit:
        write(unit)
    assert written.values() == []


def test_a_savepoint_of_the_session_undoes_what_the_connection_writes(
    transactions: DatabaseTransactions, written: ReadModel
) -> None:
    def write_half(unit: UnitOfWork) -> None:
        with unit.session.begin_nested():
            written.write(unit, "half")
            raise ValueError

    with transactions.begin() as unit:
        written.write(unit, "before")
        with suppress(ValueError):
            write_half(unit)
        written.write(unit, "after")
    assert written.values() == ["before", "after"]


def kept_row(transactions: DatabaseTransactions, value: str = "first") -> tuple[Session, Written]:
    """Return the session of a transaction that is over, and an object of it."""
    with transactions.begin() as unit:
        row = Written(value=value)
        unit.session.add(row)
    return unit.session, row


@pytest.mark.few(kind=("postgresql", "mariadb"))  # before any statement
@pytest.mark.parametrize(
    "use",
    [
        lambda session, _row: session.add(Written(value="late")),
        lambda session, _row: session.add_all([Written(value="late")]),
        lambda session, row: session.delete(row),
        lambda session, _row: session.execute(text("DELETE FROM written")),
        lambda session, row: session.get(Written, row.number + 1),
    ],
    ids=["add", "add_all", "delete", "execute", "get"],
)
def test_a_session_whose_transaction_has_ended_refuses_changes(
    transactions: DatabaseTransactions, written: ReadModel, use: Callable[[Session, Written], None]
) -> None:
    session, row = kept_row(transactions)
    with pytest.raises(NonTransientError, match="used after its transaction"):
        use(session, row)
    assert written.values() == ["first"]


def test_a_change_of_an_object_of_an_earlier_transaction_is_refused_each_time(
    transactions: DatabaseTransactions, written: ReadModel
) -> None:
    def change(row: Written) -> None:
        with transactions.begin() as unit:
            written.write(unit, "with it")
            row.value = "changed"

    _session, row = kept_row(transactions)
    kept_row(transactions, "second")  # others may come between
    for _ in range(2):
        with pytest.raises(NonTransientError, match="used after its transaction"):
            change(row)
    assert written.values() == ["first", "second"]


def test_a_change_of_a_kept_object_by_an_event_that_fails_is_not_blamed_on_the_next_one(
    transactions: DatabaseTransactions, written: ReadModel
) -> None:
    def fail() -> None:
        row.value = "changed"
        raise ValueError

    _session, row = kept_row(transactions)
    with pytest.raises(ValueError, match=r"^$"), transactions.begin():
        fail()
    with transactions.begin() as unit:  # of another group, on the same thread
        written.write(unit, "next")
    assert written.values() == ["first", "next"]


def test_an_object_of_an_earlier_transaction_can_be_read(
    transactions: DatabaseTransactions, written: ReadModel
) -> None:
    _session, row = kept_row(transactions)
    with transactions.begin() as unit:
        unit.session.add(Written(value=f"after {row.value}"))
    assert written.values() == ["first", "after first"]


def test_an_object_of_an_earlier_transaction_can_be_merged_into_another(
    transactions: DatabaseTransactions, written: ReadModel
) -> None:
    _session, row = kept_row(transactions)
    for value in ("changed", "again"):
        with transactions.begin() as unit:
            row.value = value
            unit.session.merge(row)
    assert (row.value, written.values()) == ("again", ["again"])


def test_changes_of_a_failed_transaction_do_not_affect_the_next(
    transactions: DatabaseTransactions, written: ReadModel
) -> None:
    kept_row(transactions)
    rows: list[Written] = []

    def fail(unit: UnitOfWork) -> None:
        rows.extend(unit.session.query(Written))
        rows[0].value = "changed"
        unit.session.add(Written(value="new"))
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"), transactions.begin() as unit:
        fail(unit)
    with transactions.begin() as unit:
        written.write(unit, "next")
    assert written.values() == ["first", "next"]


@POSTGRESQL
def test_a_failed_statement_whose_error_was_caught_is_not_a_success(
    transactions: DatabaseTransactions, written: ReadModel
) -> None:
    def handle(unit: UnitOfWork) -> None:
        written.write(unit, "lost with the transaction")
        with pytest.raises(DBAPIError):
            unit.connection.execute(text("SELECT * FROM nothing"))

    with pytest.raises(OpenCqrsError, match="error was caught") as caught, transactions.begin() as unit:
        handle(unit)
    assert not isinstance(caught.value, NonTransientError)
    assert written.values() == []


@pytest.mark.parametrize("guarded", [True, False])
def test_a_transaction_ended_by_a_handler_is_not_an_outage_whatever_it_catches(
    transactions: DatabaseTransactions, written: ReadModel, *, guarded: bool
) -> None:
    """An outage would be retried endlessly."""

    def handle(unit: UnitOfWork) -> None:
        written.write(unit, "before")
        transaction = unit.connection.get_transaction()
        assert transaction is not None
        with suppress(Exception):
            transaction.commit()
        with pytest.raises(PendingRollbackError) as caught:
            unit.connection.execute(text("SELECT 1"))
        assert not transactions.is_outage(caught.value)

    with pytest.raises(OpenCqrsError) as ended, transactions.begin(guarded=guarded) as unit:
        handle(unit)
    assert not transactions.is_outage(ended.value)
    assert written.values() == []


def test_a_statement_can_fail_within_a_savepoint(transactions: DatabaseTransactions, written: ReadModel) -> None:
    with transactions.begin() as unit:
        written.write(unit, "one")
        with pytest.raises(IntegrityError), unit.connection.begin_nested():
            written.write(unit, "one")
        written.write(unit, "two")
    assert written.values() == ["one", "two"]


# MariaDB: statements that end a transaction, and errors that do


@pytest.mark.parametrize("by_driver", [False, True])
@MARIADB
def test_a_handler_must_not_run_a_statement_that_commits_implicitly(
    database: Database, written: ReadModel, *, by_driver: bool
) -> None:
    tracker = SqlProgressTracker(database)
    (cursor,) = tracker.claim("group", layout(1), 0, "owner")

    def handle() -> None:
        with tracker.unit("group", cursor, 5) as unit:
            written.write(unit, "lost")
            if by_driver:
                unit.connection.connection.cursor().execute("CREATE TABLE t (a INTEGER)")
            unit.connection.execute(text("/* of the shop */ -- by hand\nCREATE TABLE t (a INTEGER)"))

    with pytest.raises(NonTransientError, match="'CREATE TABLE' commits implicitly on MariaDB: run it in @on_start"):
        handle()
    assert written.values() == []
    assert [status.position for status in tracker.statuses()] == [0]
    with tracker.unit("group", cursor, 5) as unit:
        unit.connection.execute(text("CREATE TEMPORARY TABLE t (a INTEGER)"))
        written.write(unit, "kept")
    assert written.values() == ["kept"]


@MARIADB
def test_statements_after_an_implicit_commit_are_in_a_transaction_again(
    transactions: DatabaseTransactions, written: ReadModel
) -> None:
    def start(unit: UnitOfWork) -> None:
        unit.connection.execute(text("CREATE TABLE IF NOT EXISTS t (a INTEGER)"))
        written.write(unit, "taken back")
        msg = "after all"
        raise ValueError(msg)

    with pytest.raises(ValueError, match="after all"), transactions.begin(guarded=False) as unit:
        start(unit)
    assert written.values() == []
    with transactions.begin(guarded=False) as unit:
        unit.connection.execute(text("CREATE TABLE IF NOT EXISTS t (a INTEGER)"))
        written.write(unit, "kept")
    assert written.values() == ["kept"]


@MARIADB
def test_a_transaction_ended_by_a_caught_error_is_not_a_success(
    open_database: Callable[[], Database], written: ReadModel
) -> None:
    """After a deadlock the server has rolled back, and would commit the next statements one by one."""
    one, other = DatabaseTransactions(open_database()), open_database()
    execute(other, "INSERT INTO written (value) VALUES ('a'), ('b')")
    change = "UPDATE written SET value = '{}' WHERE number = {}"

    def close_the_circle() -> None:
        with other.writing() as connection:
            connection.execute(text("INSERT INTO written (value) VALUES ('c'), ('d'), ('e')"))  # the lighter one loses
            connection.execute(text(change.format("x", 2)))
            holding.set()
            connection.execute(text(change.format("y", 1)))

    def handle(unit: UnitOfWork) -> None:
        unit.connection.execute(text(change.format("v", 1)))
        waiting = threads.submit(close_the_circle)
        assert holding.wait(SECONDS)
        with pytest.raises(DBAPIError) as caught:
            unit.connection.execute(text(change.format("w", 2)))
        assert one.is_outage(caught.value)
        waiting.result(SECONDS)
        written.write(unit, "outside of any transaction")
        assert unit.ended_early(ValueError("made of it")) is None  # it was not the handler that has ended it

    holding = Signal()
    with ThreadPoolExecutor(1) as threads, pytest.raises(OpenCqrsError, match="error was caught"), one.begin() as unit:
        handle(unit)
    assert "outside of any transaction" not in written.values()


@MARIADB
def test_a_lock_wait_timeout_does_not_end_the_transaction(
    open_database: Callable[[], Database], written: ReadModel
) -> None:
    one, other = DatabaseTransactions(open_database()), open_database()
    execute(other, "INSERT INTO written (value) VALUES ('a')")
    with other.writing() as holding, one.begin() as unit:
        holding.execute(text("UPDATE written SET value = 'b'"))
        written.write(unit, "before")
        unit.connection.execute(text("SET SESSION innodb_lock_wait_timeout = 1"))
        with pytest.raises(DBAPIError, match="Lock wait timeout"):
            unit.connection.execute(text("UPDATE written SET value = 'c' WHERE value = 'a'"))
        written.write(unit, "after")
    assert written.values() == ["b", "before", "after"]


@MARIADB
def test_a_caught_error_that_leaves_the_transaction_open_changes_nothing(
    transactions: DatabaseTransactions, written: ReadModel
) -> None:
    with transactions.begin() as unit:
        written.write(unit, "one")
        with pytest.raises(DBAPIError):
            unit.connection.execute(text("SELECT * FROM nothing"))
        written.write(unit, "two")
    assert written.values() == ["one", "two"]


LED_ASTRAY = {  # creates a table of the same name elsewhere, with the same row; and switches to it
    "postgresql": (
        [
            "CREATE SCHEMA tenant",
            "CREATE TABLE tenant.{0} (LIKE {0} INCLUDING ALL)",
            "INSERT INTO tenant.{0} TABLE {0}",
        ],
        "SET LOCAL search_path TO tenant, public",
        "DROP SCHEMA tenant CASCADE",
    ),
    "mariadb": (
        ["CREATE DATABASE tenant", "CREATE TABLE tenant.{0} LIKE {0}", "INSERT INTO tenant.{0} SELECT * FROM {0}"],
        "USE tenant",
        "DROP DATABASE tenant",
    ),
}


@SERVERS
def test_a_handler_that_points_its_connection_at_another_progress_table_moves_no_progress(
    database: Database, kind: str, written: ReadModel
) -> None:
    """Else the progress of a tenant moves, whose events are never handled, and its own does not."""
    made, leads, drops = LED_ASTRAY[kind]
    tracker = SqlProgressTracker(database)
    (cursor,) = tracker.claim("group", layout(1), 0, "owner")
    with tracker.unit("group", cursor, 3) as unit:
        written.write(unit, "usual")
    cursor = replace(cursor, position=3, stored=3)
    execute(database, *(each.format("opencqrs_progress") for each in made))
    try:
        astray = pytest.raises(TransactionEndedError, match="another table of that name")
        with astray, tracker.unit("group", cursor, 5) as unit:
            written.write(unit, "lost")
            unit.connection.execute(text(leads))
        with database.reading() as connection:
            rows = connection.execute(text("SELECT position FROM tenant.opencqrs_progress")).scalars().all()
        assert rows == [3]
        assert tracker.statuses()[0].position == 3
        assert written.values() == ["usual"]
    finally:
        execute(database, drops)


LED_AWAY = [  # a statement after which our tables cannot be found or used; and those before and after it
    pytest.param("postgresql", "SET LOCAL search_path TO pg_temp", (), (), id="postgresql-path"),
    pytest.param("postgresql", "SET search_path TO pg_temp", (), (), id="postgresql-session"),
    pytest.param("postgresql", "SET LOCAL ROLE astray", ("CREATE ROLE astray",), ("DROP ROLE astray",), id="role"),
    pytest.param("mariadb", "USE astray", ("CREATE DATABASE astray",), ("DROP DATABASE astray",), id="mariadb"),
]
AWAY = [pytest.param(*one.values, id=one.id, marks=getattr(pytest.mark, str(one.values[0]))) for one in LED_AWAY]


@pytest.mark.parametrize("parks", [False, True])
@pytest.mark.parametrize(("kind", "leads", "made", "dropped"), AWAY)
def test_a_handler_that_points_its_connection_away_from_our_tables_ends_the_transaction(
    database: Database, written: ReadModel, leads: str, made: Sequence[str], dropped: Sequence[str], *, parks: bool
) -> None:
    """Else it would count as the event's error, which retries do not help, and which is skipped in the end."""
    execute(database, *made)
    try:
        tracker = SqlProgressTracker(database)
        (cursor,) = tracker.claim("group", layout(1), 0, "owner")
        with tracker.unit("group", cursor, 3) as unit:
            written.write(unit, "usual")
        cursor = replace(cursor, position=3, stored=3)
        change = brought_in(entry(5)) if parks else None
        away = pytest.raises(TransactionEndedError, match=r"away from the opencqrs_ tables .*opencqrs_")
        with away, tracker.unit("group", cursor, 5, change=change) as unit:
            written.write(unit, "lost")
            unit.connection.execute(text(leads))
        assert tracker.statuses()[0].position == 3
        assert written.values() == ["usual"]
        with tracker.unit("group", cursor, 5) as unit:
            written.write(unit, "again")
        assert tracker.statuses()[0].position == 5
    finally:
        execute(database, *dropped)


@MARIADB
def test_writes_of_a_failed_event_kept_by_a_table_without_transactions_are_reported(
    database: Database, written: ReadModel
) -> None:
    """The next attempt writes it again, and nothing else would show that."""
    execute(database, "CREATE TABLE counted (n INTEGER) ENGINE=MyISAM")
    tracker = SqlProgressTracker(database)
    (cursor,) = tracker.claim("group", layout(1), 0, "owner")
    failed = ValueError("after all")

    @contextmanager
    def failing() -> Iterator[Unit]:
        with suppress(ValueError), tracker.unit("group", cursor, 5) as unit:
            written.write(unit, "taken back")
            yield unit
            raise failed

    with failing() as unit:
        unit.connection.execute(text("UPDATE counted SET n = 1"))
        assert unit.ended_early(failed) is None
    with failing() as unit:
        driver: Any = unit.connection.connection.dbapi_connection
        driver.cursorclass = DictCursor
        driver.cursor().execute("INSERT INTO counted VALUES (1)")
        said = str(unit.ended_early(failed))
    assert said.startswith("the handler raised ValueError: after all, and what it wrote to tables without transactions")
    assert ".counted MyISAM" in said
    with failing() as unit:
        undo = unit.saved()
        assert undo is not None
        unit.connection.execute(text("INSERT INTO counted VALUES (1)"))
        assert not undo()
    with failing() as unit:
        unit.connection.execute(text("CREATE TEMPORARY TABLE sums (n INTEGER) ENGINE=MEMORY"))
        unit.connection.execute(text("INSERT INTO sums VALUES (1)"))
        assert unit.ended_early(failed) is None
    assert written.values() == []


@MARIADB
def test_a_server_that_truncates_values_is_warned_of_once(url: str, caplog: pytest.LogCaptureFixture) -> None:
    """Two keys that are cut become one, and nothing else would show that."""
    lenient = make_url(url).update_query_dict({"init_command": "SET sql_mode = ''"})
    for place in (url, lenient.render_as_string(hide_password=False)):
        database = Database(place)
        for _ in range(2):
            with DatabaseTransactions(database).begin():
                pass
        database.close()
        warned = [record.getMessage() for record in caplog.records]
        assert len(warned) == (place != url)
    assert warned[0].endswith(
        "cuts what does not fit into a column, without an error: add STRICT_TRANS_TABLES to sql_mode"
    )


@MARIADB
def test_a_server_that_is_not_mariadb_is_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    with database.reading() as connection:
        monkeypatch.setattr(connection.dialect, "is_mariadb", False)
    with pytest.raises(EventStoreError, match=r"OCQ-302.*MySQL, which is not supported"):
        SqlEventStore(database).head()


# Outages


def test_errors_in_statements_are_not_outages(database: Database, written: ReadModel) -> None:
    execute(database, "INSERT INTO written (value) VALUES ('one')")
    for statement in (
        "SELECT * FROM nothing",
        "SELEKT",
        "INSERT INTO written (value) VALUES ('one')",
        "INSERT INTO written (value) VALUES (NULL)",
    ):
        error = error_of(lambda statement=statement: execute(database, statement))
        assert not database.is_outage(error), statement


@SQLITE
def test_a_locked_database_is_an_outage(open_database: Callable[[], Database], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dialect, "patience", 0.01)
    one, other = open_database(), open_database()
    with one.writing():
        error = error_of(lambda: execute(other, "CREATE TABLE t (a INTEGER)"))
    assert "locked" in str(error)
    assert other.is_outage(error)
    execute(other, "CREATE TABLE t (a INTEGER)")


@SQLITE
def test_a_second_transaction_on_a_thread_is_refused_in_favour_of_the_open_one(database: Database) -> None:
    execute(database, "CREATE TABLE t (a INTEGER)")

    def write_twice() -> None:
        with database.writing():
            execute(database, "INSERT INTO t VALUES (1)")

    with pytest.raises(NonTransientError, match="a transaction is open on this thread already"):
        write_twice()
    execute(database, "INSERT INTO t VALUES (1)")


@SQLITE
def test_a_thread_that_writes_too_long_is_an_outage_for_others(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dialect, "patience", 0.01)
    with ThreadPoolExecutor(1) as threads, database.writing():
        waiting = threads.submit(execute, database, "SELECT 1")
        error = waiting.exception(60)
    assert error is not None
    assert "[OCQ-305] another thread has been writing for 0.01 seconds" in str(error)
    assert database.is_outage(error)
    execute(database, "SELECT 1")


@SQLITE
def test_switching_the_journal_mode_waits_for_other_processes(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Dialect, "patience", 0.05)
    occupant = sqlite3.connect(tmp_path / "test.db", isolation_level=None)
    occupant.execute("CREATE TABLE t (a INTEGER)")
    occupant.execute("BEGIN EXCLUSIVE")
    error = error_of(lambda: execute(database, "INSERT INTO t VALUES (1)"))
    assert database.is_outage(error)
    occupant.execute("COMMIT")
    occupant.close()
    execute(database, "INSERT INTO t VALUES (1)")


@SERVERS
def test_a_statement_that_takes_too_long_is_a_handler_error_and_not_an_outage(database: Database) -> None:
    statements = {
        "mariadb": ["SET STATEMENT max_statement_time = 0.02 FOR SELECT SLEEP(10)"],
        "postgresql": ["SET LOCAL statement_timeout = 20", "SELECT pg_sleep(10)"],
    }
    error = error_of(lambda: execute(database, *statements[database.kind]))
    assert "statement timeout" in str(error) or "max_statement_time" in str(error)
    assert not database.is_outage(error)


@SQLITE
def test_a_missing_folder_is_an_outage(tmp_path: Path, kind: str) -> None:
    database = Database(f"sqlite:///{tmp_path / 'away' / 'test.db'}")
    error = error_of(lambda: execute(database, "SELECT 1"))
    assert database.is_outage(error)
    assert str(error) == (
        "[OCQ-304] the database cannot be reached (unable to open database file)\n"
        f"  where: sqlite:///{tmp_path / 'away' / 'test.db'}\n"
        f"  fix:   create the folder {tmp_path / 'away'}, or fix the URL "
        "(settings event-store.url and database.url, option url in Spark)"
    )
    (tmp_path / "away").mkdir()
    execute(database, "SELECT 1")
    database.close()


@SQLITE
def test_a_file_that_is_not_a_database_is_not_an_outage(database: Database, tmp_path: Path) -> None:
    (tmp_path / "test.db").write_text("# Notes\n" * 1_000)
    error = error_of(lambda: execute(database, "SELECT 1"))
    assert not database.is_outage(error)
    assert str(error) == (
        "[OCQ-304] the database cannot be used (file is not a database)\n"
        f"  where: sqlite:///{tmp_path / 'test.db'}\n"
        "  fix:   it must be an undamaged SQLite file: restore it from a backup, or fix the URL "
        "(settings event-store.url and database.url, option url in Spark)"
    )


@SERVERS
def test_a_connection_lost_in_a_unit_is_an_outage(database: Database, cutter: Cutter, written: ReadModel) -> None:
    tracker = SqlProgressTracker(database)
    (cursor,) = tracker.claim("group", layout(1), 0, "owner")

    def write_through_a_cut_connection() -> None:
        with tracker.unit("group", cursor, 5) as unit:
            cutter.cut(session_of(unit.connection))
            written.write(unit, "lost")

    assert tracker.is_outage(error_of(write_through_a_cut_connection))
    with tracker.unit("group", cursor, 5) as unit:
        written.write(unit, "kept")
    assert written.values() == ["kept"]


@SERVERS
def test_a_connection_lost_before_the_commit_is_an_outage(
    transactions: DatabaseTransactions, cutter: Cutter, written: ReadModel
) -> None:
    def commit_through_a_cut_connection() -> None:
        with transactions.begin() as unit:
            written.write(unit, "lost")
            cutter.cut(session_of(unit.connection))

    assert transactions.is_outage(error_of(commit_through_a_cut_connection))
    assert written.values() == []


@SERVERS
@pytest.mark.parametrize("continues", [False, True])
def test_a_connection_lost_in_a_statement_whose_error_is_caught_is_an_outage(
    database: Database, transactions: DatabaseTransactions, cutter: Cutter, written: ReadModel, *, continues: bool
) -> None:
    tracker = SqlProgressTracker(database)
    (cursor,) = tracker.claim("group", layout(1), 0, "owner")

    def write_through_a_cut_connection(unit: UnitOfWork) -> None:
        cutter.cut(session_of(unit.connection))
        with suppress(Exception):
            written.write(unit, "lost")
        if continues:
            written.write(unit, "later")

    def in_a_transaction() -> None:
        with transactions.begin() as unit:
            write_through_a_cut_connection(unit)

    def with_the_progress() -> None:
        with tracker.unit("group", cursor, 5) as unit:
            write_through_a_cut_connection(unit)

    for write in (in_a_transaction, with_the_progress):
        with pytest.raises(Exception) as caught:  # noqa: PT011 of SQLAlchemy, or ours
            write()
        assert tracker.is_outage(caught.value)
    with tracker.unit("group", cursor, 5) as unit:
        written.write(unit, "kept")
    assert written.values() == ["kept"]


@SERVERS
def test_a_handlers_own_connection_that_stays_lost_is_an_outage_only_once(
    open_database: Callable[[], Database], transactions: DatabaseTransactions, cutter: Cutter
) -> None:
    own = open_database().engine.connect()
    own.begin()
    cutter.cut(session_of(own))

    def use_it() -> None:
        with transactions.begin():
            own.execute(text("SELECT 1"))

    with own:
        assert transactions.is_outage(error_of(use_it))
        with pytest.raises(PendingRollbackError) as caught:  # as it would be at each further call
            use_it()
        assert not transactions.is_outage(caught.value)
        own.rollback()


@SERVERS
def test_a_connection_lost_while_idle_is_replaced(database: Database, cutter: Cutter) -> None:
    with database.reading() as connection:
        session = session_of(connection)
    cutter.cut(session)
    execute(database, "SELECT 1")


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        pytest.param("postgresql://postgres@/postgres?host={}", "postgresql", marks=pytest.mark.postgresql),
        pytest.param("mariadb://root@127.0.0.1:1/{}", "mariadb", marks=pytest.mark.mariadb),
    ],
)
def test_an_unreachable_server_is_an_outage(tmp_path: Path, url: str, kind: str) -> None:
    database = Database(url.format(tmp_path))
    error = error_of(lambda: execute(database, "SELECT 1"))
    assert "OCQ-304" in str(error)
    assert database.is_outage(error)


@pytest.fixture
def ada(database: Database) -> Iterator[URL]:
    """The URL of the database for a user with a password, created only for this test."""
    made = {
        "postgresql": ("CREATE ROLE ada LOGIN PASSWORD 'her-secret'", "DROP ROLE ada"),
        "mariadb": ("CREATE USER ada@localhost IDENTIFIED BY 'her-secret'", "DROP USER ada@localhost"),
    }[database.kind]
    execute(database, made[0])
    yield make_url(database.engine.url).set(drivername=database.kind, username="ada", password="her-secret")
    execute(database, made[1])


def refused(url: URL) -> EventStoreError:
    """Return the error of a store opened there, which must equal that of a later read."""
    database = Database(url.render_as_string(hide_password=False))
    first, second = error_of(SqlEventStore(database).head), error_of(lambda: database.fetch("SELECT 1"))
    assert isinstance(first, EventStoreError)
    assert not isinstance(first, DatabaseAwayError)
    assert not database.is_outage(first)
    assert str(second) == str(first)
    assert "secret" not in str(first)
    return first


FIX = (
    "fix user, password or database in the URL (settings event-store.url and database.url, option url in Spark); "
    "the user must have access to it"
)


@MARIADB
def test_an_error_explains_why_mariadb_refuses_a_login(ada: URL, url: str) -> None:
    for wrong, reason in (
        (ada.set(password="a-secret"), "Access denied for user 'ada'@'localhost' (using password: YES)"),
        (ada.set(username="nobody"), "Access denied for user 'nobody'@'localhost' (using password: YES)"),
        (ada, "Access denied for user 'ada'@'localhost' to database 'test'"),
        (make_url(url).set(database="nothing"), "Unknown database 'nothing'"),
    ):
        assert str(refused(wrong)) == (
            f"[OCQ-304] the database cannot be used ({reason})\n  where: {wrong.render_as_string()}\n  fix:   {FIX}"
        )


@POSTGRESQL
def test_an_error_explains_why_postgresql_refuses_a_login(
    ada: URL, asks_for_password: None, database: Database
) -> None:
    host = ada.query["host"]
    execute(database, "REVOKE CONNECT ON DATABASE postgres FROM PUBLIC")
    for wrong, reason in (
        (ada.set(password="a-secret"), 'FATAL:  password authentication failed for user "ada"'),
        (ada.set(username="nobody"), 'FATAL:  role "nobody" does not exist'),
        (ada, 'FATAL:  permission denied for database "postgres"\nDETAIL:  User does not have CONNECT privilege.'),
        (ada.set(username="postgres", database="nothing"), 'FATAL:  database "nothing" does not exist'),
    ):
        said = f'connection failed: connection to server on socket "{host}/.s.PGSQL.5432" failed: {reason}'
        assert str(refused(wrong)) == (
            f"[OCQ-304] the database cannot be used ({said.splitlines()[0]})\n"
            f"  where: {wrong.render_as_string()}\n"
            f"  fix:   {FIX}"
        )


@pytest.fixture
def asks_for_password(database: Database, ada: URL) -> Iterator[None]:
    """Has the server require a password of ``ada`` only."""
    with database.reading() as connection:
        rules = Path(connection.execute(text("SHOW hba_file")).scalar_one())
    before = rules.read_text()
    rules.write_text(f"local all ada scram-sha-256\n{before}")
    wrong = Database(ada.set(password="wrong").render_as_string(hide_password=False))
    execute(database, "SELECT pg_reload_conf()")
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:  # the server reads its rules when it comes to it
        try:
            wrong.fetch("SELECT 1")
        except EventStoreError as error:
            if not wrong.is_outage(error):  # such as too many connections that are being closed
                break
        wrong.close()
    yield
    rules.write_text(before)
    execute(database, "SELECT pg_reload_conf()", "GRANT CONNECT ON DATABASE postgres TO PUBLIC")


def test_a_closed_database_can_be_used_again(database: Database) -> None:
    execute(database, "CREATE TABLE t (a INTEGER)")
    database.close()
    execute(database, "INSERT INTO t VALUES (1)")


@SQLITE
def test_a_read_only_file_is_not_an_outage(database: Database, tmp_path: Path) -> None:
    execute(database, "CREATE TABLE t (a INTEGER)")
    read_only = Database(f"sqlite:///file:{tmp_path / 'test.db'}?mode=ro&uri=true")
    error = error_of(lambda: execute(read_only, "INSERT INTO t VALUES (1)"))
    assert "readonly" in str(error)
    assert not read_only.is_outage(error)
    read_only.close()


@SQLITE
def test_a_table_that_cannot_be_created_is_an_error(database: Database, tmp_path: Path) -> None:
    execute(database, "CREATE TABLE t (a INTEGER)")
    read_only = Database(f"sqlite:///file:{tmp_path / 'test.db'}?mode=ro&uri=true")
    assert "readonly" in str(error_of(lambda: SqlEventStore(read_only).head()))
    read_only.close()

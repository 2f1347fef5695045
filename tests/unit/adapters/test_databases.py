"""Database URLs: which are accepted, and the errors for the others."""

from __future__ import annotations

import sqlite3
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psycopg
import pymysql
import pytest
from sqlalchemy import Engine, exc, make_url

from opencqrs_py.adapters.sql import Database
from opencqrs_py.adapters.sql.connections import reason_of
from opencqrs_py.adapters.sql.dialects import sqlite_file
from opencqrs_py.adapters.sql.dialects.dialect import is_outage
from opencqrs_py.errors import EventStoreError


@pytest.mark.parametrize(
    ("url", "kind", "label"),
    [
        ("sqlite:///events.db", "sqlite", "sqlite:///events.db"),
        ("sqlite+pysqlite:///events.db", "sqlite", "sqlite+pysqlite:///events.db"),
        ("postgresql://me:secret@host/db", "postgresql", "postgresql://me:***@host/db"),
        ("postgresql+psycopg://me:secret@host/db", "postgresql", "postgresql+psycopg://me:***@host/db"),
        ("mariadb://me:secret@host/db", "mariadb", "mariadb://me:***@host/db"),
        ("mysql+pymysql://me:secret@host/db", "mariadb", "mysql+pymysql://me:***@host/db"),
        ("postgresql://me@host/db?password=secret", "postgresql", "postgresql://me@host/db?password=***"),
        (
            "postgresql://me@host/db?sslmode=require&sslpassword=secret&connect_timeout=3",
            "postgresql",
            "postgresql://me@host/db?connect_timeout=3&sslmode=require&sslpassword=***",
        ),
    ],
)
def test_a_database_is_labelled_without_its_password(url: str, kind: str, label: str) -> None:
    database = Database(url)
    assert (database.kind, database.label) == (kind, label)


def test_postgresql_uses_psycopg() -> None:
    assert Database("postgresql://host/db").engine.dialect.driver == "psycopg"


@pytest.mark.parametrize("parameters", ["", "&service=main"])
@pytest.mark.parametrize(("given", "taken"), [("none", None), ("None", None), ("NONE", None), ("0", 0), ("12", 12)])
def test_the_prepare_threshold_of_a_url_is_converted_for_psycopg(
    given: str, taken: int | None, parameters: str
) -> None:
    database = Database(f"postgresql://host/db?prepare_threshold={given}{parameters}")
    assert database.dialect.connect_args(database.url)["prepare_threshold"] == taken


@pytest.mark.parametrize("given", ["soon", "-1", "1.5", "²", "1&prepare_threshold=none"])
def test_a_prepare_threshold_that_psycopg_cannot_take_is_refused(given: str) -> None:
    with pytest.raises(EventStoreError, match=r"OCQ-304.*prepare_threshold must be none or a whole number") as caught:
        _ = Database(f"postgresql://host/db?prepare_threshold={given}").engine
    assert caught.value.fix.startswith("fix what follows ? in the URL")


@pytest.mark.parametrize("url", ["", "nonsense", "me:secret@host/db", "postgresql://me:sec@ret:x@host/db"])
def test_an_invalid_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(EventStoreError) as caught:
        Database(url)
    assert str(caught.value) == (
        "[OCQ-301] the database URL cannot be read\n"
        "  where: setting database.url or event-store.url, option url in Spark\n"
        "  fix:   write it as sqlite:///events.db, postgresql://host/database or mariadb://…"
    )


@pytest.mark.parametrize(
    "url", ["postgresql://me:sec@ret@host/db", "mariadb://me:sec@ret@host:3306/db", "postgresql://me:se@cret/1@host/db"]
)
def test_an_unescaped_at_sign_in_a_password_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(EventStoreError) as caught:
        Database(url)
    assert str(caught.value) == (
        "[OCQ-301] the database URL cannot be read: it has several '@'\n"
        "  where: setting database.url or event-store.url, option url in Spark\n"
        "  fix:   write %40 for every '@' in user and password, %2F for '/' and %3A for ':'"
    )


@pytest.mark.parametrize("url", ["sqlite://events.db", "sqlite://me:secret@host/events.db", "sqlite://host/events.db"])
def test_a_sqlite_file_after_two_slashes_is_refused(url: str) -> None:
    with pytest.raises(EventStoreError) as caught:
        Database(url)
    assert str(caught.value) == (
        "[OCQ-301] the database URL cannot be used: sqlite: is followed by two slashes\n"
        "  where: setting database.url or event-store.url, option url in Spark\n"
        "  fix:   write three slashes before a relative path, sqlite:///events.db, and four before an absolute one"
    )


@pytest.mark.parametrize(
    ("url", "kind", "shown"),
    [
        ("mssql://me:secret@host/db", "mssql", "mssql://me:***@host/db"),
    ],
)
def test_other_databases_are_refused(url: str, kind: str, shown: str) -> None:
    with pytest.raises(EventStoreError) as caught:
        Database(url)
    assert str(caught.value) == (
        f"[OCQ-302] databases of the kind '{kind}' are not supported\n"
        f"  where: {shown}\n"
        "  fix:   use sqlite:///…, postgresql://… or mariadb://…"
    )


@pytest.mark.parametrize("scheme", ["mariadb", "mysql", "mariadb+pymysql", "mysql+pymysql"])
def test_mariadb_uses_pymysql(scheme: str) -> None:
    assert Database(f"{scheme}://host/db").engine.dialect.driver == "pymysql"


def test_a_missing_mariadb_driver_is_an_error_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    with pytest.raises(EventStoreError, match="OCQ-303") as caught:
        _ = Database("mysql://host/db").engine
    assert caught.value.fix == "pip install 'opencqrs-py[mariadb]'"


def test_a_missing_driver_is_an_error_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(EventStoreError) as caught:
        _ = Database("postgresql://me:secret@host/db").engine
    error = caught.value
    assert error.code == "OCQ-303"
    assert error.what.startswith("the database driver is missing (")
    assert error.where == "postgresql://me:***@host/db"
    assert error.fix == "pip install 'opencqrs-py[postgresql]'"


def test_closing_an_unused_database_opens_nothing() -> None:
    database = Database("postgresql://host/db")
    database.close()


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (exc.TimeoutError("no connection is free"), True),
        (TimeoutError("another library's"), False),
        (exc.InvalidRequestError("misuse"), False),
        (OSError("disk"), False),
    ],
)
def test_waiting_too_long_for_a_connection_is_an_outage(error: Exception, *, outage: bool) -> None:
    assert Database("sqlite://").is_outage(error) is outage


OUTAGES = {1040: True, 1047: True, 1205: True, 1213: True, 1927: True, 2003: True, 2006: True, 2013: True, 0: True}
MISTAKES = {1045: False, 1049: False, 1062: False, 1146: False, 1317: False, 1406: False, 1969: False}


@pytest.mark.parametrize(("code", "outage"), [*OUTAGES.items(), *MISTAKES.items()])
def test_mariadb_error_numbers_distinguish_outages_from_mistakes(code: int, *, outage: bool) -> None:
    error = pymysql.err.OperationalError(code, "said the server")
    assert is_outage(error) is outage
    assert is_outage(exc.OperationalError("SELECT 1", (), error)) is outage


POSTGRESQL = {
    'FATAL:  password authentication failed for user "ada"': False,
    'FATAL:  role "ada" does not exist': False,
    'FATAL:  role "ada" is not permitted to log in': False,
    'FATAL:  database "log" does not exist': False,
    'FATAL:  permission denied for database "log"': False,
    'FATAL:  no pg_hba.conf entry for host "10.0.0.1", user "ada", database "log", no encryption': False,
    "fe_sendauth: no password supplied": False,
    "FATAL:  the database system is starting up": True,
    "FATAL:  sorry, too many clients already": True,
    "Connection refused": True,
    'Connection refused\n- host: one: FATAL:  role "ada" does not exist': True,  # the last of several hosts
}


@pytest.mark.parametrize(("message", "outage"), POSTGRESQL.items())
def test_a_connection_that_postgresql_rejects_is_not_an_outage(message: str, *, outage: bool) -> None:
    error = psycopg.OperationalError(f"connection failed: connection to server at host: {message}")
    assert is_outage(error) is outage
    assert is_outage(exc.OperationalError(None, None, error, connection_invalidated=True)) is outage
    assert Database("postgresql://host/log").is_outage(exc.OperationalError(None, None, error)) is outage


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (pymysql.err.OperationalError(2003, "no connection\nsecond line"), "no connection"),
        (pymysql.err.InterfaceError(0, ""), "InterfaceError"),
        (pymysql.err.InterfaceError(), "InterfaceError"),
        (sqlite3.OperationalError("database is locked"), "database is locked"),
    ],
)
def test_a_reason_is_one_line(error: Exception, reason: str) -> None:
    assert reason_of(exc.DBAPIError("SELECT 1", (), error)) == reason


class SqliteConnection:
    """A connection that returns these result codes one after another; 0 is success."""

    def __init__(self, *codes: int) -> None:
        self.codes = list(codes)

    def execute(self, statement: str) -> None:
        assert statement == "PRAGMA journal_mode=WAL"
        code = self.codes.pop(0)
        if code:
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = code
            raise error


@pytest.mark.parametrize("busy", [sqlite3.SQLITE_BUSY, sqlite3.SQLITE_BUSY_RECOVERY])
def test_switching_the_journal_mode_is_retried_while_another_process_does_it(
    busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "_PAUSE_SECONDS", 0)
    connection = SqliteConnection(busy, busy, 0)
    sqlite_file.use_write_ahead_log(connection, 60)  # type: ignore[arg-type]
    assert connection.codes == []


@pytest.mark.parametrize("code", [sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_READONLY])
def test_switching_the_journal_mode_is_not_retried_after_other_errors(code: int) -> None:
    connection = SqliteConnection(code, 0)
    with pytest.raises(sqlite3.OperationalError):
        sqlite_file.use_write_ahead_log(connection, 60)  # type: ignore[arg-type]
    assert connection.codes == [0]


@pytest.mark.parametrize(
    ("url", "what", "fix"),
    [
        ("http://me:secret@host:3000", "it is an HTTP address", "an EventSourcingDB belongs in event-store.url"),
        ("file:models", "files hold events and no tables", "write sqlite:///models.db for an SQLite file"),
        ("eventsourcingdb://host", "an EventSourcingDB holds events and no tables", "write it like sqlite:///"),
    ],
)
def test_an_event_store_that_is_not_a_database_is_refused_as_database(url: str, what: str, fix: str) -> None:
    with pytest.raises(EventStoreError) as caught:
        Database(url)
    assert (caught.value.code, caught.value.what) == ("OCQ-301", f"the database URL cannot be used: {what}")
    assert caught.value.fix.startswith(fix)


def test_a_known_mistake_in_a_url_is_refused_with_the_right_form() -> None:
    with pytest.raises(EventStoreError) as caught:
        Database("postgresql+psycopg2://me:secret@host/db")
    assert str(caught.value) == (
        "[OCQ-301] the database URL cannot be used: the driver psycopg2 is not supported\n"
        "  where: setting database.url or event-store.url, option url in Spark\n"
        "  fix:   write postgresql:// without a driver; psycopg is used"
    )


def test_an_engine_of_the_user_may_use_another_driver() -> None:
    engine = SimpleNamespace(url=make_url("postgresql+psycopg2://host/db"))
    assert Database.of(cast("Engine", engine)).kind == "postgresql"


@pytest.mark.parametrize("url", ["postgresql://me:secret@host/db", "mariadb://me:secret@host/db?charset=utf8mb4"])
def test_the_database_of_the_control_tables_keeps_its_label_and_url(url: str) -> None:
    database = Database(url)
    control = database.for_control()
    assert control is not None
    assert control is not database
    assert (control.label, control.url) == (url.replace("secret", "***"), database.url)


def test_a_fork_does_not_wait_for_a_writer_of_its_parent(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/events.db")
    with closing(database), ThreadPoolExecutor(1) as another:
        with database.writing() as connection:
            connection.exec_driver_sql("CREATE TABLE seen (id TEXT)")
        guard = database.guard
        assert isinstance(guard, sqlite_file.SqliteFile)
        assert another.submit(guard._free.acquire, blocking=False).result()
        pool = database.engine.pool
        database.leave_to_parent()
        with database.writing(patience=0) as connection:
            connection.exec_driver_sql("INSERT INTO seen VALUES ('1')")
        assert database.engine.pool is not pool
        assert "Connections in pool: 1" in pool.status()
        pool.dispose()
        with guard.turn():
            database.leave_to_parent()  # within a transaction, which parent and child then share
            assert not another.submit(guard._free.acquire, blocking=False).result()


def test_an_in_memory_database_survives_in_a_fork() -> None:
    with closing(Database("sqlite://")) as database:
        with database.writing() as connection:
            connection.exec_driver_sql("CREATE TABLE seen (id TEXT)")
        database.leave_to_parent()
        with database.reading() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM seen").scalar() == 0


@pytest.mark.parametrize(
    ("url", "other", "expected"),
    [
        ("sqlite:////srv/a.db", "sqlite+pysqlite:////srv/b/../a.db?timeout=5", True),
        ("sqlite:////srv/a.db", "sqlite:///file:/srv/a.db?uri=true", True),
        ("sqlite:////srv/a.db", "sqlite:////srv/b.db", False),
        ("sqlite:////srv/a.db", "postgresql://host/srv/a.db", False),
        ("postgresql://u:p@host/a", "postgresql+psycopg://v@host:5432/a", True),
        ("postgresql:///a", "postgresql://host/a", True),
        ("postgresql://host/a", "postgresql://other/a", False),
        ("postgresql://host/a", "postgresql://host/b", False),
        ("mariadb://host:3306/a", "mysql://host:3306/a", True),
        ("mariadb://host:3306/a", "mysql://host:3307/a", False),
        ("postgresql://Host.example/a", "postgresql://host.Example/a", True),
        ("postgresql://localhost/a", "postgresql://127.0.0.1/a", True),
        ("postgresql://LOCALHOST/a", "postgresql://[::1]:5432/a", True),
        ("postgresql://localhost/a", "postgresql://host/a", False),
        ("postgresql://host/a", "postgresql://host:5433/a", False),
        ("postgresql:///a", "postgresql://host:5433/a", True),
        ("mariadb://host/a", "mysql://host:3306/a", True),
        ("mariadb://host/a", "mysql://host:3307/a", False),
    ],
)
def test_two_urls_may_name_one_database_if_nothing_in_them_differs(url: str, other: str, *, expected: bool) -> None:
    assert Database(url).may_be(Database(other)) is Database(other).may_be(Database(url)) is expected

"""Database URLs: which are understood, and what a person reads about the others."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy import exc

from opencqrs_py.adapters.sql import Database, databases
from opencqrs_py.errors import EventStoreError


@pytest.mark.parametrize(
    ("url", "kind", "label"),
    [
        ("sqlite:///events.db", "sqlite", "sqlite:///events.db"),
        ("sqlite+pysqlite:///events.db", "sqlite", "sqlite+pysqlite:///events.db"),
        ("postgresql://me:secret@host/db", "postgresql", "postgresql://me:***@host/db"),
        ("postgresql+psycopg://me:secret@host/db", "postgresql", "postgresql+psycopg://me:***@host/db"),
    ],
)
def test_a_database_is_named_without_its_password(url: str, kind: str, label: str) -> None:
    database = Database(url)
    assert (database.kind, database.label) == (kind, label)


def test_postgresql_is_spoken_to_by_psycopg() -> None:
    assert Database("postgresql://host/db").engine.dialect.driver == "psycopg"


@pytest.mark.parametrize("url", ["", "events.db", "sqlite:/events.db", "postgresql://me:secret@host:port/db"])
def test_what_is_no_url_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(EventStoreError) as caught:
        Database(url)
    assert str(caught.value) == (
        "[OCQ-301] the database URL cannot be read\n"
        "  fix:   write it as sqlite:///events.db or postgresql://user:password@host/database"
    )


@pytest.mark.parametrize(
    ("url", "kind", "shown"),
    [
        ("mysql://me:secret@host/db", "mysql", "mysql://me:***@host/db"),
        ("postgres://host/db", "postgres", "postgres://host/db"),
    ],
)
def test_other_databases_are_refused(url: str, kind: str, shown: str) -> None:
    with pytest.raises(EventStoreError) as caught:
        Database(url)
    assert str(caught.value) == (
        f"[OCQ-302] databases of the kind '{kind}' are not supported\n"
        f"  where: {shown}\n"
        "  fix:   use sqlite:///… or postgresql://…"
    )


def test_a_missing_driver_is_named_with_the_command_that_installs_it() -> None:
    with pytest.raises(EventStoreError) as caught:
        _ = Database("postgresql+no_such_driver://me:secret@host/db").engine
    error = caught.value
    assert error.code == "OCQ-303"
    assert error.what.startswith("the database driver is missing (")
    assert error.where == "postgresql+no_such_driver://me:***@host/db"
    assert error.fix == "pip install 'opencqrs-py[postgresql]'"


def test_closing_what_was_never_opened_opens_nothing() -> None:
    database = Database("postgresql+no_such_driver://host/db")
    database.close()


@pytest.mark.parametrize(
    ("error", "outage"),
    [
        (exc.TimeoutError("no connection is free"), True),
        (TimeoutError("somebody else's"), False),
        (exc.InvalidRequestError("misuse"), False),
        (OSError("disk"), False),
    ],
)
def test_waiting_too_long_for_a_connection_is_an_outage(error: Exception, *, outage: bool) -> None:
    assert Database("sqlite://").is_outage(error) is outage


class SqliteConnection:
    """Answers with these result codes, one after the other; 0 is success."""

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
def test_switching_the_journal_is_tried_again_while_another_process_does_it(
    busy: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(databases, "_SQLITE_PAUSE", 0)
    connection = SqliteConnection(busy, busy, 0)
    databases._use_write_ahead_log(connection)  # type: ignore[arg-type]
    assert connection.codes == []


@pytest.mark.parametrize("code", [sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_READONLY])
def test_switching_the_journal_is_not_tried_again_when_that_cannot_help(code: int) -> None:
    connection = SqliteConnection(code, 0)
    with pytest.raises(sqlite3.OperationalError):
        databases._use_write_ahead_log(connection)  # type: ignore[arg-type]
    assert connection.codes == [0]

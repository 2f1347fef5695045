"""Turns: transactions of several processes that must follow each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from math import ceil

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from opencqrs_py.adapters.sql.databases import Database
from opencqrs_py.adapters.sql.mariadb import IN_TURN
from opencqrs_py.adapters.sql.outages import (
    LOCK_NOT_AVAILABLE,
    LOCK_WAIT_TIMEOUT,
    DatabaseAwayError,
    DatabaseBusyError,
    server_error,
    sql_state,
)
from opencqrs_py.adapters.sql.postgresql import APPENDS, lock_in
from opencqrs_py.adapters.sql.schema import EVENTS, SCHEMA

__all__ = ["bounded", "in_turn", "take_row"]

PATIENCE = 60.0  # seconds that one waits for the others

_TAKE = """
SELECT pg_advisory_xact_lock(%s), current_setting('transaction_isolation')
FROM set_config('lock_timeout', %s, true) patience, set_config('opencqrs.turn', %s, true) turn
"""
_HOLDER = """
SELECT pid, application_name, to_char(xact_start, 'YYYY-MM-DD HH24:MI:SS TZ')
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND (classid::bigint << 32) + objid::bigint = %s
"""

_NAMED = "CONCAT('opencqrs.', SHA1(COALESCE(%s, DATABASE())))"  # such locks are the whole server's


@contextmanager
def in_turn(database: Database, lock: int) -> Iterator[Connection]:
    """Open a transaction that begins when all others in the same turn have ended, and sees what they wrote.

    SQLite lets writers follow each other anyway. On PostgreSQL the turn is an advisory lock; its key is ours to choose.
    On MariaDB who appends holds a row; changes of tables, which end a transaction there, hold a lock of the connection.

    Raises:
        DatabaseAwayError: OCQ-305, if it is somebody else's turn for too long; OCQ-304, if the database is away.
    """
    if database.kind == "sqlite":
        with database.writing() as connection:
            yield connection
        return
    if database.kind == "mariadb":
        with _on_mariadb(database, lock) as connection:
            yield connection
        return
    # Under a stricter isolation, which a server may have by default, statements go on seeing what was before the wait.
    for isolation in (None, "READ COMMITTED"):
        with database.writing(isolation=isolation) as connection:
            if _take(database, connection, lock) == "read committed":
                yield connection
                return


@contextmanager
def bounded(database: Database, lock: int) -> Iterator[str]:
    """Explain it when a turn was waited for too long; the block gets how long that is, as PostgreSQL writes it.

    Raises:
        DatabaseAwayError: OCQ-305.
    """
    try:
        yield f"{PATIENCE * 1_000:.0f}ms"
    except DBAPIError as error:
        if sql_state(error) != LOCK_NOT_AVAILABLE:
            raise
        raise _held(database, lock) from None


def take_row(database: Database, connection: Connection, table: str, patience: float | None = None) -> None:
    """Wait on MariaDB until no other transaction holds the row of ``table`` in the table of versions, and hold it."""
    wait = ceil(PATIENCE if patience is None else patience)
    where = f"WHERE table_name = %s FOR UPDATE WAIT {wait}"
    connection.exec_driver_sql(f"SELECT version FROM {database.prefix}{SCHEMA.name} {where}", (table,))  # noqa: S608


@contextmanager
def _on_mariadb(database: Database, lock: int) -> Iterator[Connection]:
    if lock != APPENDS:
        with database.reading() as connection:
            if connection.exec_driver_sql(f"SELECT GET_LOCK({_NAMED}, %s)", (database.schema, PATIENCE)).scalar() != 1:
                raise _too_long(database, "another program")
            try:
                yield connection
            finally:
                with suppress(SQLAlchemyError):  # as below; the lock ends with its connection
                    connection.exec_driver_sql(f"DO RELEASE_LOCK({_NAMED})", (database.schema,))
        return
    with database.writing() as connection:
        try:
            take_row(database, connection, EVENTS.name)
        except DBAPIError as error:
            if server_error(error) != LOCK_WAIT_TIMEOUT:
                raise
            raise _too_long(database, "another program") from None
        connection.exec_driver_sql(f"SET {IN_TURN} = 1")
        try:
            yield connection
        finally:
            with suppress(SQLAlchemyError):  # then the connection is gone, and what it knew with it
                connection.exec_driver_sql(f"SET {IN_TURN} = NULL")


def _take(database: Database, connection: Connection, lock: int) -> str:
    """Wait for the turn and return the transaction's isolation."""
    lock = lock_in(database.schema, lock)
    with bounded(database, lock) as patience:
        row = connection.exec_driver_sql(_TAKE, (lock, patience, str(lock))).one()
    return str(row[1])


def _held(database: Database, lock: int) -> DatabaseAwayError:
    with database.reading() as connection:
        holder = connection.exec_driver_sql(_HOLDER, (lock,)).first()
    who = "another program"
    if holder is not None:
        name = f" of '{holder[1]}'" if holder[1] else ""
        who = f"the server process {holder[0]}{name}, in a transaction that began at {holder[2]},"
    return _too_long(database, who)


def _too_long(database: Database, who: str) -> DatabaseAwayError:
    what = f"{who} has been writing for more than {PATIENCE:g} seconds"
    return DatabaseBusyError("OCQ-305", what, database.label, "let it finish, or end it")

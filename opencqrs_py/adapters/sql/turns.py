"""Turns: transactions of several processes that must follow each other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql.databases import Database
from opencqrs_py.adapters.sql.outages import DatabaseAwayError, sql_state

__all__ = ["in_turn", "in_turn_at_once"]

PATIENCE = 60.0  # seconds that one waits for the others
_LOCK_NOT_AVAILABLE = "55P03"

_TAKE = """
SELECT pg_advisory_xact_lock(%s), current_setting('transaction_isolation')
FROM set_config('lock_timeout', %s, true) patience, set_config('opencqrs.turn', %s, true) turn
"""
_HOLDER = """
SELECT pid, application_name, to_char(xact_start, 'YYYY-MM-DD HH24:MI:SS TZ')
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND (classid::bigint << 32) + objid::bigint = %s
"""


@contextmanager
def in_turn(database: Database, lock: int) -> Iterator[Connection]:
    """Open a transaction that begins when all others in the same turn have ended, and sees what they wrote.

    SQLite lets writers follow each other anyway. On PostgreSQL the turn is an advisory lock; its key is ours to choose.

    Raises:
        DatabaseAwayError: OCQ-305, if it is somebody else's turn for too long; OCQ-304, if the database is away.
    """
    if database.kind == "sqlite":
        with database.writing() as connection:
            yield connection
        return
    # Under a stricter isolation, which a server may have by default, statements go on seeing what was before the wait.
    for options in ({}, {"isolation_level": "READ COMMITTED"}):
        with database.writing(**options) as connection:
            if _take(database, connection, lock) == "read committed":
                yield connection
                return


def in_turn_at_once(database: Database, lock: int, statement: str, values: tuple[Any, ...]) -> Any:
    """Run one statement in a turn of its own on PostgreSQL, and return the first column of its first row.

    Begin, turn, statement and commit are sent together: one round trip instead of four.

    Raises:
        DatabaseAwayError: As ``in_turn``.
    """
    try:
        with database.writing(isolation_level="READ COMMITTED") as connection:
            driver: Any = connection.connection.driver_connection
            with driver.pipeline():
                driver.execute(_TAKE, (lock, f"{PATIENCE * 1_000:.0f}ms", str(lock)))
                result = driver.execute(statement, values)
                driver.commit()
            return result.fetchone()[0]
    except Exception as error:
        if getattr(error, "sqlstate", None) != _LOCK_NOT_AVAILABLE:
            raise
        raise _held(database, lock) from None


def _take(database: Database, connection: Connection, lock: int) -> str:
    """Wait for the turn and return the transaction's isolation."""
    try:
        row = connection.exec_driver_sql(_TAKE, (lock, f"{PATIENCE * 1_000:.0f}ms", str(lock))).one()
    except DBAPIError as error:
        if sql_state(error) != _LOCK_NOT_AVAILABLE:
            raise
        raise _held(database, lock) from None
    return str(row[1])


def _held(database: Database, lock: int) -> DatabaseAwayError:
    with database.reading() as connection:
        holder = connection.exec_driver_sql(_HOLDER, (lock,)).first()
    who = "another program"
    if holder is not None:
        name = f" of '{holder[1]}'" if holder[1] else ""
        who = f"the server process {holder[0]}{name}, in a transaction that began at {holder[2]},"
    what = f"{who} has been writing for more than {PATIENCE:g} seconds"
    return DatabaseAwayError("OCQ-305", what, database.label, "let it finish, or end it")

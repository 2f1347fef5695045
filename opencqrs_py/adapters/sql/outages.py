"""Outages: which errors of a database driver mean that the database is away for now."""

from __future__ import annotations

import re
import sqlite3

from sqlalchemy import exc
from sqlalchemy.exc import DBAPIError

from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.masking import scrubbed

__all__ = [
    "LOCK_NOT_AVAILABLE",
    "LOCK_WAIT_TIMEOUT",
    "DatabaseAwayError",
    "DatabaseBusyError",
    "is_outage",
    "lacks_right",
    "reason_of",
    "server_error",
    "sql_state",
]

LOCK_NOT_AVAILABLE = "55P03"
"""PostgreSQL's SQLSTATE for a lock that was waited for in vain."""

LOCK_WAIT_TIMEOUT = 1205
"""MariaDB's error for a lock that was waited for in vain."""

# SQLite result codes that pass by themselves: BUSY, LOCKED, IOERR, FULL, CANTOPEN, PROTOCOL.
_SQLITE_AWAY = {5, 6, 10, 13, 14, 15}
# SQLSTATE classes that pass by themselves: connection, rolled back for others, resources, shutdown, lock not available.
# Not among them: 57014, a statement that was cancelled or took too long, which is the handler's.
_POSTGRESQL_AWAY = ("08", "40", "53", "57P", LOCK_NOT_AVAILABLE)
# MariaDB's errors that pass by themselves: out of disk, memory, connections or locks, shutdown, broken connections,
# lock waits, deadlocks, a connection that was killed, too many of a user. From 2000 on, they are the client's own.
_MARIADB_AWAY = {1021, 1037, 1038, 1040, 1041, 1053, 1079, 1152, 1158, 1159, 1160, 1161, 1203, LOCK_WAIT_TIMEOUT, 1206}
_MARIADB_AWAY |= {1213, 1226, 1927, 2002, 2003, 2005, 2006, 2013, 2055, 0}
# What PostgreSQL says to whom it does not let in. Before there is a connection libpq hands no SQLSTATE on, so these are
# texts; in another language they count as an outage.
_POSTGRESQL_REFUSES = re.compile(
    r"authentication failed for user|no password supplied|pg_hba\.conf|is not permitted to log in|"
    r"permission denied for database|(?:role|database) \".*\" does not exist"
)
# Rights that the user lacks: on PostgreSQL for an object, or for all schemas that are searched (or none is there); on
# MariaDB for a database, table, column, privilege and routine.
_POSTGRESQL_DENIES = {"42501", "3F000"}
_MARIADB_DENIES = {1044, 1142, 1143, 1227, 1370}
_MARIADB_DRIVERS = ("pymysql", "MySQLdb")


class DatabaseAwayError(EventStoreError):
    """The database does not answer for now (OCQ-304, OCQ-305, OCQ-315)."""


class DatabaseBusyError(DatabaseAwayError):
    """Another process, or another thread, holds what is needed for too long (OCQ-305)."""


def is_outage(error: BaseException) -> bool:
    """Say whether ``error`` means that the database does not answer for now.

    Errors of the driver count as well as those that SQLAlchemy has wrapped: a handler may use the driver's connection.
    """
    if isinstance(error, exc.TimeoutError | DatabaseAwayError):
        return True
    driver_error = error.orig if isinstance(error, DBAPIError) else error
    if _operational(driver_error) and _refuses(driver_error):
        return False
    if isinstance(driver_error, sqlite3.Error):  # whose connection is never cut: one that is closed was closed here
        return (getattr(driver_error, "sqlite_errorcode", 0) & 0xFF) in _SQLITE_AWAY
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    if server_error(driver_error) is not None:
        return server_error(driver_error) in _MARIADB_AWAY
    return _operational(driver_error) and _passes(driver_error)


def lacks_right(error: DBAPIError) -> bool:
    """Say whether the database's user may not do what a statement does."""
    return sql_state(error) in _POSTGRESQL_DENIES or server_error(error) in _MARIADB_DENIES


def sql_state(error: BaseException | None) -> str | None:
    """Return PostgreSQL's SQLSTATE, ``None`` when the connection itself failed or the error is another one's."""
    state = getattr(error.orig if isinstance(error, DBAPIError) else error, "sqlstate", None)
    return None if state is None else str(state)


def server_error(error: BaseException | None) -> int | None:
    """Return the number of MariaDB's error, 0 when the connection was closed; ``None`` for errors of others."""
    error = error.orig if isinstance(error, DBAPIError) else error
    if not type(error).__module__.startswith(_MARIADB_DRIVERS) or error is None or not error.args:
        return None
    return error.args[0] if isinstance(error.args[0], int) else None


def reason_of(error: DBAPIError) -> str:
    """Return in one line what the driver says."""
    cause = error.orig
    said = str(cause.args[1] if server_error(error) is not None and cause and len(cause.args) > 1 else cause).strip()
    return scrubbed((said or type(cause).__name__).splitlines()[0])


def _operational(error: BaseException | None) -> bool:
    """Say whether it is psycopg's ``OperationalError``, which is not imported here."""
    return hasattr(error, "sqlstate") and any(kind.__name__ == "OperationalError" for kind in type(error).__mro__)


def _refuses(error: BaseException | None) -> bool:
    """Say whether PostgreSQL lets nobody of that name in, or not with that password, or has no such database."""
    return sql_state(error) is None and _POSTGRESQL_REFUSES.search(str(error).partition("\n")[0]) is not None


def _passes(error: BaseException | None) -> bool:
    """Say whether PostgreSQL's reason passes by itself; without an SQLSTATE the connection itself failed."""
    state = sql_state(error)
    return state is None or state.startswith(_POSTGRESQL_AWAY)

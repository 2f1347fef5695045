"""Outages: which errors of a database driver mean that the database is away for now."""

from __future__ import annotations

import sqlite3

from sqlalchemy import exc
from sqlalchemy.exc import DBAPIError

from opencqrs_py.errors import EventStoreError

__all__ = ["DatabaseAwayError", "is_outage", "sql_state"]

# SQLite result codes that pass by themselves: BUSY, LOCKED, IOERR, FULL, CANTOPEN, PROTOCOL.
_SQLITE_AWAY = {5, 6, 10, 13, 14, 15}
# SQLSTATE classes that pass by themselves: connection, rolled back for others, resources, shutdown, lock not available.
# Not among them: 57014, a statement that was cancelled or took too long, which is the handler's.
_POSTGRESQL_AWAY = ("08", "40", "53", "57P", "55P03")


class DatabaseAwayError(EventStoreError):
    """The database does not answer for now (OCQ-304), or somebody else holds it (OCQ-305)."""


def is_outage(error: BaseException) -> bool:
    """Say whether ``error`` means that the database does not answer for now.

    Errors of the driver count as well as those that SQLAlchemy has wrapped: a handler may use the driver's connection.
    """
    if isinstance(error, exc.TimeoutError | DatabaseAwayError):
        return True
    if isinstance(error, DBAPIError) and error.connection_invalidated:
        return True
    driver_error = error.orig if isinstance(error, DBAPIError) else error
    if isinstance(driver_error, sqlite3.Error):
        return (getattr(driver_error, "sqlite_errorcode", 0) & 0xFF) in _SQLITE_AWAY
    return _operational(driver_error) and _passes(driver_error)


def sql_state(error: BaseException | None) -> str | None:
    """Return PostgreSQL's SQLSTATE, ``None`` when the connection itself failed or the error is another one's."""
    state = getattr(error.orig if isinstance(error, DBAPIError) else error, "sqlstate", None)
    return None if state is None else str(state)


def _operational(error: BaseException | None) -> bool:
    """Say whether it is psycopg's ``OperationalError``, which is not imported here."""
    return hasattr(error, "sqlstate") and any(kind.__name__ == "OperationalError" for kind in type(error).__mro__)


def _passes(error: BaseException | None) -> bool:
    """Say whether PostgreSQL's reason passes by itself; without an SQLSTATE the connection itself failed."""
    state = sql_state(error)
    return state is None or state.startswith(_POSTGRESQL_AWAY)

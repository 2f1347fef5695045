"""What errors of databases report, whatever codes and texts drivers have for it, and how to fix it."""

from __future__ import annotations

from enum import Enum, auto

from sqlalchemy import exc
from sqlalchemy.exc import DBAPIError

from opencqrs_py.errors import EventStoreError

URL_SETTINGS = "the URL (settings event-store.url and database.url, option url in Spark)"
RESTORE = f"a table of opencqrs was dropped or changed: restore it from a backup, or fix {URL_SETTINGS}"
REPAIR = f"it must be an undamaged SQLite file: restore it from a backup, or fix {URL_SETTINGS}"
FREE_SPACE = "free space on its disk, and try again"
WRITABLE = f"name a server, and a user, whose transactions may write in {URL_SETTINGS}: a replica may not"
ANOTHER_SERVER = f"another kind of server answers there: fix scheme, host or port in {URL_SETTINGS}"
NO_PREPARING = (
    f"behind a pooler in transaction mode, add ?prepare_threshold=none to {URL_SETTINGS}, "
    "or switch the pooler to session mode"
)
GRANT = f"have an administrator grant the privilege, or name another user in {URL_SETTINGS}"


class Fault(Enum):
    """What an error of a database reports, if it is one for which the package has its own answer."""

    DENIED = auto()  # the database's user lacks a privilege
    READ_ONLY = auto()  # the server, or the user, may not write at all
    NO_TABLE = auto()  # a statement names a table that is missing
    NO_COLUMN = auto()  # a statement names a column that is missing, of a table that exists
    DAMAGED = auto()  # the database's file is damaged or not a database
    FULL = auto()  # there is no space left for the database's file
    BUSY = auto()  # another process has held the whole database for too long
    LOCK_TIMEOUT = auto()  # a wait for a lock timed out
    CANCELLED = auto()  # the server has ended a statement because it took too long, or a person cancelled it
    DEADLOCK = auto()  # the database has ended a transaction because of a deadlock
    UNPREPARED = auto()  # the connection's prepared statements are another session's, as behind a pooler
    ANOTHER_KIND = auto()  # the answering server is a different kind of database


UNKNOWN_NAMES = frozenset({Fault.NO_TABLE, Fault.NO_COLUMN})
"""A table or column is missing that a statement names."""


def driver_error(error: BaseException | None) -> BaseException | None:
    """Return the driver's error inside SQLAlchemy's."""
    return error.orig if isinstance(error, DBAPIError) else error


class DatabaseAwayError(EventStoreError):
    """The database is temporarily unavailable (OCQ-304, OCQ-305, OCQ-315)."""


class DatabaseBusyError(DatabaseAwayError):
    """Another process, or another thread, holds what is needed for too long (OCQ-305)."""


class ConnectionLostError(exc.PendingRollbackError):
    """A statement was to be sent in a transaction whose connection was lost, after a handler caught that error.

    Its class makes SQLAlchemy pass it on unchanged.
    """

    def __init__(self, said: str = "the connection was lost in an earlier statement, whose error was caught"):
        super().__init__(said)


def lost_before(label: str) -> DatabaseAwayError:
    """Return the error of a transaction whose connection was lost in a statement whose error a handler caught."""
    what = "the database no longer answers (a connection was lost, and the error of its statement was caught)"
    fix = "make sure that it is available; handlers must not catch such errors: nothing of the transaction is stored"
    return DatabaseAwayError("OCQ-304", what, label, fix)

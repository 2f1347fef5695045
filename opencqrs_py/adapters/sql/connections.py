"""Connections of the drivers: replaced when they were cut, and used without SQLAlchemy.

For a short statement SQLAlchemy takes longer than a database does, especially in a process that has just been woken.
"""

from __future__ import annotations

import select
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import Dialect as SqlAlchemyDialect
from sqlalchemy.exc import DBAPIError, InvalidatePoolError, SQLAlchemyError

from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.masking import scrubbed

FetchedRows = Sequence[tuple[Any, ...]]

WRITING = "opencqrs_writing"
"""In the ``info`` of a pooled connection: how many seconds its next transaction, which will write, waits for others."""

_TRUSTED_SECONDS = 60.0  # a connection that was idle for longer is pinged, since firewalls cut connections silently
RETURNED = "opencqrs_returned"  # in the ``info`` of a pooled connection: when it was given back, in monotonic seconds


def replace_cut_connections(engine: Engine) -> None:
    """Check each connection of a pool to a server when it is taken out, and replace one that was cut.

    A server that stops notifies every client, so a connection on which nothing has arrived is sound: checking its
    socket replaces the query that SQLAlchemy's ``pool_pre_ping`` sends each time.
    """

    @event.listens_for(engine, "checkin")
    def _note_time(_connection: Any, record: Any) -> None:
        record.info[RETURNED] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _check(connection: Any, record: Any, _proxy: Any) -> None:
        returned = record.info.get(RETURNED)
        if returned is None or (time.monotonic() - returned < _TRUSTED_SECONDS and _is_quiet(connection)):
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError from error


@contextmanager
def undoing(connection: Connection, statement: str) -> Iterator[None]:
    """Send a statement after a block, which undoes what was set for it on the connection.

    If the block has failed, its error is raised, since the connection may be gone. Otherwise that of the statement is:
    if it were hidden, the commit would find no transaction, and SQLAlchemy would raise an error that is not the
    database's, and so not an outage.

    Raises:
        DBAPIError: If the statement fails, and the block has not.
    """
    try:
        yield
    except BaseException:
        with suppress(SQLAlchemyError):
            connection.exec_driver_sql(statement)
        raise
    connection.exec_driver_sql(statement)


def connect_by(engine: Engine, connect: Callable[..., Any], label: str) -> None:
    """Have an engine open its connections by a function of ``(driver, args, settings)``.

    Parameters of a URL are arguments of the driver, which raises any kind of error for unknown ones.
    """

    @event.listens_for(engine, "do_connect")
    def _connect(driver: Any, _record: Any, args: Sequence[Any], settings: dict[str, Any]) -> Any:
        try:
            return connect(driver, args, settings)
        except driver.loaded_dbapi.Error:
            raise
        except Exception as error:
            raise refused_parameters(error, label) from error


def refused_parameters(error: Exception, label: str) -> EventStoreError:
    """Return the error of a driver, or SQLAlchemy, that refuses the query parameters of a URL."""
    what = f"the database cannot be used ({type(error).__name__}: {scrubbed(str(error))})"
    fix = "fix what follows ? in the URL (settings event-store.url and database.url, option url in Spark)"
    return EventStoreError("OCQ-304", what, label, fix)


def close_pool(engine: Engine) -> None:
    """Close the connections of an engine, those in use when they are given back; the next use opens new ones."""
    pool = engine.pool
    engine.dispose(close=False)

    @event.listens_for(pool, "checkin")
    def _close_late(_connection: Any, record: Any) -> None:
        record.invalidate()

    pool.dispose()


def _is_quiet(connection: Any) -> bool:
    """Return whether nothing has arrived on a connection that waits for nothing."""
    try:
        poll = select.poll()
        poll.register(getattr(connection, "_sock", connection).fileno(), select.POLLIN)  # PyMySQL's has no fileno()
        return not poll.poll(0)
    except Exception:  # a connection that is also closed on our side has no socket
        return False


def as_sqlalchemy(dialect: SqlAlchemyDialect, error: Exception, statement: str | None, connection: Any) -> DBAPIError:
    """Return a driver's error as SQLAlchemy raises it.

    ``statement`` is what was sent; the driver's connection is ``None`` if it could not be opened.
    """
    raised = cast("Any", error)
    cut = dialect.is_disconnect(raised, connection, None)
    base: Any = dialect.loaded_dbapi.Error
    wrapped = DBAPIError.instance(statement, None, raised, base, connection_invalidated=cut, dialect=dialect)
    return cast("DBAPIError", wrapped)


def reason_of(error: DBAPIError | sqlite3.Error) -> str:
    """Return the driver's message in one line, without the number that some drivers put before it."""
    cause = error.orig if isinstance(error, DBAPIError) else error
    numbered = cause is not None and len(cause.args) > 1 and isinstance(cause.args[0], int)
    said = str(cause.args[1] if cause is not None and numbered else cause).strip()
    return scrubbed((said or type(cause).__name__).splitlines()[0])


@dataclass(frozen=True)
class Statement:
    """A short statement of ours that is part of each chunk: its name once it is prepared, and its text.

    In the text ``{}`` marks each value. ``lock`` is an expression, in columns of the changed row, for the
    advisory lock on PostgreSQL that is held while a caller waits for the change.
    """

    name: str
    text: str
    lock: str = ""

    @lru_cache  # noqa: B019 there are as many as statements in this package
    def text_of(self, mark: str) -> str:
        """Return the text with marks."""
        return self.text.format(*[mark] * self.text.count("{}"))


def send(connection: Connection, statement: str, values: tuple[str | int, ...] = ()) -> Any:
    """Send a statement on the driver's own cursor, and return the cursor."""
    driver: Any = connection.connection.dbapi_connection
    cursor = driver.cursor()
    cursor.execute(statement, values)
    return cursor


def run(connection: Connection, statement: str) -> Any:
    """Send a statement without values, in which a percent sign is one; return the driver's cursor."""
    dialect = connection.dialect
    try:
        return send(connection, statement.replace("%", "%%"))
    except dialect.loaded_dbapi.Error as error:
        raise as_sqlalchemy(dialect, error, statement, connection.connection.dbapi_connection) from None


def is_sound(connection: Any, used: float) -> bool:
    """Return whether a connection that was last used at that time, in monotonic seconds, was not cut since."""
    if not hasattr(connection, "_sock") and not hasattr(connection, "fileno"):
        return True  # of a database in a file: nothing can cut it
    return time.monotonic() - used < _TRUSTED_SECONDS and _is_quiet(connection)


def close_quietly(connection: Any) -> None:
    """Close a connection that may be broken; then there is nothing left to release."""
    with suppress(Exception):
        connection.close()

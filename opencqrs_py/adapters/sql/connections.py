"""Connections of the drivers: kept for short reads, replaced when they were cut, and used without SQLAlchemy.

For a short statement SQLAlchemy takes longer than a database does, above all in a process that has just been woken.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import Dialect as SqlAlchemyDialect
from sqlalchemy.exc import DBAPIError, InvalidatePoolError

from opencqrs_py.model.masking import scrubbed

Rows = Sequence[tuple[Any, ...]]

WRITING = "opencqrs_writing"
"""In the ``info`` of a pooled connection: how many seconds its next transaction, which will write, waits for others."""

_TRUSTED_SECONDS = 60.0  # a connection that was idle for longer is pinged, since a firewall cuts without a word
_RETURNED = "opencqrs_returned"
_MOST_KEPT = 5  # connections, as many as SQLAlchemy's pool keeps


def replace_cut_connections(engine: Engine) -> None:
    """Look at each connection of a pool to a server when it is taken out, and replace one that was cut meanwhile.

    A server that stops says so to every client, so a connection on which nothing has arrived is sound: that is one
    look at its socket instead of the question to the server that SQLAlchemy's ``pool_pre_ping`` asks each time.
    """

    @event.listens_for(engine, "checkin")
    def _note_time(_connection: Any, record: Any) -> None:
        record.info[_RETURNED] = time.monotonic()

    @event.listens_for(engine, "checkout")
    def _check(connection: Any, record: Any, _proxy: Any) -> None:
        returned = record.info.get(_RETURNED)
        if returned is None or (time.monotonic() - returned < _TRUSTED_SECONDS and _is_quiet(connection)):
            return
        try:
            engine.dialect.do_ping(connection)
        except engine.dialect.loaded_dbapi.Error as error:
            raise InvalidatePoolError from error


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
    except Exception:  # a connection that is closed on our side, too, has no socket any more
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


def reason_of(error: DBAPIError) -> str:
    """Return in one line what the driver says; drivers that number their errors say it after the number."""
    cause = error.orig
    numbered = cause is not None and len(cause.args) > 1 and isinstance(cause.args[0], int)
    said = str(cause.args[1] if cause is not None and numbered else cause).strip()
    return scrubbed((said or type(cause).__name__).splitlines()[0])


@dataclass(frozen=True)
class Statement:
    """A short statement of ours that is part of each chunk: its name once it is prepared, and its text.

    In the text ``{}`` stands for each value.
    """

    name: str
    text: str

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


class Fetching:
    """Reads on connections of the driver that are kept for the next read. Safe for several threads.

    To take a connection out of SQLAlchemy's pool and to give it back takes longer than a short read.

    Args:
        engine: Makes the connections; each statement on them is committed at once, and any thread may use them.
        reached: Calls what opens a connection, and explains it when the database cannot be reached.
    """

    def __init__(self, engine: Engine, reached: Callable[[Callable[[], Any]], Any]) -> None:
        self._engine = engine
        self._reached = reached
        self._kept: list[_Kept] = []

    def fetch(self, statement: str, values: tuple[Any, ...]) -> Rows:
        """Return the rows of a statement with the marks of the driver; errors are as SQLAlchemy raises them."""
        dialect = self._engine.dialect
        connection = self._take()
        try:
            cursor = connection.cursor()
            cursor.execute(statement, values)
            rows: Rows = cursor.fetchall()
        except dialect.loaded_dbapi.Error as error:
            wrapped = as_sqlalchemy(dialect, error, statement, connection)
            if wrapped.connection_invalidated:
                _close(connection)
            else:
                self._keep(connection)
            raise wrapped from error
        except BaseException:  # an interrupt in the middle of an answer
            _close(connection)
            raise
        self._keep(connection)
        return rows

    def close(self) -> None:
        """Close the connections that are kept; the next read opens a new one."""
        while self._kept:
            _close(self._kept.pop().connection)

    def _take(self) -> Any:
        while True:
            try:
                kept = self._kept.pop()
            except IndexError:
                return self._reached(self._open)
            if kept.is_sound:
                return kept.connection
            _close(kept.connection)

    def _keep(self, connection: Any) -> None:
        if len(self._kept) < _MOST_KEPT:
            self._kept.append(_Kept(connection, time.monotonic()))
        else:
            _close(connection)

    def _open(self) -> Any:
        dialect = self._engine.dialect
        try:
            connection = self._engine.raw_connection()
        except dialect.loaded_dbapi.Error as error:
            raise as_sqlalchemy(dialect, error, None, None) from error
        opened = connection.dbapi_connection
        connection.detach()
        return opened


class _Kept(NamedTuple):
    """A connection, and when it was last used, in seconds on the monotonic clock."""

    connection: Any
    at: float

    @property
    def is_sound(self) -> bool:
        if not hasattr(self.connection, "_sock") and not hasattr(self.connection, "fileno"):
            return True  # of a database that is a file: nothing can cut it
        return time.monotonic() - self.at < _TRUSTED_SECONDS and _is_quiet(self.connection)


def _close(connection: Any) -> None:
    with suppress(Exception):  # of one that is broken; there is nothing left to release
        connection.close()

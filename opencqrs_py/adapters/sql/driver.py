"""The driver's own cursor, for the few statements of ours that are sent for every chunk of events.

For a short statement SQLAlchemy takes longer than a database does, above all in a process that has just been woken.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, cast

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql.pooling import TRUSTED_SECONDS, is_quiet

__all__ = ["Fetching", "Prepared", "Rows", "sent_first"]

Rows = Sequence[tuple[Any, ...]]

_MOST_KEPT = 5  # connections, as many as SQLAlchemy's pool keeps


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
        """Return the rows of a statement.

        Args:
            statement: With the marks of the driver.
            values: For the marks, in their order.

        Raises:
            DBAPIError: As SQLAlchemy raises it; a connection that was cut is not used again.
            DatabaseAwayError: OCQ-304, if the database cannot be reached.
        """
        errors = self._engine.dialect.loaded_dbapi.Error
        connection = self._take()
        try:
            cursor = connection.cursor()
            cursor.execute(statement, values)
            rows: Rows = cursor.fetchall()
        except errors as error:
            wrapped = self._wrapped(error, statement, connection)
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
            if kept.sound:
                return kept.connection
            _close(kept.connection)

    def _keep(self, connection: Any) -> None:
        if len(self._kept) < _MOST_KEPT:
            self._kept.append(_Kept(connection, time.monotonic()))
        else:
            _close(connection)

    def _open(self) -> Any:
        try:
            connection = self._engine.raw_connection()
        except self._engine.dialect.loaded_dbapi.Error as error:
            raise self._wrapped(error, None, None) from error
        opened = connection.dbapi_connection
        connection.detach()
        return opened

    def _wrapped(self, error: Any, statement: str | None, connection: Any) -> DBAPIError:
        dialect = self._engine.dialect
        cut = connection is None or dialect.is_disconnect(error, connection, None)
        base = dialect.loaded_dbapi.Error
        found = DBAPIError.instance(statement, None, error, base, connection_invalidated=cut, dialect=dialect)
        return cast("DBAPIError", found)


class _Kept(NamedTuple):
    """A connection, and when it was last used, in seconds on the monotonic clock."""

    connection: Any
    at: float

    @property
    def sound(self) -> bool:
        if isinstance(self.connection, sqlite3.Connection):
            return True
        return time.monotonic() - self.at < TRUSTED_SECONDS and is_quiet(self.connection)


def _close(connection: Any) -> None:
    with suppress(Exception):  # of one that is broken; there is nothing left to release
        connection.close()


def sent_first(connection: Connection, statement: Prepared, values: tuple[str | int, ...]) -> int:
    """Send the first statement of a transaction.

    psycopg sends BEGIN by itself and waits for its answer. Where a transaction is to be a usual one, both are sent
    here as one message. If that fails, the statement is sent in the usual way, which raises what is wrong.

    Returns:
        How many rows it changed.

    Raises:
        Exception: The driver's own.
    """
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.driver == "psycopg" and _begins_as_usual(driver):
        known = connection.info.get(statement.name)
        if known and (changed := _sent_with_begin(driver, statement, values)) is not None:
            return changed
        if known is None:
            driver.execute(f"PREPARE {statement.name} AS {statement.text_of('${}')}")
        connection.info[statement.name] = known is None  # after an error, it is left at the usual way
    cursor = driver.cursor()
    cursor.execute(statement.text_of("?" if connection.dialect.name == "sqlite" else "%s"), values)
    return int(cursor.rowcount)


@dataclass(frozen=True)
class Prepared:
    """A statement that is prepared on PostgreSQL, once a connection.

    Attributes:
        name: Its name there.
        text: With ``{}`` for each value.
    """

    name: str
    text: str

    @lru_cache  # noqa: B019 there are as many as statements in this package
    def text_of(self, mark: str) -> str:
        """Return the text with marks; ``{}`` in a mark is the number of the value, from 1."""
        return self.text.format(*(mark.format(number) for number in range(1, self.text.count("{}") + 1)))


def _begins_as_usual(driver: Any) -> bool:
    """Say whether a transaction of psycopg begins with a plain BEGIN, and statements may be prepared.

    The latter is forbidden (``prepare_threshold=None``) where connections lead through a pooler.
    """
    special = (driver.isolation_level, driver.read_only, driver.deferrable)
    return not driver.autocommit and special == (None, None, None) and driver.prepare_threshold is not None


def _sent_with_begin(driver: Any, statement: Prepared, values: tuple[str | int, ...]) -> int | None:
    text = f"BEGIN; EXECUTE {statement.name}({', '.join(map(_literal, values))})"
    result = driver.pgconn.exec_(text.encode(driver.info.encoding))
    if not result.error_message:
        return int(result.command_tuples or 0)
    driver.pgconn.exec_(b"ROLLBACK")  # not by rollback(), which is watched: it is no handler's doing
    return None


def _literal(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    quoted = value.replace("\\", "\\\\").replace("'", "''")
    return f"E'{quoted}'"  # with a backslash for each one, whatever standard_conforming_strings says

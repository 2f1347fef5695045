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

from opencqrs_py.adapters.sql.guard import as_sqlalchemy, ended, release, set_savepoint
from opencqrs_py.adapters.sql.pooling import TRUSTED_SECONDS, is_quiet

__all__ = ["NOT_FOUND", "Fetching", "Prepared", "Rows", "closed", "opened"]

Rows = Sequence[tuple[Any, ...]]
Values = tuple[str | int, ...]

NOT_FOUND = "opencqrs: no row"
"""What the error of a prepared statement that has found no row contains."""

_NO_SAVEPOINT = ("3B001", "25P01")  # PostgreSQL: there is no such savepoint, or no transaction at all

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


@dataclass(frozen=True)
class Prepared:
    """A short statement of ours, which is prepared on PostgreSQL, once a connection.

    Attributes:
        name: Its name there.
        text: With ``{}`` for each value.
        prepared: Another text for PostgreSQL, which raises if there is no row; empty: the same.
    """

    name: str
    text: str
    prepared: str = ""

    @lru_cache  # noqa: B019 there are as many as statements in this package
    def text_of(self, mark: str) -> str:
        """Return the text with marks."""
        return self.text.format(*[mark] * self.text.count("{}"))

    @property
    def preparation(self) -> str:
        """What prepares it."""
        text = self.prepared or self.text
        return f"PREPARE {self.name} AS {text.format(*(f'${n}' for n in range(1, text.count('{}') + 1)))}"

    def execution(self, values: Values) -> str:
        """Return what executes it."""
        return f"EXECUTE {self.name}({', '.join(map(_literal, values))})"


def opened(connection: Connection, savepoint: str, lock: Prepared, later: Sequence[Prepared], values: Values) -> bool:
    """Set a savepoint at the beginning of a transaction, and lock the row of a partition.

    psycopg sends BEGIN by itself and waits for its answer. Where a transaction is to be a usual one, all three are sent
    here as one message. If that fails, they are sent in the usual way, which raises what is wrong.

    Args:
        connection: The connection, in a transaction that has sent nothing yet.
        savepoint: Its name.
        lock: The statement that finds and locks the row.
        later: The statements that may end the transaction, so that they can be prepared.
        values: Of the lock.

    Returns:
        Whether the row was found.

    Raises:
        Exception: The driver's own.
    """
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.driver == "psycopg" and _begins_as_usual(driver):
        known = connection.info.get(lock.name)
        if known:
            found = _sent(driver, f"BEGIN; SAVEPOINT {savepoint}; {lock.execution(values)}")
            if not found.error_message:
                return int(found.ntuples) == 1
            driver.pgconn.exec_(b"ROLLBACK")  # not by rollback(), which is watched: it is no handler's doing
        for statement in (lock, *later):
            if known is None:
                driver.execute(statement.preparation)
            connection.info[statement.name] = known is None  # after an error, it is left at the usual way
    set_savepoint(connection, savepoint)
    cursor = _executed(connection, lock, values)
    return cursor.fetchone() is not None if cursor.description else int(cursor.rowcount) == 1


def closed(connection: Connection, savepoint: str, move: Prepared, values: Values) -> bool:
    """Release the savepoint and send the last statement of a transaction; on PostgreSQL its commit goes with them.

    Nothing is committed unless the statement has found its row: prepared, it raises then.

    Returns:
        Whether the statement has found its row.

    Raises:
        TransactionEndedError: If the transaction was ended before.
        DBAPIError: As SQLAlchemy raises it.
        Exception: The driver's own.
    """
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.driver == "psycopg" and connection.info.get(move.name):
        result = _sent(driver, f"RELEASE SAVEPOINT {savepoint}; {move.execution(values)}; COMMIT")
        return not result.error_message or _found_nothing(connection, result)
    release(connection, savepoint)
    return int(_executed(connection, move, values).rowcount) == 1


def _found_nothing(connection: Connection, result: Any) -> bool:
    """Return false if the last statement has found no row; raise any other error of its message."""
    from psycopg.errors import error_from_result  # noqa: PLC0415 of an extra

    driver: Any = connection.connection.dbapi_connection
    error = error_from_result(result, encoding=driver.info.encoding)
    if NOT_FOUND in str(error):
        return False
    if error.sqlstate in _NO_SAVEPOINT:
        raise ended(connection, error, "RELEASE SAVEPOINT") from error
    raise as_sqlalchemy(connection, error, "COMMIT") from error


def _executed(connection: Connection, statement: Prepared, values: Values) -> Any:
    cursor: Any = connection.connection.dbapi_connection.cursor()  # type: ignore[union-attr]
    cursor.execute(statement.text_of("?" if connection.dialect.name == "sqlite" else "%s"), values)
    return cursor


def _begins_as_usual(driver: Any) -> bool:
    """Return whether a transaction of psycopg begins with a plain BEGIN, and statements may be prepared.

    The latter is forbidden (``prepare_threshold=None``) where connections lead through a pooler.
    """
    special = (driver.isolation_level, driver.read_only, driver.deferrable)
    return not driver.autocommit and special == (None, None, None) and driver.prepare_threshold is not None


def _sent(driver: Any, text: str) -> Any:
    return driver.pgconn.exec_(text.encode(driver.info.encoding))


def _literal(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    quoted = value.replace("\\", "\\\\").replace("'", "''")
    return f"E'{quoted}'"  # with a backslash for each one, whatever standard_conforming_strings says

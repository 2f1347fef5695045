"""The driver's own cursor, for the few statements of ours that are sent for every chunk of events.

For a short statement SQLAlchemy takes longer than a database does, above all in a process that has just been woken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from sqlalchemy import Connection, Engine, PoolProxiedConnection
from sqlalchemy.exc import DBAPIError

__all__ = ["Rows", "fetched", "open_connection", "sent_first"]

Rows = Sequence[tuple[Any, ...]]


def open_connection(engine: Engine) -> PoolProxiedConnection:
    """Take a connection out of an engine's pool, with nothing around it.

    Raises:
        DBAPIError: If the database cannot be reached.
    """
    try:
        return engine.raw_connection()
    except engine.dialect.loaded_dbapi.Error as error:
        raise _wrapped(engine, error, None) from error


def fetched(engine: Engine, connection: PoolProxiedConnection, statement: str, values: tuple[Any, ...]) -> Rows:
    """Return the rows of a statement, and give the connection back.

    Args:
        engine: Whose pool the connection is from.
        connection: One whose statements are committed at once.
        statement: With the marks of the driver.
        values: For the marks, in their order.

    Raises:
        DBAPIError: As SQLAlchemy raises it; a connection that was cut is not used again.
    """
    try:
        cursor = connection.cursor()
        cursor.execute(statement, values)
        return cursor.fetchall()
    except engine.dialect.loaded_dbapi.Error as error:
        wrapped = _wrapped(engine, error, statement, connection)
        if wrapped.connection_invalidated:
            connection.invalidate(error)
        raise wrapped from error
    finally:
        connection.close()


def sent_first(connection: Connection, statement: str, values: tuple[Any, ...]) -> int:
    """Send the first statement of a transaction, on PostgreSQL together with the transaction's beginning.

    Returns:
        How many rows it changed.

    Raises:
        Exception: The driver's own.
    """
    driver: Any = connection.connection.dbapi_connection
    if connection.dialect.driver == "psycopg" and (changed := _sent_with_begin(driver, statement, values)) is not None:
        return changed
    cursor = driver.cursor()
    cursor.execute(statement, values)
    return int(cursor.rowcount)


def _sent_with_begin(driver: Any, statement: str, values: tuple[Any, ...]) -> int | None:
    """Send both in one message: one round trip where psycopg makes two.

    Returns:
        ``None``, and nothing is done, if the transaction is to be a special one, or the statement fails: sent in the
        usual way, it raises what is wrong.
    """
    if driver.autocommit or not (driver.isolation_level is driver.read_only is driver.deferrable is None):
        return None
    from psycopg import ClientCursor  # noqa: PLC0415 whoever uses another database need not have it

    result = driver.pgconn.exec_(
        ClientCursor(driver).mogrify(f"BEGIN; {statement}", values).encode(driver.info.encoding)
    )
    if result.error_message:
        driver.rollback()
        return None
    return int(result.command_tuples or 0)


def _wrapped(
    engine: Engine, error: Any, statement: str | None, connection: PoolProxiedConnection | None = None
) -> DBAPIError:
    cut = connection is None or engine.dialect.is_disconnect(error, connection.dbapi_connection, None)
    base, dialect = engine.dialect.loaded_dbapi.Error, engine.dialect
    found = DBAPIError.instance(statement, None, error, base, connection_invalidated=cut, dialect=dialect)
    return cast("DBAPIError", found)

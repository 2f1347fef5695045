"""The guard of a unit's transaction: a savepoint with a random name, which does not survive the transaction.

Commands that end a transaction can be refused where a driver's methods can be replaced. But a statement that was
prepared before, or a conflict clause, ends it without asking: the savepoint shows it on every database.
"""

from __future__ import annotations

import secrets
from typing import Any, NoReturn, cast

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql import outages
from opencqrs_py.errors import TransactionEndedError

__all__ = [
    "LEAVE_OUT",
    "as_sqlalchemy",
    "ended",
    "is_outage",
    "new_savepoint",
    "refuse",
    "release",
    "rolled_back_to",
    "set_savepoint",
]

is_outage = outages.is_outage

LEAVE_OUT = "leave commit() and rollback() out; for a part that may fail, use connection.begin_nested()"


def new_savepoint() -> str:
    """Return a name that no handler can know."""
    return f"opencqrs_{secrets.token_hex(8)}"


def set_savepoint(connection: Connection, name: str) -> None:
    """Set the savepoint."""
    _send(connection, f"SAVEPOINT {name}")


def release(connection: Connection, name: str) -> None:
    """Release the savepoint.

    Raises:
        TransactionEndedError: If it is gone, and so the transaction in which it was set.
        DBAPIError: As SQLAlchemy raises it, if the database is unavailable.
    """
    statement = f"RELEASE SAVEPOINT {name}"
    try:
        _send(connection, statement)
    except Exception as error:
        raise ended(connection, error, statement) from error


def ended(connection: Connection, error: Exception, statement: str) -> Exception:
    """Return what it means that a savepoint cannot be released: an outage, or the end of its transaction."""
    if is_outage(error):
        return as_sqlalchemy(connection, error, statement)
    return TransactionEndedError(
        "a handler ended the transaction that it shares with the progress: what it wrote may be there, the progress "
        f"has not moved; {LEAVE_OUT}, and do not send COMMIT, ROLLBACK, BEGIN or OR ROLLBACK as SQL"
    )


def as_sqlalchemy(connection: Connection, error: Exception, statement: str) -> DBAPIError:
    """Return a driver's error as SQLAlchemy raises it."""
    dialect, raised = connection.dialect, cast("Any", error)
    base: Any = dialect.loaded_dbapi.Error
    cut = dialect.is_disconnect(raised, connection.connection.dbapi_connection, None)
    wrapped = DBAPIError.instance(statement, None, raised, base, connection_invalidated=cut, dialect=dialect)
    return cast("DBAPIError", wrapped)


def rolled_back_to(connection: Connection, name: str) -> bool:
    """Roll back to the savepoint; return whether it was there. Of a database that is unavailable it is assumed."""
    try:
        _send(connection, f"ROLLBACK TO SAVEPOINT {name}")
    except Exception as error:  # whatever the driver says of a savepoint that is gone
        return is_outage(error)
    return True


def refuse(reason: str = LEAVE_OUT, *_: Any, **__: Any) -> NoReturn:
    """Refuse what would end the transaction.

    Raises:
        TransactionEndedError: Always.
    """
    msg = f"a handler must not end the transaction that it shares with the progress: {reason}"
    raise TransactionEndedError(msg)


def _send(connection: Connection, statement: str) -> None:
    cursor: Any = connection.connection.dbapi_connection.cursor()  # type: ignore[union-attr]
    cursor.execute(statement)
    cursor.close()

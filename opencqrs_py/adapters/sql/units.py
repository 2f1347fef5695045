"""Units of work: the transactions that handlers write in, which nobody but their owner may end."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.orm import Session

from opencqrs_py.adapters.sql.databases import Database
from opencqrs_py.adapters.sql.mariadb_engine import commits_by_itself, in_transaction
from opencqrs_py.errors import NonTransientError, OpenCqrsError

__all__ = ["DatabaseTransactions", "Unit"]

_PSYCOPG_IDLE = 0  # psycopg.pq.TransactionStatus.IDLE
_PSYCOPG_IN_ERROR = 3  # psycopg.pq.TransactionStatus.INERROR


class Unit:
    """A transaction that handlers write in.

    Args:
        connection: The connection, in a transaction.
    """

    __slots__ = ("_begun", "_erred", "_rolled_back", "_session", "connection")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.connection.commit = self.connection.rollback = _refuse  # type: ignore[method-assign]
        self._session: Session | None = None
        self._rolled_back = False
        self._begun = False
        self._erred = False

    def begun(self) -> None:
        """Take note that the progress was written: from here on the transaction must stay as it is.

        Before its first statement psycopg looks as if the transaction had ended.
        """
        self._begun = True

    @property
    def session(self) -> Session:
        """The unit's session, made at first use."""
        if self._session is None:
            self._session = Session(self.connection)
        return self._session

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Refuse ``commit()`` of the driver's own connection and notice its ``rollback()``, if the driver lets us."""
        driver: Any = self.connection.connection.dbapi_connection
        if isinstance(driver, sqlite3.Connection):  # its methods cannot be replaced; the end is seen when it is there
            yield
            return
        roll_back = driver.rollback

        def rollback() -> None:  # SQLAlchemy's, too, as when a session cannot be flushed
            self._rolled_back = True
            roll_back()

        driver.commit, driver.rollback = _refuse, rollback
        replaced = ["commit", "rollback"]
        if in_transaction(driver) is not None:
            self._look_at_statements(driver)
            replaced.append("query")
        try:
            yield
        finally:
            for name in replaced:
                delattr(driver, name)

    def finish(self) -> None:
        """Write out what the session still holds, and see that what was written can still be committed."""
        if self._session is not None:
            self._session.flush()
        if self._rolled_back or not self.connection.in_transaction():
            _refuse()
        if self._failed():
            msg = "a statement failed and its error was caught: run such statements within connection.begin_nested()"
            raise OpenCqrsError(msg)
        if self._ended():
            _refuse()

    def _look_at_statements(self, driver: Any) -> None:
        """Watch over what is sent to MariaDB, where some statements commit by themselves, and some errors roll back.

        With the progress, such a statement would mark events done that nobody has handled. Elsewhere, as where tables
        are created at the start, a new transaction is begun behind it.
        """
        send = driver.query

        def query(statement: str | bytes, *arguments: Any) -> Any:
            text = statement if isinstance(statement, str) else bytes(statement[:200]).decode(errors="replace")
            ends = commits_by_itself(text)
            if ends and self._begun:
                _refuse(f"'{' '.join(text.split()[:2])}' commits by itself on MariaDB: run it in @on_start")
            try:
                answer = send(statement, *arguments)
            except Exception:
                self._erred = True
                raise
            if ends:
                send("START TRANSACTION")
            return answer

        driver.query = query

    def _ended(self) -> bool:
        """Say whether the transaction was ended on the driver's own connection."""
        driver = self.connection.connection.dbapi_connection
        status = getattr(getattr(driver, "info", None), "transaction_status", None)
        over = getattr(driver, "in_transaction", None) is False or in_transaction(driver) is False
        return over or (self._begun and status == _PSYCOPG_IDLE)

    def _failed(self) -> bool:
        """Say whether the server would answer a commit by rolling back, or has rolled back, without any error."""
        driver = self.connection.connection.dbapi_connection
        if in_transaction(driver) is not None:  # after a deadlock there is none; to be sure, the server is asked
            return self._erred and not self.connection.exec_driver_sql("SELECT @@in_transaction").scalar()
        return getattr(getattr(driver, "info", None), "transaction_status", None) == _PSYCOPG_IN_ERROR


class DatabaseTransactions:
    """Opens the transactions that handlers write in.

    Args:
        database: The read models' database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @contextmanager
    def begin(self) -> Iterator[Unit]:
        """Open a transaction: committed at the end of the block, rolled back when the block raises.

        Raises:
            NonTransientError: If the block ended the transaction, or tried to.
            OpenCqrsError: If a statement failed in the block, and with it the transaction, and nobody said so.
        """
        with self._database.writing() as connection:
            unit = Unit(connection)
            with unit.kept_open():
                yield unit
                unit.finish()

    def is_outage(self, error: BaseException) -> bool:
        """Say whether the database does not answer for now."""
        return self._database.is_outage(error)


def _refuse(reason: str = "leave commit() and rollback() out") -> None:
    """Progress is written first in a unit, so a commit inside it would mark events done that nobody has handled."""
    msg = f"a handler must not end the transaction that it shares with the progress: {reason}"
    raise NonTransientError(msg)

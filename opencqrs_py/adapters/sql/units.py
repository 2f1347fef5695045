"""Units of work: the transactions that handlers write in, which only their owner may end."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, NoReturn

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction

from opencqrs_py.adapters.sql import guard
from opencqrs_py.adapters.sql.databases import Database
from opencqrs_py.adapters.sql.guard import refuse
from opencqrs_py.adapters.sql.mariadb_engine import commits_by_itself, in_transaction
from opencqrs_py.errors import OpenCqrsError, TransactionEndedError
from opencqrs_py.processing.error_text import one_line

__all__ = ["DatabaseTransactions", "Unit"]

_UNIT = "opencqrs_unit"  # in the ``info`` of a connection: the unit that it serves
_PSYCOPG_IN_ERROR = 3  # psycopg.pq.TransactionStatus.INERROR

_OF_CONNECTION = ("commit", "rollback", "close", "detach")
_OF_DRIVER = ("commit", "rollback", "close")


class Unit:
    """A transaction that handlers write in.

    What would end it is refused where the driver lets us. Where it does not, the end is noticed by a savepoint with a
    random name, which is set at the beginning and released at the end: it does not survive the transaction.

    Args:
        connection: The connection, in a transaction.
        guarded: Whether the unit must stay one transaction.
    """

    __slots__ = (
        "_closed",
        "_erred",
        "_flush_failed",
        "_guarded",
        "_rolled_back",
        "_session",
        "connection",
        "savepoint",
    )

    def __init__(self, connection: Connection, *, guarded: bool) -> None:
        self.connection = connection
        self.savepoint = guard.new_savepoint() if guarded else ""
        self._session: _HandlerSession | None = None
        self._guarded = guarded
        self._rolled_back = False
        self._flush_failed = False
        self._closed = False
        self._erred = False

    @property
    def session(self) -> Session:
        """The unit's session, made at first use."""
        if self._session is None:
            self._session = _HandlerSession(self.connection)
            self._session.unit = self
        return self._session

    def flush(self) -> None:
        """Send what the session holds: nothing of one event waits for the next one, which might drop it."""
        if self._rolled_back:
            refuse()
        if self._session is not None:
            _HandlerSession.flush(self._session)  # of the class, whatever a handler has set on the object

    def ended_early(self, error: BaseException) -> TransactionEndedError | None:
        """Return the error to report if the transaction has ended, ``None`` if it is open or the database is away.

        Rolls back to the savepoint, so nothing of the unit can be kept after that.
        """
        if not self._guarded or isinstance(error, TransactionEndedError):
            return None
        if not self._closed and guard.is_outage(error):
            return None
        if self._flush_failed and not self._rolled_back:  # SQLAlchemy has rolled back, and the error was not caught
            return None
        if not self._rolled_back and not self._closed and guard.rolled_back_to(self.connection, self.savepoint):
            return None
        return TransactionEndedError(_ended(f"then it raised {one_line(error)}"))

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Refuse what ends the transaction, and notice the driver's ``rollback()``, if the driver lets us."""
        driver: Any = self.connection.connection.dbapi_connection
        connection: Any = self.connection
        with ExitStack() as undone:
            undone.callback(self.connection.info.pop, _UNIT, None)
            self.connection.info[_UNIT] = self
            for name in _OF_CONNECTION:
                setattr(connection, name, refuse)
                undone.callback(delattr, connection, name)
            if not isinstance(driver, sqlite3.Connection):  # its methods cannot be replaced
                self._watch_driver(driver, undone)
            yield

    def finish(self) -> None:
        """Send what the session still holds, and see that what was written can still be committed."""
        if self._flush_failed:
            msg = "a flush failed and its error was caught: run what may fail within session.begin_nested()"
            raise OpenCqrsError(msg)
        self.flush()
        if self._rolled_back or self._closed or not self.connection.in_transaction():
            refuse()
        if self._failed():
            msg = "a statement failed and its error was caught: run such statements within connection.begin_nested()"
            raise OpenCqrsError(msg)
        if not self._guarded and self._ended():
            refuse()

    def note_rollback(self) -> None:
        """Take note that the transaction was rolled back: by SQLAlchemy, when a flush fails, or by a handler."""
        if self._session is not None and self._session.is_flushing:
            self._flush_failed = True
        else:
            self._rolled_back = True

    def _watch_driver(self, driver: Any, undone: ExitStack) -> None:
        roll_back, close = driver.rollback, driver.close

        def rollback() -> None:  # SQLAlchemy's, too, as when a session cannot be flushed
            self.note_rollback()
            roll_back()

        def note_close() -> None:  # SQLAlchemy's, too, of a connection that was cut
            self._closed = not sys._getframe(1).f_globals.get("__name__", "").startswith("sqlalchemy.")  # noqa: SLF001
            close()

        driver.commit, driver.rollback, driver.close = refuse, rollback, note_close
        for name in _OF_DRIVER:
            undone.callback(delattr, driver, name)
        if in_transaction(driver) is not None:
            self._look_at_statements(driver)
            undone.callback(delattr, driver, "query")

    def _look_at_statements(self, driver: Any) -> None:
        """Watch over what is sent to MariaDB, where some statements commit by themselves, and some errors roll back.

        In a guarded unit they are refused. Elsewhere, as where tables are created at the start, a new transaction is
        begun after it.
        """
        send = driver.query

        def query(statement: str | bytes, *arguments: Any) -> Any:
            text = statement if isinstance(statement, str) else bytes(statement[:200]).decode(errors="replace")
            ends = commits_by_itself(text)
            if ends and self._guarded:
                refuse(f"'{' '.join(text.split()[:2])}' commits by itself on MariaDB: run it in @on_start")
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
        """Return whether the transaction was ended on the driver's own connection, as far as it shows."""
        driver = self.connection.connection.dbapi_connection
        return getattr(driver, "in_transaction", None) is False or in_transaction(driver) is False

    def _failed(self) -> bool:
        """Return whether the server would answer a commit by rolling back, or has rolled back, without any error."""
        driver = self.connection.connection.dbapi_connection
        if in_transaction(driver) is not None:  # after a deadlock there is none; to be sure, the server is asked
            return self._erred and not self.connection.exec_driver_sql("SELECT @@in_transaction").scalar()
        return getattr(getattr(driver, "info", None), "transaction_status", None) == _PSYCOPG_IN_ERROR


class _HandlerSession(Session):
    """A session on the connection of a unit: what ends the transaction, or empties the session, is refused.

    Its ``commit()`` ends nothing here: it sends what the session holds.
    """

    is_flushing = False
    unit: Unit | None = None

    def flush(self, objects: Sequence[Any] | None = None) -> None:
        """Send what is held; SQLAlchemy rolls the transaction back when that fails."""
        self.is_flushing = True
        try:
            super().flush(objects)
        finally:
            self.is_flushing = False

    def rollback(self) -> NoReturn:
        """Refused."""
        refuse()

    def close(self) -> NoReturn:
        """Refused: it would drop what was added."""
        refuse("leave close() and 'with session:' out; it is closed after the transaction")

    def reset(self) -> NoReturn:
        """Refused."""
        self.close()

    def invalidate(self) -> NoReturn:
        """Refused."""
        refuse("leave invalidate() out")

    def expunge_all(self) -> NoReturn:
        """Refused."""
        refuse("leave expunge_all() out: it drops what was added")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()


@event.listens_for(_HandlerSession, "after_soft_rollback")
def _on_session_rollback(session: Any, transaction: SessionTransaction) -> None:
    """Notice that a session was emptied, also where it has sent nothing yet; a savepoint may be rolled back."""
    if session.unit is not None and transaction.parent is None:
        session.unit.note_rollback()


class DatabaseTransactions:
    """Opens the transactions that handlers write in.

    Args:
        database: The read models' database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._watched = False

    @contextmanager
    def begin(self, *, guarded: bool = True) -> Iterator[Unit]:
        """Open a transaction: committed at the end of the block, rolled back when the block raises.

        Args:
            guarded: Whether a block that ends the transaction is an error.

        Raises:
            TransactionEndedError: If the block ended a guarded transaction, or tried to.
            OpenCqrsError: If a statement failed in the block, and with it the transaction, and its error was caught.
        """
        with self.opened(guarded=guarded) as unit:
            if guarded:
                guard.set_savepoint(unit.connection, unit.savepoint)
            with unit.kept_open():
                yield unit
                unit.finish()
            if guarded:
                guard.release(unit.connection, unit.savepoint)

    @contextmanager
    def opened(self, *, guarded: bool) -> Iterator[Unit]:
        """Open a transaction; savepoint and refusals are the caller's matter."""
        if not self._watched:
            _watch_ends(self._database)
            self._watched = True
        raised: BaseException | None = None
        try:
            with self._database.writing(of_handlers=True) as connection:
                try:
                    yield Unit(connection, guarded=guarded)
                except BaseException as error:
                    raised = error
                    raise
        except BaseException as error:
            if raised is None or raised is error:
                raise
            raise raised from raised.__cause__  # not what the roll back of a closed connection says

    def is_outage(self, error: BaseException) -> bool:
        """Return whether the database is temporarily unavailable."""
        return self._database.is_outage(error)


def _watch_ends(database: Database) -> None:
    """See SQLAlchemy's own commits and rollbacks on SQLite, whose driver's methods cannot be replaced."""
    if database.kind == "sqlite" and not event.contains(database.engine, "commit", _on_commit):
        event.listen(database.engine, "commit", _on_commit)
        event.listen(database.engine, "rollback", _on_rollback)


def _on_commit(connection: Connection) -> None:
    if connection.info.get(_UNIT) is not None:
        refuse()


def _on_rollback(connection: Connection) -> None:
    unit: Unit | None = connection.info.get(_UNIT)
    if unit is not None:
        unit.note_rollback()


def _ended(how: str) -> str:
    return f"the handler ended the transaction that it shares with the progress: {guard.LEAVE_OUT}; {how}"

"""Units of work: the transactions that handlers write in, which only their owner may end.

Commands that end a transaction can be refused where a driver's methods can be replaced. But an earlier prepared
statement, or a conflict clause, ends it unnoticed. So a unit is guarded by a savepoint with a random name, which does
not survive the transaction: it reveals the end on every database.
"""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import repeat
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from sqlalchemy import Connection, event
from sqlalchemy.orm import Session, SessionTransaction, object_session
from typing_extensions import override

from opencqrs_py.adapters.sql.connections import Statement, as_sqlalchemy, send
from opencqrs_py.adapters.sql.dialects.dialect import Dialect, Values, is_outage
from opencqrs_py.adapters.sql.dialects.faults import ConnectionLostError, lost_before
from opencqrs_py.errors import NonTransientError, OpenCqrsError, TransactionEndedError
from opencqrs_py.model.inbox import InboxChange
from opencqrs_py.processing.exceptions import one_line
from opencqrs_py.processing.pipelining import Pipeline
from opencqrs_py.processing.ports import Transactions
from opencqrs_py.processing.staging import FrameRows, Stage

if TYPE_CHECKING:
    from opencqrs_py.adapters.sql.database import Database

_UNIT = "opencqrs_unit"  # in the ``info`` of a connection: the unit that it serves
_LEAVE_OUT = "remove commit() and rollback(); for a part that may fail, use connection.begin_nested()"

_T = TypeVar("_T")
_OF_DRIVER = ("commit", "rollback", "close")


def refuse(reason: str = _LEAVE_OUT, *_: Any, **__: Any) -> NoReturn:
    """Refuse what would end the transaction: always raises ``TransactionEndedError``."""
    raise TransactionEndedError(f"a handler must not end the transaction that it shares with the progress: {reason}")


_REFUSED = dict.fromkeys(("commit", "rollback", "close", "detach"), refuse)  # methods of a connection
_REPLACED = (*_REFUSED, "invalidate", "_invalid_transaction")


def _invalidate(connection: Connection, exception: BaseException | None = None) -> None:
    """Have SQLAlchemy drop a connection that was cut, and refuse it to handlers."""
    if exception is None:
        refuse("remove invalidate()")
    Connection.invalidate(connection, exception)


def ended(connection: Connection, error: Exception, statement: str) -> Exception:
    """Return the meaning of an error when a savepoint is released: an outage, or the end of its transaction."""
    if is_outage(error):
        return as_sqlalchemy(connection.dialect, error, statement, connection.connection.dbapi_connection)
    found = TransactionEndedError(
        "a handler ended the transaction that it shares with the progress: what it wrote may be stored, the progress "
        f"has not moved; {_LEAVE_OUT}, and do not send COMMIT, ROLLBACK, BEGIN or OR ROLLBACK as SQL"
    )
    found.may_be_kept = True
    return found


def _hold_nothing() -> None:
    """Send nothing, as no session was requested."""


@dataclass(eq=False)
class Unit:
    """A transaction that handlers write in; it is guarded if it must stay one.

    Calls that would end it are refused where the driver allows it. Elsewhere the savepoint reveals the end. ``flush``
    sends a session's changes, if there is one, and is refused after a rollback. ``frame_rows`` fetches the rows of data
    frames, and ``stages`` are those of this transaction, to be dropped after it. ``end`` is where the progress moves,
    if ``conclude`` has changed it. ``lost`` means that the server has rolled back on its own, and that another
    transaction has begun, which is never committed.
    """

    connection: Connection
    database: Database
    dialect: Dialect
    guarded: bool
    erred: bool = field(default=False, init=False)
    lost: bool = field(default=False, init=False)
    frame_rows: FrameRows | None = field(default=None, init=False)
    stages: list[Stage] = field(default_factory=list, init=False)
    looked_for_leftovers: bool = field(default=False, init=False)
    flush: Callable[[], None] = field(default=staticmethod(_hold_nothing), init=False)
    end: tuple[int, str, InboxChange | None] | None = field(default=None, init=False)
    _savepoint: str = field(default="", init=False)
    _has_part: bool = field(default=False, init=False)
    _session: _HandlerSession | None = field(default=None, init=False)
    _rolled_back: bool = field(default=False, init=False)
    _flush_failed: bool = field(default=False, init=False)
    _closed: bool = field(default=False, init=False)
    _pipeline: Pipeline | None = field(default=None, init=False)
    _session_ended: bool = field(default=False, init=False)
    _left: str = field(default="", init=False)  # what a rollback has left in place, as the dialect describes it

    def end_session(self) -> bool:
        """End the session of the transaction, from another thread, and take its connection out of the pool.

        Whatever the stuck thread does with the connection later fails. Nothing is left to end if it has returned,
        or has lost its connection, as during an outage.
        """
        if self._session_ended or self.connection.closed or self.connection.invalidated:
            return True
        pooled = self.connection.connection
        number = self.dialect.session_of(pooled.dbapi_connection)
        if number is None:
            return False
        with self.database.reading(apart=True) as connection:
            self.dialect.end_session(connection, number)
        self._session_ended = True
        self.database.abandon(self.connection)
        with suppress(Exception):  # of a thread that has returned in the meantime
            pooled.detach()
        return True

    @property
    def session(self) -> Session:
        """The session of the handlers, on the same connection."""
        if self._session is None:
            self._session = _HandlerSession(self.connection)
            self._session.unit = self
            if not self._rolled_back:
                self.flush = partial(_HandlerSession.flush, self._session)  # whatever a handler sets on the object
        return self._session

    def pipelined(self) -> Pipeline | None:
        """Send the driver's statements without waiting for each answer; the caller settles it before the end."""
        self._pipeline = self.dialect.pipelined(self.connection) if self.guarded else None
        return self._pipeline

    def ended_early(self, error: BaseException) -> TransactionEndedError | None:
        """Return the error to report if the transaction has ended, ``None`` if it is open or there is an outage.

        It has also ended if the database cannot undo what was written. Rolls back to the savepoint, so nothing of the
        unit can be kept after that.
        """
        if not self.guarded or isinstance(error, TransactionEndedError):
            return None
        if not self._closed and (self.lost or is_outage(error)):
            return None
        if self._flush_failed and not self._rolled_back:  # SQLAlchemy has rolled back, and the error was not caught
            return None
        if not self._rolled_back and not self._closed and self._rolled_back_to_savepoint():
            if not self._left:
                return None
            found = TransactionEndedError(f"the handler raised {one_line(error)}, and {self._left}")
        else:
            what = f"the handler ended the transaction that it shares with the progress: {_LEAVE_OUT}"
            found = TransactionEndedError(f"{what}; then it raised {one_line(error)}")
        found.may_be_kept = not self._rolled_back
        return found

    def saved(self) -> Callable[[], bool] | None:
        """Set a savepoint, see ``SavingUnit``. It ends with the unit's savepoint."""
        if not self.guarded or self._pipeline is not None or not self._may_be_undone():
            return None
        name = f"{self._savepoint}_part"
        if self._has_part and not self._sent(f"RELEASE SAVEPOINT {name}"):  # else they would be nested
            return None
        self._has_part = self._sent(f"SAVEPOINT {name}")
        return partial(self._undone_to, name) if self._has_part else None

    def conclude(self, to: int, fingerprint: str, change: InboxChange | None) -> None:
        """Have the progress move elsewhere, see ``SavingUnit``."""
        self.end = (to, fingerprint, change)

    def _may_be_undone(self) -> bool:
        untouched = self._session is None and not self.stages and self.frame_rows is None
        return untouched and not (self._rolled_back or self._closed or self._flush_failed)

    def _undone_to(self, savepoint: str) -> bool:
        if not self._may_be_undone() or self.connection.in_nested_transaction():
            return False
        return self._sent(f"ROLLBACK TO SAVEPOINT {savepoint}") and not self._left

    def _sent(self, statement: str) -> bool:
        try:
            self._send(statement)
        except Exception:  # whatever the driver raises for a transaction that has failed or ended, or for a connection
            return False
        return True

    def begin(self, lock: Statement, later: Sequence[Statement], values: Values) -> bool:
        """Set the savepoint and lock the row of a partition, at the beginning of the transaction.

        ``lock`` finds and locks the row; ``later`` are the statements that may come last in the transaction, so that
        they can be prepared. Raises the driver's own errors.

        Returns:
            Whether the row was found.
        """
        self._savepoint = f"opencqrs_{secrets.token_hex(8)}"  # which no handler can guess
        if self.dialect.sends_at_once:
            found = self.dialect.begin_at_once(self.connection, self._savepoint, lock, later, values)
            if found is not None:
                return found
        driver: Any = self.connection.connection.dbapi_connection
        cursor = driver.cursor()
        cursor.execute(f"SAVEPOINT {self._savepoint}")
        cursor.execute(lock.text_of(self.dialect.mark), values)
        return cursor.fetchone() is not None if cursor.description else int(cursor.rowcount) == 1

    def complete(self, move: Statement, values: Values) -> bool:
        """Release the savepoint and send the last statement; on PostgreSQL the commit goes with them.

        Returns:
            Whether the statement found its row; if not, nothing is committed.

        Raises:
            TransactionEndedError: If the transaction was ended before.
            DBAPIError: As SQLAlchemy raises it.
            Exception: The driver's own.
        """
        if self.dialect.sends_at_once:
            found = self.dialect.commit_at_once(self.connection, self._savepoint, move, values)
            if found is not None:
                return found
        cursor = self.release_savepoint()
        cursor.execute(move.text_of(self.dialect.mark), values)
        return int(cursor.rowcount) == 1

    def require_open(self) -> None:
        """Check that the transaction is the one in which the savepoint was set, and set another one.

        What is sent after that is committed with the progress or not at all, whatever handlers have done before.

        Raises:
            TransactionEndedError: If it was ended.
            DBAPIError: As SQLAlchemy raises it, if the database is unavailable.
        """
        self.release_savepoint().close()
        self.set_savepoint()

    def set_savepoint(self) -> None:
        """Set the savepoint of a guarded unit."""
        self._savepoint = f"opencqrs_{secrets.token_hex(8)}"  # which no handler can guess
        send(self.connection, f"SAVEPOINT {self._savepoint}").close()

    def release_savepoint(self) -> Any:
        """Release the savepoint of a guarded unit; return the driver's cursor.

        Raises:
            TransactionEndedError: If it is gone, and with it the transaction in which it was set.
            DBAPIError: As SQLAlchemy raises it, if the database is unavailable.
        """
        statement = f"RELEASE SAVEPOINT {self._savepoint}"
        try:
            driver: Any = self.connection.connection.dbapi_connection
            cursor = driver.cursor()
            cursor.execute(statement)
        except ConnectionLostError:
            raise
        except Exception as error:
            raise ended(self.connection, error, statement) from error
        return cursor

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Refuse what ends the transaction, as far as the driver allows; check at the end that it can be committed."""
        refusing, info = vars(self.connection), self.connection.info
        refusing.update(_REFUSED)
        refusing.update(invalidate=partial(_invalidate, self.connection), _invalid_transaction=self._report_cut)
        info[_UNIT] = self
        driver: Any = self.connection.connection.dbapi_connection
        names = self.dialect.row_settings
        rows_as = tuple(map(getattr, repeat(driver), names, repeat(None)))
        with ExitStack() as undone:
            if self.dialect.replaceable_methods:
                self._watch_driver(driver, undone)
            try:
                yield
                self._finish()
            except BaseException:
                _undo_changes_of_kept_objects()  # else the next transaction of the thread would be blamed for them
                raise
            finally:
                if self._pipeline is not None:
                    self._pipeline.close()
                if (session := self._session) is not None:
                    session.unit, session.is_over = None, True
                    if len(session.identity_map) or session.new or session.deleted:
                        _HandlerSession.leave_objects(session)
                info.pop(_UNIT, None)
                for name in _REPLACED:
                    refusing.pop(name, None)
                # A handler's settings must not apply to our statements, nor to the next handler.
                for name, value in zip(names, rows_as, strict=True):
                    if getattr(driver, name, None) is not value:
                        setattr(driver, name, value)

    def _finish(self) -> None:
        """Send the session's pending changes, and check that what was written can still be committed."""
        if self._flush_failed:
            msg = "a flush failed and its error was caught: run what may fail within session.begin_nested()"
            raise OpenCqrsError(msg)
        self.flush()
        if _ended.sessions and _undo_changes_of_kept_objects():  # there are seldom any, and each call has a cost
            _refuse_late()
        if self._rolled_back or self._closed or not self.connection.in_transaction():
            refuse()
        if self.connection.invalidated:
            raise lost_before(self.database.label)
        loses = self.dialect.loses_transactions
        if self.lost or (loses and self.dialect.has_failed(self.connection, erred=self.erred)):
            msg = "a statement failed and its error was caught: run such statements within connection.begin_nested()"
            raise OpenCqrsError(msg)
        if self.database.shadow_guard is not None:
            self.database.shadow_guard.check(self.connection, of_handler=self.guarded)
        if not self.guarded and self.dialect.in_transaction(self.connection.connection.dbapi_connection) is False:
            refuse()

    def _report_cut(self) -> NoReturn:
        """Raise the error of a statement on a connection that was cut before; SQLAlchemy's would blame the caller.

        SQLAlchemy also requests it for a transaction that a handler has ended: there its own error is right. This does
        not concern a handler's own connection: if that stays cut, the event eventually fails.
        """
        if self._closed or not self.connection.invalidated:
            Connection._invalid_transaction(self.connection)  # noqa: SLF001 which this stands for
        raise ConnectionLostError

    def note_rollback(self) -> None:
        """Note that the transaction was rolled back: by SQLAlchemy, when a flush fails, or by a handler."""
        if self._session is not None and self._session.is_flushing:
            self._flush_failed = True
        else:
            self._rolled_back, self.flush = True, refuse

    def _rolled_back_to_savepoint(self) -> bool:
        """Roll back to the savepoint; return whether it existed. For an unavailable database this is assumed."""
        try:
            self._send(f"ROLLBACK TO SAVEPOINT {self._savepoint}")
        except Exception as error:  # whatever the driver raises for a missing savepoint
            return is_outage(error)
        return True

    def _send(self, statement: str) -> None:
        """Send a statement about a savepoint; note what a rollback has left in place."""
        cursor = send(self.connection, statement)
        self._left = self._left or self.dialect.left_in_place(cursor)
        cursor.close()

    def _watch_driver(self, driver: Any, undone: ExitStack) -> None:
        roll_back, close = driver.rollback, driver.close

        def rollback() -> None:  # also SQLAlchemy's, for example when a session cannot be flushed
            self.note_rollback()
            roll_back()

        def note_close() -> None:  # also SQLAlchemy's, for a connection that was cut
            self._closed = not sys._getframe(1).f_globals.get("__name__", "").startswith("sqlalchemy.")  # noqa: SLF001
            close()

        driver.commit, driver.rollback, driver.close = refuse, rollback, note_close
        for name in _OF_DRIVER:
            undone.callback(delattr, driver, name)
        self.dialect.watch_statements(self, driver, undone)


def unit_of(connection: Connection) -> Unit | None:
    """Return the unit of work that a connection serves, ``None`` for the user's own connection."""
    unit: Unit | None = connection.info.get(_UNIT)
    return unit


class _HandlerSession(Session):
    """A session on the connection of a unit: what ends the transaction, or empties the session, is refused.

    Its ``commit()`` ends nothing here: it sends the session's changes. Once its transaction is over it accepts nothing
    more, because nothing would send that.
    """

    is_flushing = False
    is_over = False
    unit: Unit | None = None

    def leave_objects(self) -> None:
        """Keep objects readable that a handler stores beyond the transaction; changes to them are detected."""
        if self.dirty or self.new or self.deleted:  # of an event that has failed
            self.expire_all()
            for one in (*self.new, *self.deleted):
                self.expunge(one)
        if len(self.identity_map):  # a handler still holds objects of it
            _ended.sessions = [*_ended.sessions, self]

    @override
    def get_bind(self, *args: Any, **kwargs: Any) -> Any:
        """Return the connection; refused once the transaction is over."""
        if self.is_over:
            _refuse_late()
        return super().get_bind(*args, **kwargs)

    @override
    def delete(self, instance: object) -> None:
        """Delete an object; refused once the transaction is over."""
        if self.is_over:
            _refuse_late()
        super().delete(instance)

    @override
    def merge(self, instance: _T, **options: Any) -> _T:
        """Merge an object; one that was kept of an earlier transaction is detached, since this one writes it."""
        merged = super().merge(instance, **options)
        kept = object_session(instance)
        if isinstance(kept, _HandlerSession) and kept.is_over:
            kept.expunge(instance)
        return merged

    def flush(self, objects: Sequence[Any] | None = None) -> None:
        """Send pending changes; SQLAlchemy rolls the transaction back if that fails."""
        self.is_flushing = True
        try:
            super().flush(objects)
        finally:
            self.is_flushing = False

    @override
    def begin_nested(self) -> SessionTransaction:
        """Set a savepoint at once: the session would set it at its next use, and the connection may write before."""
        nested = super().begin_nested()
        self.connection()
        return nested

    def rollback(self) -> NoReturn:
        """Refused."""
        refuse()

    def close(self) -> NoReturn:
        """Refused: it would drop what was added."""
        refuse("remove close() and 'with session:'; it is closed after the transaction")

    def reset(self) -> NoReturn:
        """Refused."""
        self.close()

    def invalidate(self) -> NoReturn:
        """Refused."""
        refuse("remove invalidate()")

    def expunge_all(self) -> NoReturn:
        """Refused."""
        refuse("remove expunge_all(): it drops what was added")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()


@event.listens_for(_HandlerSession, "after_soft_rollback")
def _on_session_rollback(session: Any, transaction: SessionTransaction) -> None:
    """Notice that a session was emptied, even if it has sent nothing yet; a savepoint may be rolled back."""
    if session.unit is not None and transaction.parent is None:
        session.unit.note_rollback()


@event.listens_for(_HandlerSession, "before_attach")
def _on_attach(session: Any, _instance: object) -> None:
    if session.is_over:
        _refuse_late()


class _EndedSessions(threading.local):
    """The sessions of earlier transactions of a thread whose objects are still held."""

    sessions: Sequence[_HandlerSession] = ()


_ended = _EndedSessions()


def _refuse_late() -> NoReturn:
    """Refuse the use of a session, or objects of it, whose transaction is over: nothing would send the changes."""
    msg = (
        "a session, or an object of it, was kept and used after its transaction: what is changed there is never "
        "written; take the session as an argument in each handler, and read objects from it"
    )
    raise NonTransientError(msg)


def _undo_changes_of_kept_objects() -> bool:
    """Expire changed objects of earlier transactions; return whether there were any."""
    _ended.sessions = [one for one in _ended.sessions if len(one.identity_map)]
    changed = [one for one in _ended.sessions if one.identity_map.check_modified()]  # quicker than one.dirty
    for one in changed:
        one.expire_all()  # they are then unchanged, so that the next change is detected
    return bool(changed)


class DatabaseTransactions(Transactions):
    """Opens the transactions that handlers write in."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @override
    @contextmanager
    def begin(self, *, guarded: bool = True) -> Iterator[Unit]:
        """Open a transaction; one that is not guarded, as for DDL, begins when others like it end.

        Raises:
            TransactionEndedError: If the block ended a guarded transaction, or tried to.
            OpenCqrsError: If a statement failed in the block, and with it the transaction, and its error was caught.
        """
        watch_ends(self._database)
        start_lock = nullcontext() if guarded else self._database.dialect.start_lock(self._database)
        with start_lock, self._database.writing(of_handlers=True) as connection:
            unit = Unit(connection, self._database, self._database.dialect, guarded)
            if guarded:
                unit.set_savepoint()
            with unit.kept_open():
                yield unit
            if guarded:
                unit.release_savepoint().close()

    @override
    def is_outage(self, error: BaseException) -> bool:
        return is_outage(error)


def watch_ends(database: Database) -> None:
    """Observe SQLAlchemy's own commits and rollbacks where the driver's methods cannot be replaced."""
    if not database.dialect.replaceable_methods and not event.contains(database.engine, "commit", _on_commit):
        event.listen(database.engine, "commit", _on_commit)
        event.listen(database.engine, "rollback", _on_rollback)


def _on_commit(connection: Connection) -> None:
    if connection.info.get(_UNIT) is not None:
        refuse()


def _on_rollback(connection: Connection) -> None:
    if connection.invalidated:  # then it has no driver connection that could show it
        return
    if (unit := unit_of(connection)) is not None:
        unit.note_rollback()

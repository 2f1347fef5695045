"""Transactions on the read models' database, and what handlers are called in where there is none."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NoReturn, Protocol

from typing_extensions import override

from opencqrs_py.errors import NonTransientError, TransactionEndedError
from opencqrs_py.model.inbox import InboxChange
from opencqrs_py.processing.pipelining import Pipeline


class UnitOfWork(Protocol):
    """One transaction in which handlers write."""

    @property
    def connection(self) -> Any:
        """The database connection of the transaction."""
        ...

    @property
    def session(self) -> Any:
        """An object-relational session bound to ``connection``."""
        ...

    def flush(self) -> None:
        """Send what the session holds, if it was asked for, so that nothing of an event waits for the next one."""
        ...

    def end_session(self) -> bool:
        """End the transaction and its session with the database, from another thread than the one that is stuck in it.

        Returns:
            Whether that is done; not every database can.
        """
        return False

    def pipelined(self) -> Pipeline | None:
        """Send the driver's statements of the transaction without waiting for each answer, until that is settled.

        Returns:
            What settles it; ``None`` where each statement waits for its answer.
        """
        return None

    def ended_early(self, error: BaseException) -> TransactionEndedError | None:
        """Return the error to report if the transaction was ended before its time, ``None`` if it is open.

        Asked after a handler raised ``error``; what the transaction holds is lost with the answer.
        """
        ...


class Transactions(Protocol):
    """Opens transactions on the read models' database."""

    def begin(self, *, guarded: bool = True) -> AbstractContextManager[UnitOfWork]:
        """Open a transaction: committed at the end of the block, rolled back when the block raises.

        ``guarded``: it is an error if the block ends the transaction by itself. Definitions of tables end it on some
        databases, so they run in one that is not.

        Raises:
            TransactionEndedError: On leaving, if the block ended a guarded transaction.
        """
        ...

    def is_outage(self, error: BaseException) -> bool:
        """Return whether ``error`` means the database is temporarily unavailable."""
        ...


class SavingUnit(UnitOfWork, Protocol):
    """A unit of work of which the last part can be undone by itself, and which may end earlier than it was to."""

    def saved(self) -> Callable[[], bool] | None:
        """Set a savepoint, and return what undoes all that follows it.

        That returns whether it has: not if the transaction has ended, or something is left that it does not undo, such
        as what a session holds. ``None`` if this is clear from the start.
        """
        ...

    def conclude(self, to: int, fingerprint: str, change: InboxChange | None) -> None:
        """Have the progress move to a position, and the inbox change, at the end: instead of what was said before."""
        ...


class NoUnit(UnitOfWork):
    """What handlers are called in where there is no transaction.

    Args:
        refusal: The message of the error for a handler that uses a connection or session all the same.
    """

    __slots__ = ("_refusal",)

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal

    @property
    @override
    def connection(self) -> NoReturn:
        raise NonTransientError(self._refusal)

    @property
    @override
    def session(self) -> NoReturn:
        raise NonTransientError(self._refusal)

    @override
    def flush(self) -> None:
        pass

    @override
    def end_session(self) -> bool:
        return True  # there is none that could hold anything

    @override
    def ended_early(self, error: BaseException) -> None:
        return None

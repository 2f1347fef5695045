"""Transactions on the read models' database, and the unit of work where there is none."""

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
        """Flush the session, if one was requested, so that no change of an event waits for the next event."""
        ...

    def end_session(self) -> bool:
        """End the transaction and its database session, from a different thread than the one that is stuck in it.

        Returns:
            Whether it was ended; not every database supports it.
        """
        return False

    def pipelined(self) -> Pipeline | None:
        """Send the driver's statements of the transaction without waiting for each answer, until the result is settled.

        Returns:
            The pipeline to settle; ``None`` where each statement waits for its answer.
        """
        return None

    def ended_early(self, error: BaseException) -> TransactionEndedError | None:
        """Return the error to report if the transaction was ended early, ``None`` if it is open.

        Called after a handler raised ``error``. The changes of the transaction are lost afterwards.
        """
        ...


class Transactions(Protocol):
    """Opens transactions on the read models' database."""

    def begin(self, *, guarded: bool = True) -> AbstractContextManager[UnitOfWork]:
        """Open a transaction: committed at the end of the block, rolled back if the block raises.

        ``guarded``: it is an error if the block itself ends the transaction. On some databases DDL statements end it,
        so they run in one that is not guarded.

        Raises:
            TransactionEndedError: On leaving, if the block ended a guarded transaction.
        """
        ...

    def is_outage(self, error: BaseException) -> bool:
        """Return whether ``error`` means the database is temporarily unavailable."""
        ...


class SavingUnit(UnitOfWork, Protocol):
    """A unit of work whose last part can be undone alone, and which may end at an earlier position."""

    def saved(self) -> Callable[[], bool] | None:
        """Set a savepoint, and return a function that undoes everything after it.

        The function returns whether it succeeded: not if the transaction has ended, or something cannot be undone, such
        as changes in a session. ``None`` if that is known from the start.
        """
        ...

    def conclude(self, to: int, fingerprint: str, change: InboxChange | None) -> None:
        """Replace the position to which the progress moves at the end, and the change of the inbox."""
        ...


class NoUnit(UnitOfWork):
    """The unit of work for handlers where there is no transaction.

    Args:
        refusal: The message for a handler that uses a connection or session anyway.
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
        return True  # there is no session

    @override
    def ended_early(self, error: BaseException) -> None:
        return None

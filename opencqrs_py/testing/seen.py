"""What was seen of a group in a test: notices, calls of handlers, and the errors as they were raised."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from opencqrs_py.adapters.memory import InMemoryProgressTracker
from opencqrs_py.model.handler import AroundMark, Interceptor, Invocation, Surrounded
from opencqrs_py.model.outcome import Failure
from opencqrs_py.model.progress import Cursor
from opencqrs_py.processing.dispatch import ChunkFailedError
from opencqrs_py.processing.exceptions import message_of, type_name
from opencqrs_py.processing.notices import Notice, Observer
from opencqrs_py.processing.ports import ReplayEnd, Transactions, UnitOfWork
from opencqrs_py.processing.recovery import Action

_T = TypeVar("_T")
_ENDS = (Action.STOP, Action.HOLD, Action.CLAIM)  # after which the partition may have failed


class Seen(Observer):
    """Notes what happens to a partition."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.called: set[int] = set()  # positions of the events that a handler was called for
        self.raised: list[BaseException] = []  # in the current step
        self.error: BaseException | None = None  # what the last failed attempt raised, if that was seen
        self._end: tuple[Failure, BaseException | None] | None = None  # with which the partition failed last

    def begin(self) -> int:
        """Begin a step: what was raised before does not belong to it; return the number of notices so far."""
        self.raised.clear()
        return len(self.notices)

    def noticed(self, notice: Notice) -> None:
        """Record a notice, with what was raised."""
        self.notices.append(notice)
        if notice.failure is None or notice.action is None:  # a call after the commit, or a recovery
            return
        self.error = self.error_of(notice.failure)
        if notice.action in _ENDS and not notice.releases:
            self._end = notice.failure, self.error

    def error_of(self, failure: Failure) -> BaseException | None:
        """Return what was raised in the current step, for a failure; ``None`` if it was not seen."""
        of_class = [error for error in self.raised if type_name(error) == failure.error]
        same = [error for error in of_class if message_of(error) == failure.message]
        return next(reversed(same or of_class), None)

    def has_failed_with(self, wanted: type[BaseException]) -> bool:
        """Return whether the partition last failed with an error of a class; by its name if the error was not seen."""
        if self._end is None:
            return False
        failure, error = self._end
        return _has_name(wanted, failure.error) if error is None else isinstance(error, wanted)

    @property
    def end(self) -> str:
        """The class of the error with which the partition last failed."""
        return self._end[0].error if self._end is not None else ""

    @property
    def interceptor(self) -> Interceptor:
        """Notes the calls of handlers."""
        return Interceptor(AroundMark(Surrounded.HANDLER), self._note, "HandlerTest")

    @property
    def failures(self) -> list[Notice]:
        """The notices of something that went wrong."""
        return [notice for notice in self.notices if notice.failure is not None]

    @property
    def waits(self) -> list[float]:
        """The waits in seconds before events were tried again."""
        return [notice.wait for notice in self.notices if notice.action is Action.RETRY]

    @property
    def skipped(self) -> list[int]:
        """Positions of the skipped events."""
        skips = (notice for notice in self.notices if notice.action is Action.SKIP)
        return [notice.failure.position for notice in skips if notice.failure and notice.failure.position is not None]

    def attempts(self, position: int, handled: int, waiting: Collection[int] = ()) -> int:
        """Return how often the event at a position was tried; 0 when no handler was called for it.

        Args:
            position: Its position.
            handled: Position up to which the group has handled events, which participants may not have confirmed.
            waiting: Positions of the events that wait in the inbox.
        """
        failed = [n for n in self.failures if n.attempt and n.failure and n.failure.position == position]
        done = position <= handled and position not in self.skipped and position not in waiting
        was_called = position in self.called  # perhaps together with others that failed, so that none of it was kept
        return max(len(failed) + (was_called and done), was_called)

    def _note(self, invocation: Invocation) -> Iterator[None]:
        self.called.update(event.position for event in invocation.events)
        try:
            yield
        except BaseException as error:
            self.raised.append(error)
            raise


class RecordingTracker(InMemoryProgressTracker):
    """Progress in memory.

    Args:
        transactions: Opens the transactions that handlers write in.
        raised: Gets what was raised in each transaction that fails.
    """

    def __init__(self, transactions: Transactions, raised: Callable[[BaseException], None]) -> None:
        super().__init__(transactions)
        self._raised = raised

    def unit(self, group: str, cursor: Cursor, to: int, **rest: Any) -> AbstractContextManager[UnitOfWork]:
        """Open a transaction, and report why it failed."""
        return self._recorded(super().unit(group, cursor, to, **rest))

    @contextmanager
    def ending_replay(self, group: str, cursor: Cursor, *, after_inbox: bool = False) -> Iterator[ReplayEnd | None]:
        """Open the transaction in which a replay ends, and report why it failed."""
        with self._recorded(super().ending_replay(group, cursor, after_inbox=after_inbox)) as ending:
            yield ending

    @contextmanager
    def _recorded(self, transaction: AbstractContextManager[_T]) -> Iterator[_T]:
        try:
            with transaction as opened:
                yield opened
        except ChunkFailedError as failure:
            self._raised(failure.error)
            raise
        except BaseException as error:
            self._raised(error)
            raise


def _has_name(wanted: type[BaseException], name: str) -> bool:
    """Return whether a class of errors, or one derived from it, has a name."""
    return wanted.__name__ == name or any(_has_name(each, name) for each in type.__subclasses__(wanted))

"""What was seen of a group in a test: notices, calls of handlers, and the errors as they were raised."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from opencqrs_py.adapters.memory import InMemoryProgressTracker
from opencqrs_py.model.handler import AroundMark, Interceptor, Invocation, Surrounded
from opencqrs_py.model.progress import Cursor
from opencqrs_py.processing.dispatch import ChunkFailedError
from opencqrs_py.processing.notices import Notice, Observer
from opencqrs_py.processing.ports import UnitOfWork
from opencqrs_py.processing.recovery import Action


class Seen(Observer):
    """Notes what happens to a partition."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.called: set[int] = set()  # positions of the events that a handler was called for
        self.error: BaseException | None = None  # what a handler has raised last

    def noticed(self, notice: Notice) -> None:
        """Note it."""
        self.notices.append(notice)

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

    def attempts(self, position: int, progress: int, waiting: Collection[int] = ()) -> int:
        """Return how often the event at a position was tried; 0 when no handler was called for it.

        Args:
            position: Its position.
            progress: How far the group is.
            waiting: Positions of the events that wait in the inbox.
        """
        failed = [n for n in self.failures if n.attempt and n.failure and n.failure.position == position]
        done = position <= progress and position not in self.skipped and position not in waiting
        succeeded = position in self.called and done
        return len(failed) + succeeded

    def _note(self, invocation: Invocation) -> Iterator[None]:
        self.called.update(event.position for event in invocation.events)
        try:
            yield
        except BaseException as error:
            self.error = error
            raise


class RecordingTracker(InMemoryProgressTracker):
    """Progress in memory; keeps what was raised in the last transaction that failed."""

    error: BaseException | None = None

    def unit(self, group: str, cursor: Cursor, to: int, **rest: Any) -> AbstractContextManager[UnitOfWork]:
        """Open a transaction, and remember why it failed."""
        return self._recorded(super().unit(group, cursor, to, **rest))

    @contextmanager
    def _recorded(self, unit: AbstractContextManager[UnitOfWork]) -> Iterator[UnitOfWork]:
        try:
            with unit as opened:
                yield opened
        except ChunkFailedError as failure:
            self.error = failure.error
            raise
        except BaseException as error:
            self.error = error
            raise

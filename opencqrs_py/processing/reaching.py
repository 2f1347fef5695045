"""Reaching: the stored progress of a whole group, for callers that wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Event as Signal
from typing import Protocol, runtime_checkable

from typing_extensions import override

from opencqrs_py.model.partition import are_all
from opencqrs_py.processing.ports import ProgressTracker, Watch, statuses_of

_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.005, 0.1  # seconds between two polls of a tracker without notifications


@runtime_checkable
class WatchableTracker(ProgressTracker, Protocol):
    """A tracker that quickly shows that the progress of a group has moved."""

    def reached(self, group: str) -> int:
        """Return how many positions, counted from 0, every partition of a group has stored.

        That is the position of its slowest partition, plus 1; 0 if no process has ever run the group, or if what is
        stored lacks a partition, for example because its row was deleted.
        """
        ...

    def watched(self, group: str) -> AbstractContextManager[Watch]:
        """Open a watch whose head is what ``reached`` returns."""
        ...


def reached(tracker: ProgressTracker, group: str) -> int:
    """Return what ``WatchableTracker.reached`` does, of any tracker."""
    if isinstance(tracker, WatchableTracker):
        return tracker.reached(group)
    found = {status.partition: status.position + 1 for status in statuses_of(tracker, group)}
    return min(found.values()) if are_all(found) else 0


class WatchedGroup:
    """The stored progress of a group, which can be watched like an event source.

    Args:
        tracker: Tracker that stores it.
        group: Processing group.
    """

    def __init__(self, tracker: ProgressTracker, group: str) -> None:
        self._tracker = tracker
        self._group = group

    def head(self) -> int:
        """Return how many positions are stored."""
        return reached(self._tracker, self._group)

    def watched(self) -> AbstractContextManager[Watch]:
        """Open a watch, by the quickest means of the tracker."""
        if isinstance(self._tracker, WatchableTracker):
            return self._tracker.watched(self._group)
        return _looking(self)

    def is_outage(self, error: BaseException) -> bool:
        """Return whether ``error`` means that the tracker's database is temporarily unavailable."""
        return self._tracker.is_outage(error)


@contextmanager
def _looking(group: WatchedGroup) -> Iterator[Watch]:
    yield _Looks(group)


class _Looks(Watch):
    """Polls a tracker, with growing pauses."""

    def __init__(self, group: WatchedGroup) -> None:
        self._group = group
        self._pause = _SHORTEST_PAUSE
        self._woken = Signal()

    @override
    def wait(self, after: int, seconds: float) -> int:
        while (head := self._group.head()) <= after and seconds > 0:
            pause = min(self._pause, seconds)
            seconds -= pause
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
            if self._woken.wait(pause):
                self._woken.clear()
                break
        return head

    @override
    def wake(self) -> None:
        self._woken.set()

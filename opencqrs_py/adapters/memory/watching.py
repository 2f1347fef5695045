"""Watching an event store or progress in memory."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition

from typing_extensions import override

from opencqrs_py.processing.ports import Watch


class ConditionWatch(Watch):
    """Waits to be notified.

    Args:
        head: Returns the head.
        changed: Notified when it has moved.
    """

    def __init__(self, head: Callable[[], int], changed: Condition) -> None:
        self._head = head
        self._changed = changed
        self._woken = False

    @override
    def wait(self, after: int, seconds: float) -> int:
        with self._changed:
            self._changed.wait_for(lambda: self._head() > after or self._woken, seconds)
            self._woken = False
        return self._head()

    @override
    def wake(self) -> None:
        with self._changed:
            self._woken = True
            self._changed.notify_all()

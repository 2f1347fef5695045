"""Looking out for new events in files."""

from __future__ import annotations

import time
from collections.abc import Callable

from opencqrs_py.processing.ports import Clock

__all__ = ["FileWatch"]

_SOONEST = 0.02  # seconds between two looks, right after something has come
_LATEST = 0.25  # and after nothing has come for a while: how late a new event can be seen
_GROWTH = 1.5


class FileWatch:
    """Looks at the files again and again: 20 ms after something came, and then ever more seldom, down to every 250 ms.

    A look at a folder that has not changed takes two calls of the operating system.

    Args:
        head: Looks.
        clock: Time.
        pause: Sleeps for that many seconds.
    """

    def __init__(self, head: Callable[[], int], clock: Clock, pause: Callable[[float], object] = time.sleep) -> None:
        self._head = head
        self._clock = clock
        self._sleep = pause
        self._pause = _SOONEST

    def wait(self, after: int, seconds: float) -> int:
        """Return the head as soon as it is beyond ``after``, or, unchanged, when ``seconds`` are over."""
        until = self._clock.monotonic() + seconds
        while (head := self._head()) <= after:
            left = until - self._clock.monotonic()
            if left <= 0:
                return head
            self._sleep(min(self._pause, left))
            self._pause = min(self._pause * _GROWTH, _LATEST)
        self._pause = _SOONEST
        return head

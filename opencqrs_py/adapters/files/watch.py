"""Looking out for new events in files."""

from __future__ import annotations

import time
from collections.abc import Callable

from opencqrs_py.processing.ports import Clock

__all__ = ["FileWatch"]

_SOONEST = 0.01  # seconds between two looks, right after something has come
_LATEST = 0.04  # and after nothing has come for a while: how late a new event can be seen
_GROWTH = 1.5
_REST = 4  # times as long as a look takes, so that a large folder does not keep a core busy
_LONGEST_REST = 1.0


class FileWatch:
    """Looks at the files again and again: 10 ms after something came, and then more seldom, down to every 40 ms.

    A look at a folder that has not changed takes two calls of the operating system. Where it takes long, in a folder of
    thousands of files that has just changed, looks are as far apart as they would take a fifth of the time.

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
        begun = self._clock.monotonic()
        while (head := self._head()) <= after:
            ended = self._clock.monotonic()
            if until <= ended:
                return head
            rest = min((ended - begun) * _REST, _LONGEST_REST)
            self._sleep(min(max(self._pause, rest), until - ended))
            self._pause = min(self._pause * _GROWTH, _LATEST)
            begun = self._clock.monotonic()
        self._pause = _SOONEST
        return head

"""How many partitions of a group may step at once, where that is limited."""

from __future__ import annotations

from collections import deque
from threading import Condition
from threading import Event as Signal


class AtOnce:
    """Lets a number of partitions of a group step at once; the others wait, and those that wait longest come first.

    Args:
        most: How many, at least 1.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._stepping = set[object]()
        self._waiting = deque[object]()
        self._changed = Condition()

    def begin(self, partition: object, stopping: Signal) -> bool:
        """Wait until a partition may step; return ``False`` if it is to stop instead."""
        with self._changed:
            self._waiting.append(partition)
            try:
                self._changed.wait_for(lambda: stopping.is_set() or self._is_next(partition))
            finally:
                self._waiting.remove(partition)
            if stopping.is_set():
                self._changed.notify_all()
                return False
            self._stepping.add(partition)
            self._changed.notify_all()  # there may be room for the next one, too
            return True

    def end(self, partition: object) -> None:
        """Let another one step; harmless if that was done already, as for a thread that hangs."""
        with self._changed:
            self._stepping.discard(partition)
            self._changed.notify_all()

    def wake(self) -> None:
        """Have those who wait check whether they are to stop."""
        with self._changed:
            self._changed.notify_all()

    def _is_next(self, partition: object) -> bool:
        return len(self._stepping) < self._most and self._waiting[0] is partition

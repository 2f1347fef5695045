"""A limit on the partitions of a group that step at the same time."""

from __future__ import annotations

from collections import deque
from threading import Condition
from threading import Event as Signal


class AtOnce:
    """Lets a number of partitions of a group step at the same time; the others wait in the order of their arrival.

    Args:
        most: Number of partitions, at least 1.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._stepping = set[object]()
        self._waiting = deque[object]()
        self._changed = Condition()

    def begin(self, partition: object, stopping: Signal) -> bool:
        """Wait until a partition may step; return ``False`` if it should stop instead."""
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
            self._changed.notify_all()  # the next one may step, too
            return True

    def end(self, partition: object) -> None:
        """Let another partition step; idempotent, as the partition of a hanging thread ends twice."""
        with self._changed:
            self._stepping.discard(partition)
            self._changed.notify_all()

    def wake(self) -> None:
        """Make waiting partitions check whether they should stop."""
        with self._changed:
            self._changed.notify_all()

    def _is_next(self, partition: object) -> bool:
        return len(self._stepping) < self._most and self._waiting[0] is partition

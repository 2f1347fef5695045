"""Whether Spark stands still: rounds wait, and nothing runs.

Runs on the driver. A task that runs may take as long as it likes; a round that no executor ever takes up, because the
master has no workers or all of them are lost, would wait forever without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from opencqrs_py.processing.ports import Clock

__all__ = ["Stillness"]

_LOOK_SECONDS = 1.0  # between two looks at what runs


class Stillness:
    """Looks at what runs on Spark while rounds wait.

    Args:
        running: Returns how many tasks run now, of all jobs of the program; other jobs can be what a round waits for.
        clock: Time.
        seconds: How long nothing may run while a round waits.
    """

    def __init__(self, running: Callable[[], int], clock: Clock, seconds: float) -> None:
        self._running = running
        self._clock = clock
        self._seconds = seconds
        self._seen = float("-inf")  # when something ran last
        self._looked = float("-inf")

    def lasts(self, waiting: Sequence[float]) -> bool:
        """Return whether nothing has run for too long.

        Args:
            waiting: The times at which the rounds that are under way were started.
        """
        now = self._clock.monotonic()
        if not waiting or now - max(self._seen, min(waiting)) < _LOOK_SECONDS or now - self._looked < _LOOK_SECONDS:
            return False
        self._looked = now
        if self._running() > 0:
            self._seen = now
        return now - max(self._seen, min(waiting)) >= self._seconds

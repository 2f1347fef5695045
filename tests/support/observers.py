"""An observer that remembers, and for which tests can wait."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Condition
from typing import Any

from opencqrs_py.model import Outcome, Partition
from opencqrs_py.processing.notices import Notice, Observer

SECONDS = 300  # longest wait for another thread
LOOK_SECONDS = 0.05


class Watching(Observer):
    """Records notifications, in order.

    Attributes:
        told: All of it, a tuple for each call.
        notices: What it was given as notices.
        steps: Group, partition and outcome of each step.
        on_advanced: Called after each step.
    """

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.notices: list[Notice] = []
        self.steps: list[tuple[str, Partition, Outcome]] = []
        self.on_advanced: Callable[[Outcome], object] = lambda _outcome: None
        self._changed = Condition()

    def claimed(self, group: str, partition: Partition, position: int) -> None:
        self._tell("claimed", group, str(partition), position)

    def advanced(self, group: str, partition: Partition, outcome: Outcome) -> None:
        self.steps.append((group, partition, outcome))
        self._tell("advanced", outcome.cursor.stored)
        self.on_advanced(outcome)

    def noticed(self, notice: Notice) -> None:
        self.notices.append(notice)
        self._tell("noticed", notice.action)

    def stopped(self, group: str, partition: Partition) -> None:
        self._tell("stopped", group, str(partition))

    @property
    def moments(self) -> list[tuple[Any, ...]]:
        """When partitions were claimed and released."""
        return [told for told in self.told if told[0] in ("claimed", "stopped")]

    @property
    def missed(self) -> list[str]:
        """The messages of calls after the commit that raised."""
        return [failure.message for _, _, outcome in self.steps for failure in outcome.missed]

    def wait_for(self, condition: Callable[[], object]) -> None:
        """Wait for a notification, or for a condition that is true soon after one."""
        until = time.monotonic() + SECONDS
        with self._changed:
            while not condition():
                assert time.monotonic() < until
                self._changed.wait(LOOK_SECONDS)

    def _tell(self, *told: Any) -> None:
        with self._changed:
            self.told.append(told)
            self._changed.notify_all()

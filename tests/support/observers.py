"""An observer that remembers, and for which tests can wait."""

from __future__ import annotations

from typing import Any

from opencqrs_py.model import Outcome, Partition
from opencqrs_py.processing.notices import Notice
from opencqrs_py.testing.contracts.engine_project import WatchingObserver


class Watching(WatchingObserver):
    """Records all notifications, in order.

    Attributes:
        told: The notifications, a tuple for each call.
    """

    def __init__(self) -> None:
        super().__init__()
        self.told: list[tuple[Any, ...]] = []

    def claimed(self, group: str, partition: Partition, position: int) -> None:
        self.told.append(("claimed", group, str(partition), position))
        self.notify()

    def advanced(self, group: str, partition: Partition, outcome: Outcome) -> None:
        self.told.append(("advanced", outcome.cursor.stored))
        super().advanced(group, partition, outcome)

    def noticed(self, notice: Notice) -> None:
        self.told.append(("noticed", notice.action))
        super().noticed(notice)

    def stopped(self, group: str, partition: Partition) -> None:
        self.told.append(("stopped", group, str(partition)))
        self.notify()

    @property
    def moments(self) -> list[tuple[Any, ...]]:
        """When partitions were claimed and released."""
        return [told for told in self.told if told[0] in ("claimed", "stopped")]

    @property
    def missed(self) -> list[str]:
        """The messages of calls after the commit that raised."""
        return [failure.message for _, _, outcome in self.steps for failure in outcome.missed]

"""How fast partitions move, measured between two polls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from opencqrs_py.assembly.status import GroupStatus
from opencqrs_py.model.partition import Partition


class Rates:
    """Measures how many events of the log each partition passes in a second. Not safe for several threads."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, Partition], tuple[float, int]] = {}

    def measured(self, statuses: Sequence[GroupStatus], now: float) -> list[GroupStatus]:
        """Return the statuses with what was measured since the previous poll.

        Args:
            statuses: The statuses of this poll.
            now: Its time, in seconds of a clock that never goes back.
        """
        return [self._with_rates(status, now) for status in statuses]

    def _with_rates(self, status: GroupStatus, now: float) -> GroupStatus:
        rates = {
            each.partition: self._rate(status.group, each.partition, each.position, now) for each in status.partitions
        }
        return replace(status, events_per_second=rates)

    def _rate(self, group: str, partition: Partition, position: int, now: float) -> float | None:
        """Return the rate since the last poll; ``None`` at the first one, and after progress was set back."""
        before = self._before.get((group, partition))
        self._before[group, partition] = (now, position)
        if before is None or now <= before[0] or position < before[1]:
            return None
        return round((position - before[1]) / (now - before[0]), 3)

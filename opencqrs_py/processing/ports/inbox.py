"""The inbox: where events wait for their next attempt."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, runtime_checkable

from opencqrs_py.model.inbox import EVERYTHING, Fetching, InboxChange, InboxEntry, InboxSelection, ParkedSequences
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Skip


@runtime_checkable
class Inbox(Protocol):
    """Where events wait for their next attempt, beside the progress of their groups."""

    def parked(self, group: str, partitions: Sequence[Partition]) -> dict[Partition, ParkedSequences]:
        """Return which sequences of partitions have events in the inbox, by the CRC-32 of their ids."""
        ...

    def next_due(
        self, group: str, partitions: Sequence[Partition], *, expiring: bool = True
    ) -> dict[Partition, str | None]:
        """Return the ISO 8601 time from which on there is something to do: an event may be tried, or has expired.

        ``None`` if there is no event, or if all wait for a person.

        Args:
            group: Processing group.
            partitions: Partitions of the group.
            expiring: Whether events expire; if not, nobody asks when.
        """
        ...

    def arrange(
        self, group: str, partitions: Sequence[Partition], now: datetime, *, each: bool, expiring: bool = True
    ) -> None:
        """Have the events of partitions be due as the group is set up now; it may have been set up otherwise before.

        Args:
            group: Processing group.
            partitions: Those that this process has claimed.
            now: From when on an event is due that waits for no person and has no time, though it should have one.
            each: Whether each event has a time of its own; else only the first one of each sequence has.
            expiring: Whether events expire; if not, those that were to, or have, do so no more, and are tried.
        """
        ...

    def due(
        self, group: str, partition: Partition, until: datetime, most: int, fetching: Fetching = Fetching.FIRST
    ) -> list[tuple[InboxEntry, ...]]:
        """Return the events of the sequences that have been due for longest, each sequence in the order of positions.

        No sequence is cut but the first one, if it has more events than are asked for. Events that wait for a person
        are among those of their sequence.

        Args:
            group: Processing group.
            partition: Partition of the group.
            until: What is due later does not count.
            most: Most events, at least 1.
            fetching: Which events of a sequence; ``WHOLE`` may return more than ``most`` of one sequence.
        """
        ...

    def is_stuck(self, group: str, sequence_id: str) -> bool:
        """Return whether an event of a sequence waits for a person."""
        ...

    def expired(self, group: str, partition: Partition, now: datetime, most: int) -> tuple[InboxEntry, ...]:
        """Return the first events of a partition that have expired by a time, by position, at most so many."""
        ...

    def entries(
        self,
        group: str,
        *,
        position: int | None = None,
        most: int | None = None,
        selection: InboxSelection = EVERYTHING,
    ) -> list[InboxEntry]:
        """Return the events of a group in the inbox, by sequence and position.

        Args:
            group: Processing group.
            position: Of the event at this position only.
            most: Most events; ``None`` for all.
            selection: Which of them. More may be returned: ids that a database takes for equal.
        """
        ...

    def change(self, group: str, change: InboxChange, skips: Sequence[Skip] = ()) -> bool:
        """Change what waits, for a person; return ``False`` if it is not as it was any more, and nothing is changed.

        Waits for the transactions of the partitions that are under way.

        Args:
            group: Processing group.
            change: What is changed, removed or done. What is done leaves without being handled here, too.
            skips: What is recorded of it.
        """
        ...

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
        """Return the ISO 8601 time from which there is something to do: an event is due, or has expired.

        ``None`` if there is no event, or if all wait for a person.

        Args:
            group: Processing group.
            partitions: Partitions of the group.
            expiring: Whether events expire; if not, expiry is ignored.
        """
        ...

    def arrange(
        self, group: str, partitions: Sequence[Partition], now: datetime, *, each: bool, expiring: bool = True
    ) -> None:
        """Set the due times of the events of partitions by the group's current settings, which may have changed.

        Args:
            group: Processing group.
            partitions: Partitions that this process has claimed.
            now: Due time for events that do not wait for a person and lack a due time that they should have.
            each: Whether each event has its own due time; else only the first one of each sequence has, which is not
                due before any other that has failed and still has a due time after ``now``.
            expiring: Whether events expire; if not, events with an expiry, or expired ones, are tried again.
        """
        ...

    def due(
        self, group: str, partition: Partition, until: datetime, most: int, fetching: Fetching = Fetching.FIRST
    ) -> list[tuple[InboxEntry, ...]]:
        """Return the events of the sequences that have been due longest, each sequence by position.

        Only the first sequence may be cut, if it alone has more events than requested. Events that wait for a person
        are included in their sequence.

        Args:
            group: Processing group.
            partition: Partition of the group.
            until: Time by which events must be due.
            most: Most events, at least 1.
            fetching: Which events of a sequence; ``WHOLE`` may return more than ``most`` of one sequence.
        """
        ...

    def is_stuck(self, group: str, sequence_id: str) -> bool:
        """Return whether an event of a sequence waits for a person."""
        ...

    def expired(self, group: str, partition: Partition, now: datetime, most: int) -> tuple[InboxEntry, ...]:
        """Return the first ``most`` events of a partition that have expired by ``now``, by position."""
        ...

    def entries(
        self,
        group: str,
        *,
        position: int | None = None,
        most: int | None = None,
        selection: InboxSelection = EVERYTHING,
    ) -> list[InboxEntry]:
        """Return the events of a group in the inbox, by the hashes of their sequences, and position.

        Args:
            group: Processing group.
            position: Restricts the result to the event at this position.
            most: Most events; ``None`` for all.
            selection: Which of them. More may be returned: entries whose ids the database considers equal.
        """
        ...

    def change(self, group: str, change: InboxChange, skips: Sequence[Skip] = ()) -> bool:
        """Change entries for a person; return ``False``, without any change, if they have changed in the meantime.

        Waits for open transactions of the partitions.

        Args:
            group: Processing group.
            change: What is changed, removed or done. Done entries leave the inbox without being handled here, too.
            skips: Skips to record.
        """
        ...

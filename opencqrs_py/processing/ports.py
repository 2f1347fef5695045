"""What the core needs from outside: protocols that adapters fulfil."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any, Protocol

from opencqrs_py.model.event import Event
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor, PartitionStatus
from opencqrs_py.model.selection import Selection, Slice

__all__ = [
    "BackOff",
    "Clock",
    "EventSource",
    "Injector",
    "ProgressTracker",
    "SequenceResolver",
    "Transactions",
    "UnitOfWork",
]


class Clock(Protocol):
    """Time. Real in production, moved by hand in tests."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...

    def now(self) -> datetime:
        """Return the time of day in UTC."""
        ...


class SequenceResolver(Protocol):
    """Says what must be handled in order."""

    def __call__(self, event: Event, /) -> str:
        """Return the sequence id of an undecoded event."""
        ...


class BackOff(Protocol):
    """How long to wait before each further attempt."""

    def waits(self) -> Iterator[float]:
        """Yield the waits in seconds of one event's attempts 2, 3, …; the end means: give the event up."""
        ...


class EventSource(Protocol):
    """An event log in one global order."""

    def head(self) -> int:
        """Return the position of the newest event, 0 in an empty log."""
        ...

    def read(self, after: int, limit: int, selection: Selection) -> Slice:
        """Return the selected events that follow ``after``, at most ``limit``, with the stretch they cover."""
        ...

    def position_before(self, moment: datetime) -> int:
        """Return the position after which the first event with ``time >= moment`` comes; the head if none does."""
        ...

    def is_outage(self, error: BaseException) -> bool:
        """Say whether ``error`` means that the store does not answer for now."""
        ...


class UnitOfWork(Protocol):
    """One transaction in which handlers write."""

    @property
    def connection(self) -> Any:
        """The database connection of the transaction."""
        ...

    @property
    def session(self) -> Any:
        """An object-relational session bound to ``connection``."""
        ...


class Transactions(Protocol):
    """Opens transactions on the read models' database."""

    def begin(self) -> AbstractContextManager[UnitOfWork]:
        """Open a transaction: committed at the end of the block, rolled back when the block raises."""
        ...

    def is_outage(self, error: BaseException) -> bool:
        """Say whether ``error`` means that the database does not answer for now."""
        ...


class ProgressTracker(Protocol):
    """Remembers how far each partition of a group is."""

    def claim(self, group: str, partitions: Sequence[Partition], initial: int, owner: str) -> tuple[Cursor, ...]:
        """Take the partitions over from whoever had them; those without progress start at ``initial``.

        Raises:
            EventStoreError: OCQ-310, if the group's progress belongs to another layout of partitions.
        """
        ...

    def unit(self, group: str, cursor: Cursor, to: int) -> AbstractContextManager[UnitOfWork]:
        """Open the unit of work that moves progress from ``cursor.stored`` to ``to`` if the block succeeds.

        Raises:
            FencedError: On entering, if the progress or the epoch is not the cursor's any more; a tracker that cannot
                hold off later claims looks again before it commits.
            ValueError: On entering, if ``to`` is before ``cursor.stored``.
        """
        ...

    def renewed(self, group: str, cursor: Cursor) -> Cursor | None:
        """Return where the partition goes on if the claim is still the cursor's, ``None`` if somebody else has it."""
        ...

    def report(self, status: PartitionStatus, epoch: int) -> None:
        """Publish what a processor does; ignored when ``epoch`` is not the current one. Does not touch progress."""
        ...

    def statuses(self) -> list[PartitionStatus]:
        """Return what is known of every partition of every group, by group, modulus and residue."""
        ...

    def is_outage(self, error: BaseException) -> bool:
        """Say whether ``error`` means that the tracker's database does not answer for now."""
        ...


class Injector(Protocol):
    """Gives handlers what else they ask for."""

    def provides(self, wanted: object) -> bool:
        """Say whether something of the annotated type can be had."""
        ...

    def provide(self, wanted: object) -> Any:
        """Return it; asked for at each call of a handler."""
        ...

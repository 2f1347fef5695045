"""Event logs: what reads them, watches them and appends to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Protocol, runtime_checkable

from opencqrs_py.model.appending import Appended, Precondition
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection, Share, Slice


class Watch(Protocol):
    """Waits for new events by the quickest means of the store. One thread at a time waits."""

    def wait(self, after: int, seconds: float) -> int:
        """Return the head as soon as it is beyond ``after``, or unchanged after ``seconds``."""
        ...

    def wake(self) -> None:
        """Make the wait in another thread, or the next one if there is none, return early. Safe for several threads."""
        ...


class EventSource(Protocol):
    """An event log in one global order.

    Safe for several threads: the groups and partitions of a process share one source, and call its methods at the same
    time.
    """

    def head(self) -> int:
        """Return the position of the newest event, 0 in an empty log."""
        ...

    def read(self, after: int, limit: int, selection: Selection, upto: int | None = None) -> Slice:
        """Return the selected events that follow ``after``, at most ``limit``, with the part of the log they cover.

        Args:
            after: Position before the first one.
            limit: Most events, at least 1.
            selection: Which events.
            upto: The last position of interest, which ``head()`` or a slice has shown to be final. Nothing after it
                is read, and the slice ends there at the latest; in a log that ends before it, with the log.
        """
        ...

    def position_before(self, moment: datetime) -> int:
        """Return the position after which the first event with ``time >= moment`` comes; the head if none does."""
        ...

    def watched(self) -> AbstractContextManager[Watch]:
        """Open a watch with its own resources (a connection, a thread), which are released at the end of the block."""
        ...

    def fingerprint(self, position: int, event: Event | None = None) -> str:
        """Return a text that identifies the log up to ``position`` by its newest event at or below that.

        Progress is stored with it. An empty log has a fingerprint, too; 1 to 1,000 characters.

        Args:
            position: The last position that counts.
            event: The whole event at ``position``, if the caller has it, so that the store need not read it.
        """
        ...

    def verify(self, position: int, fingerprint: str) -> None:
        """Check that the log still has this ``fingerprint`` at ``position``.

        Called at each claim of a partition, and after an outage. For an empty fingerprint, which progress of an older
        version has, it checks only whether the log reaches ``position``.

        Raises:
            EventStoreError: OCQ-316, if this is another log, a shorter one, or one that was restored.
        """
        ...

    def is_outage(self, error: BaseException) -> bool:
        """Return whether ``error`` means the store is temporarily unavailable."""
        ...


@runtime_checkable
class SharingSource(Protocol):
    """An event source that can filter out the events of other partitions."""

    def selects(self, share: Share) -> bool:
        """Return whether ``read`` filters out the events that do not belong to such a share."""
        ...


@runtime_checkable
class ClosableSource(Protocol):
    """An event source that keeps connections or files open. An application that stops closes what it has opened."""

    def close(self) -> None:
        """Close what is open; the next use opens it again."""
        ...


@runtime_checkable
class LimitedSource(Protocol):
    """An event source that must not be read to its end yet."""

    def limit(self) -> int | None:
        """Return the last position to be read, which is final; ``None`` while there is no limit."""
        ...


@runtime_checkable
class HeldUpSource(Protocol):
    """An event source whose newest events must not be read yet, since others may still be added before them."""

    def newest(self) -> int:
        """Return the position of the newest event that exists, whether or not it may be read; 0 without any."""
        ...


@runtime_checkable
class PickingSource(Protocol):
    """An event source that can read events at many positions at once."""

    def pick(self, positions: Sequence[int]) -> Sequence[Event]:
        """Return the events at ascending positions, whole, without those that no longer exist."""
        ...


@runtime_checkable
class CountingSource(Protocol):
    """An event source that knows how many events it has, which may be fewer than positions."""

    def count(self) -> int:
        """Return the number of events."""
        ...


@runtime_checkable
class CountedSource(Protocol):
    """An event source that has to scan the log to find its head; reads to the end find it in passing."""

    def check(self) -> None:
        """Raise what is wrong with the log, as far as that shows without scanning it."""
        ...

    def knows_head(self) -> bool:
        """Return whether ``head`` need not scan the log, or only what is new."""
        ...


@runtime_checkable
class UnfinishedSource(Protocol):
    """An event source whose last event may still be being written, and is not read before it is complete."""

    def report_unfinished(self) -> None:
        """Log what exists and was not read, because the caller will not check again; raises nothing."""
        ...


def report_unfinished(source: EventSource) -> None:
    """Have a source log what is unread at its end, if it can."""
    if isinstance(source, UnfinishedSource):
        source.report_unfinished()


def knows_head(source: EventSource) -> bool:
    """Return whether the head of a source can be determined without reading a long log a second time."""
    return not isinstance(source, CountedSource) or source.knows_head()


@runtime_checkable
class EventStore(EventSource, Protocol):
    """An event log that can be added to."""

    def append(
        self,
        events: Iterable[Event],
        preconditions: Sequence[Precondition] = (),
        progress: Callable[[int], None] | None = None,
    ) -> Appended:
        """Add events in their order, all or none; those whose source and id are already known are skipped.

        Raises:
            PreconditionFailedError: OCQ-320, naming the first precondition that does not hold.
        """
        ...


@runtime_checkable
class IdGivingStore(Protocol):
    """A store that assigns its own ids and times to events, and so cannot recognise known ones.

    Each append returns the ids.

    Attributes:
        gives_ids: True.
    """

    gives_ids: bool


def gives_ids(store: EventSource) -> bool:
    """Return whether a store assigns its own ids and times to events."""
    return isinstance(store, IdGivingStore) and store.gives_ids

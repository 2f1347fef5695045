"""The parts of one processing group in one process."""

from __future__ import annotations

from math import isqrt

from opencqrs_py.model.partition import Partition
from opencqrs_py.model.selection import ATTRIBUTES, Selection
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.feed import Feed
from opencqrs_py.processing.ports import Clock, EventSource, ProgressTracker
from opencqrs_py.processing.processor import PartitionProcessor
from opencqrs_py.processing.sequencing import Sequencing

CHUNK = 1_000
_PAGES_KEPT = 4  # of the log, for partitions that lag a little
_LEAST_READ = 1_000  # events fetched at once, even when each is committed alone


class GroupProcessing:
    """Makes the processors of a group; they share source, tracker, dispatcher and feed.

    Args:
        group: Processing group.
        source: The event store.
        tracker: Where progress goes.
        dispatcher: Calls the group's handlers.
        subject: Root subject observed.
        recursive: Whether its child subjects are observed too.
        sequencing: Maps events to sequences, and sequences to partitions.
        partitions: Number of partitions, for the size of what is read at once.
        batch_size: Most events in one transaction. ``None``: 1,000 when every handler asks for the progress
            transaction, so that a repeated event changes nothing, or for a chunk at a time; else 1, so that a crash
            repeats at most one event.
        clock: Time, for what processors record that are given no other; ``None`` for the machine's.
    """

    def __init__(  # noqa: PLR0913 all that a group is made from
        self,
        group: str,
        source: EventSource,
        tracker: ProgressTracker,
        dispatcher: Dispatcher,
        *,
        subject: str,
        recursive: bool,
        sequencing: Sequencing,
        partitions: int,
        batch_size: int | None,
        clock: Clock | None = None,
    ) -> None:
        self.group = group
        self.source = source
        self.tracker = tracker
        self.batch_size = batch_size or (CHUNK if dispatcher.takes_chunks else 1)
        self._dispatcher = dispatcher
        self._clock = clock
        of_sequences = sequencing.attributes if partitions > 1 else frozenset[str]()
        whole = dispatcher.sees_attributes or self.batch_size == 1  # each commit stores the identity of its event
        attributes = ATTRIBUTES if whole else of_sequences
        selection = Selection(subject, recursive, dispatcher.wanted_types, attributes)
        wanted = dispatcher.wants if selection.types is None else None
        size, memory = read_size(self.batch_size, partitions), 1 if partitions == 1 else _PAGES_KEPT
        self.feed = Feed(source, selection, sequencing, size, memory, wanted)

    def processor(self, partition: Partition, clock: Clock | None = None) -> PartitionProcessor:
        """Return the processor of one partition; the clock is for what it records."""
        clock = self._clock if clock is None else clock
        return PartitionProcessor(
            self.group, partition, self.feed, self.tracker, self._dispatcher, self.batch_size, clock
        )


def read_size(batch_size: int, partitions: int) -> int:
    """Return how many events to read at once, so that a partition's share mostly fits one transaction.

    A share of n events varies by about the square root of n; four of them leave room for nearly all cases.
    """
    share = batch_size if partitions == 1 else max(1, batch_size - 4 * isqrt(batch_size))
    return max(_LEAST_READ, share * partitions)

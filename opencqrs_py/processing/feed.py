"""The feed of a group: reads the log once for all partitions that run in this process."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Sequence
from threading import Lock

from opencqrs_py.model.event import Event
from opencqrs_py.model.partition import Partition, residue_of
from opencqrs_py.model.selection import Selection, Slice
from opencqrs_py.processing.ports import EventSource, SequenceResolver

__all__ = ["Feed", "Stretch"]


class Stretch:
    """A slice of the log, dealt out to partitions when they ask.

    Args:
        part: The slice read.
        sequence_of: Sequence resolver of the group.
    """

    def __init__(self, part: Slice, sequence_of: SequenceResolver) -> None:
        self.after = part.after
        self.upto = part.upto
        self._events = part.events
        self._sequence_of = sequence_of
        self._shares: dict[int, dict[int, list[Event]]] = {}

    def covers(self, after: int) -> bool:
        """Say whether a partition that is done up to ``after`` finds its next events here."""
        return self.after <= after < self.upto

    def share(self, partition: Partition, after: int) -> Sequence[Event]:
        """Return the partition's events behind ``after``, in order."""
        events = self._dealt(partition.modulus).get(partition.residue, [])
        if not events or events[0].position > after:
            return events
        return events[bisect_right(events, after, key=lambda event: event.position) :]

    def _dealt(self, modulus: int) -> dict[int, list[Event]]:
        shares = self._shares.get(modulus)
        if shares is None:
            shares = defaultdict(list)
            for event in self._events:
                shares[residue_of(self._sequence_of(event), modulus)].append(event)
            self._shares[modulus] = shares
        return shares


class Feed:
    """Hands out stretches of the log; partitions at about the same place get the same one, read once.

    Safe for several threads.

    Args:
        source: The event store.
        selection: Which events the group looks at.
        sequence_of: Sequence resolver of the group.
        limit: Most events per stretch.
        memory: Stretches kept for partitions that lag a little.
    """

    def __init__(
        self,
        source: EventSource,
        selection: Selection,
        sequence_of: SequenceResolver,
        limit: int,
        memory: int = 4,
    ) -> None:
        self.source = source
        self._selection = selection
        self._sequence_of = sequence_of
        self._limit = limit
        self._recent: deque[Stretch] = deque(maxlen=memory)
        self._lock = Lock()

    def read(self, after: int) -> Stretch | None:
        """Return a stretch that goes on behind ``after``, or ``None`` at the head of the log."""
        with self._lock:
            for stretch in self._recent:
                if stretch.covers(after):
                    return stretch
            part = self.source.read(after, self._limit, self._selection)
            if part.upto <= after:
                return None
            stretch = Stretch(part, self._sequence_of)
            self._recent.append(stretch)
            return stretch

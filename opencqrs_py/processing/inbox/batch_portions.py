"""The portions of batches: the events of a tick, grouped as they are handled together."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.event import Event
from opencqrs_py.model.inbox import InboxEntry, Remainder
from opencqrs_py.model.progress import Cursor
from opencqrs_py.processing.inbox.batches import ChosenEvents, ScheduleRule, TickTimes
from opencqrs_py.processing.portions import Portion


@dataclass(eq=False)
class BatchPortions:
    """Groups the events of batches into portions.

    Attributes:
        cursor: Progress of the partition, within the tick.
        rule: How the group handles its events.
        batch_size: Most events in one transaction.
        times: The tick and its neighbours.
    """

    cursor: Cursor
    rule: ScheduleRule
    batch_size: int
    times: TickTimes
    _remainders: dict[str, Remainder] = field(default_factory=dict, init=False)
    _choices: dict[str, ChosenEvents] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._due_at = None if self.rule.each else self.times.tick

    def of(
        self,
        batches: Sequence[tuple[InboxEntry, ...]],
        events: Mapping[int, Event],
        known: Collection[str],
        *,
        cut: bool,
    ) -> list[Portion]:
        """Return the portions of batches.

        An event that was tried before is the first of its portion: handlers see its attempt. All of a portion
        belong to a replay, or none does. One of several sequences is in a portion for each of them.

        Args:
            batches: The entries of each sequence.
            events: Their events by position.
            known: The sequences of which the tick has chosen events before.
            cut: Whether the only batch may lack events that were not fetched.

        Raises:
            UnorderedError: If the place of an event in its batch cannot be determined.
        """
        flat = [
            pair
            for batch in batches
            for pair in self._chosen(batch, events, known=batch[0].sequence_id in known, cut=cut)
        ]
        starts = [*_starts([entry for entry, _ in flat]), len(flat)]
        found: list[Portion] = []
        for start, end in pairwise(starts):
            for first in range(start, end, self.batch_size):
                last = min(end, first + self.batch_size)
                following = flat[last][0].sequence_id if last < len(flat) else None
                found.append(self._portion(flat[first:last], following))
                self._choices |= {one.sequence_id: replace(one, is_kept=True) for one in found[-1].choices}
        return found

    def _chosen(
        self, batch: tuple[InboxEntry, ...], events: Mapping[int, Event], *, known: bool, cut: bool
    ) -> list[tuple[InboxEntry, Event]]:
        """Return the events of a batch that are handled, in their order, and note what becomes of the others."""
        ordered = self.rule.ordered([(entry, events[entry.position]) for entry in batch])
        chosen, sequence_id = ordered[: self.rule.size], batch[0].sequence_id
        if known or len(chosen) < len(ordered) or (cut and self.rule.size is not None):
            positions = tuple(entry.position for entry, _ in chosen)
            is_kept = known and not self.cursor.isolate  # a mark clears the times of its sequence
            self._choices[sequence_id] = ChosenEvents(sequence_id, positions, self.times, self.rule.each, is_kept)
        elif cut and self._due_at is not None:
            self._remainders[sequence_id] = Remainder(sequence_id, self._due_at)
        return chosen

    def _portion(self, those: Sequence[tuple[InboxEntry, Event]], following: str | None) -> Portion:
        """Return a portion; ``following`` is the sequence of the next event, ``None`` if there is none."""
        entries = tuple(entry for entry, _ in those)
        there = {entry.sequence_id: entry.position for entry in entries}  # the last one of each
        last, cut = entries[-1].sequence_id, following == entries[-1].sequence_id
        rest = [self._remainders[one] for one in there if one in self._remainders and not (cut and one == last)]
        limited = tuple(self._choices[one] for one in there if one in self._choices)
        rest += filter(None, (one.rest_after(there[one.sequence_id]) for one in limited))
        if cut and self._due_at is not None and last not in self._choices:
            rest.append(Remainder(last, self._due_at))
        chunk, due_at = Chunk([event for _, event in those]), self._due_at
        return Portion(chunk, self.cursor.stored, (), entries, remainders=tuple(rest), due_at=due_at, choices=limited)


def _starts(entries: Sequence[InboxEntry]) -> Iterator[int]:
    """Yield the indices of the entries that begin portions."""
    there = set[int]()
    for at, entry in enumerate(entries):
        if not at or entry.position in there or _begins(entry, entries[at - 1]):
            there.clear()
            yield at
        there.add(entry.position)


def _begins(entry: InboxEntry, before: InboxEntry) -> bool:
    """Return whether an event is the first of a portion."""
    return entry.attempts > 0 or entry.replaying is not before.replaying

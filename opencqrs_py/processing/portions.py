"""Portions: the events of one transaction, their last position, and what enters and leaves the inbox with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from opencqrs_py.model.chunk import NOTHING, Chunk
from opencqrs_py.model.inbox import InboxEntry, Remainder
from opencqrs_py.processing.feed import Page
from opencqrs_py.processing.inbox.batches import ChosenEvents


@dataclass(frozen=True, slots=True)
class Portion:
    """What a partition handles in one transaction.

    Attributes:
        chunk: The events that handlers get; without any, only the progress or the inbox changes.
        upto: Position to which the progress moves.
        behind: Events up to that position that enter the inbox unhandled, because an earlier event of their sequence
            waits there.
        waiting: The entries of the chunk's events, if they come from the inbox: then the progress does not move.
        page: The page that the chunk belongs to; ``None`` if it comes from the inbox, or handlers get nothing.
        remainders: What remains in the inbox of the chunk's sequences.
        due_at: When the rest of a sequence is tried after the chunk was cut within it; ``None`` if each of its events
            has its own time.
        choices: The chunk's sequences of which a tick tries only some events.
    """

    chunk: Chunk
    upto: int
    behind: tuple[InboxEntry, ...] = ()
    waiting: tuple[InboxEntry, ...] = ()
    page: Page | None = None
    remainders: tuple[Remainder, ...] = ()
    due_at: str | None = None
    choices: tuple[ChosenEvents, ...] = ()

    @property
    def attempts(self) -> int:
        """How often the first event has been tried, if it comes from the inbox."""
        return self.waiting[0].attempts if self.waiting else 0

    def batches(self) -> Iterator[tuple[int, int]]:
        """Yield the ranges of events of each sequence, if they come from the inbox."""
        start = 0
        for _, those in groupby(self.waiting, key=lambda entry: entry.sequence_id):
            end = start + sum(1 for _ in those)
            yield start, end
            start = end

    def first(self, count: int) -> Portion:
        """Return the portion with the first events only, at least one."""
        if count >= len(self.chunk):
            return self
        upto = self.chunk.position(count - 1)
        behind = tuple(entry for entry in self.behind if entry.position <= upto)
        waiting, remainders = self.waiting[:count], self._remainders(count)
        rest = (self.page, remainders, self.due_at, self.choices)
        return Portion(self.chunk[:count], upto, behind, waiting, *rest)

    def after(self, count: int) -> Portion:
        """Return the portion without the first events, at least one."""
        since = self.chunk.position(count - 1)
        behind = tuple(entry for entry in self.behind if entry.position > since)
        waiting = self.waiting[count:]
        there = {entry.sequence_id for entry in waiting}
        remainders = tuple(one for one in self.remainders if one.sequence_id in there)
        rest = (self.page, remainders, self.due_at, self.choices)
        return Portion(self.chunk[count:], self.upto, behind, waiting, *rest)

    def choice_of(self, sequence_id: str) -> ChosenEvents | None:
        """Return which events of a sequence the tick tries; ``None``: all that are due."""
        return next((one for one in self.choices if one.sequence_id == sequence_id), None)

    def before(self, index: int, entry: InboxEntry) -> Portion:
        """Return the portion up to the event at an index, which enters the inbox unhandled."""
        behind = tuple(one for one in self.behind if one.position < entry.position)
        chunk = self.chunk[:index] if index else NOTHING
        return Portion(chunk, entry.position, (*behind, entry), page=self.page)

    def up_to(self, position: int) -> Portion:
        """Return the portion of the log up to a position; it may have nothing to handle or to put into the inbox."""
        count = sum(1 for index in range(len(self.chunk)) if self.chunk.position(index) <= position)
        behind = tuple(one for one in self.behind if one.position <= position)
        return Portion(self.chunk[:count] if count else NOTHING, position, behind, page=self.page)

    def _remainders(self, count: int) -> tuple[Remainder, ...]:
        """Return what remains of sequences after some first events."""
        if not self.waiting:
            return ()
        there, cut = {entry.sequence_id for entry in self.waiting[:count]}, self.waiting[count].sequence_id
        kept = tuple(one for one in self.remainders if one.sequence_id in there and one.sequence_id != cut)
        if cut not in there:
            return kept
        if (choice := self.choice_of(cut)) is not None:
            rest = choice.rest_after(self.waiting[count - 1].position)
        else:
            rest = None if self.due_at is None else Remainder(cut, self.due_at)
        return kept if rest is None else (*kept, rest)


def without_handling(upto: int, behind: tuple[InboxEntry, ...] = ()) -> Portion:
    """Return a portion that only changes the progress or the inbox."""
    return Portion(NOTHING, upto, behind)

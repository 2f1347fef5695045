"""Portions: the events of one transaction, how far they reach, and what of them goes into or comes out of the inbox."""

from __future__ import annotations

from dataclasses import dataclass

from opencqrs_py.model.chunk import NOTHING, Chunk
from opencqrs_py.model.inbox import InboxEntry
from opencqrs_py.processing.feed import Page


@dataclass(frozen=True, slots=True)
class Portion:
    """What a partition handles in one transaction.

    Attributes:
        chunk: The events that handlers get; without any, only the progress or the inbox moves.
        upto: Position that the progress reaches by it.
        behind: Events that go into the inbox unhandled, as one of their sequence is there; also up to that position.
        waiting: The entries of the chunk's events, if they come out of the inbox: then the progress does not move.
        page: The page that the chunk is of; ``None`` if it comes out of the inbox, or handlers get nothing.
    """

    chunk: Chunk
    upto: int
    behind: tuple[InboxEntry, ...] = ()
    waiting: tuple[InboxEntry, ...] = ()
    page: Page | None = None

    @property
    def attempts(self) -> int:
        """How often the first event has been tried, if it comes out of the inbox."""
        return self.waiting[0].attempts if self.waiting else 0

    def first(self, count: int) -> Portion:
        """Return the portion with the first events only, at least one."""
        if count >= len(self.chunk):
            return self
        upto = self.chunk.position(count - 1)
        behind = tuple(entry for entry in self.behind if entry.position <= upto)
        return Portion(self.chunk[:count], upto, behind, self.waiting[:count], self.page)

    def after(self, count: int) -> Portion:
        """Return the portion without the first events, at least one."""
        since = self.chunk.position(count - 1)
        behind = tuple(entry for entry in self.behind if entry.position > since)
        return Portion(self.chunk[count:], self.upto, behind, self.waiting[count:], self.page)

    def before(self, index: int, entry: InboxEntry) -> Portion:
        """Return the portion up to the event at an index, which is not handled but goes into the inbox."""
        behind = tuple(one for one in self.behind if one.position < entry.position)
        chunk = self.chunk[:index] if index else NOTHING
        return Portion(chunk, entry.position, (*behind, entry), page=self.page)


def without_handling(upto: int, behind: tuple[InboxEntry, ...] = ()) -> Portion:
    """Return a portion that only moves the progress, or the inbox."""
    return Portion(NOTHING, upto, behind)

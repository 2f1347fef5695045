"""Ranges of positions instead of chunks, for groups whose events are read where they are handled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import overload

from typing_extensions import override

from opencqrs_py.model.chunk import NOTHING, Chunk
from opencqrs_py.model.event import Event
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.selection import Selection, Slice
from opencqrs_py.processing.feed import Feed, Page
from opencqrs_py.processing.ports import EventSource
from opencqrs_py.processing.sequencing import Sequencing

_LOOKED_AT = 1_000  # events read at a time to find the next wanted one, where the store cannot filter

FindFirst = Callable[[int, int], "Event | None"]
"""Returns the first wanted event in ``after + 1..upto``, ``None`` if there is none."""


class PositionRange(Chunk):
    """The positions ``after + 1..upto`` as a chunk whose indices are positions, with or without an event.

    A failing range is halved like a chunk, down to a single position.

    Args:
        after: Position before the first one.
        upto: The last position.
        find: Finds the first event of a range.
        first: The first event of this range, if known.
    """

    __slots__ = ("_find", "_first", "after_position", "upto")

    def __init__(self, after: int, upto: int, find: FindFirst, first: Event | None = None) -> None:
        super().__init__(())
        self.after_position = after
        self.upto = upto
        self._find = find
        self._first = first

    @override
    def __len__(self) -> int:
        return self.upto - self.after_position

    @override
    def __iter__(self) -> Iterator[Event]:
        return (self[index] for index in range(len(self)))

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Chunk: ...
    @override
    def __getitem__(self, index: int | slice) -> Event | Chunk:
        if not isinstance(index, slice):
            return self._event_at(index)
        start, stop, _ = index.indices(len(self))
        after, upto, first = self.after_position + start, self.after_position + stop, self._first
        known = first if first is not None and after < first.position <= upto else None
        return PositionRange(after, upto, self._find, known)

    @override
    def position(self, index: int) -> int:
        return range(self.after_position + 1, self.upto + 1)[index]

    @override
    def read_whole(self, index: int) -> Event | None:
        return None

    @override
    def index_of(self, position: int) -> int:
        return position - self.after_position - 1

    def first_event(self) -> Event | None:
        """Return the first wanted event, ``None`` if the range has none."""
        if self._first is None:
            self._first = self._find(self.after_position, self.upto)
        return self._first

    def _event_at(self, index: int) -> Event:
        """Return the event at an index, at 0 the first one; for messages, so an unreadable event has no attributes."""
        position = self.position(index)
        try:
            found = self.first_event() if index == 0 else self._find(position - 1, position)
        except Exception:  # an unavailable store must not hide what is reported about the event
            found = None
        return found or Event(position, "", "", "", "", None, "", None, None)


class _RangePage(Page):
    """A range of the only partition."""

    def __init__(self, events: Chunk, after: int, upto: int, sequencing: Sequencing) -> None:
        super().__init__(Slice(after, upto), sequencing)
        self._range = events

    @override
    def events_of(self, partition: Partition, after: int) -> tuple[Chunk, int]:
        return self._range, self.upto


class RangeFeed(Feed):
    """Provides ranges of positions, each beginning with an event that the group handles.

    Only that event is read, or a page where the store cannot filter wanted events.

    Args:
        source: The event store.
        selection: Which events the group reads.
        sequencing: Not used, as there is one partition.
        size: Most positions of a range.
        wanted: Returns whether events of a type may lead to a handler; ``None`` for all.
    """

    def __init__(
        self,
        source: EventSource,
        selection: Selection,
        sequencing: Sequencing,
        size: int,
        wanted: Callable[[str], bool] | None = None,
    ) -> None:
        super().__init__(source, selection, sequencing, size, wanted=wanted)
        self._size = size

    @override
    def read(self, after: int, partition: Partition | None = None) -> Page | None:
        part = self.source.read(after, self._looked_at, self._selection)
        if part.upto <= after:
            return None
        first = self._first_of(part)
        if first is None:
            return _RangePage(NOTHING, after, part.upto, self._sequencing)
        upto = min(max(self.source.head(), part.upto), first.position - 1 + self._size)
        found = PositionRange(first.position - 1, upto, self._find, first)
        return _RangePage(found, after, upto, self._sequencing)

    @property
    def _looked_at(self) -> int:
        return 1 if self._wanted is None else _LOOKED_AT

    def _first_of(self, part: Slice) -> Event | None:
        wanted = self._wanted
        return next((event for event in part.events if wanted is None or wanted(event.type)), None)

    def _find(self, after: int, upto: int) -> Event | None:
        while after < upto:
            part = self.source.read(after, self._looked_at, self._selection, upto)
            if (first := self._first_of(part)) is not None or part.upto <= after:
                return first
            after = part.upto
        return None

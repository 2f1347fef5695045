"""Chunks: events of a log in the order of their positions, whole or as rows of a store."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from operator import itemgetter
from typing import Any, NamedTuple, overload

from opencqrs_py.model.event import Event, Metadata
from opencqrs_py.model.json_text import loses_digits
from opencqrs_py.model.naming import in_one_line

EventRow = tuple[Any, ...]
"""Position, type and payload; then the subject, if it is needed, and then the time."""

ReadWhole = Callable[[int], Event]
"""Reads the event at a position with all its attributes."""

Decoders = Mapping[str, Callable[[str | None], Any]]
"""The decoder of the data of each type."""

_SEARCHED = 100  # events whose data are searched at once, a tenth of the time of one by one; more take more memory

_position = itemgetter(0)  # of a row and of an event


class _Columns(NamedTuple):
    """Indices of the attributes of an event that are used together."""

    type: int
    payload: int
    subject: int
    time: int


_OF_ROWS = _Columns(1, 2, 3, 4)
_OF_EVENTS = _Columns(*map(Event._fields.index, ("type", "payload", "subject", "time")))


class EventColumns(NamedTuple):
    """The attributes of several events, column by column."""

    positions: Sequence[int]
    types: Sequence[str]
    payloads: Sequence[str | None]
    subjects: Sequence[str]
    times: Sequence[str | None]

    @classmethod
    def of(cls, events: Iterable[Event]) -> EventColumns:
        """Return the columns of events."""
        return cls(*_transposed((one.position, one.type, one.payload, one.subject, one.time) for one in events))


def _transposed(rows: Iterable[tuple[Any, ...]]) -> Sequence[Sequence[Any]]:
    return list(zip(*rows, strict=True)) or [()] * len(EventColumns._fields)


class Chunk(Sequence[Event]):
    """Events in the order of their positions, as a source has read them: a page, or a part of one.

    For most events only position, type and data are used, and perhaps the subject: reading the other attributes, and
    making an event of each row, would take longer than decoding its data. Where these are enough, a source returns
    rows; an event of such a chunk fetches missing attributes on demand.

    Args:
        rows: Rows, or events, in the order of their positions.
        whole: Reads the event of a row with all its attributes; ``None`` for events.
    """

    __slots__ = ("_columns", "_rows", "_whole")

    def __init__(self, rows: Sequence[EventRow], whole: ReadWhole | None = None) -> None:
        self._rows = rows
        self._whole = whole
        self._columns = _OF_EVENTS if whole is None else _OF_ROWS

    @classmethod
    def of(cls, events: Sequence[Event]) -> Chunk:
        """Return events as a chunk."""
        return events if isinstance(events, Chunk) else cls(events)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Chunk({list(self)!r})"

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> Chunk: ...
    def __getitem__(self, index: int | slice) -> Event | Chunk:
        if isinstance(index, slice):
            return Chunk(self._rows[index], self._whole)
        row: Any = self._rows[index]
        return row if self._whole is None else _Glimpse.of(self._whole, row)

    def __iter__(self) -> Iterator[Event]:
        rows: Sequence[Any] = self._rows
        return iter(rows) if self._whole is None else map(partial(_Glimpse.of, self._whole), rows)

    @property
    def in_rows(self) -> bool:
        """Whether each event is made from a row, when it is used."""
        return self._whole is not None

    def position(self, index: int) -> int:
        """Return the position of the event at an index."""
        position: int = self._rows[index][0]
        return position

    def read_whole(self, index: int) -> Event | None:
        """Return the event at an index if it was read completely."""
        event: Event | None = self._rows[index] if self._whole is None else None  # type: ignore[assignment]
        return event

    @property
    def characters(self) -> int:
        """How many characters the events' data have."""
        payload = self._columns.payload
        return sum(len(row[payload] or "") for row in self._rows)

    @property
    def types(self) -> list[str]:
        """The type of each event."""
        return list(map(itemgetter(self._columns.type), self._rows))

    @property
    def subjects(self) -> set[str]:
        """The subjects of the events; of rows without them, each event is read whole."""
        if self._rows and len(self._rows[0]) <= self._columns.subject:
            return {event.subject for event in self}
        return set(map(itemgetter(self._columns.subject), self._rows))

    @property
    def columns(self) -> EventColumns:
        """The attributes of the events; of rows that lack some of them, each event is read whole."""
        if self._rows and len(self._rows[0]) <= self._columns.time:
            return EventColumns.of(self)
        return EventColumns._make(list(map(itemgetter(index), self._rows)) for index in (0, *self._columns))

    def index_of(self, position: int) -> int:
        """Return the index of the event at a position, by a linear search; the events may be in any order."""
        return next(index for index, row in enumerate(self._rows) if row[0] == position)

    def decoded(self, exact: Decoders, short: Decoders) -> list[Any]:
        """Return the events' data, decoded by the decoders of their types.

        Args:
            exact: Decoders of any data.
            short: Decoders of data of which no number loses digits when it is parsed; the same mapping if that makes no
                difference.

        Raises:
            KeyError: For a type without a decoder.
        """
        kind, payload, *_ = self._columns  # numbers, not names: this runs for each event
        decoders = short
        if exact is not short:
            payloads: list[Any] = [row[payload] for row in self._rows]
            some = (payloads[at : at + _SEARCHED] for at in range(0, len(payloads), _SEARCHED))
            decoders = exact if any(loses_digits("\n".join(each).encode()) for each in some) else short
        return [decoders[row[kind]](row[payload]) for row in self._rows]

    def after(self, position: int) -> Chunk:
        """Return the events after a position."""
        if not self._rows or self._rows[0][0] > position:
            return self
        return self[bisect_right(self._rows, position, key=_position) :]

    def picked(self, indices: Iterable[int]) -> Chunk:
        """Return the events at these indices."""
        return Chunk([self._rows[index] for index in indices], self._whole)

    def of_types(self, wanted: Callable[[str], bool]) -> Chunk:
        """Return the events whose types are wanted."""
        column = self._columns.type
        return Chunk([row for row in self._rows if wanted(row[column])], self._whole)

    def parted(self, belongs: Callable[[Event], bool]) -> tuple[Chunk, Chunk]:
        """Return the events that do not belong, and those that do."""
        return self._split([belongs(event) for event in self])

    def parted_by(self, subjects: Collection[str]) -> tuple[Chunk, Chunk]:
        """Return the events with other subjects, and those with these."""
        if not subjects:
            return self, NOTHING
        column = self._columns.subject
        if self._rows and len(self._rows[0]) <= column:  # rows without subjects
            return self.parted(lambda event: event.subject in subjects)
        return self._split([row[column] in subjects for row in self._rows])

    def first_of_each_subject(self) -> Chunk:
        """Return the first event of each subject."""
        if self._rows and len(self._rows[0]) <= self._columns.subject:
            firsts = {event.subject: index for index, event in reversed(list(enumerate(self)))}
        else:
            column = self._columns.subject
            firsts = {row[column]: index for index, row in reversed(list(enumerate(self._rows)))}
        return self.picked(sorted(firsts.values()))

    def _split(self, belong: Sequence[bool]) -> tuple[Chunk, Chunk]:
        if not any(belong):
            return self, NOTHING
        rows = list(zip(self._rows, belong, strict=True))
        others, those = [row for row, does in rows if not does], [row for row, does in rows if does]
        return Chunk(others, self._whole), Chunk(those, self._whole)

    def by_residue_of_subject(self, residue_of: Callable[[str], int]) -> dict[int, Chunk]:
        """Return the events by the residue of their subject's partition, which is determined once per subject.

        Rows must have their subjects.
        """
        column = self._columns.subject
        rows_of: dict[int, list[EventRow]] = defaultdict(list)
        takes: dict[str, Callable[[EventRow], None]] = {}
        for row in self._rows:
            take = takes.get(row[column])
            if take is None:
                subject = row[column]
                take = takes[subject] = rows_of[residue_of(subject)].append
            take(row)
        return {residue: Chunk(rows, self._whole) for residue, rows in rows_of.items()}

    def by_residue(self, residues: Callable[[Event], Iterable[int]]) -> dict[int, Chunk]:
        """Return the events by the residues of their partitions, determined from one event per subject.

        Rows must have their subjects.
        """
        column, whole = self._columns.subject, self._whole
        rows_of: dict[int, list[EventRow]] = defaultdict(list)
        known: dict[str, list[list[EventRow]]] = {}
        for row in self._rows:
            found = known.get(row[column])
            if found is None:
                event: Any = row if whole is None else _Glimpse.of(whole, row)
                found = known[row[column]] = [rows_of[residue] for residue in residues(event)]
            for rows in found:
                rows.append(row)
        return {residue: Chunk(rows, whole) for residue, rows in rows_of.items()}


NOTHING = Chunk(())


class _Glimpse(Event):
    """An event that was read as a row; the rest of it is read on first use."""

    _whole: ReadWhole
    _row: EventRow

    @classmethod
    def of(cls, whole: ReadWhole, row: EventRow) -> _Glimpse:
        glimpse = cls(row[0], "", "", "", row[1], None, "", row[2], None)
        own = glimpse.__dict__
        own["_whole"] = whole
        own["_row"] = row
        return glimpse

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"an event cannot be changed: no attribute '{name}' can be set")

    @cached_property
    def _read(self) -> Event:
        return self._whole(self.position)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._read)

    def __getitem__(self, index: Any) -> Any:
        return self._read[index]

    def __contains__(self, value: object) -> bool:
        return value in self._read

    def __add__(self, other: Any) -> Any:
        return self._read + tuple(other)

    def __radd__(self, other: Any) -> Any:
        return tuple(other) + self._read

    def __repr__(self) -> str:
        return repr(self._read)

    def __eq__(self, other: object) -> bool:
        return self is other or self._read == other

    def __hash__(self) -> int:
        return hash(self._read)

    def __reduce__(self) -> tuple[Any, ...]:
        return Event, tuple(self._read)

    def _replace(self, **changes: Any) -> Event:  # type: ignore[override]
        return self._read._replace(**changes)

    id = property(lambda self: self._read.id)
    source = property(lambda self: self._read.source)
    subject = property(lambda self: self._row[3] if len(self._row) > _OF_ROWS.subject else self._read.subject)
    time = property(lambda self: self._row[4] if len(self._row) > _OF_ROWS.time else self._read.time)
    content_type = property(lambda self: self._read.content_type)
    extensions = property(lambda self: self._read.extensions)

    @property
    def metadata(self) -> Metadata:
        return self._read.metadata

    @property
    def label(self) -> str:
        """How messages name the event; by its known attributes if it can no longer be read."""
        try:
            return self._read.label
        except Exception:  # an unavailable store must not hide what is reported about the event
            return in_one_line(f"event at position {self.position} ({self.type})")

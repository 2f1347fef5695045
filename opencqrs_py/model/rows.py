"""Events as the rows of a store: of most of them only type and data are seen."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any, overload

from opencqrs_py.model.event import Event, Metadata

Row = tuple[Any, ...]
"""Position, type and payload; then the subject, if it is looked at."""

Whole = Callable[[int], Event]
"""Reads the event at a position with all its attributes."""

_TYPE, _SUBJECT = 1, 3


class EventRows(Sequence[Event]):
    """Events of which only position, type and data were read, and perhaps the subject.

    Reading the other attributes, and making an event of each row, would take longer than decoding its data; and most
    handlers see only the object that the data become. Who looks at an event gets one that fetches what is missing.

    Args:
        rows: In the order of their positions.
        whole: Reads an event with all its attributes.
    """

    __slots__ = ("_whole", "rows")

    def __init__(self, rows: Sequence[Row], whole: Whole) -> None:
        self.rows = rows
        self._whole = whole

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> Event: ...
    @overload
    def __getitem__(self, index: slice) -> EventRows: ...
    def __getitem__(self, index: int | slice) -> Event | EventRows:
        if isinstance(index, slice):
            return EventRows(self.rows[index], self._whole)
        return _Glimpse.of(self._whole, self.rows[index])

    def __iter__(self) -> Iterator[Event]:
        return map(partial(_Glimpse.of, self._whole), self.rows)

    @property
    def types(self) -> list[str]:
        """The type of each event."""
        return [row[_TYPE] for row in self.rows]

    def decoded(self, decoders: Mapping[str, Callable[[str | None], Any]]) -> list[Any]:
        """Return what the decoders of their types make of the events' data.

        Raises:
            KeyError: For a type that has none.
        """
        return [decoders[row[1]](row[2]) for row in self.rows]  # numbers, not names: this runs for each event

    def of_types(self, wanted: Callable[[str], bool]) -> EventRows:
        """Return the events whose types are wanted."""
        return EventRows([row for row in self.rows if wanted(row[_TYPE])], self._whole)

    def by_residue(self, residues: Callable[[Event], Iterable[int]]) -> dict[int, EventRows]:
        """Return the events by the residues of their partitions; one event of each subject is asked about."""
        rows_of: dict[int, list[Row]] = defaultdict(list)
        known: dict[str, list[list[Row]]] = {}
        for row in self.rows:
            found = known.get(row[_SUBJECT])
            if found is None:
                event = _Glimpse.of(self._whole, row)
                found = known[row[_SUBJECT]] = [rows_of[residue] for residue in residues(event)]
            for rows in found:
                rows.append(row)
        return {residue: EventRows(rows, self._whole) for residue, rows in rows_of.items()}


class _Glimpse(Event):
    """An event that was read as a row; the rest of it is read when it is first looked at."""

    _whole: Whole
    _subject: str | None

    @classmethod
    def of(cls, whole: Whole, row: Row) -> _Glimpse:
        glimpse = cls(row[0], "", "", "", row[_TYPE], None, "", row[2], None)
        own = glimpse.__dict__
        own["_whole"] = whole
        own["_subject"] = row[_SUBJECT] if len(row) > _SUBJECT else None
        return glimpse

    def __setattr__(self, name: str, value: object) -> None:
        msg = f"an event cannot be changed: no attribute '{name}' can be set"
        raise AttributeError(msg)

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
    subject = property(lambda self: self._read.subject if self._subject is None else self._subject)
    time = property(lambda self: self._read.time)
    content_type = property(lambda self: self._read.content_type)
    extensions = property(lambda self: self._read.extensions)

    @property
    def metadata(self) -> Metadata:
        return self._read.metadata

    @property
    def label(self) -> str:
        """How messages name the event; if it cannot be read any more, by what is known of it."""
        try:
            return self._read.label
        except Exception:  # a store that is unavailable must not hide what is being said of the event
            return f"event at position {self.position} ({self.type})"

"""The events that a read has selected."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import compress
from operator import itemgetter

from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.event import Event
from opencqrs_py.model.event_lines import Columns, events_of, rows_of, subjects_of
from opencqrs_py.model.rows import EventRows, Row
from opencqrs_py.model.selection import Selection

__all__ = ["Selected"]

_OF_ROWS = frozenset({"type", "data", "subject"})
_position = itemgetter(0)
_row = itemgetter(*map(Event._fields.index, ("position", "type", "payload", "subject")))


class Selected:
    """Collects the events that a read selects; the others are only checked.

    If the selection needs no more than types, data and subjects, events stay rows beside their lines, and a line is
    parsed again when somebody looks at the rest.
    """

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._selects_all = selection.everything and selection.types is None
        self._as_rows = selection.attributes <= {"subject"}
        self._events: list[Event] = []
        self._rows: list[Row] = []
        self._origins: list[bytes | Event] = []  # the line of each row, or its event

    def __len__(self) -> int:
        return len(self._rows) if self._as_rows else len(self._events)

    def add(self, events: Iterable[Event]) -> None:
        """Add those of several events that are selected; also of those before an error."""
        selected = events if self._selects_all else filter(self._selection.matches, events)
        if not self._rows:  # whole events are there already, so rows would save nothing
            self._as_rows = False
        if not self._as_rows:
            self._events.extend(selected)
            return
        for event in selected:
            self._rows.append(_row(event))
            self._origins.append(event)

    def add_lines(self, lines: Sequence[bytes], columns: Columns, position: int) -> None:
        """Add those of several events that are selected.

        Args:
            lines: The lines that hold them, none of them empty.
            columns: Their attributes.
            position: Position of the first one.
        """
        positions: Sequence[int] = range(position, position + len(lines))
        if not self._selects_all:
            wanted = self._wanted(columns)
            if not any(wanted):
                return
            names = _OF_ROWS & columns.keys() if self._as_rows else columns
            columns = {name: tuple(compress(columns[name], wanted)) for name in names}
            lines, positions = tuple(compress(lines, wanted)), tuple(compress(positions, wanted))
        if self._as_rows:
            self._rows += rows_of(columns, positions)
            self._origins += lines
        else:
            self._events += events_of(columns, positions)

    def events(self) -> Sequence[Event]:
        """Return what was added."""
        return EventRows(self._rows, self._whole) if self._rows else tuple(self._events)

    def _wanted(self, columns: Columns) -> list[bool]:
        """Return of each event whether it is selected."""
        types, selection = self._selection.types, self._selection
        wanted = [types is None or each in types for each in columns["type"]]
        if selection.everything:
            return wanted
        return [one and selection.includes(subject) for one, subject in zip(wanted, subjects_of(columns), strict=False)]

    def _whole(self, position: int) -> Event:
        origin = self._origins[bisect_left(self._rows, position, key=_position)]
        return origin if isinstance(origin, Event) else parse_event(origin, position, stored=True)

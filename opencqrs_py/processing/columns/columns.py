"""Columns: from the events of a chunk to the ``pyarrow.Table`` that a handler takes.

Only this module and the two that it imports load pyarrow here; they are loaded when a handler takes a table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from typing_extensions import override

from opencqrs_py.errors import EventFormatError, HandlerSignatureError
from opencqrs_py.model.chunk import Chunk, EventColumns
from opencqrs_py.model.event import Event
from opencqrs_py.processing.columns.column_types import ColumnType, NoColumnError, columns_of, getter_of
from opencqrs_py.processing.columns.quick_columns import UNUSUAL, QuickReader
from opencqrs_py.processing.decoding import NO_OBJECTS, Decoder, decoder_for, quick_decoders_for
from opencqrs_py.processing.event_types import plain
from opencqrs_py.processing.exceptions import raise_interrupt
from opencqrs_py.processing.field_names import spelling_of
from opencqrs_py.processing.tables import RowFailedError, TableMaker

_MOMENT = pa.timestamp("us", "UTC")
_OF_EVENTS = ("position", "subject", "time")
_EARLIEST = pa.scalar(-62_135_596_800_000_000, _MOMENT)  # the beginning of the year 1
_CLASS_FIX = 'give events= a class with the fields that you need, or name types=["…"] and parse the column data'
_RENAME_FIX = 'rename the field; in a pydantic model: {0}_: … = Field(validation_alias="{0}")'
_TEXT_FIX = "fix the event where it is stored, or use a handler that takes the raw Event"
_VALUE_FIX = "annotate the field with a type that holds it, or take the events as a list"


class TableReader(TableMaker):
    """Makes tables of events: for a class its fields, then ``position``, ``subject`` and ``time``.

    Without a class: ``position``, ``type``, ``subject``, ``time``, and ``data`` as JSON text.

    Args:
        event_class: Whose fields are columns; ``None`` for none.
        place: How messages name the handler.

    Raises:
        HandlerSignatureError: OCQ-238, if a field of the class has no column type, or the name of an event column.
    """

    def __init__(self, event_class: Any, place: str) -> None:
        self._class = None if event_class is None else plain(event_class)
        if self._class is None:
            return
        self._columns = _checked_columns(self._class, place)
        names = [*self._columns, *_OF_EVENTS]
        types = [*(column.arrow for column in self._columns.values()), pa.int64(), pa.string(), _MOMENT]
        self._schema = pa.schema(list(zip(names, types, strict=True)))
        self._get = getter_of(self._class)
        self._decode: Decoder = decoder_for(self._class)
        self._quick_decoders = quick_decoders_for(self._class)
        self._spelling = spelling_of(self._class)
        self._quick = QuickReader.of(self._class, {name: column.arrow for name, column in self._columns.items()})

    @override
    def of_chunk(self, chunk: Chunk) -> Any:
        return self._table(chunk, chunk.columns, None)

    @override
    def of_events(self, events: Sequence[Event], objects: Sequence[Any]) -> Any:
        decoded = None if objects.count(None) == len(objects) else objects
        return self._table(events, EventColumns.of(events), decoded)

    def _table(self, events: Sequence[Event], columns: EventColumns, objects: Sequence[Any] | None) -> Any:
        times = _moments(columns.times, events)
        if self._class is None:
            arrays = {
                "position": pa.array(columns.positions, pa.int64()),
                "type": _texts("type is", columns.types, events),
                "subject": _texts("subject is", columns.subjects, events),
                "time": times,
                "data": _texts("data are", columns.payloads, events),
            }
            return pa.table(arrays)
        fields = self._fields(events, columns, objects)
        of_events = [pa.array(columns.positions, pa.int64()), _texts("subject is", columns.subjects, events), times]
        return pa.Table.from_arrays([*fields, *of_events], schema=self._schema)

    def _fields(self, events: Sequence[Event], columns: EventColumns, objects: Sequence[Any] | None) -> list[Any]:
        if objects is None and self._spelling.left:
            for event in islice(events, self._spelling.left):
                self._spelling.look(event)
        if objects is None and self._quick is not None:
            try:
                return self._quick.read(columns.payloads)
            except UNUSUAL:  # handling them one by one explains it, or accepts it
                pass
        decoded = self._decoded(events, columns.payloads, objects)
        return [self._array(name, column, decoded, events) for name, column in self._columns.items()]

    def _decoded(
        self, events: Sequence[Event], payloads: Sequence[str | None], objects: Sequence[Any] | None
    ) -> Sequence[Any]:
        quick = self._quick_decoders
        if objects is None and quick is not None:
            try:
                decoded = list(map(quick.exact, payloads))
            except BaseException as error:  # as above
                raise_interrupt(error)
            else:
                if NO_OBJECTS.isdisjoint(map(type, decoded)):
                    return decoded
        given = objects or [None] * len(events)
        return [
            _of_row(index, partial(self._decode, event)) if one is None else one
            for index, (event, one) in enumerate(zip(events, given, strict=True))
        ]

    def _array(self, name: str, column: ColumnType, objects: Sequence[Any], events: Sequence[Event]) -> Any:
        get = self._get
        values = [get(one, name) for one in objects]
        try:
            return column.array(values)
        except UNUSUAL:
            for index, value in enumerate(values):
                _of_row(index, partial(self._check, name, column, value, events[index]))
            raise

    def _check(self, name: str, column: ColumnType, value: Any, event: Event) -> None:
        try:
            column.array([value])
        except UNUSUAL as error:
            what = f"{name} does not fit its column of {column.arrow} ({str(error).splitlines()[0]})"
            raise EventFormatError("OCQ-239", what, event.label, _VALUE_FIX) from error


def _of_row(index: int, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except BaseException as error:
        raise_interrupt(error)
        raise RowFailedError(index, error) from error


def _texts(part: str, texts: Sequence[str | None], events: Sequence[Event]) -> Any:
    """Return texts of events as a column; one that is not Unicode, such as half of an emoji, is named."""
    try:
        return pa.array(texts, pa.string())
    except UnicodeEncodeError:
        for index, text in enumerate(texts):
            _of_row(index, partial(_check_text, part, text, events[index]))
        raise


def _check_text(part: str, text: str | None, event: Event) -> None:
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        what = f"the event's {part} not Unicode ({error.reason})"
        raise EventFormatError("OCQ-210", what, event.label, _TEXT_FIX) from error


def _moments(times: Sequence[str | None], events: Sequence[Event]) -> Any:
    """Return the times of events; times in unusual form are parsed one by one."""
    try:
        moments = pc.cast(pa.array(times, pa.string()), _MOMENT)
        if pc.any(pc.less(moments, _EARLIEST)).as_py() is not True:
            return moments
    except (pa.ArrowInvalid, UnicodeEncodeError):
        pass
    return pa.array(
        [_of_row(index, partial(getattr, event, "timestamp")) for index, event in enumerate(events)], _MOMENT
    )


def _checked_columns(event_class: Any, place: str) -> Mapping[str, ColumnType]:
    try:
        columns = columns_of(event_class)
    except NoColumnError as error:
        what = f"{error.field}: {_shown(error.annotation)} cannot become a column"
        raise HandlerSignatureError("OCQ-238", what, place, _CLASS_FIX) from error
    if same := [name for name in _OF_EVENTS if name in columns]:
        what = f"the field {same[0]} of {event_class.__name__} has the name of the event's own column"
        raise HandlerSignatureError("OCQ-238", what, place, _RENAME_FIX.format(same[0]))
    return columns


def _shown(annotation: Any) -> str:
    return (
        annotation.__name__ if isinstance(annotation, type) and not hasattr(annotation, "__args__") else str(annotation)
    )

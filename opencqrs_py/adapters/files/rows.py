"""Parquet files with one event a row."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate, islice, repeat
from pathlib import Path
from typing import Any, TypeGuard, cast

import orjson
from typing_extensions import override

from opencqrs_py.adapters.files.event_file import EventFile, EventReader, Selected
from opencqrs_py.adapters.files.formats import DAMAGE_OF_ROWS, REPAIR, REPAIR_WHOLE, damaged
from opencqrs_py.errors import EventFormatError, EventStoreError
from opencqrs_py.model.event import Event
from opencqrs_py.model.json_text import first_duplicate
from opencqrs_py.model.times import check_time, is_time, microseconds, surely_a_time

COLUMNS = Event._fields[1:]  # positions are counted, whatever the file contains
REQUIRED = ("id", "source", "type")
_CLOUD_EVENTS = {"data": "payload", "datacontenttype": "content_type"}  # attributes with different names here

_ROWS = 2_000  # that are decoded at once
_OTHERWISE = {"subject": "/", "content_type": "application/json"}  # instead of what is missing or empty
_TEXTS = 6  # columns that must not contain U+0000: all but the JSON at the end


@dataclass(frozen=True, slots=True)
class _Wrong:
    """What is wrong with a row, and its error code."""

    code: str
    what: str


class RowReader(EventReader):
    """Iterates over the events of a Parquet file once, from the beginning of a row group.

    Args:
        path: Name of the file in messages.
        file: The file, as ``open_parquet`` returns it.
        group: Number of the row group, from 0.
        number: Number of rows before it.
        before: Number of events in the files before this one.
        imported: Whether the events are not part of a log yet. Then data are validated as well, which takes as long as
            everything else, and the rules for times are the strict ones of imports.
    """

    def __init__(
        self,
        path: Path | str,
        file: Any,
        group: int = 0,
        number: int = 0,
        before: int = 0,
        *,
        imported: bool = False,
    ) -> None:
        self.path = path
        self.number = number
        self._imported = imported
        self._fix = REPAIR if imported else REPAIR_WHOLE
        self._file = file
        self._rows = _rows(file, group, before + number + 1, check_time if imported else microseconds)

    @override
    def __iter__(self) -> Iterator[Event]:
        while (row := self._next_row()) is not None:
            if self._imported and isinstance(row, Event):
                row = _wrong_json(row.payload, "payload") or row
            if isinstance(row, _Wrong):
                raise self._refused(row)
            self.number += 1
            yield row
        self.ended = True

    @override
    def take(self, most: int, into: Selected) -> None:
        rows: list[Event | _Wrong] = []
        damage: Exception | None = None
        try:
            rows.extend(islice(self._rows, most))
        except DAMAGE_OF_ROWS as error:
            damage = error  # the rows before it come first
        wrong = next(filter(_is_wrong, rows)) if _Wrong in set(map(type, rows)) else None
        events = rows if wrong is None else rows[: rows.index(wrong)]
        self.number += len(events)
        into.add(cast("list[Event]", events))
        if wrong is not None:
            raise self._refused(wrong)
        if damage is not None:
            raise self._damaged(damage) from damage
        self.ended = len(rows) < most

    @override
    def skip_to(self, number: int) -> None:
        while self.number < number and self._next_row() is not None:
            self.number += 1

    @override
    def close(self) -> None:
        self._file.close()

    def _next_row(self) -> Event | _Wrong | None:
        try:
            return next(self._rows, None)
        except DAMAGE_OF_ROWS as error:
            raise self._damaged(error) from error

    def _refused(self, row: _Wrong) -> EventFormatError:
        return EventFormatError(row.code, row.what, f"{self.path}, row {self.number + 1}", self._fix)

    def _damaged(self, error: Exception) -> EventFormatError:
        return damaged(error, f"{self.path}, after row {self.number}")


def _is_wrong(row: Event | _Wrong) -> TypeGuard[_Wrong]:
    return isinstance(row, _Wrong)


def _rows(
    file: Any, group: int, position: int, check_the_time: Callable[[str | None], object]
) -> Iterator[Event | _Wrong]:
    """Yield the event of each row, from ``position`` on, or what is wrong with it."""
    groups = range(group, file.metadata.num_row_groups)
    there = [name for name in COLUMNS if name in file.schema_arrow.names]
    for batch in file.iter_batches(_ROWS, row_groups=groups, columns=there, use_threads=False) if groups else ():
        columns = [_values(batch, name) for name in COLUMNS]
        events = map(
            tuple.__new__, repeat(Event), zip(range(position, position + batch.num_rows), *columns, strict=True)
        )
        yield from events if _are_ordinary(columns) else (_looked_at(event, check_the_time) for event in events)
        position += batch.num_rows


def _values(batch: Any, name: str) -> list[Any]:
    values = batch.column(name).to_pylist() if name in batch.schema.names else [None] * batch.num_rows
    otherwise = _OTHERWISE.get(name)
    return [value or otherwise for value in values] if otherwise else values


def _are_ordinary(columns: list[list[Any]]) -> bool:
    """Return, at little cost, whether all rows are certainly valid, as in nearly every file."""
    ids, sources, _, types, times, _, _, extensions = columns
    return (
        all(map(all, (ids, sources, types)))
        and not any("\0" in "".join(filter(None, column)) for column in columns[:_TEXTS])
        and all(surely_a_time(time) or is_time(time) for time in times if time is not None)
        and not any(extensions)
    )


def _looked_at(event: Event, check_the_time: Callable[[str | None], object]) -> Event | _Wrong:
    """Return the event of a row, or what is wrong with it."""
    for name in REQUIRED:
        if not getattr(event, name):
            return _Wrong("OCQ-212", f"the column '{name}' is empty")
    for name in COLUMNS[:_TEXTS]:
        if "\0" in (getattr(event, name) or ""):
            return _Wrong("OCQ-212", f"the column '{name}' contains the character U+0000")
    try:
        check_the_time(event.time)
    except ValueError as error:
        return _Wrong("OCQ-212", f"the column 'time' holds no RFC 3339 time: {error}")
    return _wrong_json(event.extensions, "extensions", "JSON object", dict) or event


def _wrong_json(text: str | None, column: str, what: str = "JSON", kind: type = object) -> _Wrong | None:
    """Return what is wrong with the JSON of a column, ``None`` if nothing is."""
    if text is None:
        return None
    try:
        fits, duplicate = isinstance(orjson.loads(text), kind), first_duplicate(text)
    except orjson.JSONDecodeError:
        fits, duplicate = False, None
    if not fits:
        return _Wrong("OCQ-230", f"the column '{column}' holds no {what}")
    return None if duplicate is None else _Wrong("OCQ-230", f"the column '{column}': {duplicate}")


class ParquetRows(EventFile):
    """A Parquet file of events. It is written once; readers start at the row group that they need."""

    skip_limit = 20_000  # beyond that it is quicker to open the file at another row group

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._ends: list[int] = []  # number of rows up to the end of each row group

    @override
    def count(self) -> int:
        if self._count is None:
            with open_parquet(self.path) as file:
                groups = map(file.metadata.row_group, range(file.metadata.num_row_groups))
                self._ends = list(accumulate(group.num_rows for group in groups))
            self._count = self._ends[-1] if self._ends else 0
        return self._count

    @override
    def reader(self, first: int, before: int) -> RowReader:
        self.count()
        self.look(newest=False)
        group = bisect_right(self._ends, first)
        number = self._ends[group - 1] if group else 0
        return RowReader(self.path, open_parquet(self.path), group, number, before)

    @override
    def first(self) -> tuple[str, str] | None:
        with open_parquet(self.path) as file, suppress(*DAMAGE_OF_ROWS):  # damage is reported by reads of all rows
            names = ("id", "source")
            for batch in filter(len, file.iter_batches(1, columns=names, use_threads=False)):
                found = tuple(batch.column(name)[0].as_py() for name in names)
                return cast("tuple[str, str]", found) if all(found) else None
        return None


def open_parquet(path: Path) -> Any:
    """Open a Parquet file of events.

    Raises:
        EventFormatError: OCQ-213, if it is damaged or not complete yet.
        EventStoreError: OCQ-235, if its columns are not those of events.
        OSError: If it cannot be opened.
    """
    from pyarrow.parquet import ParquetFile  # noqa: PLC0415 takes a quarter of a second, and only Parquet needs it

    path.open("rb").close()  # a file that this user may not read is not a damaged one
    try:
        file = ParquetFile(path)
    except DAMAGE_OF_ROWS as error:
        raise damaged(error, str(path)) from error
    wrong = _wrong_columns(file.schema_arrow)
    if wrong:
        file.close()
        fix = f"its columns are {', '.join(COLUMNS)}, all of them text; others are ignored"
        raise EventStoreError("OCQ-235", f"the Parquet file holds no events: {wrong}", str(path), fix)
    return file


def _wrong_columns(schema: Any) -> str:
    missing = [f"there is no column '{name}'" for name in REQUIRED if name not in schema.names]
    missing += [f"there are several columns '{name}'" for name in COLUMNS if schema.names.count(name) > 1]
    fields = [schema.field(name) for name in COLUMNS if schema.names.count(name) == 1]
    other = [f"the column '{field.name}' is {field.type}" for field in fields if not _is_text(field.type)]
    return "; ".join(missing + _misspelt(schema.names) + other)


def _misspelt(names: list[str]) -> list[str]:
    """Return which columns hold an optional attribute under another name, and would be silently ignored."""
    meant = {name: _CLOUD_EVENTS.get(name.lower(), name.lower()) for name in names}
    absent = set(COLUMNS).difference(REQUIRED, names)
    return [f"the column '{name}' must be called '{column}'" for name, column in meant.items() if column in absent]


def _is_text(kind: Any) -> bool:
    from pyarrow import types  # noqa: PLC0415 as above

    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind))

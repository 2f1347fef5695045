"""Going through the rows of one Parquet file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from opencqrs_py.adapters.files.damage import REPAIR, REPAIR_WHOLE, damaged
from opencqrs_py.adapters.files.selected import Selected
from opencqrs_py.errors import EventFormatError
from opencqrs_py.model.duplicate_keys import first_duplicate
from opencqrs_py.model.event import Event
from opencqrs_py.model.times import check_time, is_time, microseconds, surely_a_time

__all__ = ["COLUMNS", "REQUIRED", "RowReader"]

COLUMNS = Event._fields[1:]  # positions are counted, whatever stands in the file
REQUIRED = ("id", "source", "type")

_ROWS = 2_000  # that are decoded at once
_OTHERWISE = {"subject": "/", "content_type": "application/json"}  # instead of what is missing or empty
_TEXTS = 6  # columns that must not contain U+0000: all but the JSON at the end
_PAYLOAD = COLUMNS.index("payload")

Row = tuple[Any, ...]


class RowReader:
    """Goes through the events of a Parquet file once, from the beginning of a row group on.

    Args:
        path: Name of the file in messages.
        file: The file, as ``open_parquet`` returns it.
        group: Number of the row group, from 0.
        number: Number of rows before it.
        before: Number of events in the files before this one.
        imported: Whether the events are no part of a log yet. Then data are looked into as well, which takes as long
            as all else, and the rules for times are the strict ones of imports.
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
        self.ended = False
        self._before = before
        self._imported = imported
        self._fix = REPAIR if imported else REPAIR_WHOLE
        self._file = file
        self._rows = _rows(file, group, check_time if imported else microseconds)

    def __iter__(self) -> RowReader:
        return self

    def __next__(self) -> Event:
        """Return the next event.

        Raises:
            EventFormatError: OCQ-212 for a row that is no event, OCQ-213 if the file is damaged.
        """
        row = self._next_row()
        if row is None:
            self.ended = True
            raise StopIteration
        if self._imported and not isinstance(row, str):
            row = _wrong_json(row[_PAYLOAD], "payload") or row
        if isinstance(row, str):
            raise EventFormatError("OCQ-212", row, f"{self.path}, row {self.number + 1}", self._fix)
        self.number += 1
        return Event(self._before + self.number, *row)

    def take(self, most: int, into: Selected) -> None:
        """Look at the next events and collect them; ``number`` is how many have been passed.

        Args:
            most: Number of events to look at.
            into: What was found before an error is in it, too.

        Raises:
            EventFormatError: As ``__next__``.
        """
        into.add(islice(self, most))

    def skip_to(self, number: int) -> None:
        """Pass over rows, unread, up to the one of that number, from 0, or to the end."""
        while self.number < number and self._next_row() is not None:
            self.number += 1

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _next_row(self) -> Row | str | None:
        try:
            return next(self._rows, None)
        except (OSError, ValueError) as error:  # of pyarrow
            raise damaged(error, f"{self.path}, behind row {self.number}") from error


def _rows(file: Any, group: int, check_the_time: Callable[[str | None], object]) -> Iterator[Row | str]:
    """Yield each row, or what is wrong with it."""
    groups = range(group, file.metadata.num_row_groups)
    there = [name for name in COLUMNS if name in file.schema_arrow.names]
    for batch in file.iter_batches(_ROWS, row_groups=groups, columns=there, use_threads=False) if groups else ():
        columns = [_values(batch, name) for name in COLUMNS]
        rows = zip(*columns, strict=True)
        yield from rows if _are_ordinary(columns) else (_looked_at(row, check_the_time) for row in rows)


def _values(batch: Any, name: str) -> list[Any]:
    values = batch.column(name).to_pylist() if name in batch.schema.names else [None] * batch.num_rows
    otherwise = _OTHERWISE.get(name)
    return [value or otherwise for value in values] if otherwise else values


def _are_ordinary(columns: list[list[Any]]) -> bool:
    """Say at little cost whether all rows are surely right; they are in nearly every file."""
    ids, sources, _, types, times, _, _, extensions = columns
    return (
        all(map(all, (ids, sources, types)))
        and not any("\0" in "".join(filter(None, column)) for column in columns[:_TEXTS])
        and all(surely_a_time(time) or is_time(time) for time in times if time is not None)
        and not any(extensions)
    )


def _looked_at(row: Row, check_the_time: Callable[[str | None], object]) -> Row | str:
    """Return the row, or what is wrong with it."""
    named = dict(zip(COLUMNS, row, strict=True))
    for name in REQUIRED:
        if not named[name]:
            return f"the column '{name}' is empty"
    for name in COLUMNS[:_TEXTS]:
        if "\0" in (named[name] or ""):
            return f"the column '{name}' contains the character U+0000"
    try:
        check_the_time(named["time"])
    except ValueError as error:
        return f"the column 'time' holds no RFC 3339 time: {error}"
    return _wrong_json(named["extensions"], "extensions", "JSON object", dict) or row


def _wrong_json(text: str | None, column: str, what: str = "JSON", kind: type = object) -> str | None:
    """Return what is wrong with the JSON of a column, ``None`` if nothing is."""
    if text is None:
        return None
    try:
        fits, duplicate = isinstance(orjson.loads(text), kind), first_duplicate(text)
    except orjson.JSONDecodeError:
        fits, duplicate = False, None
    if not fits:
        return f"the column '{column}' holds no {what}"
    return None if duplicate is None else f"the column '{column}': {duplicate}"

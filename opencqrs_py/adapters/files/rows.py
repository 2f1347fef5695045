"""Parquet files with one event a row."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

from opencqrs_py.adapters.files.damage import damaged
from opencqrs_py.adapters.files.identity import KnownFile
from opencqrs_py.adapters.files.row_reader import COLUMNS, REQUIRED, RowReader
from opencqrs_py.errors import EventStoreError

__all__ = ["ParquetRows", "open_parquet"]


class ParquetRows:
    """A Parquet file of events. It is written once; readers start at the row group that they need."""

    skip_limit = 20_000  # beyond that it is quicker to open the file at another row group

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known = KnownFile(path)
        self._ends: list[int] | None = None  # number of rows up to the end of each row group

    def look(self, *, newest: bool) -> None:
        """Take in how large the file is; it may grow until it could be read."""
        del newest
        self.known.look(may_grow=self._ends is None)

    def count(self) -> int:
        """Return how many events there are, from the file's footer.

        Raises:
            EventFormatError: OCQ-213, if the file is damaged or not complete yet.
            EventStoreError: OCQ-235, if its columns are not those of events.
        """
        ends = self._row_groups()
        return ends[-1] if ends else 0

    def may_hold(self, number: int) -> bool:
        """Return whether there is an event of that number, from 0."""
        return number < self.count()

    def extent(self, number: int) -> tuple[int, bytes]:
        """Return the file's size in bytes, and its digest."""
        del number
        return self.known.size, self.known.print

    def has_grown_from(self, size: int, digest: bytes) -> bool:
        """Return ``False``: no part of a Parquet file can be read before the file is complete."""
        del size, digest
        return False

    def reader(self, first: int, before: int) -> RowReader:
        """Open a reader at the row group that has the event of that number."""
        ends = self._row_groups()
        self.look(newest=False)
        group = bisect_right(ends, first)
        return RowReader(self.path, open_parquet(self.path), group, ends[group - 1] if group else 0, before)

    def _row_groups(self) -> list[int]:
        if self._ends is None:
            with open_parquet(self.path) as file:
                groups = range(file.metadata.num_row_groups)
                self._ends = list(accumulate(file.metadata.row_group(group).num_rows for group in groups))
        return self._ends


def open_parquet(path: Path) -> Any:
    """Open a Parquet file of events.

    Raises:
        EventFormatError: OCQ-213, if it is damaged or not complete yet.
        EventStoreError: OCQ-235, if its columns are not those of events.
        OSError: If it cannot be opened.
    """
    from pyarrow.parquet import ParquetFile  # noqa: PLC0415 takes a quarter of a second, and only Parquet needs it

    path.open("rb").close()  # a file that may not be read is no damaged one
    try:
        file = ParquetFile(path)
    except (OSError, ValueError) as error:
        raise damaged(error, str(path)) from error
    wrong = _wrong_columns(file.schema_arrow)
    if wrong:
        file.close()
        fix = f"its columns are {', '.join(COLUMNS)}, all of them text; others are passed over"
        raise EventStoreError("OCQ-235", f"the Parquet file holds no events: {wrong}", str(path), fix)
    return file


def _wrong_columns(schema: Any) -> str:
    missing = [f"there is no column '{name}'" for name in REQUIRED if name not in schema.names]
    fields = [schema.field(name) for name in COLUMNS if name in schema.names]
    other = [f"the column '{field.name}' is {field.type}" for field in fields if not _is_text(field.type)]
    return "; ".join(missing + other)


def _is_text(kind: Any) -> bool:
    from pyarrow import types  # noqa: PLC0415 as above

    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_null(kind))

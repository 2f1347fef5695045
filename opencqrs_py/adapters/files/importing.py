"""All events of one file, from its beginning to its end."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import BinaryIO

from opencqrs_py.adapters.files.formats import Compression, Kind, format_of
from opencqrs_py.adapters.files.line_reader import LineReader
from opencqrs_py.adapters.files.opening import unpacked
from opencqrs_py.adapters.files.row_reader import RowReader
from opencqrs_py.adapters.files.rows import open_parquet
from opencqrs_py.model.event import Event

__all__ = ["events_of_file", "events_of_lines"]


def events_of_file(path: Path) -> Generator[Event, None, None]:
    """Yield a file's events, also that of a last line without its line end.

    A file whose suffix is unknown is taken for lines, uncompressed unless it ends with ``.gz`` or ``.zst``.

    Raises:
        EventFormatError: OCQ-212, 230 or 231, naming file and line (or row) of what is no event, or whose data are
            no JSON; OCQ-213, if the file is damaged.
        EventStoreError: OCQ-235, if the columns of a Parquet file are not those of events.
        OSError: If it cannot be opened.
    """
    known = format_of(path.name)
    if known is not None and known.kind is Kind.ROWS:
        reader: RowReader | LineReader = RowReader(path, open_parquet(path), imported=True)
    else:
        compression = known.compression if known else _last_suffix(path)
        reader = LineReader(path, unpacked(path, compression), compressed=compression is not Compression.NONE)
    try:
        yield from reader
    finally:
        reader.close()


def events_of_lines(lines: BinaryIO, name: str) -> Generator[Event, None, None]:
    """Yield the events of an open stream of lines, which messages call ``name``.

    Raises:
        EventFormatError: OCQ-212, 230 or 231, naming the line of what is no event; OCQ-213, if the stream breaks off.
    """
    yield from LineReader(name, lines, compressed=True)


def _last_suffix(path: Path) -> Compression:
    suffixes = {compression.value: compression for compression in Compression}
    return suffixes.get(path.suffix.lower(), Compression.NONE)

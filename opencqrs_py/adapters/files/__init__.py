"""Implementations of the ports on files: NDJSON and Parquet, one by one or in folders."""

from opencqrs_py.adapters.files.event_source import FileEventSource
from opencqrs_py.adapters.files.formats import Compression, FileFormat, FileKind, format_of
from opencqrs_py.adapters.files.log import listing, path_of_url, warn_of_ignored, warn_of_order
from opencqrs_py.adapters.files.whole_files import (
    EventWriter,
    blocks_of,
    event_line,
    events_of_file,
    events_of_lines,
    writer_to,
    written_whole,
)

__all__ = [
    "Compression",
    "EventWriter",
    "FileEventSource",
    "FileFormat",
    "FileKind",
    "blocks_of",
    "event_line",
    "events_of_file",
    "events_of_lines",
    "format_of",
    "listing",
    "path_of_url",
    "warn_of_ignored",
    "warn_of_order",
    "writer_to",
    "written_whole",
]

"""Ports fulfilled on files: NDJSON and Parquet, one by one or in folders."""

from opencqrs_py.adapters.files.event_source import FileEventSource
from opencqrs_py.adapters.files.folder import files_of
from opencqrs_py.adapters.files.formats import Compression, FileFormat, Kind, format_of
from opencqrs_py.adapters.files.importing import events_of_file, events_of_lines
from opencqrs_py.adapters.files.location import path_of_url
from opencqrs_py.adapters.files.replacing import written_whole
from opencqrs_py.adapters.files.writing import EventWriter, event_line, writer_to

__all__ = [
    "Compression",
    "EventWriter",
    "FileEventSource",
    "FileFormat",
    "Kind",
    "event_line",
    "events_of_file",
    "events_of_lines",
    "files_of",
    "format_of",
    "path_of_url",
    "writer_to",
    "written_whole",
]

"""Kinds of files that hold events, told by their names."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["SUFFIXES", "Compression", "FileFormat", "Kind", "format_of"]


class Kind(Enum):
    """How events stand in a file."""

    LINES = "ndjson"  # one CloudEvent a line
    ROWS = "parquet"  # one event a row


class Compression(Enum):
    """What a file of lines is compressed with, by its last suffix."""

    NONE = ""
    GZIP = ".gz"
    ZSTD = ".zst"


@dataclass(frozen=True, slots=True)
class FileFormat:
    """How a file is read and written."""

    kind: Kind
    compression: Compression = Compression.NONE


_LINES = (".ndjson", ".jsonl")
SUFFIXES = ".ndjson or .jsonl (also with .gz or .zst behind it), or .parquet"


def format_of(name: str) -> FileFormat | None:
    """Return the format of the file with that name, or ``None`` if its suffix is none of events.

    Case does not count.
    """
    lower = name.lower()
    if lower.endswith(".parquet"):
        return FileFormat(Kind.ROWS)
    for compression in (Compression.GZIP, Compression.ZSTD, Compression.NONE):
        if lower.endswith(tuple(suffix + compression.value for suffix in _LINES)):
            return FileFormat(Kind.LINES, compression)
    return None

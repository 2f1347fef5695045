"""The formats of files that hold events, and how they are unpacked."""

from __future__ import annotations

import gzip
import io
import zlib
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import BinaryIO, cast

from opencqrs_py.errors import DamagedFileError

SUFFIXES = ".ndjson or .jsonl (also followed by .gz or .zst), or .parquet"
_LINES = (".ndjson", ".jsonl")
_BUFFER = 256 * 1024  # bytes
DAMAGE = (EOFError, OSError, zlib.error)  # what is raised for compressed bytes that are truncated or invalid
DAMAGE_OF_ROWS = (OSError, ValueError)  # likewise, of Parquet; ``damaged`` raises those of the operating system
REPAIR = "repair the file, then restart"
REPAIR_WHOLE = (
    "repair the file, then clear log_fingerprint in the rows of opencqrs_progress whose position is in it, since it is "
    "another file now (OCQ-316), and restart"
)


class FileKind(Enum):
    """How a file holds events."""

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

    kind: FileKind
    compression: Compression = Compression.NONE


def format_of(name: str) -> FileFormat | None:
    """Return the format of the file with that name, or ``None`` if its suffix is not one of event files.

    Case does not matter.
    """
    lower = name.lower()
    if lower.endswith(".parquet"):
        return FileFormat(FileKind.ROWS)
    for compression in (Compression.GZIP, Compression.ZSTD, Compression.NONE):
        if lower.endswith(tuple(suffix + compression.value for suffix in _LINES)):
            return FileFormat(FileKind.LINES, compression)
    return None


def damaged(why: object, where: str) -> DamagedFileError:
    """Return the error for a file that cannot be read to its end.

    Raises:
        OSError: ``why`` itself if it has an errno: then the operating system could not read, whatever is in the file.
    """
    if isinstance(why, OSError) and why.errno is not None:
        raise why
    fix = f"if it is still being written, wait until it is complete, and give it a hidden name next time; else {REPAIR}"
    return DamagedFileError("OCQ-213", f"the file cannot be read to its end ({why})", where, fix)


def unpacked(path: Path, compression: Compression) -> BinaryIO:
    """Open a file and return its unpacked bytes.

    Raises:
        OSError: If it cannot be opened. Errors in its content show when it is read.
        EventFormatError: OCQ-213, if it is empty, as compressed files never are.
    """
    if compression is Compression.NONE:
        return path.open("rb")
    if path.stat().st_size == 0:
        raise damaged("it is empty", str(path))
    if compression is Compression.GZIP:
        return cast("BinaryIO", io.BufferedReader(cast("io.RawIOBase", gzip.open(path, "rb")), _BUFFER))
    return cast("BinaryIO", io.BufferedReader(_zstd(path), _BUFFER))


def _zstd(path: Path) -> io.RawIOBase:
    import pyarrow as pa  # noqa: PLC0415 takes a quarter of a second, and only .zst needs it

    return cast("io.RawIOBase", pa.input_stream(str(path), compression="zstd"))

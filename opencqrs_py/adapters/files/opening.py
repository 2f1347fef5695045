"""Opening files of lines, whatever they are compressed with."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import BinaryIO, cast

from opencqrs_py.adapters.files.damage import damaged
from opencqrs_py.adapters.files.formats import Compression

__all__ = ["unpacked"]

_BUFFER = 256 * 1024  # bytes


def unpacked(path: Path, compression: Compression) -> BinaryIO:
    """Open a file and return its unpacked bytes.

    Raises:
        OSError: If it cannot be opened. What is wrong with its content shows when it is read.
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

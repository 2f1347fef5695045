"""All events of one file: read from its beginning to its end, or written."""

from __future__ import annotations

import errno
import gzip
import os
import stat
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import orjson

from opencqrs_py.adapters.files.event_file import EventReader
from opencqrs_py.adapters.files.formats import Compression, FileFormat, FileKind, format_of, unpacked
from opencqrs_py.adapters.files.lines import LineReader
from opencqrs_py.adapters.files.rows import RowReader, open_parquet
from opencqrs_py.errors import UnreadableFileError
from opencqrs_py.model.cloudevents import extensions_of, names_of_attributes
from opencqrs_py.model.event import Event
from opencqrs_py.model.json_text import without_space
from opencqrs_py.model.times import microseconds

_GZIP_LEVEL = 6
_BLOCK = 1024 * 1024  # bytes
_ROWS_PER_GROUP = 20_000  # a reader that starts in the middle decodes half of them for nothing
_READABLE = "make sure that it exists, that this user may read it, and that its disk works"
_CANNOT = (errno.EINVAL, errno.ENOTSUP)  # of file systems that have no way to sync a folder


def events_of_file(path: Path) -> Generator[Event, None, None]:
    """Yield a file's events, including that of a last line without its line end.

    A file with an unknown suffix is read as lines, uncompressed unless it ends with ``.gz`` or ``.zst``.

    Raises:
        EventFormatError: OCQ-212, 230 or 231, naming file and line (or row) of what is not an event, or whose data are
            no JSON; OCQ-213, if the file is damaged.
        EventStoreError: OCQ-235, if the columns of a Parquet file are not those of events.
        UnreadableFileError: OCQ-340, if the operating system cannot read the file.
    """
    with _explained(str(path)), closing(_reader_of(path)) as reader:
        yield from reader


def _reader_of(path: Path) -> EventReader:
    known = format_of(path.name)
    if known is not None and known.kind is FileKind.ROWS:
        return RowReader(path, open_parquet(path), imported=True)
    compression = known.compression if known else _last_suffix(path)
    return LineReader(path, unpacked(path, compression), compressed=compression is not Compression.NONE)


def events_of_lines(lines: BinaryIO, name: str) -> Generator[Event, None, None]:
    """Yield the events of an open stream of lines, which messages call ``name``.

    Raises:
        EventFormatError: OCQ-212, 230 or 231, naming the line of what is not an event; OCQ-213, if the stream ends
            too early.
        UnreadableFileError: OCQ-340, if the operating system cannot read it.
    """
    with _explained(name):
        yield from LineReader(name, lines, compressed=True)


def blocks_of(stream: BinaryIO, name: str) -> Iterator[bytes]:
    """Yield the bytes of an open stream, which messages call ``name``; raises OCQ-340 as ``events_of_lines``."""
    with _explained(name):
        while block := stream.read(_BLOCK):
            yield block


@contextmanager
def _explained(name: str) -> Iterator[None]:
    """Raise an ``OSError`` as an explained error that names the file."""
    try:
        yield
    except OSError as error:
        what = f"the file cannot be read ({error.strerror or error})"
        raise UnreadableFileError("OCQ-340", what, name, _READABLE) from error


def _last_suffix(path: Path) -> Compression:
    suffixes = {compression.value: compression for compression in Compression}
    return suffixes.get(path.suffix.lower(), Compression.NONE)


class EventWriter(Protocol):
    """Writes events to a file.

    Attributes:
        left_out: Names in the metadata of events that the file cannot hold, because they are names of attributes.
    """

    left_out: set[str]

    def write(self, events: Sequence[Event]) -> None:
        """Write events after those that were written before.

        Raises:
            EventFormatError: OCQ-210, if an event's data are not JSON.
        """
        ...


@contextmanager
def writer_to(file: BinaryIO, form: FileFormat) -> Iterator[EventWriter]:
    """Write events to an open file; it is complete at the end of the block, and stays open.

    NDJSON has one CloudEvent a line, with the data as they are stored. Parquet has the columns of an event, its data
    and extensions as JSON text, and besides ``timestamp``, the time to the microsecond, to calculate with.
    """
    if form.kind is FileKind.ROWS:
        with _row_writer(file) as rows:
            yield rows
        return
    with _packed(file, form.compression) as packed:
        yield _LineWriter(packed)


def event_line(event: Event) -> bytes:
    """Return an event as a line in CloudEvents' JSON format, with its line end.

    It contains the data as stored; if they contain line ends, without white space between their parts.

    Raises:
        EventFormatError: OCQ-210, if the event's data are not JSON.
    """
    fields: dict[str, Any] = {
        "specversion": "1.0",
        "id": event.id,
        "source": event.source,
        "subject": event.subject,
        "type": event.type,
    }
    if event.time is not None:
        fields["time"] = event.time
    fields["datacontenttype"] = event.content_type
    if event.payload is not None:
        _ = event.data  # refuses what is not JSON
        one_line = "\n" not in event.payload and "\r" not in event.payload
        fields["data"] = orjson.Fragment(event.payload if one_line else without_space(event.payload))
    if event.extensions is not None:
        fields = {**extensions_of(event), **fields}
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


class _LineWriter:
    def __init__(self, file: BinaryIO) -> None:
        self.left_out: set[str] = set()
        self._file = file

    def write(self, events: Sequence[Event]) -> None:
        self._file.write(b"".join(map(event_line, events)))
        self.left_out.update(*map(names_of_attributes, events))


class _RowWriter:
    def __init__(self, file: Any, schema: Any) -> None:
        self.left_out: set[str] = set()
        self._file = file
        self._schema = schema
        self._waiting: list[Event] = []

    def write(self, events: Sequence[Event]) -> None:
        self._waiting += events
        while len(self._waiting) >= _ROWS_PER_GROUP:
            self.flush(_ROWS_PER_GROUP)

    def flush(self, rows: int) -> None:
        """Write a row group."""
        import pyarrow as pa  # noqa: PLC0415 as below

        group, self._waiting = self._waiting[:rows], self._waiting[rows:]
        columns = [*zip(*group, strict=True), list(map(_timestamp, group))]
        fields = zip(columns, self._schema, strict=True)
        arrays = [pa.array(column, field.type) for column, field in fields]
        self._file.write_batch(pa.record_batch(arrays, schema=self._schema))

    def finish(self) -> None:
        """Write the rows that wait."""
        if self._waiting:
            self.flush(len(self._waiting))


def _timestamp(event: Event) -> int | None:
    """Return the event's time to calculate with, ``None`` if it is not a time: foreign tables hold any text."""
    try:
        return microseconds(event.time)
    except ValueError:
        return None


@contextmanager
def _row_writer(file: BinaryIO) -> Iterator[_RowWriter]:
    import pyarrow.parquet  # noqa: PLC0415 takes a quarter of a second, and only Parquet needs it

    texts = [(name, pyarrow.string()) for name in Event._fields[1:]]
    schema = pyarrow.schema([("position", pyarrow.int64()), *texts, ("timestamp", pyarrow.timestamp("us", "UTC"))])
    with pyarrow.parquet.ParquetWriter(file, schema, compression="zstd") as parquet:
        rows = _RowWriter(parquet, schema)
        yield rows
        rows.finish()


@contextmanager
def _packed(file: BinaryIO, compression: Compression) -> Iterator[BinaryIO]:
    match compression:
        case Compression.NONE:
            yield file
        case Compression.GZIP:
            with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as packed:
                yield cast("BinaryIO", packed)
        case Compression.ZSTD:
            import pyarrow as pa  # noqa: PLC0415 as above

            with pa.CompressedOutputStream(pa.PythonFile(_StaysOpen(file), mode="w"), "zstd") as packed:
                yield cast("BinaryIO", packed)


class _StaysOpen:
    """A file that stays open when a writer closes it."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self.write = file.write
        self.flush = file.flush

    def close(self) -> None:
        self.flush()


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that gets its name, and is synced to disk, at the end of the block.

    Until then its name begins with ``.``, so that no event source reads it. If the block raises, it is removed, and an
    existing file of that name stays unchanged. From its beginning the new file has the mode of the one that it
    replaces, and its owner and group where this user may give them away; any other has the mode that the umask leaves.
    The name is on the disk, too, where the platform supports that: not on Windows, nor in a folder that this user may
    not list.

    Raises:
        OSError: If it cannot be written; or, with the new file in its place, if the disk fails to keep the name.
    """
    hidden = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(hidden, "wb", opener=partial(_open_for, path)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        hidden.replace(path)
        _sync(path.parent)
    except BaseException:
        with suppress(OSError):
            hidden.unlink()
        raise


def _open_for(path: Path, hidden: str, flags: int) -> int:
    """Open a file that will replace another one, which may be private."""
    try:
        replaced = path.stat()
    except FileNotFoundError:
        return os.open(hidden, flags, 0o666)
    opened = os.open(hidden, flags, 0o600)
    if os.name == "posix":
        _give_rights(opened, replaced)
    return opened


def _give_rights(opened: int, replaced: os.stat_result) -> None:
    for owner in (replaced.st_uid, -1):  # only root may change a file's owner; the owner may set only its own groups
        with suppress(PermissionError):
            os.fchown(opened, owner, replaced.st_gid)
            break
    mode = stat.S_IMODE(replaced.st_mode)
    os.fchmod(opened, mode if os.fstat(opened).st_gid == replaced.st_gid else mode & ~stat.S_IRWXG)


def _sync(folder: Path) -> None:
    try:
        opened = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(opened)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    finally:
        os.close(opened)

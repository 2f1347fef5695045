"""Files with one CloudEvent a line: how their lines are read, and found again."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from io import FileIO
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from typing_extensions import override

from opencqrs_py.adapters.files.doubles import Doubles
from opencqrs_py.adapters.files.event_file import EventFile, EventReader, Selected, fingerprint
from opencqrs_py.adapters.files.formats import DAMAGE, REPAIR, REPAIR_WHOLE, Compression, damaged, unpacked
from opencqrs_py.errors import EventFormatError, EventStoreError, IncompleteLineError
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.event import Event
from opencqrs_py.model.event_lines import columns_of
from opencqrs_py.model.line_shapes import Shapes

_SKIPPED_AT_ONCE = 1_000  # lines
_AT_ONCE = 24 * 1024  # bytes that are parsed together; larger parts would not stay in the processor's caches
_FIRST = 64  # lines that are parsed together, until their length is known
_BUFFER = 128 * 1024  # bytes
_TAIL = 256  # bytes read at once while the end of an event is looked for
_PLACES = 128  # that are remembered; further groups begin at a mark of the index, at little cost
_BLOCK = 256 * 1024  # bytes between two marks, about: on average half of them are scanned before a read
_UTF_16 = ("UTF-16, not UTF-8", "convert the file to UTF-8, as with iconv -f UTF-16 -t UTF-8")
_OF_OTHER_FILES = {
    BOM_UTF16_LE: _UTF_16,
    BOM_UTF16_BE: _UTF_16,
    b"\x1f\x8b": ("packed by gzip, but its name does not end with .gz", "rename it"),
    b"\x28\xb5\x2f\xfd": ("packed by Zstandard, but its name does not end with .zst", "rename it"),
    b"PAR1": ("Parquet, but its name does not end with .parquet", "rename it"),
    b"PK\x03\x04": ("a ZIP archive, not lines of JSON", "unpack it"),
}
"""The first bytes of files without lines of JSON, what such a file is, and the fix."""


class Mark(NamedTuple):
    """A place between two lines: the numbers of events, of lines and of bytes before it."""

    event: int = 0
    line: int = 0
    offset: int = 0


class LineReader(EventReader):
    """Iterates over a file's events once, from the beginning or a mark.

    Args:
        path: Name of the file in messages.
        file: The file, opened (and unpacked), at the mark.
        mark: Its current place.
        before: Number of events in the log's files before this one; the first event here has the next position.
            ``None`` if the lines are not part of a log yet: then the rules for times are the strict ones of imports.
        size: Bytes to be read at most; ``None`` for all.
        unfinished: Whether a last line without its end may still be written, and is not an event yet.
        compressed: Whether errors of reading mean that the content is damaged.
        at_end: Called at the end of the file with the number of its events.
        at_stop: Called with the current place when the reader is closed before the end; needs ``size``.
        doubles: Looks for events that occur twice in the file; ``None``: not checked.
        shapes: What other readers have learnt of the shapes of its lines.
    """

    def __init__(  # noqa: PLR0913 what a file knows of itself, and learns from its reader
        self,
        path: Path | str,
        file: BinaryIO,
        mark: Mark = Mark(),  # noqa: B008 frozen
        *,
        before: int | None = None,
        size: int | None = None,
        unfinished: bool = False,
        compressed: bool = False,
        at_end: Callable[[int], None] | None = None,
        at_stop: Callable[[Mark], None] | None = None,
        doubles: Doubles | None = None,
        shapes: Shapes | None = None,
    ) -> None:
        self.path = path
        self.number = mark.event
        self._before = before or 0
        self._stored = before is not None
        self._line = mark.line
        self._offset = mark.offset  # of what was taken
        self._size = size
        self._read_to = mark.offset
        self._at_once = _FIRST
        self._file = file
        self._unfinished = unfinished
        self._damage = DAMAGE if compressed else ()
        self._damaged: BaseException | None = None
        self._at_end = at_end
        self._at_stop = at_stop
        self._doubles = doubles
        self._shapes = shapes or Shapes()
        self._fix = REPAIR_WHOLE if self._stored and compressed else REPAIR

    @property
    def mark(self) -> Mark:
        """The current place of the reader."""
        return Mark(self.number, self._line, self._offset)

    @override
    def __iter__(self) -> Iterator[Event]:
        while lines := self._read(1):
            yield from self._parsed_each(lines)

    @override
    def take(self, most: int, into: Selected) -> None:
        end = self.number + most
        while self.number < end and (lines := self._read(min(end - self.number, self._at_once))):
            begun = self._offset
            if self._take_together(lines, into):
                self._line += len(lines)
                self._offset = self._read_to
            else:
                into.add(self._parsed_each(lines))
            size = max(self._offset - begun, 1)
            self._at_once = min(_AT_ONCE * len(lines) // size + 1, _SKIPPED_AT_ONCE)

    @override
    def skip_to(self, number: int) -> None:
        while self.number < number and (lines := self._read(min(number - self.number, _SKIPPED_AT_ONCE))):
            self._pass(lines, _events_in(lines))

    @override
    def close(self) -> None:
        if self._at_stop is not None and self._size is not None and not self.ended:
            self._at_stop(self.mark)
        self._file.close()

    def _take_together(self, lines: list[bytes], into: Selected) -> bool:
        columns, given = columns_of(lines, self._shapes), lines
        if columns is None and any(map(bytes.isspace, lines)):
            lines = list(filter(bytes.strip, lines))
            columns = columns_of(lines, self._shapes)
        if columns is None:
            return False
        if self._doubles is not None:
            self._doubles.look(columns, self.number, given, self._line)
        into.add_lines(lines, columns, self._before + self.number + 1)
        self.number += len(lines)
        return True

    def _parsed_each(self, lines: list[bytes]) -> Iterator[Event]:
        for line in lines:
            event = self._parsed(line) if line.strip() else None
            self._pass((line,), int(event is not None))
            if event is not None:
                yield event

    def _parsed(self, line: bytes) -> Event:
        try:
            return parse_event(line, self._before + self.number + 1, stored=self._stored)
        except EventFormatError as error:
            place = f"{self.path}:{self._line + 1}"
            beginning = next(filter(line.startswith, _OF_OTHER_FILES), b"") if self._line == 0 else b""
            if beginning:
                what, fix = _OF_OTHER_FILES[beginning]
                raise EventFormatError(error.code, f"the file is {what}", place, f"{fix}, then restart") from None
            if self._may_be_completed(line):
                what = f"the file's last line is not complete, although another file comes after it: {error.what}"
                fix = "have its writer complete the line before it begins the next file; or repair the line"
                raise IncompleteLineError("OCQ-213", what, place, fix) from None
            raise EventFormatError(error.code, error.what, place, self._fix) from None

    def _may_be_completed(self, line: bytes) -> bool:
        return self._stored and self._size is not None and not line.endswith(b"\n")

    def _pass(self, lines: Sequence[bytes], events: int) -> None:
        self.number += events
        self._line += len(lines)
        self._offset += sum(map(len, lines))

    def _read(self, most: int) -> list[bytes]:
        """Return the next lines, including empty ones; none at the end."""
        lines: list[bytes] = []
        if self._damaged is None and not self.ended:
            try:
                lines.extend(islice(self._file, most))
            except self._damage as error:
                self._damaged = error  # the lines before it come first
        self._leave_out(lines)
        if lines:
            if self._offset == 0 and lines[0].startswith(BOM_UTF8):
                self._offset = len(BOM_UTF8)
                lines[0] = lines[0][self._offset :]
            return lines
        if self._damaged is not None:
            raise damaged(self._damaged, f"{self.path}, after line {self._line}") from self._damaged
        if not self.ended:
            self.ended = True
            if self._at_end is not None:
                self._at_end(self.number)
        return lines

    def _leave_out(self, lines: list[bytes]) -> None:
        """Drop what is beyond the bytes to be read, and a last line that may still be being written."""
        self._read_to += sum(map(len, lines))
        while lines and self._size is not None and self._read_to > self._size:
            self._read_to -= len(lines.pop())
        if self._unfinished and lines and not lines[-1].endswith(b"\n"):
            self._read_to -= len(lines.pop())


class LineIndex:
    """Marks in a file of lines that may grow. A line without its end is not counted.

    It takes 24 bytes for each 256 KiB of the file.
    """

    def __init__(self) -> None:
        self.end = Mark()
        self._marks = (array("q", [0]), array("q", [0]), array("q", [0]))

    def advance(self, file: BinaryIO, size: int) -> None:
        """Continue through the file, up to its last line end before the byte ``size``. Moves in the file."""
        file.seek(self.end.offset)
        rest, wanted = b"", _BLOCK
        while more := file.read(min(wanted, size - self.end.offset - len(rest))):
            block = rest + more if rest else more
            *lines, rest = block.split(b"\n")
            if lines:
                event, line, offset = self.end
                if offset == 0:
                    lines[0] = lines[0].removeprefix(BOM_UTF8)
                passed = Mark(event + _events_in(lines), line + len(lines), offset + len(block) - len(rest))
                self.pass_to(passed)
            wanted = _BLOCK if lines else len(rest)  # a line longer than a block: read twice as much

    def pass_to(self, mark: Mark) -> None:
        """Take over the counts of a reader that began at a mark of this index."""
        if mark.offset > self.end.offset:
            self.end = mark
            for column, value in zip(self._marks, mark, strict=True):
                column.append(value)

    def mark_before(self, event: int) -> Mark:
        """Return the last mark at or before the event of that number, from 0."""
        if event < 0:
            raise ValueError(f"an event has no number {event}")
        at = bisect_right(self._marks[0], event) - 1
        return Mark(*(column[at] for column in self._marks))


class PlainLines(EventFile):
    """An uncompressed file of lines. It may grow for as long as no file comes after it."""

    skip_limit = 0

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._index = LineIndex()
        self._doubles = Doubles(path)
        self._shapes = Shapes()
        self._places: dict[int, Mark] = {}  # where readers stopped or events end, by the number of the next event
        self._closed = False
        self._refusal: EventStoreError | None = None

    @override
    def look(self, *, newest: bool) -> None:
        if self._refusal is not None:
            raise self._refusal
        size = self.known.size
        self.known.look(may_grow=self._may_grow(), opened=not newest and not self._closed)
        self._closed = not newest
        if self._count is not None and self.known.size > size:
            self._check_growth(self._count)

    @override
    def may_hold(self, number: int) -> bool:
        place = self._places.get(number)
        return number == 0 or (place is not None and place.offset < self.known.size) or number < self.count()

    @override
    def count(self) -> int:
        if self._count is not None:
            return self._count
        tail = b""
        if self._index.end.offset < self.known.size:
            with self.path.open("rb") as file:
                self._index.advance(file, self.known.size)
                if self._closed:
                    file.seek(self._index.end.offset)
                    tail = file.read(self.known.size - self._index.end.offset)
        events = self._index.end.event + _holds_event(tail, self._index.end.offset)
        if self._closed:
            self._count = events
        return events

    def unfinished(self) -> int:
        """Return the number of the last line, from 1, if it is not empty and has no end; else 0.

        A zero alone is the second half of a line feed in UTF-16, which is reported for the first line.
        """
        place = self._index.end
        if self._closed or place.offset >= self.known.size:
            return 0
        with self.path.open("rb") as file:
            file.seek(place.offset)
            rest = file.read(_TAIL)
        return place.line + 1 if rest != b"\0" and _holds_event(rest, place.offset) else 0

    @override
    def extent(self, number: int) -> tuple[int, bytes]:
        """See ``EventFile``. White space after the events is ignored, so nothing changes when a line gets its end."""
        count = self.count()
        if number < count:
            end = self._end_of(number)
        else:
            end = self.known.size if count > self._index.end.event else self._index.end.offset
        with self.path.open("rb", buffering=0) as file:
            size = _without_space(file, end)
            return size, fingerprint(file, size)

    @override
    def reader(self, first: int, before: int) -> LineReader:
        self.look(newest=not self._closed)
        mark = self._places.get(first) or self._index.mark_before(first)
        return LineReader(
            self.path,
            self._opened(mark),
            mark,
            before=before,
            size=self.known.size,
            unfinished=not self._closed,
            at_stop=self._remember,
            doubles=self._doubles,
            shapes=self._shapes,
        )

    @override
    def first(self) -> tuple[str, str] | None:
        return _first_of(LineReader(self.path, self._opened(Mark()), before=0, unfinished=not self._closed))

    def _opened(self, mark: Mark) -> BinaryIO:
        file = self.path.open("rb", buffering=_BUFFER)
        file.seek(mark.offset)
        return file

    def _may_grow(self) -> bool:
        """Return whether something may be added: what follows moves no event, or the last line lacks its end."""
        return not self._closed or self._count is None or self._count > self._index.end.event

    def _check_growth(self, events: int) -> None:
        """Refuse what was added to a closed file, unless it only completes the last line."""
        self._count = None
        if self.count() != events:
            what = "has grown by more than the end of its last line after a file came after it"
            self._refusal = self.known.refused(what)
            raise self._refusal

    def _end_of(self, number: int) -> int:
        """Return the byte after the line that holds the event of that number, from 1."""
        if number not in self._places:
            known = [place for event, place in self._places.items() if event < number]
            nearest = max([*known, self._index.mark_before(number - 1)])
            with closing(LineReader(self.path, self._opened(nearest), nearest)) as reader:
                reader.skip_to(number)
                if reader.number < number:
                    raise self.known.refused("has shrunk")
                self._keep(reader.mark)
        return self._places[number].offset

    def _remember(self, stop: Mark) -> None:
        self._keep(stop)
        if stop.offset < self.known.size:  # a last line without its end may still get it
            self._index.pass_to(stop)

    def _keep(self, place: Mark) -> None:
        self._places.pop(place.event, None)
        self._places[place.event] = place
        if len(self._places) > _PLACES:
            del self._places[next(iter(self._places))]


def _events_in(lines: Sequence[bytes]) -> int:
    """Return how many lines are not empty; a line with only a byte order mark is empty."""
    return len(lines) - lines.count(b"") - sum(map(bytes.isspace, lines))


def _holds_event(line: bytes, offset: int) -> bool:
    """Return whether a line is not empty; at the beginning of a file a byte order mark is ignored."""
    return bool((line.removeprefix(BOM_UTF8) if offset == 0 else line).strip())


def _first_of(lines: LineReader) -> tuple[str, str] | None:
    """Return id and source of the first event, ``None`` if there is none, and close the reader."""
    with closing(lines), suppress(EventFormatError):
        for event in lines:
            return event.id, event.source
    return None


def _without_space(file: FileIO, end: int) -> int:
    """Return where the last byte before ``end`` that is not a space ends."""
    while end > 0:
        start = max(end - _TAIL, 0)
        file.seek(start)
        kept = len(file.read(end - start).rstrip())
        if kept:
            return start + kept
        end = start
    return 0


class CompressedLines(EventFile):
    """A compressed file of lines. It is written once; readers go through it from the beginning."""

    skip_limit = sys.maxsize

    def __init__(self, path: Path, compression: Compression) -> None:
        super().__init__(path)
        self._compression = compression
        self._doubles = Doubles(path)
        self._shapes = Shapes()

    @override
    def count(self) -> int:
        if self._count is None:
            with closing(unpacked(self.path, self._compression)) as file:
                try:
                    self._count = _holds_event(file.readline(), 0) + sum(1 for line in file if not line.isspace())
                except DAMAGE as error:
                    raise damaged(error, str(self.path)) from error
        return self._count

    @override
    def check(self) -> None:
        """See ``EventFile``. Truncation of the file shows only at its end."""
        if self._count is None:
            with closing(unpacked(self.path, self._compression)) as file:
                try:
                    file.read(1)
                except DAMAGE as error:
                    raise damaged(error, str(self.path)) from error

    @override
    def is_counted(self) -> bool:
        return self._count is not None

    @override
    def may_hold(self, number: int) -> bool:
        """See ``EventFile``. Looking for the event takes no longer than counting, and leaves a reader there."""
        return self._count is None or number < self._count

    @override
    def has_grown_from(self, size: int, digest: bytes) -> bool:
        with self.path.open("rb") as file:
            return self.known.size > size and fingerprint(file, size) == digest

    @override
    def reader(self, first: int, before: int) -> LineReader:
        del first
        self.look(newest=False)
        return LineReader(
            self.path,
            unpacked(self.path, self._compression),
            before=before,
            compressed=True,
            at_end=partial(self._learn, self.known.size),
            doubles=self._doubles,
            shapes=self._shapes,
        )

    @override
    def first(self) -> tuple[str, str] | None:
        return _first_of(LineReader(self.path, unpacked(self.path, self._compression), before=0, compressed=True))

    def _learn(self, size: int, count: int) -> None:
        """Take over what a reader has counted, unless the file has grown since, or was replaced by a longer one."""
        if self.known.size == size:
            self._count = count

"""Files with one CloudEvent a line."""

from __future__ import annotations

import sys
from array import array
from bisect import bisect_right
from codecs import BOM_UTF8
from contextlib import closing
from io import FileIO
from pathlib import Path
from typing import BinaryIO

from typing_extensions import override

from opencqrs_py.adapters.files.event_file import EventFile, fingerprint
from opencqrs_py.adapters.files.formats import DAMAGE, Compression, damaged, unpacked
from opencqrs_py.adapters.files.line_reader import LineReader, Mark
from opencqrs_py.errors import EventStoreError

_BUFFER = 128 * 1024  # bytes
_AT_ONCE = 256  # bytes read at once while the end of an event is looked for
_PLACES = 128  # that are remembered; groups beyond that many begin at a mark of the index, which costs little
_BLOCK = 256 * 1024  # bytes between two marks, about: half of them are gone through in vain before a read


class LineIndex:
    """Marks in a file of lines that may grow. A line without its end is not counted.

    It takes 24 bytes for each 256 KiB of the file.
    """

    def __init__(self) -> None:
        self.end = Mark()
        self._marks = (array("q", [0]), array("q", [0]), array("q", [0]))

    def advance(self, file: BinaryIO, size: int) -> None:
        """Go on through the file, up to its last line end before the byte ``size``. Moves in the file."""
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
            wanted = _BLOCK if lines else len(rest)  # a line longer than a block: look at twice as much

    def pass_to(self, mark: Mark) -> None:
        """Take over what a reader has counted that began at a mark of this index."""
        if mark.offset > self.end.offset:
            self.end = mark
            for column, value in zip(self._marks, mark, strict=True):
                column.append(value)

    def mark_before(self, event: int) -> Mark:
        """Return the last mark at or before the event of that number, from 0."""
        at = bisect_right(self._marks[0], event) - 1
        return Mark(*(column[at] for column in self._marks))


def _events_in(lines: list[bytes]) -> int:
    """Return how many lines have something in them."""
    return len(lines) - lines.count(b"") - sum(map(bytes.isspace, lines))


class PlainLines(EventFile):
    """An uncompressed file of lines. It may grow for as long as no file comes after it."""

    skip_limit = 0

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._index = LineIndex()
        self._places: dict[int, Mark] = {}  # where readers stopped or events end, by the number of the next event
        self._closed = False
        self._refusal: EventStoreError | None = None

    @override
    def look(self, *, newest: bool) -> None:
        if self._refusal is not None:
            raise self._refusal
        size = self.known.size
        self.known.look(may_grow=self._may_grow())
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

    @override
    def extent(self, number: int) -> tuple[int, bytes]:
        """See ``EventFile``. Space after the events does not count, so nothing changes when a line gets its end."""
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
        mark = self._places.get(first) or self._index.mark_before(first)
        self.known.look(may_grow=self._may_grow())
        return LineReader(
            self.path,
            self._opened(mark),
            mark,
            before=before,
            size=self.known.size,
            unfinished=not self._closed,
            at_stop=self._remember,
        )

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


def _holds_event(line: bytes, offset: int) -> bool:
    """Return whether a line has something in it; at the beginning of a file a byte order mark is nothing."""
    return bool((line.removeprefix(BOM_UTF8) if offset == 0 else line).strip())


def _without_space(file: FileIO, end: int) -> int:
    """Return where the last byte before ``end`` that is no space ends."""
    while end > 0:
        start = max(end - _AT_ONCE, 0)
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
    def may_hold(self, number: int) -> bool:
        return number == 0 or super().may_hold(number)

    @override
    def has_grown_from(self, size: int, digest: bytes) -> bool:
        with self.path.open("rb") as file:
            return self.known.size > size and fingerprint(file, size) == digest

    @override
    def reader(self, first: int, before: int) -> LineReader:
        del first
        self.look(newest=False)
        file = unpacked(self.path, self._compression)
        return LineReader(self.path, file, before=before, compressed=True, at_end=self._learn)

    def _learn(self, count: int) -> None:
        self._count = count

"""Files with one CloudEvent a line."""

from __future__ import annotations

import sys
from codecs import BOM_UTF8
from contextlib import closing
from io import FileIO
from itertools import islice
from pathlib import Path

from opencqrs_py.adapters.files.damage import DAMAGE, damaged
from opencqrs_py.adapters.files.formats import Compression
from opencqrs_py.adapters.files.identity import KnownFile, fingerprint
from opencqrs_py.adapters.files.line_index import LineIndex, Mark
from opencqrs_py.adapters.files.line_reader import LineReader
from opencqrs_py.adapters.files.opening import unpacked
from opencqrs_py.errors import EventStoreError

__all__ = ["CompressedLines", "PlainLines"]

_BUFFER = 128 * 1024  # bytes
_SPACE_READ = 256  # bytes read at once while the end of an event is looked for
_STOPS = 64  # that are remembered; groups beyond that many begin at a mark of the index, which costs little


class PlainLines:
    """An uncompressed file of lines. It may grow for as long as no file comes after it."""

    skip_limit = 0

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known = KnownFile(path)
        self._index = LineIndex()
        self._stops: dict[int, Mark] = {}  # where readers stopped lately, by the number of the next event
        self._ends: dict[int, Mark] = {}  # where events end that were asked for lately, likewise
        self._closed = False
        self._final: int | None = None  # number of events, once the file is closed and they are counted
        self._refusal: EventStoreError | None = None

    def look(self, *, newest: bool) -> None:
        """Take in what has been added; the file is closed as soon as it is not the newest one."""
        if self._refusal is not None:
            raise self._refusal
        size = self.known.size
        self.known.look(may_grow=self._may_grow())
        self._closed = not newest
        if self._final is not None and self.known.size > size:
            self._check_growth(self._final)

    def may_hold(self, number: int) -> bool:
        """Return whether there may be an event of that number, from 0. Counts nothing where it was last read."""
        stop = self._stops.get(number)
        if number == 0 or (stop is not None and stop.offset < self.known.size):
            return True
        return number < self.count()

    def count(self) -> int:
        """Return how many events there are by now."""
        if self._final is not None:
            return self._final
        tail = b""
        if self._index.end.offset < self.known.size:
            with self.path.open("rb") as file:
                self._index.advance(file, self.known.size)
                if self._closed:
                    file.seek(self._index.end.offset)
                    tail = file.read(self.known.size - self._index.end.offset)
        events = self._index.end.event + _holds_event(tail, self._index.end.offset)
        if self._closed:
            self._final = events
        return events

    def extent(self, number: int) -> tuple[int, bytes]:
        """Return the size in bytes of the first ``number`` events (at least 1), and its digest.

        Space and line ends after the last of them do not count, so neither changes when that line gets its end.
        """
        count = self.count()
        if number < count:
            end = self._end_of(number)
        else:
            end = self.known.size if count > self._index.end.event else self._index.end.offset
        with self.path.open("rb", buffering=0) as file:
            size = _without_space(file, end)
            return size, fingerprint(file, size)

    def has_grown_from(self, size: int, digest: bytes) -> bool:
        """Return ``False``: the extent of lines does not depend on what follows them."""
        del size, digest
        return False

    def reader(self, first: int, before: int) -> LineReader:
        """Open a reader at the event of that number or somewhat before it."""
        mark = self._stops.get(first) or self._index.mark_before(first)
        self.known.look(may_grow=self._may_grow())
        file = self.path.open("rb", buffering=_BUFFER)
        file.seek(mark.offset)
        return LineReader(
            self.path,
            file,
            mark,
            before=before,
            size=self.known.size,
            unfinished=not self._closed,
            at_stop=self._remember,
        )

    def _may_grow(self) -> bool:
        """Return whether something may be added: what follows moves no event, or the last line lacks its end."""
        return not self._closed or self._final is None or self._final > self._index.end.event

    def _check_growth(self, events: int) -> None:
        """Refuse what was added to a closed file, unless it only completes the last line."""
        self._final = None
        if self.count() != events:
            self._refusal = self.known.refused(
                "has grown by more than the end of its last line after a file came after it"
            )
            raise self._refusal

    def _end_of(self, number: int) -> int:
        """Return the byte after the line that holds the event of that number, from 1."""
        known = self._stops.get(number) or self._ends.get(number)
        if known is not None:
            return known.offset
        event, line, offset = self._ends.get(number - 1) or self._nearest(number)
        with self.path.open("rb") as file:
            file.seek(offset)
            while event < number:
                texts = list(islice(file, number - event))
                if not texts:
                    raise self.known.refused("has shrunk")
                full = sum(map(bool, map(bytes.strip, texts)))
                if offset == 0:
                    full += _holds_event(texts[0], 0) - bool(texts[0].strip())
                event, line, offset = event + full, line + len(texts), offset + sum(map(len, texts))
        _keep(self._ends, Mark(event, line, offset))
        return offset

    def _nearest(self, number: int) -> Mark:
        """Return the last mark that is known before the end of the event of that number, from 1."""
        near = [marks[event] for marks in (self._stops, self._ends) for event in marks if event < number]
        return max([*near, self._index.mark_before(number - 1)])

    def _remember(self, stop: Mark) -> None:
        _keep(self._stops, stop)
        if stop.offset < self.known.size:  # a last line without its end may still get it
            self._index.pass_to(stop)


def _keep(marks: dict[int, Mark], mark: Mark) -> None:
    marks.pop(mark.event, None)
    marks[mark.event] = mark
    if len(marks) > _STOPS:
        del marks[next(iter(marks))]


def _holds_event(line: bytes, offset: int) -> bool:
    """Return whether a line has something in it; at the beginning of a file a byte order mark is nothing."""
    return bool((line.removeprefix(BOM_UTF8) if offset == 0 else line).strip())


def _without_space(file: FileIO, end: int) -> int:
    """Return where the last byte before ``end`` that is no space ends."""
    while end > 0:
        start = max(end - _SPACE_READ, 0)
        file.seek(start)
        kept = len(file.read(end - start).rstrip())
        if kept:
            return start + kept
        end = start
    return 0


class CompressedLines:
    """A compressed file of lines. It is written once; readers go through it from the beginning."""

    skip_limit = sys.maxsize

    def __init__(self, path: Path, compression: Compression) -> None:
        self.path = path
        self._compression = compression
        self.known = KnownFile(path)
        self._count: int | None = None

    def look(self, *, newest: bool) -> None:
        """Take in how large the file is; it may grow until it was read to its end."""
        del newest
        self.known.look(may_grow=self._count is None)

    def count(self) -> int:
        """Return how many events there are; the first time, the file is unpacked for it.

        Raises:
            EventFormatError: OCQ-213, if the file is damaged or not complete yet.
        """
        if self._count is None:
            with closing(unpacked(self.path, self._compression)) as file:
                try:
                    self._count = _holds_event(file.readline(), 0) + sum(1 for line in file if not line.isspace())
                except DAMAGE as error:
                    raise damaged(error, str(self.path)) from error
        return self._count

    def may_hold(self, number: int) -> bool:
        """Return whether there may be an event of that number, from 0. The first one is not counted for."""
        return number == 0 or number < self.count()

    def extent(self, number: int) -> tuple[int, bytes]:
        """Return the file's size in bytes, and its digest."""
        del number
        return self.known.size, self.known.print

    def has_grown_from(self, size: int, digest: bytes) -> bool:
        """Return whether the file was read while it was being written."""
        with self.path.open("rb") as file:
            return self.known.size > size and fingerprint(file, size) == digest

    def reader(self, first: int, before: int) -> LineReader:
        """Open a reader at the beginning."""
        del first
        self.look(newest=False)
        file = unpacked(self.path, self._compression)
        return LineReader(self.path, file, before=before, compressed=True, at_end=self._learn)

    def _learn(self, count: int) -> None:
        self._count = count

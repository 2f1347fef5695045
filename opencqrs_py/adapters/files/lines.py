"""Files with one CloudEvent a line."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

from opencqrs_py.adapters.files.damage import DAMAGE, damaged
from opencqrs_py.adapters.files.formats import Compression
from opencqrs_py.adapters.files.identity import KnownFile
from opencqrs_py.adapters.files.line_index import LineIndex, Mark
from opencqrs_py.adapters.files.line_reader import LineReader
from opencqrs_py.adapters.files.opening import unpacked

__all__ = ["CompressedLines", "PlainLines"]

_STOPS = 64  # that are remembered; groups beyond that many begin at a mark of the index, which costs little


class PlainLines:
    """An uncompressed file of lines. It may grow for as long as no file comes after it."""

    skip_limit = 0

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known = KnownFile(path)
        self._index = LineIndex()
        self._stops: dict[int, Mark] = {}  # where readers stopped lately, by the number of the next event
        self._closed = False
        self._tail: int | None = None  # events behind the last line end, once the file is closed

    def look(self, *, newest: bool) -> None:
        """Take in what has been added; the file is closed as soon as it is not the newest one."""
        self.known.look(may_grow=not self._closed)
        self._closed = not newest

    def count(self) -> int:
        """Return how many events there are by now."""
        if self._index.end.offset < self.known.size and self._tail is None:
            with self.path.open("rb") as file:
                self._index.advance(file, self.known.size)
                if self._closed:
                    file.seek(self._index.end.offset)
                    tail = file.read(self.known.size - self._index.end.offset)
                    self._tail = int(bool(tail.strip()))
        return self._index.end.event + (self._tail or 0)

    def reader(self, first: int, before: int) -> LineReader:
        """Open a reader at the event of that number or somewhat before it."""
        mark = self._stops.get(first) or self._index.mark_before(first)
        self.known.look(may_grow=not self._closed)
        file = self.path.open("rb")
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

    def _remember(self, stop: Mark) -> None:
        self._stops[stop.event] = stop
        if len(self._stops) > _STOPS:
            del self._stops[next(iter(self._stops))]


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
                    self._count = sum(1 for line in file if not line.isspace())
                except DAMAGE as error:
                    raise damaged(error, str(self.path)) from error
        return self._count

    def reader(self, first: int, before: int) -> LineReader:
        """Open a reader at the beginning."""
        del first
        self.look(newest=False)
        file = unpacked(self.path, self._compression)
        return LineReader(self.path, file, before=before, compressed=True, at_end=self._learn)

    def _learn(self, count: int) -> None:
        self._count = count

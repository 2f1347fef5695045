"""Going through the lines of one file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from opencqrs_py.adapters.files.damage import DAMAGE, MEND, damaged
from opencqrs_py.adapters.files.line_index import Mark
from opencqrs_py.errors import EventFormatError
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.event import Event

__all__ = ["LineReader"]


class LineReader:
    """Goes through a file's events once, from the beginning or a mark on.

    Args:
        path: Name of the file in messages.
        file: The file, opened (and unpacked), at the mark.
        mark: Where it stands.
        before: Number of events in the log's files before this one; the first event here has the position behind it.
            ``None`` if the lines are no part of a log yet: then the rules for times are the strict ones of imports.
        size: Bytes to be read at most; ``None`` for all.
        unfinished: Whether a last line without its end may still be written, and is no event yet.
        compressed: Whether errors of reading mean that the content is damaged.
        at_end: Called at the end of the file with the number of its events.
        at_stop: Called when the reader is closed before the end, with where it stands; needs ``size``.
    """

    def __init__(
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
    ) -> None:
        self.path = path
        self.number = mark.event
        self.ended = False
        self._before = before or 0
        self._stored = before is not None
        self._line = mark.line
        self._size = size
        self._left = None if size is None else size - mark.offset
        self._file = file
        self._unfinished = unfinished
        self._damage = DAMAGE if compressed else ()
        self._at_end = at_end
        self._at_stop = at_stop
        self._lines = self._go_through()

    def __iter__(self) -> LineReader:
        return self

    def __next__(self) -> Event:
        """Return the next event.

        Raises:
            EventFormatError: OCQ-212 for a line that is no event, OCQ-213 if the file is damaged.
        """
        line = next(self._lines)
        try:
            return parse_event(line, self._before + self.number, stored=self._stored)
        except EventFormatError as error:
            raise EventFormatError(error.code, error.what, f"{self.path}:{self._line}", MEND) from None

    def skip_to(self, number: int) -> None:
        """Pass over events, unread, up to the one of that number, from 0, or to the end."""
        for _ in islice(self._lines, max(number - self.number, 0)):
            pass

    def close(self) -> None:
        """Close the file."""
        if self._at_stop is not None and self._size is not None and self._left is not None and not self.ended:
            self._at_stop(Mark(self.number, self._line, self._size - self._left))
        self._file.close()

    def _go_through(self) -> Iterator[bytes]:
        """Yield the lines that have something in them."""
        try:
            for line in self._file:
                if self._is_beyond(line):
                    break
                self._line += 1
                if not line.isspace():
                    self.number += 1
                    yield line
        except self._damage as error:
            raise damaged(error, f"{self.path}, behind line {self._line}") from error
        self.ended = True
        if self._at_end is not None:
            self._at_end(self.number)

    def _is_beyond(self, line: bytes) -> bool:
        if self._left is not None:
            self._left -= len(line)
            if self._left < 0:
                return True
        return self._unfinished and not line.endswith(b"\n")

"""Where the events of a file of lines begin: every so many bytes one mark."""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from typing import BinaryIO, NamedTuple

__all__ = ["LineIndex", "Mark", "events_in"]

_BLOCK = 256 * 1024  # bytes between two marks, about: half of them are gone through in vain before a read
_BLANK = re.compile(rb"\n(?=[ \t\r\v\f]*\n)")  # begins with a letter, so that the search goes at memchr's speed


class Mark(NamedTuple):
    """A place between two lines.

    Attributes:
        event: Number of events before it.
        line: Number of lines before it.
        offset: Number of bytes before it.
    """

    event: int = 0
    line: int = 0
    offset: int = 0


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
        block, wanted = b"", _BLOCK
        while more := file.read(min(wanted, size - self.end.offset - len(block))):
            block += more
            end = block.rfind(b"\n") + 1
            if end:
                self._take(block[:end])
                block, wanted = block[end:], _BLOCK
            else:
                wanted = len(block)  # a line longer than a block: look at twice as much

    def mark_before(self, event: int) -> Mark:
        """Return the last mark that is not behind the event of that number, from 0."""
        at = bisect_right(self._marks[0], event) - 1
        return Mark(*(column[at] for column in self._marks))

    def _take(self, lines: bytes) -> None:
        end = self.end
        self.end = Mark(end.event + events_in(lines), end.line + lines.count(b"\n"), end.offset + len(lines))
        for column, value in zip(self._marks, self.end, strict=True):
            column.append(value)


def events_in(lines: bytes) -> int:
    """Return how many of the lines have something in them; each of them ends with its line end."""
    blank = sum(1 for _ in _BLANK.finditer(b"\n" + lines))
    return lines.count(b"\n") - blank

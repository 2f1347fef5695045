"""Where the events of a file of lines begin: every so many bytes one mark."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from codecs import BOM_UTF8
from typing import BinaryIO, NamedTuple

__all__ = ["LineIndex", "Mark"]

_BLOCK = 256 * 1024  # bytes between two marks, about: half of them are gone through in vain before a read


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
        """Take over what somebody has counted who has gone through the file from a mark of this index."""
        if mark.offset > self.end.offset:
            self.end = mark
            for column, value in zip(self._marks, mark, strict=True):
                column.append(value)

    def mark_before(self, event: int) -> Mark:
        """Return the last mark that is not behind the event of that number, from 0."""
        at = bisect_right(self._marks[0], event) - 1
        return Mark(*(column[at] for column in self._marks))


def _events_in(lines: list[bytes]) -> int:
    """Return how many lines have something in them."""
    return len(lines) - lines.count(b"") - sum(map(bytes.isspace, lines))

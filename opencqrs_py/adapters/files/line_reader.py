"""Reading the lines of one file."""

from __future__ import annotations

from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

from typing_extensions import override

from opencqrs_py.adapters.files.event_file import EventReader, Selected
from opencqrs_py.adapters.files.formats import DAMAGE, REPAIR, REPAIR_WHOLE, damaged
from opencqrs_py.errors import DamagedFileError, EventFormatError
from opencqrs_py.model.cloudevents import columns_of, parse_event
from opencqrs_py.model.event import Event

_SKIPPED_AT_ONCE = 1_000  # lines
_AT_ONCE = 24 * 1024  # bytes that are parsed together; of more the parts would not stay in the processor's caches
_FIRST = 64  # lines that are, until it is known how long they are


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


class LineReader(EventReader):
    """Goes through a file's events once, from the beginning or a mark on.

    Args:
        path: Name of the file in messages.
        file: The file, opened (and unpacked), at the mark.
        mark: Where it stands.
        before: Number of events in the log's files before this one; the first event here has the next position.
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
        self._fix = REPAIR_WHOLE if self._stored and compressed else REPAIR

    @property
    def mark(self) -> Mark:
        """Where the reader stands."""
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
            self._pass(lines, len(lines) - sum(map(bytes.isspace, lines)))

    @override
    def close(self) -> None:
        if self._at_stop is not None and self._size is not None and not self.ended:
            self._at_stop(self.mark)
        self._file.close()

    def _take_together(self, lines: list[bytes], into: Selected) -> bool:
        columns = columns_of(lines)
        if columns is None and any(map(bytes.isspace, lines)):
            lines = list(filter(bytes.strip, lines))
            columns = columns_of(lines)
        if columns is None:
            return False
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
            if self._line == 0 and line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
                fix = "convert the file to UTF-8, as with iconv -f UTF-16 -t UTF-8, then restart"
                raise EventFormatError(error.code, "the file is UTF-16, not UTF-8", place, fix) from None
            if self._may_be_completed(line):
                what = f"the file's last line is not complete, although another file comes after it: {error.what}"
                fix = "let its writer complete the line, and begin the next file only then; or repair the line"
                raise DamagedFileError("OCQ-213", what, place, fix) from None
            raise EventFormatError(error.code, error.what, place, self._fix) from None

    def _may_be_completed(self, line: bytes) -> bool:
        return self._stored and self._size is not None and not line.endswith(b"\n")

    def _pass(self, lines: Sequence[bytes], events: int) -> None:
        self.number += events
        self._line += len(lines)
        self._offset += sum(map(len, lines))

    def _read(self, most: int) -> list[bytes]:
        """Return the next lines, also empty ones; none at the end."""
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
        """Take away what is beyond the bytes to be read, and a last line that may still be written."""
        self._read_to += sum(map(len, lines))
        while lines and self._size is not None and self._read_to > self._size:
            self._read_to -= len(lines.pop())
        if self._unfinished and lines and not lines[-1].endswith(b"\n"):
            self._read_to -= len(lines.pop())

"""One file of a log: how it is recognised, and how its events are read."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from io import FileIO
from itertools import compress
from operator import itemgetter
from pathlib import Path
from typing import BinaryIO

from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.chunk import Chunk, EventRow
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.event import Event
from opencqrs_py.model.event_lines import Columns, events_of, rows_of, subjects_of
from opencqrs_py.model.selection import Selection

_SAMPLE = 2048  # bytes
_SAMPLES = 8  # at equal distances, the first at the beginning and the last at the end; a smaller file is taken whole
_FIX = (
    "restore the file; or, if the change is intended, rebuild the groups that have read it (delete their read "
    "models and their rows of opencqrs_progress and opencqrs_groups), since a restart refuses the changed file, too "
    "(OCQ-316)"
)


class KnownFile:
    """The state of a file at the last check: its size in bytes, and ``print``, a digest of samples of them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._seen: tuple[int, int, int] | None = None
        self.print = b""

    def look(self, *, may_grow: bool, opened: bool = False) -> None:
        """Read the current size of the file; a file that was changed is refused.

        Args:
            may_grow: Whether bytes may have been added at its end since the last check.
            opened: Whether to open the file even if it seems unchanged: only then does an NFS client query its size,
                which it otherwise caches for up to a minute.

        Raises:
            EventStoreError: OCQ-342, if it is gone, has shrunk, has other content where it was read before, or has
                grown although it must not.
            OSError: If it cannot be accessed.
        """
        try:
            if not opened and self._seen is not None and _state_of(self.path.stat()) == self._seen:
                return
            with self.path.open("rb", buffering=0) as file:
                self._compare(file, may_grow=may_grow)
        except FileNotFoundError:
            raise self.refused("is gone") from None

    def _compare(self, file: FileIO, *, may_grow: bool) -> None:
        now = _state_of(os.fstat(file.fileno()))
        size, _, _ = now
        if now == self._seen:
            return
        if size < self.size:
            raise self.refused(f"has shrunk from {self.size:,} to {size:,} bytes")
        if self._seen is not None and size > self.size and not may_grow:
            raise self.refused(f"has grown from {self.size:,} to {size:,} bytes but was complete before")
        if self._seen is not None and fingerprint(file, self.size) != self.print:
            raise self.refused("has changed")
        self.print = fingerprint(file, size)
        self.size, self._seen = size, now

    def refused(self, what: str) -> EventStoreError:
        """Return the error that describes what happened to the file."""
        said = f"{self.path.name} {what}, so positions of events that were read would change"
        return EventStoreError("OCQ-342", said, str(self.path), _FIX)


def _state_of(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_size, found.st_mtime_ns, found.st_ino


def fingerprint(file: BinaryIO | FileIO, size: int) -> bytes:
    """Return a digest of a file's first ``size`` bytes: of all up to 16 KiB, of eight samples of a longer file.

    A longer file that was changed between the samples and kept its size has the same digest. Moves in the file.
    """
    digest = blake2b(digest_size=16)
    if size <= _SAMPLE * _SAMPLES:
        starts, length = [0], size
    else:
        starts, length = [(size - _SAMPLE) * number // (_SAMPLES - 1) for number in range(_SAMPLES)], _SAMPLE
    for start in starts:
        file.seek(start)
        digest.update(file.read(length))
    file.seek(0)
    return digest.digest()


_OF_ROWS = frozenset({"type", "data", "subject"})
_position = itemgetter(0)
_row = itemgetter(*map(Event._fields.index, ("position", "type", "payload", "subject")))


class Selected:
    """Collects the events that a read selects; the others are only checked.

    If the selection needs no more than types, data and subjects, events stay rows beside their lines, and a line is
    parsed again on access to the rest.
    """

    def __init__(self, selection: Selection) -> None:
        self._selection = selection
        self._selects_all = selection.everything and selection.types is None
        self._as_rows = selection.attributes <= {"subject"}
        self._events: list[Event] = []
        self._rows: list[EventRow] = []
        self._origins: list[bytes | Event] = []  # the line of each row, or its event

    def __len__(self) -> int:
        return len(self._rows) if self._as_rows else len(self._events)

    def add(self, events: Iterable[Event]) -> None:
        """Add those of several events that are selected; also of those before an error."""
        selected = events if self._selects_all else filter(self._selection.matches, events)
        if not self._rows:  # whole events exist already, so rows would save nothing
            self._as_rows = False
        if not self._as_rows:
            self._events.extend(selected)
            return
        for event in selected:
            self._rows.append(_row(event))
            self._origins.append(event)

    def add_lines(self, lines: Sequence[bytes], columns: Columns, position: int) -> None:
        """Add those of several events that are selected, given their lines, none of them empty.

        ``position`` is that of the first one.
        """
        positions: Sequence[int] = range(position, position + len(lines))
        if not self._selects_all:
            wanted = self._wanted(columns)
            if not any(wanted):
                return
            names = _OF_ROWS & columns.keys() if self._as_rows else columns
            columns = {name: tuple(compress(columns[name], wanted)) for name in names}
            lines, positions = tuple(compress(lines, wanted)), tuple(compress(positions, wanted))
        if self._as_rows:
            self._rows += rows_of(columns, positions)
            self._origins += lines
        else:
            self._events += events_of(columns, positions)

    def events(self) -> Sequence[Event]:
        """Return what was added."""
        return Chunk(self._rows, self._whole) if self._rows else tuple(self._events)

    def _wanted(self, columns: Columns) -> list[bool]:
        """Return for each event whether it is selected."""
        types, selection = self._selection.types, self._selection
        wanted = [types is None or each in types for each in columns["type"]]
        if selection.everything:
            return wanted
        return [one and selection.includes(subject) for one, subject in zip(wanted, subjects_of(columns), strict=False)]

    def _whole(self, position: int) -> Event:
        origin = self._origins[bisect_left(self._rows, position, key=_position)]
        return origin if isinstance(origin, Event) else parse_event(origin, position, stored=True)


class EventReader(ABC):
    """Iterates over a file's events once.

    Attributes:
        path: The file.
        number: Number of the next event, from 0; after an error, of the invalid entry.
        ended: Whether there was no next event.
    """

    path: Path | str
    number: int = 0
    ended: bool = False

    @abstractmethod
    def __iter__(self) -> Iterator[Event]:
        """Yield the events; raises as ``take``."""

    @abstractmethod
    def take(self, most: int, into: Selected) -> None:
        """Read the next ``most`` events, and collect the selected ones, including those before an error.

        Raises:
            EventFormatError: OCQ-212 for what is not an event, OCQ-213 if the file is damaged.
        """

    @abstractmethod
    def skip_to(self, number: int) -> None:
        """Skip events, unread, up to the one with that number, or to the end."""

    @abstractmethod
    def close(self) -> None:
        """Close the file."""


class EventFile(ABC):
    """One file of a log. Its events are numbered from 0. The defaults are those of files written once.

    Attributes:
        path: The file.
        known: The state of the file at the last check.
        passed: How many events readers have passed.
        skip_limit: Most events that a kept reader skips; for more, opening another one is quicker. 0 if readers need
            not be kept at all.
    """

    skip_limit: int

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known = KnownFile(path)
        self.passed = 0
        self._count: int | None = None  # of a file that cannot grow

    def look(self, *, newest: bool) -> None:
        """Read what was added; refuse a file that was changed. It may grow until it has been read.

        ``newest`` means that no file comes after it.
        """
        del newest
        self.known.look(may_grow=self._count is None)

    @abstractmethod
    def count(self) -> int:
        """Return how many events there are by now; raise OCQ-213 if the file is damaged or not complete yet."""

    def check(self) -> None:
        """Raise what is wrong with the file, as far as a cheap check shows it."""
        self.count()

    def is_counted(self) -> bool:
        """Return whether ``count`` takes little time."""
        return True

    def may_hold(self, number: int) -> bool:
        """Return whether there may be an event of that number, from 0; events are counted only if necessary."""
        return number < self.count()

    @abstractmethod
    def first(self) -> tuple[str, str] | None:
        """Return id and source of the first event; ``None`` if there is none, or the first entry is not an event."""

    def extent(self, number: int) -> tuple[int, bytes]:
        """Return the size in bytes of the file's first ``number`` events (at least 1), and its digest."""
        del number
        return self.known.size, self.known.print

    def has_grown_from(self, size: int, digest: bytes) -> bool:
        """Return whether the file was shorter when ``extent`` was called, and has since been completed."""
        del size, digest
        return False

    @abstractmethod
    def reader(self, first: int, before: int) -> EventReader:
        """Open a reader at the event of the number ``first``, or before it; ``before`` events are in the files before.

        There may be such an event, as ``may_hold`` says.
        """


class Readers:
    """Idle readers, the last used at the end.

    Up to ``most`` are kept: if that is more than the number of processing groups, each group finds its own.
    """

    def __init__(self, most: int = 64) -> None:
        self._most = most
        self._kept: list[EventReader] = []

    @contextmanager
    def at(self, file: EventFile, first: int, before: int) -> Iterator[EventReader]:
        """Lend a reader that is at the event with that number. It is closed if the block raises."""
        reader = self._taken(file, first) or file.reader(first, before)
        try:
            reader.skip_to(first)
            yield reader
        except BaseException:
            reader.close()
            raise
        finally:
            file.passed = max(file.passed, reader.number)
        if file.skip_limit and not reader.ended:
            self._keep(reader)
        else:
            reader.close()

    def is_kept_at(self, file: EventFile, first: int) -> bool:
        """Return whether a reader of the file is kept that is at the event of that number."""
        return any(reader.number == first and reader.path == file.path for reader in self._kept)

    def close(self) -> None:
        """Close all kept readers."""
        while self._kept:
            self._kept.pop().close()

    def _taken(self, file: EventFile, first: int) -> EventReader | None:
        """Take the file's reader that is nearest before the event, if there is one."""
        least = first - file.skip_limit
        fitting = [reader for reader in self._kept if reader.path == file.path and least <= reader.number <= first]
        nearest = max(fitting, key=lambda reader: reader.number, default=None)
        if nearest is not None:
            self._kept.remove(nearest)
        return nearest

    def _keep(self, reader: EventReader) -> None:
        self._kept.append(reader)
        if len(self._kept) > self._most:
            self._kept.pop(0).close()

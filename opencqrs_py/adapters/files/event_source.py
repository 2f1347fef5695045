"""Files as an event source."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from threading import Event as Signal
from threading import RLock

from typing_extensions import override

from opencqrs_py.adapters.files.event_file import EventReader, Readers, Selected
from opencqrs_py.adapters.files.history import History, LogState, holds, state_of
from opencqrs_py.adapters.files.log import FileLog
from opencqrs_py.adapters.forks import Inherited, keep_open, leave_to_parent_in_forks
from opencqrs_py.errors import EventFormatError, EventStoreError, IncompleteLineError
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection, Slice
from opencqrs_py.model.times import microseconds
from opencqrs_py.processing.ports import Clock, EventSource, SystemClock, Watch

_MOST_AT_ONCE = 20_000  # events examined by one read, so that other threads can run
_NEARLY = 16  # a read ends when less than this part of its limit is missing, since few events at once cost more each
_PATTERN = re.compile(r"[*?\[{]")
_EVERYTHING = Selection()
_SOONEST = 0.01  # seconds between two polls, right after something was added
_LATEST = 0.04  # and after nothing was added for a while: the longest delay of a new event
_GROWTH = 1.5
_REST = 4  # times as long as a poll takes, so that a large folder does not keep a core busy
_LONGEST_REST = 1.0
_COMPLETED_SECONDS = 5.0  # in which a writer may complete a last line after the next file has appeared


class FilesUnavailableError(EventStoreError):
    """The files of events are temporarily unavailable (OCQ-340)."""


class FileWatch(Watch):
    """Polls the files: 10 ms after something was added, and then less often, down to every 40 ms.

    So a new line is seen within 50 ms, if a poll takes at most 10 ms. Polling an unchanged folder takes two system
    calls. If it takes long, as in a changed folder of thousands of files, polls are spaced so that they take a fifth of
    the time; a single slow poll, as on a busy machine, delays nothing. ``pause`` waits for some seconds; by default
    until it is woken.
    """

    def __init__(self, head: Callable[[], int], clock: Clock, pause: Callable[[float], object] | None = None) -> None:
        self._head = head
        self._clock = clock
        self._woken = Signal()
        self._sleep = pause or self._woken.wait
        self._pause = _SOONEST
        self._took = 0.0  # seconds, the last poll

    @override
    def wait(self, after: int, seconds: float) -> int:
        until = self._clock.monotonic() + seconds
        begun = self._clock.monotonic()
        while (head := self._head()) <= after:
            ended = self._clock.monotonic()
            if until <= ended:
                return head
            took, self._took = min(self._took, ended - begun), ended - begun
            rest = min(took * _REST, _LONGEST_REST)
            self._sleep(min(max(self._pause, rest), until - ended))
            if self._woken.is_set():
                self._woken.clear()
                return head
            self._pause = min(self._pause * _GROWTH, _LATEST)
            begun = self._clock.monotonic()
        self._pause = _SOONEST
        return head

    @override
    def wake(self) -> None:
        self._woken.set()


class FileEventSource(EventSource, Inherited):
    """CloudEvents in files: NDJSON (``.ndjson``, ``.jsonl``, also ``.gz`` and ``.zst``) and Parquet. Read-only.

    The files of a folder are one log, in the order of their names, and an event's position is its running number in it,
    from 1. New files are followed, if their names sort after all others, and so are new lines at the end of the newest
    file, if it is not compressed. A line without its line end is not an event yet, unless a file comes after it.

    Changes that would move an event to another position are refused, as long as this object lives. Safe for several
    threads. The path is a folder, or one file; it need not exist before it is used.
    """

    def __init__(self, path: Path | str, clock: Clock | None = None) -> None:
        self.path = Path(path)
        self._clock = SystemClock() if clock is None else clock
        self._readers = Readers()
        self._log = FileLog(self.path, self._clock, self._readers)
        self._history = History(self._log)
        self._lock = RLock()
        self._incomplete = ("", 0.0)  # the last line that was found incomplete, and when it was first found
        leave_to_parent_in_forks(self)

    @override
    def head(self) -> int:
        """Return the position of the newest event, 0 when there is none.

        The first time, all events are counted, one file after the other; reads continue in between.

        Raises:
            EventStoreError: OCQ-340, if the files cannot be read at present; OCQ-346, if there never were any; OCQ-341,
                OCQ-342, or OCQ-232 to OCQ-235, if positions would change or files are not as they should be.
            EventFormatError: OCQ-213, if a file is damaged or not complete yet.
        """
        with self._held():
            self._log.look()
        while True:
            with self._held():
                if not self._log.count_another():
                    return self._log.end()

    def check(self) -> None:
        """Raise what is wrong with the files, like ``head``, but unpack only the beginning of compressed files.

        A truncated one is reported by the read that reaches its end.
        """
        with self._held():
            self._log.look()
            files = tuple(self._log.files)
        for file in files:
            with self._held():
                file.check()
        if self.knows_head():
            self.head()

    def report_unfinished(self) -> None:
        """See ``UnfinishedSource``."""
        with self._lock, suppress(OSError, EventStoreError):  # which a read would have reported
            self._log.report_unfinished()

    def knows_head(self) -> bool:
        """Return whether ``head`` need not unpack any compressed file: each was counted, or read to its end."""
        with self._held():
            return self._log.is_counted()

    def count(self) -> int:
        """Return how many events there are."""
        return self.head()

    @override
    def read(self, after: int, limit: int, selection: Selection, upto: int | None = None) -> Slice:
        """See ``EventSource``. A slice ends before an invalid entry; the read that begins with it raises.

        Raises:
            EventStoreError: As ``head``.
            EventFormatError: OCQ-212, 230 or 231, if the entry after ``after`` is not an event; OCQ-213, if it cannot
                be read.
        """
        if upto is not None and upto <= after:
            return Slice(after, after)
        reading = _Reading(max(after, 0), limit, selection, upto)
        with self._held():
            self._log.look(reading.upto)
            index = self._log.place_of(reading.upto)
            while index < len(self._log.files) and not reading.full:
                self._read_file(index, reading)
                index += 1
        return Slice(after, max(reading.upto, after), reading.selected.events())

    @override
    def position_before(self, moment: datetime) -> int:
        wanted, after = microseconds(moment.isoformat()) or 0, 0
        while (part := self.read(after, _MOST_AT_ONCE, _EVERYTHING)).upto > after:
            for event in part.events:
                happened = microseconds(event.time)
                if happened is not None and happened >= wanted:
                    return event.position - 1
            after = part.upto
        return after

    @override
    @contextmanager
    def watched(self) -> Iterator[Watch]:
        yield FileWatch(self.head, self._clock)

    @override
    def fingerprint(self, position: int, event: Event | None = None) -> str:
        """See ``EventSource``. The text identifies all files before the position, and what of its file was read.

        It is unaffected by what is added after the position, and by other times, folders, names and inodes. A
        compressed or Parquet file counts as a whole, so the same events, packed again, are another file.

        It does not detect a change between the samples of a file of more than 16 KiB that keeps its size and, in files
        before the position, its number of events.

        Raises:
            EventStoreError: OCQ-316, if the log ends before the position; else as ``head``.
        """
        del event
        with self._held():
            if position > 0:
                self._log.look(position - 1)
            return self._history.fingerprint(position)

    @override
    def verify(self, position: int, fingerprint: str) -> None:
        """See ``EventSource``. The message names the file that was deleted, inserted, cut off or replaced."""
        if position <= 0:
            return
        with self._held():
            self._log.look()
            self._history.verify(position, fingerprint)

    @override
    def is_outage(self, error: BaseException) -> bool:
        """Return whether the files cannot be read at present.

        A last line that is completed after the next file has appeared is waited for, up to some seconds after it was
        first found.
        """
        if isinstance(error, IncompleteLineError):
            now = self._clock.monotonic()
            if self._incomplete[0] != error.where:
                self._incomplete = error.where, now
            return now - self._incomplete[1] < _COMPLETED_SECONDS
        return isinstance(error, FilesUnavailableError)

    def renew(self) -> None:
        """Check all files; if they were changed since the last check, start over like a new object.

        Raises:
            EventStoreError: As ``head``, but for OCQ-341 and OCQ-342.
        """
        with self._held():
            if not self._is_unchanged():
                self._start_again()
                self._log.look_at_all()

    def state(self) -> LogState:
        """Return the state of the files at the last check."""
        with self._held():
            return state_of(self._log.files)

    def expect(self, state: LogState) -> None:
        """Check that the files are those of a state, perhaps with more; start over if this object has seen others.

        Raises:
            EventStoreError: OCQ-342, if the files were changed since; else as ``head``.
        """
        with self._held():
            if self._is_unchanged() and holds(self._log.files, state):
                return
            self._start_again()
            self._log.look_at_all()
            if not holds(self._log.files, state):
                what = "files of the log were changed after a query was planned, so positions in it would change"
                fix = "restore them, or start the query again"
                raise EventStoreError("OCQ-342", what, str(self.path), fix)

    def close(self) -> None:
        """Close the files that are open. The source can be used again."""
        with self._lock:
            self._readers.close()

    @override
    def leave_to_parent(self) -> None:
        """In a fork: open the files again, since parent and child share the read position of open files."""
        keep_open(self._readers)
        self._readers, self._lock = Readers(), RLock()
        self._start_again()

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the lock; raise an ``OSError`` as an explained error."""
        with self._lock:
            try:
                yield
            except OSError as error:
                raise self._explained(error) from error

    def _explained(self, error: OSError) -> EventStoreError:
        """Return the error to raise for an ``OSError``; if nothing ever existed, it is not an outage."""
        if not self._log.was_seen and isinstance(error, FileNotFoundError | NotADirectoryError):
            fix = "create it, or correct event-store.url"
            if _PATTERN.search(self.path.name):
                fix = "patterns are not expanded: name the folder; its event files are one log"
            return EventStoreError("OCQ-346", "there is no event file or folder", str(self.path), fix)
        what = f"the event files cannot be read ({error.strerror or error})"
        fix = "check that it exists, that this user may read it, and event-store.url"
        return FilesUnavailableError("OCQ-340", what, str(error.filename or self.path), fix)

    def _is_unchanged(self) -> bool:
        try:
            self._log.look_at_all()
        except EventStoreError:
            return False
        return True

    def _start_again(self) -> None:
        self._readers.close()
        self._log = FileLog(self.path, self._clock, self._readers, was_seen=self._log.was_seen)
        self._history = History(self._log)

    def _read_file(self, index: int, reading: _Reading) -> None:
        """Read in one file, and stop the reading before an invalid entry."""
        file = self._log.files[index]
        try:
            before = self._log.before(index)
            first = reading.upto - before
            if first < 0:  # the last line of the file before was completed while it was read: the next read has it
                reading.full = True
                return
            if self._readers.is_kept_at(file, first) or file.may_hold(first):
                with self._readers.at(file, first, before) as reader:
                    reading.take_from(reader, before)
        except EventFormatError:
            if reading.upto == reading.after:
                raise
            reading.full = True
        except OSError as error:
            error.filename = error.filename or str(file.path)
            raise


class _Reading:
    """One slice while it is being read."""

    def __init__(self, after: int, limit: int, selection: Selection, last: int | None) -> None:
        self.after = self.upto = after
        self.selected = Selected(selection)
        self.full = False
        self._limit = limit
        self._last = after + _MOST_AT_ONCE if last is None else min(after + _MOST_AT_ONCE, last)

    def take_from(self, reader: EventReader, before: int) -> None:
        """Read events until there are enough, or no more.

        The reader is at the event after ``upto``; ``before`` events are in the files before its own.
        """
        while not self.full and not reader.ended:
            try:
                reader.take(min(self._limit - len(self.selected), self._last - self.upto), self.selected)
            finally:
                self.upto = before + reader.number
            missing = self._limit - len(self.selected)
            self.full = missing <= self._limit // _NEARLY or self.upto >= self._last

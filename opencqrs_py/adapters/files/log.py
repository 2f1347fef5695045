"""A log of files: their order, and the positions of their events."""

from __future__ import annotations

import logging
import os
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISDIR
from urllib.parse import unquote, urlsplit

from opencqrs_py.adapters.files.doubles import Beginnings
from opencqrs_py.adapters.files.event_file import EventFile, Readers
from opencqrs_py.adapters.files.formats import SUFFIXES, Compression, FileFormat, FileKind, format_of
from opencqrs_py.adapters.files.lines import CompressedLines, PlainLines
from opencqrs_py.adapters.files.rows import ParquetRows
from opencqrs_py.errors import EventStoreError
from opencqrs_py.processing.ports import Clock

_log = logging.getLogger("opencqrs.store")

_HIDDEN = (".", "_")  # of other programs' files beside their results: temporary files, markers such as _SUCCESS
_MOST_MENTIONED = 5  # names in one message
_SETTLED = 2.0  # seconds after which a change of the folder shows in its time, on any file system
_UNFINISHED = (
    "%s:%d is not read: the line has no end yet. If nothing is still writing it, end it with a line feed; if it is not "
    "complete, remove it"
)
_ORDER = (
    "in %s, %s comes before %s: names are compared character by character, not by number. Unless that is the order of "
    "their events, give all numbers the same length (000009) before a group reads the files, or an import adds them"
)
_NUMBER = re.compile("([0-9]+)")
_THOROUGH_EVERY = 5.0  # most seconds between two checks of all files


def path_of_url(url: str, folder: Path) -> Path:
    """Return the file or folder that ``file:///path``, or ``file:path`` seen from a folder, means; ``%20`` is a space.

    Raises:
        EventStoreError: OCQ-344, if it is not a URL of a file on this machine.
    """
    fix = "write file:///absolute/path, or file:path relative to the project's folder"
    scheme, colon, rest = url.partition(":")
    if scheme.lower() != "file" or not colon:
        raise EventStoreError("OCQ-344", f"{url!r} is not a URL of a file or folder", fix=fix)
    try:
        host = urlsplit(url).netloc
    except ValueError:
        host = "?"
    if host not in ("", "localhost"):
        what = f"{url!r} names the machine {host!r}; files are read on this machine only"
        raise EventStoreError("OCQ-344", what, fix=fix)
    path = unquote(rest.removeprefix("//").removeprefix(host))
    if not path or "\0" in path:
        raise EventStoreError("OCQ-344", f"{url!r} names no file or folder", fix=fix)
    return folder / path


def listing(path: Path) -> tuple[list[Path], list[str]]:
    """Return the files of events in a folder, or the one file itself, and the names of what is ignored.

    Files are ordered by name, character by character. Folders and files with other suffixes are ignored; names that
    begin with ``.`` or ``_`` are hidden and not mentioned.

    Raises:
        EventStoreError: OCQ-232, if the one file is not of events; OCQ-234, if a link is dangling; OCQ-233, if a
            folder holds the same file compressed and not, so that its events would come twice.
        OSError: If nothing exists there, or it cannot be read.
    """
    if not S_ISDIR(path.stat().st_mode):
        if format_of(path.name) is None:
            what = "the name does not show the file's format"
            raise EventStoreError("OCQ-232", what, str(path), f"give it one of the suffixes {SUFFIXES}")
        return [path], []
    names: list[str] = []
    others: list[str] = []
    with os.scandir(path) as entries:
        for entry in entries:
            if not entry.name.startswith(_HIDDEN):
                (names if _holds_events(entry) else others).append(entry.name)
    names.sort()
    _check_twins(path, names)
    return [path / name for name in names], sorted(others)


def warn_of_ignored(folder: Path, names: Sequence[str]) -> None:
    """Log which files of a folder are ignored, if any are: they may be events under a wrong name."""
    if names:
        shown = ", ".join(names[:_MOST_MENTIONED]) + (", …" if len(names) > _MOST_MENTIONED else "")
        what = "is not an event file and is" if len(names) == 1 else "are not event files and are"
        _log.warning("in %s, %s %s ignored; names of event files end with %s", folder, shown, what, SUFFIXES)


def warn_of_order(folder: Path, files: Iterable[Path]) -> bool:
    """Log the first two files whose order differs from the numbers in their names; return whether there are any.

    Names are compared if they differ only in numbers and the suffix, like ``log-10`` and ``log-9``.
    """
    last: dict[tuple[str, ...], tuple[tuple[int, ...], str]] = {}
    for file in files:
        parts = _NUMBER.split(Path(file.name.lower().removesuffix(".gz").removesuffix(".zst")).stem)
        words, numbers = tuple(parts[::2]), tuple(map(int, parts[1::2]))
        before, name = last.get(words, ((), ""))
        if numbers < before:
            _log.warning(_ORDER, folder, name, file.name)
            return True
        last[words] = numbers, file.name
    return False


def _holds_events(entry: os.DirEntry[str]) -> bool:
    if format_of(entry.name) is None:
        return False
    if not entry.is_file() and not Path(entry.path).exists():
        what = f"{entry.name} is a dangling link, so its events cannot be read"
        raise EventStoreError("OCQ-234", what, entry.path, "restore its target, or remove the link")
    return entry.is_file()


def _check_twins(folder: Path, names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        known = format_of(name)
        suffix = known.compression.value if known else Compression.NONE.value
        other = seen.setdefault(name[: len(name) - len(suffix)], name)
        if other != name:
            what = f"{other} and {name} are the same file twice, by their names"
            fix = "remove one of them, or rename it if it has other events"
            raise EventStoreError("OCQ-233", what, str(folder), fix)


class FileLog:
    """The files of a log by name, each with the number of events before it. For one thread at a time.

    A file keeps its place and its number forever: changes of them are refused. ``was_seen`` tells whether anything has
    ever existed at the path. ``readers`` are those that reads use.
    """

    def __init__(self, path: Path, clock: Clock, readers: Readers, *, was_seen: bool = False) -> None:
        self.was_seen = was_seen
        self._readers = readers
        self.path = path
        self.files: list[EventFile] = []
        self._clock = clock
        self._before: list[int] = []  # events before each file; shorter than the files as long as some are uncounted
        self._folder_time: int | None = None  # the folder's at the last thorough check; None if it may still change
        self._due = float("-inf")
        self._mentioned: set[str] = set()
        self._mentioned_order = False
        self._beginnings = Beginnings()
        self._compared = 0  # files whose beginnings are known
        self._unfinished: tuple[Path, int] | None = None  # the file and line that was reported as unread

    def look(self, position: int | None = None) -> None:
        """Read what was added since the last check; only what comes after ``position`` is needed now.

        All files are checked when the folder has changed, and every few seconds; otherwise only the newest one.

        Raises:
            EventStoreError: OCQ-341, if a file has appeared between known ones; OCQ-342, if a known one was
                changed; OCQ-232 to OCQ-235, if it is unclear which events there are.
            OSError: If the folder or a file cannot be read.
        """
        now = self._clock.monotonic()
        if now >= self._due:
            self.look_at_all()
        elif position is not None and self._is_behind(position):
            return
        elif self._may_have_changed():
            self.look_at_all()
        elif self.files:
            self.files[-1].look(newest=True)

    def look_at_all(self) -> None:
        """Read what was added, and check every file; raises like ``look``."""
        changed, now = self.path.stat().st_mtime_ns, self._clock.now()
        found, others = listing(self.path)
        self.was_seen = True
        known = {file.path for file in self.files}
        new = [path for path in found if path not in known]
        if self.files:
            _check_order(self.files[-1].path, new)
        files = [*self.files, *map(_event_file, new)]
        for file in files:
            file.look(newest=file is files[-1])
        self.files = files
        self._mention(others)
        if new and not self._mentioned_order:
            self._mentioned_order = warn_of_order(self.path, found)
        age = now - datetime.fromtimestamp(changed / 1e9, UTC)
        self._folder_time = changed if age.total_seconds() > _SETTLED else None
        self._due = self._clock.monotonic() + _THOROUGH_EVERY

    def _mention(self, others: Sequence[str]) -> None:
        """Log once what is ignored, as it may be events under a wrong name."""
        new = [name for name in others if name not in self._mentioned]
        self._mentioned.update(new)
        warn_of_ignored(self.path, new)

    def report_unfinished(self) -> None:
        """Log that a last line without its end is not read, however recent it is, unless that was logged before."""
        self.look()
        if self.files and isinstance(self.files[-1], PlainLines):
            self.files[-1].count()
            self._mention_unfinished(settled=False)

    def _mention_unfinished(self, *, settled: bool = True) -> None:
        """Log once that a last line without its end is not read, if nothing was written for some seconds."""
        newest = self.files[-1]
        line = newest.unfinished() if isinstance(newest, PlainLines) else 0
        if not line or (newest.path, line) == self._unfinished:
            return
        age = self._clock.now() - datetime.fromtimestamp(newest.path.stat().st_mtime, UTC)
        if not settled or age.total_seconds() > _SETTLED:
            self._unfinished = newest.path, line
            _log.warning(_UNFINISHED, newest.path, line)

    def before(self, index: int) -> int:
        """Return the number of events in the files before the one with that index, ``0..len(files) - 1``.

        They are counted as far as needed, which requires unpacking a compressed file.
        """
        while len(self._before) <= index:
            at = len(self._before)
            self._before.append(self._before[-1] + self._count(at - 1) if at else 0)
        return self._before[index]

    def _count(self, index: int) -> int:
        """Return the number of events in a file; when it first has any, check whether it is a copy."""
        events = self.files[index].count()
        if events and index >= self._compared:
            self._compared = index + 1
            if first := self.files[index].first():
                self._beginnings.add(self.files[index].path, first)
        return events

    def place_of(self, position: int) -> int:
        """Return the index of a file that begins at or before that position, as close as is known without counting."""
        return max(bisect_right(self._before, position) - 1, 0)

    def holding(self, position: int) -> int | None:
        """Return the index of the file with the event at that position, from 1; ``None`` if the log ends before.

        Files are counted as far as needed; a compressed one is read up to the position, where the next read continues.
        """
        for index in range(self.place_of(position - 1), len(self.files)):
            if self._reaches(index, position):
                return index
        return None

    def _reaches(self, index: int, position: int) -> bool:
        file, before = self.files[index], self.before(index)
        number = position - before
        if number > file.passed and not file.is_counted():
            with self._readers.at(file, number, before):
                pass
        return number <= file.passed or number <= file.count()

    def is_counted(self) -> bool:
        """Return whether ``end`` takes little time."""
        return all(file.is_counted() for file in self.files[max(len(self._before) - 1, 0) :])

    def count_another(self) -> bool:
        """Count the events of one file; return whether there is a file left after it."""
        if self.files:
            self.before(min(len(self._before), len(self.files) - 1))
        return len(self._before) < len(self.files)

    def end(self) -> int:
        """Return the number of all events."""
        if not self.files:
            return 0
        last = len(self.files) - 1
        events = self.before(last) + self._count(last)
        self._mention_unfinished()
        return events

    def _is_behind(self, position: int) -> bool:
        return len(self._before) == len(self.files) > 0 and position < self._before[-1]

    def _may_have_changed(self) -> bool:
        return self._folder_time is None or self.path.stat().st_mtime_ns != self._folder_time


def _check_order(newest: Path, new: Sequence[Path]) -> None:
    early = [path for path in new if path.name < newest.name]
    if early:
        what = f"{early[0].name} appeared after {newest.name} was read, and sorts before it by name"
        fix = (
            "give it a name that sorts after all other files; otherwise positions of events that were read would "
            "change, so a restart refuses it, too (OCQ-316)"
        )
        raise EventStoreError("OCQ-341", what, str(early[0]), fix)


def _event_file(path: Path) -> EventFile:
    match format_of(path.name):
        case FileFormat(FileKind.ROWS):
            return ParquetRows(path)
        case FileFormat(FileKind.LINES, compression) if compression is not Compression.NONE:
            return CompressedLines(path, compression)
        case _:
            return PlainLines(path)

"""The content of a log of files up to a position, as a short text that is stored with the progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import orjson

from opencqrs_py.adapters.files.event_file import EventFile, KnownFile, fingerprint
from opencqrs_py.adapters.files.log import FileLog
from opencqrs_py.errors import EventFormatError, EventStoreError, OtherLogError
from opencqrs_py.model.naming import counted

_FORMAT = "files 1"
_STEPS = 96  # most digests up to a position, which only show where another log begins to differ
_STEP_LENGTH = 4  # characters
_NAME_LENGTH = 120  # characters of a file's name that are kept for messages
_FIX = (
    "restore the files as they were when the progress was stored; or rebuild the group: delete its read model and its "
    "rows of opencqrs_progress and opencqrs_groups; or, to continue from here anyway, clear log_fingerprint in "
    "its rows of opencqrs_progress, and set position there to the end of the log if it is beyond it"
)


@dataclass(frozen=True, slots=True)
class _Trace:
    """What identifies a log up to the position of one event.

    Attributes:
        files: Number of files before the one with the event; only files with events count.
        events: Number of events in them.
        digest: Of the numbers of their events, their sizes, and samples of their bytes.
        steps: Beginnings of the digests of fewer files, at equal distances.
        name: Of the file with the event. It helps the reader of a message and is not compared, nor are other names: a
            folder may change, and a name that changes no position is harmless.
        size: Bytes of that file that hold its events up to this one; of a file that is written once, all of them.
        print: Of samples of these bytes.
        format: How the text is to be read.
    """

    files: int = 0
    events: int = 0
    digest: str = ""
    steps: str = ""
    name: str = ""
    size: int = 0
    print: str = ""
    format: str = _FORMAT

    @classmethod
    def read(cls, text: str) -> _Trace | None:
        """Return the trace that was written as a text, ``None`` if the text is of another kind of event store."""
        try:
            fields = orjson.loads(text)
            return cls(**fields) if fields["format"] == _FORMAT else None
        except (orjson.JSONDecodeError, TypeError, KeyError):
            return None

    def written(self) -> str:
        return orjson.dumps(self).decode()

    @property
    def way(self) -> tuple[int, int, str]:
        """What is before the file with the event."""
        return self.files, self.events, self.digest

    @property
    def step(self) -> int:
        """Number of files from one digest of ``steps`` to the next one."""
        return -(-self.files // _STEPS) or 1


class History:
    """Knows what a log holds up to each position. For one thread at a time.

    Each file is examined once, for any number of positions; in the newest file of lines, at most 16 KiB are examined
    per position. The log must refuse changes of files, as ``FileLog`` does.
    """

    def __init__(self, log: FileLog) -> None:
        self._log = log
        self._digests = [""]  # of the first 0, 1, 2, … files with events
        self._names: list[str] = []  # of these files
        self._filled = [0]  # how many of the first 0, 1, 2, … files have events

    def fingerprint(self, position: int) -> str:
        """Return a text that identifies the log up to a position of at least 0.

        Raises:
            EventFormatError: OCQ-213, if a file before it is damaged.
            EventStoreError: OCQ-316, if the log ends before the position.
        """
        if position <= 0:
            return _Trace().written()
        try:
            index = self._log.holding(position)
        except EventFormatError:  # a file that is still being written; what was read of it can be stored anyway
            index = self._log.place_of(position - 1)
        if index is None:
            raise self._refused(self._too_far(position))
        return self._trace(position, index).written()

    def verify(self, position: int, fingerprint: str) -> None:
        """Raise unless the log up to ``position`` still matches the fingerprint of another ``History``.

        An empty fingerprint checks only that the log does not end before.

        Raises:
            EventStoreError: OCQ-316, naming the file.
        """
        expected = _Trace.read(fingerprint) if fingerprint else None
        if fingerprint and expected is None:
            raise self._refused("the progress belongs to an event store of another kind")
        if position <= 0:
            return
        index = self._log.holding(position)
        if index is None:
            why = self._first_difference(expected) if expected else ""
            raise self._refused("; ".join(filter(None, (self._too_far(position), why))))
        if expected is not None:
            self._compare(expected, self._trace(position, index), self._log.files[index])

    def _compare(self, expected: _Trace, found: _Trace, file: EventFile) -> None:
        if expected.way != found.way:
            raise self._refused(self._first_difference(expected) or _moved(expected, found))
        same = (expected.size, expected.print) == (found.size, found.print)
        if not same and not file.has_grown_from(expected.size, bytes.fromhex(expected.print)):
            what = f"{found.name} no longer begins with the {expected.size:,} bytes that were read"
            raise self._refused(what if found.name == expected.name else f"{what} as {expected.name}")

    def _trace(self, position: int, index: int) -> _Trace:
        self._take_in(index)
        before, file, files = self._log.before(index), self._log.files[index], self._filled[index]
        size, digest = file.extent(position - before)
        way = _Trace(files, before, self._digests[files])
        steps = "".join(each[:_STEP_LENGTH] for each in self._digests[way.step : files + 1 : way.step])
        return replace(way, steps=steps, name=_shown(file.path.name), size=size, print=digest.hex())

    def _take_in(self, index: int) -> None:
        """Check all files before the one with that index; they must no longer grow."""
        while len(self._filled) <= index:
            file = self._log.files[len(self._filled) - 1]
            count = file.count()
            if count:
                size, digest = file.extent(count)
                text = f"{self._digests[-1]} {count} {size} {digest.hex()}"
                self._digests.append(blake2b(text.encode(), digest_size=16).hexdigest())
                self._names.append(file.path.name)
            self._filled.append(len(self._names))

    def _first_difference(self, expected: _Trace) -> str:
        """Return which file is not the one that was read, as precisely as is known; empty if that is unknown."""
        self._take_in(len(self._log.files) - 1)
        there = [*self._names, *(file.path.name for file in self._log.files[-1:])]
        step, steps = expected.step, expected.steps
        for start in range(0, len(steps), _STEP_LENGTH):
            first = start // _STEP_LENGTH * step
            last = first + step
            if last < len(self._digests) and self._digests[last].startswith(steps[start : start + _STEP_LENGTH]):
                continue
            which = f"file {first + 1:,}" if step == 1 else f"one of the files {first + 1:,} to {last:,}"
            now = f"file {first + 1:,} is {_shown(there[first])} now" if first < len(there) else "it is gone"
            return f"{which} of the log (without empty ones) is not the one that was read; {now}"
        return ""

    def _too_far(self, position: int) -> str:
        return f"the progress is at position {position:,}, but the log ends at {self._log.end():,}"

    def _refused(self, what: str) -> EventStoreError:
        said = f"the event store is not the one that the progress belongs to: {what}"
        return OtherLogError("OCQ-316", said, str(self._log.path), _FIX)


def _moved(expected: _Trace, found: _Trace) -> str:
    return (
        f"{_size(expected)} came before {expected.name}, where the progress is; "
        f"now {_size(found)} {'comes' if found.events == 1 else 'come'} before {found.name}"
    )


def _size(trace: _Trace) -> str:
    return f"{counted(trace.events, 'event')} in {counted(trace.files, 'file')}"


def _shown(name: str) -> str:
    """Return a file's name as a text of bounded length, whatever bytes are in it."""
    return "".join(each if each.isprintable() else "?" for each in name[:_NAME_LENGTH])


@dataclass(frozen=True, slots=True)
class LogState:
    """The state of a log of files at a check; small for any number of files.

    Attributes:
        closed: Number of files before the newest one.
        digest: Of their names, sizes and samples of their bytes.
        newest: Name of the newest file, empty when there is none.
        size: Its size in bytes; it may have grown since.
        print: Digest of samples of its bytes.
    """

    closed: int = 0
    digest: bytes = b""
    newest: str = ""
    size: int = 0
    print: bytes = b""


def state_of(files: Sequence[EventFile]) -> LogState:
    """Return the state of a log at the last check."""
    if not files:
        return LogState()
    *closed, newest = (file.known for file in files)
    return LogState(len(closed), _digest(closed), newest.path.name, newest.size, newest.print)


def holds(files: Sequence[EventFile], state: LogState) -> bool:
    """Return whether a log, as of its last check, is the one of a state: the same, or with more at its end.

    Raises:
        OSError: If the file that was the newest cannot be read.
    """
    if not state.newest:
        return True
    if len(files) <= state.closed:
        return False
    *closed, newest = (file.known for file in files[: state.closed + 1])
    if newest.path.name != state.newest or _digest(closed) != state.digest:
        return False
    if newest.size == state.size:
        return newest.print == state.print
    with newest.path.open("rb") as file:
        return fingerprint(file, state.size) == state.print


def _digest(files: Sequence[KnownFile]) -> bytes:
    digest = blake2b(digest_size=16)
    for file in files:
        digest.update(f"{file.path.name}\0{file.size}\0".encode(errors="surrogateescape") + file.print)
    return digest.digest()

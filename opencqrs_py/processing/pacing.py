"""Pacing: reading the log no faster or no further than a limit, to spare resources or not to overtake others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from threading import Event as Signal
from threading import Lock
from typing import Protocol

from typing_extensions import override

from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection, Share, Slice
from opencqrs_py.processing.ports import EventSource, LimitedSource, PickingSource, SharingSource, Watch
from opencqrs_py.processing.positions import events_at

STEP_SECONDS = 0.25
"""Seconds between two moves of the limit: each one costs a transaction per partition, or a task."""

_BURST_SECONDS = 1.0  # worth of events that may be handled at once after a pause
_ARRIVAL_SECONDS = 10.0  # over which arriving events are counted
_LOOK_SECONDS = 1.0  # between two counts of arrivals


class Limit(Protocol):
    """The position up to which the log may currently be read. Safe for several threads."""

    @property
    def step_seconds(self) -> float:
        """Most seconds until a move of the limit is noticed."""
        ...

    def limit(self) -> int | None:
        """Return the last position that may currently be read; ``None``: the limit is lifted."""
        ...


class Following:
    """A limit that follows others, so that they are not overtaken. Safe for several threads.

    Args:
        position: Their position.
    """

    step_seconds = 0.02

    def __init__(self, position: int) -> None:
        self._position = position
        self._lifted = False
        self._lock = Lock()

    def limit(self) -> int | None:
        """Return their position; ``None`` if the limit was lifted."""
        return None if self._lifted else self._position

    def move(self, position: int) -> None:
        """Set their position; it never goes back."""
        with self._lock:
            self._position = max(self._position, position)

    def lift(self) -> None:
        """Lift the limit."""
        self._lifted = True


class Pace:
    """The position up to which the log may currently be read. Safe for several threads.

    Every position up to the limit is read once by all partitions together, so the limit moves as fast as events may be
    handled. It stays close to the slowest partition: a pause is not made up for.

    Args:
        per_second: How many positions it moves in a second, at least 1.
        position: Initial limit.
        now: Returns the seconds of a clock that never goes back.
    """

    step_seconds = STEP_SECONDS

    def __init__(self, per_second: int, position: int, now: Callable[[], float] = time.monotonic) -> None:
        self.per_second = per_second
        self._now = now
        self._since = now()
        self._limit = float(position)
        self._reached = position
        self._lifted = False
        self._lock = Lock()

    def limit(self) -> int | None:
        """Return the last position that may currently be read; ``None``: the limit is lifted."""
        with self._lock:
            if self._lifted:
                return None
            now = self._now()
            passed = now - self._since
            if passed >= STEP_SECONDS:
                self._since = now
                most = self._reached + self.per_second * _BURST_SECONDS + 1
                self._limit = max(self._limit, min(self._limit + self.per_second * passed, most))
            return int(self._limit)

    def reached(self, position: int) -> None:
        """Set the position up to which the slowest partition has handled events."""
        with self._lock:
            self._reached = position

    def lift(self) -> None:
        """Lift the limit."""
        with self._lock:
            self._lifted = True


class ArrivalRate:
    """Checks whether events arrive at least as fast as they may be handled.

    Args:
        per_second: How many events may be handled in a second.
        head: Returns the position of the newest event.
        now: Returns the seconds of a clock that never goes back.
    """

    def __init__(self, per_second: int, head: Callable[[], int], now: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._head = head
        self._now = now
        self._looked = now()
        self._since = self._looked, head()
        self._is_known = False

    def too_many(self) -> float | None:
        """Return how many events arrive per second, once, if that is too many; ``None`` otherwise."""
        now = self._now()
        if self._is_known or now - self._looked < _LOOK_SECONDS:
            return None
        self._looked = now
        since, before = self._since
        if now - since < _ARRIVAL_SECONDS:
            return None
        head = self._head()
        self._since = now, head
        rate = (head - before) / (now - since)
        self._is_known = rate >= self._per_second
        return rate if self._is_known else None


class PacedSource(EventSource, LimitedSource, PickingSource):
    """An event log that ends at a limit.

    Args:
        source: The whole log.
        pace: The limit.
    """

    def __init__(self, source: EventSource, pace: Limit) -> None:
        self.step_seconds = pace.step_seconds
        self._source = source
        self._pace = pace
        self._final = 0  # the newest position seen in the whole log

    def limit(self) -> int | None:
        """Return the last position to be read for now, which is final; ``None`` for no limit."""
        limit = self._pace.limit()
        if limit is None:
            return None
        if self._final < limit:
            self._final = self._source.head()
        return min(limit, self._final)

    def head(self) -> int:
        """Return the position of the newest event that may be read."""
        limit = self.limit()
        return self._source.head() if limit is None else limit

    def read(self, after: int, limit: int, selection: Selection, upto: int | None = None) -> Slice:
        """Return events as the log does, up to the position that may be read."""
        last = self.limit()
        if last is None:
            return self._source.read(after, limit, selection, upto)
        if last <= after:
            return Slice(after, after)
        return self._source.read(after, limit, selection, last if upto is None else min(last, upto))

    def position_before(self, moment: datetime) -> int:
        """Return what the whole log returns."""
        return self._source.position_before(moment)

    def watched(self) -> AbstractContextManager[Watch]:
        """Open a watch that sees events when they may be read."""
        return self._opened()

    @contextmanager
    def _opened(self) -> Iterator[Watch]:
        with self._source.watched() as watch:
            yield _PacedWatch(watch, self)

    def fingerprint(self, position: int, event: Event | None = None) -> str:
        """Return the fingerprint of the whole log."""
        return self._source.fingerprint(position, event)

    def verify(self, position: int, fingerprint: str) -> None:
        """Check the whole log."""
        self._source.verify(position, fingerprint)

    def is_outage(self, error: BaseException) -> bool:
        """Return whether ``error`` means the log is temporarily unavailable."""
        return self._source.is_outage(error)

    def selects(self, share: Share) -> bool:
        """Return whether the log filters out events of other partitions."""
        return isinstance(self._source, SharingSource) and self._source.selects(share)

    def pick(self, positions: Sequence[int]) -> Sequence[Event]:
        """Return events of the whole log: they were read before, as those in the inbox."""
        found = events_at(self._source, positions)
        return [found[position] for position in sorted(found)]


class _PacedWatch(Watch):
    """Waits for the limit first, and then for the log."""

    def __init__(self, watch: Watch, source: PacedSource) -> None:
        self._watch = watch
        self._source = source
        self._woken = Signal()

    def wait(self, after: int, seconds: float) -> int:
        """Return the end of the readable log as soon as it is beyond ``after``, or when ``seconds`` have passed."""
        until = time.monotonic() + seconds
        while True:
            limit = self._source.limit()
            if limit is None:
                return self._watch.wait(after, max(0.0, until - time.monotonic()))
            left = until - time.monotonic()
            if limit != after or left <= 0:
                return limit
            if self._woken.wait(min(left, self._source.step_seconds)):
                self._woken.clear()
                return limit

    @override
    def wake(self) -> None:
        self._woken.set()
        self._watch.wake()

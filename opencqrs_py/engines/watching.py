"""Watching the head of the event store, once for all waiting threads."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, ExitStack
from math import inf
from threading import Condition, Event, RLock, Thread
from typing import Protocol

from opencqrs_py.processing.exceptions import raise_interrupt
from opencqrs_py.processing.loggers import enable_loggers
from opencqrs_py.processing.ports import Watch
from opencqrs_py.processing.processor import Stopping

_WAIT_SECONDS = 0.2  # longest single wait of the store's watch, within which a stop is noticed
_STOP_SECONDS = 0.3  # longest wait for the watching thread, since a hanging store must not delay a stop
_AFTER_ERROR_SECONDS = 0.5


class Watchable(Protocol):
    """Something with a moving head: an event store, or the stored progress of a group."""

    def head(self) -> int:
        """Return the head."""
        ...

    def watched(self) -> AbstractContextManager[Watch]:
        """Open a watch on it."""
        ...

    def is_outage(self, error: BaseException) -> bool:
        """Return whether ``error`` means that it is temporarily unavailable."""
        ...


class HeadWatcher:
    """Watches for new events and wakes waiting threads.

    The first waiting thread watches and wakes the others: so a new event reaches a waiting thread directly, and no
    thread polls the store while all are busy. With ``changed``, a separate thread watches all the time, and calls it
    when the head has moved. During an outage of the store it opens a new watch as soon as it can.
    """

    def __init__(self, source: Watchable, changed: Callable[[], None] | None = None) -> None:
        self._source = source
        self._on_change = changed
        self._head = 0
        self._interruptions = 0
        self._refusal: BaseException | None = None
        self._lock = RLock()
        self._changed = Condition(self._lock)
        self._woken = Condition(self._lock)  # which new events do not notify
        self._stopping = Event()
        self._stop_by = inf
        self._is_watched = False
        self._watch: Watch | None = None
        self._opened = ExitStack()
        self._thread = Thread(target=self._watch_on, name="opencqrs-head", daemon=True)

    @property
    def head(self) -> int:
        """Position of the newest event seen."""
        return self._head

    @property
    def interruptions(self) -> int:
        """How often the watch has broken, or the head has gone back: after that the log may have been replaced."""
        return self._interruptions

    @property
    def refusal(self) -> BaseException | None:
        """Why the event store cannot be watched, other than an outage; ``None`` while it can."""
        return self._refusal

    def start(self) -> None:
        """Start watching."""
        if self._on_change is not None:
            self._thread.start()

    def look(self) -> None:
        """Check once, on the caller's thread."""
        self._see(self._source.head())

    def begin_stop(self) -> None:
        """Wake all waiting threads and begin to stop watching. Does not wait."""
        if not self._stopping.is_set():
            self._stop_by = time.monotonic() + _STOP_SECONDS
        self._stopping.set()
        self.wake()

    def stop(self, patience: float = inf) -> None:
        """Wake all waiting threads and stop watching, within ``patience`` seconds, and 0.3 after the stop has begun."""
        self.begin_stop()
        left = min(patience, self._stop_by - time.monotonic())
        with self._changed:
            if self._changed.wait_for(lambda: not self._is_watched, max(0.0, left)):
                self._close()

    def wake(self) -> None:
        """Make waiting partitions check whether they should stop."""
        with self._changed:
            self._wake_all()

    def wait_beyond(self, position: int, seconds: float, stopping: Stopping | None = None) -> None:
        """Wait until there is an event after ``position``, the time is over, or ``stopping`` or the watcher's stop."""
        until = time.monotonic() + seconds
        while self._must_wait(position, stopping) and (left := until - time.monotonic()) > 0:
            with self._changed:
                if not self._must_wait(position, stopping):
                    return
                if self._is_watched:
                    self._changed.wait(left)
                    continue
                self._is_watched = True
            try:
                self._look_out(min(left, _WAIT_SECONDS))
            finally:
                with self._changed:
                    self._is_watched = False
                    self._changed.notify_all()
                    if self._stopping.is_set():  # stop() may have stopped waiting for this thread
                        self._close()

    def pause(self, seconds: float, stopping: Stopping) -> None:
        """Wait for some seconds, whatever events arrive; ``wake`` ends that if ``stopping`` is set by then."""
        with self._woken:
            self._woken.wait_for(stopping.is_set, seconds)

    def _wake_all(self) -> None:
        if self._is_watched and (watch := self._watch) is not None:
            watch.wake()
        self._changed.notify_all()
        self._woken.notify_all()

    def _must_wait(self, position: int, stopping: Stopping | None) -> bool:
        stopped = self._stopping.is_set() or (stopping is not None and stopping.is_set())
        return self._head <= position and not stopped

    def _watch_on(self) -> None:
        while not self._stopping.is_set():
            self.wait_beyond(self._head, _WAIT_SECONDS)

    def _look_out(self, seconds: float) -> None:
        """Use the store's watch for a moment; by one thread at a time."""
        enable_loggers()  # which the program may have disabled since; a thread of each engine runs this now and then
        try:
            if self._watch is None:
                self._watch = self._opened.enter_context(self._source.watched())
            self._see(self._watch.wait(self._head, seconds))
            self._refusal = None
        except BaseException as error:  # the processors get the same error and report it
            raise_interrupt(error)
            self._refusal = None if self._source.is_outage(error) else error
            self._interrupted()
            self._close()
            if self._refusal is not None and self._on_change is not None:
                self._on_change()
            self._stopping.wait(_AFTER_ERROR_SECONDS)

    def _close(self) -> None:
        self._watch = None
        try:
            self._opened.close()
        except BaseException as error:  # of a lost connection; there is nothing left to release
            raise_interrupt(error)
            self._opened = ExitStack()

    def _interrupted(self) -> None:
        with self._changed:
            self._interruptions += 1

    def _see(self, head: int) -> None:
        if head < self._head:
            self._interrupted()
        if head > self._head:
            with self._changed:
                self._head = head
                self._changed.notify_all()
            if self._on_change is not None:
                self._on_change()


def stop_all(watchers: Collection[HeadWatcher], patience: float) -> None:
    """Stop watchers at the same time, within ``patience`` seconds in all."""
    until = time.monotonic() + patience
    for watcher in watchers:
        watcher.begin_stop()
    for watcher in watchers:
        watcher.stop(until - time.monotonic())

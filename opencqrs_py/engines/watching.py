"""Watching the head of the event store, once for all who wait for it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Event, Thread

from opencqrs_py.processing.ports import EventSource

__all__ = ["HeadWatcher"]

_WAIT_SECONDS = 0.2  # longest wait of the store's watch in one piece: so soon a stop is noticed
_STOP_SECONDS = 0.3  # longest wait for the thread to end; a store that hangs does not hold up a stop
_AFTER_ERROR_SECONDS = 0.5


class HeadWatcher:
    """Looks out for new events on a thread of its own and wakes those who wait.

    When the store is away, it goes on with a new watch as soon as there can be one.

    Args:
        source: The event store.
        changed: Called on the watching thread when the head has moved.
    """

    def __init__(self, source: EventSource, changed: Callable[[], None] | None = None) -> None:
        self._source = source
        self._on_change = changed
        self._head = 0
        self._changed = Condition()
        self._stopping = Event()
        self._thread = Thread(target=self._watch, name="opencqrs-head", daemon=True)

    @property
    def head(self) -> int:
        """Position of the newest event seen."""
        return self._head

    def start(self) -> None:
        """Begin to look out."""
        self._thread.start()

    def look(self) -> None:
        """Look once, on the caller's thread."""
        self._see(self._source.head())

    def stop(self) -> None:
        """Wake everybody and stop looking out, within 0.3 seconds."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(_STOP_SECONDS)

    def wait_beyond(self, position: int, seconds: float) -> None:
        """Wait until there is an event behind ``position``, somebody wakes us, or the time is over."""
        with self._changed:
            if self._head <= position and not self._stopping.is_set():
                self._changed.wait(seconds)

    def _watch(self) -> None:
        while not self._stopping.is_set():
            try:
                self._watch_until_stopped()
            except Exception:  # the processors meet the same error and report it
                self._stopping.wait(_AFTER_ERROR_SECONDS)

    def _watch_until_stopped(self) -> None:
        with self._source.watched() as watch:
            while not self._stopping.is_set():
                self._see(watch.wait(self._head, _WAIT_SECONDS))

    def _see(self, head: int) -> None:
        if head > self._head:
            with self._changed:
                self._head = head
                self._changed.notify_all()
            if self._on_change is not None:
                self._on_change()

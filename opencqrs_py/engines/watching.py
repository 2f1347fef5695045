"""Watching the head of the event store, once for all who wait for it."""

from __future__ import annotations

from collections.abc import Callable
from threading import Condition, Event, Thread

from opencqrs_py.processing.ports import EventSource

__all__ = ["HeadWatcher"]

POLL_SECONDS = 0.02
_AFTER_ERROR_SECONDS = 0.5


class HeadWatcher:
    """Looks for new events on a thread of its own and wakes those who wait.

    Args:
        source: The event store.
        changed: Called on the watching thread when the head has moved.
        poll: Seconds between two looks.
    """

    def __init__(
        self, source: EventSource, changed: Callable[[], None] | None = None, poll: float = POLL_SECONDS
    ) -> None:
        self._source = source
        self._on_change = changed
        self._poll = poll
        self._head = 0
        self._changed = Condition()
        self._stopping = Event()
        self._thread = Thread(target=self._watch, name="opencqrs-head", daemon=True)

    @property
    def head(self) -> int:
        """Position of the newest event seen."""
        return self._head

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def look(self) -> None:
        """Look once, on the caller's thread."""
        self._see(self._source.head())

    def stop(self) -> None:
        """Stop looking and wake everybody."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()

    def wait_beyond(self, position: int, seconds: float) -> None:
        """Wait until there is an event behind ``position``, somebody wakes us, or the time is over."""
        with self._changed:
            if self._head <= position and not self._stopping.is_set():
                self._changed.wait(seconds)

    def _watch(self) -> None:
        while not self._stopping.is_set():
            pause = self._poll
            try:
                head = self._source.head()
            except Exception:  # the processors meet the same error and report it
                pause = _AFTER_ERROR_SECONDS
            else:
                self._see(head)
            self._stopping.wait(pause)

    def _see(self, head: int) -> None:
        if head > self._head:
            with self._changed:
                self._head = head
                self._changed.notify_all()
            if self._on_change is not None:
                self._on_change()

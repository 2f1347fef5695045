"""An event store in memory."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from threading import Lock

from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection, Slice

__all__ = ["InMemoryEventStore"]


class InMemoryEventStore:
    """A list of events; positions count from 1. For tests: nothing survives the process."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._events: list[Event] = []
        self._known: set[tuple[str, str]] = set()
        self._lock = Lock()
        self.append(events)

    def append(self, events: Iterable[Event]) -> int:
        """Add events that are not there yet, giving them positions; return how many were added.

        When ``events`` raises, nothing is added.
        """
        given = tuple(events)
        with self._lock:
            before = len(self._events)
            for event in given:
                key = (event.source, event.id)
                if key not in self._known:
                    self._known.add(key)
                    self._events.append(event._replace(position=len(self._events) + 1))
            return len(self._events) - before

    def head(self) -> int:
        """Return the position of the newest event, 0 when there is none."""
        return len(self._events)

    def read(self, after: int, limit: int, selection: Selection) -> Slice:
        """Return the selected events that follow ``after``, at most ``limit``."""
        head = self.head()
        following = (self._events[index] for index in range(max(after, 0), head))
        fitting = (event for event in following if selection.matches(event))
        events = tuple(islice(fitting, limit))
        return Slice(after, events[-1].position if len(events) == limit else max(head, after), events)

    def position_before(self, moment: datetime) -> int:
        """Return the position before the first event with ``time >= moment``; the head if there is none."""
        for event in self._events:
            if event.timestamp is not None and event.timestamp >= moment:
                return event.position - 1
        return self.head()

    def is_outage(self, error: BaseException) -> bool:
        """Memory is never away."""
        del error
        return False

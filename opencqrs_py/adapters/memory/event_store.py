"""An event store in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from itertools import islice
from threading import Condition

from typing_extensions import override

from opencqrs_py.adapters.memory.watching import ConditionWatch
from opencqrs_py.model.appending import Appended, Clashes, Precondition, check, identified
from opencqrs_py.model.event import Event
from opencqrs_py.model.progress import LogMark, check_mark
from opencqrs_py.model.selection import Selection, Slice
from opencqrs_py.model.times import microseconds
from opencqrs_py.processing.finding import FindingSource, FoundEvent
from opencqrs_py.processing.ports import EventStore, PickingSource, Watch

_log = logging.getLogger("opencqrs.store")


class InMemoryEventStore(EventStore, PickingSource, FindingSource):
    """A list of events; positions count from 1. For tests: nothing survives the process."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._events: list[Event] = []
        self._known: dict[tuple[str, str], Event] = {}
        self._newest: dict[str, str] = {}  # the id of each subject's newest event
        self._changed = Condition()
        self.append(events)

    @override
    def append(
        self,
        events: Iterable[Event],
        preconditions: Sequence[Precondition] = (),
        progress: Callable[[int], None] | None = None,
    ) -> Appended:
        given = tuple(map(identified, events))
        with self._changed:
            check(preconditions, self._newest.get)
            before = len(self._events)
            for event in given:
                self._add(event)
            self._changed.notify_all()
            added = len(self._events) - before
            clashes = Clashes()
            if added < len(given):
                clashes.look(given, (self._known[event.source, event.id] for event in given))
        if clashes.message:
            _log.warning("%s", clashes.message)
        if progress is not None and given:
            progress(len(given))
        return Appended(len(given), added)

    @override
    def head(self) -> int:
        return len(self._events)

    @override
    def read(self, after: int, limit: int, selection: Selection, upto: int | None = None) -> Slice:
        head = self.head() if upto is None else min(self.head(), upto)
        following = (self._events[index] for index in range(max(after, 0), head))
        fitting = (event for event in following if selection.matches(event))
        events = tuple(islice(fitting, limit))
        return Slice(after, events[-1].position if len(events) == limit else max(head, after), events)

    @override
    def pick(self, positions: Sequence[int]) -> list[Event]:
        return [event for position in positions if (event := self._at(position)) is not None]

    @override
    def find(self, event_id: str, source: str = "") -> list[FoundEvent]:
        found = [event for event in self._events if event.id == event_id and source in ("", event.source)]
        return [FoundEvent(event.position, event.source) for event in sorted(found, key=lambda event: event.source)]

    @override
    def position_before(self, moment: datetime) -> int:
        wanted = microseconds(moment.isoformat()) or 0
        for event in self._events:
            happened = microseconds(event.time)
            if happened is not None and happened >= wanted:
                return event.position - 1
        return self.head()

    @override
    def watched(self) -> AbstractContextManager[Watch]:
        return nullcontext(ConditionWatch(self.head, self._changed))

    @override
    def fingerprint(self, position: int, event: Event | None = None) -> str:
        return LogMark.of(event or self._at(min(position, self.head()))).text

    @override
    def verify(self, position: int, fingerprint: str) -> None:

        def find(marked: int) -> LogMark | None:
            event = self._at(marked)
            return None if event is None else LogMark.of(event)

        check_mark(position, fingerprint, self.head, find, "this process")

    @override
    def is_outage(self, error: BaseException) -> bool:
        del error
        return False

    def _at(self, position: int) -> Event | None:
        return self._events[position - 1] if 0 < position <= len(self._events) else None

    def _add(self, event: Event) -> None:
        key = (event.source, event.id)
        if key not in self._known:
            self._known[key] = stored = event._replace(position=len(self._events) + 1)
            self._newest[event.subject] = event.id
            self._events.append(stored)

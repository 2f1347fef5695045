"""Checked parts: event stores and clocks of a project or another package, whose results are checked at each call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from inspect import getattr_static
from math import isfinite
from operator import attrgetter
from typing import Any

from typing_extensions import override

from opencqrs_py.errors import AssemblyError, EventStoreError
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection, Slice
from opencqrs_py.processing.exceptions import one_line
from opencqrs_py.processing.ports import Clock, EventSource, Watch

_PACKAGE = __name__.partition(".")[0] + "."
_REFUSED = "OCQ-354"


def checked_source(source: EventSource, place: str) -> EventSource:
    """Return an event store that refuses wrong results of ``source``: itself if its reads are this package's."""
    return source if _is_ours(source, "head", "read") else _checked_class(source)(source, place)


def unchecked(source: Any) -> Any:
    """Return the event store behind one that ``checked_source`` has returned."""
    return source.checked if isinstance(source, _CheckedSource) else source


def checked_clock(clock: Clock, place: str) -> Clock:
    """Return a clock that refuses wrong results of ``clock``, and whose times are in UTC: itself if it is ours.

    Raises:
        AssemblyError: OCQ-547, if its results are wrong already.
    """
    if _is_ours(clock, "monotonic", "now"):
        return clock
    checked = _CheckedClock(clock, place)
    checked.monotonic()
    checked.now()
    return checked


def _is_ours(part: object, *methods: str) -> bool:
    """Return whether methods of a part are implemented in this package."""
    modules = [getattr(getattr(type(part), method, None), "__module__", None) for method in methods]
    return all(isinstance(module, str) and module.startswith(_PACKAGE) for module in modules)


class _CheckedSource(EventSource):
    """An event store whose reads are checked. All else, such as what optional protocols ask for, is the store's own.

    Attributes:
        checked: The store.
    """

    def __init__(self, source: EventSource, place: str) -> None:
        self.checked = source
        self._name = type(source).__qualname__
        self._place = place

    def __getattr__(self, name: str) -> Any:
        if name == "checked":  # not set yet
            raise AttributeError(name)
        return getattr(self.checked, name)

    @override
    def head(self) -> int:
        head = self.checked.head()
        if not _is_position(head):
            raise self._refused("head()", f"{head!r} instead of a position")
        return head

    @override
    def read(self, after: int, limit: int, selection: Selection, upto: int | None = None) -> Slice:
        part = self.checked.read(after, limit, selection, upto)
        if (wrong := _wrong_in(part, after, upto)) is not None:
            raise self._refused(f"read(after={after}, limit={limit}, upto={upto})", wrong)
        return part

    @override
    def position_before(self, moment: datetime) -> int:
        return self.checked.position_before(moment)

    @override
    def watched(self) -> AbstractContextManager[Watch]:
        return self.checked.watched()

    @override
    def fingerprint(self, position: int, event: Event | None = None) -> str:
        return self.checked.fingerprint(position, event)

    @override
    def verify(self, position: int, fingerprint: str) -> None:
        self.checked.verify(position, fingerprint)

    @override
    def is_outage(self, error: BaseException) -> bool:
        return not _is_refusal(error) and self.checked.is_outage(error)

    def _refused(self, call: str, result: str) -> EventStoreError:
        fix = "correct the store, and test it with EventSourceContract of opencqrs_py.testing.contracts"
        what = f"{call} of the event store {self._name} returned {result}"
        return EventStoreError(_REFUSED, what, self._place, fix)


def _checked_class(source: EventSource) -> type[_CheckedSource]:
    """Return the class that checks a store, with a property for everything else that the store has.

    There ``isinstance`` finds what optional protocols ask for, from Python 3.12 on without reading it. The values are
    always the store's own, which may know them only once it connects.
    """
    others = {name for name in dir(source) if not name.startswith("_")} - {*dir(_CheckedSource), "checked"}
    has = {
        name: property(attrgetter(f"checked.{name}")) for name in others if getattr_static(source, name, 0) is not None
    }
    return type(_CheckedSource.__name__, (_CheckedSource,), has)


def _is_refusal(error: BaseException) -> bool:
    """Return whether an error is that of a wrong result, which the store must not declare an outage."""
    return isinstance(error, EventStoreError) and error.code == _REFUSED


def _is_position(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _wrong_in(part: Any, after: int, upto: int | None) -> str | None:
    """Return what is wrong with what was read; ``None`` if it is a slice as asked for."""
    if not isinstance(part, Slice):
        return f"{_kind(part)} instead of a Slice"
    if part.after != after:
        return f"a slice that begins after {part.after!r} instead of {after}"
    if not _is_position(part.upto) or part.upto < after:
        return f"a slice that ends at {part.upto!r}, before it begins"
    if upto is not None and part.upto > max(after, upto):
        return f"a slice that ends at {part.upto}, beyond {upto}"
    events: object = part.events
    if not isinstance(events, Sequence):
        return f"{_kind(events)} instead of a sequence of events"
    return _wrong_among(events, after, part.upto)


def _wrong_among(events: Sequence[Any], after: int, upto: int) -> str | None:
    """Return what is wrong with the events of a slice; ``None`` if they follow each other within it."""
    if type(events) is Chunk and events.in_rows:  # making an event of each takes longer than reading it
        return _wrong_order(map(events.position, range(len(events))), after, upto)
    for event in events:
        if not isinstance(event, Event):
            return f"{_kind(event)} instead of an event"
    return _wrong_order((event.position for event in events), after, upto)


def _wrong_order(positions: Iterable[Any], after: int, upto: int) -> str | None:
    before = after
    for position in positions:
        if not _is_position(position):
            return f"an event at {position!r}, which is not a position"
        if position <= before:
            return f"an event at position {position}, which is not after {before}"
        before = position
    return f"an event at position {before} in a slice that ends at {upto}" if before > upto else None


def _kind(value: object) -> str:
    return "None" if value is None else f"a {type(value).__qualname__}"


class _CheckedClock(Clock):
    """A clock of the project. What it returns is checked, and its times are converted to UTC."""

    def __init__(self, clock: Clock, place: str) -> None:
        self._clock = clock
        self._place = place

    @override
    def monotonic(self) -> float:
        seconds = self._result_of("monotonic")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not isfinite(seconds):
            raise self._refused("monotonic", f"returned {seconds!r} instead of a number of seconds")
        return seconds

    @override
    def now(self) -> datetime:
        now = self._result_of("now")
        if not isinstance(now, datetime):
            raise self._refused("now", f"returned {now!r} instead of a datetime")
        if now.utcoffset() is None:
            raise self._refused("now", f"returned {now}, which has no time zone")
        return now.astimezone(UTC)

    def _result_of(self, method: str) -> Any:
        try:
            return getattr(self._clock, method)()
        except Exception as error:
            raise self._refused(method, f"raised {one_line(error)}") from error

    def _refused(self, method: str, what: str) -> AssemblyError:
        fix = "have now() return the time in UTC, like datetime.now(UTC), and monotonic() a number of seconds"
        what = f"{method}() of the clock {type(self._clock).__qualname__} {what}"
        return AssemblyError("OCQ-547", what, self._place, fix)

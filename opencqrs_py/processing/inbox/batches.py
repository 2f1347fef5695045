"""Batches: how a scheduled group handles, at a tick, the events that wait in its inbox.

A batch consists of the waiting events of one sequence. This module decides which of them may be tried, and in which
order.

Source:
    camunda-bpm-correlate (batches, modes, grace period, expiry), without the faults of its code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import inf, isnan
from typing import Any

from opencqrs_py.errors import OrderingError
from opencqrs_py.model.choices import BatchMode, BatchOrder, OnBatchExhausted
from opencqrs_py.model.event import Event
from opencqrs_py.model.inbox import MOVING, Fetching, InboxEntry, Remainder
from opencqrs_py.model.times import in_milliseconds, in_utc, microseconds
from opencqrs_py.processing.exceptions import one_line, raise_interrupt
from opencqrs_py.processing.inbox.schedules import FixedDelay, Schedule
from opencqrs_py.processing.ports import BackOff
from opencqrs_py.processing.recovery import ExponentialBackOff

_MILLISECOND = timedelta(milliseconds=1)


class UnorderedError(Exception):
    """The place of ``event`` in its batch cannot be determined, because of ``error``."""

    def __init__(self, event: Event, error: OrderingError) -> None:
        super().__init__(event, error)
        self.event = event
        self.error = error


@dataclass(frozen=True, slots=True)
class OrderingKey:
    """A function of the project that returns the sort key of an event within its batch.

    Attributes:
        function: The function.
        name: How messages name it.
        place: Where it is.
    """

    function: Callable[[Event], Any]
    name: str = "batch.ordering-ref"
    place: str = ""

    def ordered(self, batch: Sequence[tuple[InboxEntry, Event]]) -> list[tuple[InboxEntry, Event]]:
        """Return the events of a batch in its order; ties keep the given order.

        Raises:
            UnorderedError: If it fails for an event, or returns values that cannot be compared; with OCQ-611.
        """
        keyed = [(self._of(event), pair) for pair in batch for event in pair[1:]]
        if len(keyed) > 1 and (odd := next((pair[1] for key, pair in keyed if _has_nan(key)), None)) is not None:
            raise self._failed(odd, f"{self.name} returned NaN, which is neither less nor greater than any number")
        try:
            return [pair for _, pair in sorted(keyed, key=lambda each: each[0])]
        except BaseException as error:
            raise_interrupt(error)
            raise self._incomparable([(key, pair[1]) for key, pair in keyed], error) from error

    def _of(self, event: Event) -> Any:
        try:
            return self.function(event)
        except BaseException as error:
            raise_interrupt(error)
            fix = "return a value for every event of the group"
            failed = OrderingError("OCQ-611", f"{self.name} raised {one_line(error)}", self.place, fix)
            failed.__cause__ = error
            raise UnorderedError(event, failed) from error

    def _incomparable(self, keyed: Sequence[tuple[Any, Event]], error: BaseException) -> UnorderedError:
        """Return the error for the first event whose value cannot be compared with that of the first."""
        (first, _), *others = keyed
        odd, event = next((each for each in others if not _are_comparable(first, each[0])), keyed[-1])
        what = f"{self.name} returned values that cannot be compared: {type(odd).__name__} for this event"
        if type(odd) is not type(first):
            what += f", {type(first).__name__} for another of its batch"
        return self._failed(event, what, error)

    def _failed(self, event: Event, what: str, cause: BaseException | None = None) -> UnorderedError:
        fix = "return values of one kind for all events of the group, and never None or NaN"
        failed = OrderingError("OCQ-611", what, self.place, fix)
        failed.__cause__ = cause
        return UnorderedError(event, failed)


def _has_nan(key: Any) -> bool:
    """Return whether a key is NaN, or a tuple with one: a sort would put it, and others, anywhere without an error."""
    return any(isinstance(one, float) and isnan(one) for one in (key if isinstance(key, tuple) else (key,)))


def _are_comparable(one: Any, other: Any) -> bool:
    try:
        return bool(one < other) or bool(other < one) or True
    except BaseException as error:
        raise_interrupt(error)
        return False


@dataclass(frozen=True, slots=True)
class ScheduleRule:
    """How a scheduled group handles its events.

    Attributes:
        schedule: Computes its ticks.
        mode: What a failing event means for its batch.
        size: Most events of a sequence in a tick; ``None``: all.
        order: In which order the events of a batch are handled.
        key: Returns the sort key of an event, which replaces ``order``; ``None`` for none.
        fetch_size: Most events read at once; only a longer sequence is cut by it.
        grace_seconds: How long after an event's arrival its failures do not count: it is tried at each tick.
        expires_seconds: How long after its arrival an event is tried; then it is removed.
        back_off: Waits between the attempts of an event.
        on_exhausted: What happens to an event whose attempts are exhausted.
        filters: Return whether an event enters the inbox at all.
    """

    schedule: Schedule = field(default_factory=lambda: FixedDelay(10.0, 6.0))
    mode: BatchMode = BatchMode.FAIL_FIRST
    size: int | None = None
    order: BatchOrder = BatchOrder.INSERTED
    key: OrderingKey | None = None
    fetch_size: int = 1_000
    grace_seconds: float = 0.0
    expires_seconds: float = inf
    back_off: BackOff = field(default_factory=lambda: ExponentialBackOff(60.0, 2.0, 10_800.0, max_attempts=99))
    on_exhausted: OnBatchExhausted = OnBatchExhausted.BLOCK
    filters: tuple[Callable[[Event], bool], ...] = ()

    @property
    def each(self) -> bool:
        """Whether each event is tried on its own."""
        return self.mode is BatchMode.ALL

    @property
    def expiring(self) -> bool:
        """Whether events expire."""
        return self.expires_seconds != inf

    @property
    def in_log_order(self) -> bool:
        """Whether the events of a batch are handled in the order of the log."""
        return self.key is None and self.order is BatchOrder.INSERTED

    @property
    def fetching(self) -> Fetching:
        """Which events of a sequence that is due are fetched."""
        if self.each:
            return Fetching.DUE
        return Fetching.FIRST if self.in_log_order else Fetching.WHOLE

    def ordered(self, batch: Sequence[tuple[InboxEntry, Event]]) -> list[tuple[InboxEntry, Event]]:
        """Return the events of a batch in the order in which they are handled; ties keep the order of the log.

        Raises:
            UnorderedError: If the function that orders them fails, or the time of an event cannot be read.
        """
        if self.key is not None:
            return self.key.ordered(batch)
        match self.order:
            case BatchOrder.EVENT_TIME:
                return sorted(batch, key=lambda each: _time_key(each[1]))
            case BatchOrder.EVENT_ID:
                return sorted(batch, key=lambda each: each[1].id)
            case _:
                return list(batch)


def _time_key(event: Event) -> tuple[bool, int]:
    """Return the sort key by time; events without a time come last.

    Raises:
        UnorderedError: If it is not a time, as in a table that another program fills; with OCQ-611.
    """
    try:
        moment = microseconds(in_utc(event.time))
    except (AttributeError, TypeError, ValueError) as error:  # SQLite keeps anything in any column
        what = f"batch.ordering is event-time, and the event's time is {event.time!r}, which is not an RFC 3339 time"
        fix = "fix it where it is stored, or order the batches by something else"
        failed = OrderingError("OCQ-611", what, event.label, fix)
        failed.__cause__ = error
        raise UnorderedError(event, failed) from error
    return moment is None, moment or 0


@dataclass(frozen=True, slots=True)
class TickTimes:
    """The due times by which the inbox knows what a tick tries, as ISO 8601 texts.

    Attributes:
        tick: The time of the tick: whatever is due by then is tried.
        later: Due time of the events of a batch that are too many for the tick, until the chosen ones are done.
        next: Due time of what waits for the next tick.
    """

    tick: str
    later: str
    next: str

    @classmethod
    def of(cls, tick: datetime, now: datetime) -> TickTimes:
        """Return the times of a tick; the next one is after now, too."""
        later = tick + _MILLISECOND
        return cls(in_milliseconds(tick), in_milliseconds(later), in_milliseconds(max(later, now) + _MILLISECOND))


@dataclass(frozen=True, slots=True)
class ChosenEvents:
    """The events of a batch that a tick tries, of more than it may.

    The inbox keeps the choice, by the times of the events: any process that continues the tick, after any interruption,
    tries the rest of these and no others.

    Attributes:
        sequence_id: The sequence.
        positions: Positions of the chosen events, in the order in which they are tried.
        times: Those of the tick.
        each: Whether each event is tried on its own.
        is_kept: Whether the inbox has the choice already.
    """

    sequence_id: str
    positions: tuple[int, ...]
    times: TickTimes
    each: bool
    is_kept: bool = False

    def rest_after(self, position: int) -> Remainder | None:
        """Return what happens to the rest of the sequence after an event; ``None`` if its times stay as they are."""
        until, times = self.times.tick if self.each else None, self.times
        if position == self.positions[-1]:
            return None if self.each and self.is_kept else Remainder(self.sequence_id, times.next, until)
        if self.is_kept:
            return None
        return self._rest_from(self.positions.index(position) + 1)

    def rest_with(self, position: int) -> Remainder:
        """Return how a chosen event, and those after it, are tried again at the tick."""
        return self._rest_from(self.positions.index(position))

    def _rest_from(self, index: int) -> Remainder:
        until, at = (self.times.tick, None) if self.each else (None, self.times.tick)
        return Remainder(self.sequence_id, self.times.later, until, self.positions[index:], at)


def chosen_before(entries: Sequence[InboxEntry], times: TickTimes) -> tuple[InboxEntry, ...]:
    """Return which events of a batch the tick has chosen before; none if it has chosen none, or a person blocks it.

    Otherwise, where one event comes after another, only the first of a sequence has a time.
    """
    if not any(one.due_at == times.later for one in entries) or not all(one.status in MOVING for one in entries):
        return ()
    return tuple(one for one in entries if one.due_at == times.tick)


def eligible(entries: Sequence[InboxEntry], tick: datetime, mode: BatchMode) -> tuple[InboxEntry, ...]:
    """Return which of the waiting events of a sequence are tried at a tick.

    With ``fail-first`` all or none are: each that has failed must be due, and none may wait for a person. With
    ``all`` those that are due are.

    Args:
        entries: All events of the sequence that wait, in the order of the log.
        tick: Time of the tick.
        mode: The mode of the group.
    """
    until = in_milliseconds(tick)
    free = tuple(one for one in entries if one.status in MOVING and (one.due_at is None or one.due_at <= until))
    if mode is BatchMode.ALL:
        return free
    return free if len(free) == len(entries) else ()

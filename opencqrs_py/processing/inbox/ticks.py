"""Ticks: when the next one of a partition of a scheduled group begins, also after the clock was set back."""

from __future__ import annotations

from datetime import datetime, timedelta

from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.inbox.schedules import Schedule
from opencqrs_py.processing.ports import Clock

_SET_BACK = timedelta(seconds=1)  # a clock that goes back by more was set back


class WatchedClock:
    """A clock that notices when it was set back."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen = clock.now()

    def look(self) -> tuple[datetime, bool]:
        """Return the time, and whether the clock was set back since the last call."""
        now, before = self._clock.now(), self._seen
        self._seen = now
        return now, before - now > _SET_BACK


class TickState:
    """The ticks of a partition of a scheduled group.

    Attributes:
        wanted: Position at which a tick begins at once, unless one has begun there; ``None`` for none.
    """

    def __init__(self, schedule: Schedule, clock: Clock) -> None:
        self.wanted: int | None = None
        self._schedule = schedule
        self._clock = WatchedClock(clock)
        self._next = schedule.first(clock.now())
        self._tick = self._next
        self._from = self._done_from = -1  # where the current tick, and the last finished one, began

    def is_due(self, position: int) -> bool:
        """Return whether a tick begins now, with everything up to a position in the inbox."""
        wanted = self.wanted is not None and self._done_from < self.wanted <= position
        return self._now() >= self._next or wanted

    def begin(self, position: int) -> str:
        """Begin a tick; return the time by which its events are due."""
        self._tick, self._from = self._now(), position
        return in_milliseconds(self._tick)

    def end(self) -> None:
        """Note that all events of the tick were tried. A wanted tick replaces those that passed."""
        self._done_from = self._from
        now = self._now()
        if max(self._tick, now) >= self._next:
            self._next = self._schedule.following(self._next, now)

    def done(self, head: int) -> bool:
        """Return whether every event up to ``head`` that was due by then was tried."""
        return self._done_from >= head

    def seconds_left(self) -> float:
        """Return the seconds until the next tick."""
        now = self._now()
        return max(0.0, (self._next - now).total_seconds())

    def _now(self) -> datetime:
        """Return the time; if the clock was set back, the next tick is scheduled as after a start."""
        now, was_set_back = self._clock.look()
        if was_set_back:
            self._next = min(self._next, self._schedule.first(now))
        return now

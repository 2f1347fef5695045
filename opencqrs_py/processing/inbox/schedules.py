"""Schedules: when the waiting events of a scheduled group are handled."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol

from cronsim import CronSim
from typing_extensions import override

from opencqrs_py.model.cron import cron_parts

_SECOND = timedelta(seconds=1)
_MINUTE = timedelta(minutes=1)


class Schedule(Protocol):
    """Computes ticks: instants at which all events that are due are handled."""

    def first(self, start: datetime) -> datetime:
        """Return the first tick of a process that starts to handle a partition.

        Args:
            start: Time of the start, in UTC like all times here.
        """
        ...

    def following(self, tick: datetime, end: datetime) -> datetime:
        """Return the tick that follows one whose events were all tried by ``end``."""
        ...


@dataclass(frozen=True, slots=True)
class _AtIntervals(Schedule):
    initial: float
    interval: float

    @override
    def first(self, start: datetime) -> datetime:
        return start + timedelta(seconds=self.initial)


@dataclass(frozen=True, slots=True)
class FixedDelay(_AtIntervals):
    """A tick some time after the end of the previous one.

    Attributes:
        initial: Seconds until the first tick.
        interval: Seconds between the end of one tick and the next.
    """

    @override
    def following(self, tick: datetime, end: datetime) -> datetime:
        return end + timedelta(seconds=self.interval)


@dataclass(frozen=True, slots=True)
class FixedRate(_AtIntervals):
    """A tick at even intervals. Ticks that pass while the events of another one are tried are skipped.

    Attributes:
        initial: Seconds until the first tick.
        interval: Seconds between two ticks.
    """

    @override
    def following(self, tick: datetime, end: datetime) -> datetime:
        passed = max(0.0, (end - tick).total_seconds()) // self.interval
        return tick + timedelta(seconds=self.interval * (passed + 1))


@dataclass(frozen=True, slots=True)
class CronSchedule(Schedule):
    """Ticks by a cron expression of five fields, or of six with seconds first.

    ``?`` means ``*``, and ``@daily`` and the like are known. A fixed time in the hour that summer time skips is at the
    end of that hour; one in the hour that occurs twice is one tick. Whether it is fixed depends on minutes and hours.

    Attributes:
        expression: The expression.
        zone: The time zone of the expression.

    Raises:
        ValueError: If it is not a cron expression.
    """

    expression: str
    zone: tzinfo = UTC
    _minutes: str = field(init=False, repr=False, compare=False)  # the five fields
    _seconds: tuple[timedelta, ...] = field(init=False, repr=False, compare=False)  # after each minute, in order

    def __post_init__(self) -> None:
        seconds, minutes = cron_parts(self.expression)
        object.__setattr__(self, "_minutes", minutes)
        object.__setattr__(self, "_seconds", tuple(timedelta(seconds=each) for each in seconds))

    @override
    def first(self, start: datetime) -> datetime:
        before = (start - _MINUTE).astimezone(self.zone)  # the current minute may have ticks left
        minutes = (each.astimezone(start.tzinfo) for each in CronSim(self._minutes, before))
        # While an hour occurs for the second time, its ticks of the first time are returned, too.
        return next(tick for each in minutes for tick in (each + after for after in self._seconds) if tick > start)

    @override
    def following(self, tick: datetime, end: datetime) -> datetime:
        return self.first(max(tick, end))

    def last(self, after: datetime, upto: datetime) -> datetime | None:
        """Return the last tick after a time and by another one; ``None`` if there is none."""
        found = self.first(after)
        if found > upto:
            return None
        while upto - found >= _SECOND:  # no two ticks are closer
            middle = found + (upto - found) / 2
            later = self.first(middle)
            if later <= upto:
                found = later
            else:
                upto = middle  # no tick comes after it
        return found

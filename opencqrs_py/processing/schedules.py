"""Schedules: when the waiting events of a scheduled group are handled."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol

from cronsim import CronSim
from typing_extensions import override

from opencqrs_py.model.cron import standard_cron


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

    ``?`` means ``*``, and ``@daily`` and the like are known. A tick in the hour that summer time skips is at the
    end of that hour; a fixed time in the hour that occurs twice is one tick.

    Attributes:
        expression: The expression.
        zone: The time zone of the expression.

    Raises:
        ValueError: If it is not a cron expression.
    """

    expression: str
    zone: tzinfo = UTC
    _standard: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_standard", standard_cron(self.expression))

    @override
    def first(self, start: datetime) -> datetime:
        ticks = (each.astimezone(start.tzinfo) for each in CronSim(self._standard, start.astimezone(self.zone)))
        # While an hour occurs for the second time, its ticks of the first time are returned, too.
        return next(each for each in ticks if each > start)

    @override
    def following(self, tick: datetime, end: datetime) -> datetime:
        return self.first(max(tick, end))

"""Upcoming instants: when a job runs next by its schedule, and what changes of the clocks make of that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice

from opencqrs_py.jobs.rules import Ticking
from opencqrs_py.processing.inbox.schedules import CronSchedule, Schedule

_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Upcoming:
    """An instant at which a job runs by its schedule.

    Attributes:
        at: The instant, in UTC.
        local: The same by the clocks of the schedule's time zone: ``2026-03-29 03:00:00 CEST``.
        note: What a change of those clocks makes of it; empty if nothing.
    """

    at: datetime
    local: str
    note: str = ""


def upcoming(
    ticking: Ticking, now: datetime, count: int = 10, next_tick: datetime | None = None
) -> tuple[Upcoming, ...]:
    """Return the next instants of a schedule, as far as they are known.

    Args:
        ticking: When the job runs automatically.
        now: Now, in UTC.
        count: How many at most, 0 or more.
        next_tick: The next tick as it is recorded; ``None``: that of a process that starts now.

    Returns:
        None without a schedule; at most one where the ticks count from the end of a run.
    """
    schedule = ticking.schedule
    if schedule is None:
        return ()
    instants = _instants(schedule, schedule.first(now) if next_tick is None else next_tick)
    return tuple(_described(schedule, at) for at in islice(instants, min(count, 1) if ticking.from_end else count))


def _instants(schedule: Schedule, at: datetime) -> Iterator[datetime]:
    while True:
        yield at
        at = schedule.following(at, at)


def _described(schedule: Schedule, at: datetime) -> Upcoming:
    local = at.astimezone(schedule.zone if isinstance(schedule, CronSchedule) else UTC)
    note = (
        (_note_of_gap(schedule, local) or _note_of_repeat(schedule, local))
        if isinstance(schedule, CronSchedule)
        else ""
    )
    return Upcoming(at, f"{local:%Y-%m-%d %H:%M:%S %Z}", note)


def _note_of_gap(schedule: CronSchedule, local: datetime) -> str:
    """Return which times of day do not exist that run at the end of the gap; empty if none do."""
    minute = local.replace(second=0)  # of a tick with seconds it is the minute that has moved
    before = (minute.astimezone(UTC) - _SECOND).astimezone(local.tzinfo)
    wall = local.replace(tzinfo=UTC)
    begin = before.replace(tzinfo=UTC) + _SECOND
    by_the_clock = CronSchedule(schedule.expression)  # the expression where clocks never change
    named = [at for at in _until(by_the_clock, begin - _SECOND, wall) if at >= begin]
    if not named or named[-1] == wall:
        return ""
    first, last = named[0], named[-1]
    which = f"{first:%H:%M} does" if first == last else f"{first:%H:%M} to {last:%H:%M} do"
    return f"the clocks go forward: {which} not exist, it runs at {wall:%H:%M}"


def _until(schedule: CronSchedule, begin: datetime, end: datetime) -> Iterator[datetime]:
    at = schedule.first(begin)
    while at <= end:
        yield at
        at = schedule.first(at)


def _note_of_repeat(schedule: CronSchedule, local: datetime) -> str:
    """Return at which of two equal times of day it runs; empty if the time comes once."""
    other = local.replace(fold=1 - local.fold)
    if other.utcoffset() == local.utcoffset():
        return ""
    instant = other.astimezone(UTC)
    both = schedule.first(instant - _SECOND) == instant
    return f"the clocks go back: {local:%H:%M} comes twice, it runs {'both times' if both else 'at the first one'}"

"""Ticks: which instants of a schedule have passed, and what happens to each of them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from opencqrs_py.jobs.rules import Ticking
from opencqrs_py.model.choices import Misfire
from opencqrs_py.model.naming import counted
from opencqrs_py.processing.inbox.schedules import FixedRate, Schedule

MOST_TICKS = 1_000
"""Most ticks that are recorded one by one at a time. Earlier ones share one record."""

_MOST_KEPT = MOST_TICKS + 1  # with the last of those that share one

MOST_WALKED = 100_000
"""Ticks of a cron expression that are counted one by one; of more than those, some that were missed are not counted."""


@dataclass(frozen=True, slots=True)
class Tick:
    """A past instant of a schedule.

    Attributes:
        at: The instant.
        missed: Why it starts no run; empty if it starts one, perhaps together with a later tick.
        with_later: Whether the run of the newest tick covers it, too.
        waits: Whether its run waits for the one of the tick before, whatever the rule for overlaps.
        count: How many ticks it covers, at least: more than 1 for the oldest ones of very many.
    """

    at: datetime
    missed: str = ""
    with_later: bool = False
    waits: bool = False
    count: int = 1


@dataclass(frozen=True, slots=True)
class Ticks:
    """The ticks that are due, in their order, and the next one.

    Attributes:
        due: What is to be recorded now.
        next: The next tick; ``None`` while a run lasts from whose end it counts.
    """

    due: tuple[Tick, ...]
    next: datetime | None


def ticks_until(rule: Ticking, next_tick: datetime, now: datetime) -> Ticks:
    """Return what happens to the ticks from the next one up to now.

    Args:
        rule: When the job runs automatically. It has a schedule.
        next_tick: The first tick that was not recorded yet.
        now: Now.

    Source:
        J15: missed ticks become one run, none, or a run each.
    """
    schedule = rule.schedule
    if schedule is None or next_tick > now:
        return Ticks((), next_tick)
    if rule.from_end:
        missed = missed_by(rule, next_tick, now)
        following = schedule.following(now, now) if missed else None
        return Ticks((Tick(next_tick, missed),), following)
    instants, omitted, following = _instants(schedule, next_tick, now)
    ticks = [_fate(rule, at, now, is_last=at == instants[-1]) for at in instants]
    if omitted or len(ticks) > MOST_TICKS:
        first = ticks[0]
        shared = counted(omitted + 1, "tick was missed", "ticks were missed")
        missed = first.missed or ("" if rule.misfire is Misfire.RUN_ONCE else shared)
        with_later = not missed
        ticks[0] = Tick(first.at, missed, with_later, waits=False, count=omitted + 1)
    return Ticks(tuple(ticks), following)


def _fate(rule: Ticking, at: datetime, now: datetime, *, is_last: bool) -> Tick:
    match rule.misfire:
        case Misfire.CATCH_UP:
            return Tick(at, waits=True)
        case Misfire.SKIP:
            return Tick(at, missed_by(rule, at, now), with_later=not is_last and not missed_by(rule, at, now))
        case Misfire.RUN_ONCE:  # pragma: no branch there is no other rule
            return Tick(at, with_later=not is_last)


def missed_by(rule: Ticking, at: datetime, now: datetime) -> str:
    """Return why a due tick starts no run, as it is too late; empty if it starts one."""
    late = (now - at).total_seconds()
    if rule.misfire is not Misfire.SKIP or late <= rule.grace:
        return ""
    return f"it was missed: no process could begin it within {rule.grace:g} s, {late:.0f} s have passed"


def _instants(schedule: Schedule, first: datetime, now: datetime) -> tuple[Sequence[datetime], int, datetime]:
    """Return the last instants from ``first`` up to ``now``, how many come before them, and the next one."""
    omitted = 0
    if isinstance(schedule, FixedRate):
        omitted = max(0, int((now - first).total_seconds() // schedule.interval) + 1 - _MOST_KEPT)
        first += timedelta(seconds=schedule.interval * omitted)
    before, walked, at = _walk(schedule, first, now, MOST_WALKED)
    if at > now:
        return before, omitted + walked - len(before), at
    span = timedelta(seconds=MOST_TICKS)
    while True:  # a tick each second at most, so that the first searches back are short
        begin = max(at, schedule.following(now - span, now - span))
        instants, there, following = _walk(schedule, begin, now)
        if begin == at:
            instants = [*before, *instants][-_MOST_KEPT:]
        if len(instants) == _MOST_KEPT or begin == at:
            return instants, walked + there - len(instants), following
        span *= 2


def _walk(
    schedule: Schedule, at: datetime, now: datetime, most: float = math.inf
) -> tuple[Sequence[datetime], int, datetime]:
    """Return the last instants from ``at`` up to ``now``, how many there were, and the one after those."""
    instants: deque[datetime] = deque(maxlen=_MOST_KEPT)
    walked = 0
    while at <= now and walked < most:
        instants.append(at)
        walked += 1
        at = schedule.following(at, at)
    return instants, walked, at

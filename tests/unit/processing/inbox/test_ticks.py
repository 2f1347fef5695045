"""Ticks: a clock that is set back, and ticks that are requested."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from opencqrs_py.processing.inbox.schedules import CronSchedule, FixedDelay, FixedRate, Schedule
from opencqrs_py.processing.inbox.ticks import TickState
from opencqrs_py.testing import FakeClock


class SetClock(FakeClock):
    """A clock that can be set, even back."""

    def __init__(self) -> None:
        super().__init__()
        self.time = datetime(2026, 3, 2, 1, tzinfo=UTC)

    def now(self) -> datetime:
        return self.time

    def advance(self, seconds: float) -> None:
        self.time += timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("schedule", "wait"),
    [(FixedDelay(6, 10), 6.0), (FixedRate(6, 10), 6.0), (CronSchedule("30 2 * * *"), 5_400.0)],
    ids=["delay", "rate", "cron"],
)
def test_setting_the_clock_back_does_not_delay_ticks_by_as_much(schedule: Schedule, wait: float) -> None:
    clock = SetClock()
    ticking = TickState(schedule, clock)
    clock.advance(20_000)
    assert ticking.is_due(0)
    ticking.begin(0)
    ticking.end()
    clock.advance(-20_000 - 86_400)
    assert ticking.seconds_left() == wait
    clock.advance(wait)
    assert ticking.is_due(0)


def test_a_small_clock_correction_changes_no_tick() -> None:
    clock = SetClock()
    ticking = TickState(FixedDelay(1, 60), clock)
    clock.advance(1)
    ticking.begin(0)
    ticking.end()
    clock.advance(-0.5)
    assert ticking.seconds_left() == 60.5


@pytest.mark.parametrize(
    ("schedule", "wait"), [(FixedDelay(2, 60), 60.0), (FixedRate(2, 60), 59.0), (CronSchedule("* * * * *"), 57.0)]
)
def test_a_requested_tick_replaces_those_that_pass_while_it_lasts(schedule: Schedule, wait: float) -> None:
    """Otherwise a run until caught up would retry events that have failed in it."""
    clock = SetClock()
    clock.advance(0 if schedule.first(clock.now()) < clock.now() + timedelta(seconds=3) else 58)
    ticking = TickState(schedule, clock)
    ticking.wanted = 1
    assert ticking.is_due(1)
    ticking.begin(1)
    clock.advance(1)
    assert not ticking.done(1)
    clock.advance(2 if wait != 57.0 else 4)
    ticking.end()
    assert not ticking.is_due(1)
    assert ticking.seconds_left() == wait


def test_a_requested_tick_that_ends_in_time_changes_no_other_tick() -> None:
    clock = SetClock()
    ticking = TickState(FixedDelay(2, 60), clock)
    ticking.wanted = 1
    ticking.begin(1)
    clock.advance(1)
    ticking.end()
    assert ticking.seconds_left() == 1.0

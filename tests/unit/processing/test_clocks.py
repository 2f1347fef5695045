"""Clocks: the real one, and the one that is moved by hand."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from opencqrs_py.processing.ports import Clock, SystemClock
from opencqrs_py.testing import FakeClock


def test_the_real_clock_is_monotonic() -> None:
    clock: Clock = SystemClock()
    assert clock.monotonic() <= clock.monotonic()
    assert abs(clock.now() - datetime.now(UTC)) < timedelta(minutes=1)
    assert clock.now().tzinfo is UTC


def test_the_fake_clock_only_moves_when_advanced() -> None:
    noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    clock = FakeClock(noon)
    fake: Clock = clock
    before = fake.monotonic()
    assert (fake.now(), fake.monotonic()) == (noon, before)
    clock.advance(90.5)
    assert fake.now() == noon + timedelta(seconds=90.5)
    assert fake.monotonic() == before + 90.5


@pytest.mark.parametrize("start", [date(2026, 5, 1), "2026-05-01T12:00:00Z", 0])
def test_the_fake_clock_starts_at_a_datetime(start: Any) -> None:
    with pytest.raises(TypeError, match="start takes a datetime such as"):
        FakeClock(start)


def test_the_fake_clock_is_monotonic() -> None:
    with pytest.raises(ValueError, match="time does not go back, got -1"):
        FakeClock().advance(-1)


def test_a_clock_in_a_zone_with_daylight_saving_time_advances_by_elapsed_time() -> None:
    clock = FakeClock(datetime(2026, 3, 29, 1, 30, tzinfo=ZoneInfo("Europe/Berlin")))
    before = clock.now().astimezone(UTC)
    clock.advance(3_600)
    assert clock.now().astimezone(UTC) - before == timedelta(hours=1)
    assert (clock.now().hour, clock.now().minute) == (3, 30)

"""Where a group without progress starts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.assembly.running import initial_position
from opencqrs_py.model import Event
from opencqrs_py.testing import FakeClock

NOW = datetime(2026, 3, 29, 2, 30, tzinfo=UTC)
WEEK = timedelta(days=7)
TICK = timedelta(microseconds=1)


def store_of(*times: datetime) -> InMemoryEventStore:
    store = InMemoryEventStore()
    store.append(
        Event(0, str(n), "s", "/books/1", "lent", time.isoformat(), "application/json", "{}", None)
        for n, time in enumerate(times)
    )
    return store


@pytest.mark.parametrize(
    ("setting", "position"),
    [
        ("tail", 0),
        ("head", 4),
        ("3", 3),
        ("-P7D", 1),
        ("-P1W", 1),
        ("-PT168H", 1),
        ("-p7dt0.000001s", 0),
        ("-P6D", 3),
        ("-PT0S", 4),
        ((NOW - WEEK).isoformat(), 1),
        ("2026-03-22T03:30:00.000001+01:00", 2),
    ],
)
def test_a_group_starts_before_the_first_event_of_the_time(setting: str, position: int) -> None:
    times = NOW - WEEK - TICK, NOW - WEEK, NOW - WEEK + TICK, NOW - timedelta(hours=1)
    assert initial_position(setting, store_of(*times), FakeClock(NOW)) == position

"""Where a group without progress starts."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta

import pytest

from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.assembly.initial_positions import initial_position, starting_position
from opencqrs_py.config import EffectiveGroup
from opencqrs_py.config.groups import FetchSettings
from opencqrs_py.errors import AssemblyError
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


@pytest.mark.parametrize(
    ("setting", "position"),
    [
        ("tail", 0),
        ("head", 2),
        ("0", 0),
        ("2", 2),
        ("3", None),
        ("-PT0S", 2),
        (NOW.isoformat(), 1),
        ((NOW + TICK).isoformat(), 2),
        ((NOW + WEEK).isoformat(), None),
    ],
)
def test_a_position_or_time_after_the_end_of_the_log_is_refused(setting: str, position: int | None) -> None:
    settings = EffectiveGroup("books", fetch=FetchSettings(initial_position=setting))
    parts = (settings, store_of(NOW - WEEK, NOW), InMemoryProgressTracker(), FakeClock(NOW + TICK))
    if position is not None:
        assert starting_position(*parts) == position
        return
    with pytest.raises(AssemblyError) as caught:
        starting_position(*parts)
    assert caught.value.code == "OCQ-530"
    assert caught.value.what == f"group 'books' is to start at {setting}, and the log ends at position 2"
    assert caught.value.where == "fetch.initial-position"


REFUSED = pytest.raises(AssemblyError, match="OCQ-530")


@pytest.mark.parametrize(("setting", "expected"), [("head", nullcontext()), ("0", nullcontext()), ("1", REFUSED)])
def test_an_empty_log_accepts_only_its_beginning(setting: str, expected: AbstractContextManager[object]) -> None:
    settings = EffectiveGroup("books", fetch=FetchSettings(initial_position=setting))
    with expected:
        starting_position(settings, store_of(), InMemoryProgressTracker(), FakeClock(NOW))


def test_a_future_time_is_accepted_if_the_log_has_events_of_that_time() -> None:
    settings = EffectiveGroup("books", fetch=FetchSettings(initial_position=(NOW + WEEK).isoformat()))
    store = store_of(NOW, NOW + WEEK)
    assert starting_position(settings, store, InMemoryProgressTracker(), FakeClock(NOW)) == 1

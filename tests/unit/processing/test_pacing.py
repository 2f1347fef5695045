"""The log is read no faster than a limit allows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.model import Event, Selection
from opencqrs_py.model.selection import Share
from opencqrs_py.processing.pacing import STEP_SECONDS, ArrivalRate, Following, Pace, PacedSource
from opencqrs_py.processing.ports import LimitedSource
from opencqrs_py.processing.positions import events_at
from opencqrs_py.testing import FakeClock

ALL = Selection()
SECONDS = 30.0  # the longest wait for another thread


def store_of(count: int) -> InMemoryEventStore:
    one = ("s", "/books/1", "lent", None, "application/json", None, None)
    return InMemoryEventStore(Event(n, str(n), *one) for n in range(1, count + 1))


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def source_of(clock: FakeClock, count: int = 1_000, per_second: int = 100) -> tuple[Any, Pace]:
    pace = Pace(per_second, 0, clock.monotonic)
    return PacedSource(store_of(count), pace), pace


def test_no_event_may_be_read_before_time_has_passed(clock: FakeClock) -> None:
    source, _ = source_of(clock)
    assert source.head() == 0
    assert source.read(0, 10, ALL).upto == 0
    clock.advance(STEP_SECONDS / 2)
    assert source.head() == 0


@pytest.mark.parametrize("per_second", [1, 7, 100, 10_000])
def test_as_many_events_as_the_limit_allows_may_be_read_per_second(clock: FakeClock, per_second: int) -> None:
    pace = Pace(per_second, 50, clock.monotonic)
    for second in range(1, 20):
        for _ in range(4):
            clock.advance(0.25)
            limit = pace.limit()
            assert limit is not None
            pace.reached(limit)
        assert limit == 50 + per_second * second


def test_idle_time_accumulates_no_allowance(clock: FakeClock) -> None:
    pace = Pace(100, 0, clock.monotonic)
    clock.advance(60)
    assert pace.limit() == 101  # one second's
    clock.advance(60)
    assert pace.limit() == 101
    pace.reached(100)
    clock.advance(0.5)
    assert pace.limit() == 151


def test_a_slow_partition_does_not_lower_the_limit(clock: FakeClock) -> None:
    pace = Pace(100, 1_000, clock.monotonic)
    pace.reached(0)
    clock.advance(1)
    assert pace.limit() == 1_000


def test_events_are_read_up_to_the_limit(clock: FakeClock) -> None:
    source, _ = source_of(clock)
    clock.advance(0.5)
    assert source.limit() == 50
    assert source.head() == 50
    part = source.read(0, 1_000, ALL)
    assert (part.upto, len(part.events)) == (50, 50)
    assert source.read(50, 10, ALL).upto == 50
    assert source.read(200, 10, ALL).upto == 200  # a partition that was already further
    assert source.read(0, 1_000, ALL, 30).upto == 30
    assert source.read(0, 10, ALL).upto == 10


def test_the_limit_does_not_exceed_the_end_of_the_log(clock: FakeClock) -> None:
    source, _ = source_of(clock, count=20)
    clock.advance(1)
    assert source.limit() == 20
    assert source.read(0, 100, ALL).upto == 20


def test_a_lifted_limit_no_longer_applies(clock: FakeClock) -> None:
    source, pace = source_of(clock)
    pace.lift()
    assert source.limit() is None
    assert source.head() == 1_000
    assert source.read(0, 2_000, ALL).upto == 1_000


def test_a_limited_log_supports_the_operations_of_its_log(clock: FakeClock) -> None:
    pace = Pace(1, 0, clock.monotonic)
    limited = PacedSource(store_of(3), pace)
    assert isinstance(limited, LimitedSource)
    assert not limited.selects(Share(2, frozenset({0})))
    assert limited.fingerprint(3) == store_of(3).fingerprint(3)
    limited.verify(3, limited.fingerprint(3))
    assert not limited.is_outage(ValueError())


class Unpicking:
    """A log that can only be read sequentially, like files."""

    def __init__(self, store: InMemoryEventStore) -> None:
        self.head, self.read = store.head, store.read


@pytest.mark.parametrize("kind", [lambda store: store, Unpicking])
def test_events_waiting_in_the_inbox_are_found_even_beyond_the_limit(kind: Any) -> None:
    """A rebuild that resumes begins with a limit of 0, and had read such events before."""
    store = kind(store_of(9))
    limited = PacedSource(PacedSource(store, Following(5)), Following(0))
    assert limited.read(0, 9, ALL).events == ()
    assert list(events_at(limited, [7, 2, 12])) == [2, 7]


def test_a_watch_waits_until_the_limit_allows_events(clock: FakeClock) -> None:
    source, pace = source_of(clock)
    with source.watched() as watch:
        assert watch.wait(0, 0) == 0
        clock.advance(0.5)
        assert watch.wait(0, SECONDS) == 50
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(watch.wait, 50, SECONDS)
            clock.advance(0.25)
            assert waiting.result(SECONDS) == 75
        watch.wake()
        assert watch.wait(75, SECONDS) == 75
        pace.lift()
        assert watch.wait(75, SECONDS) == 1_000


def test_too_many_arrivals_are_reported_once_with_their_number(clock: FakeClock) -> None:
    head = 1_000
    arrivals = ArrivalRate(100, lambda: head, clock.monotonic)
    seen = []
    for _ in range(60):
        clock.advance(1)
        head += 120
        seen.append(arrivals.too_many())
    assert [rate for rate in seen if rate is not None] == [120]
    assert seen.index(120) == 9


def test_fewer_arrivals_than_the_limit_are_not_reported(clock: FakeClock) -> None:
    head = 1_000
    arrivals = ArrivalRate(100, lambda: head, clock.monotonic)
    for _ in range(60):
        clock.advance(1)
        head += 99
        assert arrivals.too_many() is None


def test_arrivals_that_become_too_many_later_are_reported(clock: FakeClock) -> None:
    head = 0
    arrivals = ArrivalRate(100, lambda: head, clock.monotonic)
    rates = []
    for second in range(40):
        clock.advance(1)
        head += 10 if second < 20 else 100
        rates.append(arrivals.too_many())
    assert [rate for rate in rates if rate is not None] == [100]


def test_a_watch_without_limit_waits_for_the_log_itself(clock: FakeClock) -> None:
    store = store_of(1)
    pace = Pace(1, 0, clock.monotonic)
    pace.lift()
    with PacedSource(store, pace).watched() as watch, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(watch.wait, 1, SECONDS)
        store.append(store_of(2).read(1, 10, ALL).events)
        assert waiting.result(SECONDS) == 2


def test_a_follower_reads_no_further_than_the_others_and_its_limit_never_decreases() -> None:
    following = Following(5)
    source = PacedSource(store_of(20), following)
    assert (source.head(), source.read(0, 100, ALL).upto) == (5, 5)
    following.move(9)
    following.move(7)
    assert (source.head(), source.limit()) == (9, 9)
    following.move(100)
    assert source.head() == 20


def test_the_lower_of_two_limits_applies(clock: FakeClock) -> None:
    following, pace = Following(30), Pace(100, 0, clock.monotonic)
    source = PacedSource(PacedSource(store_of(1_000), pace), following)
    clock.advance(0.25)
    assert (source.head(), source.read(0, 100, ALL).upto) == (25, 25)
    clock.advance(0.25)
    assert source.head() == 30
    following.move(900)
    pace.lift()
    assert source.head() == 900


def test_a_watch_notices_the_progress_of_the_others() -> None:
    following = Following(5)
    source = PacedSource(store_of(20), following)
    with ThreadPoolExecutor(1) as threads, source.watched() as watch:
        waiting = threads.submit(watch.wait, 5, SECONDS)
        following.move(8)
        assert waiting.result(SECONDS) == 8

"""Query results kept for a moment: concurrent callers share one query."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Event

import pytest

from opencqrs_py.web.cached_queries import CachedQuery, QueryTimeoutError

LONG = 60.0


@pytest.fixture
def kept() -> Iterator[Callable[..., CachedQuery[int]]]:
    """Return a function that makes cached queries; they are stopped at the end."""
    made: list[CachedQuery[int]] = []

    def make(look, now=lambda: 0.0) -> CachedQuery[int]:
        made.append(CachedQuery(look, "test-look", 1.0, now))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.stop(LONG)


def test_nothing_is_queried_before_the_first_request(kept):
    numbers = count(1)
    look = kept(lambda: next(numbers))
    assert look.get(LONG) == 1


@pytest.mark.parametrize(("passed", "found"), [(0.0, 1), (0.999, 1), (1.0, 2), (100.0, 2)])
def test_a_result_is_kept_for_a_moment(kept, passed, found):
    now, numbers = [5.0], count(1)
    look = kept(lambda: next(numbers), lambda: now[0])
    look.get(LONG)
    now[0] += passed
    assert look.get(LONG) == found


def test_queries_that_were_begun_run_at_the_same_time_and_their_results_are_returned_however_old(kept):
    now, second_runs = [5.0], Event()

    def first() -> int:
        assert second_runs.wait(LONG)
        return 1

    def second() -> int:
        second_runs.set()
        return 2

    queries = [kept(look, lambda: now[0]) for look in (first, second)]
    one, two = [query.begin() for query in queries]
    assert one(LONG) == 1
    assert two(LONG) == 2
    now[0] += 100.0
    assert [one(0.0), two(0.0)] == [1, 2]


def test_an_exception_is_kept_and_raised_to_all_callers(kept):
    asked = []

    def fail():
        asked.append(1)
        raise ValueError("no")

    look = kept(fail)
    for _ in range(3):
        with pytest.raises(ValueError, match="no"):
            look.get(LONG)
    assert len(asked) == 1


def test_concurrent_callers_share_one_result(kept):
    left, numbers = Event(), count(1)

    def slow():
        assert left.wait(LONG)
        return next(numbers)

    look = kept(slow)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(look.get, LONG) for _ in range(8)]
        left.set()
        assert {each.result() for each in asked} == {1}


def test_a_hanging_query_delays_no_caller_and_is_not_repeated_meanwhile(kept):
    entered, left, looks = Event(), Event(), []

    def hang():
        looks.append(1)
        entered.set()
        assert left.wait(LONG)
        return len(looks)

    look = kept(hang)
    for _ in range(3):
        with pytest.raises(QueryTimeoutError):
            look.get(0.0)
    assert entered.wait(LONG)
    with pytest.raises(QueryTimeoutError):
        look.get(0.0)
    assert looks == [1]
    left.set()
    assert look.get(LONG) >= 1


def test_after_a_stop_nothing_is_queried(kept):
    look = kept(lambda: pytest.fail("it looked"))
    look.stop(LONG)
    with pytest.raises(QueryTimeoutError):
        look.get(LONG)


def test_a_cached_query_that_was_never_started_can_be_stopped():
    CachedQuery(int, "test-look").stop(LONG)

"""Recovery: the reaction to a failure, and the waits before further attempts."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator
from itertools import islice
from math import inf, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.errors import AssemblyError
from opencqrs_py.model import Failure, Origin
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.processing.ports import BackOff
from opencqrs_py.processing.recovery import (
    Action,
    ExponentialBackOff,
    FixedBackOff,
    NoRetry,
    action_for,
    wait_after,
    waits_of,
)

SKIP, STOP = OnExhausted.SKIP, OnExhausted.STOP

TABLE = [
    # origin, permanent, exhausted, on_exhausted -> action
    (Origin.HANDLER, False, False, SKIP, Action.RETRY),
    (Origin.HANDLER, False, False, STOP, Action.RETRY),
    (Origin.HANDLER, False, True, SKIP, Action.SKIP),
    (Origin.HANDLER, False, True, STOP, Action.STOP),
    (Origin.HANDLER, True, False, SKIP, Action.STOP),
    (Origin.HANDLER, True, True, SKIP, Action.STOP),
    (Origin.HANDLER, True, False, STOP, Action.STOP),
    (Origin.HANDLER, True, True, STOP, Action.STOP),
]
FIXED = {
    Origin.EVENT: Action.STOP,
    Origin.FRAMEWORK: Action.STOP,
    Origin.OUTAGE: Action.WAIT,
    Origin.CHECKPOINT: Action.CLAIM,
    Origin.FENCED: Action.LEAVE,
}


def failure(origin: Origin, *, permanent: bool) -> Failure:
    return Failure(origin, permanent=permanent, error="ValueError", message="mine")


@pytest.mark.parametrize(("origin", "permanent", "exhausted", "on_exhausted", "action"), TABLE)
def test_a_handler_error_is_retried_until_its_attempts_are_exhausted(
    *, origin: Origin, permanent: bool, exhausted: bool, on_exhausted: OnExhausted, action: Action
) -> None:
    assert action_for(failure(origin, permanent=permanent), exhausted=exhausted, on_exhausted=on_exhausted) is action


@pytest.mark.parametrize("permanent", [True, False])
@pytest.mark.parametrize("exhausted", [True, False])
@pytest.mark.parametrize("on_exhausted", [SKIP, STOP])
@pytest.mark.parametrize(("origin", "action"), FIXED.items())
def test_the_action_for_other_errors_does_not_depend_on_attempts(
    *, origin: Origin, permanent: bool, exhausted: bool, on_exhausted: OnExhausted, action: Action
) -> None:
    assert action_for(failure(origin, permanent=permanent), exhausted=exhausted, on_exhausted=on_exhausted) is action


def test_the_table_covers_every_origin() -> None:
    assert {origin for origin, *_ in TABLE} | set(FIXED) == set(Origin)


# The first twelve answers in milliseconds; a shorter list ends there.
SERIES: list[tuple[str, BackOff, list[int]]] = [
    (
        "defaults",
        ExponentialBackOff(),
        [2000, 3000, 4500, 6750, 10125, 15187, 22780, 30000, 30000, 30000, 30000, 30000],
    ),
    ("five attempts", ExponentialBackOff(max_attempts=5), [2000, 3000, 4500, 6750, 10125]),
    (
        "100 ms, doubled, to 1 s",
        ExponentialBackOff(initial=0.1, multiplier=2, maximum=1),
        [100, 200, 400, 800, 1000, 1000, 1000, 1000, 1000, 1000, 1000, 1000],
    ),
    (
        "1 s, doubled, to 30 s",
        ExponentialBackOff(initial=1, multiplier=2, maximum=30),
        [1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000, 30000, 30000, 30000, 30000],
    ),
    ("10 s elapsed", ExponentialBackOff(max_elapsed=10), [2000, 3000, 4500, 6750]),
    ("9.5 s elapsed", ExponentialBackOff(max_elapsed=9.5), [2000, 3000, 4500]),
    ("nothing elapsed", ExponentialBackOff(max_elapsed=0), []),
    ("starts above the maximum", ExponentialBackOff(initial=60), [30000] * 12),
    ("never grows", ExponentialBackOff(initial=0.5, multiplier=1.0), [500] * 12),
    ("3 ms", ExponentialBackOff(initial=0.003), [3, 4, 6, 9, 13, 19, 28, 42, 63, 94, 141, 211]),
    ("1 ms is cut off to 1 ms", ExponentialBackOff(initial=0.001), [1] * 12),
    (
        "333 ms, times 1.7, to 5 s",
        ExponentialBackOff(initial=0.333, multiplier=1.7, maximum=5),
        [333, 566, 962, 1635, 2779, 4724, 5000, 5000, 5000, 5000, 5000, 5000],
    ),
    ("no wait", ExponentialBackOff(initial=0), [0] * 12),
    ("one attempt", ExponentialBackOff(max_attempts=1), [2000]),
    ("no attempt", ExponentialBackOff(max_attempts=0), []),
    ("fixed", FixedBackOff(2), [2000] * 12),
    ("fixed, one minute, three attempts", FixedBackOff(60, 3), [60000] * 3),
    ("fixed, 5 ms", FixedBackOff(0.005), [5] * 12),
    ("fixed, no attempt", FixedBackOff(2, 0), []),
    ("none", NoRetry(), []),
]


@pytest.mark.parametrize(("back_off", "milliseconds"), [case[1:] for case in SERIES], ids=[case[0] for case in SERIES])
def test_waits_match_the_original(back_off: BackOff, milliseconds: list[int]) -> None:
    assert [wait * 1000 for wait in islice(back_off.waits(), 12)] == milliseconds


@pytest.mark.parametrize("back_off", [case[1] for case in SERIES if len(case[2]) < 12])
def test_exhausted_waits_stay_exhausted(back_off: BackOff) -> None:
    waits = back_off.waits()
    list(waits)
    assert next(waits, None) is None


@pytest.mark.parametrize("back_off", [ExponentialBackOff(max_attempts=2), FixedBackOff(1, 2), NoRetry()])
def test_each_event_has_its_own_waits(back_off: BackOff) -> None:
    assert list(back_off.waits()) == list(back_off.waits())


@pytest.mark.parametrize("wrong", [nan, inf, -inf, -1, -0.001, 1e300])
@pytest.mark.parametrize(
    ("made", "name"),
    [
        (FixedBackOff, "interval"),
        (ExponentialBackOff, "initial"),
        (ExponentialBackOff, "maximum"),
    ],
)
def test_an_impossible_wait_is_refused(made: Any, name: str, wrong: float) -> None:
    with pytest.raises(ValueError, match=rf"^{name} must be 0 to 31,536,000,000, got {re.escape(str(wrong))}$"):
        made(**{name: wrong})


class Odd(BackOff):
    def __init__(self, wrong: Any) -> None:
        self.wrong = wrong

    def waits(self) -> Iterator[float]:
        yield 1.0
        if isinstance(self.wrong, Exception):
            raise self.wrong
        yield self.wrong


class Steep(ExponentialBackOff):
    def waits(self) -> Iterator[float]:
        yield 1.0
        yield nan


@pytest.mark.parametrize("odd", [*map(Odd, [nan, inf, -1, "2", None, KeyError("x")]), Steep()])
def test_a_failing_custom_back_off_is_named(odd: BackOff) -> None:
    waits = waits_of(odd, "books:1")
    assert next(waits) == 1.0
    with pytest.raises(AssemblyError, match=r"OCQ-546\] the back-off (Odd|Steep) failed: (Value|Key)Error: ") as raised:
        next(waits)
    assert raised.value.where == "retry.back-off-ref"
    # the end of the waits would mean that the attempts are exhausted
    with pytest.raises(AssemblyError, match="OCQ-546"):
        next(waits)


@pytest.mark.parametrize(
    ("name", "wrong", "expected"),
    [
        ("multiplier", 0.9, "1 to 1e+12"),
        ("multiplier", nan, "1 to 1e+12"),
        ("multiplier", inf, "1 to 1e+12"),
        ("initial", True, "a number"),
        ("initial", "2", "a number"),
        ("max_elapsed", nan, "0 or more"),
        ("max_elapsed", -1, "0 or more"),
        ("jitter", nan, "0 to 1"),
        ("jitter", -0.1, "0 to 1"),
        ("jitter", 1.1, "0 to 1"),
    ],
)
def test_invalid_back_off_parameters_are_refused(name: str, wrong: float, expected: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{name} must be {expected}, got {wrong!r}")):
        ExponentialBackOff(**{name: wrong})  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [-1, 1.5, inf, nan, True, "3"])
@pytest.mark.parametrize("made", [ExponentialBackOff, lambda **more: FixedBackOff(1, **more)])
def test_max_attempts_must_be_a_whole_number_or_none(made: Any, wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"^max_attempts must be a whole number, 0 or more, or None for no limit"):
        made(max_attempts=wrong)


def test_waits_end_at_the_maximum_with_any_multiplier() -> None:
    assert list(ExponentialBackOff(initial=1, multiplier=1e12, maximum=3e10, max_attempts=3).waits()) == [1, 3e10, 3e10]


@pytest.mark.parametrize(("drawn", "milliseconds"), [(0.0, [1000, 1500]), (0.5, [900, 1350]), (1.0, [800, 1200])])
def test_jitter_shortens_each_wait_by_a_random_part(drawn: float, milliseconds: list[int]) -> None:
    back_off = ExponentialBackOff(initial=1, jitter=0.2, max_attempts=2, draw=lambda: drawn)
    assert [round(wait * 1000, 6) for wait in back_off.waits()] == milliseconds


def drawn_from(numbers: Iterator[float]) -> ExponentialBackOff:
    return ExponentialBackOff(initial=1, maximum=8, jitter=1.0, draw=lambda: next(numbers))


@given(st.lists(st.floats(0, 1, exclude_max=True), min_size=20, max_size=20))
def test_jitter_never_exceeds_the_limit_of_a_wait(numbers: list[float]) -> None:
    assert all(0 < wait <= 8 for wait in islice(drawn_from(iter(numbers)).waits(), 20))


def test_waits_at_the_maximum_have_jitter_like_all_others() -> None:
    drawn = [number / 50 for number in range(50)]
    waits = ExponentialBackOff(initial=8, maximum=8, jitter=0.5, max_attempts=50, draw=iter(drawn).__next__).waits()
    assert list(waits) == pytest.approx([8 - 4 * number for number in drawn])


def test_the_maximum_elapsed_time_is_compared_with_the_actual_waits() -> None:
    back_off = ExponentialBackOff(initial=2, multiplier=1, max_elapsed=3, jitter=1, draw=lambda: 0.75)
    assert list(back_off.waits()) == [0.5] * 6


@pytest.mark.parametrize("what", ["books:1", "books:2", "größe:3"])
def test_waits_requested_one_by_one_are_those_whose_sum_is_limited(what: str) -> None:
    back_off = ExponentialBackOff(initial=10, multiplier=1, maximum=10, max_elapsed=600, jitter=1)
    waits = list(waits_of(back_off, what))
    assert [wait_after(back_off, retries, what) for retries in range(len(waits) + 1)] == [*waits, None]
    assert sum(waits[:-1]) < 600 <= sum(waits)


def test_waits_differ_between_events_but_not_between_processes() -> None:
    back_off = ExponentialBackOff(initial=10, multiplier=1, jitter=1, max_attempts=1)
    firsts = [wait_after(back_off, 0, f"books:{position}") for position in range(100)]
    assert len(set(firsts)) == 100
    assert max(filter(None, firsts)) > 9
    assert min(filter(None, firsts)) < 1
    assert wait_after(pickle.loads(pickle.dumps(back_off)), 0, "books:7") == pytest.approx(1.9552, abs=1e-4)


def test_a_custom_back_off_is_used_unchanged() -> None:
    class Twice(BackOff):
        def waits(self) -> Iterator[float]:
            yield from (1.0, 2.0)

    assert [wait_after(Twice(), retries, "books:1") for retries in range(3)] == [1.0, 2.0, None]


def test_jitter_is_drawn_again_for_each_wait() -> None:
    waits = list(ExponentialBackOff(initial=1, multiplier=1, jitter=0.5, max_attempts=50).waits())
    assert len(set(waits)) > 1
    assert all(0.5 <= wait <= 1 for wait in waits)


@given(
    st.floats(0, 1000),
    st.floats(1, 10),
    st.floats(0, 1000),
    st.floats(0, 10_000),
    st.integers(0, 50),
)
def test_waits_grow_to_the_limit_and_end_within_one_wait_of_the_maximum_elapsed_time(
    initial: float, multiplier: float, maximum: float, max_elapsed: float, max_attempts: int
) -> None:
    waits = list(ExponentialBackOff(initial, multiplier, maximum, max_elapsed, max_attempts).waits())
    assert len(waits) <= max_attempts
    assert waits == sorted(waits)
    assert all(wait <= maximum + 0.001 for wait in waits)
    assert sum(waits[:-1]) < max_elapsed or len(waits) <= 1

"""Ranges: how the log is split, and how a range is read."""

from __future__ import annotations

from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.engines.spark.source.columns import Available
from opencqrs_py.engines.spark.source.ddl import parse_ddl
from opencqrs_py.engines.spark.source.ranges import LogPart, Range, cut, steps_of
from opencqrs_py.engines.spark.source.source import admitted, batches
from opencqrs_py.engines.spark.source.variants import variant_of
from opencqrs_py.errors import EngineError
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection, Slice

ODD = Selection(types=frozenset({"odd"}))
ALL = Available().chosen(Available().usual())
TEXT = Available().chosen(parse_ddl("position BIGINT, payload STRING"))


def made(number, payload=None):
    kind = "odd" if number % 2 else "even"
    return Event(0, str(number), "s", f"/x/{number % 2}", kind, None, "application/json", payload, None)


class Counting(InMemoryEventStore):
    """A store that records the requested limits and bounds, and counts the returned events."""

    def __init__(self, events):
        super().__init__(events)
        self.limits, self.bounds = [], set()
        self.given = 0

    def read(self, after, limit, selection, upto=None):
        part = super().read(after, limit, selection, upto)
        self.limits.append(limit)
        self.bounds.add(upto)
        self.given += len(part.events)
        return part


class LogWithGaps:
    """A log with gaps: only these positions are used."""

    def __init__(self, positions):
        self.positions = sorted(positions)

    def head(self):
        return max(self.positions, default=0)

    def read(self, after, limit, selection, upto=None):
        end = self.head() if upto is None else min(self.head(), upto)
        found = [made(p)._replace(position=p) for p in self.positions if after < p <= end]
        events = [event for event in found if selection.matches(event)][:limit]
        return Slice(after, events[-1].position if len(events) == limit else max(end, after), events)


def read(store, span, selection=Selection()):  # noqa: B008 frozen
    return [p for batch in batches(store, selection, span, TEXT) for p in batch.column("position").to_pylist()]


@pytest.mark.parametrize(
    ("after", "upto", "most", "expected"),
    [
        (0, 0, 8, []),
        (9, 4, 8, []),
        (5, 6, 8, [(5, 6)]),
        (0, 20_000, 8, [(0, 20_000)]),
        (0, 20_001, 8, [(0, 20_000), (20_000, 20_001)]),
        (0, 100_000, 2, [(0, 50_000), (50_000, 100_000)]),
        (10, 100_000, 1, [(10, 100_000)]),
    ],
)
def test_the_log_is_cut_into_ranges_that_are_worth_a_task(after, upto, most, expected):
    assert [(span.after, span.upto) for span in cut(after, upto, most)] == expected


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 40))
def test_ranges_cover_the_log_exactly_once(after, length, most):
    spans = cut(after, after + length, most)
    assert len(spans) <= most
    assert [span.after for span in spans[1:]] == [span.upto for span in spans[:-1]]
    assert (spans[0].after, spans[-1].upto) == (after, after + length) if length else not spans


def test_batches_have_the_columns_of_an_event():
    (batch,) = batches(InMemoryEventStore([made(1, "[1]")]), Selection(), Range(0, 1), ALL)
    assert batch.schema.names == list(Event._fields)
    assert batch.to_pylist()[0]["payload"] == dict(zip(("value", "metadata"), variant_of("[1]"), strict=True))
    assert batch.to_pylist()[0]["time"] is None


def test_a_range_ends_at_its_bound_although_the_log_continues():
    assert read(InMemoryEventStore(map(made, range(1, 101))), Range(10, 14), ODD) == [11, 13]


def test_no_event_outside_the_range_is_read():
    store = Counting(map(made, range(1, 1_001)))
    assert read(store, Range(10, 20)) == list(range(11, 21))
    assert store.given == 10
    assert admitted(store, ODD, Range(10, 30), 5) == 19
    assert store.given == 15
    assert store.bounds == {20, 30}


def test_large_payloads_make_small_batches():
    store = Counting(made(n, f'"{"x" * 1_000_000}"') for n in range(1, 41))
    store.limits.clear()
    sizes = [batch.num_rows for batch in batches(LimitedReads(store, 5), Selection(), Range(0, 40), TEXT)]
    assert sizes[0] == 5
    assert max(sizes[1:]) == 15
    assert sum(sizes) == 40


class LimitedReads:
    """A source that first returns fewer events than requested, as a store may."""

    def __init__(self, store, first):
        self._store = store
        self._first = first

    def read(self, after, limit, selection, upto=None):
        return self._store.read(after, min(limit, self._first) if after == 0 else limit, selection, upto)


@given(st.sets(st.integers(1, 300), min_size=1), st.integers(0, 100), st.integers(0, 200))
def test_gaps_in_positions_change_nothing(positions, after, length):
    store = LogWithGaps(positions)
    upto = min(after + length, store.head())
    assert read(store, Range(after, upto), ODD) == [p for p in sorted(positions) if after < p <= upto and p % 2]


@given(st.sets(st.integers(1, 60), min_size=1), st.integers(0, 60), st.integers(1, 9))
def test_a_limit_admits_at_most_that_many_events_and_still_reaches_the_end(positions, after, most):
    store = LogWithGaps(positions)
    start, upto, found = after, store.head(), []
    while after < upto:
        end = admitted(store, ODD, Range(after, upto), most)
        assert end > after
        part = read(store, Range(after, end), ODD)
        assert len(part) <= most
        found += part
        after = end
    assert found == [p for p in sorted(positions) if p > start and p % 2]


def test_a_limit_is_used_up_if_there_are_enough_events():
    store = InMemoryEventStore(map(made, range(1, 101)))
    assert admitted(store, ODD, Range(0, 100), 10) == 19
    assert admitted(store, ODD, Range(0, 12), 10) == 12
    assert admitted(store, ODD, Range(0, 10), 10) == 10


def test_a_log_that_has_become_shorter_is_an_error():
    store = InMemoryEventStore(map(made, range(1, 4)))
    with pytest.raises(EngineError, match=r"OCQ-411.* the log ends at position 3, but position 4 existed before"):
        read(store, Range(0, 5))


# --------------------------------------------------------------------------------------------------------- equal ranges


class SearchableLog(LogWithGaps):
    """A log that finds the neighbours of a position, and counts the queries."""

    looks = 0

    def neighbours(self, positions, nth=1):
        self.looks += 1
        return [self._beside(position, nth) for position in positions]

    def _beside(self, position, nth):
        place = bisect_right(self.positions, position)
        after = self.positions[place + nth - 1] if place + nth <= len(self.positions) else None
        return (self.positions[place - 1] if place else None), after


def shares(positions, most=4):
    """Return how many events each range holds."""
    store = SearchableLog(positions)
    spans = cut(0, store.head(), most, None, steps_of(store, 0, store.head()))
    assert (spans[0].after, spans[-1].upto) == (0, store.head())
    assert [span.after for span in spans[1:]] == [span.upto for span in spans[:-1]]
    assert store.looks <= 15
    return [bisect_right(store.positions, span.upto) - bisect_right(store.positions, span.after) for span in spans]


FEW, MANY = 50_000, 10**15


@pytest.mark.parametrize(
    "positions",
    [
        pytest.param(range(1, 2 * FEW + 1), id="no gap"),
        pytest.param([*range(1, FEW + 1), *range(MANY, MANY + FEW)], id="one gap"),
        pytest.param([*range(1, FEW), MANY, *range(2 * MANY, 2 * MANY + FEW)], id="two gaps, and one event between"),
        pytest.param(range(MANY, MANY + 2 * FEW), id="a gap at the start"),
        pytest.param(range(1, 2_000 * FEW, 1_000), id="every thousandth"),
        pytest.param([*range(1, FEW), *range(FEW, 100 * FEW, 100)], id="dense and then sparse"),
    ],
)
def test_ranges_hold_about_the_same_number_of_events_wherever_gaps_are(positions):
    found = shares(positions)
    assert len(found) == 4
    assert sum(found) == len(positions)
    assert max(found) <= 1.3 * len(positions) / 4


@given(st.sets(st.integers(1, 10**9), min_size=1, max_size=300), st.integers(1, 9))
def test_every_event_is_in_exactly_one_range(positions, most):
    found = shares(positions, most)
    assert sum(found) == len(positions)
    assert len(found) <= most


def test_parts_without_known_events_belong_to_some_range():
    spans = cut(0, 100_000, 2, None, [LogPart(10, 20, 30_000.0), LogPart(50_000, 90_000, 30_000.0)])
    assert [(span.after, span.upto) for span in spans] == [(0, 50_000), (50_000, 100_000)]


def test_an_empty_part_of_a_log_is_one_range():
    store = SearchableLog([1, 2])
    assert steps_of(store, 2, 90_000) == []
    assert [(span.after, span.upto) for span in cut(2, 30_000, 1)] == [(2, 30_000)]

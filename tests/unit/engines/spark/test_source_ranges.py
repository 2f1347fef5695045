"""Ranges: how the log is cut up, and how one is read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.engines.spark.source import SCHEMA, Range, admitted, batches, cut
from opencqrs_py.errors import EngineError
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection, Slice

ODD = Selection(types=frozenset({"odd"}))


def made(number, payload=None):
    kind = "odd" if number % 2 else "even"
    return Event(0, str(number), "s", f"/x/{number % 2}", kind, None, "application/json", payload, None)


class Counting(InMemoryEventStore):
    """Remembers what was asked for, and counts the events that it gave."""

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


class Holes:
    """A log of which only some positions were ever taken."""

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
    return [p for batch in batches(store, selection, span) for p in batch.column("position").to_pylist()]


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
def test_a_stretch_is_cut_into_ranges_that_are_worth_a_task(after, upto, most, expected):
    assert [(span.after, span.upto) for span in cut(after, upto, most)] == expected


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.integers(1, 40))
def test_ranges_cover_the_stretch_once(after, length, most):
    spans = cut(after, after + length, most)
    assert len(spans) <= most
    assert [span.after for span in spans[1:]] == [span.upto for span in spans[:-1]]
    assert (spans[0].after, spans[-1].upto) == (after, after + length) if length else not spans


def test_batches_have_the_columns_of_an_event():
    (batch,) = batches(InMemoryEventStore([made(1, "[1]")]), Selection(), Range(0, 1))
    assert batch.schema.names == list(Event._fields) == [part.split()[0] for part in SCHEMA.split(", ")]
    assert batch.to_pylist()[0]["payload"] == "[1]"
    assert batch.to_pylist()[0]["time"] is None


def test_a_range_ends_where_it_should_although_the_log_goes_on():
    assert read(InMemoryEventStore(map(made, range(1, 101))), Range(10, 14), ODD) == [11, 13]


def test_no_more_is_read_than_the_range_holds():
    store = Counting(map(made, range(1, 1_001)))
    assert read(store, Range(10, 20)) == list(range(11, 21))
    assert store.given == 10
    assert admitted(store, ODD, Range(10, 30), 5) == 19
    assert store.given == 15
    assert store.bounds == {20, 30}


def test_large_payloads_make_small_batches():
    store = Counting(made(n, f'"{"x" * 1_000_000}"') for n in range(1, 41))
    store.limits.clear()
    sizes = [batch.num_rows for batch in batches(Limited(store, 5), Selection(), Range(0, 40))]
    assert sizes[0] == 5
    assert max(sizes[1:]) == 15
    assert sum(sizes) == 40


class Limited:
    """Gives fewer events at first than it was asked for, as a store may."""

    def __init__(self, store, first):
        self._store = store
        self._first = first

    def read(self, after, limit, selection, upto=None):
        return self._store.read(after, min(limit, self._first) if after == 0 else limit, selection, upto)


@given(st.sets(st.integers(1, 300), min_size=1), st.integers(0, 100), st.integers(0, 200))
def test_gaps_change_nothing(positions, after, length):
    store = Holes(positions)
    upto = min(after + length, store.head())
    assert read(store, Range(after, upto), ODD) == [p for p in sorted(positions) if after < p <= upto and p % 2]


@given(st.sets(st.integers(1, 60), min_size=1), st.integers(0, 60), st.integers(1, 9))
def test_a_limit_admits_as_many_events_as_it_says_and_comes_to_the_end(positions, after, most):
    store = Holes(positions)
    start, upto, found = after, store.head(), []
    while after < upto:
        end = admitted(store, ODD, Range(after, upto), most)
        assert end > after
        part = read(store, Range(after, end), ODD)
        assert len(part) <= most
        found += part
        after = end
    assert found == [p for p in sorted(positions) if p > start and p % 2]


def test_a_limit_is_used_up_when_there_are_enough_events():
    store = InMemoryEventStore(map(made, range(1, 101)))
    assert admitted(store, ODD, Range(0, 100), 10) == 19
    assert admitted(store, ODD, Range(0, 12), 10) == 12
    assert admitted(store, ODD, Range(0, 10), 10) == 10


def test_a_log_that_has_become_shorter_is_noticed():
    store = InMemoryEventStore(map(made, range(1, 4)))
    with pytest.raises(EngineError, match=r"OCQ-411.* the log ends at position 3, but 4 was there before"):
        read(store, Range(0, 5))

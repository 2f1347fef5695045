"""Event stores and clocks of a project, whose results are checked at each call."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from inspect import getattr_static
from unittest.mock import Mock

import pytest

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.assembly.checked_parts import checked_clock, checked_source
from opencqrs_py.errors import AssemblyError, EventStoreError
from opencqrs_py.model import Event, Selection, Slice
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.processing.ports import (
    Clock,
    ClosableSource,
    CountingSource,
    EventStore,
    IdGivingStore,
    LimitedSource,
    SharingSource,
    SystemClock,
    gives_ids,
)
from opencqrs_py.testing import FakeClock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ALL = Selection()


def at(*positions):
    return [Event(position, f"e{position}", "urn:s", "/x", "t", None, None, None, None) for position in positions]


def rows(*positions):
    return Chunk([(position, "t", "{}") for position in positions], lambda position: at(position)[0])


class Returning(InMemoryEventStore):
    """Returns what a test wants."""

    def __init__(self, result):
        super().__init__()
        self.result = result

    def head(self):
        return self.result

    def read(self, after, limit, selection, upto=None):
        return self.result


def read(result, upto=None):
    return checked_source(Returning(result), "provider mine").read(5, 10, ALL, upto)


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (None, "None instead of a Slice"),
        ([], "a list instead of a Slice"),
        (Slice(0, 9), "a slice that begins after 0 instead of 5"),
        (Slice(None, 9), "a slice that begins after None instead of 5"),
        (Slice(5, None), "a slice that ends at None, before it begins"),
        (Slice(5, "9"), "a slice that ends at '9', before it begins"),
        (Slice(5, 4), "a slice that ends at 4, before it begins"),
        (Slice(5, 21), "a slice that ends at 21, beyond 20"),
        (Slice(5, 9, None), "None instead of a sequence of events"),
        (Slice(5, 9, iter(at(6))), "a list_iterator instead of a sequence of events"),
        (Slice(5, 9, [None]), "None instead of an event"),
        (Slice(5, 9, [(6, "a")]), "a tuple instead of an event"),
        (Slice(5, 9, at("6")), "an event at '6', which is not a position"),
        (Slice(5, 9, at(None)), "an event at None, which is not a position"),
        (Slice(5, 9, at(6.0)), "an event at 6.0, which is not a position"),
        (Slice(5, 9, at(0, 0)), "an event at position 0, which is not after 5"),
        (Slice(5, 9, at(5, 6)), "an event at position 5, which is not after 5"),
        (Slice(5, 9, at(6, 7, 7)), "an event at position 7, which is not after 7"),
        (Slice(5, 9, at(9, 8)), "an event at position 8, which is not after 9"),
        (Slice(5, 9, at(6, 10)), "an event at position 10 in a slice that ends at 9"),
        (Slice(5, 9, Chunk(at(7, 6))), "an event at position 6, which is not after 7"),
        (Slice(5, 9, Chunk([None])), "None instead of an event"),
        (Slice(5, 9, rows(7, 6)), "an event at position 6, which is not after 7"),
        (Slice(5, 9, rows(6, 10)), "an event at position 10 in a slice that ends at 9"),
        (Slice(5, 9, rows("6")), "an event at '6', which is not a position"),
    ],
)
def test_a_slice_that_is_not_what_was_asked_for_is_refused_with_the_store_and_the_position(result, says):
    with pytest.raises(EventStoreError) as caught:
        read(result, 20)
    call = "read(after=5, limit=10, upto=20) of the event store Returning"
    assert (caught.value.code, caught.value.what) == ("OCQ-354", f"{call} returned {says}")
    assert caught.value.where == "provider mine"
    assert "EventSourceContract" in caught.value.fix


@pytest.mark.parametrize("upto", [None, 3, 9, 20])  # at 3, the reader is beyond its bound, and stays where it is
@pytest.mark.parametrize("events", [(), at(6), at(6, 9), tuple(at(6, 8)), Chunk(at(7, 9)), rows(7, 9)])
def test_a_correct_slice_is_returned_as_it_is(events, upto):
    result = Slice(5, 5) if upto == 3 else Slice(5, 9, events)
    assert read(result, upto) is result


def test_no_event_is_made_of_a_row_to_check_it(monkeypatch):
    result = Slice(5, 9, rows(7, 9))
    monkeypatch.setattr(Chunk, "__iter__", Mock(side_effect=AssertionError))
    monkeypatch.setattr(Chunk, "__getitem__", Mock(side_effect=AssertionError))
    assert read(result) is result


@pytest.mark.parametrize("result", [None, "7", -1, 7.0, True])
def test_a_head_that_is_not_a_position_is_refused(result):
    with pytest.raises(EventStoreError) as caught:
        checked_source(Returning(result), "mine://x").head()
    says = f"head() of the event store Returning returned {result!r} instead of a position"
    assert (caught.value.code, caught.value.what, caught.value.where) == ("OCQ-354", says, "mine://x")


class Broad(Returning):
    """Takes every error for an outage."""

    def is_outage(self, error):
        return True


def test_a_wrong_result_is_no_outage_whatever_the_store_says():
    store = checked_source(Broad(None), "here")
    with pytest.raises(EventStoreError) as caught:
        store.head()
    assert not store.is_outage(caught.value)
    assert store.is_outage(EventStoreError("OCQ-304", "unavailable"))
    assert store.is_outage(OSError())


class Able(InMemoryEventStore):
    """Has all that is optional, as methods and as attributes."""

    def __init__(self):
        super().__init__()
        self.gives_ids = True
        self.selects = lambda share: share == "mine"
        self.name = "able"
        self.checked = "a name that the wrapper has, too"

    def read(self, *arguments):
        return super().read(*arguments)

    def close(self):
        return "closed"

    def count(self):
        return 7


class Unable:
    """Has nothing that is optional."""

    def __init__(self):
        self._log = InMemoryEventStore()
        for name in ("position_before", "watched", "fingerprint", "verify", "is_outage"):
            setattr(self, name, getattr(self._log, name))

    def head(self):
        return self._log.head()

    def read(self, *arguments):
        return self._log.read(*arguments)


OPTIONAL = (EventStore, ClosableSource, CountingSource, IdGivingStore, SharingSource)


def test_a_checked_store_can_do_what_the_store_can():
    store = checked_source(Able(), "here")
    assert type(store) is not Able
    assert all(isinstance(store, protocol) for protocol in OPTIONAL)
    for name in ("append", "close", "count", "gives_ids", "selects"):
        getattr_static(store, name)  # where isinstance looks from Python 3.12 on
    assert (store.close(), store.count(), store.selects("mine"), gives_ids(store), store.name) == (
        "closed",
        7,
        True,
        True,
        "able",
    )
    store.append(at(0))
    assert (store.head(), [event.id for event in store.read(0, 10, ALL).events]) == (1, ["e0"])
    assert store.position_before(NOON) == 1
    store.verify(1, store.fingerprint(1))
    assert store.fingerprint(1) != store.fingerprint(0)
    assert not store.is_outage(ValueError())
    with store.watched() as watch:
        assert watch.wait(0, 0) == 1


def test_a_checked_store_can_do_nothing_that_the_store_cannot():
    store = checked_source(Unable(), "here")
    assert not any(isinstance(store, protocol) for protocol in (*OPTIONAL, LimitedSource))
    assert not gives_ids(store)
    with pytest.raises(AttributeError, match="'Unable' object has no attribute 'append'"):
        _ = store.append


class Connecting(Returning):
    """Knows whether it gives ids once it has connected."""

    connected = None
    close = None

    @property
    def gives_ids(self):
        if self.connected is None:
            raise ConnectionError
        return self.connected


def test_attributes_of_a_store_are_read_when_they_are_used():
    store = Connecting(0)
    checked = checked_source(store, "here")
    getattr_static(checked, "gives_ids")
    with pytest.raises(ConnectionError):
        _ = checked.gives_ids
    for store.connected in (False, True):
        assert gives_ids(checked) is store.connected
    assert not isinstance(checked, ClosableSource)


class Named(InMemoryEventStore):
    """Reads as this package does."""


@pytest.mark.parametrize("store", [InMemoryEventStore(), Named()])
def test_a_store_whose_reads_are_those_of_this_package_stays_as_it_is(store):
    assert checked_source(store, "here") is store


class Odd(Clock):
    """Returns, or raises, what a test wants."""

    def __init__(self, now=NOON, monotonic=1.5):
        self.results = {"now": now, "monotonic": monotonic}

    def result(self, name):
        if isinstance(self.results[name], Exception):
            raise self.results[name]
        return self.results[name]

    def now(self):
        return self.result("now")

    def monotonic(self):
        return self.result("monotonic")


WRONG = [
    ("now", datetime(2026, 1, 1, 12), "returned 2026-01-01 12:00:00, which has no time zone"),  # noqa: DTZ001 as meant
    ("now", None, "returned None instead of a datetime"),
    ("now", date(2026, 1, 1), "returned datetime.date(2026, 1, 1) instead of a datetime"),
    ("now", "12:00", "returned '12:00' instead of a datetime"),
    ("now", 1.5, "returned 1.5 instead of a datetime"),
    ("now", OSError("no line"), "raised OSError: no line"),
    ("monotonic", None, "returned None instead of a number of seconds"),
    ("monotonic", "1", "returned '1' instead of a number of seconds"),
    ("monotonic", True, "returned True instead of a number of seconds"),
    ("monotonic", float("nan"), "returned nan instead of a number of seconds"),
    ("monotonic", OSError("no line"), "raised OSError: no line"),
]


@pytest.mark.parametrize("is_wrong", ["at the start", "later"])
@pytest.mark.parametrize(("method", "result", "says"), WRONG)
def test_a_clock_that_does_not_return_a_time_is_refused_with_its_class(method, result, says, is_wrong):
    clock = Odd()

    def checked():
        return checked_clock(clock, "clock.ref, provider mine")

    made = checked() if is_wrong == "later" else None
    clock.results[method] = result
    with pytest.raises(AssemblyError) as caught:
        checked() if made is None else getattr(made, method)()
    assert (caught.value.code, caught.value.what) == ("OCQ-547", f"{method}() of the clock Odd {says}")
    assert caught.value.where == "clock.ref, provider mine"
    assert "datetime.now(UTC)" in caught.value.fix


@pytest.mark.parametrize("hours", [-5, 0, 5])
def test_times_of_a_clock_are_converted_to_utc(hours):
    now = checked_clock(Odd(NOON.astimezone(timezone(timedelta(hours=hours)))), "here").now()
    assert (now, now.utcoffset()) == (NOON, timedelta(0))


def test_seconds_of_a_clock_are_returned_as_they_are():
    assert [checked_clock(Odd(monotonic=seconds), "here").monotonic() for seconds in (0, 7, -2.5)] == [0, 7, -2.5]


@pytest.mark.parametrize("clock", [SystemClock(), FakeClock()])
def test_a_clock_of_this_package_stays_as_it_is(clock):
    assert checked_clock(clock, "here") is clock

"""Streams of EventSourcingDB that end early as if complete, which clients cannot detect in version 1 of its API."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from eventsourcingdb import Client
from hypothesis import example, given
from hypothesis import strategies as st

from opencqrs_py.adapters.eventsourcingdb import EventSourcingDbEventStore, EventSourcingDbUnavailableError
from opencqrs_py.model import Event, Selection
from opencqrs_py.testing.contracts.event_source import event
from opencqrs_py.testing.eventsourcingdb import EventSourcingDbStandIn, Fault, Then

pytestmark = pytest.mark.few

COUNT = 400  # events: more than are read of all subjects to make sure of one
READ = "read-events"
RARE = Selection("/rare")

Open = Callable[..., EventSourcingDbEventStore]


def ended(after: int) -> Fault:
    """Return the fault of a stream that ends after so many lines as if it were complete."""
    return Fault(READ, after, then=Then.END)


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def server(request: pytest.FixtureRequest) -> Iterator[EventSourcingDbStandIn]:
    with EventSourcingDbStandIn(version=request.param, names=False) as server:
        yield server


@pytest.fixture
def open_store(server: EventSourcingDbStandIn) -> Iterator[Open]:
    opened: list[EventSourcingDbEventStore] = []

    def open_(*subjects: str) -> EventSourcingDbEventStore:
        """Return a store that already knows one event for each subject, so that a read sends no other requests."""
        store = EventSourcingDbEventStore(server.url, server.api_token)
        opened.append(store)
        store.append(event(n, subject) for n, subject in enumerate(subjects))
        assert store.head() == len(subjects)
        server.bodies.clear()
        return store

    yield open_
    for store in opened:
        store.close()


def rare_at(*positions: int) -> list[str]:
    """Return the subjects of a log with rare events at some positions."""
    return ["/rare/1" if n in positions else "/common" for n in range(1, COUNT + 1)]


def positions(events: object) -> list[int]:
    assert isinstance(events, tuple)
    return [one.position for one in events if isinstance(one, Event)]


in_version_1 = pytest.mark.parametrize("server", [1], indirect=True)


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_stream_that_ends_early_is_an_outage_and_the_next_read_finds_all(
    open_store: Open, server: EventSourcingDbStandIn, after: int
) -> None:
    store = open_store(*rare_at(5, 50, 220))
    server.misbehave(ended(after))
    with pytest.raises(EventSourcingDbUnavailableError, match=r"OCQ-331\].* \(.+ended.*\)") as raised:
        store.read(0, 1_000, RARE)
    assert store.is_outage(raised.value)
    part = store.read(0, 1_000, RARE)
    assert (positions(part.events), part.upto) == ([5, 50, 220], COUNT)


@in_version_1
def test_the_message_names_the_event_that_was_seen_and_the_one_that_exists(
    open_store: Open, server: EventSourcingDbStandIn
) -> None:
    store = open_store(*rare_at(5, 50, 220))
    server.misbehave(ended(1))
    with pytest.raises(
        EventSourcingDbUnavailableError, match="its response ended after event 5 although there are 220"
    ):
        store.read(0, 1_000, RARE)


@in_version_1
@pytest.mark.parametrize("after", [0, 1])
def test_the_verifying_reads_can_end_early_too(open_store: Open, server: EventSourcingDbStandIn, after: int) -> None:
    store = open_store(*rare_at(5, 220))
    server.misbehave(ended(after), ended(0))
    part = store.read(0, 1_000, RARE)
    assert (positions(part.events), part.upto) == ([5, 220], COUNT), "found among the events of all subjects"
    server.misbehave(ended(after), ended(0), ended(7))
    with pytest.raises(EventSourcingDbUnavailableError, match=rf"ended after event \d+ although there are {COUNT}"):
        store.read(0, 1_000, RARE)


@in_version_1
def test_an_event_that_was_missed_in_one_range_is_found_in_the_next(
    open_store: Open, server: EventSourcingDbStandIn
) -> None:
    store = open_store(*rare_at(5, 6, 7, COUNT))
    server.misbehave(ended(1))  # the range of the first ten
    part = store.read(0, 10, RARE)
    assert (positions(part.events), part.upto) == ([5, 6, 7, COUNT], COUNT)


@in_version_1
@pytest.mark.parametrize(
    ("rare", "after", "requests", "told"),
    [
        ((1, 2, 3, COUNT), 0, 1, "the last event is the evidence"),
        ((5, 250), 0, 3, "the newest one is asked for, down to the last that was seen, and the last of all"),
        ((5,), 100, 3, "the newest one is older than the range, and the last of all is asked for"),
        ((5, 350), 0, 2, "what is left is read as it is"),
        ((), 300, 1, "a short range is read with all subjects"),
        ((), 0, 3, "there is none, so all is read"),
    ],
)
def test_verifying_a_read_costs_few_requests(
    open_store: Open,
    server: EventSourcingDbStandIn,
    rare: tuple[int, ...],
    after: int,
    requests: int,
    told: str,
) -> None:
    store = open_store(*rare_at(*rare))
    part = store.read(after, 1_000, RARE)
    assert (positions(part.events), part.upto) == ([n for n in rare if n > after], COUNT)
    assert server.counts()[READ] == requests, told


@in_version_1
def test_a_read_that_reaches_its_limit_needs_no_verification(open_store: Open, server: EventSourcingDbStandIn) -> None:
    store = open_store(*rare_at(1, 2, 3))
    part = store.read(0, 2, RARE)
    assert (positions(part.events), part.upto, server.counts()[READ]) == ([1, 2], 2, 1)


@pytest.mark.parametrize("server", [2], indirect=True)
def test_in_version_2_a_read_takes_one_more_request_for_the_newest_event(
    open_store: Open, server: EventSourcingDbStandIn
) -> None:
    store = open_store(*rare_at(5))
    assert store.read(0, 1_000, RARE).upto == COUNT
    assert server.counts()[READ] == 2


def test_a_client_that_does_not_report_its_version_is_not_trusted(
    open_store: Open, server: EventSourcingDbStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(Client, "_get_api_version")
    store = open_store(*rare_at(5))
    assert store.read(0, 1_000, RARE).upto == COUNT
    assert server.counts()[READ] == 3


@in_version_1
def test_a_subject_without_events_is_searched_among_fifty_thousand_at_a_time(
    open_store: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opencqrs_py.adapters.eventsourcingdb.event_store._SIFTED", 150)
    store = open_store(*rare_at())
    covered = [0]
    while covered[-1] < COUNT:
        covered.append(store.read(covered[-1], 1_000, RARE).upto)
    assert covered == [0, 150, 300, 400]


SUBJECTS = st.sampled_from(["/rare", "/rare/1", "/rarely", "/common"])


@example(subjects=["/rare"] * 5, ends=[3, 0], limit=20, recursive=True, types=None)
@given(
    subjects=st.lists(SUBJECTS, min_size=1, max_size=40),
    ends=st.lists(st.integers(0, 12), max_size=12),
    limit=st.integers(1, 30),
    recursive=st.booleans(),
    types=st.none() | st.just(frozenset({"t1"})),
)
def test_each_event_is_seen_once_wherever_streams_end(
    subjects: list[str], ends: list[int], limit: int, *, recursive: bool, types: frozenset[str] | None
) -> None:
    selection = Selection("/rare", recursive, types)
    with EventSourcingDbStandIn(version=1, names=False) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr("opencqrs_py.adapters.eventsourcingdb.reading._FEW", 2)
        store = EventSourcingDbEventStore(server.url, server.api_token)
        log = [event(n, subject, f"t{n % 2}") for n, subject in enumerate(subjects)]
        store.append(log)
        server.misbehave(*map(ended, ends))
        seen, after = [], 0
        for _ in range(len(ends) + len(subjects) + 1):
            try:
                part = store.read(after, limit, selection)
            except EventSourcingDbUnavailableError:
                continue
            seen += [int(one.id) for one in part.events]
            after = part.upto
        store.close()
    assert after == len(log)
    assert seen == [n for n, one in enumerate(log) if selection.matches(one)]

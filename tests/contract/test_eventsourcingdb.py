"""EventSourcingDB as an event store: the contract and its own rules, against the stand-in in both versions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest
from eventsourcingdb import (
    Client,
    DbApiError,
    EventCandidate,
    IsEventQlQueryTrue,
    ReadEventsOptions,
    ReadSubjectsOptions,
)
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.adapters.eventsourcingdb import EventSourcingDbEventStore
from opencqrs_py.errors import EventStoreError, PreconditionFailedError
from opencqrs_py.model import Event, Selection
from opencqrs_py.model.appending import (
    Appended,
    Precondition,
    SubjectIsOnEventId,
    SubjectIsPopulated,
    SubjectIsPristine,
)
from opencqrs_py.processing.ports import EventSource, EventStore
from opencqrs_py.testing.contracts import EventStoreContract
from opencqrs_py.testing.contracts.event_source import ALL, SUBJECTS, Append, event, followed, identities
from opencqrs_py.testing.eventsourcingdb import EventLog, EventSourcingDbStandIn
from opencqrs_py.testing.eventsourcingdb import server as stand_in

SECONDS = 30  # longest wait for another thread
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

Open = Callable[..., EventSourcingDbEventStore]


class ServerClock:
    """The server's time, set by hand. Nanoseconds since 1970."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> int:
        return int(self.now.timestamp()) * 10**9 + 123_456_789


@pytest.fixture
def clock() -> ServerClock:
    return ServerClock()


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def server(request: pytest.FixtureRequest, clock: ServerClock) -> Iterator[EventSourcingDbStandIn]:
    log = EventLog(clock)
    with EventSourcingDbStandIn(version=request.param, heartbeat=0.05, log=log, names=False) as server:
        yield server


@pytest.fixture
def open_store(server: EventSourcingDbStandIn) -> Iterator[Open]:
    """Opens the store again, as another process does."""
    opened: list[EventSourcingDbEventStore] = []

    def open_() -> EventSourcingDbEventStore:
        store = EventSourcingDbEventStore(server.url, server.api_token, source="urn:library", stall_seconds=SECONDS)
        opened.append(store)
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Open) -> EventSourcingDbEventStore:
    return open_store()


@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")  # of the client; its loop is ours alone
@pytest.mark.few("test_nothing_is_added_unless_the_precondition_holds", server=2)
@pytest.mark.release(server=1)  # another hash of the same events
@pytest.mark.release(count=12_000)  # the test of thousands of events, below, shows the slices
class TestEventSourcingDbEventStore(EventStoreContract):
    """The server gives events their ids and times, keeps JSON objects only, and knows no event again."""

    idempotent = False
    keeps_identity = False
    keeps_content_type = False
    keeps_data_verbatim = False
    keeps_decimals = False
    takes_any_data = False
    subjects = tuple(subject for subject in SUBJECTS if subject.startswith("/"))
    longest_payload = 60_000  # the server takes events of up to 64 KiB

    @pytest.mark.release  # as each append of many events
    def test_progress_is_reported_up_to_the_number_of_events_given(self, source: EventStore) -> None:
        super().test_progress_is_reported_up_to_the_number_of_events_given(source)

    @pytest.mark.release  # with several writers, it misses nothing either
    def test_a_reader_misses_nothing_while_events_are_added(self, source: EventSource, append: Append) -> None:
        super().test_a_reader_misses_nothing_while_events_are_added(source, append)

    @pytest.fixture
    def source(self, store: EventSourcingDbEventStore) -> EventSourcingDbEventStore:
        return store

    @pytest.fixture
    def append(self, open_store: Open) -> Append:
        """Another client adds the events, as is usual."""
        append: Append = open_store().append
        return append


@pytest.mark.parametrize(
    ("moment", "before"),
    [
        (NOON - timedelta(days=1), 0),
        (NOON, 1),
        (NOON + timedelta(microseconds=1), 1),
        (NOON + timedelta(microseconds=123_457), 3),
        (NOON + timedelta(hours=1), 3),
        (NOON + timedelta(hours=2), 4),
    ],
)
def test_a_time_is_compared_with_the_times_of_the_server(
    store: EventSourcingDbEventStore, clock: ServerClock, moment: datetime, before: int
) -> None:
    for number, hours in enumerate((-1, 0, 0, 1)):
        clock.now = NOON + timedelta(hours=hours)
        store.append([event(number)])
    assert store.position_before(moment) == before


# ----------------------------------------------------------------------------------------------------------- events


def test_an_event_is_read_as_the_server_has_stored_it(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    traces = '{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01","tracestate":"a=1"}'
    payload = '{"title":"Größe \\"1\\"","pages":[1.5,null],"isbn":12345678901234567890123}'
    given = Event(
        0, "mine", "urn:s", "/bücher/1", "book-lent", "2020-01-01T00:00:00Z", "application/json", payload, traces
    )
    store.append([given])
    (read,) = store.read(0, 10, ALL).events
    (stored,) = server.log.read("/", {"recursive": True})
    made = {name: stored[name] for name in ("predecessorhash", "hash")}
    assert read.metadata == {**made, **given.metadata}
    assert read == given._replace(position=1, id="0", time="2026-01-01T12:00:00.123456789Z", extensions=read.extensions)


def test_a_price_is_read_with_the_digits_that_the_server_sends(
    store: EventSourcingDbEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    compact, price = stand_in.compact, "12345678901234567.89"
    monkeypatch.setattr(stand_in, "compact", lambda line: compact(line).replace(f'"{price}"', price))
    store.append([event(1)._replace(payload=f'{{"price":"{price}"}}')])
    (read,) = store.read(0, 10, ALL).events
    assert read.payload == f'{{"price":{price}}}'


def test_events_without_a_source_get_that_of_the_store(store: EventSourcingDbEventStore) -> None:
    store.append([event(1)._replace(source=""), event(2)])
    assert [event.source for event in store.read(0, 10, ALL).events] == ["urn:library", "contract"]


def test_an_event_that_is_appended_twice_is_stored_twice(store: EventSourcingDbEventStore) -> None:
    assert store.append([event(1), event(1)]) == Appended(given=2, added=2)
    assert store.append([event(1)]).ids == ("2",)
    assert [event.id for event in store.read(0, 10, ALL).events] == ["0", "1", "2"]


def test_ids_are_compared_as_numbers(store: EventSourcingDbEventStore) -> None:
    store.append(event(n) for n in range(12))
    read = [event for part in followed(store, limit=1) for event in part.events]
    assert [event.id for event in read] == [str(n) for n in range(12)]
    assert [event.position for event in read] == list(range(1, 13))
    assert store.head() == 12
    with store.watched() as watch:
        store.append(event(n) for n in range(88))
        assert watch.wait(12, SECONDS) > 12
        assert watch.wait(99, SECONDS) == 100


@pytest.mark.parametrize(
    "change",
    [
        {"payload": None},
        {"payload": "[1]"},
        {"payload": '"text"'},
        {"content_type": "application/xml"},
        {"extensions": '{"comexampleuser":"ada"}'},
    ],
    ids=str,
)
def test_attributes_that_the_server_cannot_store_are_refused_before_anything_is_sent(
    store: EventSourcingDbEventStore, change: dict[str, str]
) -> None:
    with pytest.raises(EventStoreError, match=r"OCQ-336.* cannot keep the event[\s\S]*event 2 at"):
        store.append([event(1), event(2)._replace(**change)])
    assert store.head() == 0


def test_hashes_of_another_store_are_left_out(store: EventSourcingDbEventStore) -> None:
    store.append([event(1)])
    (read,) = store.read(0, 1, ALL).events
    store.append([read])
    first, second = store.read(0, 10, ALL).events
    assert second.metadata["predecessorhash"] == first.metadata["hash"] != second.metadata["hash"]


@pytest.mark.parametrize("size", [60_000, 1_000_000])
def test_large_events_are_read(store: EventSourcingDbEventStore, server: EventSourcingDbStandIn, size: int) -> None:
    text = "ä" * (size // 2)
    server.log.write([{"source": "s", "subject": "/", "type": "t", "data": {"text": text}}] * 3)
    assert [event.data["text"] for event in store.read(0, 10, ALL).events] == [text] * 3


def test_a_line_that_is_too_long_for_the_client_is_named(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    text = "a" * 2_000_000
    server.log.write([{"source": "s", "subject": "/", "type": "t", "data": {"text": text}}])
    with pytest.raises(EventStoreError, match=r"OCQ-334\].*longer than 1048576 bytes") as raised:
        store.read(0, 10, ALL)
    assert not store.is_outage(raised.value)


# -------------------------------------------------------------------------------------------------- preconditions


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (SubjectIsPristine("/books/2"), True),
        (SubjectIsPristine("/books/1"), False),
        (SubjectIsPristine("/books"), True),
        (SubjectIsPopulated("/books/1"), True),
        (SubjectIsPopulated("/books"), False),
        (SubjectIsOnEventId("/books/1", "11"), True),
        (SubjectIsOnEventId("/books/1", "9"), False),
        (SubjectIsOnEventId("/books/2", "11"), False),
    ],
    ids=str,
)
def test_events_are_added_only_if_the_preconditions_hold(
    store: EventSourcingDbEventStore, condition: Precondition, *, holds: bool
) -> None:
    store.append(event(n, "/books/1") for n in range(12))
    conditions = [SubjectIsPopulated("/books/1"), condition]
    if holds:
        assert store.append([event(13, "/other")], conditions) == Appended(1, 1)
    else:
        with pytest.raises(PreconditionFailedError, match=rf"OCQ-320\] the subject '{condition.subject}' is not") as e:
            store.append([event(13, "/other")], conditions)
        assert not store.is_outage(e.value)
    assert store.head() == 12 + holds


def test_a_conflict_that_has_passed_meanwhile_is_still_reported(
    store: EventSourcingDbEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append([event(1, "/books/1")])
    monkeypatch.setattr(store, "_newest_of", lambda subject: None)
    with pytest.raises(PreconditionFailedError, match=r"OCQ-320\] a precondition does not hold"):
        store.append([event(2, "/books/1")], [SubjectIsPristine("/books/1")])


def test_of_writers_that_expect_the_same_newest_event_one_wins(open_store: Open) -> None:
    first = open_store()
    first.append([event(0, "/books/1")])
    stores = [open_store() for _ in range(4)]
    together = threading.Barrier(len(stores))

    def write(store: EventSourcingDbEventStore) -> bool:
        together.wait(SECONDS)
        try:
            store.append([event(1, "/books/1")], [SubjectIsOnEventId("/books/1", "0")])
        except PreconditionFailedError:
            return False
        return True

    with ThreadPoolExecutor(len(stores)) as pool:
        assert sorted(pool.map(write, stores)) == [False, False, False, True]
    assert first.head() == 2


def test_progress_is_reported(store: EventSourcingDbEventStore) -> None:
    told: list[int] = []
    store.append([event(1), event(2)], progress=told.append)
    assert told == [2]


def test_preconditions_are_checked_even_if_there_is_nothing_to_add(store: EventSourcingDbEventStore) -> None:
    assert store.append([], [SubjectIsPristine("/books/1")]) == Appended(0, 0)
    with pytest.raises(PreconditionFailedError, match="'/books/1' is not populated"):
        store.append([], [SubjectIsPopulated("/books/1")])


def test_an_append_whose_events_raise_an_error_adds_nothing(store: EventSourcingDbEventStore) -> None:
    def breaking_off() -> Iterator[Event]:
        yield event(1)
        msg = "line 2 is bad"
        raise ValueError(msg)

    with pytest.raises(ValueError, match="line 2 is bad"):
        store.append(breaking_off())
    assert store.head() == 0


# -------------------------------------------------------------------------------------------------------- reading


def requested(server: EventSourcingDbStandIn) -> list[tuple[str, bool, str]]:
    """Return subject, recursive and the first id of each requested range."""
    bodies = [body for what, body in server.bodies if what == "read-events" and "lowerBound" in body["options"]]
    return [(b["subject"], b["options"]["recursive"], b["options"]["lowerBound"]["id"]) for b in bodies]


def test_the_server_selects_the_subject(store: EventSourcingDbEventStore, server: EventSourcingDbStandIn) -> None:
    store.append(event(n, f"/{n % 2}/{n}", f"t{n % 3}") for n in range(301))
    part = store.read(0, 100, Selection("/0", types=frozenset({"t0"})))
    assert [event.id for event in part.events] == [str(n) for n in range(0, 301, 6)]
    assert part.upto == 301
    assert {request[:2] for request in requested(server)} == {("/0", True)}


def test_a_short_range_is_read_with_all_subjects_in_one_request(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    store.append(event(n, f"/{n % 2}/{n}") for n in range(100))
    part = store.read(0, 1, Selection("/1"))
    assert ([event.id for event in part.events], part.upto) == (["1"], 2)
    part = store.read(2, 1_000, Selection("/1"))
    assert ([event.id for event in part.events], part.upto) == ([str(n) for n in range(3, 100, 2)], 100)
    assert requested(server) == [("/", True, "0"), ("/", True, "2")]


CHARACTERS = st.sampled_from("ab/%_'\"\\ \0é書😀ÀA") | st.characters(codec="utf-8")
SUBJECT = st.text(CHARACTERS, max_size=6).map("/{}".format)


@given(subjects=st.lists(SUBJECT, min_size=1, max_size=12), root=SUBJECT, recursive=st.booleans())
def test_every_subject_is_found_as_it_was_written(subjects: list[str], root: str, *, recursive: bool) -> None:
    with EventSourcingDbStandIn(names=False) as server:
        store = EventSourcingDbEventStore(server.url, server.api_token)
        store.append(event(n, subject) for n, subject in enumerate(subjects))
        everything = store.read(0, 100, ALL).events
        assert [event.subject for event in everything] == subjects
        for selection in (Selection(root, recursive), Selection(subjects[0], recursive)):
            found = [event for part in followed(store, 5, selection) for event in part.events]
            assert found == [event for event in everything if selection.matches(event)]
        store.close()


@pytest.mark.release(server=1)  # another hash of the same events
def test_thousands_of_events_cost_a_request_per_slice(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn, open_store: Open
) -> None:
    store.append(event(n) for n in range(3_000))
    reader = open_store()
    before = server.counts()
    parts = list(followed(reader, limit=1_000))
    assert [int(event.id) for part in parts for event in part.events] == list(range(3_000))
    assert {len(part.events) for part in parts} == {1_000}
    assert (server.counts() - before)["read-events"] == 3 + 2  # and the head, at the beginning and at the end


@pytest.mark.release  # as the test above, by their subject
@pytest.mark.release(server=1)  # another hash of the same events
def test_rare_subjects_are_found_in_few_requests(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    store.append(event(n, "/rare" if n == 9_999 else "/common") for n in range(10_000))
    part = store.read(0, 10, Selection("/rare"))
    assert ([event.id for event in part.events], part.upto) == (["9999"], 10_000)
    assert len(requested(server)) == 10


def test_filtering_by_type_pauses_after_fifty_thousand_events(
    store: EventSourcingDbEventStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opencqrs_py.adapters.eventsourcingdb.event_store._SIFTED", 50)
    store.append(event(n, event_type="rare" if n == 119 else "common") for n in range(120))
    parts = list(followed(store, 10, Selection(types=frozenset({"rare"}))))
    assert [(part.upto, len(part.events)) for part in parts] == [(50, 0), (100, 0), (120, 1)]


@pytest.mark.release(server=1)  # another hash of the same events
def test_many_threads_can_use_a_store(store: EventSourcingDbEventStore) -> None:
    store.append(event(n, f"/{n % 5}") for n in range(500))
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(lambda n: identities(store, Selection(f"/{n % 5}"), limit=7), range(10)))
    assert read == [[str(n) for n in range(m % 5, 500, 5)] for m in range(10)]


def test_a_closed_store_reconnects_when_it_is_used_again(store: EventSourcingDbEventStore) -> None:
    store.append([event(1)])
    store.close()
    store.close()
    assert store.head() == 1


def test_a_store_without_references_ends_its_thread(server: EventSourcingDbStandIn) -> None:
    store = EventSourcingDbEventStore(server.url, server.api_token)
    assert store.head() == 0
    loop = store._connection._loop
    assert loop is not None
    del store
    loop._thread.join(SECONDS)
    assert not loop._thread.is_alive()


# ------------------------------------------------------------------------------------------------------- stand-in


def test_the_official_client_works_with_the_stand_in(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    async def look() -> list[str]:
        async with Client(server.url.replace("eventsourcingdb", "http"), server.api_token) as client:
            await client.ping()
            await client.verify_api_token()
            async for read in client.read_events("/", ReadEventsOptions(recursive=True)):
                read.verify_hash()
            return [subject async for subject in client.read_subjects("/a", ReadSubjectsOptions(recursive=True))]

    payload = '{"größe":"\\u0000 < \\"é\\"","n":[1.50,1e3]}'
    store.append(event(n, subject)._replace(payload=payload) for n, subject in enumerate(["/b", "/a/2", "/a", "/a/2"]))
    assert asyncio.run(look()) == ["/a", "/a/2"]


def test_the_stand_in_refuses_eventql_without_a_function_that_evaluates_it(server: EventSourcingDbStandIn) -> None:
    async def write() -> None:
        async with Client(server.url.replace("eventsourcingdb", "http"), server.api_token) as client:
            candidate = EventCandidate("s", "/", "t", {})
            await client.write_events([candidate], [IsEventQlQueryTrue("FROM e IN events PROJECT INTO true")])

    with pytest.raises(DbApiError, match="evaluates no EventQL"):
        asyncio.run(write())
    assert server.log.read("/", {}) == []

"""A log of EventSourcingDB that is not the one that was read: the disk was lost, or a backup was restored."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.adapters.eventsourcingdb import (
    EventSourcingDbEventStore,
    EventSourcingDbUnavailableError,
    reading,
)
from opencqrs_py.adapters.eventsourcingdb.chain import EMPTY
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model import Event, Selection
from opencqrs_py.testing.contracts.event_source import ALL, event
from opencqrs_py.testing.eventsourcingdb import EventSourcingDbStandIn

SECONDS = 30  # longest wait for another thread
READ = "read-events"
NARROW = Selection("/1")
REPLACED = r"OCQ-316\] the event store is not the one that the progress belongs to: "

Open = Callable[[], EventSourcingDbEventStore]


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def server(request: pytest.FixtureRequest) -> Iterator[EventSourcingDbStandIn]:
    with EventSourcingDbStandIn(version=request.param, heartbeat=0.02, names=False) as server:
        yield server


@pytest.fixture
def open_store(server: EventSourcingDbStandIn) -> Iterator[Open]:
    opened: list[EventSourcingDbEventStore] = []

    def open_() -> EventSourcingDbEventStore:
        opened.append(EventSourcingDbEventStore(server.url, server.api_token))
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


@pytest.fixture
def store(open_store: Open) -> EventSourcingDbEventStore:
    return open_store()


def write(server: EventSourcingDbStandIn, *numbers: int) -> None:
    """Write events of two subjects, ``/0`` and ``/1``."""
    candidates = [{"source": "s", "subject": f"/{n % 2}", "type": "com.t", "data": {"n": n}} for n in numbers]
    if candidates:
        server.log.write(candidates)


def lose_disk(server: EventSourcingDbStandIn) -> None:
    """Restart the server with an empty log, as one that has lost its disk."""
    server.stop()
    server.log.forget()
    server.start()


def restore(server: EventSourcingDbStandIn, upto: int) -> None:
    """Restart the server with a backup of its first events."""
    server.stop()
    server.log.forget(upto)
    server.start()


in_version_1 = pytest.mark.parametrize("server", [1], indirect=True)
in_version_2 = pytest.mark.parametrize("server", [2], indirect=True)


# --------------------------------------------------------------------------------------------------- while running


@pytest.mark.parametrize("selection", [ALL, NARROW], ids=["all subjects", "one subject"])
@pytest.mark.parametrize("count", [50, 51, 100, 149, 400])
@pytest.mark.few(server=(1, 2))
def test_no_event_of_another_log_is_delivered_after_events_of_the_first(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn, selection: Selection, count: int
) -> None:
    write(server, *range(50))
    assert store.read(0, 1_000, selection).upto == 50
    lose_disk(server)
    write(server, *range(1_000, 1_000 + count))
    for _ in range(3):
        with pytest.raises(EventStoreError, match=REPLACED + "event 49 had the hash …[0-9a-f]{12}, but now it has"):
            store.read(50, 1_000, selection)


@pytest.mark.parametrize("selection", [ALL, NARROW], ids=["all subjects", "one subject"])
def test_a_log_replaced_without_a_broken_connection_is_noticed(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn, selection: Selection
) -> None:
    write(server, *range(300))
    assert store.head() == 300
    assert store.read(0, 60, selection).upto in {60, 120}
    after = store.read(0, 60, selection).upto
    server.log.forget()
    write(server, *range(1_000, 1_300))
    with pytest.raises(EventStoreError, match=REPLACED):
        store.read(after, 60, selection)


@in_version_2
@pytest.mark.parametrize(("left", "told"), [(0, "but now the log is empty"), (49, "but now the log ends at event 48")])
def test_a_log_shorter_than_what_was_read_is_reported(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn, left: int, told: str
) -> None:
    write(server, *range(50))
    assert store.read(0, 1_000, ALL).upto == 50
    restore(server, left)
    for look in (store.head, lambda: store.read(50, 10, ALL), lambda: store.read(50, 10, NARROW)):
        with pytest.raises(EventStoreError, match=REPLACED + "event 49 had the hash .*" + told) as raised:
            look()
        assert not store.is_outage(raised.value)
    with pytest.raises(EventStoreError, match=REPLACED), store.watched():
        pass


@in_version_1
def test_in_version_1_an_empty_log_is_an_outage_until_it_has_events(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    write(server, *range(50))
    assert store.read(0, 1_000, ALL).upto == 50
    known = store.fingerprint(50)
    lose_disk(server)
    for look in (store.head, lambda: store.read(50, 10, ALL), lambda: store.verify(50, known)):
        with pytest.raises(EventSourcingDbUnavailableError, match=r"although event 49 existed.*the server has lost it"):
            look()
    write(server, 1)
    with pytest.raises(EventStoreError, match=REPLACED + ".*but now the log ends at event 0"):
        store.read(50, 10, ALL)


def test_once_a_replaced_log_was_found_nothing_is_read_until_the_first_is_back(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    write(server, *range(50))
    assert store.read(0, 1_000, ALL).upto == 50
    first, server.log = server.log, type(server.log)()
    write(server, *range(1_000, 1_200))
    with pytest.raises(EventStoreError, match=REPLACED):
        store.read(50, 10, ALL)
    for look in (
        store.head,
        lambda: store.read(120, 10, ALL),  # where nothing was read before
        lambda: store.read(0, 10, NARROW),
        lambda: store.fingerprint(150),
    ):
        with pytest.raises(EventStoreError, match=REPLACED):
            look()
    server.log = first
    write(server, 50)
    assert [one.data["n"] for one in store.read(50, 10, ALL).events] == [50]
    assert store.head() == 51


def test_a_log_replaced_during_a_read_is_noticed(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    write(server, *range(1_000))
    assert store.head() == 1_000
    take, requests = server.fault, iter(range(10))

    def replace(what: str) -> object:
        if what == READ and next(requests) == 2:
            server.log.forget()
            write(server, *range(2_000, 3_000))
        return take(what)

    server.fault = replace  # type: ignore[method-assign, assignment]
    with pytest.raises(EventStoreError, match=REPLACED):
        store.read(0, 150, Selection(types=frozenset({"never"})))


def test_a_narrow_read_ends_with_a_check_of_what_was_read_before(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    write(server, *range(400))
    assert store.read(0, 50, NARROW).upto == 100
    take, requests = server.fault, iter(range(10))

    def replace(what: str) -> object:
        if what == READ and next(requests) == 1:  # after the events, before the hash at their end
            server.log.forget()
            write(server, *range(2_000, 2_400))
        return take(what)

    server.fault = replace  # type: ignore[method-assign, assignment]
    with pytest.raises(EventStoreError, match=REPLACED):
        store.read(100, 1_000, Selection("/1", types=frozenset({"never"})))


@given(
    first=st.integers(1, 260),
    kept=st.integers(0, 260),
    more=st.integers(0, 400),
    limit=st.integers(1, 300),
    narrow=st.booleans(),
    version=st.sampled_from([1, 2]),
)
@pytest.mark.release  # the tests above choose where the logs differ
def test_whatever_a_restored_log_holds_only_events_that_follow_are_delivered(
    first: int, kept: int, more: int, limit: int, *, narrow: bool, version: int
) -> None:
    with EventSourcingDbStandIn(version=version, names=False) as server:
        store = EventSourcingDbEventStore(server.url, server.api_token)
        write(server, *range(first))
        after = 0
        while after < first:
            after = store.read(after, limit, NARROW if narrow else ALL).upto
        restore(server, min(first, kept))
        write(server, *range(10_000, 10_000 + more))
        outcome = ""
        try:
            while (part := store.read(after, limit, NARROW if narrow else ALL)).upto > after:
                assert all(one.data["n"] >= 10_000 for one in part.events)
                after = part.upto
        except EventStoreError as error:
            outcome = error.code
        store.close()
    cannot_tell = version == 1 and kept + more == 0
    assert (outcome, after) == (
        ("", first + more) if kept >= first else ("OCQ-331" if cannot_tell else "OCQ-316", first)
    )


@pytest.mark.parametrize("count", [49, 50, 51, 100])
def test_a_log_of_which_only_the_head_was_seen_is_recognised(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn, count: int
) -> None:
    write(server, *range(50))
    assert store.head() == 50
    lose_disk(server)
    write(server, *range(1_000, 1_000 + count))
    with pytest.raises(EventStoreError, match=REPLACED):
        store.head()
    with pytest.raises(EventStoreError, match=REPLACED), store.watched():
        pass


def test_a_watch_notices_that_its_log_was_replaced(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    write(server, *range(50))
    with store.watched() as watch:
        write(server, 50)
        assert watch.wait(50, SECONDS) == 51
        server.log.forget()
        write(server, *range(1_000, 1_052))
        with pytest.raises(EventStoreError, match=REPLACED):
            watch.wait(51, SECONDS)
    with pytest.raises(EventStoreError, match=REPLACED):
        store.read(51, 10, ALL)


def test_a_watch_begins_with_the_event_seen_last(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    write(server, *range(50))
    assert store.head() == 50
    take = server.fault

    def replace(what: str) -> object:
        if what == "observe-events":
            server.log.forget()
            write(server, *range(1_000, 1_050))
        return take(what)

    server.fault = replace  # type: ignore[method-assign, assignment]
    with store.watched() as watch, pytest.raises(EventStoreError, match=REPLACED):
        watch.wait(50, SECONDS)


# ---------------------------------------------------------------------------------------------------- fingerprints


def test_a_fingerprint_names_the_newest_event_at_or_below_a_position(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    assert store.fingerprint(0) == store.fingerprint(7) == EMPTY if server.version == 2 else True
    write(server, *range(3))
    ids = [(one["id"], one["hash"]) for one in server.log.read("/", {"recursive": True})]
    assert [store.fingerprint(n) for n in (1, 2, 3)] == [f"eventsourcingdb:{number}:{text}" for number, text in ids]
    assert store.fingerprint(100) == store.fingerprint(3)
    assert store.fingerprint(0) == EMPTY


@pytest.mark.parametrize("selection", [ALL, NARROW], ids=["all subjects", "one subject"])
def test_a_fingerprint_of_a_read_event_takes_no_request(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn, selection: Selection
) -> None:
    write(server, *range(450))
    after, ends = 0, []
    while (part := store.read(after, 70, selection)).upto > after:
        after = part.upto
        ends += [one.position for one in part.events] + [after]
    before = server.counts()
    found = {position: store.fingerprint(position) for position in ends}
    assert server.counts() == before
    assert len(set(found.values())) == len(found)


def test_the_fingerprint_of_a_read_event_ignores_changes_by_handlers(
    store: EventSourcingDbEventStore, open_store: Open, server: EventSourcingDbStandIn
) -> None:
    write(server, 1)
    (read,) = store.read(0, 1, ALL).events
    read.metadata["hash"] = "changed"
    other, before = open_store(), server.counts()
    assert other.fingerprint(1, read) == store.fingerprint(1)
    assert server.counts() == before


def test_an_event_of_another_position_or_without_a_hash_is_not_used_for_a_fingerprint(
    store: EventSourcingDbEventStore, open_store: Open, server: EventSourcingDbStandIn
) -> None:
    write(server, 1, 2)
    first, second = store.read(0, 2, ALL).events
    for given_event in (first, second._replace(extensions=None), second._replace(extensions='{"hash":7}')):
        assert open_store().fingerprint(2, given_event) == store.fingerprint(2)


def test_an_event_from_another_log_than_the_one_read_is_refused_for_a_fingerprint(
    store: EventSourcingDbEventStore, open_store: Open, server: EventSourcingDbStandIn
) -> None:
    write(server, 1)
    assert store.read(0, 1, ALL).upto == 1
    server.log.forget()
    write(server, 2)
    (foreign,) = open_store().read(0, 1, ALL).events
    with pytest.raises(EventStoreError, match=REPLACED):
        store.fingerprint(1, foreign)


def test_a_requested_fingerprint_is_that_of_the_log_that_was_read(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    write(server, *range(60))
    assert store.read(20, 10, ALL).upto == 30
    server.log.forget()
    write(server, *range(100, 160))
    with pytest.raises(EventStoreError, match=REPLACED):
        store.fingerprint(10)


@pytest.mark.parametrize("position", [1, 50, 51, 100])
def test_progress_on_the_same_log_is_verified_in_one_request(
    store: EventSourcingDbEventStore, open_store: Open, server: EventSourcingDbStandIn, position: int
) -> None:
    write(server, *range(100))
    known = store.fingerprint(position)
    write(server, *range(100, 120))
    other = open_store()
    before = server.counts()
    other.verify(position, known)
    other.verify(position, "")
    assert (server.counts() - before)[READ] == 2
    assert len(other.read(position, 1_000, ALL).events) == 120 - position


@pytest.mark.parametrize(
    ("kept", "more", "told"),
    [
        (49, 0, "event 49 had the hash …[0-9a-f]{12}, but now the log ends at event 48"),
        (49, 1, "but now it has …[0-9a-f]{12}"),
        (0, 100, "but now it has …[0-9a-f]{12}"),
        (0, 1, "but now the log ends at event 0"),
    ],
)
def test_progress_on_another_log_is_refused_with_the_possible_fixes(
    store: EventSourcingDbEventStore, open_store: Open, server: EventSourcingDbStandIn, kept: int, more: int, told: str
) -> None:
    write(server, *range(50))
    known = store.fingerprint(50)
    restore(server, kept)
    write(server, *range(1_000, 1_000 + more))
    with pytest.raises(
        EventStoreError, match=rf"{REPLACED}.*{told}[\s\S]*rebuild the group[\s\S]*log_fingerprint"
    ) as e:
        open_store().verify(50, known)
    assert e.value.where == server.url


def test_progress_within_a_restored_backup_is_verified(
    store: EventSourcingDbEventStore, open_store: Open, server: EventSourcingDbStandIn
) -> None:
    write(server, *range(50))
    known = store.fingerprint(30)
    restore(server, 30)
    write(server, *range(1_000, 1_050))
    other = open_store()
    other.verify(30, known)
    assert [one.data["n"] for one in other.read(30, 2, ALL).events] == [1_000, 1_001]


def test_progress_without_a_fingerprint_must_lie_within_the_log(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    write(server, *range(5))
    store.verify(5, "")
    with pytest.raises(EventStoreError, match=REPLACED + "the progress is at 6, and the log ends at 5"):
        store.verify(6, "")


def test_progress_of_another_kind_of_store_is_refused(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    write(server, *range(5))
    for foreign in (
        "sql:5:abc",
        "eventsourcingdb:",
        "eventsourcingdb:5",
        "eventsourcingdb:x:abc",
        "eventsourcingdb:5:",
    ):
        with pytest.raises(EventStoreError, match=REPLACED + f"the progress is at 5, of a log with .*'{foreign}'"):
            store.verify(5, foreign)


@pytest.mark.parametrize("known", ["", EMPTY, "eventsourcingdb:5:abc", "sql:5:abc"])
def test_any_log_is_accepted_if_nothing_was_handled(store: EventSourcingDbEventStore, known: str) -> None:
    store.verify(0, known)


@in_version_2
def test_an_empty_log_can_have_grown(store: EventSourcingDbEventStore, server: EventSourcingDbStandIn) -> None:
    known = store.fingerprint(7)
    write(server, *range(3))
    store.verify(7, known)


# --------------------------------------------------------------------------------------------------------- memory


def test_many_positions_are_remembered_and_always_the_newest(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("opencqrs_py.adapters.eventsourcingdb.chain._MOST", 10)
    write(server, *range(100))
    assert store.read(0, 100, ALL).upto == 100
    for position in (3, 7):  # read again from far before: these are the last ten now
        assert store.read(position, 20, ALL).upto == position + 20
    assert len(store._chain._hashes) == 10
    assert store._chain.newest is not None
    assert store._chain.newest.position == 100


def test_threads_that_read_the_same_log_do_not_disturb_each_other(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    write(server, *range(600))
    found: list[list[Event]] = []

    def follow(selection: Selection) -> None:
        after, events = 0, list[Event]()
        while (part := store.read(after, 37, selection)).upto > after:
            after = part.upto
            events += part.events
        found.append(events)

    threads = [threading.Thread(target=follow, args=(selection,)) for selection in (ALL, NARROW, ALL, NARROW)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(len, found)) == [300, 300, 600, 600]
    for events in found:
        assert all(one.position < two.position for one, two in pairwise(events))


def test_an_append_to_a_server_that_lost_its_disk_does_not_hide_it(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    write(server, *range(5))
    assert store.read(0, 10, ALL).upto == 5
    lose_disk(server)
    store.append(event(n) for n in range(8))
    with pytest.raises(EventStoreError, match=REPLACED):
        store.read(5, 10, ALL)


def test_an_event_added_during_a_check_of_the_head_does_not_look_like_another_log(store, server, monkeypatch) -> None:
    write(server, 0, 1)
    newest = reading.newest

    async def overtaken(client: Any, *given: Any, **named: Any) -> Any:
        found = await newest(client, *given, **named)
        monkeypatch.setattr(reading, "newest", newest)
        write(server, 2)
        while store._chain.newest.position == found.position:  # noqa: ASYNC110 nothing tells of it
            await asyncio.sleep(0.005)
        return found

    with store.watched():
        assert store.head() == 2
        monkeypatch.setattr(reading, "newest", overtaken)
        assert store.head() in (2, 3)
        assert store.head() == 3

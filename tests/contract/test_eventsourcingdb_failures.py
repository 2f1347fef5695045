"""EventSourcingDB misbehaving: cuts, stalls, errors in the stream, a wrong token, and a server that comes back."""

from __future__ import annotations

import json
import logging
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from opencqrs_py.adapters.eventsourcingdb import EventSourcingDbEventStore, EventSourcingDbUnavailableError, connection
from opencqrs_py.engines.watching import HeadWatcher
from opencqrs_py.errors import EventStoreError, PreconditionFailedError
from opencqrs_py.model import Selection
from opencqrs_py.model.appending import SubjectIsPristine
from opencqrs_py.testing.contracts.event_source import ALL, event, identities
from opencqrs_py.testing.eventsourcingdb import EventSourcingDbStandIn, Fault, Then

pytestmark = pytest.mark.release(server=1)  # another hash of the same events

SECONDS = 30  # longest wait for another thread
STALL = 0.8  # seconds without a sign of life after which a hasty store gives up
HEARTBEAT = 0.02  # seconds
READ, OBSERVE, WRITE = "read-events", "observe-events", "write-events"

Open = Callable[..., EventSourcingDbEventStore]


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def server(request: pytest.FixtureRequest) -> Iterator[EventSourcingDbStandIn]:
    with EventSourcingDbStandIn(version=request.param, heartbeat=HEARTBEAT, names=False) as server:
        yield server


@pytest.fixture
def open_store(server: EventSourcingDbStandIn) -> Iterator[Open]:
    opened: list[EventSourcingDbEventStore] = []

    def open_(token: str = server.api_token, stall: float = SECONDS) -> EventSourcingDbEventStore:
        opened.append(EventSourcingDbEventStore(server.url, token, stall_seconds=stall))
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


@pytest.fixture
def ten_events(open_store: Open) -> None:
    open_store().append(event(n) for n in range(10))


@pytest.fixture
def store(open_store: Open, ten_events: None) -> EventSourcingDbEventStore:
    """A store of ten events that it already knows, so that its first read sends no other requests."""
    store = open_store()
    assert store.head() == 10
    return store


@pytest.fixture
def hasty(open_store: Open, ten_events: None) -> EventSourcingDbEventStore:
    """A store of ten events that takes a short silence for a stall."""
    store = open_store(stall=STALL)
    assert store.head() == 10
    return store


def error_line(server: EventSourcingDbStandIn, text: str, code: str = "") -> str:
    content = {"error": text} if server.version == 1 else {"description": text, "code": code}
    return json.dumps({"type": "error", "payload" if server.version == 1 else "data": content})


CUT = Fault(READ, 3, then=Then.CUT)
STALLED = Fault(READ, 3, then=Then.STALL)
HALF_A_LINE = Fault(READ, 3, '{"type":"event","payl', Then.CUT)


in_version_1 = pytest.mark.parametrize("server", [1], indirect=True)
in_version_2 = pytest.mark.parametrize("server", [2], indirect=True)


# -------------------------------------------------------------------------------------------------------- outages


@pytest.mark.few
@pytest.mark.parametrize(
    "fault",
    [
        CUT,
        STALLED,
        HALF_A_LINE,
        Fault(READ, 0, then=Then.CUT),
        Fault(READ, 0, then=Then.STALL),
        Fault(READ, 3, then=Then.END),
        Fault(READ, 0, then=Then.END),
        *(Fault(READ, 3, text, Then.END) for text in ('{"type":"event","payl', '{"a":{}', '{"a":tru', '{"a":"\\ud8')),
        *(Fault(READ, status=status, line="busy") for status in (408, 429, 500, 502, 503, 504)),
    ],
    ids=str,
)
def test_a_transient_failure_is_an_outage_and_the_next_read_continues(
    hasty: EventSourcingDbEventStore, server: EventSourcingDbStandIn, fault: Fault
) -> None:
    server.misbehave(fault)
    with pytest.raises(
        EventSourcingDbUnavailableError, match=r"OCQ-331\] EventSourcingDB cannot be reached \(.+\)"
    ) as raised:
        hasty.read(0, 10, ALL)
    assert hasty.is_outage(raised.value)
    assert server.url in str(raised.value)
    assert identities(hasty) == [str(n) for n in range(10)]


@in_version_2
@pytest.mark.parametrize(
    "line", ["", '{"type":"ev', '{"type":"event","data":{"type":"io.eventsourcingdb.api.ping-received"}']
)
def test_a_first_response_of_a_connection_that_ends_early_is_an_outage(
    open_store: Open, ten_events: None, server: EventSourcingDbStandIn, line: str
) -> None:
    store = open_store()
    server.misbehave(Fault("ping", 0, line, Then.END))
    with pytest.raises(
        EventSourcingDbUnavailableError, match=r"OCQ-331.*its response ended before it was complete"
    ) as raised:
        store.head()
    assert store.is_outage(raised.value)
    assert identities(store) == [str(n) for n in range(10)]


@in_version_2
@pytest.mark.parametrize("code", ["server-shutting-down", "indexes-rebuilding", "restore-in-progress", "store-failed"])
def test_a_server_that_is_not_ready_is_an_outage(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn, code: str
) -> None:
    line = error_line(server, "not now", f"https://docs.eventsourcingdb.io/errors/{code}")
    server.misbehave(Fault(READ, 2, line, Then.END))
    with pytest.raises(EventSourcingDbUnavailableError, match="not now"):
        store.read(0, 10, ALL)


def test_the_retry_after_header_is_respected(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(store._connection, "_monotonic", lambda: now[0])
    server.misbehave(Fault(READ, status=429, line="too many requests", retry_after=3))
    said = r"OCQ-331\] EventSourcingDB limits requests, and allows none in the next {} s"
    with pytest.raises(EventSourcingDbUnavailableError, match=said.format(3)) as raised:
        store.read(0, 10, ALL)
    assert store.is_outage(raised.value)
    requests = server.counts()
    now[0] += 2.5
    for use in (store.head, lambda: store.read(0, 10, ALL), lambda: store.append([event(10)])):
        with pytest.raises(EventSourcingDbUnavailableError, match=said.format(1)):
            use()
    assert server.counts() == requests, "nothing is sent meanwhile"
    now[0] += 0.5
    assert len(store.read(0, 10, ALL).events) == 10


def test_a_retry_after_that_is_not_a_number_or_far_too_long_is_bounded(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(store._connection, "_monotonic", lambda: now[0])
    server.misbehave(Fault(READ, status=429, line="busy"), Fault(READ, status=429, retry_after=10**9))
    with pytest.raises(EventSourcingDbUnavailableError, match="busy"):
        store.read(0, 10, ALL)
    with pytest.raises(EventSourcingDbUnavailableError, match="limits requests"):
        store.read(0, 10, ALL)
    now[0] += 300
    assert len(store.read(0, 10, ALL).events) == 10


def test_a_server_that_shuts_down_is_an_outage_for_watches(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    with store.watched() as watch:
        while not server.counts()[OBSERVE]:
            watch.wait(10, HEARTBEAT)
        server.stop(graceful=True)
        with pytest.raises(EventSourcingDbUnavailableError, match="shutting down") as raised:
            watch.wait(10, SECONDS)
        assert store.is_outage(raised.value)


def test_a_slow_stream_is_not_a_stall(hasty: EventSourcingDbEventStore, server: EventSourcingDbStandIn) -> None:
    server.misbehave(Fault(READ, 100, pause=STALL / 6))
    assert len(hasty.read(0, 10, ALL).events) == 10


def test_a_server_unavailable_at_the_start_is_found_once_it_is_available(
    server: EventSourcingDbStandIn, open_store: Open
) -> None:
    server.stop()
    store = open_store()
    for use in (store.head, lambda: store.read(0, 10, ALL), lambda: store.append([event(1)])):
        with pytest.raises(EventSourcingDbUnavailableError, match="OCQ-331") as raised:
            use()
        assert store.is_outage(raised.value)
    server.start()
    store.append([event(1)])
    assert store.head() == 1


def test_reading_continues_when_the_server_is_back(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    assert len(store.read(0, 4, ALL).events) == 4
    server.stop()
    with pytest.raises(EventSourcingDbUnavailableError):
        store.read(4, 4, ALL)
    server.start()
    assert [event.id for event in store.read(4, 4, ALL).events] == ["4", "5", "6", "7"]


def test_a_name_without_a_host_is_an_outage() -> None:
    store = EventSourcingDbEventStore("eventsourcingdb://nowhere.invalid", "secret")
    with pytest.raises(EventSourcingDbUnavailableError, match="OCQ-331"):
        store.head()
    store.close()


# ------------------------------------------------------------------------------------------------- what does not pass


def test_a_wrong_token_names_the_setting_and_shows_no_token(open_store: Open, server: EventSourcingDbStandIn) -> None:
    store = open_store(token="WRONG-TOKEN")
    with pytest.raises(EventStoreError, match=r"OCQ-332\][\s\S]*event-store.api-token") as raised:
        store.head()
    assert not store.is_outage(raised.value)
    shown = str(raised.value) + repr(raised.value)
    assert "WRONG-TOKEN" not in shown
    assert server.api_token not in shown


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("error", r"OCQ-333\] EventSourcingDB reports an error: the index is gone"),
        ('{"type":"news","payload":{},"data":{}}', r"OCQ-334\] .*unexpected"),
        ('{"type":"heart', r"OCQ-334\] .*cannot be understood"),
        ("[]", r"OCQ-334\] .*cannot be understood"),
        (b"\xff".decode("latin-1"), r"OCQ-334\] .*cannot be understood"),
    ],
)
def test_lines_that_are_not_events_are_named_and_not_an_outage(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn, line: str, told: str
) -> None:
    line = error_line(server, "the index is gone") if line == "error" else line
    server.misbehave(Fault(READ, 3, line))
    with pytest.raises(EventStoreError, match=told) as raised:
        store.read(0, 10, ALL)
    assert not store.is_outage(raised.value)
    assert pickle.loads(pickle.dumps(raised.value)).args == raised.value.args


@pytest.mark.parametrize(
    ("changed", "told"),
    [({"id": "a1"}, "must be a number"), ({"time": "2026"}, "cannot be understood"), ({"data": 1}, "to object")],
    ids=str,
)
def test_malformed_events_are_named(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn, changed: dict[str, object], told: str
) -> None:
    (stored, *_) = server.log.read("/", {"recursive": True})
    content = {**stored, **changed}
    server.misbehave(Fault(READ, 0, json.dumps({"type": "event", "payload": content, "data": content})))
    with pytest.raises(EventStoreError, match=rf"OCQ-334\].*{told}"):
        store.read(0, 10, ALL)


@pytest.mark.parametrize("status", [400, 403, 404, 413, 501, 507])
def test_other_refusals_are_not_outages(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn, status: int
) -> None:
    server.misbehave(Fault(READ, status=status, line="no"))
    with pytest.raises(EventStoreError, match=r"OCQ-333\] EventSourcingDB reports an error: no") as raised:
        store.read(0, 10, ALL)
    assert not store.is_outage(raised.value)


def test_the_error_for_a_refused_subject_quotes_the_server(store: EventSourcingDbEventStore) -> None:
    with pytest.raises(EventStoreError, match=r"OCQ-333\].*subject must start with a slash"):
        store.read(0, 10, Selection("no slash"))


# --------------------------------------------------------------------------------------------------------- appending


@pytest.mark.few
@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("then", [Then.CUT, Then.STALL])
def test_a_lost_response_to_an_append_is_not_an_outage_to_repeat_blindly(
    hasty: EventSourcingDbEventStore, server: EventSourcingDbStandIn, then: Then, *, stored: bool
) -> None:
    server.misbehave(Fault(WRITE, then=then, stored=stored))
    with pytest.raises(EventStoreError, match=r"OCQ-335\] it is unknown whether") as raised:
        hasty.append([event(10)])
    assert not hasty.is_outage(raised.value)
    assert hasty.head() == 10 + stored


@pytest.mark.parametrize("status", [408, 429, 503])
def test_a_temporarily_refused_append_is_an_outage(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn, status: int
) -> None:
    server.misbehave(Fault(WRITE, status=status, line="busy"))
    with pytest.raises(EventSourcingDbUnavailableError, match="busy"):
        store.append([event(10)])


@in_version_1
@pytest.mark.parametrize(
    ("status", "line"), [(503, "the current operation mode conflicts with the given request"), (507, "")]
)
def test_a_store_that_accepts_no_events_is_not_an_outage(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn, status: int, line: str
) -> None:
    server.misbehave(Fault(WRITE, status=status, line=line))
    with pytest.raises(EventStoreError, match=rf"OCQ-333\].*{line or 'status 507'}") as raised:
        store.append([event(10)])
    assert not store.is_outage(raised.value)


@in_version_1
def test_a_conflict_without_a_code_is_a_failed_precondition(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    server.misbehave(Fault(WRITE, status=409, line="conflict"))
    with pytest.raises(PreconditionFailedError, match=r"OCQ-320\].*conflict"):
        store.append([event(10)], [SubjectIsPristine("/nothing")])


# --------------------------------------------------------------------------------------------------------- the watch


@pytest.mark.release  # as a server that sends nothing else
def test_heartbeats_keep_a_watch_alive(hasty: EventSourcingDbEventStore, server: EventSourcingDbStandIn) -> None:
    with hasty.watched() as watch:
        assert watch.wait(10, 1.5 * STALL) == 10
        assert watch.wait(9, 0) == 10
        hasty.append([event(10)])
        assert watch.wait(10, SECONDS) == 11
    assert server.counts()[OBSERVE] == 1


@pytest.mark.few
@pytest.mark.parametrize(
    ("fault", "code"),
    [
        (Fault(OBSERVE, 0, then=Then.CUT), "OCQ-331"),
        (Fault(OBSERVE, 4, then=Then.CUT), "OCQ-331"),
        (Fault(OBSERVE, 4, then=Then.STALL), "OCQ-331"),
        (Fault(OBSERVE, 4, then=Then.END), "OCQ-331"),
        (Fault(OBSERVE, 4, '{"type":"event","payl', Then.END), "OCQ-331"),
        (Fault(OBSERVE, status=503, line="starting"), "OCQ-331"),
        (Fault(OBSERVE, 4, "error"), "OCQ-333"),
        (Fault(OBSERVE, 4, '{"type":"news","payload":{},"data":{}}'), "OCQ-334"),
    ],
    ids=str,
)
def test_a_broken_watch_raises_and_a_new_one_sees_what_was_added_meanwhile(
    hasty: EventSourcingDbEventStore, server: EventSourcingDbStandIn, fault: Fault, code: str
) -> None:
    if fault.line == "error":
        fault = Fault(OBSERVE, 4, error_line(server, "the index is gone"))
    server.misbehave(fault)
    with hasty.watched() as watch:
        for _ in range(2):
            with pytest.raises(EventStoreError, match=code) as raised:
                watch.wait(10, SECONDS)
        assert hasty.is_outage(raised.value) is (code == "OCQ-331")
        hasty.append([event(10)])
    with hasty.watched() as watch:
        assert watch.wait(10, SECONDS) == 11


def test_a_server_that_sends_heartbeats_only_is_alive(
    hasty: EventSourcingDbEventStore, server: EventSourcingDbStandIn
) -> None:
    server.misbehave(Fault(OBSERVE, then=Then.QUIET))
    with hasty.watched() as watch:
        hasty.append([event(10)])
        assert watch.wait(10, 1.5 * STALL) == 10


def test_a_watch_of_an_empty_log_sees_the_first_event(open_store: Open) -> None:
    store, other = open_store(), open_store()
    with store.watched() as watch, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(watch.wait, 0, SECONDS)
        other.append([event(1)])
        assert waiting.result() == 1
    assert store.read(0, 10, ALL).upto == 1


def test_a_watch_ends_with_its_block(store: EventSourcingDbEventStore, server: EventSourcingDbStandIn) -> None:
    with store.watched() as watch:
        assert watch.wait(10, HEARTBEAT) == 10
    with pytest.raises(EventSourcingDbUnavailableError, match="the watch is closed"):
        watch.wait(10, SECONDS)


def test_closing_the_store_wakes_waiting_threads(store: EventSourcingDbEventStore) -> None:
    with store.watched() as watch, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(watch.wait, 10, SECONDS)
        store.close()
        with pytest.raises(EventSourcingDbUnavailableError):
            waiting.result(SECONDS)


def test_closing_the_store_lets_an_append_in_progress_finish(
    store: EventSourcingDbEventStore, server: EventSourcingDbStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_REQUEST_SECONDS", SECONDS)
    reached, closing, close, take = threading.Event(), threading.Event(), connection._Loop.close, server.fault
    server.fault = lambda what: (reached.set(), closing.wait(SECONDS), take(what))[2]  # type: ignore[method-assign]
    monkeypatch.setattr(connection._Loop, "close", lambda loop: (closing.set(), close(loop)))
    with ThreadPoolExecutor(2) as pool:
        appending = pool.submit(store.append, [event(10)])
        assert reached.wait(SECONDS)
        pool.submit(store.close).result(SECONDS)
        assert appending.result(SECONDS).added == 1
    assert store.head() == 11


def test_closing_the_store_ends_a_read_that_hangs(
    open_store: Open, server: EventSourcingDbStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(stall=SECONDS)
    monkeypatch.setattr(connection, "_REQUEST_SECONDS", 0.0)
    reached = threading.Event()
    fault, take = Fault(READ, then=Then.STALL), server.fault
    server.fault = lambda what: (reached.set(), fault)[1] if what == READ else take(what)  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(store.head)
        assert reached.wait(SECONDS)
        store.close()
        with pytest.raises(EventSourcingDbUnavailableError, match="was closed in the meantime"):
            reading.result(SECONDS)


def test_an_append_interrupted_by_closing_the_store_may_have_been_stored(
    open_store: Open, server: EventSourcingDbStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(stall=SECONDS)
    monkeypatch.setattr(connection, "_REQUEST_SECONDS", 0.0)
    reached = threading.Event()
    fault, take = Fault(WRITE, then=Then.STALL, stored=True), server.fault
    server.fault = lambda what: (reached.set(), fault)[1] if what == WRITE else take(what)  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        appending = pool.submit(store.append, [event(1)])
        assert reached.wait(SECONDS)
        store.close()
        with pytest.raises(EventStoreError, match=r"OCQ-335\].*\(the connection was closed in the mean") as raised:
            appending.result(SECONDS)
    assert not store.is_outage(raised.value)


def test_the_engines_watcher_reconnects_after_lost_connections_and_outages(
    hasty: EventSourcingDbEventStore, server: EventSourcingDbStandIn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    server.misbehave(Fault(OBSERVE, 2, then=Then.CUT), Fault(OBSERVE, 2, then=Then.STALL))
    watcher = HeadWatcher(hasty)
    watcher.start()
    try:
        watcher.wait_beyond(9, SECONDS)
        server.log.write([{"source": "s", "subject": "/", "type": "t", "data": {}}])
        watcher.wait_beyond(10, SECONDS)
        assert watcher.head == 11
        server.stop()
        server.log.write([{"source": "s", "subject": "/", "type": "t", "data": {}}])
        server.start()
        watcher.wait_beyond(11, SECONDS)
        assert watcher.head == 12
    finally:
        watcher.stop()
    assert not caplog.records, "nothing is logged by the event loop"

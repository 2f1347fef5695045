"""The stand-in for EventSourcingDB refuses what the documented server refuses, in its words and with its statuses."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import aiohttp
import pytest
from eventsourcingdb import (
    Bound,
    BoundType,
    Client,
    DbApiError,
    ErrorCode,
    Event,
    EventCandidate,
    IfEventIsMissingDuringObserve,
    IfEventIsMissingDuringRead,
    IsEventQlQueryTrue,
    IsSubjectPristine,
    ObserveEventsOptions,
    ObserveFromLatestEvent,
    PreconditionOptions,
    ReadEventsOptions,
    ReadFromLatestEvent,
    ServerError,
)

from opencqrs_py.testing.eventsourcingdb import EventLog, EventSourcingDbStandIn, Fault

pytestmark = pytest.mark.few  # the contracts of the store show what it relies on

SECONDS = 30  # longest wait for an answer
WELL_FORMED: dict[str, Any] = {
    "source": "https://library.example",
    "subject": "/books/42",
    "type": "io.a.b",
    "data": {},
}
LENT, RETURNED = "io.example.lent", "io.example.returned"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(params=[1, 2], ids=["v1", "v2"])
def server(request: pytest.FixtureRequest) -> Iterator[EventSourcingDbStandIn]:
    with EventSourcingDbStandIn(version=request.param, heartbeat=0.02) as server:
        yield server


in_version_1 = pytest.mark.parametrize("server", [1], indirect=True)
in_version_2 = pytest.mark.parametrize("server", [2], indirect=True)


def ask(
    server: EventSourcingDbStandIn, method: str, path: str, body: object = None, **headers: str
) -> tuple[int, str, http.client.HTTPMessage]:
    """Send a request as it is; return status, text and headers of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]), timeout=SECONDS)
    text = body if isinstance(body, str | bytes) else json.dumps(body) if body is not None else None
    connection.request(method, path, text, {"Authorization": f"Bearer {server.api_token}", **headers})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), answer.headers
    connection.close()
    return found


def path_of(server: EventSourcingDbStandIn, what: str) -> tuple[str, str]:
    """Return the method and the path of a request."""
    if server.version == 1:
        return "POST", f"/api/v1/{what}"
    return "POST" if what == "write-events" else "QUERY", f"/api/v2/data/{what}"


def refusal(server: EventSourcingDbStandIn, what: str, body: object) -> tuple[int, str]:
    """Return the status and the code with which a request is refused; version 1 has no codes."""
    status, text, _ = ask(server, *path_of(server, what), body)
    if server.version == 1 or status != 200:
        return status, ""
    line = json.loads(text.splitlines()[0])
    assert line["type"] == "error", line
    return status, line["data"]["code"].removeprefix("https://docs.eventsourcingdb.io/errors/")


def expected(server: EventSourcingDbStandIn, code: str, status: int = 400) -> tuple[int, str]:
    return (status, "") if server.version == 1 or not code else (200, code)


# ----------------------------------------------------------------------------------------------- paths and methods


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("POST", "/api/v1/nothing", 404),
        ("POST", "/api/v1/read-events/", 404),
        ("POST", "/api/v1/data/read-events", 404),
        ("POST", "/api/v3/data/read-events", 404),
        ("GET", "/api/v1/read-events", 405),
        ("QUERY", "/api/v1/read-events", 405),
        ("POST", "/api/v1/ping", 405),
        ("DELETE", "/api/v1/write-events", 405),
        ("PUT", "/api/v1/observe-events", 405),
    ],
)
def test_unknown_paths_are_404_and_other_methods_405(
    server: EventSourcingDbStandIn, method: str, path: str, status: int
) -> None:
    assert ask(server, method, path, {})[0] == status


@pytest.mark.parametrize(
    ("method", "path", "of_version_2"),
    [
        ("POST", "/api/v2/data/read-events", 405),
        ("GET", "/api/v2/data/observe-events", 405),
        ("QUERY", "/api/v2/data/write-events", 405),
        ("POST", "/api/v2/system/ping", 405),
        ("POST", "/api/v2/read-events", 404),
        ("QUERY", "/api/v2/system/read-events", 404),
    ],
)
def test_a_server_before_1_3_has_no_path_of_version_2(
    server: EventSourcingDbStandIn, method: str, path: str, of_version_2: int
) -> None:
    assert ask(server, method, path, {})[0] == (404 if server.version == 1 else of_version_2)


def test_the_allowed_method_is_named(server: EventSourcingDbStandIn) -> None:
    assert ask(server, "GET", "/api/v1/write-events")[2]["Allow"] == "POST"


def test_every_response_is_signed_by_the_server(server: EventSourcingDbStandIn) -> None:
    for method, path in (("GET", "/"), ("DELETE", "/api/v1/ping"), ("POST", "/api/v1/read-events")):
        assert ask(server, method, path, "{")[2]["Server"].startswith("EventSourcingDB/")


def test_without_the_token_only_a_ping_is_answered(server: EventSourcingDbStandIn) -> None:
    assert ask(server, "GET", "/api/v1/ping", Authorization="")[0] == 200
    for token in ("", "Bearer other", server.api_token):
        assert ask(server, *path_of(server, "read-events"), {}, Authorization=token)[0] == 401


# ------------------------------------------------------------------------------------------------ requests as they are


@pytest.mark.parametrize("what", ["write-events", "read-events", "observe-events", "read-subjects"])
@pytest.mark.parametrize(
    "body",
    ["{", "[]", '"text"', "null", "1", b"\xff", "[" * 100_000, '{"events": NaN}', '{"events": -Infinity}'],
    ids=lambda body: repr(body)[:24],
)
def test_a_body_that_is_not_a_json_object_is_400_and_keeps_the_connection(
    server: EventSourcingDbStandIn, what: str, body: str | bytes
) -> None:
    status, text, _ = ask(server, *path_of(server, what), body)
    assert status == 400
    assert "must be" in text


def test_a_content_length_that_is_not_a_number_is_400(server: EventSourcingDbStandIn) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", int(server.url.rpartition(":")[2]), timeout=SECONDS)
    connection.putrequest("POST", "/api/v1/read-events")
    connection.putheader("Content-Length", "many")
    connection.endheaders()
    assert connection.getresponse().status == 400
    connection.close()


OPTIONS = {"recursive": True}


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("write-events", {"events": [WELL_FORMED], "more": 1}),
        ("write-events", {"events": WELL_FORMED}),
        ("write-events", {"events": [1]}),
        ("write-events", {"events": [{**WELL_FORMED, "id": "7"}]}),
        ("write-events", {"events": [{**WELL_FORMED, "subject": 5}]}),
        ("write-events", {"events": [WELL_FORMED], "preconditions": {}}),
        ("write-events", {"events": [WELL_FORMED], "preconditions": [5]}),
        ("read-events", {"subject": "/"}),
        ("read-events", {"subject": "/", "options": []}),
        ("read-events", {"subject": "/", "options": {}}),
        ("read-events", {"subject": "/", "options": {"recursive": "yes"}}),
        ("read-events", {"subject": "/", "options": {"recursive": True, "limit": 5}}),
        ("read-events", {"subject": "/", "options": {**OPTIONS, "lowerBound": {"id": 5, "type": "inclusive"}}}),
        ("read-events", {"subject": "/", "options": {**OPTIONS, "lowerBound": "5"}}),
        ("observe-events", {"subject": "/", "options": {**OPTIONS, "order": "chronological"}}),
        ("observe-events", {"subject": "/", "options": {**OPTIONS, "upperBound": {"id": "5", "type": "inclusive"}}}),
    ],
    ids=repr,
)
def test_unknown_fields_and_wrong_kinds_are_400_without_a_code(
    server: EventSourcingDbStandIn, what: str, body: object
) -> None:
    assert refusal(server, what, body) == (400, "")


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("write-events", {"events": [WELL_FORMED], "preconditions": None}),
        ("write-events", {"events": [{**WELL_FORMED, "traceparent": None}]}),
        ("read-events", {"subject": "/", "options": {**OPTIONS, "order": None}}),
        ("read-events", {"subject": "/", "options": {**OPTIONS, "lowerBound": None}}),
    ],
    ids=repr,
)
def test_a_null_is_ignored_in_version_1_and_refused_in_version_2(
    server: EventSourcingDbStandIn, what: str, body: object
) -> None:
    assert ask(server, *path_of(server, what), body)[0] == (200 if server.version == 1 else 400)


# ------------------------------------------------------------------------------------------------------------ events


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"source": ""}, "source-missing"),
        ({"source": "my-app"}, "source-malformed"),
        ({"source": "://library"}, "source-malformed"),
        ({"source": "https://a b"}, "source-malformed"),
        ({"subject": ""}, "subject-missing"),
        ({"subject": "books"}, "subject-malformed"),
        ({"subject": "/books//1"}, "subject-malformed"),
        ({"subject": "/books/ada@example.org"}, "subject-malformed"),
        ({"subject": "/bücher"}, "subject-malformed"),
        ({"subject": "/a b"}, "subject-malformed"),
        ({"subject": "/books\n"}, "subject-malformed"),
        ({"type": ""}, "event-type-missing"),
        ({"type": "lent"}, "event-type-malformed"),
        ({"type": "io.lent"}, "event-type-malformed"),
        ({"type": "i.example.lent"}, "event-type-malformed"),
        ({"type": "io..lent"}, "event-type-malformed"),
        ({"type": "io.example.book lent"}, "event-type-malformed"),
        ({"data": []}, "data-malformed"),
        ({"data": "text"}, "data-malformed"),
        ({"data": 5}, "data-malformed"),
        ({"traceparent": "00"}, "traceparent-malformed"),
        ({"tracestate": "a=1"}, "tracestate-without-traceparent"),
        ({"traceparent": PARENT, "tracestate": "a"}, "tracestate-malformed"),
    ],
    ids=repr,
)
def test_an_event_that_breaks_a_rule_is_refused_with_the_whole_request(
    server: EventSourcingDbStandIn, changed: dict[str, Any], code: str
) -> None:
    body = {"events": [WELL_FORMED, {**WELL_FORMED, **changed}]}
    assert refusal(server, "write-events", body) == expected(server, code)
    assert server.log.read("/", OPTIONS) == []


@pytest.mark.parametrize("name", ["source", "subject", "type", "data"])
def test_an_event_without_an_attribute_is_refused(server: EventSourcingDbStandIn, name: str) -> None:
    candidate = {key: value for key, value in WELL_FORMED.items() if key != name}
    code = "event-type-missing" if name == "type" else f"{name}-missing"
    assert refusal(server, "write-events", {"events": [candidate]}) == expected(server, code)


@pytest.mark.parametrize(
    "changed",
    [
        {"subject": "/"},
        {"subject": "/Books/A_b-c/"},
        {"source": "tag:example.io,2025:library"},
        {"source": "urn:s"},
        {"type": "io.example.Book_lent-2.v1"},
        {"traceparent": PARENT, "tracestate": "a=1,b@c=2"},
    ],
    ids=repr,
)
def test_an_event_that_keeps_the_rules_is_stored(server: EventSourcingDbStandIn, changed: dict[str, Any]) -> None:
    assert ask(server, *path_of(server, "write-events"), {"events": [{**WELL_FORMED, **changed}]})[0] == 200
    assert len(server.log.read("/", OPTIONS)) == 1


def test_an_empty_list_of_events_is_refused(server: EventSourcingDbStandIn) -> None:
    for body in ({}, {"events": []}):
        assert refusal(server, "write-events", body) == expected(server, "events-missing")


def test_an_event_of_more_than_64_kib_is_refused(server: EventSourcingDbStandIn) -> None:
    rest = len(json.dumps({**WELL_FORMED, "data": {"text": ""}}, separators=(",", ":")))
    fitting = {**WELL_FORMED, "data": {"text": "a" * (65_536 - rest)}}
    assert ask(server, *path_of(server, "write-events"), {"events": [fitting]})[0] == 200
    larger = {**WELL_FORMED, "data": {"text": "a" * (65_536 - rest) + "b"}}
    assert refusal(server, "write-events", {"events": [larger]}) == expected(server, "event-too-large", 413)


@pytest.mark.parametrize(
    ("precondition", "code"),
    [
        ({"payload": {"subject": "/"}}, "precondition-type-missing"),
        ({"type": "isSubjectPristine"}, "payload-missing"),
        ({"type": "isSomething", "payload": {}}, "precondition-unknown"),
        ({"type": "isSubjectPristine", "payload": {}}, "subject-missing"),
        ({"type": "isSubjectPristine", "payload": {"subject": "a"}}, "subject-malformed"),
        ({"type": "isSubjectOnEventId", "payload": {"subject": "/a"}}, "event-id-missing"),
        ({"type": "isSubjectOnEventId", "payload": {"subject": "/a", "eventId": "x"}}, "event-id-malformed"),
        ({"type": "isEventQlQueryTrue", "payload": {}}, "query-missing"),
        ({"type": "isSubjectPristine", "payload": {"subject": "/a", "eventId": "1"}}, ""),
    ],
    ids=repr,
)
def test_a_precondition_that_breaks_a_rule_is_refused(
    server: EventSourcingDbStandIn, precondition: dict[str, Any], code: str
) -> None:
    body = {"events": [WELL_FORMED], "preconditions": [precondition]}
    assert refusal(server, "write-events", body) == expected(server, code)


def test_a_precondition_that_does_not_hold_is_a_conflict(server: EventSourcingDbStandIn) -> None:
    condition = {"type": "isSubjectPopulated", "payload": {"subject": "/books/42"}}
    body = {"events": [WELL_FORMED], "preconditions": [condition]}
    assert refusal(server, "write-events", body) == expected(server, "precondition-violated", 409)


# ---------------------------------------------------------------------------------------------------------- selections


@pytest.mark.parametrize("what", ["read-events", "observe-events"])
@pytest.mark.parametrize(
    ("subject", "options", "code"),
    [
        ("", {}, "subject-missing"),
        ("books", {}, "subject-malformed"),
        ("/bücher", {}, "subject-malformed"),
        ("/", {"lowerBound": {"type": "inclusive"}}, "event-id-missing"),
        ("/", {"lowerBound": {"id": "", "type": "inclusive"}}, "event-id-missing"),
        ("/", {"lowerBound": {"id": "a", "type": "inclusive"}}, "event-id-malformed"),
        ("/", {"lowerBound": {"id": "-1", "type": "inclusive"}}, "event-id-malformed"),
        ("/", {"lowerBound": {"id": "1"}}, "bound-type-missing"),
        ("/", {"lowerBound": {"id": "1", "type": "between"}}, "bound-type-unknown"),
        ("/", {"fromLatestEvent": {"subject": "/", "type": LENT}}, "from-latest-event-incomplete"),
        ("/", {"fromLatestEvent": {}}, "from-latest-event-incomplete"),
        (
            "/",
            {"fromLatestEvent": {"subject": "/", "type": LENT, "ifEventIsMissing": "give-up"}},
            "if-event-is-missing-unknown",
        ),
        (
            "/",
            {
                "fromLatestEvent": {"subject": "/", "type": LENT, "ifEventIsMissing": "read-everything"},
                "lowerBound": {"id": "1", "type": "inclusive"},
            },
            "selection-conflicting",
        ),
    ],
    ids=repr,
)
def test_a_selection_that_breaks_a_rule_is_refused(
    server: EventSourcingDbStandIn, what: str, subject: str, options: dict[str, Any], code: str
) -> None:
    body = {"subject": subject, "options": {"recursive": True, **options}}
    assert refusal(server, what, body) == expected(server, code)


def test_an_unknown_order_is_refused(server: EventSourcingDbStandIn) -> None:
    body = {"subject": "/", "options": {"recursive": True, "order": "random"}}
    assert refusal(server, "read-events", body) == expected(server, "order-unknown")


@pytest.mark.parametrize("subject", ["", "books"])
def test_subjects_below_a_malformed_one_are_refused(server: EventSourcingDbStandIn, subject: str) -> None:
    body = {"baseSubject": subject} if server.version == 1 else {"subject": subject, "options": {"recursive": True}}
    code = "subject-malformed" if subject else "subject-missing"
    assert refusal(server, "read-subjects", body) == expected(server, code)


# ------------------------------------------------------------------------------ what the official client makes of it


def write(server: EventSourcingDbStandIn, *types: str, subject: str = "/books/42") -> None:
    server.log.write([{**WELL_FORMED, "subject": subject, "type": each} for each in types])


async def taken(events: AsyncIterator[Event], count: int | None = None) -> list[str]:
    """Return the ids of the first events, or of all."""
    ids = []
    async with aclosing(events) as stream:  # type: ignore[type-var]
        async for event in stream:
            event.verify_hash()
            ids.append(event.event_id)
            if len(ids) == count:
                break
    return ids


def client_of(server: EventSourcingDbStandIn) -> Client:
    return Client(server.url.replace("eventsourcingdb", "http"), server.api_token, stall_timeout=SECONDS)


@pytest.mark.parametrize(
    ("types", "if_missing", "ids"),
    [
        ([LENT, RETURNED, LENT, RETURNED, RETURNED], "read-nothing", ["2", "3", "4"]),
        ([LENT], "read-nothing", ["0"]),
        ([RETURNED, RETURNED], "read-nothing", []),
        ([RETURNED, RETURNED], "read-everything", ["0", "1"]),
        ([], "read-everything", []),
    ],
)
def test_reading_begins_with_the_latest_event_of_a_type(
    server: EventSourcingDbStandIn, types: Sequence[str], if_missing: str, ids: list[str]
) -> None:
    if types:
        write(server, *types)
    latest = ReadFromLatestEvent("/books/42", LENT, IfEventIsMissingDuringRead(if_missing))

    async def look() -> list[str]:
        async with client_of(server) as client:
            return await taken(client.read_events("/", ReadEventsOptions(recursive=True, from_latest_event=latest)))

    assert asyncio.run(look()) == ids


def test_a_latest_event_after_the_upper_bound_is_a_conflict(server: EventSourcingDbStandIn) -> None:
    write(server, RETURNED, RETURNED, LENT)
    latest = ReadFromLatestEvent("/books/42", LENT, IfEventIsMissingDuringRead.READ_NOTHING)
    options = ReadEventsOptions(recursive=True, upper_bound=Bound("1", BoundType.INCLUSIVE), from_latest_event=latest)

    async def look() -> None:
        async with client_of(server) as client:
            await taken(client.read_events("/", options))

    with pytest.raises(DbApiError) as raised:
        asyncio.run(look())
    assert raised.value.code == ErrorCode.RANGE_UNSATISFIABLE


@pytest.mark.parametrize(
    ("before", "if_missing", "after", "ids"),
    [
        ([LENT, RETURNED], "wait-for-event", [], ["0", "1"]),
        ([RETURNED], "read-everything", [], ["0"]),
        ([RETURNED], "wait-for-event", [RETURNED, LENT, RETURNED], ["2", "3"]),
    ],
)
def test_observing_begins_with_the_latest_event_of_a_type_or_waits_for_one(
    server: EventSourcingDbStandIn, before: Sequence[str], if_missing: str, after: Sequence[str], ids: list[str]
) -> None:
    write(server, *before)
    latest = ObserveFromLatestEvent("/books/42", LENT, IfEventIsMissingDuringObserve(if_missing))
    asked, take = threading.Event(), server.fault

    def see(what: str) -> Fault:
        if what == "observe-events":
            asked.set()
        return take(what)

    server.fault = see  # type: ignore[method-assign]

    async def look() -> list[str]:
        async with client_of(server) as client:
            options = ObserveEventsOptions(recursive=True, from_latest_event=latest)
            looking = asyncio.create_task(taken(client.observe_events("/", options), len(ids)))
            await asyncio.to_thread(asked.wait, SECONDS)
            if after:
                write(server, *after)
            return await looking

    assert asyncio.run(look()) == ids


def test_hashes_have_the_version_of_the_server_that_wrote_them() -> None:
    log = EventLog()
    for version in (1, 2):
        with EventSourcingDbStandIn(version=version, log=log) as server:
            log.write(
                [{**WELL_FORMED, "data": {"größe": "<é>", "n": [1.5, None]}}, {**WELL_FORMED, "traceparent": PARENT}]
            )

            async def look(server: EventSourcingDbStandIn = server) -> list[str]:
                async with client_of(server) as client:
                    return await taken(client.read_events("/", ReadEventsOptions(recursive=True)))

            assert len(asyncio.run(look())) == 2 * version
    hashes = [event["hash"] for event in log.read("/", OPTIONS)]
    assert [text.startswith("esdb:hash:v2:") for text in hashes] == [False, False, True, True]
    assert [event["predecessorhash"] for event in log.read("/", OPTIONS)] == ["0" * 64, *hashes[:-1]]


def test_observers_are_notified_of_a_graceful_shutdown(server: EventSourcingDbStandIn) -> None:
    write(server, LENT)

    async def look() -> None:
        async with client_of(server) as client:
            stopping = None
            async with aclosing(client.observe_events("/", ObserveEventsOptions(recursive=True))) as stream:
                async for _ in stream:
                    stopping = asyncio.create_task(asyncio.to_thread(server.stop, graceful=True))
            assert stopping is None, "the stream ends with an error"

    with pytest.raises(DbApiError, match="shutting down") as raised:
        asyncio.run(look())
    assert raised.value.code == (ErrorCode.SERVER_SHUTTING_DOWN if server.version == 2 else None)


def test_an_abrupt_shutdown_breaks_the_stream(server: EventSourcingDbStandIn) -> None:
    write(server, LENT)

    async def look() -> None:
        options = ObserveEventsOptions(recursive=True)
        async with client_of(server) as client, aclosing(client.observe_events("/", options)) as stream:
            async for _ in stream:
                await asyncio.to_thread(server.stop)

    with pytest.raises((ServerError, aiohttp.ClientError)) as raised:
        asyncio.run(look())
    assert not isinstance(raised.value, DbApiError)


@in_version_2
def test_a_precondition_can_include_child_subjects_in_version_2(server: EventSourcingDbStandIn) -> None:
    write(server, LENT, subject="/books/42/copies")

    async def append(*, recursive: bool) -> None:
        async with client_of(server) as client:
            candidate = EventCandidate("urn:s", "/books/42", LENT, {})
            await client.write_events([candidate], [IsSubjectPristine("/books/42", PreconditionOptions(recursive))])

    with pytest.raises(DbApiError, match="precondition failed"):
        asyncio.run(append(recursive=True))
    asyncio.run(append(recursive=False))


@in_version_1
def test_version_1_knows_no_options_of_a_precondition(server: EventSourcingDbStandIn) -> None:
    payload = {"subject": "/books/42", "options": {"recursive": False}}
    body = {"events": [WELL_FORMED], "preconditions": [{"type": "isSubjectPristine", "payload": payload}]}
    assert refusal(server, "write-events", body) == (400, "")


@pytest.mark.parametrize(("value", "code"), [(True, ""), (False, "precondition-violated"), (1, "query-not-boolean")])
@pytest.mark.parametrize("version", [1, 2])
def test_a_query_is_evaluated_by_the_function_of_the_log(value: object, code: str, version: int) -> None:
    asked: list[tuple[str, int]] = []

    def evaluate(query: str, events: Sequence[dict[str, Any]]) -> object:
        asked.append((query, len(events)))
        return value

    async def append(server: EventSourcingDbStandIn) -> None:
        async with client_of(server) as client:
            await client.write_events([EventCandidate("urn:s", "/a", LENT, {})], [IsEventQlQueryTrue("FROM e …")])

    with EventSourcingDbStandIn(version=version, log=EventLog(eventql=evaluate)) as server:
        write(server, LENT)
        if not code:
            asyncio.run(append(server))
        else:
            with pytest.raises(DbApiError) as raised:
                asyncio.run(append(server))
            if version == 2:
                assert raised.value.code == f"https://docs.eventsourcingdb.io/errors/{code}"
    assert asked == [("FROM e …", 1)]

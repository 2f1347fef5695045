"""EventSourcingDB is not where its URL leads: another server answers, or sends the client to one."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from opencqrs_py.adapters.eventsourcingdb import EventSourcingDbEventStore, EventSourcingDbUnavailableError
from opencqrs_py.errors import EventStoreError
from opencqrs_py.testing.contracts.event_source import event
from opencqrs_py.testing.eventsourcingdb import EventSourcingDbStandIn

SECONDS = 30
HTML, JSON = "text/html", "application/json"


@dataclass
class Other:
    """A server of HTTP that gives every request one answer, and remembers the requests."""

    status: int = 200
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    server: str = "nginx"
    paths: list[str] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    port: int = 0

    @property
    def url(self) -> str:
        return f"eventsourcingdb://127.0.0.1:{self.port}"

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: a client that hangs up is not an error here."""


@pytest.fixture
def start() -> Iterator[Callable[[Other], Other]]:
    started: list[ThreadingHTTPServer] = []

    def start_(other: Other) -> Other:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                other.paths.append(self.path)
                other.tokens.append(self.headers.get("Authorization"))
                other.bodies.append(self.rfile.read(int(self.headers.get("Content-Length", 0))))
                self.send_response_only(other.status)
                content = other.body.encode()
                named = {"Server": other.server} if other.server else {}
                for name, value in {**named, "Content-Length": str(len(content)), **other.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_QUERY = do_GET  # noqa: N815 the base's names

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        server = QuietServer(("127.0.0.1", 0), Handler)
        started.append(server)
        other.port = server.server_port
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return other

    yield start_
    for server in started:
        server.shutdown()
        server.server_close()


@pytest.fixture
def store() -> Iterator[Callable[[Other], EventSourcingDbEventStore]]:
    opened: list[EventSourcingDbEventStore] = []

    def open_(other: Other) -> EventSourcingDbEventStore:
        opened.append(EventSourcingDbEventStore(other.url, "TOKEN", stall_seconds=SECONDS))
        return opened[-1]

    yield open_
    for each in opened:
        each.close()


Start = Callable[[Other], Other]
Open = Callable[[Other], EventSourcingDbEventStore]
PING = '{"type":"event","data":{"type":"io.eventsourcingdb.api.ping-received"}}'


# ------------------------------------------------------------------------------------------------------ another server


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Other(200, "<html>", {"Content-Type": HTML}), "status 200, text/html, Server: nginx"),
        (Other(404, "<html>", {"Content-Type": HTML}), "status 404, text/html, Server: nginx"),
        (Other(405, ""), "status 405, Server: nginx"),
        (Other(200, '{"a": 1}', {"Content-Type": JSON}), "status 200, application/json, Server: nginx"),
        (Other(200, PING, {"Content-Type": JSON}, server=""), "status 200, application/json"),
        (Other(403, "no"), "status 403, Server: nginx"),
        (Other(401, "no"), "status 401, Server: nginx"),
        (Other(501, "no"), "status 501, Server: nginx"),
        (Other(302, ""), "status 302, Server: nginx"),  # to nowhere
        (Other(200, "", server="x" * 1_000), "status 200, Server: " + "x" * 52),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_response_of_another_server_is_not_an_outage(start: Start, store: Open, other: Other, said: str) -> None:
    opened = store(start(other))
    with pytest.raises(EventStoreError) as raised:
        opened.head()
    assert not opened.is_outage(raised.value)
    assert (raised.value.code, raised.value.where) == ("OCQ-334", other.url)
    assert raised.value.what == f"the response does not come from EventSourcingDB ({said})"
    assert "correct event-store.url; a proxy" in raised.value.fix


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_proxys_response_while_the_server_is_unavailable_is_an_outage(start: Start, store: Open, status: int) -> None:
    opened = store(start(Other(status, "busy")))
    with pytest.raises(EventSourcingDbUnavailableError, match="OCQ-331") as raised:
        opened.head()
    assert opened.is_outage(raised.value)


def test_a_proxy_that_answers_version_2_itself_is_not_taken_for_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(handler: BaseHTTPRequestHandler) -> str:
        return "nginx" if handler.path.startswith("/api/v2/") else "EventSourcingDB/1.2.0"

    monkeypatch.setattr("opencqrs_py.testing.eventsourcingdb.server._Handler.version_string", version)
    with EventSourcingDbStandIn(version=1, names=False) as server:
        opened = EventSourcingDbEventStore(server.url, server.api_token)
        opened.append([event(1)])
        assert opened.head() == 1
        opened.close()


# ----------------------------------------------------------------------------------------------------------- redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("append", [False, True])
def test_a_redirect_to_another_origin_is_not_followed(start: Start, store: Open, status: int, *, append: bool) -> None:
    target = start(Other(200, PING, server="EventSourcingDB/1.3.0"))
    other = start(Other(status, "", {"Location": f"{target.origin}/api/v2/x?secret=1"}))
    opened = store(other)
    with pytest.raises(EventStoreError) as raised:
        opened.append([event(1)]) if append else opened.head()
    assert (raised.value.code, raised.value.where) == ("OCQ-348", other.url)
    assert raised.value.what == (
        f"EventSourcingDB redirects to another server ({target.origin}), which is not followed: "
        "token and events are for the named one only"
    )
    assert raised.value.fix == f"if your EventSourcingDB is there, set event-store.url to {target.url}"
    assert not opened.is_outage(raised.value)
    assert target.paths == []
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_after_the_server_was_found_gets_neither_token_nor_events(
    start: Start, store: Open, status: int
) -> None:
    target = start(Other(200, PING, server="EventSourcingDB/1.3.0"))
    other = start(Other(200, PING, {"Content-Type": JSON}, server="EventSourcingDB/1.3.0"))
    opened = store(other)
    with pytest.raises(EventStoreError, match="OCQ-335"):  # the ping is answered, and then no events
        opened.append([event(1)])
    other.status, other.headers = status, {"Location": f"{target.origin}/"}
    with pytest.raises(EventStoreError, match="OCQ-348"):
        opened.append([event(1)])
    assert other.tokens[-1] == "Bearer TOKEN"
    assert (target.tokens, target.bodies) == ([], [])


@pytest.mark.parametrize(
    ("location", "fix"),
    [
        ("https://db.example/api", "set event-store.url to eventsourcingdb+https://db.example:443"),
        ("https://127.0.0.1:8443", "set event-store.url to eventsourcingdb+https://127.0.0.1:8443"),
        ("//db.example/", "set event-store.url to eventsourcingdb://db.example:80"),
        ("ftp://db.example/", "correct event-store.url"),
        ("mailto:ada@example.org", "correct event-store.url"),
        ("http://[broken", "correct event-store.url"),
    ],
)
def test_the_error_for_a_redirect_names_the_url_to_set(start: Start, store: Open, location: str, fix: str) -> None:
    with pytest.raises(EventStoreError, match="OCQ-348") as raised:
        store(start(Other(302, "", {"Location": location}))).head()
    assert fix in raised.value.fix


def test_a_redirect_within_the_origin_is_followed(start: Start, store: Open) -> None:
    other = start(Other(307, "", {"Location": "/elsewhere"}))
    with pytest.raises(
        EventStoreError, match=r"OCQ-334\] the response of EventSourcingDB cannot be understood"
    ) as raised:
        store(other).head()
    assert set(other.paths[1:]) == {"/elsewhere"}
    assert raised.value.where == other.url

"""The server of the stand-in: EventSourcingDB's HTTP API on threads of this process.

It speaks both versions, because the official client chooses between them: version 1 (POST, streams that just end) and
version 2 (QUERY, an end line, errors as lines).
"""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from threading import Condition, Event, Thread
from typing import Any, NamedTuple, Self

from opencqrs_py.testing.eventsourcingdb.faults import Fault, Then
from opencqrs_py.testing.eventsourcingdb.log import EventLog
from opencqrs_py.testing.eventsourcingdb.requests import Json, RefusedError, Rules, compact

_WRITING = ("write-events", "register-event-schema")
_READING = (
    "read-events",
    "observe-events",
    "read-subjects",
    "run-eventql-query",
    "read-event-type",
    "read-event-types",
)
_ROUTES = {
    "/api/v1/ping": ("GET", 1, "ping"),
    "/api/v1/verify-api-token": ("POST", 1, "verify-api-token"),
    **{f"/api/v1/{what}": ("POST", 1, what) for what in _WRITING + _READING},
    "/api/v2/system/ping": ("GET", 2, "ping"),
    "/api/v2/system/verify-token": ("POST", 2, "verify-api-token"),
    **{f"/api/v2/data/{what}": ("POST", 2, what) for what in _WRITING},
    **{f"/api/v2/data/{what}": ("QUERY", 2, what) for what in _READING},
}
_LONGEST_GOODBYE = 5.0  # seconds
_API = "io.eventsourcingdb.api"
_ERRORS = "https://docs.eventsourcingdb.io/errors"


class EventSourcingDbStandIn:
    """The server; a context manager. Its events outlive ``stop`` and ``start``, and its port stays the same.

    Args:
        api_token: The token that requests must bring.
        version: Newest version of the API that it speaks, 1 or 2.
        heartbeat: Seconds between two heartbeats while nothing happens.
        log: The events.
        names: Whether sources, subjects and types must be as the real server wants them: a URI, segments of letters,
            digits, hyphens and underscores, a reversed domain name. False for tests of other names.
        largest_event: Most bytes of an event, as JSON.

    Attributes:
        bodies: The kind of each request, and its body, in the order of arrival.
    """

    def __init__(
        self,
        api_token: str = "secret",  # noqa: S107 of a server that lives for a test
        *,
        version: int = 2,
        heartbeat: float = 1.0,
        log: EventLog | None = None,
        names: bool = True,
        largest_event: int = 65_536,
    ) -> None:
        self.api_token = api_token
        self.version = version
        self.heartbeat = heartbeat
        self.log = log or EventLog()
        self.names = names
        self.largest_event = largest_event
        self.bodies: list[tuple[str, Json]] = []
        self._faults: list[Fault] = []
        self._port = 0
        self._server: _Server | None = None

    @property
    def url(self) -> str:
        """The value for ``event-store.url``; known after the first start."""
        return f"eventsourcingdb://127.0.0.1:{self._port}"

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self._server.open) if self._server else 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start answering requests."""
        self.log.hash_version = self.version
        self._server = _Server(self, self._port)
        self._port = self._server.server_port
        Thread(target=self._server.serve_forever, args=(0.01,), name="eventsourcingdb", daemon=True).start()

    def stop(self, *, graceful: bool = False) -> None:
        """Break all connections and stop answering; idempotent.

        If ``graceful``, observations first end with the error that the server shuts down.
        """
        server, self._server = self._server, None
        if server is not None:
            server.shutdown()
            server.is_graceful = graceful
            server.stopped.set()
            if graceful:
                self.log.wake()
                server.observations.wait()
            self.log.wake()
            server.break_connections()
            server.server_close()

    def misbehave(self, *faults: Fault) -> None:
        """Have the next responses of their kinds fail, each fault once, in this order."""
        self._faults.extend(faults)

    def counts(self) -> Counter[str]:
        """Return how many requests of each kind there were."""
        return Counter(what for what, _ in self.bodies)

    def fault(self, what: str) -> Fault:
        """Take the fault of the next response of a kind; usually none."""
        for number, fault in enumerate(self._faults):
            if fault.what == what:
                return self._faults.pop(number)
        return Fault(what)


class _Server(ThreadingHTTPServer):
    """Knows its open connections, so that it can break them."""

    request_queue_size = 128

    def __init__(self, stand_in: EventSourcingDbStandIn, port: int) -> None:
        self.stand_in = stand_in
        self.stopped = Event()
        self.is_graceful = False
        self.observations = _Running()
        self.open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log nothing: a client that hangs up is not an error here."""

    def break_connections(self) -> None:
        for connection in list(self.open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


class _Running:
    """Counts active requests, so that their end can be waited for."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = Condition()

    def __enter__(self) -> None:
        self._add(1)

    def __exit__(self, *_: object) -> None:
        self._add(-1)

    def wait(self) -> None:
        """Wait until no request is active, at most a few seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._count == 0, _LONGEST_GOODBYE)

    def _add(self, number: int) -> None:
        with self._changed:
            self._count += number
            self._changed.notify_all()


class _Dialect(NamedTuple):
    """How one version of the API writes its lines."""

    content: str
    error: Callable[[RefusedError], Json]
    end: tuple[Json, ...]

    def line(self, kind: str, content: Json) -> Json:
        return {"type": kind, self.content: content}


_DIALECTS = {
    1: _Dialect("payload", lambda refused: {"error": refused.text}, ()),
    2: _Dialect(
        "data",
        lambda refused: {"code": f"{_ERRORS}/{refused.code}", "description": refused.text},
        ({"type": "end", "data": {}},),
    ),
}


class _Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = 65_536
    disable_nagle_algorithm = True
    server: _Server

    def version_string(self) -> str:
        return f"EventSourcingDB/1.{self.server.stand_in.version + 1}.0"

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self._answer()

    do_DELETE = do_HEAD = do_OPTIONS = do_PATCH = do_POST = do_PUT = do_QUERY = do_GET  # noqa: N815 the base's names

    def _answer(self) -> None:
        stand_in = self.server.stand_in
        try:
            text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        except ValueError:
            return self._say(HTTPStatus.BAD_REQUEST, "the length of the request must be a number")
        method, version, what = _ROUTES.get(self.path, ("", 0, ""))
        if not method or version > stand_in.version:
            return self._say(HTTPStatus.NOT_FOUND, "not found")
        if self.command != method:
            return self._say(HTTPStatus.METHOD_NOT_ALLOWED, "method not allowed", Allow=method)
        if what != "ping" and self.headers.get("Authorization") != f"Bearer {stand_in.api_token}":
            return self._say(HTTPStatus.UNAUTHORIZED, "unauthorized")
        rules = Rules(version, stand_in.names, stand_in.largest_event)
        try:
            body = rules.parsed(text)
            stand_in.bodies.append((what, body))
            return self._obey(_Answers(stand_in, self.server, rules), what, body, stand_in.fault(what))
        except RefusedError as refused:
            return self._say(refused.status, refused.text)

    def _obey(self, answers: _Answers, what: str, body: Json, fault: Fault) -> None:
        """Answer a request as the fault says; raises ``RefusedError`` for a response's status, not for a line in it."""
        if fault.status:
            headers = {} if fault.retry_after is None else {"Retry-After": str(fault.retry_after)}
            return self._say(fault.status, fault.line, **headers)
        lost = what == "write-events" and fault.then is not Then.GO_ON and not fault.stored
        lines: Iterable[object]
        try:
            lines = () if lost else answers.to(what, answers.rules.checked(what, body))
        except RefusedError as refused:
            if answers.rules.version == 1 or not refused.code:
                raise
            lines = (answers.dialect.line("error", answers.dialect.error(refused)),)
        if what != "observe-events":
            return self._stream(lines, fault, answers.heartbeat)
        with self.server.observations:
            return self._stream(lines, fault, answers.heartbeat)

    def _say(self, status: int, text: str, **headers: str) -> None:
        content = text.encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, lines: Iterable[object], fault: Fault, heartbeat: Json) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, line in enumerate(chain(lines, (None,))):
            if number == fault.after and not self._go_wrong(fault, heartbeat):
                break
            if line is not None:
                time.sleep(fault.pause)
                self._send(compact(line) + "\n")
            if line is None or line is heartbeat or fault.pause or isinstance(lines, Iterator):
                self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, line: str) -> None:
        content = line.encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(content), content))

    def _go_wrong(self, fault: Fault, heartbeat: Json) -> bool:
        """Carry out the fault; return whether the response continues."""
        if fault.line:
            self._send(fault.line + "\n" * (fault.then is Then.GO_ON))
        self.wfile.flush()
        if fault.then is Then.CUT:
            self.connection.shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError
        pause = self.server.stand_in.heartbeat if fault.then is Then.QUIET else None
        while fault.then in {Then.STALL, Then.QUIET} and not self.server.stopped.wait(pause):
            self._send(compact(heartbeat) + "\n")
            self.wfile.flush()
        return fault.then is Then.GO_ON


@dataclass(frozen=True, slots=True)
class _Answers:
    """The responses to requests in one version of the API."""

    stand_in: EventSourcingDbStandIn
    server: _Server
    rules: Rules

    @property
    def dialect(self) -> _Dialect:
        return _DIALECTS[self.rules.version]

    @property
    def heartbeat(self) -> Json:
        return self.dialect.line("heartbeat", {})

    def to(self, what: str, body: Json) -> Iterable[object]:
        """Return the lines of a response, which never end for an observation; refuse what cannot be answered."""
        log, version = self.stand_in.log, self.rules.version
        match what:
            case "ping":
                return [self._own("ping-received")]
            case "verify-api-token":
                return [self._own("api-token-verified" if version == 1 else "token-verified")]
            case "write-events":
                written = log.write(body["events"], body["preconditions"])
                return [written] if version == 1 else self._ended("event", written)
            case "read-events":
                return self._ended("event", log.read(body["subject"], body["options"]))
            case "observe-events":
                return self._observed(body["subject"], body["options"])
            case "read-subjects":
                found = log.subjects(body["subject"], body["options"])
                return self._ended("subject", [{"subject": subject} for subject in found])
            case _:
                raise RefusedError(HTTPStatus.NOT_IMPLEMENTED, f"this stand-in does not know {what}")

    def _own(self, kind: str) -> Json:
        event = {"specversion": "1.0", "type": f"{_API}.{kind}"}
        return event if self.rules.version == 1 else self.dialect.line("event", event)

    def _ended(self, kind: str, contents: Iterable[Json]) -> list[Json]:
        return [*(self.dialect.line(kind, content) for content in contents), *self.dialect.end]

    def _observed(self, subject: str, options: Json) -> Iterator[Json]:
        heartbeat = self.heartbeat
        events = self.stand_in.log.observe(subject, options, self.stand_in.heartbeat, self.server.stopped.is_set)
        for event in events:
            yield heartbeat if event is None else self.dialect.line("event", event)
        if self.server.is_graceful:
            refused = RefusedError(
                HTTPStatus.SERVICE_UNAVAILABLE, "the server is shutting down", "server-shutting-down"
            )
            yield self.dialect.line("error", self.dialect.error(refused))

"""A small HTTP server that can neither hang its process nor delay its exit.

It answers GET and HEAD on a few paths, and more below those of branches, one request a connection, each on a thread
that ends with the process. Requests are bounded in number, size and time, so that a client that sends nothing, or
slowly, blocks only one thread, and only for a moment.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from threading import Event, Lock, Thread
from typing import Any, Protocol

from typing_extensions import override

from opencqrs_py.model.naming import in_one_line
from opencqrs_py.processing.exceptions import MOST_CHARACTERS, plain_text

_log = logging.getLogger("opencqrs.http")

TEXT = "text/plain; charset=utf-8"
MOST_REQUESTS = 16
REQUEST_SECONDS = 10.0
_POLL_SECONDS = 0.1  # between two checks whether to stop
_STOP_SECONDS = 0.5
MOST_BODY = 65_536
"""Most bytes of a request's body."""
_MOST_THROWN = 1 << 20  # bytes of a request that are read and discarded, so that its sender reads the answer
_MOST_DIGITS = 18  # of a length
_MOST_SHOWN = 500  # characters of a request in a log
_BUSY = (
    b"HTTP/1.0 503 Service Unavailable\r\nServer: opencqrs\r\nContent-Type: text/plain; charset=utf-8\r\n"
    b"Connection: close\r\nRetry-After: 1\r\n\r\ntoo many requests at once\n"
)


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a request.

    Attributes:
        status: HTTP status.
        body: The content.
        content_type: Its media type.
        headers: Further headers, by name.
    """

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    headers: Mapping[str, str] = field(default_factory=dict)


def text_answer(status: HTTPStatus, text: str, **headers: str) -> Answer:
    """Return a line of plain text, and headers, whose names have ``_`` for ``-`` here."""
    return Answer(
        status, f"{text}\n".encode(), headers={name.replace("_", "-"): each for name, each in headers.items()}
    )


Route = Callable[[str], Answer]
"""Returns the answer for a path, to a request that accepts these media types (the header ``Accept``)."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request to a branch.

    Attributes:
        method: ``GET``, also for ``HEAD``, or ``POST``.
        path: As it was sent, without what follows ``?``.
        query: What follows ``?``; empty if nothing does.
        headers: Its headers, in any spelling.
        body: The body of a ``POST``.
    """

    method: str
    path: str
    query: str
    headers: Message
    body: bytes = b""


class Branch(Protocol):
    """Answers on paths that are not known in advance, also to ``POST``."""

    def methods(self, path: str) -> Sequence[str]:
        """Return the methods of a path, without ``HEAD``; none if it is not a path of the branch."""
        ...

    def answer(self, request: Request) -> Answer:
        """Return the answer to a request with one of these methods. It must not take longer than a request may."""
        ...


class HttpServer:
    """Answers on an address, on separate threads.

    Args:
        host: Name or address to listen on.
        port: Its port; 0 for any that is free.
        routes: The answers, by path.
        branches: Further answers, on paths that are not known in advance.
        most: Most requests at once; more are refused.
        seconds: Longest time that a request may take, from its connection to its end.
        now: Returns the seconds of a clock that never goes back.

    Raises:
        OSError: If nothing can listen there.
    """

    def __init__(
        self,
        host: str,
        port: int,
        routes: Mapping[str, Route],
        branches: Sequence[Branch] = (),
        *,
        most: int = MOST_REQUESTS,
        seconds: float = REQUEST_SECONDS,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._listener = _Listener(host, port, routes, branches, most, seconds, now)
        self._stopping = Event()
        self._thread = Thread(target=self._serve, name="opencqrs-http", daemon=True)

    @property
    def url(self) -> str:
        """Its address."""
        host, port = self._listener.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering, and cut open connections. Takes less than a second."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_SECONDS)
        self._listener.server_close()
        self._listener.cut(older_than=0.0)

    def _serve(self) -> None:
        while not self._stopping.is_set():
            try:
                self._listener.handle_request()
                self._listener.cut()
            except Exception:  # such as no more threads or files: the next request may find some
                _log.warning("a request could not be accepted\n%s", _trace())
                self._stopping.wait(_POLL_SECONDS)


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = os.name == "posix"  # elsewhere it would let two processes listen on one port
    timeout = _POLL_SECONDS

    def __init__(
        self,
        host: str,
        port: int,
        routes: Mapping[str, Route],
        branches: Sequence[Branch],
        most: int,
        seconds: float,
        now: Callable[[], float],
    ) -> None:
        self.routes = routes
        self.branches = branches
        self.seconds = seconds
        self._most = most
        self._now = now
        self._lock = Lock()
        self._open: dict[socket.socket, float] = {}
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, address = found[0][0], found[0][4]
        super().__init__((str(address[0]), int(address[1])), _Handler)

    @override
    def server_bind(self) -> None:
        TCPServer.server_bind(self)  # that of HTTPServer asks the name service for the name of the machine
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    @override
    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            has_room = len(self._open) < self._most
            if has_room:
                self._open[request] = self._now()
        if has_room:
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.settimeout(_POLL_SECONDS)
            request.sendall(_BUSY)
        self.shutdown_request(request)

    @override
    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    @override
    def handle_error(self, request: Any, client_address: Any) -> None:
        _log.debug("a request from %s ended early\n%s", client_address, _trace())

    def cut(self, older_than: float | None = None) -> None:
        """End the connections of requests that take too long."""
        limit = self.seconds if older_than is None else older_than
        with self._lock:
            slow = [request for request, began in self._open.items() if self._now() - began >= limit]
        for request in slow:
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: _Listener
    timeout = REQUEST_SECONDS / 2  # for each read and write; for all of them together: `_Listener.cut`

    def do_GET(self) -> None:
        """Answer with the content of a path."""
        self._send(self._answer())

    def do_HEAD(self) -> None:
        """Answer as to GET, without the content."""
        self._send(self._answer(), with_body=False)

    def do_POST(self) -> None:
        """Answer a request to a path of a branch."""
        self._send(self._answer())

    @override
    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with a line of plain text; an unknown method is one that is not allowed."""
        del explain
        status = HTTPStatus(code)
        self._drain()
        answer = text_answer(status, status.phrase.lower())
        if status is HTTPStatus.NOT_IMPLEMENTED:
            path = self.path.partition("?")[0]
            allowed = (methods for each in self.server.branches if (methods := each.methods(path)))
            answer = _not_allowed(next(allowed, ("GET",)))
        self._send(answer, with_body=self.command != "HEAD")

    @override
    def version_string(self) -> str:
        return "opencqrs"

    @override
    def log_message(self, format: str, *args: Any) -> None:
        if _log.isEnabledFor(logging.DEBUG):
            _log.debug("%s %s", self.address_string(), _shown(format % args))

    def _answer(self) -> Answer:
        path, _, query = self.path.partition("?")
        route, method = self.server.routes.get(path), "GET" if self.command == "HEAD" else self.command
        branch = next((each for each in self.server.branches if each.methods(path)), None)
        allowed = ("GET",) if route is not None else branch.methods(path) if branch is not None else ()
        if method not in allowed:
            self._drain()
            return _not_allowed(allowed) if allowed else self._not_found()
        body = self._body() if method == "POST" else b""
        if isinstance(body, Answer):
            return body
        try:
            if route is not None:
                return route(self.headers.get("Accept", ""))
            assert branch is not None  # noqa: S101 for the type checker
            return branch.answer(Request(method, path, query, self.headers, body))
        except Exception:
            _log.warning("%s could not be answered\n%s", _shown(path), _trace())
            return text_answer(HTTPStatus.INTERNAL_SERVER_ERROR, "internal error; the log of this process has it")

    def _not_found(self) -> Answer:
        return text_answer(HTTPStatus.NOT_FOUND, f"not found; there is {', '.join(self.server.routes)}")

    def _body(self) -> bytes | Answer:
        """Read the complete body, or return what is wrong: a part of it could have another meaning."""
        if "Transfer-Encoding" in self.headers:
            return text_answer(HTTPStatus.LENGTH_REQUIRED, "send the body as a whole, with its Content-Length")
        length = self._length()
        if length is None:
            return text_answer(HTTPStatus.BAD_REQUEST, "the Content-Length is not a number of bytes")
        if length > MOST_BODY:
            self._drain()
            what = f"the body has {length:,} bytes, and at most {MOST_BODY:,} are allowed"
            return text_answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, what)
        body = self.rfile.read(length)
        if len(body) < length:
            return text_answer(HTTPStatus.BAD_REQUEST, f"the body ended after {len(body):,} of {length:,} bytes")
        return body

    def _send(self, answer: Answer, *, with_body: bool = True) -> None:
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(answer.body)

    def _length(self) -> int | None:
        """Return the length of the body; ``None`` if it is not known for sure."""
        found = {each.strip() for each in getattr(self, "headers", Message()).get_all("Content-Length", ["0"])}
        text = found.pop()
        is_number = re.fullmatch("[0-9]+", text) is not None and len(text) <= _MOST_DIGITS
        return int(text) if is_number and not found else None

    def _drain(self) -> None:
        """Read the rest of the body: if the connection were closed before, the answer would be lost."""
        left = min(self._length() or 0, _MOST_THROWN)
        while left and (part := self.rfile.read(min(left, MOST_BODY))):
            left -= len(part)


def _shown(text: str) -> str:
    """Return what a client has sent as logs show it: one line, without secrets."""
    return in_one_line(plain_text(text, _MOST_SHOWN))


def _trace() -> str:
    """Return the current error with its trace, without secrets; the log may be one that prints no ``exc_info``."""
    return plain_text(traceback.format_exc().rstrip(), MOST_CHARACTERS)


def _not_allowed(methods: Sequence[str]) -> Answer:
    status = HTTPStatus.METHOD_NOT_ALLOWED
    allowed = ", ".join("GET, HEAD" if method == "GET" else method for method in methods)
    return text_answer(status, status.phrase.lower(), Allow=allowed)

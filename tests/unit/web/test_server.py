"""A server that answers a few paths, and that no client can block."""

from __future__ import annotations

import http.client
import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http import HTTPStatus
from threading import Event, Thread

import pytest

from opencqrs_py.web.server import Answer, Branch, HttpServer, text_answer

LONG = 60.0
Serve = Callable[..., HttpServer]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Return a function that starts a server on a free loopback port; servers are stopped at the end."""
    started: list[HttpServer] = []

    def serve(**options) -> HttpServer:
        routes = {
            "/hello": lambda accept: text_answer(HTTPStatus.OK, f"hello {accept}"),
            "/broken": lambda _: 1 / 0,
            **options.pop("routes", {}),
        }
        started.append(HttpServer(options.pop("host", "127.0.0.1"), 0, routes, **options))
        started[-1].start()
        return started[-1]

    yield serve
    for server in started:
        server.stop()


def place_of(server: HttpServer) -> tuple[str, int]:
    host, _, port = server.url.removeprefix("http://").rpartition(":")
    return host.strip("[]"), int(port)


def response_of(server, method="GET", path="/hello", body=None, **headers):
    """Return status, headers and text of an answer."""
    with closing(http.client.HTTPConnection(*place_of(server), timeout=LONG)) as connection:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read().decode()


def exchanged(server, text: bytes) -> bytes:
    """Send bytes, and return everything received until the server closes the connection."""
    with closing(socket.create_connection(place_of(server), LONG)) as connection:
        connection.sendall(text)
        found = b""
        while part := connection.recv(4096):
            found += part
        return found


def test_a_path_is_answered_with_what_its_route_returns(serve):
    status, headers, text = response_of(serve(), Accept="text/x")
    assert (status, text) == (200, "hello text/x\n")
    assert headers["Content-Type"] == "text/plain; charset=utf-8"
    assert (headers["Server"], headers["Connection"], headers["Cache-Control"]) == ("opencqrs", "close", "no-store")


def test_head_returns_the_headers_without_content(serve):
    server = serve()
    status, headers, text = response_of(server, "HEAD", Accept="x")
    assert (status, headers["Content-Length"], text) == (200, "8", "")


@pytest.mark.parametrize(
    ("method", "path", "status", "says"),
    [
        ("GET", "/hello?x=1", 200, "hello "),
        ("GET", "/", 404, "not found; there is /hello, /broken"),
        ("GET", "/hello/", 404, "not found"),
        ("GET", "/../hello", 404, "not found"),
        ("POST", "/hello", 405, "method not allowed"),
        ("DELETE", "/nothing", 405, "method not allowed"),
        ("BREW", "/hello", 405, "method not allowed"),
        ("GET", "/broken", 500, "internal error; the log of this process has it"),
    ],
)
def test_errors_are_answered_in_plain_text(serve, method, path, status, says, caplog):
    found, headers, text = response_of(serve(), method, path, b"x" * 100 if method == "POST" else None)
    assert found == status
    assert text.startswith(says)
    assert headers["Content-Type"].startswith("text/plain")
    assert headers.get("Allow") == ("GET, HEAD" if status == 405 else None)
    assert "Traceback" not in text
    assert bool(caplog.records) == (status == 500)


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"\r\n\r\n", b""),
        (b"nonsense\r\n\r\n", b"bad request"),
        (b"GET /hello HTTP/9.9\r\n\r\n", b"http version not supported"),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.0\r\n\r\n", b"414"),
        (b"GET /hello HTTP/1.0\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"431"),
        (b"POST /hello HTTP/1.0\r\nContent-Length: many\r\n\r\n", b"405"),
    ],
)
def test_malformed_requests_get_a_line_of_text_and_not_an_html_page(serve, text, status):
    server = serve()
    found = exchanged(server, text)
    assert status in found
    assert b"<" not in found
    assert response_of(server)[0] == 200


class Things(Branch):
    """A branch that echoes the request, below ``/things``."""

    def methods(self, path):
        return {"/things": ("GET",), "/things/a%20b": ("GET", "POST")}.get(path, ())

    def answer(self, request):
        if request.query == "broken":
            raise ValueError(request.headers["Secret"])
        said = f"{request.method} {request.path} {request.query} {request.body.decode()} {request.headers['X-This']}"
        return text_answer(HTTPStatus.ACCEPTED, said, X_That="that")


@pytest.mark.parametrize(
    ("method", "path", "status", "says", "allow"),
    [
        ("GET", "/things?x=1", 202, "GET /things x=1  this\n", None),
        ("HEAD", "/things", 202, "", None),
        ("GET", "/things/a%20b", 202, "GET /things/a%20b   this\n", None),
        ("POST", "/things/a%20b?y", 202, "POST /things/a%20b y body this\n", None),
        ("POST", "/things", 405, "method not allowed\n", "GET, HEAD"),
        ("PUT", "/things/a%20b", 405, "method not allowed\n", "GET, HEAD, POST"),
        ("POST", "/hello", 405, "method not allowed\n", "GET, HEAD"),
        ("POST", "/things/other", 404, "not found; there is /hello, /broken\n", None),
        ("GET", "/thing", 404, "not found; there is /hello, /broken\n", None),
        ("POST", "/things/a%20b?broken", 500, "internal error; the log of this process has it\n", None),
    ],
)
def test_a_branch_answers_its_paths_and_methods(serve, method, path, status, says, allow):
    server = serve(branches=[Things()])
    body = b"body" if method in {"POST", "PUT"} else None
    found, headers, text = response_of(server, method, path, body, **{"X-This": "this", "Secret": "hunter22"})
    assert (found, text, headers.get("Allow")) == (status, says, allow)
    assert headers.get("X-That") == ("that" if status == 202 else None)


@pytest.mark.parametrize(
    ("headers", "body", "status", "says"),
    [
        ("", b"ids", 202, "POST /things/a%20b   None"),
        ("Content-Length: 3", b"idsmore", 202, "POST /things/a%20b  ids None"),
        ("Content-Length: 3\r\nContent-Length: 3", b"ids", 202, "POST /things/a%20b  ids None"),
        ("Content-Length: 3\r\nContent-Length: 2", b"ids", 400, "the Content-Length is not a number of bytes"),
        ("Content-Length: many", b"ids", 400, "the Content-Length is not a number of bytes"),
        ("Content-Length: -3", b"ids", 400, "the Content-Length is not a number of bytes"),
        ("Content-Length: 1_0", b"ids", 400, "the Content-Length is not a number of bytes"),
        ("Content-Length: " + "9" * 5000, b"ids", 400, "the Content-Length is not a number of bytes"),
        ("Content-Length: 4", b"ids", 400, "the body ended after 3 of 4 bytes"),
        ("Transfer-Encoding: chunked", b"3\r\nids\r\n0\r\n\r\n", 411, "send the body as a whole"),
        ("Content-Length: 65536", b"x" * 65_536, 202, "xxx"),
        ("Content-Length: 65537", b"x" * 65_537, 413, "the body has 65,537 bytes, and at most 65,536 are allowed"),
        (
            "Content-Length: 1000000",
            b"x" * 1_000_000,
            413,
            "the body has 1,000,000 bytes, and at most 65,536 are allowed",
        ),
    ],
)
def test_a_body_is_read_in_full_or_refused(serve, headers, body, status, says):
    server = serve(branches=[Things()])
    with closing(socket.create_connection(place_of(server), LONG)) as connection:
        lines = (
            f"POST /things/a%20b HTTP/1.1\r\n{headers}\r\n\r\n" if headers else "POST /things/a%20b HTTP/1.1\r\n\r\n"
        )
        connection.sendall(lines.encode() + body)
        connection.shutdown(socket.SHUT_WR)
        found = b"".join(iter(lambda: connection.recv(65_536), b"")).decode()
    assert found.startswith(f"HTTP/1.0 {status} ")
    assert says in found
    assert response_of(server)[0] == 200


def test_a_client_that_sends_its_body_too_slowly_is_disconnected(serve):
    now = [0.0]
    server = serve(branches=[Things()], seconds=10.0, now=lambda: now[0])
    with closing(socket.create_connection(place_of(server), LONG)) as slow:
        slow.sendall(b"POST /things/a%20b HTTP/1.1\r\nContent-Length: 10\r\n\r\nids")
        while not server._listener._open:
            pass
        now[0] = 10.0
        found = b"".join(iter(lambda: slow.recv(4096), b""))
    assert not found.startswith(b"HTTP/1.0 202")
    assert response_of(server)[0] == 200


def test_an_internal_error_is_logged_without_secrets(serve, caplog):
    def broken(_: str) -> Answer:
        raise ValueError("postgresql://u:CANARY@h is unavailable")

    assert response_of(serve(routes={"/down": broken}), path="/down?token=CANARY")[0] == 500
    (record,) = caplog.records
    first, *trace = record.getMessage().splitlines()
    assert first == "/down could not be answered"
    assert trace[0] == "Traceback (most recent call last):"
    assert trace[-1] == "ValueError: postgresql://u:***@h is unavailable"
    assert record.exc_info is None


def test_a_malformed_request_is_logged_in_one_line_without_secrets(serve, caplog):
    with caplog.at_level(logging.DEBUG):
        exchanged(serve(), b"GET /a\x1b[2J\rforged&token=CANARY HTTP/1.0\r\n\r\n")
        exchanged(serve(), b"GET /" + b"a" * 60_000 + b" HTTP/1.0\r\n\r\n")
    first, second = (record.getMessage() for record in caplog.records)
    assert r"/a\x1b[2J\x0dforged&token=***" in first
    assert "CANARY" not in first
    assert len(second) < 1_000


def test_an_access_is_not_logged_by_default(serve, caplog):
    with caplog.at_level(logging.INFO):
        response_of(serve())
    assert caplog.records == []


def test_requests_beyond_the_limit_are_refused_and_earlier_ones_answered(serve):
    entered, left, answers = Event(), Event(), []

    def slow(_accept):
        entered.set()
        assert left.wait(LONG)
        return text_answer(HTTPStatus.OK, "at last")

    server = serve(routes={"/slow": slow}, most=1)
    first = Thread(target=lambda: answers.append(response_of(server, path="/slow")))
    first.start()
    assert entered.wait(LONG)
    refused = exchanged(server, b"")
    assert refused.startswith(b"HTTP/1.0 503 ")
    assert refused.endswith(b"too many requests at once\n")
    left.set()
    first.join()
    assert (answers[0][0], answers[0][2]) == (200, "at last\n")
    until = time.monotonic() + LONG
    while (status := response_of(server)[0]) == 503 and time.monotonic() < until:
        pass  # its thread has answered, but may not have ended
    assert status == 200


def test_a_client_that_sends_too_slowly_is_disconnected(serve):
    now = [0.0]
    server = serve(seconds=10.0, now=lambda: now[0])
    with closing(socket.create_connection(place_of(server), LONG)) as slow:
        slow.sendall(b"GET /hel")
        while not server._listener._open:
            pass
        now[0] = 10.0
        assert slow.recv(100) == b""
    assert response_of(server)[0] == 200


def test_a_stop_does_not_wait_for_requests_and_frees_the_port(serve):
    entered, left = Event(), Event()

    def slow(_accept):
        entered.set()
        left.wait(LONG)
        return text_answer(HTTPStatus.OK, "too late")

    server = serve(routes={"/slow": slow})
    host, port = place_of(server)
    with closing(socket.create_connection((host, port), LONG)) as one, closing(socket.create_connection((host, port))):
        one.sendall(b"GET /slow HTTP/1.0\r\n\r\n")
        assert entered.wait(LONG)
        server.stop()
        assert one.recv(100) == b""
    left.set()
    again = HttpServer(host, port, {})
    again.stop()
    server.stop()


def test_a_port_in_use_is_an_error(serve):
    host, port = place_of(serve())
    with pytest.raises(OSError, match="in use"):
        HttpServer(host, port, {})


def test_a_server_listens_on_ipv6_and_on_host_names(serve):
    assert serve(host="localhost").url.startswith("http://")
    try:
        server = serve(host="::1")
    except OSError:
        pytest.skip("this machine has no IPv6")
    assert server.url.startswith("http://[::1]:")
    assert response_of(server)[0] == 200

"""A relay to a server that can be closed, to simulate a database that is stopped or that hangs."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Thread

from sqlalchemy import URL, make_url


class Relay:
    """Passes bytes between clients and a server.

    Args:
        to: Address of the server: path of its socket, or host and port.
    """

    def __init__(self, to: str | tuple[str, int]) -> None:
        self._to = to
        self._lock = Lock()
        self._open: list[socket.socket] = []
        self._hangs = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._listen()

    def stop(self) -> None:
        """Cut all connections and refuse new ones, as a server does that is stopped."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def start(self) -> None:
        """Pass bytes again."""
        self._hangs = False
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._listen()

    def hang(self) -> None:
        """Cut all connections, and leave new ones without an answer."""
        self._hangs = True
        self.cut()

    def cut(self) -> None:
        """Cut all connections."""
        with self._lock:
            cut, self._open = self._open, []
        for one in cut:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _listen(self) -> None:
        Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                self._connect(listener.accept()[0])

    def _connect(self, client: socket.socket) -> None:
        with self._lock:
            self._open.append(client)
        if self._hangs:
            return
        family = socket.AF_UNIX if isinstance(self._to, str) else socket.AF_INET
        server = socket.socket(family)
        server.connect(self._to)
        with self._lock:
            self._open.append(server)
        for one, other in ((client, server), (server, client)):
            Thread(target=_pass, args=(one, other), daemon=True).start()


def _pass(one: socket.socket, other: socket.socket) -> None:
    with suppress(OSError):
        while part := one.recv(65_536):
            other.sendall(part)
    with suppress(OSError):
        other.shutdown(socket.SHUT_RDWR)


@contextmanager
def relayed(url: str) -> Iterator[tuple[Relay, str]]:
    """Yield a relay to a PostgreSQL server, and the URL by which it is used."""
    made = make_url(url)
    host = str(made.query.get("host") or made.host)
    port = made.port or 5432
    relay = Relay(f"{host}/.s.PGSQL.{port}" if host.startswith("/") else (host, port))
    behind = URL.create(made.drivername, made.username, made.password, "127.0.0.1", relay.port, made.database)
    try:
        yield relay, behind.render_as_string(hide_password=False)
    finally:
        relay.stop()

"""The line from the coordinator to a group's query: a loopback socket that Spark's socket source reads.

Runs on the driver. Orders need no durability, since progress in the database is the only truth about what is done;
so the simplest source that Spark has is the right one: it starts no process, polls nothing, and forgets.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from threading import Lock, Thread

__all__ = ["SignalLine"]


class SignalLine:
    """One listening socket on loopback for one reader. Lines sent before it has connected wait for it."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=1)
        self._lock = Lock()
        self._waiting = b""
        self._closed = False
        self._reader: socket.socket | None = None
        Thread(target=self._accept, name="opencqrs-signals", daemon=True).start()

    @property
    def port(self) -> int:
        """Where the reader connects."""
        return int(self._server.getsockname()[1])

    def send(self, lines: list[str]) -> None:
        """Send lines of text, all at once.

        Raises:
            OSError: If the reader has gone.
        """
        data = "".join(f"{line}\n" for line in lines).encode()
        with self._lock:
            if self._reader is None:
                self._waiting += data
            else:
                self._reader.sendall(data)

    def close(self) -> None:
        """Close both ends."""
        with self._lock:
            self._closed = True
            with suppress(OSError):  # wakes the thread that waits for the reader; a mere close would not
                self._server.shutdown(socket.SHUT_RDWR)
            self._server.close()
            if self._reader is not None:
                self._reader.close()

    def _accept(self) -> None:
        try:
            reader, _ = self._server.accept()
        except OSError:  # closed before anybody came
            return
        with self._lock:
            if self._closed:
                reader.close()
                return
            reader.sendall(self._waiting)
            self._waiting = b""
            self._reader = reader

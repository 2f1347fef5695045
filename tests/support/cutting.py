"""A server ends the connection of a chosen statement, as a restart or a firewall does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from threading import Lock
from typing import Any

from sqlalchemy import Connection, Engine, event

from opencqrs_py.adapters.sql import Database

_CUT = {"mariadb": "KILL %s", "postgresql": "SELECT pg_terminate_backend(%s, 10000)"}
_SENT = ("before_cursor_execute", "commit")


class Cutter:
    """Ends the connection of a statement before it is sent, or that of a commit.

    Args:
        database: Whose driver it uses, without SQLAlchemy, so that it does not cut itself.
    """

    def __init__(self, database: Database) -> None:
        self._kind = database.kind
        self._own: Any = database.engine.raw_connection().driver_connection
        if self._kind == "postgresql":
            self._own.autocommit = True
        self._seen, self._at = 0, -1
        self._lock = Lock()

    @contextmanager
    def counting(self, at: int = -1) -> Iterator[Callable[[], int]]:
        """Count the statements sent to servers in the block, and cut the connection of the one with this number."""
        self._seen, self._at = 0, at
        for name in _SENT:
            event.listen(Engine, name, self._hear)
        try:
            yield lambda: self._seen
        finally:
            for name in _SENT:
                event.remove(Engine, name, self._hear)

    def cut(self, session: int) -> None:
        """End the connection that has this number, see ``session_of``."""
        with closing(self._own.cursor()) as cursor:
            cursor.execute(_CUT[self._kind], (session,))

    def close(self) -> None:
        """Close its own connection."""
        self._own.close()

    def _hear(self, connection: Connection, *_: object) -> None:
        if connection.dialect.name == "sqlite" or connection.connection.driver_connection is None:  # it was cut before
            return
        with self._lock:
            number, self._seen = self._seen, self._seen + 1
        if number == self._at:
            self.cut(session_of(connection))


def session_of(connection: Connection) -> int:
    """Return the number of the server's process or thread that serves a connection."""
    driver: Any = connection.connection.driver_connection
    return int(driver.info.backend_pid if hasattr(driver, "info") else driver.thread_id())

"""The databases that an application opens by their URLs, and closes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opencqrs_py.adapters.sql import Database

_OF_COORDINATION = 1  # connections of a process whose threads send short statements only, each waiting for the other


class OpenedDatabases:
    """The databases of an application that settings name by URL. An engine of a provider is its maker's to close.

    All parts of a process that name the same database share one, and its connections.

    Args:
        pool_size: How many connections to each server its threads share; ``None``: as many as they need, but few.
    """

    def __init__(self, pool_size: int | None = None) -> None:
        self._pool_size = pool_size
        self._coordinated: int | None = None
        self._opened: list[Database] = []
        self._shared: dict[tuple[str, str | None], Database] = {}

    def open(self, url: str, schema: str | None) -> Database:
        """Return a database, which is reached when it is used first; one in memory is another one each time.

        Raises:
            EventStoreError: As ``Database`` raises it.
        """
        from opencqrs_py.adapters.sql import Database  # noqa: PLC0415 loads SQLAlchemy

        found = self._shared.get((url, schema))
        if found is not None:
            return found
        database = Database(url, schema, **self._bound)
        self._opened.append(database)
        if database.guard.outlives_connections:
            self._shared[url, schema] = database
        return database

    def add(self, database: Database) -> None:
        """Have another one closed with these."""
        self._opened.append(database)

    def coordinate(self, handling: int | None) -> None:
        """Note that this process coordinates, and how many of its threads handle events; ``None``: all may."""
        self._coordinated = handling
        for database in self._shared.values():
            database.bound(**self._bound)

    def disconnect(self) -> None:
        """Close the connections to all of them; the next use opens new ones."""
        for database in self._opened:
            database.disconnect()

    def disconnect_after(self, threads: Sequence[Thread]) -> None:
        """Close, once some threads have ended, the connections that they have opened again meanwhile."""

        def wait_and_disconnect() -> None:
            for each in threads:
                each.join()
            self.disconnect()

        with suppress(RuntimeError):  # Python is about to end, and starts no more threads
            Thread(target=wait_and_disconnect, name="opencqrs-disconnect", daemon=True).start()

    def close(self) -> None:
        """Close the connections to all of them, also to those in memory, which end."""
        for database in self._opened:
            database.close()

    @property
    def _bound(self) -> dict[str, int]:
        if self._pool_size is not None:
            return {"connections": self._pool_size}
        return {} if self._coordinated is None else {"connections": _OF_COORDINATION + self._coordinated}

"""The databases and the event store that an application opens by their URLs, and closes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from threading import Thread
from typing import TYPE_CHECKING

from opencqrs_py.assembly.checked_parts import unchecked
from opencqrs_py.processing.exceptions import one_line
from opencqrs_py.processing.ports import ClosableSource, EventSource

if TYPE_CHECKING:
    from opencqrs_py.adapters.sql import Database

_log = logging.getLogger("opencqrs.store")

_OF_COORDINATION = 1  # connections of a process whose threads send short statements only, each waiting for the other


class OpenedStores:
    """The databases and the event store of an application that settings name by URL.

    A provider closes what it makes. All parts of a process that name the same database share one, and its connections.

    Args:
        pool_size: How many connections to each server its threads share; ``None``: as many as they need, but few.
    """

    def __init__(self, pool_size: int | None = None) -> None:
        self._pool_size = pool_size
        self._coordinated: int | None = None
        self._opened: list[Database] = []
        self._shared: dict[tuple[str, str | None], Database] = {}
        self._sources: list[ClosableSource] = []

    def open(self, url: str, schema: str | None, *, read_only: bool = False) -> Database:
        """Return a database, which connects on first use; for SQLite, a new object each time.

        With ``read_only`` an SQLite file is left as it is.

        Raises:
            EventStoreError: As ``Database`` raises it.
        """
        from opencqrs_py.adapters.sql import Database  # noqa: PLC0415 loads SQLAlchemy

        found = self._shared.get((url, schema))
        if found is not None:
            return found
        database = Database(url, schema, **self._bound, read_only=read_only)
        self._opened.append(database)
        if database.guard.outlives_connections:
            self._shared[url, schema] = database
        return database

    def on_server(self, url: str, schema: str | None) -> Database | None:
        """Return the database on a server that ``open`` has returned, ``None`` if it was never opened."""
        found = self._shared.get((url, schema))
        return found if found is not None and found.dialect.remote else None

    def add(self, database: Database) -> None:
        """Close another one together with these."""
        self._opened.append(database)

    def add_source(self, source: EventSource) -> EventSource:
        """Close an event source together with these if it can be closed; return it."""
        if isinstance(source, ClosableSource):
            self._sources.append(source)
        return source

    def bound_connections(self, handling_threads: int | None) -> None:
        """Bound the connections of a process that coordinates by its threads that handle events; ``None``: all may."""
        self._coordinated = handling_threads
        for database in self._shared.values():
            database.bound(**self._bound)

    def disconnect(self, *, sources: bool) -> None:
        """Close the connections to all databases; with ``sources``, close event sources. The next use opens them again.

        Statements in progress complete, reads of some event sources do not.
        """
        for database in self._opened:
            database.disconnect()
        for source in self._sources if sources else ():
            try:
                source.close()
            except Exception as error:  # of another package: it must not keep the rest from being closed
                name = type(unchecked(source)).__name__
                _log.error("the event store %s could not be closed: %s", name, one_line(error))

    def disconnect_after(self, threads: Sequence[Thread]) -> None:
        """Close, once some threads have ended, what they still use or have opened again meanwhile."""

        def wait_and_disconnect() -> None:
            for each in threads:
                each.join()
            self.disconnect(sources=True)

        with suppress(RuntimeError):  # Python is about to end, and starts no more threads
            Thread(target=wait_and_disconnect, name="opencqrs-disconnect", daemon=True).start()

    def close(self) -> None:
        """Close the connections to all databases, also to those in memory, which end."""
        for database in self._opened:
            database.close()

    @property
    def _bound(self) -> dict[str, int]:
        if self._pool_size is not None:
            return {"connections": self._pool_size}
        return {} if self._coordinated is None else {"connections": _OF_COORDINATION + self._coordinated}

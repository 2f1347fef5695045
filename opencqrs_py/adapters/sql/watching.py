"""Watching the table of events for new ones, on a connection of its own."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql.databases import Database
from opencqrs_py.adapters.sql.postgresql import statements_in
from opencqrs_py.processing.ports import Watch

__all__ = ["polling", "watching"]

_LOOK_SECONDS = 0.5  # a look at the head now and then, whatever the database tells
_SHORTEST_PAUSE = 0.001  # seconds
_LONGEST_PAUSE = 0.02  # seconds
_PAUSE_SHARE = 0.02  # of the time since something happened


Look = Callable[[Connection], int]


@contextmanager
def watching(database: Database, look: Look) -> Iterator[Watch]:
    """Open a watch on the events of ``database``; ``look`` returns the head."""
    with database.reading() as connection:
        if database.kind == "sqlite":
            yield _ChangeCounter(connection, look, database.check_file)
            return
        connection.detach()  # it hears things that the pool's next user would not expect
        try:
            connection.exec_driver_sql(f"LISTEN {statements_in(database.schema).channel}")
        except DBAPIError as error:
            if database.is_outage(error):
                raise
            yield _ChangeCounter(connection, look, database.check_file)  # a replica lets nobody listen
        else:
            number = statements_in(database.schema).table_number
            yield _Listener(connection, look, str(connection.exec_driver_sql(f"SELECT {number}").scalar_one()))


@contextmanager
def polling(database: Database, look: Look) -> Iterator[Watch]:
    """Open a watch that asks again and again; ``look`` returns the head."""
    with database.reading() as connection:
        yield _ChangeCounter(connection, look, database.check_file)


class _Listener:
    """Is told by PostgreSQL: our appends tell the newest position, the table's trigger that somebody adds something.

    The head is looked at after it began to listen, so nothing is missed in between.
    """

    def __init__(self, connection: Connection, look: Look, table: str) -> None:
        self._connection = connection
        self._head_of = look
        driver: Any = connection.connection.dbapi_connection
        self._driver = driver
        self._table = table
        self._poll = select.poll()
        self._poll.register(self._driver.fileno(), select.POLLIN)
        self._head = 0
        self._must_look = True
        self._looked = 0.0
        self._driver.add_notify_handler(lambda notice: self._hear(notice.payload))  # what comes in with other answers

    def wait(self, after: int, seconds: float) -> int:
        """Return the head as soon as it is beyond ``after``, or, unchanged, when the time is over."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if self._head <= after and (self._must_look or now - self._looked >= _LOOK_SECONDS):
                self._must_look, self._looked = False, now
                self._head = self._head_of(self._connection)
            if self._head > after or now >= until:
                return self._head
            if not self._must_look:
                self._listen(min(until, self._looked + _LOOK_SECONDS) - now)

    def _listen(self, seconds: float) -> None:
        """Wait until something is heard, the connection is cut, or the time is over."""
        if not self._poll.poll(max(1.0, seconds * 1_000)):
            return
        try:
            self._driver.pgconn.consume_input()
            while (notice := self._driver.pgconn.notifies()) is not None:
                self._hear(notice.extra.decode())
        except self._connection.dialect.loaded_dbapi.Error:
            self._must_look = True  # which meets the error as well, and explains it

    def _hear(self, told: str) -> None:
        position, _, table = told.partition(" ")
        if table == self._table:
            self._head = max(self._head, int(position))
        elif not table:
            self._must_look = True


class _ChangeCounter:
    """Asks again and again: SQLite, whether another connection has changed the file; others, for the head.

    The longer nothing has happened, the longer the pauses are: a change is noticed after at most a fiftieth of the time
    since the one before, and idling costs next to nothing. Without a file there is no such counter; then the head is
    looked at each time.
    """

    def __init__(self, connection: Connection, look: Look, check_file: Callable[[Connection], None]) -> None:
        self._connection = connection
        self._head_of = look
        self._check_file = check_file
        self._driver: Any = connection.connection.dbapi_connection
        self._counts = connection.dialect.name == "sqlite" and _is_file(connection)
        self._changed = time.monotonic()
        self._looked = 0.0
        self._seen: int | None = None
        self._head = 0

    def wait(self, after: int, seconds: float) -> int:
        """Return the head as soon as it is beyond ``after``, or, unchanged, when the time is over."""
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            self._look(now)
            if self._head > after or now >= until:
                return self._head
            quiet = (now - self._changed) * _PAUSE_SHARE
            time.sleep(min(max(quiet, _SHORTEST_PAUSE), _LONGEST_PAUSE, until - now))

    def _look(self, now: float) -> None:
        """Look at the head if something has changed. The counter is read first: what comes next changes it again."""
        if self._counts and now - self._looked < _LOOK_SECONDS:
            counted = self._driver.execute("PRAGMA data_version").fetchone()[0]
            if counted == self._seen:
                return
            self._seen = counted
            self._changed = now
        self._looked = now
        head = self._head_of(self._connection)
        self._check_file(self._connection)
        if head != self._head:
            self._changed, self._head = now, head


def _is_file(connection: Connection) -> bool:
    name = connection.exec_driver_sql("PRAGMA database_list").first()
    return name is not None and bool(name[2]) and Path(name[2]).exists()

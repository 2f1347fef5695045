"""Watching the stored progress of a group."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql.tables import PROGRESS
from opencqrs_py.adapters.sql.watching import Counter, Listener, Poll
from opencqrs_py.model.partition import Partition, are_all, hash_of
from opencqrs_py.processing.ports import Watch

if TYPE_CHECKING:
    from opencqrs_py.adapters.sql.database import Database

_LONGEST_PAUSE = 0.1  # seconds between two polls
_SHORTEST_LOOK = 0.002  # seconds between the first polls while listening for notifications
_MOST_LOCKS = 64  # of one watch: the server has room for some thousands in all
_AGAIN_SECONDS = 30.0  # after which processes are notified again that a group is awaited

CHANNEL = "opencqrs_progress"
"""The channel on which PostgreSQL notifies of stored progress for which a caller waits."""

AWAITED = "opencqrs_awaited"
"""The channel on which processes are notified of groups for which callers wait."""

_LONGEST_PAYLOAD = 7_000  # bytes; PostgreSQL takes 8,000


def reached_in(database: Database, group: str) -> int:
    """Return how many positions every partition of a group has stored, 0 if some are missing."""
    return _reached(database.fetch(_slowest(database), (group,))[0][0])


@contextmanager
def polling_progress(database: Database, group: str, counter: Counter) -> Iterator[Watch]:
    """Open a watch that polls; ``counter`` as for ``polling``."""
    with database.waiting() as connection:
        yield _poll(database, connection, group, counter(connection))


def _poll(database: Database, connection: Connection, group: str, counter: Callable[[], int] | None = None) -> Poll:
    statement = _slowest(database)

    def look(on: Connection) -> int:
        return _reached(on.exec_driver_sql(statement, (group,)).scalar())

    return Poll(database, connection, look, counter, _LONGEST_PAUSE)


@contextmanager
def listening_for_progress(database: Database, group: str) -> Iterator[Watch]:
    """Open a watch that PostgreSQL notifies.

    A move of a partition's progress tries to take its advisory lock, which is free if no caller waits. A watch holds it
    shared, and so the statement that moves the progress sends a notification with its commit: no table is read or
    written, and nothing is left over if a waiting process is killed.
    """
    with database.waiting() as connection:
        if not _listens(database, connection):
            yield _poll(database, connection, group)
            return
        with closing(_ProgressListener(database, connection, group)) as listener:
            yield listener


def lock_of_partition(schema: str | None) -> str:
    """Return an expression for the advisory lock of a partition, from columns of its progress.

    Advisory locks are the whole database's, and each of its schemas may hold progress.
    """
    number = 0 if schema is None else hash_of(schema)
    return f"hashtextextended(group_name, {number} + (modulus << 31) + residue)"


def _listens(database: Database, connection: Connection) -> bool:
    """Begin to listen; return whether that is possible: a replica refuses it, and other drivers cannot listen."""
    if connection.dialect.driver != "psycopg":
        return False
    try:
        connection.exec_driver_sql(f"LISTEN {CHANNEL}")
    except DBAPIError as error:
        if database.is_outage(error):
            raise
        return False
    return True


class _ProgressListener(Listener):
    """Gets notifications of the stored progress of a group's partitions.

    A commit in progress while the watch begins holds its partition's lock, and does not notify. So the first polls
    follow each other quickly, until all locks are held.

    Statements are sent on the driver's connection: what they take comes on top of what the group takes.
    """

    def __init__(self, database: Database, connection: Connection, group: str) -> None:
        super().__init__(connection, self._look_at_partitions, "")
        self._group = group
        self._positions: dict[int, int] = {}
        self._are_all = False
        self._locked: list[int] = []
        self._told = -_AGAIN_SECONDS
        self.look_seconds = _SHORTEST_LOOK
        lock = lock_of_partition(database.schema)
        of_group = f"FROM {database.prefix}{PROGRESS.name} WHERE group_name = %s"
        unlocked = f"{of_group} AND NOT {lock} = ANY(%s) LIMIT {_MOST_LOCKS}"
        self._to_lock = f"SELECT {lock}, pg_try_advisory_lock_shared({lock}) {unlocked}"
        self._to_look = f"SELECT {lock}, position, modulus, residue {of_group}"

    def close(self) -> None:
        """Stop listening, and release the locks; the caller's connection may serve others afterwards."""
        super().close()
        self._driver.execute("SELECT pg_advisory_unlock_all(); UNLISTEN *").close()

    def _look_at_partitions(self, _connection: Connection) -> int:
        self.look_seconds = min(2 * self.look_seconds, _LONGEST_PAUSE)
        self._tell_processes()
        if not self._positions or len(self._locked) < min(len(self._positions), _MOST_LOCKS):
            rows = self._driver.execute(self._to_lock, (self._group, self._locked))
            self._locked += [lock for lock, is_held in rows if is_held]
        rows = self._driver.execute(self._to_look, (self._group,)).fetchall()
        self._positions = {lock: position for lock, position, _, _ in rows}
        self._are_all = are_all(Partition(modulus, residue) for _, _, modulus, residue in rows)
        return self._slowest()

    def _tell_processes(self) -> None:
        """Have processes store progress over events of others without delay."""
        now = time.monotonic()
        if now - self._told >= _AGAIN_SECONDS and len(self._group.encode()) <= _LONGEST_PAYLOAD:
            self._told = now
            self._driver.execute("SELECT pg_notify(%s, %s)", (AWAITED, self._group)).close()

    def _hear(self, payload: str) -> None:
        lock, _, position = payload.partition(" ")
        if int(lock) in self._positions:
            self._positions[int(lock)] = max(self._positions[int(lock)], int(position))
            self._head = max(self._head, self._slowest())

    def _slowest(self) -> int:
        return _reached(min(self._positions.values()) if self._are_all else None)


def _slowest(database: Database) -> str:
    """Return a statement for the slowest position of a group, null unless its partitions are complete."""
    slowest = "CASE WHEN sum(1e0 / modulus) > 1 - 0.5e0 / max(modulus) THEN min(position) END"
    return f"SELECT {slowest} FROM {database.prefix}{PROGRESS.name} WHERE group_name = {database.dialect.mark}"  # noqa: S608 our own names


def _reached(position: Any) -> int:
    return 0 if position is None else int(position) + 1

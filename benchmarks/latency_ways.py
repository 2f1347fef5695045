"""The ways to append and to follow that ``latency.py`` compares, and the process that follows, which it starts.

Not a benchmark itself. A follower prints ``ready``, handles events until all of them are committed, and prints a JSON
list of the milliseconds that each took.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

__all__ = ["WARM_UP", "WAYS", "Append", "Way"]

WARM_UP = 300  # events that are appended first and not measured

Append = Callable[[int, str, int], None]
"""Takes number, account, and nanoseconds on the monotonic clock, or 0 for an event that is not measured."""

CREATE = (
    "CREATE TABLE IF NOT EXISTS totals (account TEXT PRIMARY KEY, events BIGINT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS positions (name TEXT PRIMARY KEY, position BIGINT NOT NULL)",
)
CREATE_LOG = "CREATE TABLE IF NOT EXISTS log (position {} PRIMARY KEY, type TEXT NOT NULL, payload TEXT NOT NULL)"
UPSERT = "INSERT INTO totals VALUES ({}, 1) ON CONFLICT (account) DO UPDATE SET events = totals.events + 1"
MOVE = "UPDATE positions SET position = {} WHERE name = 'totals'"
READ = "SELECT position, payload FROM log WHERE position > {} ORDER BY position LIMIT 1000"
INSERT = "INSERT INTO log (type, payload) VALUES ('paid', {})"


class Latencies:
    """The latencies of events in milliseconds, collected until all events are committed."""

    def __init__(self, events: int) -> None:
        self.complete = threading.Event()
        self._events = events
        self._handled_at: list[int] = []
        self._latencies: list[float] = []

    def handled(self, at: int) -> None:
        """Record the append time of an event that is handled but not committed yet; 0 if it is not measured."""
        if at:
            self._handled_at.append(at)

    def committed(self) -> None:
        """Record that the events handled so far are committed."""
        now = time.monotonic_ns()
        self._latencies += [(now - at) / 1e6 for at in self._handled_at]
        self._handled_at.clear()
        if len(self._latencies) == self._events:
            self.complete.set()

    def answer(self) -> None:
        """Print the latencies."""
        print(json.dumps(self._latencies))


class Way(NamedTuple):
    """One way: the kinds of database that it supports, how it appends and follows, and the package that it needs."""

    kinds: tuple[str, ...]
    appending: Callable[[str], AbstractContextManager[Append]]
    follow: Callable[[str, Latencies], None]
    package: str = "opencqrs_py"

    @property
    def installed(self) -> bool:
        """Whether the package can be imported."""
        return find_spec(self.package) is not None


def ready() -> None:
    """Signal the other process to begin appending."""
    print("ready", flush=True)


# By hand


def _payload(account: str, at: int) -> str:
    return json.dumps({"account": account, "at": at})


@contextmanager
def append_by_hand(url: str) -> Iterator[Append]:
    """Insert on the bare driver."""
    if url.startswith("sqlite"):
        with closing(_sqlite(url)) as connection:
            yield lambda _, account, at: _append_sqlite(connection, _payload(account, at))
        return
    import psycopg  # noqa: PLC0415 not needed for SQLite

    with psycopg.connect(url) as server:

        def append(_: int, account: str, at: int) -> None:
            server.execute(INSERT.format("%s"), (_payload(account, at),))
            server.execute("NOTIFY log")
            server.commit()

        server.execute(CREATE_LOG.format("BIGSERIAL"))
        server.commit()
        yield append


def _append_sqlite(connection: sqlite3.Connection, payload: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(INSERT.format("?"), (payload,))
    connection.execute("COMMIT")


def _sqlite(url: str) -> sqlite3.Connection:
    connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=60)
    connection.execute("PRAGMA journal_mode=WAL")
    for statement in (*CREATE, CREATE_LOG.format("INTEGER")):
        connection.execute(statement)
    return connection


def follow_by_hand(url: str, latencies: Latencies) -> None:
    """Loop on the bare driver."""
    if url.startswith("sqlite"):
        with closing(_sqlite(url)) as file:
            _follow_sqlite(file, latencies)
        return
    import psycopg  # noqa: PLC0415 not needed for SQLite

    with psycopg.connect(url, autocommit=True) as listener, psycopg.connect(url) as worker:
        for statement in (*CREATE, CREATE_LOG.format("BIGSERIAL"), "INSERT INTO positions VALUES ('totals', 0)"):
            worker.execute(statement)
        worker.commit()
        listener.execute("LISTEN log")
        ready()
        position = 0
        while not latencies.complete.is_set():
            for _ in listener.notifies(timeout=1, stop_after=1):
                pass
            position = _handle(worker.execute, "%s", position, latencies, worker.commit)


def _follow_sqlite(file: sqlite3.Connection, latencies: Latencies) -> None:
    file.execute("INSERT INTO positions VALUES ('totals', 0)")
    ready()
    position, seen = 0, None
    while not latencies.complete.is_set():
        counted = file.execute("PRAGMA data_version").fetchone()
        if counted == seen:
            time.sleep(0.001)
            continue
        seen = counted
        file.execute("BEGIN IMMEDIATE")
        position = _handle(file.execute, "?", position, latencies, lambda: file.execute("COMMIT"))


def _handle(
    execute: Callable[..., Any], mark: str, position: int, latencies: Latencies, commit: Callable[[], object]
) -> int:
    rows = execute(READ.format(mark), (position,)).fetchall()
    for row in rows:
        data = json.loads(row[1])
        execute(UPSERT.format(mark), (data["account"],))
        latencies.handled(data["at"])
        position = row[0]
    if rows:
        execute(MOVE.format(mark), (position,))
    commit()
    latencies.committed()
    return position


# The other ways; each imports its modules only when it is used, so that the loop by hand does not load them


def _appending_of(module: str) -> Callable[[str], AbstractContextManager[Append]]:
    return lambda url: import_module(module).appending(url)


def _follow_of(module: str) -> Callable[[str, Latencies], None]:
    return lambda url, latencies: import_module(module).follow(url, latencies, ready)


WAYS = {
    "by hand": Way(("sqlite", "postgresql"), append_by_hand, follow_by_hand),
    "eventsourcing": Way(
        ("postgresql",), _appending_of("latency_eventsourcing"), _follow_of("latency_eventsourcing"), "eventsourcing"
    ),
    "opencqrs_py": Way(("sqlite", "postgresql"), _appending_of("latency_opencqrs"), _follow_of("latency_opencqrs")),
}


if __name__ == "__main__":
    way, at, events = sys.argv[1:]
    all_latencies = Latencies(int(events))
    WAYS[way].follow(at, all_latencies)
    all_latencies.answer()

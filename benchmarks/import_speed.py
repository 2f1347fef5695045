"""Measure how fast events are appended, beside a bare ``executemany`` of the same rows, and whether that stays so.

    python benchmarks/import_speed.py [--database sqlite|postgresql|both] [--events 100000] [--rounds 3]

Each round appends as many events again to the same two tables, which have the same columns, the same primary key and
the same unique constraint on source and id; ours has its indexes besides. The bare driver knows nothing of events that
are there already, of turns, or of times. The ways take turns; all figures are events per second.
"""

from __future__ import annotations

import argparse
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from servers import KINDS, kinds, machine, served

from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.model import Event
from opencqrs_py.model.cloudevents import microseconds

COLUMNS = ("id", "source", "subject", "type", "time", "content_type", "payload", "extensions", "time_us")
CREATE = (
    "CREATE TABLE bare (position {key}, id TEXT NOT NULL, source TEXT NOT NULL, subject TEXT NOT NULL, "
    "type TEXT NOT NULL, time TEXT, content_type TEXT NOT NULL, payload TEXT, extensions TEXT, time_us BIGINT, "
    "UNIQUE (source, id))"
)
KEYS = {"sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT", "postgresql": "BIGSERIAL PRIMARY KEY"}
CHUNK = 5_000


def events(first: int, count: int) -> Iterator[Event]:
    """Make up events of a library; their ids do not come in order, as ids mostly do not."""
    for number in range(first, first + count):
        name = f"{number * 2_654_435_761 % 2**32:08x}-{number}"
        book = f"/books/{number % 7_919}"
        payload = f'{{"isbn":"978-{number % 7_919:010}","reader":"reader {number % 613}","days":{number % 28}}}'
        kind = f"library.book-{('lent', 'returned', 'reserved')[number % 3]}.v1"
        time_ = f"2026-01-{1 + number % 28:02}T{number % 24:02}:{number % 60:02}:00Z"
        yield Event(0, name, "urn:library", book, kind, time_, "application/json", payload, None)


class Bare:
    """The bare driver."""

    def __init__(self, url: str, kind: str) -> None:
        self._connection: Any
        if kind == "sqlite":
            self._connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
            self._connection.execute("PRAGMA journal_mode=WAL")
        else:
            import psycopg  # noqa: PLC0415 not needed for SQLite

            self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute(CREATE.format(key=KEYS[kind]))
        mark = "?" if kind == "sqlite" else "%s"
        self._insert = f"INSERT INTO bare ({', '.join(COLUMNS)}) VALUES ({', '.join([mark] * len(COLUMNS))})"

    def append(self, given: Iterator[Event]) -> None:
        """Insert chunk by chunk, in one transaction."""
        rows = ((*event[1:], microseconds(event.time)) for event in given)
        cursor = self._connection.cursor()
        cursor.execute("BEGIN")
        while chunk := [row for _, row in zip(range(CHUNK), rows, strict=False)]:
            cursor.executemany(self._insert, chunk)
        cursor.execute("COMMIT")

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def rate(append: Callable[[Iterator[Event]], object], first: int, count: int) -> float:
    """Return events per second; making the events up counts for both ways."""
    began = time.perf_counter()
    append(events(first, count))
    return count / (time.perf_counter() - began)


def compare(kind: str, count: int, rounds: int) -> None:
    """Print a line a round."""
    print(f"{kind}: events/s in rounds of {count:,}")
    print(f"  {'stored before':>14}{'executemany':>14}{'append':>12}{'share':>8}{'one by one':>12}")
    with served(kind) as fresh, closing(Bare(fresh(), kind)) as bare:
        database = Database(fresh())
        store = SqlEventStore(database)
        store.head()
        for number in range(rounds):
            first = number * (count + 200)
            theirs = rate(bare.append, first, count)
            ours = rate(store.append, first, count)
            began = time.perf_counter()
            for one in events(first + count, 200):
                store.append([one])
            alone = 200 / (time.perf_counter() - began)
            print(f"  {first:>14,}{theirs:>14,.0f}{ours:>12,.0f}{ours / theirs:>8.2f}{alone:>12,.0f}", flush=True)
        database.close()


def main() -> None:
    """Measure what the arguments ask for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--database", choices=[*KINDS, "both"], default="both")
    parser.add_argument("--events", type=int, default=100_000, help="events a round")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(machine())
    for kind in kinds(given.database):
        compare(kind, given.events, given.rounds)


if __name__ == "__main__":
    main()

"""Append events from many programs at once, with delays and rollbacks, and check that no reader misses an event.

    python benchmarks/append_soak.py [--database KIND|both] [--seed 7] [--appends 400] [--writers 6]

Every writer and reader is a process. Some writers do not use this package: they insert with the bare driver. A reader
waits for new events and reads pages of random size. It must see every committed event once, in the order of the
positions, however late the event was committed. Otherwise the exit code is 1, and the errors are printed.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from multiprocessing import get_context
from typing import Any

from servers import KINDS, OTHERS, kinds, machine, served
from sqlalchemy import make_url

from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.model import Event, Selection

INSERT = (
    "INSERT INTO opencqrs_events (id, source, subject, type, content_type) "
    "VALUES ({0}, 'foreign', {0}, 'happened', 'application/json')"
)
LONGEST_DELAY = 0.02  # seconds within a transaction
PATIENCE = 60.0  # seconds that readers have for the remaining events after the last writer has ended


class RolledBackError(Exception):
    """A writer rolls its append back."""


def event(name: str) -> Event:
    """Return an event with this name as its id."""
    return Event(0, name, "soak", f"/soak/{name}", "happened", None, "application/json", "{}", None)


def dawdle(chance: random.Random) -> None:
    """Sleep occasionally, usually briefly and sometimes longer."""
    if chance.random() < 0.3:
        time.sleep(chance.random() ** 4 * LONGEST_DELAY)


def write(url: str, writer: int, appends: int, seed: int) -> None:
    """Append with our store; roll back one append in five."""
    chance = random.Random(f"{seed} {writer}")
    store = SqlEventStore(Database(url))

    def events(append: int) -> Iterator[Event]:
        rolled_back = chance.random() < 0.2
        for number in range(chance.randint(1, 8)):
            dawdle(chance)
            yield event(f"{writer}-{append}-{number}" + ("-rolled-back" if rolled_back else ""))
        if rolled_back:
            raise RolledBackError

    for append in range(appends):
        with suppress(RolledBackError):
            store.append(events(append))
        dawdle(chance)


def write_without_us(url: str, writer: int, appends: int, seed: int) -> None:
    """Insert with the bare driver, with delays before the end of each transaction."""
    chance = random.Random(f"{seed} {writer}")
    SqlEventStore(Database(url)).head()
    with closing(connected(url)) as connection, closing(connection.cursor()) as cursor:
        insert = INSERT.format("?" if url.startswith("sqlite") else "%s")
        for append in range(appends):
            cursor.execute("BEGIN IMMEDIATE" if url.startswith("sqlite") else "BEGIN")
            rolled_back = chance.random() < 0.2
            for number in range(chance.randint(1, 4)):
                name = f"{writer}-{append}-{number}" + ("-rolled-back" if rolled_back else "")
                cursor.execute(insert, (name, f"/soak/{name}"))
                dawdle(chance)
            cursor.execute("ROLLBACK" if rolled_back else "COMMIT")
            dawdle(chance)


def connected(url: str) -> Any:
    """Return a connection of the bare driver that begins no transactions itself."""
    if url.startswith("sqlite"):
        import sqlite3  # noqa: PLC0415 one of three drivers

        return sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None, timeout=60)
    if url.startswith("mariadb"):
        import pymysql  # noqa: PLC0415 one of three drivers

        parts = make_url(url)
        socket = parts.query["unix_socket"]
        return pymysql.connect(unix_socket=socket, user=parts.username, database=parts.database, autocommit=True)
    import psycopg  # noqa: PLC0415 one of three drivers

    return psycopg.connect(url, autocommit=True)


def follow(url: str, reader: int, seed: int, ended: Any, answers: Any) -> None:
    """Read until the writers have ended and everything is read; put the positions and names into the queue."""
    chance = random.Random(f"{seed} reader {reader}")
    store = SqlEventStore(Database(url))
    seen: list[tuple[int, str]] = []
    after = 0
    with store.watched() as watch:
        while True:
            is_last = ended.is_set()  # checked before the read, so that the last read finds all that was committed
            head = watch.wait(after, 0.1)
            while after < head:
                part = store.read(after, chance.choice([1, 3, 100]), Selection("/soak"))
                seen += [(one.position, one.id) for one in part.events]
                after = part.upto
                dawdle(chance)
            if is_last and store.read(after, 1, Selection()).upto <= after:
                break
    answers.put((reader, seen))


def faults(reader: int, seen: list[tuple[int, str]], committed: list[tuple[int, str]]) -> list[str]:
    """Return the differences between the events that a reader saw and those that were committed."""
    found = []
    if missed := set(committed) - set(seen):
        found.append(f"reader {reader} has missed {len(missed)} events, such as {min(missed)}")
    if len(seen) != len(set(seen)):
        found.append(f"reader {reader} has seen {len(seen) - len(set(seen))} events more than once")
    if seen != sorted(seen):
        found.append(f"reader {reader} has seen events out of order")
    if more := set(seen) - set(committed):
        found.append(f"reader {reader} has seen {len(more)} events that do not exist, such as {min(more)}")
    return found


def soak(url: str, seed: int, writers: int, readers: int, appends: int) -> list[str]:
    """Run the soak once and return what is wrong."""
    processes = get_context("spawn")
    ended, answers = processes.Event(), processes.Queue()
    following = [processes.Process(target=follow, args=(url, n, seed, ended, answers)) for n in range(readers)]
    writing = [
        processes.Process(target=write_without_us if n % 3 == 2 else write, args=(url, n, appends, seed))
        for n in range(writers)
    ]
    for process in [*following, *writing]:
        process.start()
    for process in writing:
        process.join()
    ended.set()
    seen = dict(answers.get(timeout=PATIENCE) for _ in following)
    for process in following:
        process.join()
    committed = [(one.position, one.id) for one in everything(url)]
    broken = [f"a process ended with {process.exitcode}" for process in [*following, *writing] if process.exitcode]
    broken += ["an event that was rolled back exists"] * any("rolled-back" in name for _, name in committed)
    print(f"  {len(committed):,} events committed, last position {committed[-1][0]:,}, {readers} readers")
    return broken + [fault for reader in sorted(seen) for fault in faults(reader, seen[reader], committed)]


def everything(url: str) -> list[Event]:
    """Return all events of the log."""
    store, found, after = SqlEventStore(Database(url)), list[Event](), 0
    while (part := store.read(after, 10_000, Selection())).upto > after:
        found += part.events
        after = part.upto
    return found


def main() -> int:
    """Run the soak on the databases that the arguments name, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--database", choices=[*KINDS, *OTHERS, "both"], default="both")
    parser.add_argument("--url", help="an empty database to use instead of one that the soak creates")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--writers", type=int, default=6)
    parser.add_argument("--readers", type=int, default=3)
    parser.add_argument("--appends", type=int, default=400, help="of each writer")
    given = parser.parse_args()
    print(machine())
    broken = []
    for kind in [given.url.split(":")[0]] if given.url else kinds(given.database):
        print(f"{kind}: {given.writers} writers with {given.appends} appends each, seed {given.seed}", flush=True)
        if given.url:
            broken += soak(given.url, given.seed, given.writers, given.readers, given.appends)
            continue
        with served(kind) as fresh:
            broken += soak(fresh(), given.seed, given.writers, given.readers, given.appends)
    print(*(broken or ["every event was seen once, in order"]), sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())

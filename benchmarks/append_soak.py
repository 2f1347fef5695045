"""Let many programs add events at once, with delays and rollbacks, while others follow, and look for a missed event.

    python benchmarks/append_soak.py [--database KIND|both] [--seed 7] [--appends 400] [--writers 6]

Every writer and reader is a process. Some writers do not use this package: they insert with the bare driver. A reader
waits for new events, reads parts of random size, and must have seen every committed event once, in the order of the
positions, however late it was committed. Ends with exit code 1 and what is wrong when it has not.
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
PATIENCE = 60.0  # seconds that readers get for what is left when the last writer has ended


class TakenBackError(Exception):
    """A writer changes its mind."""


def event(name: str) -> Event:
    """Return an event of that name."""
    return Event(0, name, "soak", f"/soak/{name}", "happened", None, "application/json", "{}", None)


def dawdle(chance: random.Random) -> None:
    """Wait now and then, sometimes long."""
    if chance.random() < 0.3:
        time.sleep(chance.random() ** 4 * LONGEST_DELAY)


def write(url: str, writer: int, appends: int, seed: int) -> None:
    """Append with our store; every fifth append is taken back half-way."""
    chance = random.Random(f"{seed} {writer}")
    store = SqlEventStore(Database(url))

    def events(append: int) -> Iterator[Event]:
        taken_back = chance.random() < 0.2
        for number in range(chance.randint(1, 8)):
            dawdle(chance)
            yield event(f"{writer}-{append}-{number}" + ("-taken-back" if taken_back else ""))
        if taken_back:
            raise TakenBackError

    for append in range(appends):
        with suppress(TakenBackError):
            store.append(events(append))
        dawdle(chance)


def write_without_us(url: str, writer: int, appends: int, seed: int) -> None:
    """Insert with the bare driver, in transactions that dawdle before their end."""
    chance = random.Random(f"{seed} {writer}")
    SqlEventStore(Database(url)).head()
    with closing(connected(url)) as connection, closing(connection.cursor()) as cursor:
        insert = INSERT.format("?" if url.startswith("sqlite") else "%s")
        for append in range(appends):
            cursor.execute("BEGIN IMMEDIATE" if url.startswith("sqlite") else "BEGIN")
            taken_back = chance.random() < 0.2
            for number in range(chance.randint(1, 4)):
                name = f"{writer}-{append}-{number}" + ("-taken-back" if taken_back else "")
                cursor.execute(insert, (name, f"/soak/{name}"))
                dawdle(chance)
            cursor.execute("ROLLBACK" if taken_back else "COMMIT")
            dawdle(chance)


def connected(url: str) -> Any:
    """Return a connection of the bare driver that leaves transactions to us."""
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


def follow(url: str, reader: int, seed: int, over: Any, answers: Any) -> None:
    """Follow until the writers are done and everything is read; answer with positions and names."""
    chance = random.Random(f"{seed} reader {reader}")
    store = SqlEventStore(Database(url))
    seen: list[tuple[int, str]] = []
    after = 0
    with store.watched() as watch:
        while True:
            ended = over.is_set()  # read on once more after that: what was committed before is there now
            head = watch.wait(after, 0.1)
            while after < head:
                part = store.read(after, chance.choice([1, 3, 100]), Selection("/soak"))
                seen += [(one.position, one.id) for one in part.events]
                after = part.upto
                dawdle(chance)
            if ended and store.read(after, 1, Selection()).upto <= after:
                break
    answers.put((reader, seen))


def faults(reader: int, seen: list[tuple[int, str]], committed: list[tuple[int, str]]) -> list[str]:
    """Say what is wrong with what a reader has seen."""
    found = []
    if missed := set(committed) - set(seen):
        found.append(f"reader {reader} has missed {len(missed)} events, such as {min(missed)}")
    if len(seen) != len(set(seen)):
        found.append(f"reader {reader} has seen {len(seen) - len(set(seen))} events more than once")
    if seen != sorted(seen):
        found.append(f"reader {reader} has seen events out of order")
    if more := set(seen) - set(committed):
        found.append(f"reader {reader} has seen {len(more)} events that are not there, such as {min(more)}")
    return found


def soak(url: str, seed: int, writers: int, readers: int, appends: int) -> list[str]:
    """Run it once and return what is wrong."""
    processes = get_context("spawn")
    over, answers = processes.Event(), processes.Queue()
    following = [processes.Process(target=follow, args=(url, n, seed, over, answers)) for n in range(readers)]
    writing = [
        processes.Process(target=write_without_us if n % 3 == 2 else write, args=(url, n, appends, seed))
        for n in range(writers)
    ]
    for process in [*following, *writing]:
        process.start()
    for process in writing:
        process.join()
    over.set()
    seen = dict(answers.get(timeout=PATIENCE) for _ in following)
    for process in following:
        process.join()
    committed = [(one.position, one.id) for one in everything(url)]
    broken = [f"a process ended with {process.exitcode}" for process in [*following, *writing] if process.exitcode]
    broken += ["an event that was taken back is there"] * any("taken-back" in name for _, name in committed)
    print(f"  {len(committed):,} events committed, last position {committed[-1][0]:,}, {readers} readers")
    return broken + [fault for reader in sorted(seen) for fault in faults(reader, seen[reader], committed)]


def everything(url: str) -> list[Event]:
    """Return what is in the log in the end."""
    store, found, after = SqlEventStore(Database(url)), list[Event](), 0
    while (part := store.read(after, 10_000, Selection())).upto > after:
        found += part.events
        after = part.upto
    return found


def main() -> int:
    """Run it on what the arguments name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--database", choices=[*KINDS, *OTHERS, "both"], default="both")
    parser.add_argument("--url", help="an empty database, instead of one of our own")
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

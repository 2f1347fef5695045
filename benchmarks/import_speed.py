"""Measure how fast events are appended, compared with a bare ``executemany`` of the same rows, as the log grows.

    python benchmarks/import_speed.py [--database sqlite|postgresql|both|mariadb] [--rounds 10] [--log FILE] [--check]

In each round, three ways append the same events, each to its own log: the bare driver to a table with the same columns,
primary key and unique constraint on source and id; the bare driver to a table that also has our indexes on subject and
type; and this package. The bare driver neither checks for stored events nor takes the append lock.

The cost is the time per event: elapsed time on servers, and processor time on SQLite, where this process does all the
work, because other programs disturb it less. On Linux the benchmark also counts the blocks of 4 KiB that SQLite reads
and writes per event, which other programs do not disturb at all.

The growth compares two consecutive appends: one to the log of the last round, and one to a new log of one round. It is
the median of several such pairs, because the speed of a machine varies more from minute to minute than the growth
itself. The growth of the bare driver with the same indexes is the database's share. There is an aim only for ids in
order: with ids in random order, the benchmark would measure the server's memory, which three logs share.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from import_log import Log, made_up, made_up_in_order, of_file
from servers import KINDS, OTHERS, FreshUrl, kinds, machine, served

from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.model import Event
from opencqrs_py.model.times import microseconds

COLUMNS = ("id", "source", "subject", "type", "time", "content_type", "payload", "extensions", "time_us")
CREATE = (
    "CREATE TABLE bare (position {key}, id {text} NOT NULL, source {text} NOT NULL, subject TEXT NOT NULL, "
    "type TEXT NOT NULL, time TEXT, content_type TEXT NOT NULL, payload TEXT, extensions TEXT, time_us BIGINT, "
    "UNIQUE (source, id))"
)
KEYS = {
    "mariadb": "BIGINT AUTO_INCREMENT PRIMARY KEY",
    "postgresql": "BIGSERIAL PRIMARY KEY",
    "sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT",
}
INDEXES = {
    "mariadb": "CREATE INDEX bare_{0} ON bare ({0}(500), position)",
    "postgresql": "CREATE INDEX bare_{0} ON bare (left({0}, 500), position)",
    "sqlite": "CREATE INDEX bare_{0} ON bare ({0})",
}
INDEXED = ("subject", "type")
CHUNK = 5_000
ALONE = 200  # events per round that are appended one by one
LEAST_SHARE = 0.5
MOST_GROWTH = 1.2  # relative to the bare driver with the same indexes, for ten times the log and ids in order
HEADINGS = ("bare executemany", "… with our indexes", "append")


class Way(Protocol):
    """A way to append to a log; each way has its own log."""

    def append(self, given: Iterator[Event]) -> object:
        """Append the events in one transaction."""

    def close(self) -> None:
        """Close the connections."""


class Bare:
    """The bare driver."""

    def __init__(self, url: str, kind: str, indexed: tuple[str, ...] = ()) -> None:
        self._connection = _connected(url, kind)
        cursor = self._connection.cursor()
        text = "VARCHAR(200)" if kind == "mariadb" else "TEXT"  # whose keys need texts of limited length
        cursor.execute(CREATE.format(key=KEYS[kind], text=text))
        for name in indexed:
            cursor.execute(INDEXES[kind].format(name))
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


class Ours:
    """This package."""

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        self._store = SqlEventStore(self._database)
        self._store.head()
        self.append = self._store.append
        self.close = self._database.close


def ways(kind: str, fresh: FreshUrl) -> tuple[Way, Way, Way]:
    """Open each way on a new log; the order is that of the headings."""
    return Bare(fresh(), kind), Bare(fresh(), kind, INDEXED), Ours(fresh())


def _connected(url: str, kind: str) -> Any:
    if kind == "sqlite":
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        return connection
    if kind == "mariadb":
        import pymysql  # noqa: PLC0415 not needed for the others

        server, _, socket = url.partition("?unix_socket=")
        return pymysql.connect(unix_socket=socket, user="root", database=server.rpartition("/")[2], autocommit=True)
    import psycopg  # noqa: PLC0415 not needed for the others

    return psycopg.connect(url, autocommit=True)


@dataclass(frozen=True)
class Cost:
    """The cost of an event: microseconds of elapsed and of processor time, and blocks of 4 KiB if known."""

    clock: float
    processor: float
    blocks: float | None

    @classmethod
    def of(cls, append: Callable[[Iterator[Event]], object], wanted: Iterable[Event]) -> Cost:
        """Append the events, and return the cost; making them up is not measured."""
        given = tuple(wanted)
        blocks, clock, processor = _blocks(), time.perf_counter(), time.process_time()
        append(iter(given))
        clock, processor = time.perf_counter() - clock, time.process_time() - processor
        after = _blocks()
        moved = None if blocks is None or after is None else (after - blocks) / len(given)
        return cls(clock * 1e6 / len(given), processor * 1e6 / len(given), moved)

    def __str__(self) -> str:
        known = self.blocks is not None and self.blocks >= 0.01  # on servers another process reads and writes them
        return f"{self.clock:>8.1f}{self.processor:>8.1f}{f'{self.blocks:.2f}' if known else '':>8}"

    def counted(self, kind: str) -> float:
        """Return the figure from which the growth is computed."""
        return self.processor if kind == "sqlite" else self.clock


def _blocks() -> float | None:
    """Return how many blocks of 4 KiB this process has read and written; ``None`` if unknown."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar"))) / 4_096


def compare(kind: str, fresh: FreshUrl, log: Log, given: argparse.Namespace) -> list[str]:
    """Print a line per round, and the growth; return the missed aims."""
    print(f"\n{kind}: rounds of {given.events:,} events; us per event")
    print(f"  {'':>14}" + "".join(f"{name:>24}" for name in HEADINGS) + f"{'append':>11}{'':>7}{'one by one':>12}")
    columns = "".join(f"{name:>8}" for name in ("clock", "cpu", "blocks") * len(HEADINGS))
    print(f"  {'stored before':>14}{columns}{'events/s':>11}{'share':>7}{'clock':>12}")
    with ExitStack() as opened:
        long = [opened.enter_context(closing(way)) for way in ways(kind, fresh)]
        rounds = [_round(long, number, log, given) for number in range(given.rounds)]
        missed = _share(kind, rounds)
        if given.pairs:
            missed += _growth(kind, fresh, long, log, given)
    return missed


def _round(long: list[Way], number: int, log: Log, given: argparse.Namespace) -> list[Cost]:
    """Append the same events in each way, and print the costs."""
    first = number * (given.events + ALONE)
    costs = [Cost.of(way.append, log(first, given.events)) for way in long]
    last = log(first + given.events, ALONE)
    alone = Cost.of(lambda few: [long[-1].append(iter([one])) for one in few], last)
    theirs, ours = costs[0], costs[-1]
    share = f"{1e6 / ours.clock:>11,.0f}{theirs.clock / ours.clock:>7.2f}"
    print(f"  {first:>14,}{''.join(map(str, costs))}{share}{alone.clock:>12,.0f}", flush=True)
    return costs


def _share(kind: str, rounds: list[list[Cost]]) -> list[str]:
    share = sum(costs[0].clock for costs in rounds) / sum(costs[-1].clock for costs in rounds)
    print(f"  share of the bare driver's speed, all rounds: {share:.2f} (aim >= {LEAST_SHARE:g})")
    return [f"{kind}: share {share:.2f}, aim >= {LEAST_SHARE:g}"] if share < LEAST_SHARE else []


def _growth(kind: str, fresh: FreshUrl, long: list[Way], log: Log, given: argparse.Namespace) -> list[str]:
    """Append to the long log and a short one alternately, and print the ratios of the costs of such pairs."""
    stored = given.rounds * (given.events + ALONE)
    grown: list[list[float]] = [[] for _ in long]
    for number in range(given.pairs):
        with ExitStack() as opened:
            short = [opened.enter_context(closing(way)) for way in ways(kind, fresh)]
            for index, pair in enumerate(zip(long, short, strict=True)):
                pair[1].append(log(0, given.events))
                first = stored + number * given.events
                costs = {
                    one: Cost.of(pair[one].append, log(first, given.events)).counted(kind)
                    for one in ((0, 1), (1, 0))[number % 2]
                }
                grown[index].append(costs[0] / costs[1])
    print(f"  cost of an event after {stored:,}, divided by that after {given.events:,}; {given.pairs} pairs:")
    for name, ratios in zip(HEADINGS, grown, strict=True):
        print(f"  {name:>24}: median {median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}")
    beyond = median(ratio / theirs for ratio, theirs in zip(grown[-1], grown[-2], strict=True))
    in_order = given.in_order or given.log is not None
    print(f"  {'append / with indexes':>24}: median {beyond:.2f}{f' (aim <= {MOST_GROWTH:g})' if in_order else ''}")
    return [f"{kind}: growth {beyond:.2f}, aim <= {MOST_GROWTH:g}"] if in_order and beyond > MOST_GROWTH else []


def main() -> int:
    """Measure what the arguments select, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--database", choices=[*KINDS, "both", *OTHERS], default="both")
    parser.add_argument("--events", type=int, default=100_000, help="events per round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=5, help="pairs of appends to a long and a short log; 0 for none")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--in-order", action="store_true", help="ids in ascending order, like UUIDs of version 7")
    source.add_argument("--log", type=Path, metavar="FILE", help="events of a file, each time with another source")
    parser.add_argument("--check", action="store_true", help="exit with 1 if an aim is missed")
    given = parser.parse_args()
    log = of_file(given.log) if given.log else made_up_in_order if given.in_order else made_up
    print(machine())
    missed: list[str] = []
    for kind in kinds(given.database):
        with served(kind) as fresh:
            missed += compare(kind, fresh, log, given)
    print("\nall aims reached" if not missed else "\nmissed:\n  " + "\n  ".join(missed))
    return 1 if given.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())

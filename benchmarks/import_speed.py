"""Measure how fast events are appended, beside a bare ``executemany`` of the same rows, and whether that stays so.

    python benchmarks/import_speed.py [--database sqlite|postgresql|both|mariadb] [--rounds 11] [--check]

Each round appends as many events again to the same two tables, which have the same columns, the same primary key and
the same unique constraint on source and id; ours has its indexes besides. The bare driver knows nothing of events that
are there already, of turns, or of times. The ways take turns. A cost is the time that an event takes, on servers by the
clock, on SQLite, where all the work is ours, by the processor: other programs disturb that less. On Linux SQLite's
pages show what other programs do not disturb at all: how many blocks of 4 KiB are read and written for an event.

The growth is what the last rounds cost by what the second and third cost; the first one finds an empty table. With 11
rounds the log is about ten times as long then.
"""

from __future__ import annotations

import argparse
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servers import KINDS, OTHERS, FreshUrl, kinds, machine, served

from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.model import Event
from opencqrs_py.model.cloudevents import microseconds

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
CHUNK = 5_000
ALONE = 200  # events a round that are appended one by one
LEAST_SHARE = 0.5
MOST_GROWTH = 1.5  # while the log grows to about the tenfold

Append = Callable[[Iterator[Event]], object]


def events(first: int, count: int, *, in_order: bool = False) -> Iterator[Event]:
    """Make up events of a library; their ids do not come in order, as ids mostly do not, unless they are wanted to."""
    for number in range(first, first + count):
        name = f"{number:016x}" if in_order else f"{number * 2_654_435_761 % 2**32:08x}-{number}"
        book = f"/books/{number % 7_919}"
        payload = f'{{"isbn":"978-{number % 7_919:010}","reader":"reader {number % 613}","days":{number % 28}}}'
        kind = f"library.book-{('lent', 'returned', 'reserved')[number % 3]}.v1"
        time_ = f"2026-01-{1 + number % 28:02}T{number % 24:02}:{number % 60:02}:00Z"
        yield Event(0, name, "urn:library", book, kind, time_, "application/json", payload, None)


class Bare:
    """The bare driver."""

    def __init__(self, url: str, kind: str) -> None:
        self._connection = _connected(url, kind)
        cursor = self._connection.cursor()
        text = "VARCHAR(200)" if kind == "mariadb" else "TEXT"  # whose keys hold texts of a limited length only
        cursor.execute(CREATE.format(key=KEYS[kind], text=text))
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
    """What an event took: microseconds by the clock and of the processor, and blocks of 4 KiB, if they are known."""

    clock: float
    processor: float
    blocks: float | None

    @classmethod
    def of(cls, append: Append, given: Callable[[], Iterator[Event]], count: int) -> Cost:
        """Append, and say what it took; making the events up counts for all ways."""
        blocks, clock, processor = _blocks(), time.perf_counter(), time.process_time()
        append(given())
        clock, processor = time.perf_counter() - clock, time.process_time() - processor
        after = _blocks()
        moved = None if blocks is None or after is None else (after - blocks) / count
        return cls(clock * 1e6 / count, processor * 1e6 / count, moved)

    def __str__(self) -> str:
        known = self.blocks is not None and self.blocks >= 0.01  # on servers it is not this process that moves them
        return f"{self.clock:>8.1f}{self.processor:>8.1f}{f'{self.blocks:.2f}' if known else '':>8}"

    def counted(self, kind: str) -> float:
        """Return the figure that the growth is taken from."""
        return self.processor if kind == "sqlite" else self.clock


def _blocks() -> float | None:
    """Return how much this process has read and written so far."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return None
    return sum(int(line.split()[1]) for line in lines if line.startswith(("rchar", "wchar"))) / 4_096


def growth(costs: list[Cost], kind: str) -> float:
    """Return what the last two rounds cost by what the second and third did; of each two the better one counts."""
    early, late = costs[1:3], costs[-2:]
    return min(one.counted(kind) for one in late) / min(one.counted(kind) for one in early)


def compare(kind: str, fresh: FreshUrl, given: argparse.Namespace) -> list[str]:
    """Print a line a round, and the growth; return which aims were missed."""
    count, rounds = given.events, given.rounds
    theirs: list[Cost] = []
    ours: list[Cost] = []
    print(f"\n{kind}: rounds of {count:,} events, ids {'in order' if given.in_order else 'in no order'}; us an event")
    print(f"  {'':>14}{'bare executemany':>24}{'append':>24}{'clock':>18}{'one by one':>12}")
    headings = "".join(f"{name:>8}" for name in ("clock", "cpu", "blocks") * 2)
    print(f"  {'stored before':>14}{headings}{'events/s':>11}{'share':>7}{'us':>12}")
    with closing(Bare(fresh(), kind)) as bare, closing(Database(fresh())) as database:
        store = SqlEventStore(database)
        store.head()
        for number in range(rounds):
            first = number * (count + ALONE)
            theirs.append(Cost.of(bare.append, lambda: events(first, count, in_order=given.in_order), count))  # noqa: B023 called at once
            ours.append(Cost.of(store.append, lambda: events(first, count, in_order=given.in_order), count))  # noqa: B023 called at once
            one_by_one = Cost.of(
                lambda few: [store.append([one]) for one in few],
                lambda: events(first + count, ALONE, in_order=given.in_order),  # noqa: B023 called at once
                ALONE,
            )
            print(_line(first, theirs[-1], ours[-1], one_by_one), flush=True)
    return _verdict(kind, theirs, ours)


def _line(stored: int, theirs: Cost, ours: Cost, alone: Cost) -> str:
    return (
        f"  {stored:>14,}{theirs}{ours}{1e6 / ours.clock:>11,.0f}{theirs.clock / ours.clock:>7.2f}{alone.clock:>12,.0f}"
    )


def _verdict(kind: str, theirs: list[Cost], ours: list[Cost]) -> list[str]:
    """Print the ratios that are promised, and return those that were missed."""
    share = sum(one.clock for one in theirs) / sum(one.clock for one in ours)
    missed = [f"{kind}: share {share:.2f}, aim >= {LEAST_SHARE}"] if share < LEAST_SHARE else []
    print(f"  share of the bare driver's speed, all rounds {share:>18.2f}   aim >= {LEAST_SHARE:g}")
    if len(ours) > 3:  # else the first rounds are the last ones
        grown = growth(ours, kind)
        print(f"  growth of the cost, last rounds by the second {grown:>17.2f}   aim <= {MOST_GROWTH:g}")
        print(f"  … of the bare driver's {growth(theirs, kind):>40.2f}")
        missed += [f"{kind}: growth {grown:.2f}, aim <= {MOST_GROWTH}"] if grown > MOST_GROWTH else []
    return missed


def main() -> int:
    """Measure what the arguments ask for, and return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--database", choices=[*KINDS, "both", *OTHERS], default="both")
    parser.add_argument("--events", type=int, default=100_000, help="events a round")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--in-order", action="store_true", help="ids that come in order, as UUIDs of version 7 do")
    parser.add_argument("--check", action="store_true", help="exit with 1 if an aim is missed")
    given = parser.parse_args()
    print(machine())
    missed: list[str] = []
    for kind in kinds(given.database):
        with served(kind) as fresh:
            missed += compare(kind, fresh, given)
    print("\nall aims reached" if not missed else "\nmissed:\n  " + "\n  ".join(missed))
    return 1 if given.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())

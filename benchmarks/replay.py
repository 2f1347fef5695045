"""How fast a log is replayed into a read model: our thread engine, loops written by hand, and ``eventsourcing``.

    python benchmarks/replay.py --database both --check
    python benchmarks/replay.py --database postgresql --events 100000 --log events.ndjson.gz

Each way handles the same events into the same read model, in a process of its own, several times in turn; the best
time counts, and each result is compared with one that was computed without a database. Also measured: what eight
partitions cost against one, and how memory grows with the length of the log. With --check the exit code is 1 when an
aim is missed.

The public library ``eventsourcing`` is left out if it is not there: pip install eventsourcing 'psycopg[pool]'
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from replay_log import CREATE_TOTALS, Totals, made_up, of_file, totals_of
from servers import KINDS, kinds, machine, served
from sqlalchemy import inspect, text

from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.model.event import Event

SEED = 4
"""Of the made-up events."""

PARTITIONS = 8
"""Partitions that are compared with one."""

PARTITIONS_COST = 1.3
"""Most that they may cost: their time by that of one partition."""

SHORT, LONG = 100_000, 1_000_000
"""Events of the two logs whose handling is compared in memory."""

MEMORY_GROWTH = 1.1
"""Most that the longer log may need: its peak of resident memory by that of the shorter."""

MEMORY_WAYS = {
    "sqlite": ("engine", "engine-list", "engine-columns"),
    "postgresql": ("engine-list", "engine-columns"),
}
"""Ways whose memory is measured; one statement an event takes minutes on PostgreSQL."""

EVENTS = {"sqlite": 200_000, "postgresql": 100_000}
"""Events of the log, unless said otherwise: some seconds for the slowest of our ways."""

OURS, OF_GROUPS = "opencqrs_", ("opencqrs_groups", "opencqrs_progress", "opencqrs_inbox")
"""What the names of our tables begin with, and the tables that keep what groups have done."""

PEER = "eventsourcing"
PEER_EVENTS = {"sqlite": 40_000, "postgresql": 20_000}
"""Events that the slow library handles; its speed does not depend on their number."""

MEANINGS = {
    "sqlalchemy": "by hand, SQLAlchemy, a statement an event",
    "engine": "opencqrs, a handler per event",
    "sqlalchemy-many": "by hand, SQLAlchemy, executemany a chunk",
    "engine-list": "opencqrs, a list handler",
    "engine-list-sums": "opencqrs, a list summed up, and bulk.upsert",
    "engine-columns": "opencqrs, columns and bulk.upsert",
    "driver": "by hand, bare driver, a statement an event",
    "engine-driver": "opencqrs, per event, driver's connection",
    "engine-exec": "opencqrs, per event, exec_driver_sql",
    "driver-many": "by hand, bare driver, executemany a chunk",
    "engine-driver-list": "opencqrs, list, driver's connection",
    PEER: "eventsourcing, its projection runner",
}


@dataclass(frozen=True)
class Aim:
    """A ratio between two ways that must be reached on a kind of database, or that is only shown."""

    ours: str
    theirs: str
    least: dict[str, float]


AIMS = (
    Aim("engine", "sqlalchemy", dict.fromkeys(KINDS, 0.8)),
    Aim("engine-list", "sqlalchemy-many", dict.fromkeys(KINDS, 0.8)),
    Aim("engine-driver", "driver", dict.fromkeys(KINDS, 0.7)),
    Aim("engine-exec", "driver", {}),
    Aim("engine-driver-list", "driver-many", dict.fromkeys(KINDS, 0.7)),
    Aim("engine-columns", "engine-list", dict.fromkeys(KINDS, 1.8)),
    Aim("engine-columns", "engine-list-sums", {}),
    Aim("engine", PEER, {"sqlite": 6, "postgresql": 4}),
    Aim("engine-list", PEER, {"sqlite": 40, "postgresql": 25}),
)


@dataclass
class Report:
    """What was measured, and the aims that were missed."""

    missed: list[str] = field(default_factory=list)

    def ratio(self, name: str, value: float, *, least: float | None = None, most: float | None = None) -> None:
        """Print a ratio and whether it is as it should be."""
        aim = f"aim >= {least:g}" if least is not None else f"aim <= {most:g}" if most is not None else ""
        good = (least is None or value >= least) and (most is None or value <= most)
        verdict = "" if not aim else "ok" if good else "MISSED"
        print(f"  {name:<64} {value:>8.2f}   {aim:<11} {verdict}", flush=True)
        if not good:
            self.missed.append(f"{name}: {value:.2f}, {aim}")


@dataclass
class Stage:
    """A database with the log in it.

    Attributes:
        url: Where it is.
        count: How many events the log has.
        wanted: The read model that must come out.
        log: Whether the events were taken from a file.
    """

    url: str
    count: int
    wanted: Totals
    log: bool

    @classmethod
    def set(cls, url: str, events: Callable[[], Iterator[Event]], count: int, *, log: bool) -> Stage:
        """Fill an empty database."""
        database = Database(url)
        store = SqlEventStore(database)
        store.append(islice(events(), count))
        stored = store.head()
        database.close()
        return cls(url, stored, totals_of(events(), count), log)

    def run(self, way: str, partitions: int = 1, *, summed: bool = False) -> dict[str, Any]:
        """Handle the log in one way, in a process of its own; compare what comes out, or only its sums.

        Raises:
            SystemExit: If the read model is wrong, or the process ended early.
        """
        self._clear()
        command = [sys.executable, str(Path(__file__).with_name("replay_loops.py"))]
        environment = {**os.environ, "REPLAY_LOG": "yes" if self.log else ""}
        done = subprocess.run(
            [*command, way, self.url, str(self.count), str(partitions)],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{way} ended with exit code {done.returncode}")
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        if "skipped" not in answer:
            self.compare(way, summed=summed)
        return answer

    def _clear(self) -> None:
        """Leave nothing of the runs before but the log; ``eventsourcing`` makes several tables."""
        database = Database(self.url)
        with database.writing() as connection:
            for table in inspect(connection).get_table_names():
                if not table.startswith(OURS):
                    connection.execute(text(f"DROP TABLE {table}"))
                if table in OF_GROUPS:
                    connection.execute(text(f"DELETE FROM {table}"))
            connection.execute(text(CREATE_TOTALS))
        database.close()

    def compare(self, way: str, *, summed: bool = False) -> None:
        """Compare the read model that is there, or only its sums.

        Raises:
            SystemExit: If it is wrong.
        """
        database = Database(self.url)
        with database.reading() as connection:
            rows = connection.execute(text("SELECT account, events, total FROM totals")).all()
        database.close()
        found = {account: (events, total) for account, events, total in rows}
        if summed:
            if _sums(found) != _sums(self.wanted):
                sys.exit(f"{way} left a wrong read model: its sums differ")
            return
        if found != self.wanted:
            wrong = [name for name in found.keys() | self.wanted.keys() if found.get(name) != self.wanted.get(name)]
            sys.exit(f"{way} left a wrong read model: {len(wrong)} accounts differ, such as {wrong[0]}")


def _sums(totals: Totals) -> tuple[int, int]:
    return sum(events for events, _ in totals.values()), sum(total for _, total in totals.values())


def main() -> int:
    """Measure and return the exit code."""
    options = _options()
    report = Report()
    print(machine())
    parts = {"speed": _speed, "partitions": _partitions, "memory": _memory}
    for kind in kinds(options.database):
        with served(kind) as fresh:
            for name, part in parts.items():
                if options.only in (None, name):
                    part(kind, fresh, options, report)
    print("\nall aims reached" if not report.missed else "\nmissed:\n  " + "\n  ".join(report.missed))
    return 1 if options.check and report.missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=(*KINDS, "both"), default="both")
    usual = ", ".join(f"{count:,} on {kind}" for kind, count in EVENTS.items())
    parser.add_argument("--events", type=int, help=f"events of the log, at most (default: {usual})")
    parser.add_argument("--log", type=Path, metavar="FILE", help="take them from a log: CloudEvents as NDJSON, .gz too")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each way; the best counts (default: 3)")
    parser.add_argument("--only", choices=("speed", "partitions", "memory"), help="measure only this")
    parser.add_argument("--ways", nargs="+", choices=tuple(MEANINGS), default=list(MEANINGS), help="only these ways")
    parser.add_argument("--check", action="store_true", help="exit with 1 if an aim is missed")
    return parser.parse_args()


def _stage(kind: str, url: str, options: argparse.Namespace, most: int | None = None) -> Stage:
    count = min(options.events or EVENTS[kind], most or sys.maxsize)
    if options.log:
        return Stage.set(url, lambda: of_file(options.log), count, log=True)
    return Stage.set(url, lambda: made_up(count, SEED), count, log=False)


def _speed(kind: str, fresh: Callable[[], str], options: argparse.Namespace, report: Report) -> None:
    stage = _stage(kind, fresh(), options)
    peer = _stage(kind, fresh(), options, PEER_EVENTS[kind])
    print(
        f"\n{kind}: events per second, {stage.count:,} events into {len(stage.wanted):,} rows ({PEER}: {peer.count:,})"
    )
    rates = _best({way: peer if way == PEER else stage for way in options.ways}, options.repeats)
    for way, rate in rates.items():
        print(f"  {MEANINGS[way]:<64} {rate:>8,.0f}", flush=True)
    print("  ratios")
    for aim in AIMS:
        if aim.ours in rates and aim.theirs in rates:
            name = f"{aim.ours} / {aim.theirs}"
            report.ratio(name, rates[aim.ours] / rates[aim.theirs], least=aim.least.get(kind))


def _best(stages: dict[str, Stage], repeats: int) -> dict[str, float]:
    """Return the best rate of each way; the ways take turns, so that a busy moment of the machine meets all."""
    rates: dict[str, float] = {}
    left_out: set[str] = set()
    for _ in range(repeats):
        for way, stage in stages.items():
            if way in left_out:
                continue
            answer = stage.run(way)
            if "skipped" in answer:
                left_out.add(way)
                print(f"  {MEANINGS[way]}: left out ({answer['skipped']})", flush=True)
            else:
                rates[way] = max(rates.get(way, 0.0), answer["rate"])
    return {way: rates[way] for way in stages if way in rates}


def _partitions(kind: str, fresh: Callable[[], str], options: argparse.Namespace, report: Report) -> None:
    stage = _stage(kind, fresh(), options)
    print(f"\n{kind}: time of {PARTITIONS} partitions by that of one, {stage.count:,} events")
    for way in ("engine", "engine-list"):
        rates: dict[int, float] = {}
        for partitions in (1, PARTITIONS) * options.repeats:
            answer = stage.run(way, partitions)
            if "skipped" in answer:
                print(f"  {MEANINGS[way]}: left out ({answer['skipped']})")
                break
            rates[partitions] = max(rates.get(partitions, 0.0), answer["rate"])
        else:
            name = f"{MEANINGS[way]} ({rates[1]:,.0f}/s and {rates[PARTITIONS]:,.0f}/s)"
            report.ratio(name, rates[1] / rates[PARTITIONS], most=PARTITIONS_COST)


def _memory(kind: str, fresh: Callable[[], str], _options: argparse.Namespace, report: Report) -> None:
    print(f"\n{kind}: peak memory for {LONG:,} events by that for {SHORT:,}")
    stages = [Stage.set(fresh(), lambda: made_up(LONG, SEED), count, log=False) for count in (SHORT, LONG)]
    for way in MEMORY_WAYS[kind]:
        answers = [stage.run(way) for stage in stages]
        if any("skipped" in answer for answer in answers):
            print(f"  {MEANINGS[way]}: left out ({answers[0].get('skipped')})")
            continue
        short, long = (answer["peak"] / 1024 for answer in answers)
        report.ratio(f"{MEANINGS[way]} ({short:.0f} and {long:.0f} MB)", long / short, most=MEMORY_GROWTH)


if __name__ == "__main__":
    sys.exit(main())

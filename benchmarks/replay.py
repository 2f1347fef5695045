"""How fast a log is replayed into a read model: by our thread engine, by loops written by hand, and ``eventsourcing``.

    python benchmarks/replay.py --database both --check
    python benchmarks/replay.py --database postgresql --events 100000 --log events.ndjson.gz

Each candidate handles the same events into the same read model in a separate process. The candidates alternate for
several rounds, and the best time of each counts. Each result is compared with one that was computed without a database.
The benchmark also measures the cost of eight partitions compared with one, and how memory grows with the length of the
log. With --check the exit code is 1 if an aim is missed.

The public library ``eventsourcing`` is left out if it is not installed: pip install eventsourcing 'psycopg[pool]'
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
"""Seed of the made-up events."""

PARTITIONS = 8
"""Number of partitions that is compared with one."""

PARTITIONS_COST = 1.3
"""Most that their time may be, divided by the time of one partition."""

SHORT, LONG = 100_000, 1_000_000
"""Events of the two logs for which memory is compared."""

MEMORY_GROWTH = 1.1
"""Most that the peak memory for the longer log may be, divided by that for the shorter one."""

MEMORY_WAYS = {
    "sqlite": ("engine", "engine-list", "engine-columns"),
    "postgresql": ("engine-list", "engine-columns"),
}
"""Ways whose memory is measured; one statement per event takes minutes on PostgreSQL."""

EVENTS = {"sqlite": 200_000, "postgresql": 100_000}
"""Default number of events: some seconds for our slowest way."""

OURS, OF_GROUPS = "opencqrs_", ("opencqrs_groups", "opencqrs_progress", "opencqrs_inbox")
"""Prefix of our tables, and the tables with the state of groups."""

PEER = "eventsourcing"
PEER_EVENTS = {"sqlite": 40_000, "postgresql": 20_000}
"""Events for the slow library; its speed does not depend on their number."""

MEANINGS = {
    "sqlalchemy": "by hand, SQLAlchemy, a statement per event",
    "engine": "opencqrs, a handler per event",
    "sqlalchemy-many": "by hand, SQLAlchemy, executemany per chunk",
    "engine-list": "opencqrs, a list handler",
    "engine-list-sums": "opencqrs, an aggregated list and bulk.upsert",
    "engine-columns": "opencqrs, columns and bulk.upsert",
    "driver": "by hand, bare driver, a statement per event",
    "engine-driver": "opencqrs, per event, driver's connection",
    "engine-exec": "opencqrs, per event, exec_driver_sql",
    "driver-many": "by hand, bare driver, executemany per chunk",
    "engine-driver-list": "opencqrs, list, driver's connection",
    PEER: "eventsourcing, its projection runner",
}


@dataclass(frozen=True)
class Aim:
    """A ratio of two ways, with the least value for each kind of database; without one it is only shown."""

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
    """Prints ratios, and collects the aims that were missed."""

    missed: list[str] = field(default_factory=list)

    def ratio(self, name: str, value: float, *, least: float | None = None, most: float | None = None) -> None:
        """Print a ratio, and whether it reaches its aim."""
        aim = f"aim >= {least:g}" if least is not None else f"aim <= {most:g}" if most is not None else ""
        good = (least is None or value >= least) and (most is None or value <= most)
        verdict = "" if not aim else "ok" if good else "MISSED"
        print(f"  {name:<64} {value:>8.2f}   {aim:<11} {verdict}", flush=True)
        if not good:
            self.missed.append(f"{name}: {value:.2f}, {aim}")


@dataclass
class Stage:
    """A database that contains the log.

    Attributes:
        url: URL of the database.
        count: Number of events in the log.
        wanted: The expected read model.
        log: Whether the events come from a file.
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
        """Handle the log in one way, in a separate process; compare the read model, or only its sums.

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
        """Delete everything that earlier runs have left, except the log; ``eventsourcing`` creates several tables."""
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
        """Compare the read model in the database, or only its sums, with the expected one.

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
    parser.add_argument("--events", type=int, help=f"most events of the log (default: {usual})")
    parser.add_argument("--log", type=Path, metavar="FILE", help="log to use: CloudEvents as NDJSON, also .gz")
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
    """Return the best rate of each way; the ways alternate, so that a busy moment of the machine affects all."""
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
    print(f"\n{kind}: time of {PARTITIONS} partitions divided by that of one, {stage.count:,} events")
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
    print(f"\n{kind}: peak memory for {LONG:,} events divided by that for {SHORT:,}")
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

"""How fast a log is replayed while some of its sequences are parked, compared with a replay without failures.

    python benchmarks/parking.py --database both --engine both --check
    python benchmarks/parking.py --database postgresql --engine thread --log events.ndjson.gz

A handler writes one statement per event through SQLAlchemy's connection. In one replay it raises for all events of 1
in 1,000 sequences, chosen at random, so they are parked; in the other replay nothing fails. Both have eight partitions
and the same settings. They alternate, each in a separate process, and the best of each counts. The parked events are
compared with the log. Then the handler stops failing, the parked events are retried, and another run must end with the
read model of the replay without failures. With --check the exit code is 1 if an aim is missed.

Measured on two idle cores, with a real log. All 561,470 events with threads: 0.97 on SQLite (31,676 of 32,672 events
per second) and 0.92 on PostgreSQL (9,529 of 10,318). On Spark, best of three, 0.90 on SQLite (32,660 of 36,206) and
0.87 on PostgreSQL (17,096 of 19,627), which misses the aim; 0.81 and 0.85 before the partitions of a task waited for
those behind them. Rates on Spark differ by 15 % from one replay to the next, so let it repeat them. In processor time
of the threads, parked sequences cost about 2 of 50 us per event on SQLite: savepoints, a check of each subject, and a
check of the inbox once a second.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import NamedTuple

import orjson
from replay import Report, Stage
from replay_log import made_up, of_file
from replay_loops import StopWatch, by_engine
from servers import KINDS, kinds, machine, served

from opencqrs_py import Application, Event, InboxFilter
from opencqrs_py.assembly.inbox import InboxControl

ENGINES = ("thread", "spark")
HANDLER = "poisoned"
PARTITIONS = 8
ONE_OF = 1_000
"""One sequence in this many is poisoned."""

LEAST = 0.9
"""Least ratio of the events per second to those of the replay without failures."""

EVENTS = 200_000
STANDARD = "OPENCQRS__EVENT_HANDLING__STANDARD__"
SETTINGS = {
    "RETRY__POLICY": "none",
    "RETRY__ON_EXHAUSTED": "park",
    "PARK__MAX_SEQUENCES": "1000000",
    "PARK__MAX_SEQUENCE_SIZE": "1000000",
}
POISON = "REPLAY_POISON"
"""Environment variable with the path of the file that names the poisoned accounts."""


class Poison(NamedTuple):
    """The poisoned accounts, and the number of events in each of their sequences."""

    accounts: frozenset[str]
    sizes: Counter[str]

    @classmethod
    def chosen(cls, events: Iterator[Event], accounts: list[str], seed: int) -> Poison:
        """Choose some accounts, the same for the same seed, and count their events in the simplest way."""
        chosen = frozenset(Random(seed).sample(accounts, max(1, len(accounts) // ONE_OF)))
        sizes: Counter[str] = Counter()
        for event in events:
            if orjson.loads(event.payload or "")["account"] in chosen:
                sizes["/".join(event.subject.split("/")[:3])] += 1
        return cls(chosen, sizes)


def main() -> int:
    """Measure and return the exit code."""
    options = _options()
    report = Report()
    os.environ.update({STANDARD + name: value for name, value in SETTINGS.items()})
    print(machine())
    for kind in kinds(options.database):
        with served(kind) as fresh, tempfile.TemporaryDirectory() as folder:
            os.environ |= {"REPLAY_DATABASE": kind, "REPLAY_LOG": "yes" if options.log else ""}
            os.environ[POISON] = str(Path(folder) / "poison")
            stage, poison = _stage(fresh(), options)
            for engine in ENGINES if options.engine == "both" else (options.engine,):
                _compare(kind, engine, stage, poison, options.repeats, report)
    print("\nall aims reached" if not report.missed else "\nmissed:\n  " + "\n  ".join(report.missed))
    return 1 if options.check and report.missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=(*KINDS, "both"), default="both")
    parser.add_argument("--engine", choices=(*ENGINES, "both"), default="both")
    parser.add_argument("--events", type=int, help=f"most events of the log (default: all of FILE, else {EVENTS:,})")
    parser.add_argument("--log", type=Path, metavar="FILE", help="log to use: CloudEvents as NDJSON, also .gz")
    parser.add_argument("--seed", type=int, default=4, help="for the made-up events and the poison (default: 4)")
    parser.add_argument("--repeats", type=int, default=3, help="replays of each kind; the best counts (default: 3)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if an aim is missed")
    return parser.parse_args()


def _stage(url: str, options: argparse.Namespace) -> tuple[Stage, Poison]:
    """Fill an empty database, and choose the poisoned accounts."""
    count = options.events or (sys.maxsize if options.log else EVENTS)

    def events() -> Iterator[Event]:
        return of_file(options.log) if options.log else made_up(count, options.seed)

    stage = Stage.set(url, events, count, log=bool(options.log))
    of_log = (event for event, _ in zip(events(), range(stage.count), strict=False))
    return stage, Poison.chosen(of_log, sorted(stage.wanted), options.seed)


def _compare(kind: str, engine: str, stage: Stage, poison: Poison, repeats: int, report: Report) -> None:
    parked = sum(poison.sizes.values())
    print(f"\n{kind}, {engine}: {stage.count:,} events; events per second, steady and whole")
    file, way = Path(os.environ[POISON]), f"{engine}-{HANDLER}"
    healthy = {account: sums for account, sums in stage.wanted.items() if account not in poison.accounts}
    clean, poisoned = (0.0, 0.0), (0.0, 0.0)
    for _ in range(repeats):
        clean = max(clean, _rates(stage, way))
        file.write_text("\n".join(poison.accounts), encoding="utf-8")
        try:
            poisoned = max(poisoned, _rates(replace(stage, wanted=healthy), way))
        finally:
            file.unlink()
        with _inbox(stage.url) as inbox:
            _check_parked(inbox, poison)
    label = f"{len(poison.sizes):,} sequences with {parked:,} events parked"
    for name, (rate, whole) in {"nothing parked": clean, label: poisoned}.items():
        print(f"  {name:<64} {rate:>8,.0f} {whole:>8,.0f}", flush=True)
    seconds = _retried(stage, engine)
    print(
        f"  all retried and handled in {seconds:.1f} s, including the start of the process; the read model is complete"
    )
    report.ratio(f"{kind}, {engine}: parked / nothing parked", poisoned[0] / clean[0], least=LEAST)


def _rates(stage: Stage, way: str) -> tuple[float, float]:
    answer = stage.run(way, PARTITIONS)
    if "skipped" in answer:
        sys.exit(f"{way}: {answer['skipped']}")
    return answer["rate"], answer["whole"]


def _check_parked(inbox: InboxControl, poison: Poison) -> None:
    """Exit unless exactly the events of the poisoned sequences wait in the inbox."""
    sizes = Counter(entry.sequence_id for entry in inbox.entries(InboxFilter()))
    if sizes != poison.sizes:
        wrong = [name for name in sizes | poison.sizes if sizes[name] != poison.sizes[name]]
        sys.exit(f"the parked events are not those of the poisoned sequences: {len(wrong)} differ, such as {wrong[0]}")


def _retried(stage: Stage, engine: str) -> float:
    """Retry all parked events in another run; return the seconds that it took.

    Raises:
        SystemExit: If events are still parked, or the read model does not match the log.
    """
    began = time.perf_counter()
    with _inbox(stage.url) as inbox:
        inbox.retry(InboxFilter())
    arguments = {"handler": HANDLER, "partitions": PARTITIONS, "engine": engine}
    run = get_context("spawn").Process(target=by_engine, args=(stage.url, StopWatch(stage.count)), kwargs=arguments)
    run.start()
    run.join()
    seconds = time.perf_counter() - began
    if run.exitcode:
        sys.exit(f"the run after the retry ended with exit code {run.exitcode}")
    with _inbox(stage.url) as inbox:
        _check_parked(inbox, Poison(frozenset(), Counter()))
    stage.compare("the run after the retry")
    return seconds


@contextmanager
def _inbox(url: str) -> Iterator[InboxControl]:
    from replay_handlers import poisoned  # noqa: PLC0415 its statements depend on the environment

    with Application({"event-store.url": url}, [poisoned], Path(__file__).parent) as application:
        yield application.inbox


if __name__ == "__main__":
    sys.exit(main())

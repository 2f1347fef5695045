"""How fast Spark with two workers replays a log, compared with a loop written by hand and the thread engine.

    python benchmarks/spark_replay.py --database both --check
    python benchmarks/spark_replay.py --database postgresql --events 200000 --work cpu
    python benchmarks/spark_replay.py --only memory

Each way handles the same events into the same read model in a separate process. The ways alternate for several rounds,
and the best of each counts. Each result is compared with one that was computed without a database. The engines have
eight partitions; a group of data frames has one. *Steady* begins when a tenth of the events is handled; *whole* begins
at the start of the process, and so includes the start of Spark. The driver handles no events. The benchmark also
measures how memory grows with the length of the log, for the largest Python worker, the driver's Python, and Java. Java
has no aim, because it uses all of its heap. With --check the exit code is 1 if an aim is missed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from replay import Report, Stage
from replay_log import made_up
from servers import KINDS, kinds, machine, served

PARTITIONS = 8
SEED = 4


class Work(NamedTuple):
    """The work of handlers, the ways to do it, and the least ratios of Spark to the loop by hand and to threads."""

    what: str
    by_hand: str
    handler: str
    least: dict[str, float]
    on_spark: str = ""  # the handler on Spark, if it is another one
    by_thread: float | None = None


WORK = {
    "count": Work("one row per chunk", "hand-count", "count", dict.fromkeys(KINDS, 1.3)),
    "each": Work("a statement per event, SQLAlchemy", "sqlalchemy", "each", {"postgresql": 1.5}),
    "list": Work("executemany per chunk, SQLAlchemy", "sqlalchemy-many", "many", {}),
    "columns": Work("columns and bulk.upsert", "sqlalchemy-many", "columns", {}),
    "frames": Work("data frames and bulk.upsert; others lists", "sqlalchemy-many", "many", {}, "frames", 3.0),
    "cpu": Work("0.1 ms of Python and a statement per event, driver", "hand-cpu", "cpu", dict.fromkeys(KINDS, 1.7)),
}

LEAST_BY_THREAD = 0.9
"""Least ratio to the thread engine's rate, once warm."""

SHORT, LONG = 600_000, 2_000_000
"""Events of the two logs for which memory is compared; even the shorter one has several ranges of data frames."""

MEMORY_GROWTH = 1.1
"""Most that the peak memory for the longer log may be, divided by that for the shorter one."""

MEMORY_WORK = ("count", "columns", "frames")
"""Work for which memory is measured: the fast kinds."""

SHARES = {"count": 1.0, "list": 0.5, "columns": 1.0, "frames": 1.0, "each": 0.1, "cpu": 0.1}
"""Fraction of --events that each kind handles: the slower kinds run long enough with fewer."""


def main() -> int:
    """Measure and return the exit code."""
    options = _options()
    report = Report()
    print(machine())
    for kind in kinds(options.database):
        with served(kind) as fresh:
            if options.only != "memory":
                for name in options.work:
                    count = int(options.events * SHARES[name])
                    _compare(kind, name, _stage(fresh(), count), options.repeats, report)
            if options.only != "speed":
                _memory(kind, fresh, [name for name in MEMORY_WORK if name in options.work], report)
    print("\nall aims reached" if not report.missed else "\nmissed:\n  " + "\n  ".join(report.missed))
    return 1 if options.check and report.missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=(*KINDS, "both"), default="both")
    parser.add_argument(
        "--events", type=int, default=1_000_000, help="events for the fastest kinds (default: %(default)s)"
    )
    parser.add_argument("--repeats", type=int, default=2, help="runs of each way; the best counts (default: 2)")
    parser.add_argument("--work", nargs="+", choices=tuple(WORK), default=list(WORK), help="only these")
    parser.add_argument("--only", choices=("speed", "memory"), help="measure only this")
    parser.add_argument("--check", action="store_true", help="exit with 1 if an aim is missed")
    return parser.parse_args()


def _stage(url: str, count: int) -> Stage:
    return Stage.set(url, lambda: made_up(count, SEED), count, log=False)


def _compare(kind: str, name: str, stage: Stage, repeats: int, report: Report) -> None:
    work = WORK[name]
    print(f"\n{kind}, {work.what}: {stage.count:,} events; events per second, steady and whole")
    ways = {
        "by hand": work.by_hand,
        "thread": f"thread-{work.handler}",
        "spark": f"spark-{work.on_spark or work.handler}",
    }
    best = dict.fromkeys(ways, (0.0, 0.0))
    for _ in range(repeats):
        for label, way in ways.items():
            answer = _run(stage, way, 1 if label == "by hand" else PARTITIONS, summed=name == "count")
            best[label] = max(best[label], (answer["rate"], answer["whole"]))
    for label, (rate, whole) in best.items():
        print(f"  {label:<64} {rate:>8,.0f} {whole:>8,.0f}", flush=True)
    rates = {label: rate for label, (rate, _) in best.items()}
    report.ratio("spark / by hand", rates["spark"] / rates["by hand"], least=work.least.get(kind))
    report.ratio("spark / thread", rates["spark"] / rates["thread"], least=work.by_thread or LEAST_BY_THREAD)


def _run(stage: Stage, way: str, partitions: int, *, summed: bool) -> dict[str, Any]:
    answer = stage.run(way, partitions, summed=summed)
    if "skipped" in answer:
        sys.exit(f"{way}: {answer['skipped']}")
    return answer


def _memory(kind: str, fresh: Callable[[], str], names: list[str], report: Report) -> None:
    print(f"\n{kind}: peak memory for {LONG:,} events divided by that for {SHORT:,}")
    stages = [_stage(fresh(), count) for count in (SHORT, LONG)]
    for name in names:
        way = f"spark-{WORK[name].on_spark or WORK[name].handler}"
        answers = [_run(stage, way, PARTITIONS, summed=name == "count") for stage in stages]
        for process, of in (("worker", "a Python worker"), ("peak", "the driver's Python"), ("java", "Java")):
            short, long = (answer[process] / 1024 for answer in answers)
            most = None if process == "java" else MEMORY_GROWTH
            report.ratio(f"{WORK[name].what}: {of} ({short:.0f} and {long:.0f} MB)", long / short, most=most)


if __name__ == "__main__":
    sys.exit(main())

"""How soon Spark handles an event, how much a slow event delays others, and what idle groups cost.

    python benchmarks/spark_latency.py --database both --check
    python benchmarks/spark_latency.py --only slow --slow 25

There are two workers (``local[2]``) and eight partitions; the driver handles no events. *Latency*: the time from the
append to the end of the handler, with an event every 500 ms, on the clock that all processes of the machine share.
*Slow*: one event of a group takes 25 s, and the benchmark measures how long events of the group's other partitions and
of another group wait meanwhile. SQLite has no aim there, because a chunk holds the only write lock of the file. *Idle*:
the processor time of a driver with 50 groups, its Java and its Python workers while no events arrive. With --check the
exit code is 1 if an aim is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median, quantiles

from process_tree import processes_below
from replay import Report
from servers import KINDS, kinds, machine, served
from sqlalchemy import text

from opencqrs_py import Application
from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.model.event import Event
from opencqrs_py.model.partition import residue_of

PARTITIONS = 8
GROUPS = 50
WARM_UP = 20
MEDIAN, P99 = 120.0, 300.0
SLOWED = 1.0
IDLE = 0.02

HANDLERS = """
import time
from opencqrs_py import Event, event_handling, on_start
from sqlalchemy import Connection, text

INSERT = text("INSERT INTO handled (name, number, at) VALUES (:name, :number, :at)")

@on_start("first")
def create(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS handled (name TEXT, number BIGINT, at BIGINT)"))

def note(name: str, event: Event, connection: Connection) -> None:
    connection.execute(INSERT, {"name": name, "number": event.position, "at": time.monotonic_ns()})

@event_handling("first", types=["quick", "slow"])
def first(event: Event, connection: Connection) -> None:
    time.sleep(event.data["seconds"])
    note("first", event, connection)

@event_handling("second", types=["quick"])
def second(event: Event, connection: Connection) -> None:
    note("second", event, connection)
"""

IDLE_HANDLERS = """
from opencqrs_py import Event, event_handling

for number in range({groups}):
    def handle(event: Event) -> None:
        pass
    handle.__name__ = f"handle_{{number}}"
    globals()[handle.__name__] = event_handling(f"group-{{number}}", types=["quick"])(handle)
"""


class Log:
    """A log to which events are appended one by one, and the read model that records them."""

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        self._store = SqlEventStore(self._database)
        self.position = self._store.head()

    def append(self, subject: str, *, kind: str = "quick", seconds: float = 0.0) -> tuple[int, int]:
        """Append an event; return its position, and the time before the append."""
        began = time.monotonic_ns()
        payload = json.dumps({"seconds": seconds})
        self.position += 1
        known = (kind, None, "application/json", payload, None)
        self._store.append([Event(0, str(self.position), "bench", subject, *known)])
        return self.position, began

    def handled(self, name: str, position: int, patience: float = 120.0) -> int:
        """Wait until a group has handled an event; return the time at which it did."""
        until = time.monotonic() + patience
        while time.monotonic() < until:
            with self._database.reading() as connection:
                find = text("SELECT at FROM handled WHERE name = :name AND number = :number")
                at: int | None = connection.execute(find, {"name": name, "number": position}).scalar()
            if at is not None:
                return at
            time.sleep(0.01)
        sys.exit(f"group {name} has not handled event {position} within {patience:g} s")

    def close(self) -> None:
        """Close the connections."""
        self._database.close()


def subject_of(residue: int) -> str:
    """Return a subject of the partition with this residue."""
    return next(f"/{n}" for n in range(10_000) if residue_of(f"/{n}", PARTITIONS) == residue)


@contextmanager
def running(url: str, handlers: str, partitions: int) -> Iterator[Application]:
    """Run a project with these handlers in this process until the end of the block."""
    with tempfile.TemporaryDirectory() as folder:
        name = f"handlers_{os.urandom(4).hex()}"
        Path(folder, f"{name}.py").write_text(handlers)
        settings = {
            "event-store.url": url,
            "spark.master": "local[2]",
            "spark.driver-handles": "never",
            "event-handling.standard.life-cycle.partitions": partitions,
        }
        Path(folder, "application.yaml").write_text(
            "\n".join(f"opencqrs.{k}: {json.dumps(v)}" for k, v in settings.items())
        )
        with Application.from_project(folder) as application:
            application.start()
            yield application


def latency(url: str, events: int, report: Report) -> None:
    """Measure how long single events take."""
    log = Log(url)
    times = []
    with running(url, HANDLERS, PARTITIONS):
        for number in range(WARM_UP + events):
            position, began = log.append(subject_of(number % PARTITIONS))
            took = (max(log.handled(name, position) for name in ("first", "second")) - began) / 1e6
            times += [took] if number >= WARM_UP else []
            time.sleep(max(0.0, 0.5 - took / 1000))
    log.close()
    report.ratio("milliseconds until two groups have handled an event, median", median(times), most=MEDIAN)
    report.ratio("the same, 99th percentile", quantiles(times, n=100)[98], most=P99)


def slow(url: str, seconds: float, report: Report) -> None:
    """Measure how long other events wait while one event is slow."""
    most = None if url.startswith("sqlite") else SLOWED
    log = Log(url)
    with running(url, HANDLERS, PARTITIONS):
        for residue in range(PARTITIONS):  # the workers are warm, and know both groups
            position, _ = log.append(subject_of(residue))
            for name in ("first", "second"):
                log.handled(name, position)
        others = [log.append(subject_of(residue)) for residue in range(1, PARTITIONS)]  # possibly in the same task
        blocking, _ = log.append(subject_of(0), kind="slow", seconds=seconds)
        waits: dict[str, list[float]] = {"first": [], "second": []}
        for _ in range(3):
            others += [log.append(subject_of(residue)) for residue in range(1, PARTITIONS)]
            for name, took in waits.items():
                took += [(log.handled(name, position) - began) / 1e9 for position, began in others]
            others = []
        if log.handled("first", blocking) < max(began for _, began in others or [(0, 0)]):
            sys.exit("the slow event ended before the others")
    log.close()
    report.ratio("longest wait of other partitions of the group, in seconds", max(waits["first"]), most=most)
    report.ratio("longest wait of another group, in seconds", max(waits["second"]), most=most)


def idle(url: str, seconds: float, report: Report) -> None:
    """Measure the cost of groups that have nothing to do."""
    log = Log(url)
    with running(url, IDLE_HANDLERS.format(groups=GROUPS), 1) as application:
        position, _ = log.append("/x")
        until = time.monotonic() + 300
        while any(p.position < position for status in application.status() for p in status.partitions):
            if time.monotonic() > until:
                sys.exit("the groups never caught up")
            time.sleep(0.5)
        time.sleep(5)
        before, began = processor_time(), time.monotonic()
        time.sleep(seconds)
        share = (processor_time() - before) / (time.monotonic() - began)
    log.close()
    report.ratio(f"share of a core that {GROUPS} idle groups take", share, most=IDLE)


def processor_time() -> float:
    """Return the processor time in seconds of this process, its Java and its Python workers."""
    ticks = 0
    for process in {os.getpid()} | processes_below(os.getpid()):
        with suppress(OSError):  # it has just ended
            rest = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(rest[11]) + int(rest[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure and return the exit code."""
    options = _options()
    report = Report()
    print(machine())
    parts: dict[str, Callable[[str], None]] = {
        "latency": lambda url: latency(url, options.events, report),
        "slow": lambda url: slow(url, options.slow, report),
        "idle": lambda url: idle(url, options.idle, report),
    }
    for kind in kinds(options.database):
        with served(kind) as fresh:
            print(f"\n{kind}")
            for name, part in parts.items():
                if options.only in (None, name):
                    part(fresh())
    print("\nall aims reached" if not report.missed else "\nmissed:\n  " + "\n  ".join(report.missed))
    return 1 if options.check and report.missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=(*KINDS, "both"), default="both")
    parser.add_argument("--only", choices=("latency", "slow", "idle"), help="measure only this")
    parser.add_argument("--events", type=int, default=100, help="events to measure (default: %(default)s)")
    parser.add_argument(
        "--slow", type=float, default=25.0, help="duration of the slow event in seconds (default: %(default)s)"
    )
    parser.add_argument("--idle", type=float, default=30.0, help="seconds for which idle groups are measured")
    parser.add_argument("--check", action="store_true", help="exit with 1 if an aim is missed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())

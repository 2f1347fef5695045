"""What idle jobs cost, how late a run begins, and how fast a run handles its items.

    python benchmarks/jobs.py --database both --check
    python benchmarks/jobs.py --database postgresql --only speed --items 20000

``idle``: the processor time of ``opencqrs run``, without that of the database server, with a hundred jobs that are due
once an hour, half of them with a cron expression and half with a fixed rate. ``late``: the time from the tick of a
fixed rate to the beginning of its run, both by the database's clock. ``speed``: a job whose input selects its ids, with
a statement for each page of a thousand, compared with a loop by hand that has the same two statements and a commit for
each page; the two alternate in one process, and the best of each counts. With --check the exit code is 1 if an aim is
missed. On a busy machine only the ratio is meaningful.

Measured on two cores that other programs used as well: idle 0.73 % on SQLite and 0.98 % on PostgreSQL; 2 ms and 7 ms
late (99th percentile 7 ms and 36 ms); 0.59 of the loop on SQLite (297,611 of 500,667 items per second) and 0.49 on
PostgreSQL (48,550 of 98,105).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from replay import Report
from servers import KINDS, OTHERS, kinds, machine, served
from soaking import Folder
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.engine import Engine

from opencqrs_py import Application
from opencqrs_py.adapters.sql import Database, SqlJobStore
from opencqrs_py.jobs.runs import JobRun, RunStatus

PARTS = ("idle", "late", "speed")
JOBS = 100
IDLE = 0.01
"""Most that idle jobs may use of one core."""

DRIVERS = {"mariadb": "mariadb+pymysql", "postgresql": "postgresql+psycopg"}

LATE_MS = 50.0
"""Largest allowed median in milliseconds."""

PAGE = 1_000
SETTLED = 10.0
"""Seconds within which a process has started."""

PATIENCE = 300.0

_numbers = count(1)

SETTINGS = """
opencqrs:
  event-store: {{url: "{url}"}}
  database: {{url: "{url}"}}
"""
JOBS_KEY = "  jobs:\n"
CRON = "    cron-{number}: {{triggers: {{cron: '{minute} {hour} * * *'}}}}\n"
RATE = "    rate-{number}: {{triggers: {{fixed-rate: 1h, initial-delay: 1h}}}}\n"
TICK = "    tick: {triggers: {fixed-rate: 1s}}\n"
IMPORT = "from opencqrs_py import job\n"
CODE = '''

@job("{name}")
def {function}() -> None:
    """Do nothing."""
'''

CREATE = "CREATE TABLE items (id BIGINT PRIMARY KEY, handled BIGINT NOT NULL)"
INSERT = text("INSERT INTO items (id, handled) VALUES (:id, 0)")
HANDLE = text("UPDATE items SET handled = handled + 1 WHERE id BETWEEN :first AND :last")


ITEMS = """
from opencqrs_py import JobContext, job
from sqlalchemy import Connection, Select, column, select, table, text

HANDLE = text("UPDATE items SET handled = handled + 1 WHERE id BETWEEN :first AND :last")


def all_items() -> Select:
    return select(column("id")).select_from(table("items"))


@job("handle", input=all_items)
def handle(context: JobContext, connection: Connection) -> None:
    connection.execute(HANDLE, {"first": context.ids[0], "last": context.ids[-1]})
"""


def main() -> int:
    """Measure and return the exit code."""
    options = _options()
    report = Report()
    print(machine())
    for kind in kinds(options.database):
        print(f"\n{kind}")
        with served(kind) as fresh:
            if "idle" in options.only:
                _idle(fresh(), options.seconds, report)
            if "late" in options.only:
                _late(fresh(), options.ticks, report)
            if "speed" in options.only:
                _speed(fresh(), options, report)
    print("\nthe aims are reached" if not report.missed else "\nmissed:\n  " + "\n  ".join(report.missed))
    return 1 if options.check and report.missed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=(*KINDS, *OTHERS, "both"), default="both")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="which parts (default: all)")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="seconds for which idle jobs are measured (default: %(default)s)"
    )
    parser.add_argument("--ticks", type=int, default=60, help="number of ticks, one per second (default: %(default)s)")
    parser.add_argument("--items", type=int, default=100_000, help="items of a run (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each kind; the best counts (default: 3)")
    parser.add_argument("--check", action="store_true", help="exit with 1 if an aim is missed")
    return parser.parse_args()


def _idle(url: str, seconds: float, report: Report) -> None:
    """Measure the cost of idle jobs."""
    half, hour = JOBS // 2, (time.gmtime().tm_hour + 12) % 24
    crons = [CRON.format(number=number, minute=number, hour=hour) for number in range(half)]
    rates = [RATE.format(number=number) for number in range(half)]
    names = [f"{kind}-{number}" for kind in ("cron", "rate") for number in range(half)]
    with _running(url, names, [*crons, *rates]) as (process, store):
        _wait_until(lambda: len(store.look().records) == JOBS)
        time.sleep(SETTLED)
        before, began = _processor_time(process), time.monotonic()
        time.sleep(seconds)
        share = (_processor_time(process) - before) / (time.monotonic() - began)
        if store.history():
            sys.exit("a job ran that should have been idle")
    report.ratio(f"share of a core that {JOBS} idle jobs take, in percent", 100 * share, most=100 * IDLE)


def _late(url: str, ticks: int, report: Report) -> None:
    """Measure how long after its tick a run begins."""
    with _running(url, ["tick"], [TICK]) as (_, store):
        _wait_until(lambda: len(_ended(store)) > 2)
        time.sleep(ticks)
        runs = _ended(store)[:ticks]  # the newest ones: the first may be from the start of the process
    late = sorted(
        (run.started_at - run.scheduled_at).total_seconds() for run in runs if run.started_at and run.scheduled_at
    )
    report.ratio(
        f"milliseconds from a tick to its run, median of {len(late)}", 1_000 * statistics.median(late), most=LATE_MS
    )
    report.ratio("… 99th percentile", 1_000 * late[min(len(late) - 1, int(0.99 * len(late)))])


def _speed(url: str, options: argparse.Namespace, report: Report) -> None:
    """Compare a run with a loop by hand."""
    engine = create_engine(make_url(url).set(drivername=DRIVERS.get(url.partition(":")[0], "sqlite")))
    with engine.begin() as connection:
        connection.execute(text(CREATE))
        connection.execute(INSERT, [{"id": number + 1} for number in range(options.items)])
    best = {"job": 0.0, "loop": 0.0}
    with _project(url, ITEMS, "") as project, Application.from_project(project.folder) as application:
        for _ in range(options.repeats):
            best["loop"] = max(best["loop"], options.items / _timed_loop(engine))
            began = time.perf_counter()
            run = application.run_job("handle")
            best["job"] = max(best["job"], options.items / (time.perf_counter() - began))
            if run.status is not RunStatus.SUCCEEDED or run.position.items != options.items:
                sys.exit(f"the run is {run.status.value} after {run.position.items} items: {run.error}")
    with engine.begin() as connection:
        wrong = connection.execute(text(f"SELECT count(*) FROM items WHERE handled <> {2 * options.repeats}")).scalar()
    engine.dispose()
    if wrong:
        sys.exit(f"{wrong} items were not handled once by each run")
    rates = ", ".join(f"{name} {rate:,.0f}" for name, rate in best.items())
    report.ratio(f"items per second ({rates}), job / loop", best["job"] / best["loop"])


def _timed_loop(engine: Engine) -> float:
    """Handle all items by hand; return the seconds."""
    began, last = time.perf_counter(), 0
    after = text(f"SELECT id FROM items WHERE id > :last ORDER BY id LIMIT {PAGE}")
    while True:
        with engine.begin() as connection:
            ids = connection.execute(after, {"last": last}).scalars().all()
            if ids:
                connection.execute(HANDLE, {"first": ids[0], "last": ids[-1]})
        if len(ids) < PAGE:
            return time.perf_counter() - began
        last = ids[-1]


@contextmanager
def _running(url: str, names: list[str], settings: list[str]) -> Iterator[tuple[int, SqlJobStore]]:
    """Run jobs that do nothing in a process; yields its process id and the store of the runs."""
    code = (CODE.format(name=name, function=name.replace("-", "_")) for name in names)
    with _project(url, IMPORT + "".join(code), JOBS_KEY + "".join(settings)) as project:
        database = Database(url)
        process = project.opencqrs("run")
        try:
            yield process.pid, SqlJobStore(database)
            if process.poll() is not None:
                sys.exit(f"the process has ended unexpectedly:\n{project.last_messages()}")
        finally:
            process.terminate()
            process.wait()
            database.close()


@contextmanager
def _project(url: str, code: str, settings: str) -> Iterator[Folder]:
    """Write a project folder."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        name = f"measured_jobs_{next(_numbers)}.py"  # unique, since a process imports a module once
        folder.joinpath(name).write_text(code)
        folder.joinpath("application.yaml").write_text(SETTINGS.format(url=url) + settings)
        yield Folder(folder)


def _ended(store: SqlJobStore) -> list[JobRun]:
    return [run for run in store.history(limit=1_000) if run.status is RunStatus.SUCCEEDED]


def _wait_until(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > until:
            sys.exit(f"the jobs have not started within {PATIENCE:g} s")
        time.sleep(0.2)


def _processor_time(process: int) -> float:
    """Return the seconds of processor time that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())

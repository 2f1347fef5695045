"""Run jobs in several processes, inject random faults, and check that each tick and each event had exactly one run.

    python benchmarks/job_soak.py --database both --processes 2 --ticks 200 --seed 7
    python benchmarks/job_soak.py --database mariadb --processes 5 --names kill freeze

The project has ten jobs: with a fixed rate, a fixed delay and a cron expression, with pages, with items that fail at
first, for events that are appended while it runs, and with each overlap rule. The faults:

* ``kill``: SIGKILL, and a new process
* ``freeze``: SIGSTOP for longer than the leases last, then SIGCONT
* ``stop``: SIGTERM, and a new process
* ``cut``: all connections of the database are ended; for an SQLite file, another program holds its write lock for a
  while
* on a server, ``hold``: another program locks the row of one job, and the other jobs must continue
* on PostgreSQL, ``server``: it is stopped, fast or as in a crash, and started again

At the end the soak waits until everything has recovered, and sends SIGTERM to the processes. The exit code is 1 if a
tick has no record or two, an item or an event was committed never or twice, a run has committed during one that
excludes it, a process has ended unexpectedly or too late, or a run still has an owner after all processes have ended.
"""

from __future__ import annotations

import argparse
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from datetime import datetime
from pathlib import Path
from random import Random
from threading import Event as Signal
from threading import Thread
from typing import Self

from failover_soak import CUT
from job_project import JobProject
from servers import KINDS, OTHERS, Server, kinds, machine, served
from soaking import Processes
from sqlalchemy import text

from opencqrs_py import Event
from opencqrs_py.adapters.sql import Database, SqlEventStore

POLL_SECONDS = 0.1
"""Seconds between two polls of the runs."""

PATIENCE = 180.0
"""Seconds that processes have to start, and that missing runs have to follow after the faults."""

GRACE = 10.0
"""Seconds within which a process must end after SIGTERM."""

EVERY = 0.15
"""Seconds between two events."""

NAMES = ("kill", "freeze", "stop", "cut", "hold", "server")

HOLD = text("SELECT job FROM opencqrs_jobs WHERE job = :job FOR UPDATE")
LOCKED = ("lone", "after", "pages")
"""Jobs whose rows the fault ``hold`` locks."""

TICK_WITHIN = 5
"""Lease durations within which other jobs must run while a row is locked, even on a busy machine."""

OTHER_CONNECTIONS = "SELECT id FROM information_schema.processlist WHERE db = DATABASE() AND id <> CONNECTION_ID()"
"""For MariaDB."""


def main() -> int:
    """Run the soak and return the exit code."""
    options = _options()
    print(machine())
    good = True
    for kind in kinds(options.database):
        with ExitStack() as opened:
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="opencqrs-jobs-")))
            server, fresh = None, served(kind) if kind != "postgresql" else None
            if fresh is None:
                data = Path(opened.enter_context(tempfile.TemporaryDirectory()))
                server = Server(data / "data")
                opened.callback(server.close)
            url = server.fresh if fresh is None else opened.enter_context(fresh)
            good = _soak(kind, url, folder, options, server) and good
    return 0 if good else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=(*KINDS, *OTHERS, "both"), default="sqlite")
    parser.add_argument("--processes", type=int, default=2, help="number of processes (default: %(default)s)")
    parser.add_argument(
        "--ticks", type=int, default=40, help="ticks of the job with the fixed rate (default: %(default)s)"
    )
    parser.add_argument("--rate", type=float, default=0.5, help="seconds between two of them (default: %(default)s)")
    parser.add_argument("--faults", type=int, default=2, help="minimum number of faults (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same plan (default: %(default)s)")
    parser.add_argument("--names", nargs="+", choices=NAMES, default=NAMES, help="which faults (default: all)")
    parser.add_argument("--lease", type=float, default=4.0, help="duration of leases in seconds (default: %(default)s)")
    parser.add_argument(
        "--grace", type=float, default=GRACE, help="seconds to end after SIGTERM (default: %(default)s)"
    )
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="copy an SQLite file and the messages there")
    return parser.parse_args()


def _soak(
    kind: str, fresh: Callable[[], str], folder: Path, options: argparse.Namespace, server: Server | None
) -> bool:
    print(f"\n{kind}: {options.processes} processes, {options.ticks} ticks, seed {options.seed}", flush=True)
    project = JobProject(folder, fresh(), fresh(), options.rate)
    project.create()
    faults = Faults(project, kind, options, server)
    began = time.monotonic()
    with Feed(project.store_url) as feed:
        try:
            faults.begin()
            feed.start()
            faults.run(options.ticks * options.rate)
            events = feed.finish()
            faults.await_recovery(events)
            faults.end()
        except BaseException:
            faults.kill()
            _keep(project, options.keep)
            raise
    wrong = [*faults.wrong, *project.differences(events)]
    if wrong:
        _keep(project, options.keep)
    done = ", ".join(f"{count} {name}" for name, count in sorted(faults.done.items())) or "no faults"
    print(f"  {done}; runs: {project.counts()}; {len(events)} events; {time.monotonic() - began:.0f} s in all")
    print(f"  longest without a tick {project.longest_pause():.1f} s; slowest stop {faults.longest_end:.1f} s")
    project.close()
    print("\n".join(f"  WRONG: {line}" for line in wrong) or "  each tick and each event had its run, once")
    return not wrong


def _keep(project: JobProject, folder: Path | None) -> None:
    """Copy the database and the messages of a project for inspection."""
    if folder is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    folder.joinpath("messages.txt").write_bytes(project.folder.joinpath("messages.txt").read_bytes())
    if project.url.startswith("sqlite"):
        with (
            closing(sqlite3.connect(project.url.removeprefix("sqlite:///"))) as source,
            closing(sqlite3.connect(folder / "jobs.db")) as target,
        ):
            source.backup(target)
    else:
        folder.joinpath("runs.txt").write_text("\n".join(map(str, project.store.history(limit=1_000_000))))


class Feed:
    """Appends events while the processes run, one by one.

    Args:
        url: The event store.
    """

    def __init__(self, url: str) -> None:
        self._database = Database(url)
        self._ended = Signal()
        self._ids: list[str] = []
        self._failure: BaseException | None = None
        self._thread = Thread(target=self._add)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._database.close()

    def start(self) -> None:
        """Begin to append events."""
        self._thread.start()

    def finish(self) -> list[str]:
        """Stop, and return the ids of all appended events; raise the error if an append has failed."""
        self._ended.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        return self._ids

    def _add(self) -> None:
        store = SqlEventStore(self._database)
        try:
            while not self._ended.wait(EVERY):
                number = len(self._ids)
                self._append(
                    store, Event(0, f"e{number}", "s", f"/s/{number % 5}", "made-up.a.v1", None, "", "{}", None)
                )
                self._ids.append(f"e{number}")
        except BaseException as error:
            self._failure = error

    def _append(self, store: SqlEventStore, event: Event) -> None:
        while True:
            try:
                store.append([event])
            except Exception as error:
                if not store.is_outage(error):
                    raise
                time.sleep(POLL_SECONDS)
            else:
                return


class Faults(Processes):
    """Processes that run jobs, and the faults that are injected into them.

    Args:
        project: The project.
        kind: Its database.
        options: The options of the command line.
        server: The server that serves the database, if it can be stopped.
    """

    def __init__(self, project: JobProject, kind: str, options: argparse.Namespace, server: Server | None) -> None:
        super().__init__(project, options.lease, Random(options.seed))
        self.done: Counter[str] = Counter()
        self.longest_end = 0.0
        self._project = project
        self._kind = kind
        self._grace, self._least = options.grace, options.faults
        self._count = options.processes
        impossible = {*(("hold",) if kind == "sqlite" else ()), *(("server",) if server is None else ())}
        self._names: Sequence[str] = [name for name in options.names if name not in impossible]
        self._server_process = server

    def begin(self) -> None:
        """Start the processes; wait until all of them run jobs and one of them reads the events."""
        self._processes = [self._started() for _ in range(self._count)]
        self._wait("not every process runs jobs", self._is_complete)
        self._wait("no process reads the events", self._project.is_reading)
        self._wait("no tick has succeeded", lambda: self._project.last_tick() is not None)

    def run(self, seconds: float) -> None:
        """Inject faults for this many seconds; afterwards ``wrong`` has the errors that were found."""
        until = time.monotonic() + seconds
        while time.monotonic() < until or self.done.total() < self._least:
            name = self._chance.choice(self._names)
            print(f"  {name} …", end="", flush=True)
            getattr(self, f"_{name}")()
            self.done[name] += 1
            self._replace_ended(name)
            print(f" a tick after {self._wait_for_tick():.1f} s", flush=True)
            time.sleep(self._chance.uniform(0, 2))

    def await_recovery(self, events: Sequence[str]) -> None:
        """Wait until every process runs jobs, every event has its run, and every owner of a run is alive."""
        self._wait("not every process runs jobs again", self._is_complete)
        self._wait("not every event has a run", lambda: len(self._project.noted()) >= len(events))
        time.sleep(self._lease)
        self._wait("runs belong to processes that have ended", self._owners_are_alive)
        self._wait_for_tick()
        self._replace_ended("the recovery")

    def end(self) -> None:
        """End all processes, one after the other, so that each releases what the others could take over."""
        for process in self._processes:
            self._terminate(process)

    def _stop(self) -> None:
        chosen = self._any()
        self._terminate(self._processes[chosen])
        self._processes[chosen] = self._started()

    def _freeze(self) -> None:
        process = self._processes[self._any()]
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(self._lease + self._chance.uniform(0.5, 2.5))
        os.kill(process.pid, signal.SIGCONT)

    def _cut(self) -> None:
        database = self._project.database
        match self._kind:
            case "sqlite":
                with closing(sqlite3.connect(self._project.url.removeprefix("sqlite:///"), timeout=60)) as connection:
                    connection.execute("BEGIN IMMEDIATE")
                    time.sleep(self._chance.uniform(0, 2 * self._lease))
            case "mariadb":
                with database.reading() as connection:
                    for number in connection.execute(text(OTHER_CONNECTIONS)).scalars().all():
                        with suppress(Exception):  # it has ended meanwhile
                            connection.execute(text(f"KILL CONNECTION {number}"))
            case _:
                with database.reading() as connection:
                    connection.execute(text(CUT[self._kind]))

    def _hold(self) -> None:
        """Lock the row of a job for a while, like a process whose machine fails during a decision about the job."""
        seconds = self._lease + self._chance.uniform(2, 6)
        last = self._project.last_tick()
        with self._project.database.writing() as connection:
            connection.execute(HOLD, {"job": self._chance.choice(LOCKED)})
            began = time.monotonic()
            self._wait("no tick has succeeded while the row of another job was locked", lambda: self._has_ticked(last))
            if (waited := time.monotonic() - began) > TICK_WITHIN * self._lease:
                self.wrong.append(f"while the row of another job was locked, no tick succeeded for {waited:.1f} s")
            time.sleep(max(0.0, seconds - waited))

    def _server(self) -> None:
        assert self._server_process is not None
        # A process that starts without its database ends.
        self._wait("not every process runs jobs", self._is_complete)
        self._server_process.stop(self._chance.choice(("fast", "immediate")))
        time.sleep(self._chance.uniform(0, 2 * self._lease))
        self._server_process.start()

    def _terminate(self, process: subprocess.Popen[bytes]) -> None:
        """End a process by SIGTERM; check that it releases its runs and ends in time."""
        nodes = [id_ for id_, pid in self._project.nodes().items() if pid == process.pid]
        process.terminate()
        began = time.monotonic()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.wrong.append(f"process {process.pid} has not ended {PATIENCE:g} s after SIGTERM")
            process.kill()
            process.wait()
        seconds = time.monotonic() - began
        self.longest_end = max(self.longest_end, seconds)
        if seconds > self._grace:
            self.wrong.append(f"process {process.pid} has ended {seconds:.1f} s after SIGTERM, at most {self._grace:g}")
        for node in nodes:
            for run in self._project.owned(node):
                self.wrong.append(f"{run.id} is {run.status.value} for process {process.pid}, which SIGTERM has ended")

    def _wait_for_tick(self) -> float:
        """Return the seconds until another run of ``tick`` has succeeded."""
        began = time.monotonic()
        last = None
        with suppress(Exception):
            last = self._project.last_tick()
        self._wait("no tick has succeeded", lambda: self._has_ticked(last))
        return time.monotonic() - began

    def _has_ticked(self, last: datetime | None) -> bool:
        tick = self._project.last_tick()
        return tick is not None and tick != last

    def _is_complete(self) -> bool:
        return {process.pid for process in self._processes} <= set(self._project.nodes().values())

    def _owners_are_alive(self) -> bool:
        return {run.owner for run in self._project.owned()} <= self._project.nodes().keys()

    def _wait(self, what: str, is_so: Callable[[], bool]) -> None:
        until, failed = time.monotonic() + PATIENCE, ""
        while True:
            try:
                if is_so():
                    return
            except Exception as error:  # the database may be unavailable, or its tables may not exist yet
                failed = f" ({error})"
            self._replace_ended(f"a wait ({what})")
            if time.monotonic() >= until:
                sys.exit(f"{what} after {PATIENCE:g} s{failed}:\n{self._project.last_messages()}")
            time.sleep(POLL_SECONDS)


if __name__ == "__main__":
    sys.exit(main())

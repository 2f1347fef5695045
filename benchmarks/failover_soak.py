"""Run one project in three processes, inject random faults, and compare the read models with a plain computation.

    python benchmarks/failover_soak.py --database both --faults 100 --seed 7 --log events.ndjson.gz
    python benchmarks/failover_soak.py --engine spark --faults 10

Events are appended while the project runs. The faults:

* ``kill``: SIGKILL, and a new process
* ``freeze``: SIGSTOP for longer than the leases last, then SIGCONT
* ``stop``: SIGTERM, and a new process
* ``join``: a fourth process for a while
* ``partitions``: a command splits or merges the partitions of a group, or sets a random number of them; sometimes the
  command is killed at a random moment, and run again
* ``reset``: such a command resets a group to its start or to a random position
* ``release``: a partition is given to another process
* on PostgreSQL, ``cut``: all connections of one of its databases are ended
* on PostgreSQL, ``server``: it is stopped, fast or as in a crash, and started again
* on PostgreSQL, if libfaketime is installed, ``clock``: the server's clock is set by up to two hours, mostly while a
  process is frozen

After each fault, every partition must have a live owner within the leases' duration plus two seconds. The exception: no
process can take over while a frozen process holds the write lock of an SQLite file. With --scheduled both groups are
scheduled; with --parking events fail, and wait in the inbox with their sequences. The exit code is 1 if an event is
missing or was applied twice, out of order, or with a second attempt.
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from itertools import islice
from pathlib import Path
from random import Random
from threading import Event as Signal
from typing import Self

from servers import FAKETIME, KINDS, OTHERS, Server, kinds, machine, served
from soaking import Processes, Project, existing_file, made_up
from sqlalchemy import text

from opencqrs_py.adapters.files import events_of_file
from opencqrs_py.adapters.processes import has_ended
from opencqrs_py.adapters.sql import Database, SqlControlStore, SqlEventStore
from opencqrs_py.control.records import ControlView
from opencqrs_py.model.partition import is_layout

POLL_SECONDS = 0.05
"""Seconds between two polls of the leases."""

SLACK = 2.0
"""Seconds that a take-over may take beyond the duration of the leases."""

PROCESSES = 3

CHUNK = 2.0
"""Seconds after which every chunk has ended."""

STARTED = 1.0
"""Seconds within which a process that has its leases has also started its engines."""

PATIENCE = 120.0
"""Seconds to wait for events in the inbox at the end."""

LINES = 20
"""Approximate number of progress lines that are printed."""

EVERYWHERE = ("kill", "freeze", "stop", "join", "partitions", "reset", "release")
NAMES = (*EVERYWHERE, "cut", "server", "clock")

MOST_PARTITIONS = 12

KILLED_COMMANDS = 0.3
"""Fraction of the commands that change partitions or reset a group that are killed."""

COMMAND_TIMEOUT = "10m"
"""Timeout of a command: a change of the number of partitions waits for partitions that lag behind."""

HOURS = 2.0
"""Most hours by which the clock of a server is set ahead or back."""

CUT = {
    "postgresql": "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
    "WHERE datname = current_database() AND pid <> pg_backend_pid()",
}
"""Statements that end all connections to a database except the current one."""


def main() -> int:
    """Run the soak and return the exit code."""
    options = _options()
    print(machine())
    good = True
    for kind in kinds(options.database):
        with ExitStack() as opened:
            folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="opencqrs-failover-")))
            server, fresh = None, served(kind) if kind != "postgresql" else None
            if fresh is None:
                data = Path(opened.enter_context(tempfile.TemporaryDirectory()))
                server = Server(data / "data", data / "clock" if FAKETIME.exists() else None)
                opened.callback(server.close)
            url = server.fresh if fresh is None else opened.enter_context(fresh)
            good = _soak(kind, url, folder, options, server) and good
    return 0 if good else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--database", choices=(*KINDS, *OTHERS, "both"), default="sqlite")
    parser.add_argument("--engine", choices=("spark", "thread"), default="thread")
    parser.add_argument("--faults", type=int, default=10, help="faults for each database (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same plan (default: %(default)s)")
    parser.add_argument("--log", type=existing_file, metavar="FILE", help="CloudEvents as NDJSON, .gz too")
    parser.add_argument("--events", type=int, default=50_000, help="events to make up without a log")
    parser.add_argument("--partitions", type=int, default=8, help="of one of the two groups (default: %(default)s)")
    parser.add_argument("--scheduled", action="store_true", help="both groups are scheduled")
    parser.add_argument("--parking", type=int, default=0, metavar="N", help="one event of N fails twice and waits")
    parser.add_argument("--names", nargs="+", choices=NAMES, default=NAMES, help="which faults (default: all)")
    parser.add_argument("--lease", type=float, default=4.0, help="duration of leases in seconds (default: %(default)s)")
    return parser.parse_args()


def _soak(
    kind: str, fresh: Callable[[], str], folder: Path, options: argparse.Namespace, server: Server | None
) -> bool:
    chance = Random(options.seed)
    log = options.log or made_up(folder / "events.ndjson.gz", options.events, chance)
    settings = {"engine": options.engine, "batch_size": 100, "partitions": options.partitions}
    settings["scheduled"] = options.scheduled
    project = Project(folder, fresh(), url := fresh(), options.parking, **settings)
    print(f"\n{kind}, engine {options.engine}: {options.faults} faults", flush=True)
    faults = Faults(project, kind, url, options.lease, options.names, chance, server)
    began = time.monotonic()
    with Feed(project.store_url, log) as feed:
        try:
            faults.run(options.faults)
        except BaseException:
            faults.kill()
            raise
        feed.finish()
    project.opencqrs("run", "--until-caught-up").wait()
    project.await_none_waiting(PATIENCE)
    faults.end()
    wrong = [*faults.wrong, *project.differences(log)]
    project.close()
    done = ", ".join(f"{count} {name}" for name, count in sorted(faults.done.items()))
    print(f"  {done}; longest without an owner {faults.longest:.1f} s; {time.monotonic() - began:.0f} s in all")
    print("\n".join(f"  WRONG: {line}" for line in wrong) or "  equal: each event was applied exactly once, in order")
    return not wrong


class Feed:
    """Appends the events of a log while the processes run, a few at a time.

    Args:
        url: The event store.
        log: The log.
    """

    def __init__(self, url: str, log: Path) -> None:
        self._database = Database(url)
        self._log = log
        self._hurry = Signal()
        self._adder = ThreadPoolExecutor(1)

    def __enter__(self) -> Self:
        self._added = self._adder.submit(self._add)
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def finish(self) -> None:
        """Append the remaining events without pauses; raise the error if an append has failed."""
        self._hurry.set()
        self._adder.shutdown()
        self._added.result()
        self._database.close()

    def _add(self) -> None:
        store, events = SqlEventStore(self._database), events_of_file(self._log)
        while some := list(islice(events, 1_000 if self._hurry.is_set() else 50)):
            while True:
                try:
                    store.append(some)
                    break
                except Exception as error:
                    if not store.is_outage(error):
                        raise
            self._hurry.wait(0.1)


class Faults(Processes):
    """Processes that run a project, and the faults that are injected into them.

    Args:
        project: The project.
        kind: Its database.
        url: The database of progress and leases.
        lease: Duration of leases in seconds.
        names: The faults to choose from.
        chance: Source of the random choices.
        server: The server that serves the database, if it can be stopped.
    """

    def __init__(
        self,
        project: Project,
        kind: str,
        url: str,
        lease: float,
        names: Sequence[str],
        chance: Random,
        server: Server | None,
    ) -> None:
        super().__init__(project, lease, chance)
        self.done: Counter[str] = Counter()
        self.longest = 0.0
        self._project = project
        self._database = Database(url)
        control = self._database.for_control()
        assert control is not None
        self._store = SqlControlStore(control)
        self._kind = kind
        self._url = url
        possible = {*EVERYWHERE}
        if server is not None:
            possible |= {"cut", "server", *(["clock"] if FAKETIME.exists() else [])}
        self._names = [name for name in names if name in possible]
        self._serving = server
        self._fault = "start"

    def run(self, faults: int) -> None:
        """Inject this many faults; afterwards ``wrong`` has the errors that were found."""
        self._processes = [self._started() for _ in range(PROCESSES)]
        self._wait_for_owners(60.0)
        self._wait_for_nodes()
        for number in range(faults):
            name = self._fault = self._chance.choice(self._names)
            getattr(self, f"_{name}")()
            self.done[name] += 1
            seconds = self._wait_for_owners(60.0)
            self.longest = max(self.longest, seconds)
            self._replace_ended(name)
            if seconds > self._lease + SLACK:
                self.wrong.append(f"after {name} (fault {number + 1}) a partition had no owner for {seconds:.1f} s")
            if number % max(1, faults // LINES) == 0:
                print(f"  fault {number + 1}: {name}, owners after {seconds:.1f} s", flush=True)
            time.sleep(self._chance.uniform(0, 1))

    def end(self) -> None:
        """End the processes."""
        self._replace_ended("the last fault")
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()
        self._store.close()
        self._database.close()

    def _freeze(self) -> None:
        process = self._processes[self._any()]
        os.kill(process.pid, signal.SIGSTOP)
        if self._is_locked():  # by this process: no other one can write until it continues
            time.sleep(self._lease + SLACK)
            os.kill(process.pid, signal.SIGCONT)
            return
        seconds = self._wait_for_owners(60.0, but=process.pid)
        if seconds > self._lease + SLACK:
            self.wrong.append(f"the partitions of a frozen process were taken over after {seconds:.1f} s")
        os.kill(process.pid, signal.SIGCONT)

    def _is_locked(self) -> bool:
        """Return whether a process holds the write lock of an SQLite file for longer than a chunk takes."""
        if self._kind != "sqlite":
            return False
        with closing(sqlite3.connect(self._url.removeprefix("sqlite:///"), timeout=CHUNK)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                return True
        return False

    def _stop(self) -> None:
        chosen = self._any()
        self._processes[chosen].terminate()
        self._processes[chosen].wait()
        self._processes[chosen] = self._started()

    def _join(self) -> None:
        extra = self._started()
        time.sleep(self._chance.uniform(0, self._lease))
        extra.kill()
        extra.wait()

    def _partitions(self) -> None:
        self._wait_for_nodes()
        leases = [lease.key.partition for lease in self._store.view().leases if lease.key.group == "cases"]
        one = self._chance.choice(sorted(leases))
        # With the other group's partition, at least one for each process.
        count = self._chance.randint(PROCESSES - 1, MOST_PARTITIONS)
        change = ["partitions", "cases", str(count)]
        if self._chance.random() < 0.5 and one.modulus <= MOST_PARTITIONS:
            change = ["split", f"cases:{one}"]
        elif len(leases) >= PROCESSES and one.sibling() in leases:
            change = ["merge", f"cases:{one}"]
        self._change(change, ["partitions", "cases", str(count)])

    def _reset(self) -> None:
        self._wait_for_nodes()
        if self._chance.random() < 0.5:
            change = ["reset", "cases", "--to", "tail"]
        else:
            # A position ahead would skip events, as it should.
            back_to = self._chance.randint(0, self._project.handled())
            change = ["reset", "handled", "--to-position", str(back_to)]
        self._change(change, change)

    def _release(self) -> None:
        self._wait_for_nodes()
        keys = sorted((lease.key for lease in self._store.view().leases), key=str)
        one = self._chance.choice(keys)
        change = ["release", f"{one.group}:{one.partition}", "--for", "2s", "--no-wait"]
        if failed := self._project.failure("groups", *change):
            self.wrong.append(failed)

    def _change(self, change: Sequence[str], again: Sequence[str]) -> None:
        """Run a ``groups`` command; sometimes kill it, and run ``again`` instead."""
        if self._chance.random() < KILLED_COMMANDS:
            command = self._project.opencqrs("groups", *change)
            with suppress(subprocess.TimeoutExpired):
                command.wait(self._chance.uniform(0.5, 3.0))
            command.kill()
            command.wait()
            change = again
        if failed := self._project.failure("groups", *change, "--timeout", COMMAND_TIMEOUT):
            self.wrong.append(failed)

    def _cut(self) -> None:
        with self._database.reading() as connection:
            connection.execute(text(CUT[self._kind]))

    def _server(self) -> None:
        assert self._serving is not None
        self._wait_for_nodes()  # because a process that starts without its database ends
        self._serving.stop(self._chance.choice(("fast", "immediate")))
        time.sleep(self._chance.uniform(0, 2 * self._lease))
        self._serving.start()

    def _clock(self) -> None:
        assert self._serving is not None
        process = self._processes[self._any()] if self._chance.random() < 0.7 else None
        if process is not None:
            os.kill(process.pid, signal.SIGSTOP)
        self._serving.set_clock(self._chance.uniform(-3_600 * HOURS, 3_600 * HOURS))
        if process is not None:
            seconds = self._wait_for_owners(60.0, but=process.pid)
            if seconds > self._lease + SLACK:
                self.wrong.append(f"after a change of the clock, a frozen process was replaced after {seconds:.1f} s")
            os.kill(process.pid, signal.SIGCONT)

    def _wait_for_nodes(self, patience: float = 300.0) -> None:
        """Wait until every process has partitions."""
        until = time.monotonic() + patience
        while time.monotonic() < until:
            with suppress(Exception):
                view = self._store.view().without(has_ended)
                holders = {lease.node for lease in view.leases} & view.alive.keys()
                if len(holders) >= PROCESSES:
                    time.sleep(STARTED)
                    return
            time.sleep(POLL_SECONDS)
        sys.exit(f"not every process has partitions after {patience:g} s:\n{self._project.last_messages()}")

    def _wait_for_owners(self, patience: float, but: int = 0) -> float:
        """Return the seconds until every partition has a live owner other than the process ``but``."""
        began = time.monotonic()
        while time.monotonic() - began < patience:
            with suppress(Exception):
                view = self._store.view().without(has_ended)
                owners = [owner for lease in view.leases if (owner := view.owner_of(lease)) is not None]
                are_held = len(owners) == len(view.leases) and _are_whole(view)
                if are_held and but not in {owner.process.pid for owner in owners}:
                    return time.monotonic() - began
            time.sleep(POLL_SECONDS)
        with suppress(Exception):
            view = self._store.view().without(has_ended)
            for lease in view.leases:
                owner = view.owner_of(lease)
                print(f"  {lease.key}: {owner.name if owner else 'no owner'}")
            print(f"  alive: {', '.join(node.name for node in view.alive.values())}")
        states = ", ".join(f"{each.pid} {state_of(each.pid)}" for each in self._processes)
        print(f"  after {self._fault}; processes: {states}")
        sys.exit(f"not every partition has an owner after {patience:g} s:\n{self._project.last_messages()}")


def _are_whole(view: ControlView) -> bool:
    """Return whether the leases of each group form a complete layout."""
    groups = {lease.key.group for lease in view.leases}
    return all(is_layout([lease.key.partition for lease in view.leases if lease.key.group == one]) for one in groups)


def state_of(pid: int) -> str:
    """Return the state of a process as ``ps`` shows it, empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


if __name__ == "__main__":
    sys.exit(main())

"""The project that the soaks run, and the comparison of its read models with a plain computation from the log.

Not a benchmark itself. The project has two groups. ``handled`` counts how often each event was applied, and records the
attempt. ``cases`` has, for each case, the number of events, the sum of a checksum of their ids, and how many events
came out of order. So the comparison detects an event that is missing, duplicated or handled before an earlier one of
its case.
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql import Database
from opencqrs_py.errors import EventStoreError

__all__ = ["Folder", "Project", "existing_file", "made_up", "named"]

HANDLERS = '''
from zlib import crc32

from opencqrs_py import Event, ProcessingContext, Reset, event_handling, on_reset, on_start
from sqlalchemy import Connection, text

FAILS = 0  # one event in FAILS fails twice; with 0, none does
# Update first, and insert if no row was updated: every database supports that.
HANDLED_AGAIN = text("UPDATE handled SET times = times + 1 WHERE id = :id")
HANDLED = text("INSERT INTO handled (id, times, attempt, position) VALUES (:id, 1, :attempt, :position)")
CASE_AGAIN = text("""
    UPDATE cases SET
        events = events + 1,
        checksum = checksum + :checksum,
        disorder = disorder + CASE WHEN :position > newest THEN 0 ELSE 1 END,
        newest = :position
    WHERE name = :name
""")
CASE = text("""
    INSERT INTO cases (name, events, checksum, newest, disorder) VALUES (:name, 1, :checksum, :position, 0)
""")


@on_start("handled")
def create_handled(connection: Connection) -> None:
    connection.execute(text(
        "CREATE TABLE IF NOT EXISTS handled ("
        "id VARCHAR(200) PRIMARY KEY, times BIGINT NOT NULL, attempt BIGINT NOT NULL, position BIGINT NOT NULL)"
    ))


@on_start("cases")
def create_cases(connection: Connection) -> None:
    connection.execute(text(
        "CREATE TABLE IF NOT EXISTS cases ("
        "name VARCHAR(200) PRIMARY KEY, events BIGINT NOT NULL, checksum BIGINT NOT NULL, "
        "newest BIGINT NOT NULL, disorder BIGINT NOT NULL)"
    ))


@on_reset("handled")
def forget_handled(reset: Reset, connection: Connection) -> None:
    connection.execute(text("DELETE FROM handled WHERE position > :position"), {"position": reset.position})


@on_reset("cases")
def forget_cases(reset: Reset, connection: Connection) -> None:
    if reset.position:
        raise ValueError("cases are summed up from the start only")
    connection.execute(text("DELETE FROM cases"))


@event_handling("handled", types=["*"])
def count(event: Event, context: ProcessingContext, connection: Connection) -> None:
    row = {"id": event.id, "attempt": context.attempt, "position": event.position}
    if connection.execute(HANDLED_AGAIN, row).rowcount == 0:
        connection.execute(HANDLED, row)


@event_handling("cases", types=["*"])
def sum_up(event: Event, context: ProcessingContext, connection: Connection) -> None:
    if FAILS and context.attempt < 3 and crc32(event.id.encode()) % FAILS == 0:
        raise ValueError("not yet")
    name = "/".join(event.subject.split("/")[:3])
    row = {"name": name, "checksum": crc32(event.id.encode()), "position": event.position}
    if connection.execute(CASE_AGAIN, row).rowcount == 0:
        connection.execute(CASE, row)
'''

SETTINGS = """
opencqrs:
  event-store: {{url: "{store}"}}
  database: {{url: "{database}"}}
  spark: {{master: "local[2]", driver-handles: never}}
  event-handling:
    standard: {{processing: {{engine: {engine}, batch-size: {batch_size}{mode}}}{schedule}}}
    groups:
      cases: {{life-cycle: {{partitions: {partitions}}}{parking}}}
"""

PARKING = """, retry: {policy: none, on-exhausted: park},
        park: {max-sequences: 1000000, retry: {initial-interval: 100ms, max-interval: 300ms, max-attempts: infinite}}"""

SCHEDULE = """, schedule: {initial-delay: 100ms, interval: 200ms,
        retry: {initial-interval: 100ms, max-interval: 300ms, max-attempts: infinite}}"""

POSITION = """
    SELECT avg(position) FROM (SELECT avg(position) AS position FROM opencqrs_progress GROUP BY group_name) AS of_group
"""

MESSAGES = "messages.txt"
"""File in the project folder to which standard error is written."""

POLL_SECONDS = 0.2
"""Seconds between two polls of the inbox."""

SHOWN = 5
"""How many wrong events or cases are named, and how many lines of messages are shown."""


def existing_file(path: str) -> Path:
    """Return the path of an existing file; for the command line."""
    if not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"file {path} does not exist")
    return Path(path)


LEASE = "event-handling.standard.life-cycle.lease"
"""The settings of leases."""

LINES = 60
"""Lines of messages that are shown for a process that has ended unexpectedly: a traceback may be among them."""


class Folder:
    """The folder of a project, and the commands that run it.

    Args:
        folder: An empty folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def opencqrs(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a command of the project; its messages go to a file, the end of which ``last_messages`` returns."""
        command = self._command(arguments)
        with self.folder.joinpath(MESSAGES).open("ab") as messages:
            return subprocess.Popen(command, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=messages)

    def failure(self, *arguments: str) -> str:
        """Run a command of the project; return its exit code and messages if it fails, else an empty string."""
        ran = subprocess.run(
            self._command(arguments), cwd=self.folder, check=False, capture_output=True, encoding="utf-8"
        )
        return f"{' '.join(arguments)} ended with {ran.returncode}:\n{ran.stderr}" if ran.returncode else ""

    def _command(self, arguments: Sequence[str]) -> list[str]:
        return [sys.executable, "-m", "opencqrs_py", *arguments, "--project", str(self.folder)]

    def last_messages(self, most: int = SHOWN) -> str:
        """Return the last lines that the project's commands wrote to standard error."""
        lines = self.folder.joinpath(MESSAGES).read_text(errors="replace").splitlines()
        return "\n".join(lines[-most:])


class Processes:
    """Processes that run a project, and into which faults are injected.

    Args:
        project: The project.
        lease: Duration of leases in seconds.
        chance: Source of the random choices.

    Attributes:
        wrong: The errors that were found.
    """

    def __init__(self, project: Folder, lease: float, chance: Random) -> None:
        self.wrong: list[str] = []
        self._folder = project
        self._lease = lease
        self._chance = chance
        self._processes: list[subprocess.Popen[bytes]] = []

    def kill(self) -> None:
        """Kill the processes, including a frozen one."""
        for process in self._processes:
            process.kill()
            process.wait()

    def _started(self) -> subprocess.Popen[bytes]:
        lease, heartbeat = f"{LEASE}.duration={self._lease}s", f"{LEASE}.heartbeat={self._lease / 4}s"
        return self._folder.opencqrs("run", "--set", lease, "--set", heartbeat)

    def _replace_ended(self, after: str) -> None:
        """Report and replace processes that have ended unexpectedly."""
        for place, process in enumerate(self._processes):
            if process.poll() is not None:
                messages = self._folder.last_messages(LINES)
                ended = f"process {process.pid} has ended with {process.returncode} after {after}"
                self.wrong.append(f"{ended}:\n{messages}")
                self._processes[place] = self._started()

    def _any(self) -> int:
        return self._chance.randrange(len(self._processes))

    def _kill(self) -> None:
        chosen = self._any()
        self._processes[chosen].kill()
        self._processes[chosen].wait()
        self._processes[chosen] = self._started()


class Project(Folder):
    """A project folder with a log, and queries for what its processes have done.

    Args:
        folder: An empty folder.
        store: URL of the event store.
        database: URL of the read models' database.
        parking: One event in this many fails twice in the group ``cases`` and is parked; with 0, none is.
        scheduled: Whether both groups are scheduled; then their events are not parked.
        settings: ``engine``, ``batch_size``, and ``partitions`` of the group ``cases``.
    """

    def __init__(
        self, folder: Path, store: str, database: str, parking: int = 0, *, scheduled: bool = False, **settings: Any
    ) -> None:
        super().__init__(folder)
        self.store_url = store
        self._store, self._database = Database(store), Database(database)
        self._scheduled = scheduled
        settings |= {"store": store, "database": database, "parking": PARKING if parking and not scheduled else ""}
        settings |= {"mode": ", mode: scheduled", "schedule": SCHEDULE} if scheduled else {"mode": "", "schedule": ""}
        folder.joinpath("handlers.py").write_text(HANDLERS.replace("FAILS = 0", f"FAILS = {parking}"))
        folder.joinpath("application.yaml").write_text(SETTINGS.format(**settings))

    def fill(self, log: Path) -> int:
        """Import the log and return the position of its newest event.

        Raises:
            SystemExit: If the import fails.
        """
        if self.opencqrs("events", "import", str(log)).wait():
            sys.exit(f"the log could not be imported:\n{self.last_messages()}")
        return int(self._one(self._store, "SELECT max(position) FROM opencqrs_events"))

    def position(self) -> float:
        """Return the average position of the groups; 0 before any has begun.

        For scheduled groups, the result lies between the position that they have read and what they have handled.
        """
        try:
            position = float(self._one(self._database, POSITION) or 0)
            return position - self.waiting() / 4 if self._scheduled else position
        except (DBAPIError, EventStoreError):  # the table does not exist yet
            return 0.0

    def handled(self) -> int:
        """Return the progress of the group ``handled``, which may be far behind that of the other group."""
        return int(self._one(self._database, "SELECT coalesce(max(position), 0) FROM handled"))

    def waiting(self) -> int:
        """Return how many events wait in the inbox."""
        return int(self._one(self._database, "SELECT count(*) FROM opencqrs_inbox"))

    def await_none_waiting(self, seconds: float) -> None:
        """Wait until no event waits in the inbox, but at most this many seconds."""
        until = time.monotonic() + seconds
        while self.waiting() and time.monotonic() < until:
            time.sleep(POLL_SECONDS)

    def close(self) -> None:
        """Close the connections."""
        self._store.close()
        self._database.close()

    def differences(self, log: Path) -> list[str]:
        """Compare the read models and the progress with the log; return the differences."""
        return [*self._wrong_events(log), *self._wrong_cases(log), *self._wrong_progress()]

    def _wrong_events(self, log: Path) -> Iterator[str]:
        wanted = {event["id"] for event in _events(log)}
        found = {row.id: row for row in self._rows("SELECT id, times, attempt FROM handled")}
        yield from named("not handled", wanted - found.keys())
        yield from named("handled, but not in the log", found.keys() - wanted)
        yield from named("applied more than once", {name for name, row in found.items() if row.times != 1})
        if not self._scheduled:  # otherwise an event that was being handled when its process was killed used an attempt
            again = {name for name, row in found.items() if row.attempt != 1}
            yield from named("not applied with its first attempt", again)

    def _wrong_cases(self, log: Path) -> Iterator[str]:
        wanted: dict[str, tuple[int, int]] = {}
        for event in _events(log):
            name = "/".join(event["subject"].split("/")[:3])
            count, checksum = wanted.get(name, (0, 0))
            wanted[name] = count + 1, checksum + crc32(event["id"].encode())
        rows = self._rows("SELECT name, events, checksum, disorder FROM cases")
        found = {row.name: (row.events, row.checksum) for row in rows}
        names = found.keys() | wanted.keys()
        yield from named("cases with a wrong sum", {name for name in names if found.get(name) != wanted.get(name)})
        yield from named("cases out of order", {row.name for row in rows if row.disorder})

    def _wrong_progress(self) -> Iterator[str]:
        head = self._one(self._store, "SELECT max(position) FROM opencqrs_events")
        for row in self._rows("SELECT * FROM opencqrs_progress"):
            if row.position != head or row.attempt or row.error:
                yield f"progress: {row.group_name} {row.residue} at {row.position}, {row.attempt=}, {row.error=}"

    def _rows(self, statement: str) -> list[Any]:
        with self._database.reading() as connection:
            return list(connection.execute(text(statement)).all())

    @staticmethod
    def _one(database: Database, statement: str) -> Any:
        with database.reading() as connection:
            return connection.execute(text(statement)).scalar()


def made_up(file: Path, count: int, chance: Random) -> Path:
    """Write a log of ``count`` events, with about four events and up to three subjects per case."""
    with gzip.open(file, "wt", compresslevel=1) as lines:
        for number in range(count):
            event = {
                "specversion": "1.0",
                "id": str(number),
                "source": "urn:made-up",
                "subject": f"/cases/{chance.randrange(count // 4 + 1)}/steps/{number % 3}",
                "type": f"made-up.{chance.choice('abcd')}.v1",
                "data": {"number": number},
            }
            lines.write(json.dumps(event) + "\n")
    return file


def _events(log: Path) -> Iterator[dict[str, Any]]:
    packed = log.suffix == ".gz"
    with gzip.open(log, "rt") if packed else log.open() as lines:
        yield from map(json.loads, lines)


def named(what: str, wrong: Collection[str]) -> Iterator[str]:
    """Yield a line with the number of wrong items and the first few of them; nothing if there are none."""
    if wrong:
        yield f"{what}: {len(wrong):,}, such as {', '.join(sorted(wrong)[:SHOWN])}"

"""The SQLite file of the event store or of the database is deleted or replaced while ``opencqrs run`` is running."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.engines import ENGINES

SECONDS = 300.0
LOOK_SECONDS = 0.05
EVENTS = 50


def deleted(file: Path) -> None:
    file.unlink()


def all_deleted(file: Path) -> None:
    for each in file.parent.glob(f"{file.name}*"):
        each.unlink()


def replaced_by_a_copy(file: Path) -> None:
    copy = file.with_name("copy.db")
    with closing(sqlite3.connect(file)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    copy.rename(file)


def moved_over_by_another(file: Path) -> None:
    other = file.with_name("other.db")
    with closing(sqlite3.connect(other)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE something (else_ TEXT)")
    other.rename(file)


def write_ahead_log_deleted(file: Path) -> None:
    file.with_name(f"{file.name}-wal").unlink()


def moved_into_the_file(file: Path) -> None:
    """Leave nothing in the write-ahead log, which is shared with, and may be emptied by, what takes the file's name."""
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA wal_checkpoint(FULL)").fetchone()[0] == 0


class Running:
    """A run in a separate process, and its output."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._said = (folder / "said.txt").open("w+")
        self.process = subprocess.Popen(command, cwd=folder, stdout=self._said, stderr=subprocess.STDOUT)
        self._read = folder / "said.txt"

    @property
    def said(self) -> str:
        return self._read.read_text()

    def wait_for(self, condition: Callable[[], object]) -> None:
        until = time.monotonic() + SECONDS
        while not condition():
            assert time.monotonic() < until, self.said
            time.sleep(LOOK_SECONDS)

    def ends_with_the_reason(self) -> None:
        """Interrupted, it cannot show where partitions continue, and says why."""
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(SECONDS) == 130
        assert "stopped; where each partition continues cannot be shown: [OCQ-326]" in self.said
        assert "Traceback" not in self.said

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._said.close()


@pytest.fixture
def running(project, engine: str) -> Iterator[Running]:
    """A live run that has handled the first events."""
    project.write_events(EVENTS)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    setting = f"event-handling.standard.processing.engine={engine}"
    running = Running(project.patient_command("run", "--set", setting), project.folder)
    running.wait_for(lambda: audited(project.folder / "read.db") == EVENTS)
    yield running
    running.close()


def audited(file: Path) -> int:
    try:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as connection:
            return connection.execute("SELECT count(*) FROM audit").fetchone()[0]
    except sqlite3.OperationalError:
        return 0


@pytest.mark.release  # contract/test_sqlite_files.py; below for the read model
@pytest.mark.parametrize("change", [deleted, moved_over_by_another, write_ahead_log_deleted])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_idle_run_notices_a_moved_or_replaced_event_store(project, running: Running, change) -> None:
    file = project.folder / "events.db"
    project.write_events(EVENTS + 1)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    running.wait_for(lambda: audited(project.folder / "read.db") == EVENTS + 1)  # so it watches the store by now
    change(file)
    running.wait_for(lambda: "OCQ-326" in (said := running.said) and str(file) in said)
    running.ends_with_the_reason()


@pytest.mark.release(engine="spark")
@pytest.mark.release(change=all_deleted)
@pytest.mark.parametrize("change", [all_deleted, replaced_by_a_copy])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_run_writes_nothing_to_a_read_model_moved_or_replaced(project, running: Running, event_line, change) -> None:
    file = project.folder / "read.db"
    moved_into_the_file(file)
    with closing(sqlite3.connect(file)) as witness:  # keeps the file that the run has open, whatever its name
        count = "SELECT count(*) FROM audit"
        assert witness.execute(count).fetchone() == (EVENTS,)
        change(file)
        more = event_line(EVENTS, type="library.book-returned.v1")
        assert project.opencqrs("events", "append", more).code == 0
        running.wait_for(lambda: "OCQ-326" in (said := running.said) and str(file) in said)
        running.ends_with_the_reason()
        assert witness.execute(count).fetchone() == (EVENTS,)

"""Tasks of Spark that never come back, or not in the way that was meant."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from support.output import without_times
from support.sqlite import rows_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="reads /proc"),
]

EVENTS = 40

KILLING_HANDLERS = """
import os, signal
from pathlib import Path
from opencqrs_py import Event, event_handling, on_start
from sqlalchemy import Connection, text

@on_start("catalog")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS seen (id VARCHAR(20) NOT NULL)"))

@event_handling("catalog", types=["library.*"])
def see(event: Event, connection: Connection) -> None:
    connection.execute(text("INSERT INTO seen VALUES (:id)"), {"id": event.id})
    killed = Path(__file__).with_name("killed")
    if event.id == "20" and not killed.exists():
        killed.touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""

WAITING_HANDLERS = """
from pathlib import Path
import threading
from opencqrs_py import Event, event_handling
from sqlalchemy import Connection

@event_handling("catalog", types=["library.*"])
def wait(event: Event, connection: Connection) -> None:
    Path("begun").touch()
    threading.Event().wait()
"""


@pytest.mark.release  # unit/engines/spark/test_engine.py; test_many_rows_of_data_frames.py kills one, too
def test_a_crashed_worker_costs_a_task_and_no_event(project, java):
    project.write("handlers.py", KILLING_HANDLERS)
    project.write_events(EVENTS)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    run = project.opencqrs("run", "--until-caught-up", **java)
    assert run.code == 0, run.err
    assert "Spark could not finish a task" in run.err
    assert (project.folder / "killed").exists()
    seen = rows_of(project.folder / "read.db", "SELECT count(*), count(DISTINCT id) FROM seen")
    assert seen == [(EVENTS, EVENTS)]


def running(project) -> subprocess.Popen[str]:
    """Start a run whose handlers never return; return it when the first of them was called."""
    project.write("handlers.py", WAITING_HANDLERS)
    project.write_events(EVENTS)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    process = subprocess.Popen(
        project.patient_command("run"),
        cwd=project.folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (project.folder / "begun").exists():
        with suppress(subprocess.TimeoutExpired):
            pytest.fail(f"the run ended with {process.wait(timeout=0.05)}: {process.communicate()[1]}")
    return process


@pytest.mark.release
def test_a_killed_jvm_ends_the_run_with_exit_code_1_and_is_reported(project):
    process = running(project)
    try:
        os.kill(java_below(process.pid), signal.SIGKILL)
        _, err = process.communicate(timeout=300)
        assert process.returncode == 1
        assert "\n[OCQ-403] Spark's JVM has gone" in err
        assert "Traceback" not in err
    finally:
        process.kill()


@pytest.mark.release
def test_a_task_whose_handler_never_returns_is_cancelled_when_a_stop_times_out(project):
    process = running(project)
    try:
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
        assert process.returncode == 130, err
        assert "stopped; each partition" in err
        assert "Traceback" not in err
    finally:
        process.kill()


def java_below(parent: int) -> int:
    """Return the id of the JVM that a process has started."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            its_parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if its_parent == parent and b"SparkSubmit" in (folder / "cmdline").read_bytes():
                return int(folder.name)
    return pytest.fail("no JVM was started")


NOTING_HANDLERS = """
import os
from opencqrs_py import Event, event_handling, on_start
from sqlalchemy import Connection, text

@on_start("catalog")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS seen (id VARCHAR(20) NOT NULL, process INT NOT NULL)"))

@event_handling("catalog", types=["library.*"])
def see(event: Event, connection: Connection) -> None:
    connection.execute(text("INSERT INTO seen VALUES (:id, :process)"), {"id": event.id, "process": os.getpid()})
"""


def test_a_short_backlog_is_done_before_spark_has_started(project):
    project.write("handlers.py", NOTING_HANDLERS)
    project.write_events(EVENTS)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    run = subprocess.Popen(
        project.command("run", "--until-caught-up", "--set", "spark.driver-handles=while-starting"),
        cwd=project.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    out, err = run.communicate(timeout=300)
    assert run.returncode == 0, err
    assert "starting Spark (local[2])" in err
    assert "Traceback" not in out + err
    usual = ("[catalog ", "settings: ", "created a new, empty", "created new, empty", "starting Spark")
    assert [line for line in without_times(err).splitlines() if not line.startswith(usual)] == []
    assert rows_of(project.folder / "read.db", "SELECT DISTINCT process FROM seen") == [(run.pid,)]
    assert rows_of(project.folder / "read.db", "SELECT count(*), count(DISTINCT id) FROM seen") == [(EVENTS, EVENTS)]

"""Ctrl-C and SIGTERM stop cleanly. SIGKILL is in ``test_soaks.py``."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from contextlib import closing, suppress

import pytest

SLOW_HANDLERS = """
import time
from opencqrs_py import Event, event_handling
from sqlalchemy import Connection

@event_handling("catalog", types=["library.*"])
def lend(event: Event, connection: Connection) -> None:
    time.sleep(0.005)
"""


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_within_five_seconds_and_says_where_each_partition_stands(project, engine, sent):
    project.write("handlers.py", SLOW_HANDLERS)
    project.write_events(20_000)
    project.opencqrs("events", "import", "events.ndjson")
    size = ("--set", "event-handling.standard.processing.batch-size=50")
    with subprocess.Popen(
        project.command("run", "--set", engine, *size),
        cwd=project.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        wait_for_progress(project, process)
        began = time.monotonic()
        os.killpg(process.pid, sent)  # as a terminal does: everybody in the group gets it
        try:
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()  # which does nothing when it has ended
        seconds = time.monotonic() - began
    assert process.returncode == 130, err
    assert seconds < 5
    assert "Traceback" not in err
    assert "stopped; each partition goes on from here:" in err
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["catalog", f"{n}/4"] for n in range(4)]


def wait_for_progress(project, process) -> None:
    until = time.monotonic() + 180
    while time.monotonic() < until:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.05)
            pytest.fail("the run ended by itself")
        with (
            closing(sqlite3.connect(project.folder / "read.db")) as database,
            suppress(sqlite3.OperationalError),  # there are no tables yet
        ):
            if database.execute("SELECT max(position) FROM opencqrs_progress").fetchone()[0]:
                return
    pytest.fail("no progress was made")

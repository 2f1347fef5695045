"""Ctrl-C and SIGTERM stop cleanly. SIGKILL is in ``test_soaks.py``."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import pytest
from support.engines import ENGINES
from support.sqlite import rows_of

SLOW_HANDLERS = """
import time
from opencqrs_py import Event, event_handling
from sqlalchemy import Connection

@event_handling("catalog", types=["library.*"])
def lend(event: Event, connection: Connection) -> None:
    time.sleep(0.005)
"""


@pytest.mark.release(engine="spark")
@pytest.mark.release(sent=signal.SIGTERM)  # during the start, below
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_interrupt_stops_cleanly_and_reports_the_position_of_each_partition(project, engine, sent):
    project.write("handlers.py", SLOW_HANDLERS)
    project.write_events(4_000)
    project.opencqrs("events", "import", "events.ndjson")
    settings = (f"engine={engine}", "batch-size=50")
    arguments = [word for each in settings for word in ("--set", f"event-handling.standard.processing.{each}")]
    with subprocess.Popen(
        project.patient_command("run", *arguments),
        cwd=project.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        wait_for_progress(project)
        os.killpg(process.pid, sent)  # as a terminal does: everybody in the group gets it
        try:
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()  # which does nothing when it has ended
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "stopped; each partition continues from here:" in err
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["catalog", f"{n}/4"] for n in range(4)]


@pytest.mark.release  # as during the start, below
def test_sigterm_ends_with_the_configured_exit_code(project):
    project.write_events(10)
    project.opencqrs("events", "import", "events.ndjson")
    settings = ("run.sigterm-exit-code=0", "event-handling.standard.processing.engine=thread")
    command = project.patient_command("run", *(word for setting in settings for word in ("--set", setting)))
    with subprocess.Popen(command, cwd=project.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_for_progress(project)
        process.send_signal(signal.SIGTERM)
        try:
            _, err = process.communicate(timeout=300)
        finally:
            process.kill()
    assert process.returncode == 0
    assert b"stopped; each partition continues from here:" in err


SENT_AT_AN_IMPORT = """
import os, signal, sys
from opencqrs_py.cli import main, signals
signals.END_SECONDS = 600
module = sys.argv.pop(1)

class Sender:
    def find_spec(self, name, path=None, target=None):
        if name == module:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Sender())
main()
"""


@pytest.mark.parametrize(
    "module", ["opencqrs_py.cli.main", "click", "opencqrs_py.assembly.application", "pydantic", "opencqrs_py.config"]
)
@pytest.mark.few
def test_sigterm_at_any_time_during_the_start_ends_with_the_configured_exit_code(project, module):
    command = [sys.executable, "-c", SENT_AT_AN_IMPORT, module, "run", "--set", "run.sigterm-exit-code=7"]
    ended = subprocess.run(command, cwd=project.folder, capture_output=True, text=True, check=False, timeout=300)
    assert (ended.returncode, ended.stdout, ended.stderr) == (7, "", "interrupted\n")


def test_an_interrupt_while_spark_starts_ends_without_a_traceback(project):
    project.write_events(20)
    project.opencqrs("events", "import", "events.ndjson")
    command = project.command("run", "--set", "event-handling.standard.processing.engine=spark")
    with subprocess.Popen(
        command, cwd=project.folder, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stderr is not None
            while "starting Spark" not in (line := process.stderr.readline()):
                assert line
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=300)  # its end needs that no process holds the pipe
        finally:
            process.kill()
    assert process.returncode == 130
    assert err.splitlines()[-1] in {"interrupted", "stopped; each partition continues from here:"}
    assert "Traceback" not in err
    assert "py4j" not in err


def test_an_interrupted_import_says_so_in_one_line_and_can_be_repeated(project):
    lines = [
        json.dumps({"specversion": "1.0", "id": str(n), "source": "s", "type": "t", "subject": "/a", "data": {}}) + "\n"
        for n in range(5_000)
    ]
    project.write("events.ndjson", lines[0])
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    with subprocess.Popen(
        project.command("events", "import", "-"),
        cwd=project.folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdin is not None
            process.stdin.writelines(lines)
            process.stdin.flush()  # a pipe holds a few hundred of them, so it has taken the others
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=300)
        finally:
            process.kill()
    *before, last = err.splitlines()
    assert (process.returncode, out, last) == (130, "", "interrupted")
    assert all("events read (" in line for line in before)  # the progress that a slow import reports
    project.write("events.ndjson", "".join(lines))
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    assert rows_of(project.folder / "events.db", "SELECT count(*), max(position) FROM opencqrs_events") == [
        (5_000,) * 2
    ]


HANGING = """
import time
from dependency_injector import containers, providers
from opencqrs_py import Event, event_handling

@event_handling("catalog", types=["library.*"])
def lend(event: Event) -> None:
    print("in hand", flush=True)
    while True:
        time.sleep(1)

class Controller:
    is_running = True

    def stop(self) -> None:
        print("asked to stop", flush=True)
        while True:
            time.sleep(1)

def register(handle, settings):
    handle.start()
    return Controller()

class Controllers(containers.DeclarativeContainer):
    mine = providers.Object(register)
"""


@pytest.mark.parametrize(("setting", "code"), [("130", 130), ("0", 0)])
@pytest.mark.release  # unit/cli/test_signals.py
def test_a_second_sigterm_ends_a_hanging_process_at_once(project, setting, code):
    project.write("handlers.py", HANGING)
    project.write_events(2)
    project.opencqrs("events", "import", "events.ndjson")
    settings = {
        "run.sigterm-exit-code": setting,
        "event-handling.standard.processing.engine": "thread",
        "event-handling.groups.catalog.life-cycle.partitions": "1",
        "event-handling.groups.catalog.life-cycle.controller-registration": "mine",
    }
    words = (word for key, value in settings.items() for word in ("--set", f"{key}={value}"))
    command = project.patient_command("run", *words)
    with subprocess.Popen(
        command, cwd=project.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "in hand\n"
            process.send_signal(signal.SIGTERM)
            assert process.stdout.readline() == "asked to stop\n"
            while process.poll() is None:  # the same signal twice in a moment is one
                process.send_signal(signal.SIGTERM)
                with suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.1)
            _, err = process.communicate(timeout=300)
        finally:
            process.kill()
    assert (process.returncode, err.splitlines()[-1]) == (
        code,
        "interrupted before catalog 0/1 had stopped; events that were not committed are handled again",
    )
    assert "waiting for" not in err


def wait_for_progress(project) -> None:
    for _ in range(400):
        answered = project.opencqrs("status", "--format", "json")
        if answered.code == 0 and any(p["position"] for s in answered.json for p in s["partitions"]):
            return
    pytest.fail("no progress was made")

"""Standard streams that are closed, or cannot write every character: a service manager, a shell, an old locale."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

EVENT = '{"id": "1", "source": "urn:library", "type": "t", "subject": "/日本", "data": {"title": "😀"}}\n'


FAILING = """
import time
from opencqrs_py import Event, event_handling

tried = set()

@event_handling("books", types=["library.*"])
def handle(event: Event) -> None:
    if event.id not in tried:
        tried.add(event.id)
        time.sleep(0.02)  # the reader ends meanwhile
        raise ValueError("at the first attempt")
"""


def opencqrs(project, command, **variables):
    """Run a command as a shell does, with redirections."""
    program = f"exec '{sys.executable}' -m opencqrs_py {command}"
    return in_shell(project, program, "/bin/sh", **variables)


def opencqrs_in_pipe(project, command, after=""):
    """Run a command in a pipe, whose exit code is that of the command."""
    return in_shell(project, f"set -o pipefail; '{sys.executable}' -m opencqrs_py {command}{after}", "/bin/bash")


def in_shell(project, program, shell, **variables):
    environment = os.environ | variables
    return subprocess.run([shell, "-c", program], cwd=project.folder, env=environment, capture_output=True, check=False)


@pytest.mark.parametrize("command", ["import", "append"])
@pytest.mark.release(command="append")
def test_an_import_from_a_closed_standard_input_is_refused_and_nothing_is_written(project, command):
    ran = opencqrs(project, f"events {command} - <&-")
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert ran.stderr.decode().splitlines()[-1] == (
        "Error: standard input (-) is closed: name a file, or pass events with | or <"
    )
    assert project.opencqrs("events", "list", "--format", "json").json == []


@pytest.mark.parametrize("command", ["status", "status --format json"])
@pytest.mark.release(command="status --format json")
def test_a_command_whose_streams_are_closed_works_without_them(project, command):
    assert project.opencqrs(*command.split()).code == 0  # which names the databases that it has created
    ran = opencqrs(project, f"{command} <&- >&-")
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert opencqrs(project, f"{command} --project nowhere <&- >&- 2>&-").returncode == 2


def test_characters_that_the_output_cannot_encode_are_escaped(project):
    project.write("events.ndjson", EVENT)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    text = opencqrs(project, "events list", PYTHONIOENCODING="latin-1")
    assert (text.returncode, text.stderr) == (0, b"")
    assert rb"/\u65e5\u672c" in text.stdout
    listed = opencqrs(project, "events list --format json", PYTHONIOENCODING="latin-1")
    assert (listed.returncode, listed.stderr) == (0, b"")
    assert json.loads(listed.stdout.decode("latin-1"))[0]["data"] == {"title": "😀"}


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.release(form="json")
def test_a_run_continues_when_the_reader_of_its_messages_has_ended(project, form):
    project.write("handlers.py", FAILING)
    project.write_events(30)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    run = f"run --until-caught-up --set event-handling.standard.processing.engine=thread --set logging.format={form}"
    retry = "--set event-handling.standard.retry.initial-interval=10ms"
    ran = opencqrs_in_pipe(project, f"{run} {retry} --format json 2>&1 >result.json | true", "; cat result.json")
    result = json.loads(ran.stdout)
    assert result["skipped"] == 0
    assert [(one["group"], one["lag"]) for one in result["groups"]] == [("books", 0)]


@pytest.mark.release  # as a message, above
def test_a_print_to_a_reader_that_has_ended_makes_no_handler_fail(project):
    project.write("handlers.py", PRINTING_ONLY)
    project.write_events(3)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    once = "--set event-handling.standard.retry.max-attempts=1"
    run = f"run --until-caught-up {' '.join(THREAD)} {once} --format json"
    ran = opencqrs_in_pipe(project, f"{run} 2>&1 >result.json | true", "; cat result.json")
    result = json.loads(ran.stdout)
    assert [result[name] for name in ("failed", "skipped", "parked")] == [False, 0, 0]


@pytest.mark.parametrize("messages", ["2>/dev/full", "2>&1 >/dev/null | true"])
@pytest.mark.release  # as the line of a file, below
def test_messages_that_cannot_be_written_change_no_exit_code(project, messages):
    project.write_events(1)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    for command, code in (("groups stop catalog", 0), ("groups stop catalg", 2), ("groups stop catalog --no", 2)):
        ran = opencqrs_in_pipe(project, f"{command} {messages}")
        assert ran.returncode == code


@pytest.mark.parametrize(("output", "error"), [("| true", b""), (">/dev/full", b"the output cannot be written: ")])
@pytest.mark.release(output="| true")
def test_all_files_are_imported_even_if_the_line_of_one_cannot_be_written(project, event_line, output, error):
    for number in range(3):
        project.write(f"{number}.ndjson", event_line(number))
    ran = opencqrs_in_pipe(project, f"events import 0.ndjson 1.ndjson 2.ndjson {output}")
    assert ran.returncode == 1
    assert error in ran.stderr
    assert [one["id"] for one in project.opencqrs("events", "list", "--format", "json").json] == ["0", "1", "2"]


THREAD = ("--set", "event-handling.standard.processing.engine=thread")
PRINTING_ONLY = """
from opencqrs_py import Event, event_handling

@event_handling("printing")
def handle(event: Event) -> None:
    print("x" * 70_000, flush=True)
"""

PRINTING = """
import os
from opencqrs_py import Event, event_handling, job, on_start
from sqlalchemy import Connection, text

print("imported")

@on_start("printing")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS printed (id VARCHAR(20) PRIMARY KEY)"))

@event_handling("printing")
def show(raw: Event, connection: Connection) -> None:
    print("handled by print", flush=True)
    os.system("echo handled by a program")
    connection.execute(text("INSERT INTO printed VALUES (:id)"), {"id": raw.id})

@job("tidy")
def tidy() -> None:
    print("tidied", flush=True)
"""


@pytest.mark.parametrize(
    ("command", "printed"),
    [
        ("run --until-caught-up", ["imported", "handled by print", "handled by a program"]),
        ("jobs run tidy --here", ["imported", "tidied"]),
        ("groups rebuild printing", ["imported", "handled by print"]),
        ("conditions", ["imported"]),
    ],
)
def test_what_the_project_prints_does_not_get_into_json(project, command, printed):
    project.write("handlers.py", PRINTING)
    project.write_events(3)
    project.opencqrs("events", "import", "events.ndjson")
    if "rebuild" in command:
        project.opencqrs("run", "--until-caught-up", *THREAD)
    ran = project.opencqrs(*command.split(), "--format", "json", *THREAD)
    assert (ran.code, bool(ran.json)) == (0, True)
    assert [line for line in printed if line not in ran.err.splitlines()] == []


@pytest.mark.spark
@pytest.mark.release  # unit/engines/spark/test_launching.py
def test_what_workers_of_spark_print_does_not_get_into_json(project):
    project.write("handlers.py", PRINTING)
    project.write_events(3)
    project.opencqrs("events", "import", "events.ndjson")
    ran = opencqrs(project, "run --until-caught-up --format json")  # with Java of its own, which inherits the streams
    assert (ran.returncode, bool(json.loads(ran.stdout))) == (0, True)
    printed = {"imported", "handled by print", "handled by a program"}
    assert printed <= set(ran.stderr.decode().splitlines())


def test_what_the_project_prints_stays_on_standard_output_with_text(project):
    project.write("handlers.py", PRINTING)
    assert "imported" in project.opencqrs("conditions").out.splitlines()


LOGGING_TO_A_FILE = """
import logging.config

to_file = {"class": "logging.FileHandler", "filename": "opencqrs.log"}
logging.config.dictConfig({
    "version": 1,
    "handlers": {"file": to_file, "console": {"class": "logging.StreamHandler"}},
    "loggers": {"opencqrs": {"handlers": ["file"], "propagate": False}},
    "root": {"handlers": ["console"]},
})
"""


def test_a_failure_is_printed_although_the_project_logs_ours_to_a_file(project):
    project.write("handlers.py", LOGGING_TO_A_FILE + FAILING)
    project.write_events(1)
    project.opencqrs("events", "import", "events.ndjson")
    soon = ("--set", "event-handling.standard.retry.initial-interval=10ms")
    ran = project.opencqrs("run", "--until-caught-up", *THREAD, *soon)
    assert ran.err.count("failed on attempt 1 (ValueError: at the first attempt)") == 1
    assert "failed on attempt 1" in (project.folder / "opencqrs.log").read_text()

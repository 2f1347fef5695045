"""``opencqrs run`` with ``logging.format: json``: every line that it writes is one of JSON."""

from __future__ import annotations

import json
import re
import signal
import subprocess
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest

THREAD = ("--set", "event-handling.standard.processing.engine=thread")
LOOKS = 10_000
JSON = ("--set", "logging.format=json")
POISON = """
from opencqrs_py import Event, event_handling

@event_handling("audit", types=["library.*"])
def audit(raw: Event) -> None:
    if raw.id == "3":
        raise ValueError("two\\nlines of \\x1b[31m hunter22")
"""


def lines(text: str) -> list[dict[str, Any]]:
    """Return the lines, each of which has to be JSON."""
    found = [json.loads(line) for line in text.splitlines()]
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in found)
    return found


def imported(project: Any) -> Any:
    project.write_events(40)
    project.opencqrs("events", "import", "events.ndjson")
    return project


def test_a_run_writes_lines_ending_with_the_position_of_each_partition(project):
    ran = imported(project).opencqrs("run", "--until-caught-up", *THREAD, *JSON)
    assert (ran.code, ran.out) == (0, "")
    first, *_ = found = lines(ran.err)
    assert first["message"].startswith("settings: application.yaml; profiles: default")
    (audit,) = [line for line in found if line.get("group") == "audit" and "lag" in line]
    assert audit["message"] == "[audit 0/1] 40 of 40, lag 0, stopped"
    assert (audit["partition"], audit["position"], audit["lag"]) == ("0/1", 40, 0)


def test_errors_of_handlers_and_skipped_events_are_lines_without_secrets(project):
    project.write("handlers.py", POISON)
    settings = ("--set", "event-handling.standard.retry.policy=none", "--set", "spark.conf.my.password=hunter22")
    ran = imported(project).opencqrs("run", "--until-caught-up", *THREAD, *JSON, *settings)
    assert ran.code == 3
    found = lines(ran.err)
    (skipped,) = [line for line in found if line.get("action") == "skip"]
    assert (skipped["level"], skipped["group"], skipped["position"], skipped["attempt"]) == ("ERROR", "audit", 4, 1)
    assert "two" in skipped["message"]
    assert "hunter22" not in ran.err
    assert [line["level"] for line in found if line["message"].startswith("1 event skipped")] == ["WARNING"]


def test_the_json_result_is_unchanged_by_json_logs(project):
    ran = imported(project).opencqrs("run", "--until-caught-up", "--format", "json", *THREAD, *JSON)
    assert (ran.code, ran.json["failed"]) == (0, False)
    assert lines(ran.err) == []


def test_an_error_that_prevents_a_run_is_a_line_with_its_code(project):
    project.write("handlers.py", "")
    ran = project.opencqrs("run", *THREAD, *JSON)
    assert (ran.code, ran.out) == (2, "")
    assert [(line["level"], line["code"]) for line in lines(ran.err) if "code" in line] == [("ERROR", "OCQ-508")]


def test_an_interrupt_is_reported_in_lines(project):
    command = imported(project).patient_command("run", *THREAD, *JSON, "--set", "http.bind=0")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=project.folder, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        began = [next(process.stderr)]
        while "answering on" not in began[-1]:
            began.append(next(process.stderr))
        port = int(re.findall(r":(\d+): ", json.loads(began[-1])["message"])[0])
        for _ in range(LOOKS):
            if is_ready(port):
                break
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    found = lines("".join(began) + err)
    assert "stopped; each partition continues from here:" in [line["message"] for line in found]
    assert {line["partition"] for line in found if line.get("group") == "catalog"} >= {"0/4", "1/4", "2/4", "3/4"}


def is_ready(port: int) -> bool:
    with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == 200


def test_other_commands_are_unchanged_and_other_formats_are_refused(project):
    assert "never run" in project.opencqrs("status", *JSON).out
    refused = project.opencqrs("run", "--set", "logging.format=xml")
    assert refused.code == 2
    assert "logging.format cannot be 'xml'" in refused.err
    assert "use one of text, json" in refused.err


@pytest.mark.spark
@pytest.mark.release  # a line that Spark is starting, as any other
def test_lines_of_a_run_on_spark_are_json_too(project, java):
    project.environment.update(java)
    ran = imported(project).opencqrs("run", "--until-caught-up", *JSON)
    assert (ran.code, ran.out) == (0, "")
    assert any("starting Spark" in line["message"] for line in lines(ran.err))

"""``opencqrs run`` with ``http.bind``: requests from outside, a stop with a request open, a port in use."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from typing import Any

import pytest

THREAD = ("--set", "event-handling.standard.processing.engine=thread")
LOOKS = 10_000

Started = tuple[subprocess.Popen[str], str, int]


@pytest.fixture
def run(project: Any) -> Iterator[Callable[..., Started]]:
    """Starts ``opencqrs run`` on a free port and returns the process with the address that its log names."""
    started: list[subprocess.Popen[str]] = []

    def run(*arguments: str) -> Started:
        command = project.patient_command("run", *THREAD, "--set", "http.bind=0", *arguments)
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, cwd=project.folder, stdout=pipe, stderr=pipe, text=True)
        started.append(process)
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"answering on http://([\d.]+):(\d+)", line):
                return process, found[1], int(found[2])
        pytest.fail("it did not listen")

    yield run
    for process in started:
        process.kill()
        process.communicate()


def asked(host: str, port: int, path: str) -> tuple[int, str]:
    with closing(HTTPConnection(host, port, timeout=60)) as connection:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()


def test_a_run_answers_probes_and_ends_despite_an_open_request(project, run):
    project.write_events(40)
    project.opencqrs("events", "import", "events.ndjson")
    process, host, port = run()
    assert asked(host, port, "/health/live") == (200, "alive\n")
    for _ in range(LOOKS):
        status, text = asked(host, port, "/health/ready")
        if status == 200:
            break
    assert (status, text) == (200, "ready: has 5 partitions\n")
    assert 'opencqrs_partition_lag_events{group="catalog",partition="0/4"}' in asked(host, port, "/metrics")[1]
    assert {group["group"] for group in json.loads(asked(host, port, "/status")[1])} == {"audit", "catalog"}
    with closing(socket.create_connection((host, port))) as slow:
        slow.sendall(b"GET /hea")
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped; each partition continues from here:" in err
    assert "GET" not in err
    assert "catalog" in out


JOB = """
from opencqrs_py import JobContext, job

@job("remind")
def remind(context: JobContext) -> None:
    print("reminded", *context.ids, flush=True)
"""


def test_a_job_is_started_only_with_the_token_which_is_never_shown(project, run):
    project.write("jobs.py", JOB)
    process, host, port = run("--set", "http.token=t0ken-of-the-test", "--set", "logging.format=json")
    runs, seen = "/jobs/Remind/runs", ""
    for token, status in (("another", 401), ("t0ken-of-the-test", 202)):
        with closing(HTTPConnection(host, port, timeout=60)) as connection:
            headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": "k"}
            connection.request("POST", runs, b'{"ids": ["4711"]}', headers)
            response = connection.getresponse()
            seen = response.read().decode()
            assert response.status == status
    assert json.loads(seen)["run"] == "remind:key:k"
    waited = project.opencqrs("jobs", "runs", "remind", "--format", "json")
    for _ in range(LOOKS):
        if waited.json[0]["status"] == "succeeded":
            break
        waited = project.opencqrs("jobs", "runs", "remind", "--format", "json")
    (found,) = waited.json
    assert (found["status"], found["trigger"], found["actor"]) == ("succeeded", "http", "http")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert "reminded 4711" in out
    assert "t0ken-of-the-test" not in out + err + waited.out


def test_a_second_run_with_the_same_port_is_refused_with_the_origin_of_the_setting(project, run):
    _, host, port = run()
    second = project.opencqrs("run", *THREAD, "--set", f"http.bind={port}")
    assert second.code == 2
    assert second.err.splitlines()[-3:] == [
        f"[OCQ-538] nothing can listen on {host}:{port}: address already in use",
        "  where: http.bind (argument --set http.bind)",
        "  fix:   stop the process that uses the port, or choose another one; port 0 takes any free port",
    ]


@pytest.mark.parametrize("bind", ["localhost", "http://localhost:80", "*:8080", "70000"])
def test_an_invalid_address_is_refused_with_a_valid_form(project, bind):
    ran = project.opencqrs("run", *THREAD, "--set", f"http.bind={bind}")
    assert ran.code == 2
    assert f"http.bind cannot be '{bind}'" in ran.err
    assert "write " in ran.err

"""Standard streams that are closed, or cannot write every character: a service manager, a shell, an old locale."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

EVENT = '{"id": "1", "source": "urn:library", "type": "t", "subject": "/日本", "data": {"title": "😀"}}\n'


def opencqrs(project, command, **variables):
    """Run a command as a shell does, with what is redirected."""
    program = f"exec '{sys.executable}' -m opencqrs_py {command}"
    environment = os.environ | variables
    return subprocess.run(
        ["/bin/sh", "-c", program], cwd=project.folder, env=environment, capture_output=True, check=False
    )


@pytest.mark.parametrize("command", ["import", "append"])
def test_events_from_a_closed_standard_input_are_refused_and_nothing_is_written(project, command):
    ran = opencqrs(project, f"events {command} - <&-")
    assert (ran.returncode, ran.stdout) == (2, b"")
    assert ran.stderr.decode().splitlines()[-1] == (
        "Error: standard input (-) is closed: name a file, or pass events with | or <"
    )
    assert project.opencqrs("events", "list", "--format", "json").json == []


@pytest.mark.parametrize("command", ["status", "status --format json"])
def test_a_command_whose_streams_are_closed_works_without_them(project, command):
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

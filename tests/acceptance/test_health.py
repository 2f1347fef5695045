"""The health of groups, as another process sees it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

pytestmark = pytest.mark.release(library="sqlite")

THREAD = ("--set", "event-handling.standard.processing.engine=thread")
CLEAR = b"\x1b[2J\x1b[H"
LOOKS = 600  # more than any machine needs; each is a command
POISON = """
from opencqrs_py import Event, NonTransientError, event_handling

@event_handling("audit", types=["library.*"])
def audit(raw: Event) -> None:
    raise NonTransientError("no postgresql://joe:hunter22@host/db")
"""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def library(request: pytest.FixtureRequest, project: Any) -> Any:
    """A project with events, on each database."""
    project.write_events(40)
    if request.param == "postgresql":
        url = request.getfixturevalue("fresh_url")("postgresql")
        settings = (project.folder / "application.yaml").read_text()
        project.write("application.yaml", settings.replace("sqlite:///read.db", url))
    project.opencqrs("events", "import", "events.ndjson")
    return project


@pytest.fixture
def start(library: Any) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a command in the background; it is killed afterwards if it still runs."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        command = library.command(*arguments)
        started.append(subprocess.Popen(command, cwd=library.folder, stdout=pipe, stderr=pipe, text=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def problems(ran: Any) -> set[tuple[str, str | None, str]]:
    groups = json.loads(ran.out)["groups"]
    return {(group["group"], each["partition"], each["problem"]) for group in groups for each in group["problems"]}


def test_a_group_that_no_process_runs_is_unhealthy_unless_it_is_stopped(library):
    never = library.opencqrs("health", *THREAD)
    assert (never.code, [line for line in never.err.splitlines() if not line.startswith("created ")]) == (1, [])
    assert {line for line in never.out.splitlines() if line.startswith("[")} == {
        f"[{group}] no process runs it: start opencqrs run; or, if this is intended, opencqrs groups stop {group}"
        for group in ("audit", "catalog")
    }
    assert library.opencqrs("run", "--until-caught-up", *THREAD).code == 0
    ended = library.opencqrs("health", *THREAD, "--format", "json")
    assert (ended.code, problems(ended)) == (1, {("audit", None, "unowned"), ("catalog", None, "unowned")})
    assert library.opencqrs("groups", "stop", "audit", "catalog", *THREAD).code == 0
    stopped = library.opencqrs("health", *THREAD, "--format", "json")
    assert (stopped.code, stopped.json["healthy"]) == (0, True)
    assert {group["state"] for group in stopped.json["groups"]} == {"stopped"}


def test_a_running_group_is_healthy_and_unowned_once_its_process_is_killed(library, start):
    process = start("run", *THREAD)
    assert any(library.opencqrs("health", *THREAD).code == 0 for _ in range(LOOKS))
    checked = library.opencqrs("status", "--check", *THREAD)
    assert (checked.code, checked.err) == (0, "")
    looks = (library.opencqrs("status", "--format", "json", *THREAD).json for _ in range(LOOKS))
    assert any(all(group["lag"] == 0 for group in look) for look in looks)  # else it may not have begun
    process.kill()
    process.wait()
    assert library.opencqrs("health", "catalog", *THREAD).code == 1
    checked = library.opencqrs("status", "--check", *THREAD, "--format", "json")
    assert checked.code == 1
    assert {group["group"] for group in checked.json} == {"audit", "catalog"}
    assert "[catalog] the process that ran it has ended without releasing it: start opencqrs run" in checked.err


@pytest.mark.release  # unit/assembly/test_health.py
def test_a_failed_partition_and_too_much_lag_are_reported_with_a_fix(library, start):
    library.write("handlers.py", POISON)
    start("run", *THREAD)
    for _ in range(LOOKS):
        ran = library.opencqrs("health", "--set", "health.max-lag=39", *THREAD, "--format", "json")
        if problems(ran) == {("audit", "0/1", "failed")}:
            break
    else:
        pytest.fail(ran.out)
    line = library.opencqrs("health", *THREAD).out.splitlines()[-1]
    assert "[audit 0/1] failed at event 0 (library.book-returned.v1) at position 1 on attempt 1: " in line
    assert line.endswith("fix its cause, then opencqrs groups restart audit:0/1")
    assert "hunter22" not in line


@pytest.mark.release  # the problems are unit tests'
def test_a_partition_that_backs_off_for_long_is_reported_as_stalled(library, start):
    library.write("handlers.py", POISON.replace("NonTransientError(", "ValueError("))
    start("run", *THREAD)
    for _ in range(LOOKS):
        ran = library.opencqrs("health", "--set", "health.stalled-after=1ms", *THREAD)
        if "[audit 0/1] backs off for " in ran.out:
            break
    assert ran.code == 1
    assert "at event 0 (library.book-returned.v1) at position 1 on attempt " in ran.out
    assert library.opencqrs("health", "--set", "health.stalled-after=1h", *THREAD).code == 0


@pytest.mark.parametrize(
    "command", [("health",), ("status", "--check"), ("health", "--format", "json"), ("health", "audit")]
)
def test_an_unreachable_database_gives_one_line_and_exit_code_1(project, command):
    project.opencqrs("events", "list")  # creates the event store, which would be another line
    ran = project.opencqrs(*command, "--set", "database.url=postgresql://joe:hunter22@127.0.0.1:1/none")
    said = ran.json["unavailable"] if "json" in command else (ran.out + ran.err).strip()
    assert ran.code == 1
    assert said.startswith("[OCQ-304] ")
    assert "\n" not in said
    assert "hunter22" not in ran.out + ran.err


@pytest.mark.parametrize("command", ["health", "status --check", "health --format json"])
def test_a_folder_without_handlers_and_jobs_is_unhealthy(project, command):
    (project.folder / "handlers.py").unlink()
    ran = project.opencqrs(*command.split())
    assert (ran.code, ran.out) == (2, "")
    assert "[OCQ-508] there is nothing to check: no handlers were found\n  where: " in ran.err
    project.write("work.py", "from opencqrs_py import job\n\n@job('tidy')\ndef tidy() -> None: ...\n")
    assert "OCQ-508" not in project.opencqrs(*command.split()).err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("health", "catalogue"), "[OCQ-509] no handler belongs to a group 'catalogue'"),
        (("health", "--set", "health.max-lag=-1"), "health.max-lag cannot be"),
        (("health", "--set", "health.stalled-after=60"), "the unit is missing"),
        (("status", "--watch", "--check"), "--watch and --check exclude each other"),
        (("status", "--watch", "0"), "--watch"),
    ],
)
def test_wrong_use_gives_exit_code_2_and_is_explained(project, arguments, says):
    ran = project.opencqrs(*arguments)
    assert ran.code == 2
    assert says in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.release  # as on a terminal, below
def test_watch_prints_a_block_each_time_until_ctrl_c(library, start):
    assert library.opencqrs("run", "--until-caught-up", *THREAD).code == 0
    process = start("status", "--watch", "0.1", *THREAD)
    tables = 0
    while tables < 2:
        tables += next(process.stdout).startswith("group ")
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (130, "interrupted\n")


def test_watch_on_a_terminal_refreshes_in_place_and_ends_below_the_last_output(project):
    terminal, end = pty.openpty()
    command = project.command("status", "--watch", "0.1", *THREAD)
    environment = os.environ | {"TERM": "xterm"}
    with subprocess.Popen(command, cwd=project.folder, stdin=end, stdout=end, stderr=end, env=environment) as process:
        os.close(end)
        shown = b""
        while shown.count(CLEAR) < 3:
            shown += os.read(terminal, 65_536)
        process.send_signal(signal.SIGINT)
        with suppress(OSError):  # which is how a terminal ends
            while part := os.read(terminal, 65_536):
                shown += part
    os.close(terminal)
    assert process.returncode == 130
    assert shown.endswith(b"\r\n\r\ninterrupted\r\n")
    assert b"catalog" in shown.split(CLEAR)[-1]


@pytest.mark.release  # as on a terminal, above
def test_watch_in_json_prints_a_line_each_time(library, start):
    assert library.opencqrs("run", "--until-caught-up", *THREAD).code == 0
    process = start("status", "--watch", *THREAD, "--format", "json")
    groups = json.loads(next(process.stdout))
    assert {group["group"]: len(group["partitions"]) for group in groups} == {"audit": 1, "catalog": 4}

"""The health of jobs, as another process sees it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.release(project_with_job="sqlite")

THREAD = ("--set", "event-handling.standard.processing.engine=thread")
LOOKS = 600
JOBS = """
from opencqrs_py import Event, event_handling, job
from sqlalchemy import Connection

@event_handling("audit")
def audit(raw: Event, connection: Connection) -> None:
    pass

@job("remind")
def remind() -> None:
    raise ValueError("no postgresql://joe:hunter22@host/db")
"""
SCHEDULE = ("--set", "jobs.remind.triggers.fixed-rate=1h", "--set", "jobs.remind.retry.policy=none")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def project_with_job(request: pytest.FixtureRequest, project: Any) -> Any:
    """A project with a job that fails, on each database."""
    if request.param == "postgresql":
        url = request.getfixturevalue("fresh_url")("postgresql")
        settings = (project.folder / "application.yaml").read_text()
        project.write("application.yaml", settings.replace("sqlite:///read.db", url))
    settings = (project.folder / "application.yaml").read_text()
    project.write("application.yaml", settings.replace("catalog:", "audit:"))
    project.write("handlers.py", JOBS)
    return project


@pytest.fixture
def start(project_with_job: Any) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a command in the background; it is killed afterwards."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command, null = project_with_job.command(*arguments), subprocess.DEVNULL
        started.append(subprocess.Popen(command, cwd=project_with_job.folder, stdout=null, stderr=null))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_job_that_failed_or_that_no_process_runs_is_unhealthy(project_with_job, start):
    ran = project_with_job.opencqrs("health", *THREAD, *SCHEDULE)
    assert ran.code == 1
    assert "[job remind] no process runs it, and it has a schedule (every 3600 s): start opencqrs run" in ran.out
    assert project_with_job.opencqrs("health", "audit", *THREAD, *SCHEDULE, "--format", "json").json["jobs"] == []
    process = start("run", *THREAD, *SCHEDULE)
    for _ in range(LOOKS):
        ran = project_with_job.opencqrs("health", *THREAD, *SCHEDULE, "--format", "json")
        (job,) = ran.json["jobs"]
        if job["state"] == "failed":
            break
    assert ran.code == 1
    (problem,) = job["problems"]
    assert "failed at " in problem["message"]
    assert "hunter22" not in ran.out
    (line,) = (
        each for each in project_with_job.opencqrs("status", *THREAD, *SCHEDULE).out.splitlines() if "[job" in each
    )
    assert line.startswith("[job remind] run remind@")
    assert line.endswith("fix its cause, then opencqrs jobs run remind")
    status = project_with_job.opencqrs("status", *THREAD, *SCHEDULE, "--format", "json")
    assert [group["group"] for group in status.json] == ["audit"]
    checked = project_with_job.opencqrs("status", "--check", *THREAD, *SCHEDULE, "--format", "json")
    assert (checked.code, "[job remind] run remind@" in checked.err) == (1, True)
    (node,) = project_with_job.opencqrs("nodes", "--format", "json").json
    assert node["jobs"] == ["remind"]
    header, row = project_with_job.opencqrs("nodes").out.splitlines()
    assert header.split() == ["node", "state", "started", "jobs", "partitions"]
    assert row.split()[3] == "1"
    process.kill()
    process.wait()
    ran = project_with_job.opencqrs("health", *THREAD, *SCHEDULE)
    assert "[job remind] no process runs it" in ran.out


def test_a_job_on_demand_or_paused_is_healthy_without_a_process(project_with_job):
    assert project_with_job.opencqrs("run", "--until-caught-up", *THREAD).code == 0
    assert project_with_job.opencqrs("groups", "stop", "audit", *THREAD).code == 0
    assert project_with_job.opencqrs("health", *THREAD).code == 0
    assert project_with_job.opencqrs("health", *THREAD, *SCHEDULE).code == 1
    assert project_with_job.opencqrs("jobs", "pause", "remind").code == 0
    ran = project_with_job.opencqrs("health", *THREAD, *SCHEDULE)
    assert ran.code == 0
    assert [line.split() for line in ran.out.splitlines()][-2:] == [["job", "state"], ["remind", "paused"]]

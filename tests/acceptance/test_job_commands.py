"""What a person sees of jobs on the command line, does with them, and does wrong."""

from __future__ import annotations

import getpass
import re
import signal
import socket
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest

HANDLERS = """
import time
from pathlib import Path
from opencqrs_py import JobContext, event_handling, job
from sqlalchemy import Column, Connection, Integer, MetaData, Select, String, Table, select, update

metadata = MetaData()
invoices = Table("invoices", metadata, Column("id", Integer, primary_key=True), Column("reminded", Integer))

def due(connection: Connection) -> Select:
    metadata.create_all(connection)
    return select(invoices.c.id).where(invoices.c.reminded == 0)

@job("remind", input=due)
def remind(context: JobContext, connection: Connection) -> None:
    connection.execute(update(invoices).where(invoices.c.id.in_(context.ids)).values(reminded=1))

@job("clean-up")
def clean_up(context: JobContext) -> None:
    raise ValueError("the attic is locked")

@job("count")
def count(context: JobContext) -> None:
    Path("begun").touch()
    context.progress(7, 10)
    while True:
        context.raise_if_cancelled()
        time.sleep(0.01)
"""
EVENTS = """
@event_handling("catalog", types=["library.*"])
def lend(event: dict) -> None: ...
"""
SETTINGS = """
opencqrs:
  event-store: {url: "sqlite:///events.db"}
  database: {url: "sqlite:///read.db"}
  event-handling: {standard: {processing: {engine: thread}}}
"""
JOBS = """\
  jobs:
    remind: {triggers: {cron: "0 3 * * *", zone: Europe/Berlin}, transaction: item}
    clean-up: {retry: {policy: none}}
"""
VARYING = ((re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z?"), "T"), (re.compile(r":[0-9a-f]{12}\b"), ":RUN"))
WHO = f"{getpass.getuser()}@{socket.gethostname()}"
NOBODY = "no process runs jobs now: the run begins when one does (opencqrs run), or use --here"
RUN_CODES = {"succeeded": 0, "failed": 1, "skipped": 3, "over": 4}
PATIENCE = 300  # seconds


@pytest.fixture
def jobs(project: Any) -> Any:
    """A project with three jobs and no handlers; two of five invoices are to be reminded of."""
    project.write("handlers.py", HANDLERS)
    project.write("application.yaml", SETTINGS + JOBS)
    with closing(sqlite3.connect(project.folder / "read.db")) as database, database:
        database.execute("CREATE TABLE invoices (id INTEGER NOT NULL PRIMARY KEY, reminded INTEGER)")
        database.executemany("INSERT INTO invoices VALUES (?, ?)", [(1, 1), (2, 0), (3, 1), (4, 0), (5, 1)])
    return project


def unvaried(text: str) -> list[str]:
    for pattern, name in VARYING:
        text = pattern.sub(name, text)
    return [" ".join(line.split()) for line in text.splitlines()]


def runs(project: Any, *name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = project.opencqrs("jobs", "runs", *name, "--format", "json").json
    return found


def of_list(project: Any, name: str) -> dict[str, Any]:
    (found,) = (row for row in project.opencqrs("jobs", "list", "--format", "json").json if row["job"] == name)
    assert isinstance(found, dict)
    return found


def until(seen: Callable[[], Any]) -> Any:
    """Poll until there is output; each poll is a command, which takes its time."""
    for _ in range(400):
        if found := seen():
            return found
    raise AssertionError("it was never so")


@contextmanager
def running(project: Any, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command in a separate process, and end it at the end if it is still running."""
    with subprocess.Popen(
        project.patient_command(*arguments),
        cwd=project.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def in_company(project: Any) -> Iterator[subprocess.Popen[str]]:
    """Have a process of ``opencqrs run`` run the jobs of the project."""
    with running(project, "run") as process:
        until(lambda: of_list(project, "remind")["nodes"])
        yield process


# ------------------------------------------------------------------------------------------------------- one process


def test_j20_the_list_shows_each_job_with_its_schedule_and_that_no_process_runs_jobs(jobs):
    ran = jobs.opencqrs("jobs", "list", "--set", "node.name=here")
    assert ran.code == 0
    assert unvaried(ran.out) == [
        "job schedule next state last run ended lag",
        "clean-up on demand - idle - - -",
        "count on demand - idle - - -",
        "remind 0 3 * * * (Europe/Berlin) - idle - - -",
    ]
    assert ran.err.splitlines() == ["no process runs jobs: opencqrs run --set node.name=here"]


def test_a_requested_run_is_reported_once(jobs):
    ran = jobs.opencqrs("jobs", "run", "count", "--set", "node.name=here")
    assert ran.code == 0
    assert (ran.out + ran.err).count("was requested") == 1
    assert "(opencqrs run --set node.name=here), or use --here" in ran.err
    assert ran.out.rstrip().endswith(" --set node.name=here")
    nodes = jobs.opencqrs("nodes", "--set", "node.name=here")
    assert nodes.err.splitlines() == ["no node runs processors: opencqrs run --set node.name=here"]


def test_a_job_run_locally_handles_what_is_left_and_nothing_the_second_time(jobs):
    ran = jobs.opencqrs("jobs", "run", "remind", "--here")
    assert ran.code == RUN_CODES["succeeded"]
    first, *details = unvaried(ran.out)
    assert first == "run remind:RUN of job remind: succeeded"
    assert [line for line in details if not line.startswith("node")] == [
        f"started by: manual, {WHO}",
        "began: T",
        "ended: T",
        "items: 2",
    ]
    assert unvaried(ran.err) == ["[job remind] run remind:RUN succeeded, 2 items"]
    again = jobs.opencqrs("jobs", "run", "remind", "--here", "--format", "json")
    assert (again.code, again.err, again.json["status"], again.json["items"]) == (0, "", "succeeded", 0)


def test_a_run_for_ids_leaves_out_and_reports_those_to_which_the_job_does_not_apply(jobs):
    ran = jobs.opencqrs("jobs", "run", "remind", "--id", "4", "--id", "5", "--id", "4", "--here")
    assert ran.code == RUN_CODES["succeeded"]
    assert "for: 4, 5" in unvaried(ran.out)
    assert "items: 1 of 2; the job does not apply to the others" in unvaried(ran.out)
    (run,) = runs(jobs, "remind")
    assert (run["ids"], run["items"]) == (["4", "5"], 1)


def test_an_empty_id_is_refused(jobs):
    refused = jobs.opencqrs("jobs", "run", "remind", "--id", "")
    assert refused.code == 2
    assert "an --id is empty: is its variable set?" in refused.err


def test_an_id_that_is_not_a_number_matches_none_of_the_jobs_ids_and_does_nothing(jobs):
    ran = jobs.opencqrs("jobs", "run", "remind", "--id", "four", "--here")
    assert ran.code == RUN_CODES["succeeded"]
    assert "items: 0 of 1; the job does not apply to the others" in unvaried(ran.out)


def test_a_failing_job_shows_its_own_lines_and_ends_with_1(jobs):
    ran = jobs.opencqrs("jobs", "run", "clean-up", "--here")
    assert ran.code == RUN_CODES["failed"]
    assert "error: ValueError: the attic is locked" in unvaried(ran.out)
    assert (ran.out + ran.err).count('raise ValueError("the attic is locked")') == 1
    assert "opencqrs_py/" not in ran.out + ran.err
    assert ran.out.splitlines()[-1] == "next: opencqrs jobs run clean-up"
    listed = jobs.opencqrs("jobs", "list")
    assert "clean-up: ValueError: the attic is locked" in listed.out
    (run,) = runs(jobs)
    shown = jobs.opencqrs("jobs", "show", run["run"], "--format", "json").json
    assert shown == run
    assert run["error"].startswith("ValueError: the attic is locked\n")


def test_waiting_for_a_run_that_no_process_begins_times_out_and_the_run_can_be_cancelled(jobs):
    ran = jobs.opencqrs("jobs", "run", "remind", "--wait", "--timeout", "100ms")
    assert ran.code == RUN_CODES["over"]
    _, nobody, first, fix = unvaried(ran.err)
    assert nobody == NOBODY
    assert fix == "fix: it is not cancelled: opencqrs jobs show remind:RUN shows how it ends"
    assert first == "[OCQ-664] run remind:RUN has not ended within 0.1 s: it is queued"
    assert unvaried(jobs.opencqrs("jobs", "cancel", "remind").out) == ["remind:RUN: cancelled"]
    nothing = jobs.opencqrs("jobs", "cancel", "remind")
    assert (nothing.code, nothing.out) == (0, "")
    assert nothing.err.splitlines() == ["job remind has no run that has not ended"]


def test_a_pause_is_shown_with_its_reason_until_the_job_is_resumed(jobs):
    paused = jobs.opencqrs("jobs", "pause", "remind", "--reason", "the [printer] is broken", "--format", "json")
    assert (paused.code, paused.json["job"], paused.json["paused"]["by"]) == (0, "remind", WHO)
    assert f"paused by {WHO}: the [printer] is broken" in jobs.opencqrs("jobs", "list").out
    assert jobs.opencqrs("jobs", "run", "remind", "--here").code == RUN_CODES["succeeded"], "people still can"
    assert jobs.opencqrs("jobs", "resume", "remind", "--format", "json").json == {"job": "remind", "paused": None}
    assert of_list(jobs, "remind")["paused"] is None


def test_the_next_instants_are_explained_in_the_zone_of_the_job(jobs):
    ran = jobs.opencqrs("jobs", "explain", "remind", "--count", "3", "--format", "json")
    assert ran.code == 0
    assert [row["local"].split()[1] for row in ran.json] == ["03:00:00"] * 3
    assert [row["at"] for row in ran.json] == sorted({row["at"] for row in ran.json})
    refused = jobs.opencqrs("jobs", "explain", "clean-up")
    assert refused.code == 2
    assert refused.err.splitlines()[0] == "[OCQ-669] job 'clean-up' has no schedule"


def test_a_change_to_summer_time_is_noted(jobs):
    nightly_in_march = "jobs.remind.triggers.cron=30 2 * 3 *"
    ran = jobs.opencqrs("jobs", "explain", "remind", "--count", "31", "--set", nightly_in_march)
    (line,) = (line for line in ran.out.splitlines() if "clocks" in line)
    assert line.endswith("03:00:00 CEST  the clocks go forward: 02:30 does not exist, it runs at 03:00")
    assert len(ran.out.splitlines()) == 31


def test_a_run_until_caught_up_runs_jobs_only_on_request(jobs):
    jobs.opencqrs("jobs", "run", "remind")
    refused = jobs.opencqrs("run", "--until-caught-up")
    assert refused.code == 2, "there are jobs only, and they are not to be run"
    assert "[OCQ-508] no handlers were found" in refused.err
    assert "fix:   add --jobs to run the existing jobs; or decorate" in refused.err
    jobs.write("handlers.py", HANDLERS + EVENTS)
    assert jobs.opencqrs("run", "--until-caught-up").code == 0
    assert [run["status"] for run in runs(jobs)] == ["queued"]
    assert jobs.opencqrs("run", "--until-caught-up", "--jobs").code == 0
    assert [run["status"] for run in runs(jobs)] == ["succeeded"]


def test_a_run_until_caught_up_makes_the_remaining_attempts_and_fails_if_a_job_fails(jobs):
    jobs.opencqrs("jobs", "run", "clean-up")
    waits = [f"jobs.clean-up.retry.{each}" for each in ("policy=fixed", "initial-interval=300ms", "max-attempts=1")]
    ran = jobs.opencqrs("run", "--until-caught-up", "--jobs", *(part for each in waits for part in ("--set", each)))
    assert ran.code == 1
    assert [(run["status"], run["attempt"]) for run in runs(jobs)] == [("failed", 2)]
    assert any(line.startswith("1 run of a job failed: opencqrs jobs runs --set") for line in unvaried(ran.err))
    jobs.opencqrs("jobs", "run", "clean-up")
    ran = jobs.opencqrs("run", "--until-caught-up", "--jobs", "--format", "json")
    assert (ran.code, ran.json["failed"], ran.json["failed_runs"]) == (1, True, 1)
    again = jobs.opencqrs("run", "--until-caught-up", "--jobs", "--format", "json")
    assert (again.code, again.json["failed"], again.json["failed_runs"]) == (0, False, 0)


def test_a_job_whose_name_is_spelled_differently_stays_paused(jobs):
    jobs.opencqrs("jobs", "pause", "clean-up", "--reason", "the key is lost")
    jobs.write("handlers.py", HANDLERS.replace('"clean-up"', '"clean_up"'))
    for command in (("run", "--until-caught-up", "--jobs"), ("jobs", "resume", "clean-up")):
        refused = jobs.opencqrs(*command)
        assert refused.code == 2
        assert "[OCQ-676] job 'clean_up' has no record, but 'clean-up' has" in refused.err
        assert """write @job("clean-up"); or change the column job of its rows in opencqrs_jobs and""" in refused.err
    with closing(sqlite3.connect(jobs.folder / "read.db")) as database, database:
        assert database.execute("SELECT job FROM opencqrs_jobs").fetchall() == [("clean-up",)]
        database.execute("UPDATE opencqrs_jobs SET job = 'clean_up'")
    assert jobs.opencqrs("run", "--until-caught-up", "--jobs").code == 0
    assert of_list(jobs, "clean_up")["paused"]["reason"] == "the key is lost"


@pytest.mark.release  # as those of a removed one, below
def test_runs_of_a_renamed_job_are_reported_and_can_be_cancelled(jobs):
    jobs.opencqrs("jobs", "run", "clean-up")
    jobs.opencqrs("jobs", "run", "remind")
    jobs.write("handlers.py", HANDLERS.replace('"clean-up"', '"sweep"'))
    ran = jobs.opencqrs("run", "--until-caught-up", "--jobs")
    told = (
        "[job clean-up] 1 run has not ended, and neither the code here nor a process has this job. If it was renamed, "
    )
    assert (ran.code, sum(line.startswith(told) for line in unvaried(ran.err))) == (0, 1)
    assert unvaried(jobs.opencqrs("jobs", "cancel", "clean-up").out) == ["clean-up:RUN: cancelled"]
    assert "[job clean-up]" not in jobs.opencqrs("run", "--until-caught-up", "--jobs").err
    gone = jobs.opencqrs("jobs", "cancel", "clean-up")
    assert (gone.code, "[OCQ-667] there is no job 'clean-up'" in gone.err) == (2, True)


def test_a_run_of_a_removed_job_whose_process_was_killed_can_be_cancelled(jobs):
    jobs.opencqrs("jobs", "run", "clean-up")
    with (
        closing(sqlite3.connect(jobs.folder / "read.db")) as database,
        database,
    ):  # as a process leaves it that is killed
        database.execute("UPDATE opencqrs_job_runs SET status = 'running', owner = 'gone', token = 1")
    jobs.write("handlers.py", HANDLERS.replace('"clean-up"', '"sweep"'))
    assert unvaried(jobs.opencqrs("jobs", "cancel", "clean-up").out) == ["clean-up:RUN: cancelled"]
    assert "[job clean-up]" not in jobs.opencqrs("run", "--until-caught-up", "--jobs").err


def test_a_project_with_only_jobs_runs_them_and_shows_no_empty_table(jobs):
    jobs.opencqrs("jobs", "run", "remind")
    ran = jobs.opencqrs("run", "--until-caught-up", "--jobs")
    assert (ran.code, ran.out) == (0, "")
    assert unvaried(ran.err)[1:] == ["[job remind] run remind:RUN succeeded, 2 items"]


# ----------------------------------------------------------------------------------------------------- two processes


def test_a_requested_run_is_done_by_the_running_process_and_can_be_awaited(jobs):
    with in_company(jobs) as process:
        ran = jobs.opencqrs("jobs", "run", "remind", "--wait", "--format", "json")
        assert (ran.code, ran.json["status"], ran.json["items"]) == (0, "succeeded", 2)
        assert ran.json["node"].endswith(f":{process.pid}")
        assert of_list(jobs, "remind")["next_tick"] is not None
        assert jobs.opencqrs("jobs", "run", "clean-up", "--wait").code == RUN_CODES["failed"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out) == (130, "")
    assert err.splitlines()[-1] == "interrupted"


@pytest.mark.release  # unit/jobs skips and cancels runs
def test_an_overlapping_run_is_skipped_and_a_running_one_can_be_cancelled(jobs):
    with in_company(jobs):
        jobs.opencqrs("jobs", "run", "count")
        until(lambda: of_list(jobs, "count")["open"][0]["done"])
        assert "running 7 of 10" in jobs.opencqrs("jobs", "list").out
        skipped = jobs.opencqrs("jobs", "run", "count", "--wait", "--format", "json")
        assert (skipped.code, skipped.json["status"]) == (RUN_CODES["skipped"], "skipped")
        here = jobs.opencqrs("jobs", "run", "count", "--here")
        assert here.code == RUN_CODES["skipped"]
        assert re.search(r"reason: +run count:\w+ has not ended", here.out)
        asked = jobs.opencqrs("jobs", "cancel", "count", "--reason", "it never ends")
        assert unvaried(asked.out) == ["count:RUN: asked to end"]
        (run,) = until(lambda: [run for run in runs(jobs, "count") if run["status"] == "cancelled"])
        assert run["reason"] == f"cancelled by {WHO}: it never ends"


# --------------------------------------------------------------------------------------------------------- mistakes


def code(text: str) -> str:
    return f"from opencqrs_py import Event, JobContext, job\nfrom sqlalchemy import Connection\n{text}\n"


CLEAN = '@job("clean-up")\ndef clean_up() -> None: ...'
MISTAKES: dict[str, tuple[str, str, tuple[str, ...], tuple[str, ...]]] = {
    "a job that there is not": (
        CLEAN,
        "",
        ("jobs", "run", "clean-upp", "--here"),
        ("[OCQ-667] there is no job 'clean-upp'", "did you mean clean-up?"),
    ),
    "a minute that there is not": (
        CLEAN,
        'clean-up: {triggers: {cron: "61 * * * *"}}',
        ("run",),
        ("[OCQ-111] jobs.clean-up.triggers.cron cannot be '61 * * * *'", "application.yaml:", "0 3 * * *"),
    ),
    "seven fields of Quartz": (
        CLEAN,
        'clean-up: {triggers: {cron: "0 0 12 * * ? 2026"}}',
        ("run",),
        ("it has seven fields, as only Quartz takes them", "there is no field for the year"),
    ),
    "two schedules": (
        CLEAN,
        'clean-up: {triggers: {cron: "0 12 * * *", fixed-rate: 5m}}',
        ("jobs", "list"),
        ("[OCQ-123] jobs.clean-up.triggers.fixed-rate and jobs.clean-up.triggers.cron exclude each other", "remove"),
    ),
    "an input that is not a function": (
        '@job("clean-up", input=[1, 2])\ndef clean_up() -> None: ...',
        "",
        ("run",),
        ("[OCQ-200] input is a function that returns ids, got [1, 2]", "handlers.py:3", "input=due_invoices"),
    ),
    "a job without a name": (
        "@job\ndef clean_up() -> None: ...",
        "",
        ("run",),
        ("[OCQ-200] @job needs the name of the job, got none", '@job("clean-up")'),
    ),
    "a job with an empty name": (
        '@job(" ")\ndef clean_up() -> None: ...',
        "",
        ("jobs", "list"),
        ("[OCQ-200] @job needs the name of the job, got ' '", "handlers.py:3"),
    ),
    "standard as its name": (
        '@job("Standard")\ndef clean_up() -> None: ...',
        "",
        ("run",),
        ("[OCQ-200] a job cannot be called 'Standard'", "jobs.standard holds the settings of all jobs"),
    ),
    "two functions with one name": (
        f'{CLEAN}\n@job("cleanUp")\ndef clean_up_again() -> None: ...',
        "",
        ("jobs", "list"),
        ("[OCQ-661] 'clean-up' and 'cleanUp' are one name in settings", "handlers.py:3", "handlers.py:5"),
    ),
    "an argument for an event": (
        '@job("clean-up")\ndef clean_up(event: Event) -> None: ...',
        "",
        ("run",),
        ("[OCQ-205] a job runs without any event and cannot have event", "handlers.py:3 (clean_up)", "JobContext"),
    ),
    "a connection without a database": (
        '@job("clean-up")\ndef clean_up(connection: Connection) -> None: ...',
        "",
        ("run", "--set", "event-store.url=file:events/", "--set", "database.url=null"),
        ("[OCQ-524] a connection or session is asked for, but there is no database", "handlers.py:3", "database.url"),
    ),
    "a job excluded that there is not": (
        f'{CLEAN}\n@job("close-books")\ndef close() -> None: ...',
        "clean-up: {exclusive-with: [close-book]}",
        ("run",),
        ("[OCQ-663] job 'clean-up' excludes 'close-book', which is not a job", "did you mean close-books?"),
    ),
    "a timeout for nothing": (
        CLEAN,
        "",
        ("jobs", "run", "clean-up", "--timeout", "3s"),
        ("--timeout belongs to --wait or --here",),
    ),
    "a run that there is not": (
        CLEAN,
        "",
        ("jobs", "show", "clean-up:1"),
        ("[OCQ-668] there is no run 'clean-up:1'", "opencqrs jobs runs lists them"),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_reported_with_its_place_and_its_fix(project, mistake):
    handlers, settings, arguments, says = MISTAKES[mistake]
    project.write("handlers.py", code(handlers))
    (project.folder / "events").mkdir()
    project.write("application.yaml", SETTINGS + (f"  jobs:\n    {settings}\n" if settings else ""))
    ran = project.opencqrs(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert "Traceback" not in ran.err
    assert len(re.findall(r"OCQ-\d+|^Error:", ran.err, re.MULTILINE)) == 1, ran.err
    for part in says:
        assert part in ran.err


@pytest.mark.parametrize("arguments", [("run",), ("jobs", "run", "count", "--here")])
@pytest.mark.release(arguments=("jobs", "run", "count", "--here"))
def test_an_interrupt_while_a_job_runs_ends_at_once_and_loses_nothing(jobs, arguments):
    with running(jobs, *arguments) as process:
        if arguments == ("run",):
            jobs.opencqrs("jobs", "run", "count")
        until(lambda: [run for run in runs(jobs, "count") if run["status"] == "running"])
        until(lambda: runs(jobs) and (jobs.folder / "begun").exists())
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    (run,) = runs(jobs, "count")
    assert run["status"] == ("retrying" if arguments == ("run",) else "cancelled")


@pytest.mark.spark
@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.release  # integration/test_jobs_on_spark.py
def test_a_run_on_spark_says_once_that_it_starts_spark_in_text(jobs, java, form):
    jobs.environment.update(java)
    on_spark = ("--set", "jobs.remind.processing.engine=spark", "--set", "spark.master=local[2]")
    ran = jobs.opencqrs("jobs", "run", "remind", "--here", "--format", form, *on_spark)
    assert (ran.code, ran.err.count("starting Spark (local[2])")) == (0, int(form == "text"))

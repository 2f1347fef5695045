"""Short soaks: a run that is killed or loses its database continues, and applies each event exactly once."""

from __future__ import annotations

import importlib
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.patience import patient

from opencqrs_py import Event
from opencqrs_py.adapters.sql import Database, SqlEventStore

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LOG = "events.ndjson.gz"
RUNS = [
    pytest.param("thread", "sqlite", 1, 4_000, id="thread-sqlite"),
    pytest.param("thread", "sqlite", 2, 8_000, id="thread-sqlite-more", marks=pytest.mark.release),
    pytest.param(
        "thread", "postgresql", 3, 10_000, id="thread-postgresql", marks=[pytest.mark.postgresql, pytest.mark.release]
    ),
    pytest.param("thread", "mariadb", 3, 10_000, id="thread-mariadb", marks=[pytest.mark.mariadb, pytest.mark.release]),
    pytest.param("spark", "sqlite", 2, 6_000, id="spark-sqlite", marks=[pytest.mark.spark, pytest.mark.release]),
]


def script(name: str, *arguments: object) -> str:
    """Run a script to its end and return its output."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / name, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("engine", "database", "kills", "events"), RUNS)
def test_killed_runs_lose_and_duplicate_nothing(engine, database, kills, events, request):
    if database == "mariadb":
        request.getfixturevalue("mariadb_installed")
    kind = ("--engine", engine, "--database", database)
    out = script("kill_soak.py", *kind, "--kills", kills, "--seed", 4, "--events", events)
    assert f"{kills} kills" in out
    assert "each event was applied exactly once, in order" in out


@pytest.mark.release  # that a crash uses an attempt is a unit test's
@pytest.mark.parametrize(
    ("engine", "database"),
    [
        pytest.param("thread", "sqlite", id="thread-sqlite"),
        pytest.param("thread", "postgresql", id="pg", marks=[pytest.mark.postgresql, pytest.mark.release]),
        pytest.param("spark", "sqlite", id="spark-sqlite", marks=[pytest.mark.spark, pytest.mark.release]),
    ],
)
def test_killed_runs_of_scheduled_groups_lose_and_duplicate_nothing(engine, database):
    kind = ("--engine", engine, "--database", database, "--scheduled")
    out = script("kill_soak.py", *kind, "--kills", 2, "--seed", 4, "--events", 4_000)
    assert "2 kills" in out
    assert "each event was applied exactly once, in order" in out


@pytest.mark.release  # test_several_processes.py shows a share that is taken over
@pytest.mark.parametrize(
    ("engine", "database", "faults"),
    [
        pytest.param("thread", "sqlite", 3, id="thread-sqlite"),
        pytest.param("thread", "postgresql", 3, id="thread-postgresql", marks=pytest.mark.postgresql),
        pytest.param("thread", "mariadb", 3, id="thread-mariadb", marks=[pytest.mark.mariadb, pytest.mark.release]),
        pytest.param("spark", "postgresql", 3, id="spark-postgresql", marks=[pytest.mark.spark, pytest.mark.release]),
    ],
)
def test_three_processes_share_and_take_over_and_lose_and_duplicate_nothing(engine, database, faults, request):
    """However busy the machine is: leases of 30 seconds are not lost by being slow, and a kill is noticed sooner."""
    if database == "mariadb":
        request.getfixturevalue("mariadb_installed")
    kind = ("--engine", engine, "--database", database, "--names", "kill", "stop", "join", "partitions")
    out = script("failover_soak.py", *kind, "--faults", faults, "--seed", 6, "--events", 3_000, "--lease", 30)
    assert "each event was applied exactly once, in order" in out


@pytest.mark.release
@pytest.mark.postgresql
def test_three_processes_share_waiting_events_of_scheduled_groups():
    few = ("--names", "kill", "stop", "join", "--faults", 2, "--seed", 6, "--events", 1_000, "--lease", 30)
    out = script("failover_soak.py", "--database", "postgresql", "--scheduled", "--parking", 50, *few)
    assert "each event was applied exactly once, in order" in out


@pytest.mark.release  # tests/unit/jobs and the contract of the store end runs wherever a process may
@pytest.mark.parametrize(
    ("database", "names"),
    [
        pytest.param("sqlite", ("kill", "freeze", "stop"), id="sqlite"),
        pytest.param(
            "postgresql", ("kill", "cut", "server"), id="pg", marks=[pytest.mark.postgresql, pytest.mark.release]
        ),
        pytest.param("mariadb", ("kill", "cut"), id="mariadb", marks=[pytest.mark.mariadb, pytest.mark.release]),
    ],
)
def test_jobs_of_killed_or_disconnected_processes_lose_no_tick_and_commit_nothing_twice(database, names, request):
    """However busy the machine is: an end within its grace is a promise for one that is not; the soak measures it."""
    if database == "mariadb":
        request.getfixturevalue("mariadb_installed")
    few = ("--ticks", 15, "--faults", 2, "--seed", 3, "--grace", 60)
    out = script("job_soak.py", "--database", database, *few, "--names", *names)
    assert "each tick and each event had its run, once" in out


@pytest.mark.release  # test_interrupt.py interrupts at chosen moments
@pytest.mark.parametrize(
    ("engine", "count", "commands"),
    [
        pytest.param("thread", 5, ("import", "tail", "config", "run", "status"), id="thread"),
        pytest.param("spark", 4, ("run",), id="spark", marks=[pytest.mark.spark, pytest.mark.release]),
    ],
)
def test_interrupts_at_random_times_end_cleanly_and_lose_nothing(engine, count, commands):
    """However busy the machine is: within two seconds is a promise for one that is not, and the soak's to measure."""
    size = ("--count", count, "--seed", 5, "--events", 2_000, "--seconds", 60)
    out = script("interrupt_soak.py", "--engine", engine, *size, "--commands", *commands)
    assert f"{count} interrupts" in out
    assert "each event was applied exactly once, in order" in out


@pytest.mark.postgresql
@pytest.mark.parametrize("mode", ["fast", "immediate"])
@pytest.mark.release  # contract/test_cut_connections.py
def test_a_run_waits_for_an_unavailable_database_and_continues(mode):
    out = script("outage_soak.py", "--mode", mode, "--seconds", 0.5, "--events", 6_000)
    assert "partitions were seen waiting" in out
    assert "each event was applied exactly once, in order" in out


@pytest.fixture(scope="module")
def soaking():
    """The module that the soaks share."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("soaking")


def project_in(soaking, folder):
    store, database = (f"sqlite:///{folder / name}" for name in ("events.db", "read.db"))
    return soaking.Project(folder, store, database, engine="thread", batch_size=10, partitions=2)


@pytest.fixture(scope="module")
def finished_folder(soaking, tmp_path_factory):
    """The folder of a soak after a run without any failure."""
    folder = tmp_path_factory.mktemp("finished")
    project = project_in(soaking, folder)
    project.fill(soaking.made_up(folder / LOG, 40, random.Random(1)))
    assert project.opencqrs("run", "--until-caught-up").wait() == 0
    project.close()
    return folder


@pytest.fixture
def finished(soaking, finished_folder, tmp_path):
    """A soak's project after a run without any failure, and its log; both to be damaged."""
    folder = shutil.copytree(finished_folder, tmp_path / "soak")
    project = project_in(soaking, folder)
    assert project.differences(folder / LOG) == []
    yield project, folder / LOG
    project.close()


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("DELETE FROM handled WHERE id = '7'", "not handled: 1, such as 7"),
        ("UPDATE handled SET times = 2 WHERE id = '7'", "applied more than once: 1, such as 7"),
        ("UPDATE handled SET attempt = 2 WHERE id = '7'", "not applied with its first attempt: 1, such as 7"),
        ("UPDATE handled SET id = 'x' WHERE id = '7'", "handled, but not in the log: 1, such as x"),
        (
            "UPDATE cases SET checksum = checksum + 1 WHERE name = '/cases/2'",
            "cases with a wrong sum: 1, such as /cases/2",
        ),
        ("UPDATE cases SET disorder = 1 WHERE name = '/cases/2'", "cases out of order: 1, such as /cases/2"),
        (
            "UPDATE opencqrs_progress SET attempt = 1 WHERE group_name = 'handled'",
            "progress: handled 0 at 40, row.attempt=1",
        ),
    ],
)
@pytest.mark.release  # as the soaks themselves, which change rarely
def test_a_soak_detects_each_kind_of_fault(finished, fault, seen):
    project, log = finished
    with project._database.writing() as connection:
        connection.exec_driver_sql(fault)
    assert any(line.startswith(seen) for line in project.differences(log))


def job_project_in(soaked, folder):
    return soaked.JobProject(folder, *(f"sqlite:///{folder / name}" for name in ("events.db", "read.db")), rate=0.5)


@pytest.fixture(scope="module")
def job_project():
    """The module of the project that the soak of jobs runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("job_project")


@pytest.fixture(scope="module")
def jobs_folder(job_project, tmp_path_factory):
    """The folder of a soak of jobs after a while without any failure."""
    folder = tmp_path_factory.mktemp("jobs")
    project = job_project_in(job_project, folder)
    project.create()
    process = subprocess.Popen(patient("run", "--project", str(folder)), cwd=folder)
    try:
        until = time.monotonic() + 120
        while not project.is_reading():
            assert time.monotonic() < until, project.last_messages()
            time.sleep(0.1)
        database = Database(project.store_url)
        SqlEventStore(database).append([Event(0, "e0", "s", "/s", "made-up.a.v1", None, "", "{}", None)])
        database.close()
        while not project.noted() or min(map(project.succeeded, SOAKED)) < 2:
            assert time.monotonic() < until, project.last_messages()
            time.sleep(0.1)
    finally:
        process.terminate()
        process.wait()
        project.close()
    return folder


@pytest.fixture
def soaked_jobs(job_project, jobs_folder, tmp_path):
    """A soak's project after jobs have run without any failure; to be damaged."""
    project = job_project_in(job_project, shutil.copytree(jobs_folder, tmp_path / "soak"))
    assert project.differences(["e0"]) == []
    yield project
    project.close()


SOAKED = ("tick", "each-tick", "after", "lone", "pair-a", "pair-b", "pages", "items")
"""Jobs of which runs succeed: those of ``cancel`` may all be cancelled by the next ones."""

FIRST = "(SELECT min(run_id) FROM opencqrs_job_runs WHERE status = 'succeeded' AND job = '{}')"
RUN = "UPDATE opencqrs_job_runs SET {} WHERE run_id = " + FIRST


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ("DELETE FROM opencqrs_job_runs WHERE run_id = " + FIRST.format("tick"), "committed by a run that is not rec"),
        (
            "DELETE FROM opencqrs_job_runs WHERE run_id = (SELECT run_id FROM opencqrs_job_runs WHERE job = 'tick' "
            "ORDER BY scheduled_ms LIMIT 1 OFFSET 1)",
            "ticks of tick that do not follow each other every 0.5 s: 1, ",
        ),
        (
            "UPDATE opencqrs_jobs SET next_ms = next_ms + 500 WHERE job = 'each-tick'",
            "ticks of each-tick that do not follow each other every 1 s: 1, ",
        ),
        ("UPDATE opencqrs_jobs SET next_ms = NULL WHERE job = 'lone'", "lone has "),
        ("DELETE FROM opencqrs_job_runs WHERE job = 'after'", "after has 0 ticks"),
        (RUN.format("ended_ms = ended_ms + 100", "after"), "ticks before the end of the run before and its delay: 1"),
        ("UPDATE done SET times = 2 WHERE job = 'tick'", "committed more than once: "),
        ("DELETE FROM done WHERE job = 'pages' AND item = '7'", "pages@"),
        (RUN.format("status = 'skipped'", "pages"), "committed, but never begun: 1"),
        (RUN.format("status = 'running', ended_ms = NULL, owner = 'n'", "tick"), "running, or owned, though all "),
        (RUN.format("status = 'failed'", "tick"), "failed: 1"),
        (RUN.format("status = 'cancelled'", "tick"), "cancelled: 1"),
        (RUN.format("status = 'coalesced'", "tick"), "coalesced into no run of the job: 1"),
        (RUN.format("ended_ms = ended_ms + 60000", "lone"), "runs of lone that were begun beside another one: 1"),
        ("UPDATE marks SET number = 1 - number WHERE family = 'lone' AND number < 6", "runs of lone that have overl"),
        (
            "UPDATE marks SET run = (SELECT max(run) FROM marks WHERE family = 'lone') "
            "WHERE family = 'lone' AND number = 2",
            "runs of lone that have overlapped: ",
        ),
        ("DELETE FROM done WHERE job = 'events'", "events without a run: 1, such as e0"),
        ("UPDATE done SET item = 'x' WHERE job = 'events'", "events that are not in the log: 1, such as x"),
    ],
)
@pytest.mark.release  # as the soak that it is about
def test_a_soak_of_jobs_detects_each_kind_of_fault(soaked_jobs, fault, seen):
    with soaked_jobs.database.writing() as connection:
        assert connection.exec_driver_sql(fault).rowcount
    found = soaked_jobs.differences(["e0"])
    assert any(line.startswith(seen) for line in found), found

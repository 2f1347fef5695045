"""The soaks in short: what is killed or loses its database goes on by itself, and applies each event exactly once."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RUNS = [
    pytest.param("thread", "sqlite", id="thread-sqlite"),
    pytest.param("thread", "postgresql", id="thread-postgresql", marks=pytest.mark.postgresql),
    pytest.param("thread", "mariadb", id="thread-mariadb", marks=pytest.mark.mariadb),
    pytest.param("spark", "sqlite", id="spark-sqlite", marks=[pytest.mark.spark, pytest.mark.slow]),
]


def script(name: str, *arguments: object) -> str:
    """Run a script to its end and return what it printed."""
    done = subprocess.run(
        [sys.executable, BENCHMARKS / name, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("engine", "database"), RUNS)
def test_killed_runs_lose_and_double_nothing(engine, database, request):
    if database == "mariadb":
        request.getfixturevalue("mariadb_installed")
    kind = ("--engine", engine, "--database", database)
    out = script("kill_soak.py", *kind, "--kills", 3, "--seed", 3, "--events", 20_000)
    assert "3 kills" in out
    assert "each event was applied exactly once, in order" in out


@pytest.mark.postgresql
@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_run_waits_for_a_database_that_is_away_and_goes_on(mode):
    out = script("outage_soak.py", "--mode", mode, "--seconds", 1.5, "--events", 10_000)
    assert "partitions were seen waiting" in out
    assert "each event was applied exactly once, in order" in out


@pytest.fixture
def finished(tmp_path, monkeypatch):
    """A soak's project after a run without any trouble, and its log."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import soaking  # noqa: PLC0415 from the scripts' folder

    log = soaking.made_up(tmp_path / "events.ndjson.gz", 40, random.Random(1))
    store, database = (f"sqlite:///{tmp_path / name}" for name in ("events.db", "read.db"))
    project = soaking.Project(tmp_path, store, database, engine="thread", batch_size=10, partitions=2)
    project.fill(log)
    assert project.opencqrs("run", "--until-caught-up").wait() == 0
    assert project.differences(log) == []
    yield project, log
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
def test_a_soak_sees(finished, fault, seen):
    project, log = finished
    with project._database.writing() as connection:
        connection.exec_driver_sql(fault)
    assert any(line.startswith(seen) for line in project.differences(log))

"""What other users of the machine see of a run on Spark, and what they can do to it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.spark,
    pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="reads /proc"),
]

SECRET = "marker-3f9c1e"

HOLDING_HANDLERS = """
from pathlib import Path
import time
from opencqrs_py import Event, event_handling
from sqlalchemy import Connection

@event_handling("catalog", types=["library.*"])
def lend(event: Event, connection: Connection) -> None:
    Path("begun").touch()
    while not Path("go").exists():
        time.sleep(0.01)
"""


def held_run(project) -> subprocess.Popen[str]:
    """Start a run whose handlers wait until the file ``go`` exists; return it when the first of them waits."""
    project.write("handlers.py", HOLDING_HANDLERS)
    project.write_events(20)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    return subprocess.Popen(
        project.command("run", "--until-caught-up"),
        cwd=project.folder,
        env={**os.environ, "OPENCQRS__SPARK__CONF__SPARK_HADOOP_FS_S3A_SECRET_KEY": SECRET},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextmanager
def held(project) -> Iterator[subprocess.Popen[str]]:
    """A run that waits in its handlers; it ends when the test has let it go."""
    process = held_run(project)
    try:
        while not (project.folder / "begun").exists():
            if process.poll() is not None:
                pytest.fail(process.communicate()[1])
        yield process
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def processes_below(parent: int) -> set[int]:
    """Return the ids of a process and of all that it has started."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = {parent}
    while more := {child for child, its in parents.items() if its in found} - found:
        found |= more
    return found


def test_no_setting_of_spark_stands_in_the_arguments_of_a_process(project):
    with held(project) as process:
        below = processes_below(process.pid)
        said = {pid: (Path("/proc") / str(pid) / "cmdline").read_bytes().decode() for pid in below}
        assert any("org.apache.spark.deploy.SparkSubmit" in arguments for arguments in said.values())
        assert any("pyspark" in arguments and "daemon" in arguments for arguments in said.values())
        assert [arguments for arguments in said.values() if SECRET in arguments or "--conf" in arguments] == []
        (project.folder / "go").touch()
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, ""), out


OWN_SESSION = """
import sys
from pyspark.sql import SparkSession
from opencqrs_py import Application
from opencqrs_py.errors import EngineError

if __name__ == "__main__":
    builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
    for setting in sys.argv[1:]:
        builder = builder.config(*setting.split("="))
    spark = builder.getOrCreate()
    try:
        Application.from_project(".").run(until_caught_up=True)
        print("ran")
    except EngineError as error:
        print(error)
    print("still open", spark.range(1).count())
"""


@pytest.mark.parametrize(
    ("argument", "variable", "begins"),
    [
        ("", "false", "[OCQ-404] Spark does not authenticate"),
        ("spark.authenticate=true", "false", "ran"),
        ("", "true", "ran"),
    ],
)
def test_a_session_of_the_program_itself_is_refused_without_authentication(project, argument, variable, begins):
    project.write("program.py", OWN_SESSION)
    project.write_events(10)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    ran = subprocess.run(
        [sys.executable, "program.py", *argument.split()],
        cwd=project.folder,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "OPENCQRS__SPARK__ALLOW_UNAUTHENTICATED": variable,
        },
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert ran.stdout.startswith(begins), ran.stderr
    assert ran.stdout.endswith("still open 1\n")
    if begins == "ran":
        with sqlite3.connect(project.folder / "read.db") as connection:
            assert connection.execute("SELECT count(*) FROM audit").fetchone() == (10,)


def test_a_cluster_without_authentication_is_refused_at_the_start_even_if_there_is_nothing_to_do(project):
    refused = project.opencqrs(
        "run", "--set", "spark.master=spark://127.0.0.1:1", JAVA_HOME="/nowhere", PATH="/nowhere"
    )
    assert refused.code == 2
    assert refused.err.splitlines()[0].startswith("[OCQ-404] Spark does not authenticate"), refused.err
    assert "spark.authenticate.secret" in refused.err
    assert "opencqrs.spark.allow-unauthenticated: true" in refused.err

"""The main job on a Spark standalone cluster: master and worker are processes of their own, on loopback."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from opencqrs_py.engines.spark.java import find_java

pytestmark = [pytest.mark.spark, pytest.mark.slow]

EVENTS = 6_000
SECRET = "marker-of-the-cluster"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in reversed(processes):
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def spark_class(*arguments: str) -> subprocess.Popen[str]:
    home = Path(pyspark.__file__).parent
    environment = {**os.environ, "JAVA_HOME": str(find_java(os.environ).home), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [str(home / "bin" / "spark-class"), *arguments]
    return subprocess.Popen(
        command, env=environment, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True
    )


def line_with(process: subprocess.Popen[str], pattern: str) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if found := re.search(pattern, line):
            return found.group(0)
    return pytest.fail(f"the process ended without saying {pattern!r}")


@pytest.fixture
def cluster(started, tmp_path) -> str:
    """A master and a worker with two cores; returns the master's URL."""
    package = "org.apache.spark.deploy"
    settings = tmp_path / "cluster.conf"
    settings.write_text(
        f"spark.authenticate true\nspark.authenticate.secret {SECRET}\nspark.network.crypto.enabled true\n"
    )
    shared = ("--properties-file", str(settings), "--host", "127.0.0.1", "--webui-port", "0")
    master = spark_class(f"{package}.master.Master", "--port", "0", *shared)
    started.append(master)
    url = line_with(master, r"spark://127\.0\.0\.1:\d+")
    place = ("--work-dir", str(tmp_path / "work"), *shared)
    worker = spark_class(f"{package}.worker.Worker", "--cores", "2", "--memory", "1g", *place, url)
    started.append(worker)
    line_with(worker, "Successfully registered with master")
    return url


AUTHENTICATED = {
    "OPENCQRS__SPARK__CONF__SPARK_AUTHENTICATE": "true",
    "OPENCQRS__SPARK__CONF__SPARK_AUTHENTICATE_SECRET": SECRET,
}


def settings_for(cluster: str) -> list[str]:
    quick = f"spark.conf.spark.executor.extraJavaOptions={os.environ['SPARK_SUBMIT_OPTS']}"
    settings = (f"spark.master={cluster}", "spark.conf.spark.driver.host=127.0.0.1", quick)
    return [word for each in settings for word in ("--set", each)]


def test_a_cluster_with_authentication_gives_what_one_process_gives(project, cluster):
    project.write_events(EVENTS)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    run = project.opencqrs("run", "--until-caught-up", *settings_for(cluster), **AUTHENTICATED)
    assert run.code == 0, run.err
    with sqlite3.connect(project.folder / "read.db") as connection:
        expected = EVENTS - len(range(0, EVENTS, 3))
        assert connection.execute("SELECT sum(n) FROM lent").fetchone() == (expected,)
        assert connection.execute("SELECT count(*) FROM audit").fetchone() == (EVENTS,)


def test_a_wrong_secret_is_refused_by_the_cluster(project, cluster):
    project.write_events(10)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    wrong = {**AUTHENTICATED, "OPENCQRS__SPARK__CONF__SPARK_AUTHENTICATE_SECRET": "wrong"}
    run = project.opencqrs("run", "--until-caught-up", *settings_for(cluster), **wrong)
    assert run.code == 2, run.err
    assert "[OCQ-402] Spark did not start" in run.err
    assert SECRET not in run.out + run.err

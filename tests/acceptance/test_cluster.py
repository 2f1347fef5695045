"""The main job on a Spark standalone cluster: master and worker are separate processes, on loopback."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyspark
import pytest
from sqlalchemy import create_engine, inspect, text
from support.sqlite import rows_of

import opencqrs_py
from opencqrs_py.adapters.sql import Database
from opencqrs_py.engines.spark.java import find_java

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.release,  # test_spark_tasks.py has workers in other processes; unit/engines/spark/test_masters.py
]

EVENTS = 1_000
SECRET = "marker-of-the-cluster"


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in reversed(processes):
        with suppress(ProcessLookupError):  # it was killed already
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


class Cluster:
    """A standalone cluster on loopback, of a master and as many workers as are started."""

    def __init__(self, started: list[subprocess.Popen[str]], folder: Path) -> None:
        self._started = started
        self._work = folder / "work"
        settings = folder / "cluster.conf"
        settings.write_text(
            f"spark.authenticate true\nspark.authenticate.secret {SECRET}\nspark.network.crypto.enabled true\n"
        )
        self._shared = ("--properties-file", str(settings), "--host", "127.0.0.1", "--webui-port", "0")
        master = spark_class("org.apache.spark.deploy.master.Master", "--port", "0", *self._shared)
        started.append(master)
        self.url = line_with(master, r"spark://127\.0\.0\.1:\d+")

    def add_worker(self) -> None:
        """Start a worker with two cores, and wait until the master knows it."""
        size = ("--cores", "2", "--memory", "1g", "--work-dir", str(self._work))
        worker = spark_class("org.apache.spark.deploy.worker.Worker", *size, *self._shared, self.url)
        self._started.append(worker)
        line_with(worker, "Successfully registered with master")

    def lost(self) -> int:
        """Return how many of its processes have been killed."""
        return sum(process.poll() == -signal.SIGKILL for process in self._started)


@pytest.fixture
def empty_cluster(started, tmp_path) -> Cluster:
    return Cluster(started, tmp_path)


@pytest.fixture
def cluster(empty_cluster) -> str:
    """A master and a worker; returns the master's URL."""
    empty_cluster.add_worker()
    return empty_cluster.url


AUTHENTICATED = {
    "OPENCQRS__SPARK__CONF__SPARK_AUTHENTICATE": "true",
    "OPENCQRS__SPARK__CONF__SPARK_AUTHENTICATE_SECRET": SECRET,
}


def settings_for(cluster: str) -> list[str]:
    quick = f"spark.conf.spark.executor.extraJavaOptions={os.environ['SPARK_DAEMON_JAVA_OPTS']}"
    here = ("spark.conf.spark.driver.host=127.0.0.1", "spark.driver-handles=never")
    settings = (f"spark.master={cluster}", *here, quick)
    return [word for each in settings for word in ("--set", each)]


LOOKING_HANDLER = """
from pathlib import Path
from opencqrs_py import Event, event_handling

def said_by_processes():
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield file.read_text(errors="replace")
        except OSError:
            continue

@event_handling("looking", types=["library.*"])
def look(event: Event) -> None:
    if event.id == "0":
        said = list(said_by_processes())
        executors = sum("CoarseGrainedExecutorBackend" in each for each in said)
        secrets = sum("-".join(["marker", "of", "the", "cluster"]) in each for each in said)
        Path({place!r}).write_text(f"{{executors > 0}} {{secrets}}")
"""


def test_a_cluster_with_authentication_has_the_results_of_one_process_and_shows_no_secret(project, cluster):
    looked = project.folder / "looked.txt"
    project.write("looking.py", LOOKING_HANDLER.format(place=str(looked)))
    project.write_events(EVENTS)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    run = project.opencqrs("run", "--until-caught-up", *settings_for(cluster), **AUTHENTICATED)
    assert run.code == 0, run.err
    expected = EVENTS - len(range(0, EVENTS, 3))
    assert rows_of(project.folder / "read.db", "SELECT sum(n) FROM lent") == [(expected,)]
    assert rows_of(project.folder / "read.db", "SELECT count(*) FROM audit") == [(EVENTS,)]
    assert looked.read_text() == "True 0"  # an executor was running, and no argument of a process held the secret


@pytest.mark.postgresql
def test_executors_find_log_and_progress_in_a_separate_schema(project, cluster, fresh_url):
    url = fresh_url("postgresql")
    served = {
        "OPENCQRS__EVENT_STORE__URL": url,
        "OPENCQRS__DATABASE__URL": url,
        "OPENCQRS__DATABASE__SCHEMA": "our_log",
    }
    project.write_events(EVENTS)
    assert project.opencqrs("events", "import", "events.ndjson", **served).code == 0
    run = project.opencqrs("run", "--until-caught-up", *settings_for(cluster), **AUTHENTICATED, **served)
    assert run.code == 0, run.err
    engine = create_engine(Database(url).engine.url)
    with engine.connect() as connection:
        assert set(inspect(connection).get_table_names()) == {"lent", "audit"}
        assert connection.scalar(text("SELECT count(*) FROM audit")) == EVENTS
        progress = connection.execute(text("SELECT DISTINCT position FROM our_log.opencqrs_progress")).all()
    engine.dispose()
    assert progress == [(EVENTS,)]


def test_a_wrong_secret_is_refused_by_the_cluster(project, cluster):
    project.write_events(10)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    wrong = {**AUTHENTICATED, "OPENCQRS__SPARK__CONF__SPARK_AUTHENTICATE_SECRET": "wrong"}
    run = project.opencqrs("run", "--until-caught-up", *settings_for(cluster), **wrong)
    assert run.code == 2, run.err
    assert "[OCQ-352] the Spark master did not register this program" in run.err
    assert SECRET not in run.out + run.err


IMPATIENT = """
from opencqrs_py.cli.main import main
from opencqrs_py.engines.spark import engine

if __name__ == "__main__":
    engine.STILL_SECONDS = 3.0
    main()
"""


def test_a_master_without_workers_is_reported_and_the_run_continues_once_it_has_one(project, empty_cluster):
    project.write("impatient.py", IMPATIENT)
    project.write_events(EVENTS)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    arguments = ["run", "--until-caught-up", *settings_for(empty_cluster.url)]
    run = subprocess.Popen(
        [sys.executable, "impatient.py", *arguments],
        cwd=project.folder,
        env={**os.environ, **AUTHENTICATED},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        line_with(run, r"Spark did not start a task: no task was running on Spark for 3 s")
        empty_cluster.add_worker()
        _, err = run.communicate(timeout=600)
        assert run.returncode == 0, err
    finally:
        run.kill()
    assert rows_of(project.folder / "read.db", "SELECT count(*) FROM audit") == [(EVENTS,)]


ENDING_HANDLER = """
import os, signal
from pathlib import Path
from opencqrs_py import Event, event_handling

@event_handling("ending", types=["library.*"])
def end(event: Event) -> None:
    if event.id != "500":
        return
    try:
        Path({place!r}).touch(exist_ok=False)
    except FileExistsError:
        return
    daemon = Path(f"/proc/{{os.getppid()}}/stat").read_text()
    executor = int(daemon.rpartition(")")[2].split()[1])
    os.killpg(os.getpgid(executor), signal.SIGKILL)  # with the cluster's worker that has started it
"""


def test_losing_one_of_two_workers_loses_no_event_and_handles_none_twice(project, empty_cluster):
    empty_cluster.add_worker()
    empty_cluster.add_worker()
    ended = project.folder / "ended"
    project.write("ending.py", ENDING_HANDLER.format(place=str(ended)))
    project.write_events(EVENTS)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    run = project.opencqrs("run", "--until-caught-up", *settings_for(empty_cluster.url), **AUTHENTICATED)
    assert run.code == 0, run.err
    assert ended.exists()
    assert empty_cluster.lost() == 1
    assert rows_of(project.folder / "read.db", "SELECT sum(n) FROM lent") == [(EVENTS - len(range(0, EVENTS, 3)),)]
    assert rows_of(project.folder / "read.db", "SELECT count(*) FROM audit") == [(EVENTS,)]


HANDED_IN = """
import sys
from pyspark.sql import SparkSession
from opencqrs_py import Application

if __name__ == "__main__":
    builder = SparkSession.builder.master(sys.argv[1]).config("spark.driver.host", "127.0.0.1")
    for pair in sys.argv[2:]:
        builder = builder.config(*pair.split("=", 1))
    session = builder.getOrCreate()
    application = Application.from_project(".", spark=session)
    result = application.run(until_caught_up=True)
    print(result.failed, session.range(3).count(), session.sparkContext.master == sys.argv[1])
    session.stop()
"""


def test_a_given_cluster_session_is_used_and_left_open(project, cluster):
    project.write("handed_in.py", HANDED_IN)
    project.write_events(EVENTS)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    secret = ("spark.authenticate=true", f"spark.authenticate.secret={SECRET}", "spark.network.crypto.enabled=true")
    command = [sys.executable, "handed_in.py", cluster, *secret]
    here = {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "JAVA_HOME": str(find_java(os.environ).home),
        "PYSPARK_PYTHON": sys.executable,
    }
    environment = {**os.environ, **here, "OPENCQRS__SPARK__DRIVER_HANDLES": "never"}
    done = subprocess.run(
        command, check=False, cwd=project.folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.stdout.splitlines() == ["False 3 True"], done.stderr
    assert rows_of(project.folder / "read.db", "SELECT count(*) FROM audit") == [(EVENTS,)]


ANOTHER_VERSION = """
import sys

class Version(tuple):
    major, minor, micro, releaselevel, serial = sys.version_info

    def __getitem__(self, key):
        return (3, 99) if key == slice(None, 2) else super().__getitem__(key)

if "pyspark.daemon" in sys.orig_argv:
    sys.version_info = Version(sys.version_info)
"""


def test_a_different_python_on_workers_is_reported_in_one_line_with_both_versions(project, cluster, tmp_path):
    other = tmp_path / "other"
    venv.create(other, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(other), "platbase": str(other)}))
    (packages / "another_version.py").write_text(ANOTHER_VERSION)
    paths = [*filter(os.path.isdir, sys.path), str(Path(opencqrs_py.__file__).parents[1])]
    (packages / "paths.pth").write_text("\n".join([*paths, "import another_version", ""]))
    project.write_events(10)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    chosen = {**AUTHENTICATED, "PYSPARK_PYTHON": str(other / "bin" / "python")}
    run = project.opencqrs("run", "--until-caught-up", *settings_for(cluster), **chosen)
    assert run.code == 1
    lines = [line for line in run.err.splitlines() if "[audit 0/1]" in line and "OCQ-418" in line]
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert len(lines) == 1
    assert f"Python 3.99 there, {here} on the driver" in lines[0]
    assert "Traceback" not in run.err


def test_a_package_missing_on_workers_is_reported_in_one_line(project, cluster, tmp_path):
    bare = tmp_path / "bare"
    venv.create(bare, symlinks=True)
    project.write_events(10)
    assert project.opencqrs("events", "import", "events.ndjson").code == 0
    chosen = {**AUTHENTICATED, "PYSPARK_PYTHON": str(bare / "bin" / "python")}
    run = project.opencqrs("run", "--until-caught-up", *settings_for(cluster), **chosen)
    assert run.code == 1
    lines = [line for line in run.err.splitlines() if "[audit 0/1]" in line and "could not continue" in line]
    assert len(lines) == 1
    assert "No module named 'pydantic'" in lines[0]
    assert "Traceback" not in run.err

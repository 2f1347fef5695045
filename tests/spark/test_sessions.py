"""A session that the program has opened is used on any thread, and left open; ours leaves nothing."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from queue import Queue
from threading import Thread

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

from opencqrs_py.engines.spark.jobs import labelled
from opencqrs_py.engines.spark.session import Sessions, SessionSettings
from opencqrs_py.engines.spark.slots import ActiveJob, active_jobs, slots_of

pytestmark = [pytest.mark.spark]
SECONDS = 300  # to wait at most: a Java starts, on a busy machine


def test_a_running_session_is_used_on_another_thread_and_left_open(spark: SparkSession) -> None:
    opened: Queue[SparkSession | Exception] = Queue()
    sessions = Sessions(SessionSettings(master="local[1]", name="another"))
    sessions.begin(opened.put)
    found = opened.get(timeout=SECONDS)
    assert isinstance(found, SparkSession)
    assert found.sparkContext is spark.sparkContext
    sessions.close()
    assert spark.range(3).count() == 3


HANDLERS = """
from opencqrs_py import Event, event_handling

@event_handling("handed-in", types=["*"])
def handle(event: Event) -> None: ...
"""


CONNECTED = """
import os, sys
from pathlib import Path
from pyspark.sql import SparkSession
from opencqrs_py import Application, Event, event_handling
from opencqrs_py.engines.spark.java import find_java
from opencqrs_py.errors import EngineError
import handlers_of_remote

os.environ |= {"JAVA_HOME": str(find_java(os.environ).home), "SPARK_LOCAL_IP": "127.0.0.1"}
session = SparkSession.builder.remote("local[1]").getOrCreate()
for given in (session, None):
    try:
        Application({}, [handlers_of_remote], ".", given).run(until_caught_up=True)
    except EngineError as error:
        print(error.code, error.where)
assert session.range(3).count() == 3
session.stop()
"""


def test_a_spark_connect_session_is_refused_and_left_unchanged(tmp_path) -> None:
    pytest.importorskip("grpc", reason="pip install pyspark[connect]")
    (tmp_path / "handlers_of_remote.py").write_text(HANDLERS)
    (tmp_path / "remote.py").write_text(CONNECTED)
    command = [sys.executable, "-W", "ignore", "remote.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "OCQ-416 the session that was handed in",
        "OCQ-416 the session that is active in this process",
    ]


def test_an_abandoned_start_leaves_a_running_session_open(spark: SparkSession) -> None:
    for _ in range(5):
        sessions = Sessions(SessionSettings(master="local[1]", name="another"))
        sessions.begin(lambda _: None)
        sessions.close()
    Sessions(SessionSettings()).open()  # which waits until the others are closed
    assert spark.range(3).count() == 3


GIVEN_UP = """
from threading import Event
from pyspark import SparkContext
from opencqrs_py.engines.spark.session import Sessions, SessionSettings

there, wait, make = Event(), Event(), SparkContext._initialize_context

def make_and_wait(*arguments):
    made = make(*arguments)
    there.set()
    while not sessions._closed:
        wait.wait(0.01)
    return made

SparkContext._initialize_context = make_and_wait
sessions = Sessions(SessionSettings(master="local[1]", name="abandoned"))
sessions.begin(lambda _: None)
there.wait()
sessions.close(patience=0)
"""
OPENED = """
from opencqrs_py.engines.spark.session import Sessions, SessionSettings

sessions = Sessions(SessionSettings(master="local[1]", name="next"))
assert sessions.open().range(3).count() == 3
sessions.close(patience=0)
"""


@pytest.mark.release  # a rare end of a start
def test_an_abandoned_start_leaves_nothing_in_a_jvm_that_outlives_the_process(java: dict[str, str]) -> None:
    for script in (GIVEN_UP, OPENED, OPENED):
        command, environment = [sys.executable, "-c", script], {**os.environ, **java}
        done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr


def test_workers_find_functions_of_a_project_in_another_folder(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "udfs_of_a_project"
    (tmp_path / f"{name}.py").write_text("def twice(number):\n    return 2 * number\n")
    (tmp_path / "socket.py").write_text("raise ImportError('a file called as a module of Python')\n")
    known = list(spark.sparkContext._python_includes)
    Sessions(SessionSettings(roots=[str(tmp_path)]), spark).open()
    monkeypatch.syspath_prepend(tmp_path)
    twice = sf.udf(importlib.import_module(name).twice, "long")
    try:
        assert [row.n for row in spark.range(3).select(twice("id").alias("n")).collect()] == [0, 2, 4]
    finally:
        spark.sparkContext._python_includes[:] = known
        del sys.modules[name]


def test_the_number_of_concurrent_tasks_is_read_from_spark(spark: SparkSession) -> None:
    assert slots_of(spark.sparkContext) == 2


@pytest.mark.release  # what is done with the counts: unit/engines/spark/test_slots.py
def test_the_tasks_that_spark_runs_are_counted_by_group_and_those_that_wait_are_not(
    spark: SparkSession, tmp_path: Path
) -> None:
    context = spark.sparkContext
    slots = slots_of(context)
    end = tmp_path / "end"

    def wait_for_end(_number: int) -> int:
        while not end.exists():
            os.sched_yield()
        return 1

    def run(group: str) -> None:
        with labelled(context, f"tag of {group}", group, "a test"):
            context.parallelize(range(slots), slots).map(wait_for_end).collect()

    threads = [Thread(target=run, args=(group,)) for group in ("job:nightly", "loans")]
    try:
        for count, thread in enumerate(threads, 1):
            thread.start()
            found = _await_jobs(context, count, slots)
    finally:
        end.touch()
        for thread in threads:
            thread.join()
    assert {job.group: job.tasks for job in found} == {"job:nightly": slots, "loans": 0}
    assert 0 <= next(job.seconds for job in found if job.tasks) < SECONDS


def _await_jobs(context: SparkContext, count: int, running: int) -> list[ActiveJob]:
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        found = active_jobs(context, datetime.now(UTC))
        if len(found) == count and sum(job.tasks for job in found) == running:
            return found
    raise AssertionError(found)

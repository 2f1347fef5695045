"""A session that the program has opened is used, whichever thread asks for it, and left open; ours leaves nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from queue import Queue

import pytest
from pyspark.sql import SparkSession

from opencqrs_py.engines.spark.session import Sessions, SessionSettings

pytestmark = [pytest.mark.spark]
SECONDS = 60  # to wait at most


def test_a_session_that_runs_already_is_used_on_another_thread_and_left_open(spark: SparkSession) -> None:
    opened: Queue[SparkSession | Exception] = Queue()
    sessions = Sessions(SessionSettings(master="local[1]", name="another"))
    sessions.begin(opened.put)
    found = opened.get(timeout=SECONDS)
    assert isinstance(found, SparkSession)
    assert found.sparkContext is spark.sparkContext
    sessions.close()
    assert spark.range(3).count() == 3


def test_a_start_that_is_given_up_leaves_a_session_that_runs_already_open(spark: SparkSession) -> None:
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
sessions = Sessions(SessionSettings(master="local[1]", name="given up"))
sessions.begin(lambda _: None)
there.wait()
sessions.close()
"""
OPENED = """
from opencqrs_py.engines.spark.session import Sessions, SessionSettings

sessions = Sessions(SessionSettings(master="local[1]", name="next"))
assert sessions.open().range(3).count() == 3
sessions.close()
"""


def test_a_start_that_is_given_up_leaves_nothing_on_a_java_that_outlives_the_process(java: dict[str, str]) -> None:
    for script in (GIVEN_UP, OPENED):
        command, environment = [sys.executable, "-c", script], {**os.environ, **java}
        done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=SECONDS)
        assert done.returncode == 0, done.stderr

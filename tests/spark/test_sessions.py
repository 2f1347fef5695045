"""A session that the program has opened is used, whichever thread asks for it, and left open."""

from __future__ import annotations

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

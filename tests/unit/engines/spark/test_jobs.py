"""How failed Spark jobs are reported, and how stalled tasks are detected."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from pyspark.errors import PythonException
from support.spark import Context

from opencqrs_py.engines.spark.jobs import failures_of_jobs, spark_failure
from opencqrs_py.engines.spark.slots import Capacity, Stillness
from opencqrs_py.model.outcome import Origin
from opencqrs_py.testing import FakeClock

OF_A_WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/env/opencqrs_py/processing/dispatch.py", line 127, in handle
    raise ChunkFailedError(index, error) from error
opencqrs_py.processing.dispatch.ChunkFailedError: (0, PanicException())

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/env/pyspark/worker.py", line 2070, in main
    raise RuntimeError("boom")
RuntimeError: a worker's own reason
and its second line

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:601)
"""


def test_a_python_error_is_reported_by_its_exception_and_not_by_a_line_of_source() -> None:
    failure = spark_failure(PythonException(OF_A_WORKER))
    assert (failure.origin, failure.permanent) == (Origin.FRAMEWORK, True)
    assert failure.message == "RuntimeError: a worker's own reason"


def test_a_different_python_in_workers_is_reported_with_both_versions_and_the_fix() -> None:
    raised = "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has "
    rest = "different version: 3.13 than that in driver: 3.11, PySpark cannot run with different minor versions.\nSee"
    stack = f'\nTraceback (most recent call last):\n  File "worker.py", line 1, in main\n{raised}{rest}'
    failure = spark_failure(PythonException(stack))
    assert (failure.origin, failure.permanent, failure.code) == (Origin.FRAMEWORK, True, "OCQ-418")
    assert str(failure) == (
        "[OCQ-418] Spark's workers run a different Python version: Python 3.13 there, 3.11 on the driver: have "
        "PYSPARK_PYTHON name a Python 3.11 that executors have, or run the driver on Python 3.13"
    )


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError("Python worker exited (crashed)\n\tat org.apache.spark"), "Python worker exited (crashed)"),
        (RuntimeError("first\n at x\nExecutor lost: killed"), "Executor lost: killed"),
        (OSError(), "OSError"),
        (
            OSError("An error occurred while calling z:x.collect.\n: java.net.BindException: no such file\n\tat x"),
            "java.net.BindException: no such file",
        ),
        (
            OSError(
                "An error occurred while calling z:x.collect.\n: org.apache.spark.SparkException: Job aborted due to "
                "stage failure: Task 0 in stage 2.0 failed 1 times, most recent failure: Lost task 0.0 in stage 2.0 "
                "(TID 2) (127.0.0.2 executor 0): org.apache.spark.SparkException: Python worker exited unexpectedly "
                "(crashed). Consider setting 'spark.sql.execution.pyspark.udf.faulthandler.enabled'\n\tat x"
            ),
            "a Python worker (executor 0 on 127.0.0.2) ended",
        ),
        (
            OSError(
                "An error occurred while calling z:x.collect.\n: org.apache.spark.SparkException: Job aborted due to "
                "stage failure: Task 0 in stage 2.0 failed 1 times, most recent failure: Lost task 0.0 in stage 2.0 "
                "(TID 2) (localhost executor driver): org.apache.spark.SparkException: Python worker exited "
                "unexpectedly (crashed): Fatal Python error: Segmentation fault\n\nCurrent thread 0x01 (most recent "
                'call first):\n  File "handlers.py", line 8 in seg\n\n\tat org.x\nDriver stacktrace:\n\tat org.y'
            ),
            "a Python worker (executor driver on localhost) ended: Fatal Python error: Segmentation fault Current "
            'thread 0x01 (most recent call first): File "handlers.py", line 8 in seg',
        ),
        (OSError(f"Executor lost: {'so many words ' * 30}"), f"Executor lost: {'so many words ' * 20}so …"),
        (OSError(f"Error: {'x' * 400}"), f"Error: {'x' * 293} …"),
    ],
)
def test_all_other_errors_are_transient(error: Exception, message: str) -> None:
    failure = spark_failure(error)
    assert (failure.origin, failure.permanent) == (Origin.OUTAGE, False)
    assert failure.message == message


def test_failed_jobs_are_looked_up_after_at_most_two_seconds_of_waiting_for_slow_listeners() -> None:
    waits: list[tuple[int, ...]] = []
    bus = SimpleNamespace(waitUntilEmpty=lambda *milliseconds: waits.append(milliseconds))
    tracker = SimpleNamespace(getJobIdsForTag=lambda _tag: [], getJobInfo=None)
    spark = SimpleNamespace(listenerBus=lambda: bus, statusTracker=lambda: tracker)
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: spark), statusTracker=lambda: tracker)
    assert [*failures_of_jobs(context, "tag")] == []
    assert waits == [(2000,)]


class Spark:
    """A Spark with its own clock; its tasks are checked every second."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.tasks = 0
        self.queries = 0
        self.stillness = Stillness(self.running, self.clock)

    def running(self) -> int:
        self.queries += 1
        return self.tasks

    def noticed_after(self, seconds: int, waiting: list[float]) -> int | None:
        """Let time pass; return the second in which the stall was noticed."""
        for second in range(1, seconds + 1):
            self.clock.advance(1)
            if self.stillness.seconds(waiting) >= 60:
                return second
        return None


@pytest.fixture
def spark() -> Spark:
    return Spark()


def test_a_stall_is_noticed_when_a_task_has_waited_for_the_limit(spark):
    assert spark.noticed_after(100, [spark.clock.monotonic()]) == 60


def test_a_running_task_is_not_a_stall_even_after_hours(spark):
    spark.tasks = 1
    assert spark.noticed_after(10_000, [spark.clock.monotonic()]) is None


def test_the_limit_counts_from_the_last_task_that_ran(spark):
    since = spark.clock.monotonic()
    spark.tasks = 1
    assert spark.noticed_after(100, [since]) is None
    spark.tasks = 0
    assert spark.noticed_after(100, [since]) == 60


def test_without_a_task_spark_is_not_queried(spark):
    assert spark.noticed_after(1_000, []) is None
    assert spark.queries == 0


def test_short_tasks_do_not_query_spark(spark):
    for _ in range(1_000):
        since = spark.clock.monotonic()
        spark.clock.advance(0.1)
        assert spark.stillness.seconds([since]) == 0
    assert spark.queries == 0


def test_the_limit_applies_to_the_task_that_has_waited_longest(spark):
    since = spark.clock.monotonic()
    assert spark.noticed_after(30, [since]) is None
    assert spark.noticed_after(100, [since, spark.clock.monotonic()]) == 30


def test_spark_is_queried_at_most_once_a_second(spark):
    since = spark.clock.monotonic()
    for _ in range(100):
        spark.clock.advance(0.25)
        spark.stillness.seconds([since])
    assert spark.queries <= 25


def test_slots_and_executors_are_queried_once_a_second():
    clock, context = FakeClock(), Context()
    capacity = Capacity(clock)
    assert (capacity.slots, capacity.executors) == (0, None)
    assert capacity.look(context) == 2
    context.executors, context.slots = 3, 6
    assert capacity.look(context) == 2
    assert (capacity.slots, capacity.executors) == (2, 0)
    clock.advance(1)
    assert capacity.look(context) == 6
    assert (capacity.slots, capacity.executors) == (6, 3)


def test_a_local_master_has_no_executor_count_and_at_least_one_slot():
    context = Context()
    context.master, context.slots = "local[2]", 0
    capacity = Capacity(FakeClock())
    assert capacity.look(context) == 1
    assert capacity.executors is None

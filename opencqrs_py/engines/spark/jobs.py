"""The rounds of one group as plain Spark jobs.

Runs on the driver. A round is one job with one Spark task for each of ours; a thread of its own waits for it. No socket
takes tasks, and nothing is kept between two rounds: where each partition continues, the driver and the database know.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Lock, Thread

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import SparkSession

from opencqrs_py.engines.spark.tasks import Permit, Task, TaskResult, TaskRunner, read_result, write_task
from opencqrs_py.engines.spark.worker_calls import TimedOut, timed_out_of
from opencqrs_py.model.outcome import Failure, Origin
from opencqrs_py.processing.ports import Clock

_TRACEBACK = "Traceback (most recent call last):"
_CANCEL_SECONDS = 0.5  # how long a cancelled job may take to end; Spark kills its Python workers after 0.2
_LOOK_SECONDS = 1.0  # between two looks at what runs


class GroupJobs:
    """Runs the rounds of a group, one at a time.

    Args:
        spark: The session.
        group: The group's name; also that of the jobs' group in Spark.
        handler: What the executors do.
        permit: Given for each round; without it they end after the chunk in hand.
        done: Called with the results of a round, on the thread of the round.
        broken: Called, likewise, with the error when Spark could not finish a round.
    """

    def __init__(
        self,
        spark: SparkSession,
        group: str,
        handler: TaskRunner,
        permit: Permit,
        done: Callable[[Sequence[TaskResult]], None],
        broken: Callable[[Exception], None],
    ) -> None:
        self._context: SparkContext = spark.sparkContext
        self._group = group
        self._handler = handler
        self._permit = permit
        self._done = done
        self._broken = broken
        self._lock = Lock()
        self._tag = ""  # of the round under way
        self._thread: Thread | None = None

    def start_round(self, tasks: Sequence[Task]) -> None:
        """Start a job that runs these tasks. The round before must be over or abandoned."""
        tag = f"opencqrs-{uuid.uuid4().hex}"
        self._permit.give()
        with self._lock:
            self._tag = tag
        self._thread = Thread(target=self._run, args=(tag, tasks), name=f"opencqrs-{self._group}", daemon=True)
        self._thread.start()

    def end_soon(self) -> None:
        """Have the tasks of the round under way end after the chunk in hand, where they are on this machine."""
        self._permit.withdraw()

    def abandon_round(self) -> bool:
        """Cancel the round under way; neither ``done`` nor ``broken`` is called for it any more.

        Returns:
            Whether there was one.
        """
        with self._lock:
            tag, self._tag = self._tag, ""
        if tag:
            with suppress(Py4JError, PySparkException, OSError):  # the JVM may be gone already
                self._context.cancelJobsWithTag(tag)
        return bool(tag)

    def stop(self) -> None:
        """Cancel the round under way, and wait a little for its end."""
        if self.abandon_round() and self._thread is not None:
            self._thread.join(_CANCEL_SECONDS)

    def _run(self, tag: str, tasks: Sequence[Task]) -> None:
        try:
            results = self._collected(tag, tasks)
        except Exception as error:  # Spark's failures are reported; the coordinator continues
            if self._finished(tag):
                self._broken(error)
        else:
            if self._finished(tag):
                self._done(results)

    def _collected(self, tag: str, tasks: Sequence[Task]) -> list[TaskResult]:
        partitions = sum(len(task.cursors) for task in tasks)
        self._context.setJobGroup(self._group, f"{self._group}: {partitions} partitions", interruptOnCancel=True)
        self._context.addJobTag(tag)  # the program may have jobs of its own in a group of this name
        lines = [write_task(task) for task in tasks]
        return [read_result(line) for line in self._context.parallelize(lines, len(lines)).map(self._handler).collect()]

    def _finished(self, tag: str) -> bool:
        """Take in that a round has ended; return whether it was the one under way."""
        with self._lock:
            current = self._tag == tag
            if current:
                self._tag = ""
        return current


def running_tasks(context: SparkContext) -> int:
    """Return how many tasks run on Spark now, of all jobs of the program."""
    tracker = context.statusTracker()
    stages = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def spark_failure(error: Exception) -> Failure:
    """Return what a failed round comes to.

    A Python error that reached Spark was raised outside every handler and would be raised again; all else, such as a
    worker or an executor that died, may pass.
    """
    lasting = isinstance(error, PythonException)
    origin = Origin.FRAMEWORK if lasting else Origin.OUTAGE
    what = "Spark could not finish a round"
    return Failure(origin, permanent=lasting, error=what, message=_first_line(error), code="OCQ-405")


def timed_out_call(error: Exception) -> TimedOut | None:
    """Return the call of a handler that has not returned in time, if that is why a round has failed."""
    text = error.getMessage() if isinstance(error, PythonException) else ""
    return timed_out_of(_raised_last(text or ""))


def _first_line(error: Exception) -> str:
    """Return the reason without the JVM's stack."""
    text = error.getMessage() if isinstance(error, PySparkException) else str(error)
    if isinstance(error, PythonException) and (raised := _raised_last(text or "")):
        return raised[:300]
    lines = [line.strip(" :") for line in (text or type(error).__name__).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith("at ")] or lines
    telling = [line for line in said if "Error" in line or "exited" in line or "lost" in line]
    return (telling or said)[0][:300]


def _raised_last(text: str) -> str:
    """Return the line of a Python traceback that says what was raised last; its other lines are source code."""
    _, _, last = text.rpartition(_TRACEBACK)
    return next((line.strip() for line in last.splitlines() if line.strip() and not line.startswith(" ")), "")


class Stillness:
    """Whether Spark stands still: rounds wait, and nothing runs for some seconds.

    A task that runs may take as long as it likes; a round that no executor ever takes up, because the master has no
    workers or all of them are lost, would wait forever without a word. ``running`` returns how many tasks run now, of
    all jobs of the program; other jobs can be what a round waits for.
    """

    def __init__(self, running: Callable[[], int], clock: Clock, seconds: float) -> None:
        self._running = running
        self._clock = clock
        self._seconds = seconds
        self._seen = float("-inf")  # when something ran last
        self._looked = float("-inf")

    def lasts(self, waiting: Sequence[float]) -> bool:
        """Return whether nothing has run for too long, given the times at which the rounds under way were started."""
        now = self._clock.monotonic()
        if not waiting or now - max(self._seen, min(waiting)) < _LOOK_SECONDS or now - self._looked < _LOOK_SECONDS:
            return False
        self._looked = now
        if self._running() > 0:
            self._seen = now
        return now - max(self._seen, min(waiting)) >= self._seconds

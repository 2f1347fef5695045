"""Tasks as jobs: plain Spark jobs, or, while Spark is starting and for data frames, calls of the same core.

Runs on the driver. A job has one task, and a thread waits for it, so a slow task delays no other. Nothing is kept
between two jobs: the driver and the database know where each partition continues.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event as Signal
from threading import Lock
from typing import Any, Generic, TypeVar

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark import SparkContext, SparkJobInfo
from pyspark.errors import PySparkException, PythonException

from opencqrs_py.engines.spark.tasks import Task, TaskResult, TaskRunner, read_result, write_task
from opencqrs_py.engines.spark.turns import TimedOut, timed_out_of
from opencqrs_py.engines.threads import Threads
from opencqrs_py.model.outcome import Failure, Origin

TRACEBACK = "Traceback (most recent call last):"
"""Begins the text of an error that Python has raised."""

_OTHER_PYTHON = re.compile(r"\[PYTHON_VERSION_MISMATCH\] .*: (\S+) than that in driver: ([\d.]+)")
_WORKER_ENDED = re.compile(
    r"\(TID \d+\) \((?P<host>\S+) (?P<executor>executor \w+)\): \S+: Python worker exited unexpectedly"
    r"(?: \(crashed\): (?P<why>.+?)(?:\n\s*at |\Z))?",  # what Python's faulthandler has written, before Java's stack
    re.DOTALL,
)
_MOST_CHARACTERS = 300  # of a reason
_MOST_NAMED = 10  # partitions of a job that its description names
_LISTENERS_MILLISECONDS = 2000  # for slow ones, before failed jobs are looked up
_MOST_RUNS = 100  # of a task that are checked

_cancelled: set[str] = set()  # tags of cancelled jobs that have not ended

Result = TypeVar("Result")


class Jobs:
    """Runs jobs, on Spark or on the driver, each on a thread. Safe for several threads."""

    def __init__(self) -> None:
        self._threads = Threads()

    def start(
        self,
        group: str,
        description: str,
        run: Callable[[], Result],
        ended: Callable[[Result | Exception], None],
        context: SparkContext | None,
        tag: str = "",
    ) -> SparkJob[Result]:
        """Start a job of a group.

        Args:
            group: The group's name; also that of the job's group and pool in Spark.
            description: The job's description in Spark.
            run: Runs it, on the job's thread.
            ended: Called with the result, or with the error if the job could not be finished, on the job's thread; not
                called if the job was abandoned.
            context: That of the Spark jobs which ``run`` starts: they end when the job is abandoned. ``None`` without
                Spark: an abandoned job is not stopped. Its partitions were claimed again, so it cannot commit.
            tag: Spark's tag of the job; empty for a new one.
        """
        job = SparkJob[Result](context, ended, tag)

        def labelled_run() -> Result:
            if context is None:
                return run()
            with labelled(context, job.tag, group, description):
                return run()

        self._threads.run(f"opencqrs-{group}", lambda: job.run(labelled_run))
        return job


def run_on_spark(context: SparkContext, runner: TaskRunner, task: Task) -> TaskResult:
    """Have an executor run a task."""
    (line,) = context.parallelize([write_task(task)], 1).map(runner).collect()
    return read_result(line)


@contextmanager
def labelled(context: SparkContext, tag: str, group: str, description: str) -> Iterator[None]:
    """Have the jobs that this thread starts carry the name of a group and a tag, by which they are cancelled."""
    context.setJobGroup(group, description, interruptOnCancel=True)
    context.setLocalProperty("spark.scheduler.pool", group)
    context.addJobTag(tag)  # abandoning a job must not touch the user's own jobs in a group of this name
    try:
        yield
    finally:
        context.removeJobTag(tag)  # of the thread, which will run other jobs


def is_cancelled(context: SparkContext) -> bool:
    """Return whether the engine has cancelled this thread's jobs on Spark, even if its code caught the error."""
    return bool(_cancelled) and not _cancelled.isdisjoint(context.getJobTags())


class SparkJob(Generic[Result]):
    """A job started on Spark, until it has ended or was abandoned."""

    def __init__(
        self, context: SparkContext | None, ended: Callable[[Result | Exception], None], tag: str = ""
    ) -> None:
        self.tag = tag or f"opencqrs-{uuid.uuid4().hex}"
        self._context = context
        self._ended = ended
        self._lock = Lock()
        self._over = False
        self._gone = Signal()

    def run(self, collect: Callable[[], Result]) -> None:
        """Run the job, and pass on the result."""
        try:
            result: Result | Exception = collect()
        except Exception as error:  # Spark's failures are reported; the coordinator continues
            result = error
        _cancelled.discard(self.tag)
        self._gone.set()
        if self._is_last():
            self._ended(result)

    @property
    def is_under_way(self) -> bool:
        """Whether work for the job is still running, even after it was abandoned."""
        return not self._gone.is_set()

    def wait(self, seconds: float) -> None:
        """Wait until no work for the job is running, for some seconds at most."""
        self._gone.wait(max(0.0, seconds))

    def abandon(self) -> bool:
        """Cancel the job, whose end is no longer reported; return whether it was running."""
        first = self._is_last()
        if first and self._context is not None:
            # The JVM may be gone, or the session stopped: PySpark then removes its attributes.
            with suppress(Py4JError, PySparkException, OSError, AttributeError):
                if self.is_under_way:
                    _cancelled.add(self.tag)
                self._context.cancelJobsWithTag(self.tag)
        return first

    def timed_out_run(self) -> TimedOut | None:
        """Return the call that timed out in a run of the task that Spark then repeated itself; ``None`` if none did."""
        if self._context is None:
            return None
        store: Any = self._context._jsc.sc().statusStore()  # noqa: SLF001 the only way
        for stage in [stage for job in _jobs_with(self._context, self.tag) for stage in job.stageIds]:
            runs = store.taskList(stage, 0, _MOST_RUNS)
            errors = [runs.apply(number).errorMessage() for number in range(runs.size())]
            for text in [error.get() for error in errors if error.isDefined()]:
                if (hung := timed_out_of(raised_last(text))) is not None:
                    return hung
        return None

    def _is_last(self) -> bool:
        with self._lock:
            before, self._over = self._over, True
        return not before


def description_of(task: Task) -> str:
    """Return the description of a job in Spark: its partitions, and the position after which each continues."""
    places = [f"{cursor.partition} after {cursor.position}" for cursor in task.cursors[:_MOST_NAMED]]
    more = len(task.cursors) - len(places)
    return ", ".join(places) + (f" and {more} more" if more > 0 else "")


def copies_tasks(context: SparkContext) -> bool:
    """Return whether Spark runs a copy of a slow task."""
    return str(context.getConf().get("spark.speculation", "false")).strip().lower() == "true"


def spark_failure(error: Exception) -> Failure:
    """Return how a failed job is classified.

    A Python error that reached Spark was raised outside every handler and would be raised again; all others, such as
    the loss of a worker or an executor, may be transient.
    """
    lasting = isinstance(error, PythonException)
    if versions := _OTHER_PYTHON.search(reason_of(error)):
        return _other_python(*versions.groups())
    origin = Origin.FRAMEWORK if lasting else Origin.OUTAGE
    what = "Spark could not finish a task"
    return Failure(origin, permanent=lasting, error=what, message=reason_of(error), code="OCQ-405")


def _other_python(there: str, here: str) -> Failure:
    fix = f"have PYSPARK_PYTHON name a Python {here} that executors have, or run the driver on Python {there}"
    message = f"Python {there} there, {here} on the driver: {fix}"
    what = "Spark's workers run a different Python version"
    return Failure(Origin.FRAMEWORK, permanent=True, error=what, message=message, code="OCQ-418")


def timed_out_call(error: Exception) -> TimedOut | None:
    """Return the call of a handler that timed out, if that is why a job failed."""
    text = error.getMessage() if isinstance(error, PythonException) else ""
    return timed_out_of(raised_last(text or ""))


def failures_of_jobs(context: SparkContext, tag: str) -> Iterator[str]:
    """Yield why jobs with a tag have failed, in Spark's words: also those whose error was caught."""
    spark: Any = context._jsc.sc()  # noqa: SLF001 the only way
    with suppress(Py4JJavaError):  # some listener is slow: Spark's own have seen the failures by now
        spark.listenerBus().waitUntilEmpty(_LISTENERS_MILLISECONDS)
    for job in _jobs_with(context, tag):
        if job.status == "SUCCEEDED":
            continue
        for stage in job.stageIds:
            with suppress(Py4JJavaError):  # it was skipped, or is no longer known
                reason = spark.statusStore().lastStageAttempt(stage).failureReason()
                if reason.isDefined():
                    yield reason.get()


def _jobs_with(context: SparkContext, tag: str) -> list[SparkJobInfo]:
    ids = context._jsc.sc().statusTracker().getJobIdsForTag(tag)  # noqa: SLF001 the only way
    return [job for job in map(context.statusTracker().getJobInfo, ids) if job is not None]


def reason_of(error: Exception) -> str:
    """Return in one line why a job failed: what was raised in Python, or the JVM's message, without its stack."""
    text = error.getMessage() if isinstance(error, PySparkException) else str(error)
    if isinstance(error, PythonException) and (raised := raised_last(text or "")):
        return _cut(raised)
    if ended := _WORKER_ENDED.search(text or ""):
        why = f": {_cut(' '.join(ended['why'].split()))}" if ended["why"] else ""
        return f"a Python worker ({ended['executor']} on {ended['host']}) ended{why}"
    lines = [line.strip(" \t:") for line in (text or type(error).__name__).splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("at ", "An error occurred while calling "))] or lines
    telling = [line for line in said if "Error" in line or "exited" in line or "lost" in line]
    return _cut((telling or said)[0])


def _cut(text: str) -> str:
    """Return a text, or the words at its beginning if it is long; a word of half that length is cut."""
    if len(text) <= _MOST_CHARACTERS:
        return text
    head = text[:_MOST_CHARACTERS]
    words = head.rpartition(" ")[0]
    return f"{words if len(words) > _MOST_CHARACTERS // 2 else head} …"


def raised_last(text: str) -> str:
    """Return the line of a Python traceback that names the last exception; its other lines are source code."""
    _, _, last = text.rpartition(TRACEBACK)
    return next((line.strip() for line in last.splitlines() if line.strip() and not line.startswith(" ")), "")

"""Runs of jobs on Spark: the ids of a page are distributed to tasks, each of which executes a child of the run.

Runs on the driver, on the thread of the run.
"""

from __future__ import annotations

import logging
import math
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import partial
from itertools import starmap
from threading import Lock

from py4j.protocol import Py4JError
from pyspark import SparkContext

from opencqrs_py.engines.runs import Recipe
from opencqrs_py.engines.spark.job_tasks import (
    JobOnExecutor,
    JobTask,
    JobTaskRunner,
    pause,
    read_ending,
    write_job_task,
)
from opencqrs_py.engines.spark.jobs import Jobs, copies_tasks, spark_failure
from opencqrs_py.engines.spark.masters import is_local
from opencqrs_py.engines.spark.session import Sessions
from opencqrs_py.engines.spark.slots import Stillness, executors_of, running_tasks, slots_of
from opencqrs_py.engines.spark.tasks import Permit, SentRecipe
from opencqrs_py.errors import EngineLostError
from opencqrs_py.jobs.binding import GROUP_PREFIX, BoundJob
from opencqrs_py.jobs.children import EndedError, fenced, page_of, with_part
from opencqrs_py.jobs.desk import Ending
from opencqrs_py.jobs.execution import OUTAGE_BACK_OFF, JobExecution, Surroundings
from opencqrs_py.jobs.items import IdPage
from opencqrs_py.jobs.runs import JobRun, RunPosition, RunStatus, distinct
from opencqrs_py.model.job import JobId, RunSignals
from opencqrs_py.model.naming import counted
from opencqrs_py.model.outcome import Failure, Origin
from opencqrs_py.processing.ports import Clock

MOST_LOST = 3
"""How many Spark jobs in a row may be lost, without progress in between, before a run fails."""

STILL_SECONDS = 60.0  # after which tasks are abandoned if nothing at all runs on Spark
EXECUTORS_SECONDS = 15.0  # for the first executor of a session that has just been opened, at most
REST_SECONDS = 1.0  # for the executors that start together with it
_LOOK_SECONDS = 0.05  # between two checks whether the run is to end
_END_SECONDS = 2.0  # for tasks to finish the current item when their process ends

_log = logging.getLogger("opencqrs.jobs")

Endings = list[Ending | None]  # of children; ``None`` for one that was taken from its task


@dataclass(frozen=True, slots=True)
class SentJob:
    """A planned Spark job.

    Attributes:
        name: Name of the job that it is for.
        description: Its description in Spark.
        lines: A task each.
        signals: Signals that it should end.
        released: Returns whether this process is ending.
        clock: For tasks that no executor picks up.
    """

    name: str
    description: str
    lines: Sequence[str]
    signals: RunSignals
    released: Callable[[], bool]
    clock: Clock


class SparkForJobs:
    """Executes runs of jobs on Spark. Safe for several threads.

    Args:
        sessions: Opens the session, with the first run.
        recipes: Builds each of the jobs in a worker, by name.
        most_tasks: Most tasks of a job at once; ``None`` for as many as Spark runs at once.
    """

    def __init__(
        self, sessions: Sessions, recipes: Mapping[str, Recipe[JobOnExecutor]], most_tasks: int | None = None
    ) -> None:
        self._sessions = sessions
        self._recipes = recipes
        self._most_tasks = most_tasks
        self._handed_over: dict[str, SentRecipe[JobOnExecutor]] = {}
        self._awaited: SparkContext | None = None  # whose executors were waited for
        self._lock = Lock()
        self._jobs = Jobs()

    def attempt(
        self, job: BoundJob, run: JobRun, around: Surroundings, signals: RunSignals, released: Callable[[], bool]
    ) -> SparkExecution:
        """Return an attempt of a run whose items are handled on Spark."""
        return SparkExecution(job, run, around, signals, released, self)

    def close(self, patience: float) -> None:
        """Close the session if it was opened here; wait for runs that use it for at most ``patience`` seconds."""
        self._sessions.close(patience)

    def slots(self, signals: RunSignals, wanted: int) -> int:
        """Return how many of the tasks that a job wants run at once, at least 1.

        It opens the session, and waits for its first executors if more than one task can run.

        Raises:
            EngineError: If there is no session.
        """
        most = wanted if self._most_tasks is None else min(wanted, self._most_tasks)
        with self._sessions.used() as session:
            if most <= 1:
                return 1
            context = session.sparkContext
            if self._awaited is not context:
                _await_executors(context, signals)
                if not signals.cancelled:
                    self._awaited = context
            return min(slots_of(context), most)

    def results(self, sent: SentJob, tag: str) -> Endings | Failure:
        """Return the results of tasks, in their order, or why Spark could not finish them.

        Args:
            sent: The tasks.
            tag: Spark's tag of the job.

        Raises:
            EngineLostError: OCQ-403, if Spark's JVM is gone.
        """
        with self._sessions.used() as session:
            context = session.sparkContext
            with self._lock:
                if sent.name not in self._handed_over:
                    self._handed_over[sent.name] = self._sessions.handed_over(self._recipes[sent.name])
            self._sessions.restore()
            permit = self._sessions.permit()
            permit.give()
            runner = JobTaskRunner(self._handed_over[sent.name], permit, copies_tasks(context))
            run = partial(_collected, context, runner, sent)
            came, name = Future[Endings | Exception](), f"{GROUP_PREFIX}{sent.name}"
            job = self._jobs.start(name, sent.description, run, came.set_result, context, tag)
            try:
                given_up = self._waited(context, sent, came, permit)
            finally:
                permit.withdraw()
                if not came.done():
                    job.abandon()
            return given_up or self._of(came.result())

    def _waited(
        self, context: SparkContext, sent: SentJob, came: Future[Endings | Exception], permit: Permit
    ) -> Failure | None:
        """Wait until the tasks have ended; return why they are abandoned earlier."""
        stillness, since = Stillness(partial(running_tasks, context), sent.clock), sent.clock.monotonic()
        asked: float | None = None
        while not wait([came], _LOOK_SECONDS).done:
            if sent.signals.cancelled and asked is None:
                asked = time.monotonic()
                permit.withdraw()
                if not permit.file:  # it always holds
                    return _given_up("the run is to end")
            if asked is not None and sent.released() and time.monotonic() - asked >= _END_SECONDS:
                return _given_up("their process is ending")
            if stillness.seconds([since]) >= STILL_SECONDS:
                return _given_up(f"none was running for {STILL_SECONDS:g} s: there is no executor for them", "OCQ-406")
        return None

    def _of(self, came: Endings | Exception) -> Endings | Failure:
        if not isinstance(came, Exception):
            return came
        try:
            self._sessions.check()
        except (Py4JError, OSError) as error:
            what = f"Spark's JVM is gone ({type(error).__name__})"
            raise EngineLostError("OCQ-403", what, fix="start again: finished work is safe in the database") from None
        return spark_failure(came)


class SparkExecution(JobExecution):
    """Executes one attempt of a run, whose items are handled by tasks of Spark.

    The children of a page are recorded before their Spark job begins, and their progress together with what they write.
    When all have ended, the run continues. An attempt that finds children takes them over, and executes the rest.

    Args:
        job: The job.
        run: The run as it was begun.
        around: What executions need.
        signals: Signals that it should end.
        released: Returns whether the run continues in another process because this one is ending.
        spark: Executes tasks.
    """

    def __init__(
        self,
        job: BoundJob,
        run: JobRun,
        around: Surroundings,
        signals: RunSignals,
        released: Callable[[], bool],
        spark: SparkForJobs,
    ) -> None:
        super().__init__(job, run, around, signals, released)
        self._spark = spark
        self._may_help = bool(run.position.failed)
        self._has_children = True  # perhaps, from an earlier attempt
        self._waits = OUTAGE_BACK_OFF.waits()  # while workers load other code

    def _finish_children(self) -> None:
        """Do nothing: each page begins with the existing ones."""

    def _next_page(self) -> None:
        children = self._taken(self._tag()) if self._has_children else []
        self._has_children = True
        named = self._position.only or self._run.ids
        page = page_of(children, self._position, named) if children else self._read_page()
        if page.call:
            self._handle(children or self._dealt(page))
        self._signals.done = self._position.items + len(self._position.failed)
        self._gather(self._items.passed(self._position, page))
        self._has_children = False

    def _dealt(self, page: IdPage) -> list[JobRun]:
        """Distribute the ids of a page to children, and record them."""
        ids = distinct(starmap(_sent_id, zip(page.ids, page.marks, strict=True)))
        prefix, tag = f"{self._run.id}/{uuid.uuid4().hex[:12]}", self._tag()
        count = self._spark.slots(self._signals, len(ids))
        parts = [ids[len(ids) * n // count : len(ids) * (n + 1) // count] or None for n in range(count)]
        children = [
            replace(
                self._run,
                id=f"{prefix}/{number:05}",
                parent=self._run.id,
                ids=part,
                status=RunStatus.RUNNING,
                owner=tag,
                position=RunPosition(),
                done=None,
                total=None,
            )
            for number, part in enumerate(parts)
        ]
        if not self._around.store.spread(self._run, children):
            raise fenced(self._run)
        return children

    def _handle(self, children: Sequence[JobRun]) -> None:
        """Have Spark execute children until all are finished as far as possible, or the run should end."""
        lost, children = 0, [child for child in children if not child.position.done]
        while children and not self._signals.cancelled:
            results = self._spark.results(self._sent(children), children[0].owner)
            endings = [] if isinstance(results, Failure) else results
            if endings and all(ending is not None and ending.position.done for ending in endings):
                for ending in filter(None, endings):
                    self._position = with_part(self._position, ending.position)
                    failed = bool(ending.position.failed)
                    self._may_help = self._may_help or (failed and not ending.permanent)
                return
            before = self._position
            children = [child for child in self._taken(self._tag()) if not child.position.done]
            if self._signals.cancelled:
                raise EndedError(Ending(self._position))
            self._raise_failed(endings)
            if said := next((each.error for each in endings if each is not None and each.released and each.error), ""):
                self._await_restart(said)
                continue
            lost = 1 if self._position != before else lost + 1
            if lost >= MOST_LOST or (isinstance(results, Failure) and results.permanent):
                raise EndedError(Ending(self._position, error=_text_of(results, lost), permanent=True))
        if children:
            raise EndedError(Ending(self._position))

    def _raise_failed(self, endings: Sequence[Ending | None]) -> None:
        unfinished = [ending for ending in endings if ending is not None and not ending.position.done]
        failed = [ending for ending in unfinished if ending.error and not ending.released]
        if failed:
            permanent = any(ending.permanent for ending in failed)
            raise EndedError(Ending(self._position, error=failed[0].error, permanent=permanent))

    def _await_restart(self, said: str) -> None:
        """Wait before the next try of a worker that has loaded other code; the end of this process ends the wait."""
        wait = next(self._waits)
        _log.warning("[job %s] %s; next try in %.1f s", self._run.job, said, wait)
        self._around.pause(wait, self._signals)

    def _sent(self, children: Sequence[JobRun]) -> SentJob:
        left = self._until - self._around.clock.monotonic()
        seconds = None if left == math.inf else max(0.0, left)
        count = sum(len(child.ids or ()) for child in children)
        items = f", {counted(count, 'item')}" if count else ""
        after = "" if self._position.after is None else f" after {self._position.after}"
        return SentJob(
            self._run.job,
            f"run {self._run.id}{items}{after}",
            [write_job_task(JobTask(child, seconds)) for child in children],
            self._signals,
            self._released,
            self._around.clock,
        )

    @staticmethod
    def _tag() -> str:
        return f"opencqrs-{uuid.uuid4().hex}"


def _await_executors(context: SparkContext, signals: RunSignals) -> None:
    """Wait a while for executors of a cluster: until they have started, a page would be divided for a single slot.

    With dynamic allocation there may be none before there are tasks.
    """
    dynamic = str(context.getConf().get("spark.dynamicAllocation.enabled", "false")).strip().lower() == "true"
    if dynamic or is_local(str(context.master)) or executors_of(context):
        return
    until = time.monotonic() + EXECUTORS_SECONDS
    while not executors_of(context) and time.monotonic() < until and not signals.cancelled:
        pause(_LOOK_SECONDS, signals)
    if executors_of(context):
        pause(REST_SECONDS, signals)


def _sent_id(item: JobId, mark: JobId | None) -> JobId:
    """Return what a task is given: the id as the input yields it, unless it is spelled differently from its mark.

    If the driver of a page is killed, only that is known, and it must suffice to find the mark that the page reached.
    """
    return item if mark is None or str(item) == str(mark) else mark


def _collected(context: SparkContext, runner: JobTaskRunner, sent: SentJob) -> Endings:
    return list(map(read_ending, context.parallelize(sent.lines, len(sent.lines)).map(runner).collect()))


def _text_of(failure: Failure | Endings, lost: int) -> str:
    if not isinstance(failure, Failure):
        return f"other tasks took over the items of this run {counted(lost, 'time')} in a row"
    return str(failure) if lost < MOST_LOST else f"{failure} ({counted(lost, 'time')} in a row)"


def _given_up(why: str, code: str = "OCQ-405") -> Failure:
    what = "tasks on Spark were abandoned"
    return Failure(Origin.OUTAGE, permanent=False, error=what, message=why, code=code)

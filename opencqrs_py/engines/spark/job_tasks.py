"""Messages between driver and executors about the runs of jobs: children of runs, and how they ended.

``JobTaskRunner`` runs on executors, once per task, as ``TaskRunner`` does for groups. Everything else runs on both
sides.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from opencqrs_py.engines.spark.tasks import (
    ALWAYS,
    Permission,
    Permit,
    SentRecipe,
    await_other_run,
    parts_of,
    patience_after,
    runs_again,
)
from opencqrs_py.errors import CodeChangedError, UnavailableError
from opencqrs_py.jobs.binding import BoundJob
from opencqrs_py.jobs.desk import Ending
from opencqrs_py.jobs.execution import JobExecution, Surroundings
from opencqrs_py.jobs.ports import JobStore
from opencqrs_py.jobs.runs import JobRun
from opencqrs_py.model.job import RunSignals
from opencqrs_py.processing.exceptions import interrupts_are_errors, one_line, own_frames

_LOOK_SECONDS = 0.2  # between two checks of a waiting task
_WITHDRAWN = "its run is to end"


@dataclass(frozen=True, slots=True)
class JobOnExecutor:
    """A job in a worker of Spark.

    Attributes:
        job: The job, without its input: the driver has determined the ids.
        around: What executions need.
    """

    job: BoundJob
    around: Surroundings


@dataclass(frozen=True, slots=True)
class JobTask:
    """Work for one task.

    Attributes:
        child: The child of a run that is to be executed.
        seconds: The rest of the run's time budget; ``None``: it has none.
    """

    child: JobRun
    seconds: float | None = None


_TASK = TypeAdapter(JobTask)
_RESULT = TypeAdapter[Ending | None](Ending | None)


def write_job_task(task: JobTask) -> str:
    """Return the task as a line."""
    return _TASK.dump_json(task).decode()


def read_ending(line: str) -> Ending | None:
    """Return how the child of a task ended; ``None`` if it was taken from the task."""
    return _RESULT.validate_json(line)


class TaskSignals(RunSignals):
    """The signals of a task, which should end when its permit is withdrawn."""

    def __init__(self, permit: Permission) -> None:
        self._permit = permit
        self._said = ""
        super().__init__()

    @property
    def cancelled(self) -> str:
        """Why the task should end; empty: it continues."""
        return self._said or ("" if self._permit.holds else _WITHDRAWN)

    @cancelled.setter
    def cancelled(self, said: str) -> None:
        self._said = said


def pause(seconds: float, signals: RunSignals) -> None:
    """Wait a number of seconds, or until a task should end."""
    until = time.monotonic() + seconds
    while not signals.cancelled and (left := until - time.monotonic()) > 0:
        time.sleep(min(_LOOK_SECONDS, left))


@dataclass(frozen=True)
class JobTaskRunner:
    """The function that a job of Spark maps: a line with a task in, a line with its result out.

    Attributes:
        recipe: Builds the job, or locates the recipe that does.
        permit: Tells whether another item may begin.
        copies: Whether Spark may run a copy of a slow task.
    """

    recipe: SentRecipe[JobOnExecutor]
    permit: Permit = ALWAYS
    copies: bool = False

    def __call__(self, line: str) -> str:
        """Run a task. Called by Spark once per line."""
        with interrupts_are_errors():
            return _RESULT.dump_json(self._ending_of(_TASK.validate_json(line))).decode()

    def _ending_of(self, task: JobTask) -> Ending | None:
        parts: JobOnExecutor | None = None
        try:
            parts = parts_of(self.recipe)
            child = _owned(task.child, parts.around.store)
        except CodeChangedError as error:  # for this run nothing has failed, and a restart continues it
            return Ending(task.child.position, error=f"[{error.code}] {error.what} ({error.fix})", released=True)
        except BaseException as error:  # an error of the user's modules, or of a database, on this machine
            frames = own_frames(error)
            text = f"{one_line(error)}\n{frames}" if frames else one_line(error)
            outage = isinstance(error, UnavailableError) or (parts is not None and parts.around.store.is_outage(error))
            return Ending(task.child.position, error=text, permanent=not outage)
        if child is None:
            return None
        began, signals = time.monotonic(), TaskSignals(self.permit)
        budget = math.inf if task.seconds is None else task.seconds
        rule = replace(parts.job.rule, limit=max(1, len(child.ids or ())), budget=budget)
        ending = JobExecution(replace(parts.job, rule=rule), child, parts.around, signals).execute()
        if ending is None and self.copies:
            store = parts.around.store
            await_other_run(lambda: _is_in_hand(child, store), patience_after(began), self.permit)
        return ending


def _owned(child: JobRun, store: JobStore) -> JobRun | None:
    """Return the child as this task has it: a copy of a task takes it from the task that has it already.

    Otherwise both would handle the same items. The other one commits nothing after that.
    """
    return store.take_over(child) if runs_again() else child


def _is_in_hand(child: JobRun, store: JobStore) -> bool:
    """Return whether the copy that has taken over a task's child executes it: Spark ends both with the first result."""
    known = store.find(child.id)
    return known is not None and known.owner == child.owner and not known.position.done

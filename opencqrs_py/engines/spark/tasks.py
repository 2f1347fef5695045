"""Messages between driver and executors: tasks and results as lines of JSON, recipes and permits as files.

A recipe holds the settings of a group, with the URL of the database and the token of the event store. Whatever Spark
sends to a task goes through its block manager, so with a local master only the name of a file is sent. Nothing reaches
a task once it has begun, so the removal of a file requests its end.

``TaskRunner`` runs on executors, once per task. It is pickled with every task, so it contains only the recipe, or its
location; what the recipe builds stays in the Python worker and serves all later tasks of the group. Everything else
runs on both sides.
"""

from __future__ import annotations

import gc
import os
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from pydantic import TypeAdapter
from pyspark import TaskContext, cloudpickle

from opencqrs_py.engines.runs import Recipe
from opencqrs_py.engines.spark.holds import Hold
from opencqrs_py.engines.spark.turns import PartitionsInTurn, turns_within
from opencqrs_py.errors import UnavailableError
from opencqrs_py.model.outcome import Origin, Outcome
from opencqrs_py.model.progress import Cursor
from opencqrs_py.processing.exceptions import failure_of, interrupts_are_errors, own_frames
from opencqrs_py.processing.groups import GroupProcessing

_LOOK_SECONDS = 0.2  # between two checks of another run of a task
_LEAST_WAIT_SECONDS = 10.0  # for which a run lets the other one continue, at least

Parts = TypeVar("Parts")

_built: dict[Recipe[Any], Any] = {}


@dataclass(frozen=True, slots=True)
class Task:
    """Work for one task: partitions of one group that share one reading of the log, and where each of them continues.

    After ``seconds`` no further step is begun. At most ``most`` events are read at once, ``None`` for as many as their
    chunks need: what is read but not handled, the next task reads again. Nothing after ``upto`` is read.
    """

    cursors: tuple[Cursor, ...]
    seconds: float
    most: int | None = None
    upto: int | None = None


@dataclass(frozen=True, slots=True)
class TaskResult:
    """The result of a task: one outcome per cursor, in their order."""

    outcomes: tuple[Outcome, ...]


_TASK = TypeAdapter(Task)
_RESULT = TypeAdapter(TaskResult)


def write_task(task: Task) -> str:
    """Return the task as a line."""
    return _TASK.dump_json(task).decode()


def read_task(line: str) -> Task:
    """Return the task that a line encodes."""
    return _TASK.validate_json(line)


def write_result(result: TaskResult) -> str:
    """Return the result as a line."""
    return _RESULT.dump_json(result).decode()


def read_result(line: str) -> TaskResult:
    """Return the result that a line encodes."""
    return _RESULT.validate_json(line)


@dataclass(frozen=True)
class KeptRecipe(Generic[Parts]):
    """Where a recipe is: the path of a file on this machine."""

    file: str

    def fetch(self) -> Recipe[Parts]:
        """Return the recipe, read once per process. For executors.

        Raises:
            UnavailableError: OCQ-420, if the file is gone: the run that kept it has ended, or will write it again.
        """
        try:
            recipe: Recipe[Parts] = _read(self.file)
        except FileNotFoundError as error:
            what = f"the file with the settings of the run is gone: {self.file}"
            raise UnavailableError("OCQ-420", what) from error
        return recipe


SentRecipe: TypeAlias = Recipe[Parts] | KeptRecipe[Parts]
"""What a task gets: a recipe, or where it is."""


class KeptRecipes:
    """The recipes that a run keeps in files, which a cleaner of the temporary folder may remove.

    Runs on the driver.
    """

    def __init__(self) -> None:
        self._kept: dict[KeptRecipe[Any], bytes] = {}

    def keep(self, recipe: Recipe[Parts], folder: Path) -> KeptRecipe[Parts]:
        """Write a recipe to a new file that only this user can read.

        The folder lives as long as Spark, which deletes it.
        """
        kept = KeptRecipe[Parts](str(folder / f"recipe-{uuid.uuid4().hex}"))
        self._kept[kept] = cloudpickle.dumps(recipe)  # type: ignore[no-untyped-call] # PySpark says no types for it
        self.restore()
        return kept

    def restore(self) -> None:
        """Restore missing files; touch the others, so that cleaners of old files see that they are in use.

        Raises:
            OSError: If that cannot be done.
        """
        for kept, recipe in tuple(self._kept.items()):
            try:
                os.utime(kept.file)
            except FileNotFoundError:
                _write(Path(kept.file), recipe)

    def remove(self) -> None:
        """Remove the files."""
        for kept in self._kept:
            Path(kept.file).unlink(missing_ok=True)
        self._kept = {}


@dataclass(frozen=True)
class Permit:
    """The permit of a task to begin another chunk: a file on this machine that exists as long as it may.

    The path is empty if workers are on other machines: then it always may.
    """

    file: str = ""

    @classmethod
    def in_folder(cls, folder: str) -> Permit:
        """Return one whose file will be in this folder; it is not granted yet."""
        return cls(str(Path(folder, f"permit-{uuid.uuid4().hex}")))

    @property
    def holds(self) -> bool:
        """Whether another chunk may begin."""
        return not self.file or os.path.exists(self.file)  # noqa: PTH110 four times as fast, once a chunk

    def give(self) -> None:
        """Let tasks continue. Runs on the driver."""
        if self.file:
            _make_private(Path(self.file).parent)
            Path(self.file).touch(0o600)

    def withdraw(self) -> None:
        """Have tasks end after the current chunk. Runs on the driver."""
        if self.file:
            Path(self.file).unlink(missing_ok=True)


class DriverPermit:
    """The permit of a task on the driver."""

    def __init__(self) -> None:
        self.holds = True

    def withdraw(self) -> None:
        """Have the task end after the current chunk."""
        self.holds = False


Permission: TypeAlias = Permit | DriverPermit
"""What a task gets."""

ALWAYS = Permit()


def _write(file: Path, recipe: bytes) -> None:
    """Write a file atomically; several threads may do so at once, while workers read."""
    _make_private(file.parent)
    unfinished = file.with_name(f"{file.name}-{uuid.uuid4().hex}")
    handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(handle, "wb") as written:  # noqa: PTH123 - a handle, not a path
        written.write(recipe)
    unfinished.replace(file)


def _make_private(folder: Path) -> None:
    """Restore a missing folder, for this user alone; workers run what is in it, so no other user may own it.

    Raises:
        PermissionError: If another user has created a folder of that name, or one above, in the meantime.
    """
    if not folder.exists():
        _make_private(folder.parent)
        folder.mkdir(0o700, exist_ok=True)  # another thread may have created it in the meantime
    if folder.stat().st_uid not in (0, os.geteuid()):
        raise PermissionError(f"{folder} belongs to another user: remove it, or start again")


@cache
def _read(file: str) -> Any:
    return cloudpickle.loads(Path(file).read_bytes())


@dataclass(frozen=True)
class TaskRunner:
    """The function that a job maps: a line with a task in, a line with its result out.

    Attributes:
        recipe: Builds the group's parts, or locates the recipe that does. Must pickle, hash and compare by value.
        permit: Tells whether another chunk may begin.
        copies: Whether Spark may run a copy of a slow task.
    """

    recipe: SentRecipe[GroupProcessing]
    permit: Permit = ALWAYS
    copies: bool = False

    def __call__(self, line: str) -> str:
        """Run a task. Called by Spark once per line.

        Signals do not reach workers: an interrupt that is raised here comes from the project's code, and is the event's
        error.
        """
        with interrupts_are_errors():
            return write_result(self._result_of(read_task(line)))

    def _result_of(self, task: Task) -> TaskResult:
        try:
            processing = parts_of(self.recipe)
        except BaseException as error:  # an error of the user's modules, or of a database, on this machine
            lasting = not isinstance(error, UnavailableError)
            origin = Origin.FRAMEWORK if lasting else Origin.OUTAGE
            failure = failure_of(error, origin, permanent=lasting, traceback=own_frames(error))
            return TaskResult(tuple(Outcome(cursor, failure=failure) for cursor in task.cursors))
        processing.forget_earlier(task.cursors)
        partitions = [cursor.partition for cursor in task.cursors]
        of_task = processing.narrowed(partitions, task.most)
        of_task = of_task if task.upto is None else of_task.bounded(task.upto)
        again, holds = runs_again(), of_task.checkpointing is not None
        if again and not holds:
            return run_copy(of_task, task, self.permit)
        began = time.monotonic()
        run = partial(run_hold, again=again) if holds else run_task
        result = run(of_task, task, self.permit)
        if self.copies and not again:
            await_copy(of_task, result, patience_after(began, task.seconds if holds else 0.0), self.permit)
        return result


def parts_of(recipe: SentRecipe[Parts]) -> Parts:
    """Return what a recipe builds, in this process built on first use. For executors."""
    recipe = recipe.fetch() if isinstance(recipe, KeptRecipe) else recipe
    if recipe not in _built:
        _built[recipe] = recipe()
        gc.collect()  # what earlier tasks have left in this process: frozen, it would stay
        gc.freeze()  # the collector need not scan it again
    parts: Parts = _built[recipe]
    return parts


def runs_again() -> bool:
    """Return whether another worker already runs this task, or ran it until it was considered lost."""
    context = TaskContext.get()
    return context is not None and context.attemptNumber() > 0


def run_task(processing: GroupProcessing, task: Task, permit: Permission = ALWAYS) -> TaskResult:
    """Step the partitions of a task in turn until each is done, has failed, the time is over or the permit ends.

    The cursors are shared: Spark may run a task twice, and the second run continues where the first one is.

    Raises:
        TaskTimedOutError: If a call of a handler has not returned in time.
    """
    begun = [Outcome(replace(cursor, shared=True), without_log=True) for cursor in task.cursors]
    return _run(processing, begun, task.seconds, permit)


def run_copy(processing: GroupProcessing, task: Task, permit: Permission = ALWAYS) -> TaskResult:
    """Run a task that another worker is already running, or ran until it was considered lost.

    Either could commit the next chunk, and both would make the calls that cannot be rolled back. So this one takes a
    new epoch before its first event. That waits for the other one's current chunk, which is its last.

    Raises:
        TaskTimedOutError: If a call of a handler has not returned in time.
    """
    shared = [replace(cursor, shared=True) for cursor in task.cursors]
    begun = [_succeed(processing, cursor) for cursor in shared]
    return _run(processing, begun, task.seconds, permit)


def run_hold(
    processing: GroupProcessing, task: Task, permit: Permission = ALWAYS, *, again: bool = False
) -> TaskResult:
    """Have the participants of a group claim the partition of a task, handle its events for a while, and release it.

    Args:
        processing: The parts of the group.
        task: The task; it has one partition.
        permit: Tells whether it may continue.
        again: Whether another worker runs the task, or has run it: its further work is then void.

    Raises:
        TaskTimedOutError: If a call of a handler has not returned in time.
    """
    (cursor,) = task.cursors
    begun = _succeed(processing, cursor) if again else Outcome(cursor, without_log=True)
    hold = Hold(processing, turns_within(processing.limits), task.seconds, lambda: permit.holds)
    return TaskResult((hold.run(begun),))


def await_copy(processing: GroupProcessing, result: TaskResult, until: float, permit: Permission = ALWAYS) -> None:
    """Let another run of the task finish that has taken over one of its partitions; then Spark ends this one.

    Spark takes the first result, so if ours came first it would end the run that does the work.
    """
    taken = [one.cursor for one in result.outcomes if one.is_fenced]
    claims = {cursor: processing.processor(cursor.partition).claim for cursor in taken}
    await_other_run(lambda: any(claim.is_succeeded(cursor) for cursor, claim in claims.items()), until, permit)


def patience_after(began: float, idle: float = 0.0) -> float:
    """Return up to when a run that began then lets another one continue, which may be ``idle`` for some seconds."""
    now = time.monotonic()
    return now + max(_LEAST_WAIT_SECONDS + idle, 2 * (now - began))


def await_other_run(continues: Callable[[], bool], until: float, permit: Permission) -> None:
    """Wait while another run of the task continues."""
    while permit.holds and time.monotonic() < until and continues():
        time.sleep(_LOOK_SECONDS)


def _succeed(processing: GroupProcessing, cursor: Cursor) -> Outcome:
    return replace(processing.processor(cursor.partition).succeed(cursor), without_log=True)


def _run(processing: GroupProcessing, begun: Sequence[Outcome], seconds: float, permit: Permission) -> TaskResult:
    outcomes = {outcome.cursor.partition: outcome for outcome in begun}
    can_begin = [outcome.cursor.partition for outcome in begun if outcome.failure is None]
    processors = [processing.processor(partition) for partition in can_begin]
    partitions = PartitionsInTurn(turns_within(processing.limits), processors, outcomes)
    partitions.run(time.monotonic() + seconds, lambda: permit.holds)
    return TaskResult(tuple(outcomes.values()))

"""The executor side: runs tasks.

Runs on executors, once per task. ``TaskRunner`` travels there pickled with every round, so it holds nothing but the
recipe, or where the recipe is; what the recipe builds stays in the Python worker and serves all later tasks of the
group.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, replace

from opencqrs_py.engines.runs import Recipe
from opencqrs_py.engines.spark.tasks import ALWAYS, KeptRecipe, Permit, Task, TaskResult, read_task, write_result
from opencqrs_py.model.outcome import Origin, Outcome
from opencqrs_py.processing.exceptions import failure_of, interrupts_are_errors, own_frames
from opencqrs_py.processing.processor import GroupProcessing

_built: dict[Recipe, GroupProcessing] = {}


@dataclass(frozen=True)
class TaskRunner:
    """The function that Spark maps over a round: a line with a task in, a line with its result out.

    Attributes:
        recipe: Builds the group's parts, or says where the recipe is that does. Must pickle, hash and compare by value.
        permit: Says whether another chunk may begin.
    """

    recipe: Recipe | KeptRecipe
    permit: Permit = ALWAYS

    def __call__(self, line: str) -> str:
        """Run a task. Called by Spark once per line.

        Signals do not reach workers: an interrupt that is raised here is the project's, and the event's error.
        """
        with interrupts_are_errors():
            return write_result(self._result_of(read_task(line)))

    def _result_of(self, task: Task) -> TaskResult:
        try:
            processing = self._processing()
        except BaseException as error:  # the user's modules, or a database, on this machine
            failure = failure_of(error, Origin.FRAMEWORK, permanent=True, traceback=own_frames(error))
            return TaskResult(tuple(Outcome(cursor, failure=failure) for cursor in task.cursors))
        return run_task(processing, task, self.permit)

    def _processing(self) -> GroupProcessing:
        recipe = self.recipe.fetch() if isinstance(self.recipe, KeptRecipe) else self.recipe
        if recipe not in _built:
            _built[recipe] = recipe()
            gc.freeze()  # the collector need not look at it again and again; this process does nothing else
        return _built[recipe]


def run_task(processing: GroupProcessing, task: Task, permit: Permit = ALWAYS) -> TaskResult:
    """Step the partitions of a task in turn until each is done, has failed, the time is over or the permit ends.

    The cursors are shared: Spark may run a task twice, and the second run continues where the first has come to.
    """
    until = time.monotonic() + task.seconds
    outcomes = {cursor.partition: Outcome(replace(cursor, shared=True)) for cursor in task.cursors}
    open_partitions = [cursor.partition for cursor in task.cursors]
    while open_partitions:
        for partition in tuple(open_partitions):
            so_far = outcomes[partition]
            step = processing.processor(partition).step(so_far.cursor)
            outcomes[partition] = so_far.followed_by(step)
            if step.idle or step.failure is not None:
                open_partitions.remove(partition)
        if time.monotonic() >= until or not permit.holds:
            break
    for partition in open_partitions:
        flushed = processing.processor(partition).flush(outcomes[partition].cursor)
        outcomes[partition] = replace(outcomes[partition].followed_by(flushed), idle=False)
    return TaskResult(tuple(outcomes[cursor.partition] for cursor in task.cursors))

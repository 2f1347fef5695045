"""The executor side: carries out orders.

Runs on executors, once per order. ``OrderHandler`` travels there pickled with every round, so it holds nothing but the
recipe, or where the recipe is; what the recipe builds stays in the Python worker and serves all later orders of the
group.
"""

from __future__ import annotations

import gc
import platform
import time
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from opencqrs_py.engines.runs import Recipe
from opencqrs_py.engines.spark.kept_recipes import ALWAYS, KeptRecipe, Permit
from opencqrs_py.engines.spark.orders import Order, Report, read_order, write_report
from opencqrs_py.model.outcome import Origin, Outcome
from opencqrs_py.processing.exceptions import interrupts_are_errors, own_frames, trouble_of
from opencqrs_py.processing.group import GroupProcessing

__all__ = ["OrderHandler", "carry_out", "python_of_workers"]

_built: dict[Recipe, GroupProcessing] = {}


@dataclass(frozen=True)
class OrderHandler:
    """The function that Spark maps over a round: a line with an order in, a line with its report out.

    Attributes:
        recipe: Builds the group's parts, or says where the recipe is that does. Must pickle, hash and compare by value.
        permit: Says whether another chunk may begin.
    """

    recipe: Recipe | KeptRecipe
    permit: Permit = ALWAYS

    def __call__(self, line: str) -> str:
        """Carry out an order. Called by Spark once per task.

        Signals do not reach workers: an interrupt that is raised here is the project's, and the event's error.
        """
        with interrupts_are_errors():
            return write_report(self._carried_out(read_order(line)))

    def _carried_out(self, order: Order) -> Report:
        try:
            processing = self._processing()
        except BaseException as error:  # the user's modules, or a database, on this machine
            trouble = trouble_of(error, Origin.FRAMEWORK, permanent=True, traceback=own_frames(error))
            return Report(tuple(Outcome(cursor, trouble=trouble) for cursor in order.cursors))
        return carry_out(processing, order, self.permit)

    def _processing(self) -> GroupProcessing:
        recipe = self.recipe.fetch() if isinstance(self.recipe, KeptRecipe) else self.recipe
        if recipe not in _built:
            _built[recipe] = recipe()
            gc.freeze()  # the collector need not look at it again and again; this process does nothing else
        return _built[recipe]


def carry_out(processing: GroupProcessing, order: Order, permit: Permit = ALWAYS) -> Report:
    """Step the partitions of an order in turn until each is done, has failed, the time is over or the permit ends.

    The cursors are shared: Spark may run a task twice, and the second run continues where the first has come to.
    """
    until = time.monotonic() + order.seconds
    outcomes = {cursor.partition: Outcome(replace(cursor, shared=True)) for cursor in order.cursors}
    open_partitions = [cursor.partition for cursor in order.cursors]
    while open_partitions:
        for partition in tuple(open_partitions):
            so_far = outcomes[partition]
            step = processing.processor(partition).step(so_far.cursor)
            outcomes[partition] = so_far.followed_by(step)
            if step.idle or step.trouble is not None:
                open_partitions.remove(partition)
        if time.monotonic() >= until or not permit.holds:
            break
    for partition in open_partitions:
        flushed = processing.processor(partition).flush(outcomes[partition].cursor)
        outcomes[partition] = replace(outcomes[partition].followed_by(flushed), idle=False)
    return Report(tuple(outcomes[cursor.partition] for cursor in order.cursors))


def python_of_workers(spark: SparkSession) -> str:
    """Ask one Python worker for its version. Called on the driver; the inner function runs on an executor."""
    return str(spark.sparkContext.parallelize([0], 1).map(lambda _: platform.python_version()).collect()[0])

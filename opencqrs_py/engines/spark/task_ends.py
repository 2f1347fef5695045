"""What the end of a task means for its partitions: it was finished, run more than once, lost, or a call timed out.

Runs on the driver, on the thread of the task's job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.errors import PythonException

from opencqrs_py.engines.assignment import Assignment
from opencqrs_py.engines.driver import PartitionDriver
from opencqrs_py.engines.spark.groups import RunningTask
from opencqrs_py.engines.spark.jobs import spark_failure, timed_out_call
from opencqrs_py.engines.spark.turns import TimedOut
from opencqrs_py.model.outcome import Failure, Outcome


class TaskEnds:
    """Records the ends of tasks in their partitions, and claims again the partitions of those without a result."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment

    def settle(self, task: RunningTask, outcomes: Sequence[Outcome], *, copies: bool) -> None:
        """Process the outcomes of a task; ``copies`` tells whether Spark may have run a copy of it."""
        repeated = {}
        for driver, outcome in zip(task.drivers, outcomes, strict=True):
            if self._is_fenced_by_own_run(driver, outcome):
                repeated[driver] = outcome
            else:
                driver.settle(outcome)
        if repeated:
            self._settle_repeated(task, repeated, copies=copies)

    def lose(self, task: RunningTask, error: Exception) -> None:
        """Process the failure of Spark to finish a task."""
        if (hung := timed_out_call(error)) is not None:
            self._settle_turns(task, hung.outcomes)
            self._settle_timeout(task, hung)
        else:
            self.break_off(task, spark_failure(error), crashed=not isinstance(error, PythonException))

    def break_off(self, task: RunningTask, failure: Failure, *, crashed: bool) -> None:
        """Claim the partitions again: what a lost task has committed is only in the database."""
        self._assignment.claim_again(task.group.run.group, task.drivers, crashed=crashed)
        for driver in task.drivers:
            if driver not in task.group.leaving:
                driver.settle(Outcome(driver.cursor, failure=failure))

    def _is_fenced_by_own_run(self, driver: PartitionDriver, outcome: Outcome) -> bool:
        """Return whether another run of the same task fenced this one; then the partition is taken over from it."""
        return outcome.is_fenced and not driver.abandoned and self._assignment.continued(driver)

    def _settle_repeated(self, task: RunningTask, repeated: Mapping[PartitionDriver, Outcome], *, copies: bool) -> None:
        """Process a task that Spark ran more than once: nothing is lost, unless a call timed out in another run.

        If Spark makes no copies, the earlier runs were lost, perhaps because of an event: then this is the third run.
        """
        if task.job is not None and (hung := task.job.timed_out_run()) is not None:
            self._settle_timeout(task, hung)
            return
        for driver, outcome in repeated.items():
            if not copies:
                self._assignment.claim_again(driver.supervised.group, [driver], crashed=True)
            nothing_known = not outcome.tried and driver.cursor.stored == outcome.cursor.stored
            driver.settle(replace(outcome, cursor=driver.cursor, failure=None, without_log=nothing_known))

    def _settle_turns(self, task: RunningTask, outcomes: Sequence[Outcome]) -> None:
        """Process the outcomes of partitions before a call in one of them timed out; nothing else would report them.

        What participants have done since their claim is void.
        """
        of_partition = {outcome.cursor.partition: outcome for outcome in outcomes if not task.group.participates}
        for driver in task.drivers:
            outcome = of_partition.get(driver.partition)
            if outcome is not None and not self._is_fenced_by_own_run(driver, outcome):
                driver.settle(outcome)

    def _settle_timeout(self, task: RunningTask, hung: TimedOut) -> None:
        """Process the timeout of a call. Its worker has ended, and with it the call's transaction."""
        self._assignment.claim_again(task.group.run.group, task.drivers, crashed=False)
        for driver in task.drivers:
            if driver.partition == hung.partition and driver not in task.group.leaving:
                before = sum(one.handled for one in hung.outcomes if one.cursor.partition == hung.partition)
                what = (hung.failure, hung.listed, before)
                driver.settle_timeout(*what, parked=hung.parked, sequence_id=hung.sequence_id)

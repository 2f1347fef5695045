"""Tasks on threads of the driver, while Spark is starting, and those that get data frames: the same core.

Runs on the driver.
"""

from __future__ import annotations

from pyspark import SparkContext

from opencqrs_py.engines.spark.jobs import Ended, SparkJob, description_of, labelled
from opencqrs_py.engines.spark.tasks import Task, TaskResult, run_task
from opencqrs_py.engines.threads import Threads
from opencqrs_py.processing.groups import GroupProcessing


class DriverPermit:
    """The permit of a task to begin another chunk, in this process."""

    def __init__(self) -> None:
        self.holds = True

    def withdraw(self) -> None:
        """Have the task end after the current chunk."""
        self.holds = False


class DriverJobs:
    """Runs tasks in this process."""

    def __init__(self) -> None:
        self._threads = Threads()

    def start(
        self,
        processing: GroupProcessing,
        task: Task,
        permit: DriverPermit,
        ended: Ended,
        context: SparkContext | None = None,
    ) -> SparkJob[TaskResult]:
        """Start a task; ``ended`` is called as by ``Jobs``.

        An abandoned one is not stopped. Its partitions were claimed again, so it cannot commit. With a context, the
        Spark jobs that its handler starts carry the name of the group, and end when it is abandoned.
        """
        job = SparkJob[TaskResult](context, ended)

        def collect() -> TaskResult:
            if context is None:
                return run_task(processing, task, permit)
            with labelled(context, job.tag, processing.group, description_of(task)):
                return run_task(processing, task, permit)

        self._threads.run(f"opencqrs-{processing.group}", lambda: job.run(collect))
        return job

"""Tasks on threads of the driver, while Spark is starting: the same core with the same guarantees.

Runs on the driver.
"""

from __future__ import annotations

from opencqrs_py.engines.spark.jobs import Ended, Job
from opencqrs_py.engines.spark.tasks import Task, run_task
from opencqrs_py.engines.threads import Threads
from opencqrs_py.processing.processor import GroupProcessing


class DriverPermit:
    """What a task needs to begin another chunk, in this process."""

    def __init__(self) -> None:
        self.holds = True

    def withdraw(self) -> None:
        """Have the task end after the chunk in hand."""
        self.holds = False


class DriverJobs:
    """Runs tasks of this process' own."""

    def __init__(self) -> None:
        self._threads = Threads()

    def start(self, processing: GroupProcessing, task: Task, permit: DriverPermit, ended: Ended) -> Job:
        """Start a task; ``ended`` is called as by ``Jobs``.

        An abandoned one is not stopped. Its partitions were claimed again, so it cannot commit.
        """
        job = Job(None, ended)
        self._threads.run(f"opencqrs-{processing.group}", lambda: job.run(lambda: run_task(processing, task, permit)))
        return job

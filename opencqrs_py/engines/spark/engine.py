"""The Spark engine: starts the groups' rounds and takes in their results.

Runs on the driver. One coordinator thread decides; the threads of rounds only bring results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from threading import Condition, Thread

from py4j.protocol import Py4JError
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from opencqrs_py.control.records import GroupPartition
from opencqrs_py.engines.assignment import Assignment
from opencqrs_py.engines.driver import PartitionDriver, logger
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.engines.spark.jobs import GroupJobs, Stillness, running_tasks, spark_failure, timed_out_call
from opencqrs_py.engines.spark.session import Sessions
from opencqrs_py.engines.spark.tasks import Task, TaskResult, TaskRunner
from opencqrs_py.engines.spark.worker_calls import TimedOut
from opencqrs_py.engines.watching import HeadWatcher
from opencqrs_py.errors import EngineLostError
from opencqrs_py.model.outcome import Failure, Origin, Outcome
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.ports import Clock, SystemClock
from opencqrs_py.processing.supervision import NO_OBSERVER, Observer, SupervisedPartition

TASK_SECONDS = 2.0  # a round's length, long enough to make Spark's own cost small
_IDLE_SECONDS = 1.0
STILL_SECONDS = 60.0  # how long a round may wait while nothing at all runs on Spark


class _Group:
    """A group that the engine may run, and its rounds.

    ``busy`` are the partitions of the round under way; ``since`` is the time at which its job was started; ``leaving``
    are partitions that no further round takes up.
    """

    def __init__(self, run: GroupRun, assignment: Assignment, watcher: HeadWatcher) -> None:
        self.run = run
        self.watcher = watcher
        self.busy: tuple[PartitionDriver, ...] = ()
        self.leaving: set[PartitionDriver] = set()
        self.since: float | None = None
        self.jobs: GroupJobs | None = None
        self._assignment = assignment
        self._interruptions = watcher.interruptions

    @property
    def drivers(self) -> list[PartitionDriver]:
        """The partitions that the engine has."""
        return self._assignment.of(self.run.group)

    def ready(self) -> list[PartitionDriver]:
        """Return the partitions that have something to do now."""
        if self.busy:
            return []
        drivers = self.drivers
        if self.watcher.interruptions != self._interruptions:
            self._interruptions = self.watcher.interruptions
            for driver in drivers:
                driver.supervised.doubt()
        return [one for one in drivers if not self._rests(one) and one.wait() == 0 and self._has_work(one)]

    def next_due(self) -> float:
        """Return the seconds until a partition's back-off is over."""
        waits = [one.wait() for one in self.drivers if not self._rests(one) and not self.busy and one.wait() > 0]
        return min(waits, default=_IDLE_SECONDS)

    def _rests(self, driver: PartitionDriver) -> bool:
        return driver.over or driver in self.leaving

    def _has_work(self, driver: PartitionDriver) -> bool:
        if self.watcher.refusal is not None:
            return True
        cursor = driver.cursor
        # A partition whose task was lost after it had handled everything recovers by a step that finds nothing.
        unsettled = driver.supervised.failure is not None or cursor.doubtful
        return cursor.position < self.watcher.head or cursor.position != cursor.stored or unsettled


class SparkEngine:
    """Runs each group as one Spark job after the other; partitions are claimed under the name ``owner``."""

    def __init__(
        self,
        runs: Sequence[GroupRun],
        owner: str,
        sessions: Sessions,
        observer: Observer = NO_OBSERVER,
        clock: Clock | None = None,
    ) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._sessions = sessions
        self._assignment = Assignment(runs, owner, self._clock, observer)
        sources = {id(run.processing.source): run.processing.source for run in runs}
        self._watchers = {key: HeadWatcher(source, self._wake) for key, source in sources.items()}
        self._groups = {
            run.group: _Group(run, self._assignment, self._watchers[id(run.processing.source)]) for run in runs
        }
        self._changed = Condition()
        self._stopping = False
        self._failure: Exception | None = None
        self._spark: SparkSession | None = None
        self._stillness = Stillness(self._running_tasks, self._clock, STILL_SECONDS)
        self._thread = Thread(target=self._coordinate, name="opencqrs-coordinator", daemon=True)

    def assign(self, group: str, partitions: Sequence[Partition]) -> None:
        """Claim partitions; the next rounds of their group take them up."""
        self._sessions.require_authentication()
        claimed = self._assignment.claim(group, partitions)
        if self._assignment.stopped:  # meanwhile
            self._let_go(self._groups[group], claimed)
        self._wake()

    def start(self) -> None:
        """Begin with the rounds.

        The session is opened here if there is something to do already, otherwise with the first new event.
        """
        if self._assignment.stopped:
            return
        for watcher in self._watchers.values():
            watcher.look()
        if any(group.ready() for group in self._groups.values()):
            self._open()
        for watcher in self._watchers.values():
            watcher.start()
        self._thread.start()

    def release(self, group: str, partitions: Sequence[Partition], patience: float) -> None:
        """Take the partitions up in no further round; let the one under way finish, otherwise cancel it."""
        drivers, of_group = self._assignment.of(group, partitions), self._groups[group]
        with self._changed:
            of_group.leaving.update(drivers)
        if of_group.jobs is not None:
            of_group.jobs.end_soon()
        self._await_rounds(patience, lambda: any(driver in of_group.busy for driver in drivers))
        if any(driver in of_group.busy for driver in drivers):
            self._abandon(of_group, _cancelled())
        self._let_go(of_group, drivers)

    def assigned(self) -> Collection[GroupPartition]:
        """Return the partitions that the engine has."""
        return self._assignment.assigned()

    def warm_up(self) -> None:
        """Open the session, which takes seconds."""
        self._sessions.require_authentication()
        if self._spark is None:
            self._open()

    def check(self) -> None:
        """Raise what ended the coordinator, if something did."""
        if self._failure is not None:
            raise self._failure

    def stop(self, patience: float) -> None:
        """Let the chunks in hand finish, for at most ``patience`` seconds in all; then cancel the rounds.

        What is left of that time is waited for the session's end, which otherwise continues in the background.
        """
        self._assignment.stop()
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        until = time.monotonic() + patience
        for watcher in self._watchers.values():
            watcher.stop()
        with_jobs = [group.jobs for group in self._groups.values() if group.jobs is not None]
        for jobs in with_jobs:
            jobs.end_soon()
        self._await_rounds(patience, lambda: any(group.busy for group in self._groups.values()))
        for jobs in with_jobs:
            jobs.stop()
        for group in self._groups.values():
            self._free(group)
            self._let_go(group, group.drivers)
        self._sessions.close(max(0.0, until - time.monotonic()))

    def partitions(self) -> Sequence[SupervisedPartition]:
        """Return the state of every partition that the engine has or had."""
        return self._assignment.partitions()

    def _await_rounds(self, patience: float, under_way: Callable[[], bool]) -> None:
        until = time.monotonic() + patience
        with self._changed:
            while under_way() and time.monotonic() < until:
                self._changed.wait(max(0.0, until - time.monotonic()))

    def _let_go(self, group: _Group, drivers: Sequence[PartitionDriver]) -> None:
        for driver in drivers:
            if self._assignment.remove(driver):
                driver.release()
        with self._changed:
            group.leaving.difference_update(drivers)

    def _open(self) -> None:
        if master := self._sessions.will_start:
            logger.info("starting Spark (%s)", master)
        spark = self._sessions.open()
        self._spark = spark
        for group in self._groups.values():
            if group.run.recipe is None:
                raise ValueError(f"group '{group.run.group}' has no recipe, which Spark's workers build its parts by")
            permit = self._sessions.permit()
            group.jobs = GroupJobs(
                spark,
                group.run.group,
                TaskRunner(self._sessions.handed_over(group.run.recipe), permit),
                permit,
                partial(self._done, group),
                partial(self._lost, group),
            )

    def _coordinate(self) -> None:
        try:
            self._start_rounds_until_stopped()
        except (Py4JError, OSError) as error:
            self._fail(_jvm_gone(error))
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """End the coordinator; ``check`` raises the error. Nothing waits for rounds that were not started."""
        self._failure = self._failure or error
        for group in self._groups.values():
            if group.since is None:
                self._free(group)

    def _start_rounds_until_stopped(self) -> None:
        while True:
            with self._changed:
                if self._stopping or self._failure is not None:
                    return
                rounds = [(group, ready) for group in self._groups.values() if (ready := group.ready())]
                for group, ready in rounds:
                    group.busy = tuple(ready)
                if not rounds:
                    self._changed.wait(min(group.next_due() for group in self._groups.values()))
            rounds = [(group, ready) for group, ready in rounds if not self._is_refused(group)]
            if rounds and self._spark is None:
                self._open()
            self._look_after_rounds()
            for group, ready in rounds:
                self._start_round(group, ready)

    def _is_refused(self, group: _Group) -> bool:
        """Report why the event store cannot be watched, if so: a task would get no further."""
        refusal = group.watcher.refusal
        if refusal is None:
            return False
        try:
            for driver in group.busy:
                driver.refuse(refusal)
        finally:
            self._free(group)
        return True

    def _look_after_rounds(self) -> None:
        """Abandon the rounds that wait while nothing runs, so that the partitions are claimed again.

        A round of which a task runs is left alone: a handler may take hours, and Spark itself notices an executor that
        has hung.
        """
        waiting = [(group, group.since) for group in self._groups.values() if group.since is not None]
        if not self._stillness.lasts([since for _, since in waiting]):
            return
        for group, _ in waiting:
            self._abandon(group, _still(STILL_SECONDS))

    def _abandon(self, group: _Group, failure: Failure) -> None:
        """Cancel the round of a group."""
        if group.jobs is not None and group.jobs.abandon_round():
            self._broken(group, failure, crashed=False)
            self._free(group)

    def _running_tasks(self) -> int:
        return 0 if self._spark is None else running_tasks(self._spark.sparkContext)

    def _start_round(self, group: _Group, ready: list[PartitionDriver]) -> None:
        """Deal the partitions out to as many tasks as can run at once; each task reads the log once."""
        if group.jobs is None:
            return
        group.since = self._clock.monotonic()
        try:
            tasks = min(len(ready), self._slots())
            shares = (tuple(driver.cursor for driver in ready[task::tasks]) for task in range(tasks))
            group.jobs.start_round([Task(cursors, TASK_SECONDS) for cursors in shares])
        except Exception as error:
            self._lost(group, error)

    def _slots(self) -> int:
        """Return how many tasks can run at once; executors of a cluster come and go."""
        return max(1, self._spark.sparkContext.defaultParallelism) if self._spark is not None else 1

    def _done(self, group: _Group, results: Sequence[TaskResult]) -> None:
        """Take results in. Called on the thread of a round."""
        try:
            outcomes = {outcome.cursor.partition: outcome for result in results for outcome in result.outcomes}
            for driver in group.busy:
                driver.settle(outcomes[driver.partition])
        except Exception as error:
            self._fail(error)
        finally:
            self._free(group)

    def _lost(self, group: _Group, error: Exception) -> None:
        """Take in that Spark could not finish a round. Called on the thread of the round."""
        try:
            if not self._stopping:
                self._sessions.check()
                if (hung := timed_out_call(error)) is not None:
                    self._settle_timeout(group, hung)
                    return
                self._broken(group, spark_failure(error), crashed=not isinstance(error, PythonException))
        except (Py4JError, OSError) as gone:
            self._fail(_jvm_gone(gone))
        except Exception as failed:
            self._fail(failed)
        finally:
            self._free(group)

    def _broken(self, group: _Group, failure: Failure, *, crashed: bool) -> None:
        """Claim the partitions again: what the lost tasks have committed is only in the database."""
        self._assignment.claim_again(group.run.group, crashed=crashed)
        for driver in group.busy:
            if driver not in group.leaving:
                driver.settle(Outcome(driver.cursor, failure=failure))

    def _settle_timeout(self, group: _Group, hung: TimedOut) -> None:
        """Take in that a call has not returned in time. Its worker has ended, and with it the call's transaction."""
        self._assignment.claim_again(group.run.group, crashed=False)
        for driver in group.busy:
            position = hung.failure.position
            late = position is not None and position > driver.cursor.stored
            if driver.partition == hung.partition and driver not in group.leaving and late:
                driver.supervised.isolate(hung.listed)
                driver.settle(Outcome(driver.cursor, failure=hung.failure))

    def _free(self, group: _Group) -> None:
        with self._changed:
            group.busy = ()
            group.since = None
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _jvm_gone(error: Exception) -> EngineLostError:
    fix = "start again: progress is safe in the database"
    return EngineLostError("OCQ-403", f"Spark's JVM has gone ({type(error).__name__})", fix=fix)


def _cancelled() -> Failure:
    message = "another partition of the group was released, and its events were not finished in time"
    return Failure(Origin.OUTAGE, permanent=False, error="a round on Spark was cancelled", message=message)


def _still(seconds: float) -> Failure:
    message = f"no task was running on Spark for {seconds:g} s while this one waited: there is no executor for it"
    return Failure(Origin.OUTAGE, permanent=False, error="Spark did not start a round", message=message, code="OCQ-406")

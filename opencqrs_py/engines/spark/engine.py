"""The Spark engine: starts the groups' rounds and takes in their reports.

Runs on the driver. One coordinator thread decides; the threads of rounds only bring reports.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from threading import Condition, Thread

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from opencqrs_py.engines.runs import GroupRun, claim, release, settle
from opencqrs_py.engines.spark.jobs import GroupJobs, running_tasks, spark_trouble
from opencqrs_py.engines.spark.orders import Order, Report
from opencqrs_py.engines.spark.session import Sessions
from opencqrs_py.engines.spark.stillness import Stillness
from opencqrs_py.engines.spark.worker import OrderHandler
from opencqrs_py.engines.watching import HeadWatcher
from opencqrs_py.errors import EngineLostError
from opencqrs_py.model.outcome import Origin, Outcome, Trouble
from opencqrs_py.processing.clocks import SystemClock
from opencqrs_py.processing.error_text import trouble_of
from opencqrs_py.processing.ports import Clock
from opencqrs_py.processing.supervision import NO_OBSERVER, Observer, SupervisedPartition

__all__ = ["SparkEngine"]

ORDER_SECONDS = 2.0  # a round's length: short enough to stop within, long enough to make Spark's own cost small
_IDLE_SECONDS = 1.0
STILL_SECONDS = 60.0  # how long a round may wait while nothing at all runs on Spark


class _Group:
    """A group, its partitions and its jobs.

    ``busy`` are the partitions of the round under way; ``since`` is the time at which its job was started.
    """

    def __init__(self, run: GroupRun, partitions: list[SupervisedPartition], watcher: HeadWatcher) -> None:
        self.run = run
        self.partitions = partitions
        self.watcher = watcher
        self.busy: tuple[SupervisedPartition, ...] = ()
        self.since: float | None = None
        self.jobs: GroupJobs | None = None
        self._interruptions = watcher.interruptions

    def ready(self) -> list[SupervisedPartition]:
        """Return the partitions that have something to do now."""
        if self.busy:
            return []
        if self.watcher.interruptions != self._interruptions:
            self._interruptions = self.watcher.interruptions
            for partition in self.partitions:
                partition.doubt()
        return [p for p in self.partitions if not p.over and p.wait() == 0 and self._has_work(p)]

    def next_due(self) -> float:
        """Return the seconds until a partition's back-off is over."""
        waits = [p.wait() for p in self.partitions if not p.over and not self.busy and p.wait() > 0]
        return min(waits, default=_IDLE_SECONDS)

    def _has_work(self, partition: SupervisedPartition) -> bool:
        if self.watcher.refusal is not None:
            return True
        cursor = partition.cursor
        # A partition whose task was lost after it had handled everything recovers by a step that finds nothing.
        unsettled = partition.trouble is not None or cursor.doubtful
        return cursor.position < self.watcher.head or cursor.position != cursor.stored or unsettled


class SparkEngine:
    """Runs each group as one Spark job after the other.

    Args:
        runs: The groups.
        owner: Name under which partitions are claimed.
        sessions: Opens the Spark session.
        observer: Sees what happens.
        clock: Time.
    """

    def __init__(
        self,
        runs: Sequence[GroupRun],
        owner: str,
        sessions: Sessions,
        observer: Observer = NO_OBSERVER,
        clock: Clock | None = None,
    ) -> None:
        self._runs = tuple(runs)
        self._owner = owner
        self._sessions = sessions
        self._observer = observer
        self._clock = clock or SystemClock()
        self._watchers = {
            id(run.processing.source): HeadWatcher(run.processing.source, self._wake) for run in self._runs
        }
        self._groups: list[_Group] = []
        self._changed = Condition()
        self._stopping = False
        self._failure: Exception | None = None
        self._spark: SparkSession | None = None
        self._stillness = Stillness(self._running_tasks, self._clock, STILL_SECONDS)
        self._thread = Thread(target=self._coordinate, name="opencqrs-coordinator", daemon=True)

    def start(self) -> None:
        """Claim all partitions and begin to give orders.

        The session is opened here if there is something to do already, else with the first new event.
        """
        self._sessions.require_authentication()
        for run in self._runs:
            watcher = self._watchers[id(run.processing.source)]
            self._groups.append(_Group(run, claim(run, self._owner, self._clock, self._observer), watcher))
        for watcher in self._watchers.values():
            watcher.look()
        if any(group.ready() for group in self._groups):
            self._open()
        for watcher in self._watchers.values():
            watcher.start()
        self._thread.start()

    def check(self) -> None:
        """Raise what ended the coordinator, if something did."""
        if self._failure is not None:
            raise self._failure

    def stop(self, patience: float) -> None:
        """Let the rounds under way finish, for at most ``patience`` seconds in all; then cancel them."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        for watcher in self._watchers.values():
            watcher.stop()
        self._await_rounds(patience)
        for group in self._groups:
            if group.jobs is not None:
                group.jobs.stop()
            for partition in group.partitions:
                release(partition, group.run.processing.tracker, self._observer)
        self._sessions.close()

    def partitions(self) -> Sequence[SupervisedPartition]:
        """Return every partition that was started."""
        return tuple(partition for group in self._groups for partition in group.partitions)

    def _await_rounds(self, patience: float) -> None:
        until = time.monotonic() + patience
        with self._changed:
            while any(group.busy for group in self._groups) and time.monotonic() < until:
                self._changed.wait(max(0.0, until - time.monotonic()))

    def _open(self) -> None:
        if master := self._sessions.will_start:
            self._observer.starting(f"Spark ({master})")
        spark = self._sessions.open()
        self._spark = spark
        for group in self._groups:
            group.jobs = GroupJobs(
                spark,
                group.run.group,
                OrderHandler(self._sessions.handed_over(group.run.recipe)),
                partial(self._reported, group),
                partial(self._lost, group),
            )

    def _coordinate(self) -> None:
        try:
            self._give_orders_until_stopped()
        except (Py4JError, OSError) as error:
            self._fail(_jvm_gone(error))
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        """End the coordinator; ``check`` raises the error. Nothing waits for rounds that were not started."""
        self._failure = self._failure or error
        for group in self._groups:
            if group.since is None:
                self._free(group)

    def _give_orders_until_stopped(self) -> None:
        while True:
            with self._changed:
                if self._stopping or self._failure is not None:
                    return
                rounds = [(group, ready) for group in self._groups if (ready := group.ready())]
                for group, ready in rounds:
                    group.busy = tuple(ready)
                if not rounds:
                    self._changed.wait(min(group.next_due() for group in self._groups))
            rounds = [(group, ready) for group, ready in rounds if not self._is_refused(group)]
            if rounds and self._spark is None:
                self._open()
            self._look_after_rounds()
            for group, ready in rounds:
                self._give_orders(group, ready)

    def _is_refused(self, group: _Group) -> bool:
        """Report why the event store cannot be watched, if so: a task would get no further."""
        refusal = group.watcher.refusal
        if refusal is None:
            return False
        trouble = trouble_of(refusal, Origin.FRAMEWORK)
        try:
            for partition in group.busy:
                settle(
                    partition, Outcome(partition.cursor, trouble=trouble), group.run.processing.tracker, self._observer
                )
        finally:
            self._free(group)
        return True

    def _look_after_rounds(self) -> None:
        """Abandon the rounds that wait while nothing runs, so that the partitions are claimed again.

        A round of which a task runs is left alone: a handler may take hours, and Spark itself notices an executor that
        has hung.
        """
        waiting = [(group, group.since) for group in self._groups if group.since is not None]
        if not self._stillness.lasts([since for _, since in waiting]):
            return
        for group, _ in waiting:
            if group.jobs is not None and group.jobs.abandon_round():
                self._broken(group, _still(STILL_SECONDS))
                self._free(group)

    def _running_tasks(self) -> int:
        return 0 if self._spark is None else running_tasks(self._spark.sparkContext)

    def _give_orders(self, group: _Group, ready: list[SupervisedPartition]) -> None:
        """Deal the partitions out to as many tasks as can run at once; each task reads the log once."""
        if group.jobs is None:
            return
        group.since = self._clock.monotonic()
        try:
            tasks = min(len(ready), self._slots())
            dealt = (tuple(p.cursor for p in ready[task::tasks]) for task in range(tasks))
            group.jobs.start_round([Order(cursors, ORDER_SECONDS) for cursors in dealt])
        except Exception as error:
            self._lost(group, error)

    def _slots(self) -> int:
        """Return how many tasks can run at once; executors of a cluster come and go."""
        return max(1, self._spark.sparkContext.defaultParallelism) if self._spark is not None else 1

    def _reported(self, group: _Group, reports: Sequence[Report]) -> None:
        """Take reports in. Called on the thread of a round."""
        try:
            outcomes = {outcome.cursor.partition: outcome for report in reports for outcome in report.outcomes}
            for partition in group.busy:
                settle(partition, outcomes[partition.partition], group.run.processing.tracker, self._observer)
        except Exception as error:
            self._fail(error)
        finally:
            self._free(group)

    def _lost(self, group: _Group, error: Exception) -> None:
        """Take in that Spark could not finish a round. Called on the thread of the round."""
        try:
            if not self._stopping:
                self._sessions.check()
                self._broken(group, spark_trouble(error))
        except (Py4JError, OSError) as gone:
            self._fail(_jvm_gone(gone))
        except Exception as failed:
            self._fail(failed)
        finally:
            self._free(group)

    def _broken(self, group: _Group, trouble: Trouble) -> None:
        """Claim the partitions again: what the lost tasks have committed is only in the database."""
        tracker = group.run.processing.tracker
        try:
            cursors = tracker.claim(group.run.group, group.run.partitions, 0, self._owner)
        except Exception as error:
            if not tracker.is_outage(error):
                raise
            cursors = ()
        for partition, cursor in zip(group.partitions, cursors, strict=False):
            partition.claimed_again(cursor)
        for partition in group.busy:
            settle(partition, Outcome(partition.cursor, trouble=trouble), tracker, self._observer)

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


def _still(seconds: float) -> Trouble:
    message = f"no task was running on Spark for {seconds:g} s while this one waited: there is no executor for it"
    return Trouble(Origin.OUTAGE, permanent=False, error="Spark did not start a round", message=message, code="OCQ-406")

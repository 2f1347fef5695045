"""The Spark engine: gives orders to the groups' queries and takes in their reports.

Runs on the driver. One coordinator thread decides; Spark's threads only bring reports.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from threading import Condition, Thread

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from opencqrs_py.engines.runs import GroupRun, claim, release, settle
from opencqrs_py.engines.spark.orders import Order, Report
from opencqrs_py.engines.spark.query import GroupQuery, spark_trouble
from opencqrs_py.engines.spark.session import Sessions
from opencqrs_py.engines.spark.worker import OrderHandler
from opencqrs_py.engines.watching import HeadWatcher
from opencqrs_py.errors import EngineLostError
from opencqrs_py.model.outcome import Origin, Outcome, Trouble
from opencqrs_py.processing.clocks import SystemClock
from opencqrs_py.processing.ports import Clock
from opencqrs_py.processing.supervision import NO_OBSERVER, Observer, SupervisedPartition

__all__ = ["SparkEngine"]

ORDER_SECONDS = 2.0  # a round's length: short enough to stop within, long enough to make Spark's own cost small
_IDLE_SECONDS = 1.0


class _Group:
    """A group, its partitions and its query.

    ``busy`` are the partitions of the round under way; ``waiting`` is true once its orders were sent.
    """

    def __init__(self, run: GroupRun, partitions: list[SupervisedPartition], watcher: HeadWatcher) -> None:
        self.run = run
        self.partitions = partitions
        self.watcher = watcher
        self.busy: tuple[SupervisedPartition, ...] = ()
        self.waiting = False
        self.query: GroupQuery | None = None

    def ready(self) -> list[SupervisedPartition]:
        """Return the partitions that have something to do now."""
        if self.busy:
            return []
        return [p for p in self.partitions if not p.over and p.wait() == 0 and self._has_work(p)]

    def next_due(self) -> float:
        """Return the seconds until a partition's back-off is over."""
        waits = [p.wait() for p in self.partitions if not p.over and not self.busy and p.wait() > 0]
        return min(waits, default=_IDLE_SECONDS)

    def _has_work(self, partition: SupervisedPartition) -> bool:
        behind = partition.cursor.position < self.watcher.head
        return behind or partition.cursor.position != partition.cursor.stored


class SparkEngine:
    """Runs each group as one Structured Streaming query.

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
            if group.query is not None:
                group.query.stop()
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
        spark = self._sessions.open()
        self._spark = spark
        for group in self._groups:
            group.query = GroupQuery(
                spark,
                group.run.group,
                OrderHandler(group.run.recipe),
                partial(self._reported, group),
                partial(self._broken, group),
            )

    def _coordinate(self) -> None:
        try:
            self._give_orders_until_stopped()
        except (Py4JError, OSError) as error:
            fix = "start again: progress is safe in the database"
            self._failure = EngineLostError("OCQ-403", f"Spark's JVM has gone ({type(error).__name__})", fix=fix)
        except Exception as error:  # seen by check()
            self._failure = error

    def _give_orders_until_stopped(self) -> None:
        while True:
            with self._changed:
                if self._stopping:
                    return
                rounds = [(group, ready) for group in self._groups if (ready := group.ready())]
                for group, ready in rounds:
                    group.busy = tuple(ready)
                if not rounds:
                    self._changed.wait(min(group.next_due() for group in self._groups))
            if rounds and self._spark is None:
                self._open()
            self._look_after_queries()
            for group, ready in rounds:
                self._give_orders(group, ready)

    def _look_after_queries(self) -> None:
        """A query that Spark has ended brings no report any more."""
        for group in self._groups:
            if group.waiting and group.query is not None and not group.query.alive:
                self._broken(group, Trouble(Origin.OUTAGE, permanent=False, error="Spark ended the query", message=""))

    def _give_orders(self, group: _Group, ready: list[SupervisedPartition]) -> None:
        """Deal the partitions out to as many tasks as can run at once; each task reads the log once."""
        try:
            if group.query is not None:
                tasks = min(len(ready), self._slots())
                dealt = (tuple(p.cursor for p in ready[task::tasks]) for task in range(tasks))
                orders = [Order(cursors, ORDER_SECONDS) for cursors in dealt]
                group.waiting = True
                group.query.send(orders)
        except Exception as error:
            self._sessions.check()
            self._broken(group, spark_trouble(error))

    def _slots(self) -> int:
        """Return how many tasks can run at once; executors of a cluster come and go."""
        return max(1, self._spark.sparkContext.defaultParallelism) if self._spark is not None else 1

    def _reported(self, group: _Group, reports: Sequence[Report]) -> None:
        """Take reports in. Called by Spark, which must not see an error of ours."""
        try:
            self._take_in(group, reports)
        except Exception as error:  # seen by check()
            self._failure = error

    def _take_in(self, group: _Group, reports: Sequence[Report]) -> None:
        outcomes = {outcome.cursor.partition: outcome for report in reports for outcome in report.outcomes}
        tracker = group.run.processing.tracker
        left = []
        for partition in group.busy:
            outcome = outcomes.get(partition.partition)
            if outcome is None:
                left.append(partition)
            else:
                settle(partition, outcome, tracker, self._observer)
        self._free(group, left)

    def _broken(self, group: _Group, trouble: Trouble) -> None:
        """Take the partitions over anew: what the lost tasks have committed is only in the database."""
        if self._stopping:  # we cancelled it ourselves
            self._free(group, [])
            return
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
        self._free(group, [])

    def _free(self, group: _Group, left: list[SupervisedPartition]) -> None:
        with self._changed:
            group.busy = tuple(left)
            group.waiting = bool(left)
            self._changed.notify_all()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

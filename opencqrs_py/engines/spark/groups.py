"""What the Spark engine knows about its groups: which partitions have something to do, and the active tasks.

Runs on the driver.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from math import ceil, log2

from opencqrs_py.engines.assignment import Assignment
from opencqrs_py.engines.driver import PartitionDriver
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.engines.spark.jobs import SparkJob
from opencqrs_py.engines.spark.tasks import DriverPermit, Permission, SentRecipe, Task, TaskResult
from opencqrs_py.engines.watching import HeadWatcher
from opencqrs_py.model.inbox import ParkedSequences
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor, ProcessorState
from opencqrs_py.processing.frames import FrameProcessing
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.inbox.parking import is_stale
from opencqrs_py.processing.ports import Clock, LimitedSource

TASK_SECONDS = 2.0
"""A task's length, long enough to make Spark's own cost small."""

_IDLE_SECONDS = 1.0
_LEAST_READ, _MOST_READ = 16, 10_000  # events that a task reads at once for each of its partitions; and at most


class RunnableGroup:
    """A group that the engine may run.

    ``leaving`` are partitions that no further task takes up; ``started`` is when the last task was started; ``rate`` is
    how many events a second the last task handled that had some.
    """

    def __init__(self, run: GroupRun, assignment: Assignment, watcher: HeadWatcher) -> None:
        self.run = run
        self.watcher = watcher
        self.leaving: set[PartitionDriver] = set()
        self.started = float("-inf")
        self.rate: float | None = None
        self.recipe: SentRecipe[GroupProcessing] | None = None
        self._assignment = assignment
        self._interruptions = watcher.interruptions
        self._doubtful: set[PartitionDriver] = set()
        self._started_last: dict[Partition, float] = {}

    @property
    def in_frames(self) -> FrameProcessing | None:
        """Its processing, if its handler gets data frames: it is called on the driver, once there is a session."""
        processing = self.run.processing
        return processing if isinstance(processing, FrameProcessing) else None

    @property
    def participates(self) -> bool:
        """Whether it has participants: then a task has one of its partitions, for a long time."""
        return self.run.processing.checkpointing is not None

    def dealt(self, ready: Sequence[PartitionDriver], tasks: int) -> list[Sequence[PartitionDriver]]:
        """Assign partitions to tasks; in a group with participants, those that have waited longest come first."""
        if not self.participates:
            return [ready[task::tasks] for task in range(tasks)]
        in_turn = sorted(ready, key=lambda driver: self._started_last.get(driver.partition, float("-inf")))
        return [(driver,) for driver in in_turn[:tasks]]

    def start(self, drivers: Sequence[PartitionDriver], now: float) -> None:
        """Note that a task with these partitions is started."""
        self.started = now
        if self.participates:
            self._started_last |= {driver.partition: now for driver in drivers}

    def work(self, cursors: tuple[Cursor, ...]) -> Task:
        """Return the work of a task on Spark: executors read the log themselves, up to where they currently may."""
        source = self.run.processing.source
        upto = source.limit() if isinstance(source, LimitedSource) else None
        if self.participates:
            return Task(cursors, self.run.hold, None, upto)
        return Task(cursors, TASK_SECONDS, read_at_once(self.rate, len(cursors)), upto)

    @property
    def drivers(self) -> list[PartitionDriver]:
        """The partitions that the engine has."""
        return self._assignment.of(self.run.group)

    def ready(self, busy: Collection[PartitionDriver]) -> list[PartitionDriver]:
        """Return the partitions that have something to do now and are not ``busy``."""
        drivers = self.drivers
        if self.watcher.interruptions != self._interruptions:
            self._interruptions = self.watcher.interruptions
            self._doubtful = set(drivers)
        free = [one for one in drivers if one not in busy and not self._rests(one)]
        for driver in self._doubtful.intersection(free):
            driver.supervised.doubt()
        self._doubtful.difference_update(free)
        return [one for one in free if one.wait() == 0 and self._has_work(one)]

    def tasks_for(self, partitions: int, running: int) -> int:
        """Return how many tasks the group may request, given its ready partitions and running tasks."""
        most = self.run.most_at_once
        return partitions if most is None else min(partitions, max(0, most - running))

    def look_at_inbox(self, busy: Collection[PartitionDriver], clock: Clock) -> None:
        """Read what waits in the inbox for partitions that are not ``busy``.

        It is read if it is not known, as after a lost task, or if people may have changed it.
        """
        processing, now = self.run.processing, clock.now()
        if not processing.has_inbox:
            return
        idle = [one for one in self.drivers if one not in busy and not self._rests(one)]
        for one in idle:
            one.mind_clock()
        free = [(one, one.cursor.parked) for one in idle]
        stale = [one for one, parked in free if _is_stale(one, parked, now)]
        if not stale:
            return
        try:
            seen = processing.look([one.cursor for one in stale], clock)
        except Exception as error:
            if not processing.tracker.is_outage(error):
                raise
            return  # the next step reports it
        for driver, cursor in zip(stale, seen, strict=True):
            driver.saw(cursor)

    def new_at_head(self, busy: Collection[PartitionDriver]) -> list[PartitionDriver]:
        """Return the partitions that were claimed and have nothing to do."""
        new = [one for one in self.drivers if one.supervised.state is ProcessorState.STARTING and one not in busy]
        return [one for one in new if not self._rests(one) and one.wait() == 0 and not self._has_work(one)]

    def next_due(self, busy: Collection[PartitionDriver]) -> float:
        """Return the seconds until a partition's back-off is over, or its next tick comes."""
        free = [one for one in self.drivers if one not in busy and not self._rests(one)]
        waits = (wait for one in free for wait in (one.wait(), one.supervised.until_tick()) if wait > 0)
        return min([*waits, _IDLE_SECONDS])

    def _rests(self, driver: PartitionDriver) -> bool:
        return driver.over or driver in self.leaving

    def _has_work(self, driver: PartitionDriver) -> bool:
        if self.watcher.refusal is not None:
            return True
        cursor = driver.cursor
        # A partition whose task was lost after it had handled everything recovers by a step that finds nothing.
        unsettled = driver.supervised.failure is not None or cursor.doubtful
        unsettled = unsettled or (cursor.replayed and not driver.supervised.scheduled)
        behind = cursor.position < self.watcher.head or cursor.position != cursor.stored
        return behind or unsettled or driver.supervised.is_due_in_inbox


def _is_stale(driver: PartitionDriver, parked: ParkedSequences | None, now: datetime) -> bool:
    """Return whether to read the inbox of a partition; in a scheduled group, when a tick is to begin."""
    if driver.supervised.scheduled:
        return driver.cursor.tick is None and driver.supervised.is_due_in_inbox
    return parked is None or is_stale(parked, now)


def read_at_once(rate: float | None, partitions: int) -> int | None:
    """Return how many events a task reads at once, ``None`` for as many as its chunks need.

    What a task has read but not handled is read again, so it reads about a tenth of what it can handle in its time.
    Sizes are powers of two, as feeds are kept by their sizes.

    Args:
        rate: Events a second that a task of the group handles; ``None`` if that is not known.
        partitions: Those of the task.
    """
    if rate is None:
        return None
    wanted = max(rate * TASK_SECONDS / 10, _LEAST_READ * partitions)
    return 1 << ceil(log2(wanted)) if wanted < _MOST_READ else None


@dataclass(eq=False, slots=True)
class RunningTask:
    """An active task.

    Attributes:
        group: Its group.
        drivers: Its partitions.
        since: When it was started.
        permit: Its permit to begin another step.
        job: Its job.
        waits_since: Since when it may wait for Spark, as of the last check; ``None``: it does not wait.
    """

    group: RunnableGroup
    drivers: tuple[PartitionDriver, ...]
    since: float
    permit: Permission | None = None
    job: SparkJob[TaskResult] | None = None
    waits_since: float | None = None

    @property
    def may_run_here(self) -> bool:
        """Whether it handles events on a thread of this process, or has no permit yet, so that it may do so."""
        return self.permit is None or (isinstance(self.permit, DriverPermit) and self.group.in_frames is None)

    @property
    def is_stuck_here(self) -> bool:
        """Whether a handler has not returned on a thread of this process: its transaction holds the progress."""
        return isinstance(self.permit, DriverPermit) and self.job is not None and self.job.is_under_way

"""Slots: how many tasks each group may start, how many Spark runs, and whether long ones hold all slots, or none runs.

Runs on the driver. A slot is room for one task that Spark runs at a time.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from math import inf
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext

from opencqrs_py.engines.driver import logger
from opencqrs_py.engines.spark.groups import RunningTask
from opencqrs_py.engines.spark.masters import is_local
from opencqrs_py.engines.spark.tasks import DriverPermit
from opencqrs_py.model.naming import counted
from opencqrs_py.model.outcome import Failure, Origin
from opencqrs_py.processing.ports import Clock

HELD_SECONDS = 10.0
"""After which slots count as held: a task ends after two seconds unless an event is slow."""

_LOOK_SECONDS = 1.0  # between two queries of Spark

_FIX = (
    "limit a group with spark.max-tasks-per-group, abandon long calls with processing.handler-timeout, "
    "or give Spark more cores"
)


NOTICED_SECONDS = 10.0  # after which a log line reports that tasks wait while nothing at all runs on Spark
STILL_SECONDS = 60.0  # after which they are abandoned

STILL = Failure(
    Origin.OUTAGE,
    permanent=False,
    error="Spark did not start a task",
    message=f"no task was running on Spark for {STILL_SECONDS:g} s while this one waited: there is no executor for it",
    code="OCQ-406",
)
"""The failure of the tasks that are abandoned."""


def shares(
    waiting: Mapping[str, int], running: Mapping[str, int], slots: int, most: int | None = None
) -> dict[str, int]:
    """Return how many tasks each group may start now, for groups that may start some.

    A free slot goes to the group with the fewest tasks, so none has all slots while another one waits.

    Args:
        waiting: For each group with work, the number of tasks; the group that has waited longest comes first.
        running: How many tasks of each group are active.
        slots: Tasks that can run at once.
        most: Most tasks of one group; ``None`` for as many as there are slots.
    """
    tasks, given = Counter(running), Counter[str]()
    most = slots if most is None else most
    for _ in range(slots - tasks.total()):
        open_to = [group for group, count in waiting.items() if given[group] < count and tasks[group] < most]
        if not open_to:
            break
        group = min(open_to, key=tasks.__getitem__)
        tasks[group] += 1
        given[group] += 1
    return dict(given)


@dataclass(frozen=True, slots=True)
class ActiveJob:
    """A job that Spark has not ended.

    Attributes:
        group: Its group in Spark, such as ``loans`` or ``job:nightly``; empty: it has none.
        tasks: How many of its tasks Spark runs now; 0: they wait.
        seconds: For how long it has been running tasks.
    """

    group: str
    tasks: int
    seconds: float


class HeldSlots:
    """Whether long tasks hold all slots while partitions wait; the beginning and the end are reported once each.

    Attributes:
        held: Whether they do.
    """

    def __init__(self, clock: Clock) -> None:
        self.held = False
        self._clock = clock
        self._looked = float("-inf")

    def news(
        self,
        slots: int,
        since: float,
        look: Callable[[], Sequence[ActiveJob]],
        waiting: Callable[[Sequence[ActiveJob]], Mapping[str, int]],
        in_turn: Collection[str] = (),
    ) -> str | None:
        """Return a line when all slots become held, and when that ends.

        Args:
            slots: How many there are; 0 if that is not known.
            since: When the oldest task was sent to Spark; infinite if there is none.
            look: Returns the active jobs; called once a second at most, and only if a task was sent long ago.
            waiting: Returns for each group how many partitions wait for a slot; called only while long tasks hold all
                slots.
            in_turn: The groups whose tasks are long by design and leave their slots to others in turn; they alone are
                not reported.
        """
        before, now = self.held, self._clock.monotonic()
        jobs: Sequence[ActiveJob] = ()
        if slots and now - since >= HELD_SECONDS:
            if now - self._looked < _LOOK_SECONDS:
                return None
            self._looked, jobs = now, look()
        long = [job for job in jobs if job.tasks and job.seconds >= HELD_SECONDS]
        full = sum(job.tasks for job in long) >= slots and any(job.group not in in_turn for job in long)
        wait = waiting(jobs) if full else {}
        self.held = bool(wait)
        if before and not self.held:
            return "long tasks no longer hold all Spark slots"
        return _line_of(slots, long, wait) if self.held and not before else None


def _line_of(slots: int, long: Sequence[ActiveJob], waiting: Mapping[str, int]) -> str:
    counts, longest = Counter[str](), dict[str, float]()
    for job in long:
        counts[job.group] += job.tasks
        longest[job.group] = max(job.seconds, longest.get(job.group, 0.0))
    holders = ", ".join(
        f"{group or 'other jobs'} {count} for {longest[group]:.0f} s" for group, count in counts.most_common()
    )
    of_groups = ", ".join(f"{group} {count}" for group, count in waiting.items())
    have = "the only Spark slot is" if slots == 1 else f"all {slots} Spark slots are"
    return f"{have} held by long tasks ({holders}), while partitions wait ({of_groups}): {_FIX}"


def running_tasks(context: SparkContext) -> int:
    """Return how many tasks run on Spark now, of all jobs of the program."""
    tracker = context.statusTracker()
    stages = (tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds())
    return sum(stage.numActiveTasks for stage in stages if stage is not None)


def active_jobs(context: SparkContext, now: datetime) -> list[ActiveJob]:
    """Return the active jobs of the program, of whatever group, with the tasks that Spark runs for them.

    Spark's counts are as old as the last heartbeat of the executors, 10 s by default.
    """
    store: Any = context._jsc.sc().statusStore()  # noqa: SLF001 the only way
    tracker, found = context.statusTracker(), []
    for number in tracker.getActiveJobsIds():
        with suppress(Py4JJavaError):  # it has just ended, and is no longer known
            known = tracker.getJobInfo(number)
            stages = [store.lastStageAttempt(stage) for stage in known.stageIds] if known is not None else []
            running = [stage for stage in stages if stage.numActiveTasks() > 0]
            begun = [
                moment.get().getTime() for stage in running if (moment := stage.firstTaskLaunchedTime()).isDefined()
            ]
            group, tasks = store.job(number).jobGroup(), sum(stage.numActiveTasks() for stage in running)
            seconds = now.timestamp() - min(begun) / 1000 if begun else 0.0
            found.append(ActiveJob(group.get() if group.isDefined() else "", tasks, seconds))
    return found


def executors_of(context: SparkContext) -> int:
    """Return how many executors a cluster has given to Spark."""
    there: int = context._jsc.sc().getExecutorMemoryStatus().size()  # noqa: SLF001 the only way
    return there - 1  # the driver is one of them


def slots_of(context: SparkContext) -> int:
    """Return how many tasks can run at once, at least 1; Spark's ``defaultParallelism`` depends on a setting."""
    spark = context._jsc.sc()  # noqa: SLF001 the only way
    at_once: int = spark.maxNumConcurrentTasks(spark.resourceProfileManager().defaultResourceProfile())
    return max(1, at_once)


class Capacity:
    """How much Spark runs at once, as of the last check; executors of a cluster come and go.

    One thread checks; any may read the result.

    Attributes:
        slots: Tasks at once; 0 before the first check.
        executors: Those of a cluster; ``None`` before the first check, and with a local master, which has none.
    """

    def __init__(self, clock: Clock) -> None:
        self.slots = 0
        self.executors: int | None = None
        self._clock = clock
        self._looked = float("-inf")

    def look(self, context: SparkContext) -> int:
        """Return how many tasks can run at once, at least 1. Spark is queried once a second at most."""
        now = self._clock.monotonic()
        if now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            self.slots = slots_of(context)
            self.executors = None if is_local(str(context.master)) else executors_of(context)
        return self.slots


class Stillness:
    """How long Spark has been stalled: tasks wait, and nothing runs.

    A running task may take any time; one that no executor ever picks up, because the master has no workers or all of
    them are lost, would silently wait forever. ``running`` returns how many tasks run now, of all jobs of the program;
    other jobs can be what a task waits for.
    """

    def __init__(self, running: Callable[[], int], clock: Clock) -> None:
        self._running = running
        self._clock = clock
        self._seen = float("-inf")  # when something ran last
        self._looked = float("-inf")
        self._still = 0.0

    def seconds(self, waiting: Sequence[float]) -> float:
        """Return for how many seconds nothing has run, given the start times of the active tasks.

        Spark is queried once a second at most, and not about tasks that have just begun.
        """
        now = self._clock.monotonic()
        if not waiting or now - max(self._seen, min(waiting)) < _LOOK_SECONDS:
            self._still = 0.0
        elif now - self._looked >= _LOOK_SECONDS:
            self._looked = now
            if self._running() > 0:
                self._seen = now
            self._still = now - max(self._seen, min(waiting))
        return self._still


class TaskWatch:
    """Watches how Spark runs the tasks of an engine.

    Args:
        context: The Spark context.
        capacity: How much Spark runs at once.
        clock: Time.
        ready: Returns for each group how many partitions have work but no task.
        in_turn: The groups whose tasks are long by design.
    """

    def __init__(
        self,
        context: SparkContext,
        capacity: Capacity,
        clock: Clock,
        ready: Callable[[], Mapping[str, int]],
        in_turn: Collection[str],
    ) -> None:
        self._context = context
        self._capacity = capacity
        self._clock = clock
        self._ready = ready
        self._in_turn = in_turn
        self._stillness = Stillness(partial(running_tasks, context), clock)
        self._noticed = False  # that Spark is stalled
        self._held_slots = HeldSlots(clock)

    def stalled(self, tasks: Sequence[RunningTask]) -> Collection[RunningTask]:
        """Return those of the active tasks to abandon, since they have waited for long while nothing runs.

        While a task runs, there are none: a handler may take hours, and Spark itself notices a hung executor.
        """
        for task in tasks:
            task.waits_since = self._waits_since(task)
        waiting = {task: since for task in tasks if (since := task.waits_since) is not None}
        still = self._stillness.seconds([*waiting.values()])
        self._report_held_slots([] if still else tasks)
        if still < NOTICED_SECONDS:
            self._noticed = False
        elif not self._noticed:
            self._noticed = True
            if reason := self._reason():
                what = counted(len(waiting), "task waits", "tasks wait")
                logger.warning("no task has run on Spark for %.0f s while %s: %s", still, what, reason)
        return waiting if still >= STILL_SECONDS else ()

    def _waits_since(self, task: RunningTask) -> float | None:
        """Return since when a task may wait for Spark, ``None`` if it does not.

        On the driver, a handler of data frames waits during its jobs; its work before them does not count.
        """
        if task.group.in_frames is None:
            return None if isinstance(task.permit, DriverPermit) else task.since
        if not self._context.statusTracker().getActiveJobsIds():
            return None
        return self._clock.monotonic() if task.waits_since is None else task.waits_since

    def _reason(self) -> str:
        """Return why nothing may be running, as far as Spark knows; nothing for a local master, which is only slow."""
        if is_local(str(self._context.master)):
            return ""
        count = executors_of(self._context)
        what = "no executor" if not count else "1 executor, which is busy" if count == 1 else f"{count} busy executors"
        return f"master {self._context.master} gives it {what}"

    def _report_held_slots(self, tasks: Sequence[RunningTask]) -> None:
        """Report once that long tasks hold all slots while partitions wait, and once when that ends."""

        def look() -> list[ActiveJob]:
            return active_jobs(self._context, self._clock.now())

        since = min((task.since for task in tasks), default=inf)
        line = self._held_slots.news(self._capacity.slots, since, look, partial(self._waiting, tasks), self._in_turn)
        if line is not None:
            logger.log(logging.WARNING if self._held_slots.held else logging.INFO, "%s", line)

    def _waiting(self, tasks: Sequence[RunningTask], jobs: Sequence[ActiveJob]) -> dict[str, int]:
        """Return for each group how many partitions have work but no task, or one that Spark does not run yet."""
        queued = partitions_queued(tasks, jobs, self._clock.monotonic() - HELD_SECONDS)
        return {name: waits for name, ready in self._ready().items() if (waits := ready + queued[name])}


def partitions_queued(tasks: Sequence[RunningTask], jobs: Sequence[ActiveJob], before: float) -> Counter[str]:
    """Return how many partitions of each group are in tasks that Spark got before a moment, and does not run yet."""
    running, queued = Counter[str](), Counter[str]()
    for job in jobs:
        running[job.group] += job.tasks
    waiting = {job.group for job in jobs if not job.tasks}
    for task in sorted(tasks, key=lambda task: task.since):
        group = task.group.run.group
        if task.group.in_frames is not None:  # on the driver; its jobs may have many tasks, or none yet
            runs = bool(running[group]) or group not in waiting
        else:
            runs = isinstance(task.permit, DriverPermit) or running[group] > 0
            running[group] -= 1
        if not runs and task.since <= before:
            queued[group] += len(task.drivers)
    return queued

"""The Spark engine: sends partitions with work to Spark, task by task, and processes the results.

Runs on the driver. One coordinator thread decides; the threads of jobs only bring results.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from threading import Condition, Thread, current_thread
from typing import TypeVar

from pyspark import SparkContext
from pyspark.sql import SparkSession
from typing_extensions import override

from opencqrs_py.control.records import GroupPartition, TaskLoad
from opencqrs_py.engines.assignment import Assignment
from opencqrs_py.engines.driver import PartitionDriver, logger
from opencqrs_py.engines.runs import BeginsStop, EndsAsAWhole, EndsClaims, Engine, GroupRun, RunsTasks
from opencqrs_py.engines.spark.frames import SparkFrames
from opencqrs_py.engines.spark.groups import TASK_SECONDS, RunnableGroup, RunningTask
from opencqrs_py.engines.spark.jobs import Jobs, copies_tasks, description_of, run_on_spark
from opencqrs_py.engines.spark.session import Sessions
from opencqrs_py.engines.spark.slots import STILL, Capacity, TaskWatch, shares
from opencqrs_py.engines.spark.task_ends import TaskEnds
from opencqrs_py.engines.spark.tasks import DriverPermit, Permit, Task, TaskResult, TaskRunner, run_task
from opencqrs_py.engines.watching import HeadWatcher, stop_all
from opencqrs_py.errors import EngineError, EngineLostError
from opencqrs_py.model.naming import counted
from opencqrs_py.model.outcome import Failure, Origin, Outcome
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.notices import NO_OBSERVER, Observer
from opencqrs_py.processing.ports import Clock, SystemClock
from opencqrs_py.processing.supervision import SupervisedPartition

DRIVER_SECONDS = 0.5  # the length of a task on the driver
_LEAST_SECONDS = 0.001  # of a task, for its rate
_CANCEL_SECONDS = 0.5  # how long cancelled jobs may take to end; Spark kills their Python workers after 0.2

_AnyPermit = TypeVar("_AnyPermit", Permit, DriverPermit)


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """What the driver does itself until the session is open.

    Attributes:
        tasks: How many tasks run at once on its threads; 0: all wait for Spark.
        handed_over: Called when all further tasks run on Spark.
    """

    tasks: int = 0
    handed_over: Callable[[], None] = lambda: None


class SparkEngine(Engine, RunsTasks, EndsClaims, BeginsStop, EndsAsAWhole):
    """Runs the partitions of groups by tasks on Spark, each a job; partitions are claimed under the name ``owner``.

    Args:
        runs: The groups.
        owner: Name under which partitions are claimed.
        sessions: Opens the session.
        observer: Observes what happens.
        clock: Time.
        most_tasks: Most tasks of one group at once; ``None`` for as many as Spark runs at once.
        meanwhile: What the driver does itself until the session is open.
    """

    def __init__(
        self,
        runs: Sequence[GroupRun],
        owner: str,
        sessions: Sessions,
        observer: Observer = NO_OBSERVER,
        clock: Clock | None = None,
        most_tasks: int | None = None,
        meanwhile: Meanwhile | None = None,
    ) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._sessions = sessions
        self._most_tasks = most_tasks
        self._meanwhile = Meanwhile() if meanwhile is None else meanwhile
        self._assignment = Assignment(runs, owner, self._clock, observer)
        sources = {id(run.processing.source): run.processing.source for run in runs}
        self._watchers = {key: HeadWatcher(source, self._wake) for key, source in sources.items()}
        self._groups = {
            run.group: RunnableGroup(run, self._assignment, self._watchers[id(run.processing.source)]) for run in runs
        }
        self._running: set[RunningTask] = set()
        self._changed = Condition()
        self._stopping = False
        self._failure: Exception | None = None
        self._is_spark_lost = False  # or has not started: that is why the engine has ended
        self._opening = False
        self._handled_here = 0
        self._is_taking_over = False  # Spark is ready, and the driver may still handle events
        self._ends = TaskEnds(self._assignment)
        self._jobs = Jobs()
        self._context: SparkContext | None = None
        self._copies = False  # whether Spark runs a copy of a slow task
        self._capacity = Capacity(self._clock)
        self._watch: TaskWatch | None = None
        self._thread = Thread(target=self._coordinate, name="opencqrs-coordinator", daemon=True)

    @override
    def assign(self, group: str, partitions: Sequence[Partition]) -> None:
        """Claim partitions; the next tasks of their group handle them."""
        self._sessions.require_authentication()
        claimed = self._assignment.claim(group, partitions)
        if self._assignment.stopped:  # meanwhile
            self._let_go(self._groups[group], claimed)
        self._wake()

    @override
    def start(self) -> None:
        """Begin to start tasks.

        The session is opened if there is something to do already, otherwise with the first new event.
        """
        if self._assignment.stopped:
            return
        for watcher in self._watchers.values():
            watcher.look()
        if any(group.ready(()) for group in self._groups.values()):
            self._require_session()
        for watcher in self._watchers.values():
            watcher.start()
        self._thread.start()

    @override
    def release(self, group: str, partitions: Sequence[Partition], patience: float) -> None:
        """Give the partitions to no further task; let current tasks finish, otherwise cancel them."""
        drivers, of_group = self._assignment.of(group, partitions), self._groups[group]
        with self._changed:
            of_group.leaving.update(drivers)
        self._end_soon(drivers)
        self._await_tasks(drivers, patience)
        for task in self._tasks_of(drivers):
            self._abandon(task, _cancelled())
        self._let_go(of_group, drivers)

    @override
    def assigned(self) -> Collection[GroupPartition]:
        return self._assignment.assigned()

    @override
    def warm_up(self) -> None:
        """Open the session, which takes seconds, or begin to open it while the driver handles events."""
        self._sessions.require_authentication()
        self._require_session()

    @override
    def check(self) -> None:
        """Raise what ended the coordinator, if something did."""
        if self._failure is not None:
            raise self._failure

    @override
    def has_ended(self) -> bool:
        return self._failure is not None

    @override
    def end_claims(self) -> None:
        self._assignment.stop()

    @override
    def begin_stop(self) -> None:
        self._assignment.stop()
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._end_soon(None)
        for watcher in self._watchers.values():
            watcher.begin_stop()

    @override
    def stop(self, patience: float) -> None:
        """Let current chunks finish, for at most ``patience`` seconds in all; then cancel the jobs.

        The rest of that time is used to wait for the session's end, which otherwise continues in the background. While
        a handler on the driver does not return, no partition is released: that could wait for the handler's
        transaction, which holds the only write lock of an SQLite file. The leases end with those of the node.
        """
        until = time.monotonic() + patience
        self.begin_stop()
        self._await_tasks(None, patience)
        tasks = self._tasks_of(None)
        cancelled = [task.job for task in tasks if task.job is not None and task.job.abandon()]
        gone = time.monotonic() + _CANCEL_SECONDS
        for job in cancelled:
            job.wait(gone - time.monotonic())
        with self._changed:
            self._running.clear()
        if not any(task.is_stuck_here for task in tasks):
            for group in self._groups.values():
                self._let_go(group, tuple(group.drivers))
        if self._thread.ident is not None and self._thread is not current_thread():
            self._thread.join(max(0.0, until - time.monotonic()))  # it may be reading from a database
        stop_all(self._watchers.values(), until - time.monotonic())
        self._sessions.close(max(0.0, until - time.monotonic()))

    @override
    def partitions(self) -> Sequence[SupervisedPartition]:
        return self._assignment.partitions()

    @override
    def task_load(self) -> TaskLoad:
        with self._changed:
            running = Counter(task.group.run.group for task in self._running)
        counts = {group: running[group] for group in self._groups}
        return TaskLoad(counts, self._capacity.slots, self._capacity.executors, self._handled_here)

    def _tasks_of(self, drivers: Collection[PartitionDriver] | None) -> list[RunningTask]:
        """Return the active tasks that have one of these partitions; all of them for ``None``."""
        with self._changed:
            running = tuple(self._running)
        return [task for task in running if drivers is None or not set(drivers).isdisjoint(task.drivers)]

    def _end_soon(self, drivers: Collection[PartitionDriver] | None) -> None:
        for task in self._tasks_of(drivers):
            if task.permit is not None:
                task.permit.withdraw()

    def _await_tasks(self, drivers: Collection[PartitionDriver] | None, patience: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._tasks_of(drivers), patience)

    def _let_go(self, group: RunnableGroup, drivers: Sequence[PartitionDriver]) -> None:
        for driver in drivers:
            if self._assignment.remove(driver):
                driver.release()
        with self._changed:
            group.leaving.difference_update(drivers)

    def _require_session(self) -> None:
        if self._context is not None or self._opening:
            return
        if self._meanwhile.tasks and self._sessions.will_start:
            self._opening = True
            self._sessions.begin(self._opened)
            return
        self._use(self._sessions.open())
        if self._meanwhile.tasks:
            self._meanwhile.handed_over()

    def _opened(self, session: SparkSession | Exception) -> None:
        """Continue on Spark, whose session has been opened. Called on a separate thread."""
        try:
            if isinstance(session, Exception):
                self._fail(session, at_start=True)
            elif not self._stopping:
                self._use(session)
                self._meanwhile.handed_over()
                logger.info("Spark is ready")
                self._is_taking_over = True
                self._report_takeover()
        except Exception as error:
            self._fail(self._explained(error), at_start=True)
        finally:
            self._opening = False
            self._wake()

    def _report_takeover(self) -> None:
        """Report once how many events the driver has handled: when Spark is ready and its own last task has ended."""
        with self._changed:
            if not self._is_taking_over or any(task.may_run_here for task in self._running):
                return
            self._is_taking_over = False
        if self._handled_here:
            logger.info("the driver handled %s itself before Spark took over", counted(self._handled_here, "event"))

    def _use(self, spark: SparkSession) -> None:
        for group in self._groups.values():
            if group.run.recipe is None:
                raise ValueError(f"group '{group.run.group}' has no recipe, which Spark's workers build its parts by")
            group.recipe = self._sessions.handed_over(group.run.recipe)
            if group.in_frames is not None:
                group.in_frames.use(SparkFrames(spark, group.recipe, group.in_frames))
        context, in_turn = spark.sparkContext, {name for name, group in self._groups.items() if group.participates}
        self._watch = TaskWatch(context, self._capacity, self._clock, self._ready, in_turn)
        self._copies = copies_tasks(context)
        self._context = context

    def _coordinate(self) -> None:
        try:
            self._start_tasks_until_stopped()
        except Exception as error:
            self._fail(self._explained(error))

    def _explained(self, error: Exception) -> Exception:
        if not self._sessions.is_gone(error):
            return error
        fix = "start again: progress is safe in the database"
        return EngineLostError("OCQ-403", f"Spark's JVM is gone ({type(error).__name__})", fix=fix)

    def _fail(self, error: Exception, *, at_start: bool = False) -> None:
        """End the coordinator; ``check`` raises the error. Nothing waits for tasks that were not started."""
        with self._changed:
            if self._failure is None:
                self._failure, self._is_spark_lost = error, at_start or isinstance(error, EngineError)
            self._running = {task for task in self._running if task.job is not None}
            busy = self._busy()
            for group in self._groups.values():
                self._mark_failed(driver for driver in group.drivers if driver not in busy)
            self._changed.notify_all()

    def _mark_failed(self, drivers: Iterable[PartitionDriver]) -> None:
        """Have partitions without a task report that Spark is lost, or has not started, unless that is part of a stop.

        Another error, such as an observer's, does not concern them. The caller holds the lock, since a partition may be
        released as soon as it has no task.
        """
        if self._failure is not None and self._is_spark_lost and not self._stopping:
            for driver in drivers:
                driver.fail(self._failure)

    def _start_tasks_until_stopped(self) -> None:
        while self._failure is None:
            if self._context is None and self._has_work():
                self._require_session()
            slots = self._slots()
            self._look_at_inboxes()
            with self._changed:
                if self._stopping:
                    return
                busy = self._busy()
                at_once, tasks = self._settled_at_once(busy), self._dealt(busy, slots)
                self._running.update(at_once, tasks)
                if not at_once and not tasks:
                    self._changed.wait(min(group.next_due(busy) for group in self._groups.values()))
            self._abandon_stalled()
            for task, refusal in at_once.items():
                self._settle_at_once(task, refusal)
            for task in tasks:
                self._start(task)

    def _has_work(self) -> bool:
        """Return whether there is work that needs the session."""
        with self._changed:
            busy = self._busy()
            return any(group.watcher.refusal is None and group.ready(busy) for group in self._groups.values())

    def _look_at_inboxes(self) -> None:
        """Read what waits in the inbox; only this thread makes a partition busy."""
        with self._changed:
            busy = self._busy()
        for group in self._groups.values():
            group.look_at_inbox(busy, self._clock)

    def _slots(self) -> int:
        """Return how many tasks can run at once; executors of a cluster come and go."""
        if self._context is not None:
            return self._capacity.look(self._context)
        return self._meanwhile.tasks

    def _dealt(self, busy: Collection[PartitionDriver], slots: int) -> list[RunningTask]:
        """Assign the partitions with work to as many tasks as may be started now."""
        since = self._clock.monotonic()
        in_turn = sorted(self._groups.items(), key=lambda item: item[1].started)
        ready = {name: found for name, group in in_turn if self._can_run(group) and (found := group.ready(busy))}
        running = Counter(task.group.run.group for task in self._running)
        waiting = {name: self._groups[name].tasks_for(len(found), running[name]) for name, found in ready.items()}
        dealt = shares(waiting, running, slots, self._most_tasks)
        tasks = [
            RunningTask(self._groups[name], tuple(share), since)
            for name, count in dealt.items()
            for share in self._groups[name].dealt(ready[name], count)
        ]
        for task in tasks:
            task.group.start(task.drivers, since)
        return tasks

    def _can_run(self, group: RunnableGroup) -> bool:
        """Return whether tasks of a group can run now. On the driver a call of a handler cannot be abandoned."""
        can_wait = group.in_frames is None and not group.participates and group.run.processing.limits.timeout == inf
        here = self._meanwhile.tasks > 0 and can_wait
        return group.watcher.refusal is None and (self._context is not None or here)

    def _settled_at_once(self, busy: Collection[PartitionDriver]) -> dict[RunningTask, BaseException | None]:
        """Return the partitions about which no task will report: they have just been claimed and have no work.

        If their event store cannot be watched, those with work, and why: a task would fail, too.
        """
        since, found = self._clock.monotonic(), dict[RunningTask, BaseException | None]()
        for group in self._groups.values():
            refusal = group.watcher.refusal
            if drivers := group.new_at_head(busy) if refusal is None else group.ready(busy):
                found[RunningTask(group, tuple(drivers), since)] = refusal
        return found

    def _settle_at_once(self, task: RunningTask, refusal: BaseException | None) -> None:
        try:
            for driver in task.drivers:
                if refusal is None:
                    driver.settle(Outcome(driver.cursor, idle=True))
                else:
                    driver.refuse(refusal)
        finally:
            self._free(task)

    def _busy(self) -> set[PartitionDriver]:
        return {driver for task in self._running for driver in task.drivers}

    def _start(self, task: RunningTask) -> None:
        group, context = task.group, self._context
        cursors = tuple(driver.supervised.begin() for driver in task.drivers)
        try:
            if context is not None:
                self._sessions.restore()
            if context is None or group.recipe is None or group.in_frames is not None:
                work = Task(cursors, DRIVER_SECONDS if context is None else TASK_SECONDS)
                run = partial(run_task, group.run.processing, work, self._permit(task, DriverPermit()))
            else:
                permit = self._sessions.permit()
                permit.give()
                runner = TaskRunner(group.recipe, self._permit(task, permit), self._copies)
                work = group.work(cursors)
                run = partial(run_on_spark, context, runner, work)
            ended = partial(self._ended, task, here=context is None)
            task.job = self._jobs.start(group.run.group, description_of(work), run, ended, context)
        except Exception as error:
            self._ended(task, error)

    def _permit(self, task: RunningTask, permit: _AnyPermit) -> _AnyPermit:
        """Give a task its permit, and withdraw it at once if a stop or a release found the task without one."""
        task.permit = permit
        if self._stopping or not task.group.leaving.isdisjoint(task.drivers):
            permit.withdraw()
        return permit

    def _ended(self, task: RunningTask, result: TaskResult | Exception, *, here: bool = False) -> None:
        """Process the end of a task. Called on the thread of its job."""
        try:
            if not isinstance(result, Exception):
                self._finished(task, result.outcomes, here=here)
            elif not self._stopping:
                self._sessions.check()
                self._ends.lose(task, result)
        except Exception as error:
            self._fail(self._explained(error))
        finally:
            self._free(task)

    def _finished(self, task: RunningTask, outcomes: Sequence[Outcome], *, here: bool) -> None:
        handled = sum(outcome.handled for outcome in outcomes)
        if here:
            self._handled_here += handled
        elif handled:
            task.group.rate = handled / max(self._clock.monotonic() - task.since, _LEAST_SECONDS)
        self._ends.settle(task, outcomes, copies=self._copies)
        if task.group.in_frames is not None and any(outcome.failure for outcome in outcomes):
            self._sessions.check()  # the JVM may be gone

    def _abandon_stalled(self) -> None:
        """Abandon the tasks that wait while nothing runs on Spark, so that their partitions are claimed again."""
        if self._watch is None:
            return
        with self._changed:
            started = [task for task in self._running if task.job is not None]
        for task in self._watch.stalled(started):
            self._abandon(task, STILL)

    def _ready(self) -> dict[str, int]:
        """Return for each group how many partitions have work but no task."""
        with self._changed:
            busy = self._busy()
            return {name: len(group.ready(busy)) if self._can_run(group) else 0 for name, group in self._groups.items()}

    def _abandon(self, task: RunningTask, failure: Failure) -> None:
        """Cancel a task."""
        if task.job is not None and task.job.abandon():
            if task.permit is not None:
                task.permit.withdraw()
            self._ends.break_off(task, failure, crashed=False)
            self._free(task)

    def _free(self, task: RunningTask) -> None:
        if task.permit is not None:
            task.permit.withdraw()
        with self._changed:
            self._mark_failed(task.drivers)
            self._running.discard(task)
            self._changed.notify_all()
        self._report_takeover()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _cancelled() -> Failure:
    message = "another partition of the task was released, and its events were not finished in time"
    return Failure(Origin.OUTAGE, permanent=False, error="a task on Spark was cancelled", message=message)

"""The thread engine: one thread per partition, one feed per group."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from threading import Event as Signal
from threading import Lock, Thread, current_thread

from typing_extensions import override

from opencqrs_py.control.records import GroupPartition
from opencqrs_py.engines.assignment import Assignment
from opencqrs_py.engines.at_once import AtOnce
from opencqrs_py.engines.call_watching import CallWatcher
from opencqrs_py.engines.driver import PartitionDriver, logger
from opencqrs_py.engines.following import Haste, follow
from opencqrs_py.engines.runs import BeginsStop, EndsClaims, Engine, GroupRun, StoresSoon
from opencqrs_py.engines.watching import HeadWatcher, stop_all
from opencqrs_py.errors import EngineLostError
from opencqrs_py.model.outcome import Failure, Origin, Outcome
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.calls import CallInHand
from opencqrs_py.processing.exceptions import failure_of, one_line, own_frames
from opencqrs_py.processing.notices import NO_OBSERVER, Observer
from opencqrs_py.processing.ports import Clock, SystemClock
from opencqrs_py.processing.processor import PartitionProcessor
from opencqrs_py.processing.supervision import SupervisedPartition

MOST_HANGING = 20  # threads of abandoned calls, which only the end of the process frees

_Ended = Callable[["_Follower", BaseException | None], None]
_Retake = Callable[[Signal], PartitionDriver | None]


class ThreadEngine(Engine, StoresSoon, EndsClaims, BeginsStop):
    """Runs groups on threads of this process.

    Partitions of a group read through one feed, so the log is read once while they are at similar positions.

    Args:
        runs: The groups.
        owner: Name under which partitions are claimed.
        observer: Observes what happens.
        clock: Time.
    """

    def __init__(
        self,
        runs: Sequence[GroupRun],
        owner: str,
        observer: Observer = NO_OBSERVER,
        clock: Clock | None = None,
    ) -> None:
        clock = SystemClock() if clock is None else clock
        self._assignment = Assignment(runs, owner, clock, observer)
        self._watchers = {id(run.processing.source): HeadWatcher(run.processing.source) for run in runs}
        self._failure: BaseException | None = None
        self._haste = {run.group: Haste() for run in runs}
        self._at_once = {run.group: AtOnce(run.most_at_once) for run in runs if run.most_at_once is not None}
        self._followers: dict[PartitionDriver, _Follower] = {}
        self._started = False
        self._lock = Lock()
        limits = [run.processing.limits for run in runs]
        self._calls = CallWatcher(self._processors, limits, self._timed_out, clock)
        self._hanging: list[Thread] = []

    @override
    def assign(self, group: str, partitions: Sequence[Partition]) -> None:
        """Claim partitions, and start their threads if the engine was started."""
        for driver in self._assignment.claim(group, partitions):
            follower = self._follower(driver)
            with self._lock:
                stopped = self._assignment.stopped
                if not stopped:
                    self._followers[driver] = follower
                    if self._started:
                        follower.thread.start()
            if stopped:  # in the meantime: only releases the partition, on this thread, since a stop waits for it
                follower.stopping.set()
                follower.run()

    @override
    def start(self) -> None:
        if self._assignment.stopped:
            return
        with self._lock:
            self._started, followers = True, tuple(self._followers.values())
        for follower in followers:
            follower.thread.start()
        self._calls.start()

    @override
    def release(self, group: str, partitions: Sequence[Partition], patience: float) -> None:
        """Let the threads of the partitions finish their current chunks and end."""
        drivers = self._assignment.of(group, partitions)
        with self._lock:
            followers = [self._followers[driver] for driver in drivers if driver in self._followers]
        for follower in followers:
            follower.stopping.set()
        for watcher in self._watchers.values():
            watcher.wake()
        self._wake_waiting()
        self._end(followers, patience)

    @override
    def assigned(self) -> Collection[GroupPartition]:
        return self._assignment.assigned()

    @override
    def hasten(self, group: str) -> None:
        haste = self._haste.get(group)
        if haste is not None and haste.begin():  # no thread waits for a quiet moment now
            for watcher in self._watchers.values():
                watcher.wake()

    @override
    def warm_up(self) -> None:
        """Do nothing: a thread starts at once."""

    @override
    def check(self) -> None:
        """Raise what ended a thread, if something did: a partition must not stop silently."""
        if self._failure is not None:
            raise self._failure

    @override
    def end_claims(self) -> None:
        self._assignment.stop()

    @override
    def begin_stop(self) -> None:
        self._assignment.stop()
        self._calls.stop()
        with self._lock:
            followers = tuple(self._followers.values())
        for follower in followers:
            follower.stopping.set()
        for watcher in self._watchers.values():
            watcher.begin_stop()
        self._wake_waiting()

    @override
    def stop(self, patience: float) -> None:
        """Let every thread finish its current chunk, for at most ``patience`` seconds in all."""
        until = time.monotonic() + patience
        self.begin_stop()
        with self._lock:
            followers = tuple(self._followers.values())
        self._end(followers, patience)
        stop_all(self._watchers.values(), until - time.monotonic())

    @override
    def partitions(self) -> Sequence[SupervisedPartition]:
        return self._assignment.partitions()

    def _follower(self, driver: PartitionDriver, retake: _Retake | None = None) -> _Follower:
        group = driver.supervised.group
        at_once = self._at_once.get(group)
        return _Follower(driver, self._watcher_of(driver), self._haste[group], at_once, self._ended, retake)

    def _wake_waiting(self) -> None:
        for at_once in self._at_once.values():
            at_once.wake()

    def _end(self, followers: Sequence[_Follower], patience: float) -> None:
        """Wait for threads that were asked to stop."""
        until = time.monotonic() + patience
        for follower in followers:
            if not self._started:
                follower.run()  # it only releases what was claimed
            elif follower.thread is not current_thread() and follower.thread.is_alive():
                follower.thread.join(max(0.0, until - time.monotonic()))

    def _ended(self, follower: _Follower, failure: BaseException | None) -> None:
        driver = follower.driver
        if failure is not None and self._assignment.stopped:  # ``check`` is no longer called
            where = f"[{driver.supervised.group} {driver.partition}]"
            logger.error("%s %s, as it stopped\n%s", where, one_line(failure), own_frames(failure))
        self._failure = self._failure or failure
        if driver.abandoned:
            return
        self._assignment.remove(driver)
        with self._lock:
            self._followers.pop(driver, None)

    def _watcher_of(self, driver: PartitionDriver) -> HeadWatcher:
        return self._watchers[id(self._assignment.runs[driver.supervised.group].processing.source)]

    def _processors(self) -> list[PartitionProcessor]:
        with self._lock:
            return [driver.processor for driver in self._followers if not driver.abandoned]

    def _timed_out(self, processor: PartitionProcessor, call: CallInHand, failure: Failure) -> None:
        """Abandon a thread that hangs in a call, and continue its partition on another one."""
        with self._lock:
            hung = next((driver for driver in self._followers if driver.processor is processor), None)
        if hung is None or self._assignment.stopped or not call.is_same(processor.calls.in_hand()):
            return  # it has returned after all
        hung.abandoned = True
        if (at_once := self._at_once.get(hung.supervised.group)) is not None:
            at_once.end(hung)
        with self._lock:
            old = self._followers.pop(hung)
            self._hanging = [thread for thread in self._hanging if thread.is_alive()] + [old.thread]
            retake = partial(self._retaken, hung, call, failure)
            new = self._followers[hung] = self._follower(hung, retake)
        if len(self._hanging) > MOST_HANGING:
            self._failure = self._failure or _too_many(self._hanging, failure)
        new.thread.start()

    def _retaken(
        self, hung: PartitionDriver, call: CallInHand, failure: Failure, stopping: Signal
    ) -> PartitionDriver | None:
        try:
            driver = self._assignment.claim_after_timeout(hung, call, failure, stopping)
        except BaseException as error:
            hung.supervised.take(Outcome(hung.cursor, failure=failure_of(error, Origin.FRAMEWORK)))
            raise
        with self._lock:
            follower = self._followers.pop(hung)
            if driver is not None:
                self._followers[driver] = follower
        return driver


class _Follower:
    """A thread that follows the log with one partition; with ``retake`` it takes it over from one that hangs."""

    def __init__(
        self,
        driver: PartitionDriver,
        watcher: HeadWatcher,
        haste: Haste,
        at_once: AtOnce | None,
        ended: _Ended,
        retake: _Retake | None = None,
    ) -> None:
        self.driver = driver
        self.stopping = Signal()
        name = f"opencqrs-{driver.supervised.group}-{driver.partition}"
        self.thread = Thread(target=self.run, name=name, daemon=True)
        self._watcher = watcher
        self._haste = haste
        self._at_once = at_once
        self._ended = ended
        self._retake = retake

    def run(self) -> None:
        failure = None
        try:
            if self._retake is not None and (driver := self._retake(self.stopping)) is not None:
                self.driver = driver
            follow(self.driver, self._watcher, self.stopping, self._haste, self._at_once)
        except BaseException as error:  # check() reports it; the end of a thread alone is not noticed
            failure = error
        self._ended(self, failure)


def _too_many(hanging: Sequence[Thread], failure: Failure) -> EngineLostError:
    what = f"{len(hanging)} threads hang in abandoned handlers, the last one with {failure.event}"
    return EngineLostError("OCQ-415", what, fix="start again, which frees them; make sure that handlers return")

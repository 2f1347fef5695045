"""The thread engine: one thread per partition, one feed per group."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from threading import Event as Signal
from threading import Lock, Thread, current_thread

from opencqrs_py.control.records import GroupPartition
from opencqrs_py.engines.assignment import Assignment
from opencqrs_py.engines.driver import PartitionDriver
from opencqrs_py.engines.following import follow
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.engines.watching import HeadWatcher
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.ports import Clock, SystemClock
from opencqrs_py.processing.supervision import NO_OBSERVER, Observer, SupervisedPartition

_Ended = Callable[[PartitionDriver, BaseException | None], None]


class ThreadEngine:
    """Runs groups on threads of this process.

    Partitions of a group read through one feed, so the log is read once while they keep together.

    Args:
        runs: The groups.
        owner: Name under which partitions are claimed.
        observer: Sees what happens.
        clock: Time.
    """

    def __init__(
        self,
        runs: Sequence[GroupRun],
        owner: str,
        observer: Observer = NO_OBSERVER,
        clock: Clock | None = None,
    ) -> None:
        self._assignment = Assignment(runs, owner, SystemClock() if clock is None else clock, observer)
        self._watchers = {id(run.processing.source): HeadWatcher(run.processing.source) for run in runs}
        self._failure: BaseException | None = None
        self._followers: dict[PartitionDriver, _Follower] = {}
        self._started = False
        self._lock = Lock()

    def assign(self, group: str, partitions: Sequence[Partition]) -> None:
        """Claim partitions, and start their threads if the engine was started."""
        for driver in self._assignment.claim(group, partitions):
            source = self._assignment.runs[group].processing.source
            follower = _Follower(driver, self._watchers[id(source)], self._ended)
            with self._lock:
                self._followers[driver] = follower
                started = self._started
            if self._assignment.stopped:  # meanwhile: the thread releases the partition, and does no more
                follower.stopping.set()
            if started or follower.stopping.is_set():
                follower.thread.start()

    def start(self) -> None:
        """Start the threads of the partitions that are assigned."""
        if self._assignment.stopped:
            return
        with self._lock:
            self._started, followers = True, tuple(self._followers.values())
        for watcher in self._watchers.values():
            watcher.start()
        for follower in followers:
            follower.thread.start()

    def release(self, group: str, partitions: Sequence[Partition], patience: float) -> None:
        """Let the threads of the partitions finish the chunk in hand and end."""
        drivers = self._assignment.of(group, partitions)
        with self._lock:
            followers = [self._followers[driver] for driver in drivers if driver in self._followers]
        for follower in followers:
            follower.stopping.set()
        for watcher in self._watchers.values():
            watcher.wake()
        self._end(followers, patience)

    def assigned(self) -> Collection[GroupPartition]:
        """Return the partitions that the engine has."""
        return self._assignment.assigned()

    def warm_up(self) -> None:
        """Do nothing: a thread starts at once."""

    def check(self) -> None:
        """Raise what ended a thread, if something did: a partition must not stop and say nothing."""
        if self._failure is not None:
            raise self._failure

    def stop(self, patience: float) -> None:
        """Let every thread finish the chunk in hand, for at most ``patience`` seconds in all."""
        self._assignment.stop()
        with self._lock:
            followers = tuple(self._followers.values())
        for follower in followers:
            follower.stopping.set()
        for watcher in self._watchers.values():
            watcher.stop()
        self._end(followers, patience)

    def partitions(self) -> Sequence[SupervisedPartition]:
        """Return the state of every partition that the engine has or had."""
        return self._assignment.partitions()

    def _end(self, followers: Sequence[_Follower], patience: float) -> None:
        """Wait for threads that were asked to stop."""
        until = time.monotonic() + patience
        for follower in followers:
            if not self._started:
                follower.run()  # which releases what was claimed, and no more
            elif follower.thread is not current_thread() and follower.thread.is_alive():
                follower.thread.join(max(0.0, until - time.monotonic()))

    def _ended(self, driver: PartitionDriver, failure: BaseException | None) -> None:
        self._failure = self._failure or failure
        self._assignment.remove(driver)
        with self._lock:
            self._followers.pop(driver, None)


class _Follower:
    """A thread that follows the log with one partition."""

    def __init__(self, driver: PartitionDriver, watcher: HeadWatcher, ended: _Ended) -> None:
        self.stopping = Signal()
        name = f"opencqrs-{driver.supervised.group}-{driver.partition}"
        self.thread = Thread(target=self.run, name=name, daemon=True)
        self._driver = driver
        self._watcher = watcher
        self._ended = ended

    def run(self) -> None:
        failure = None
        try:
            follow(self._driver, self._watcher, self.stopping)
        except BaseException as error:  # seen by check(); a thread's own end is seen by nobody
            failure = error
        self._ended(self._driver, failure)

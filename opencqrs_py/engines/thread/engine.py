"""The thread engine: one thread per partition, one feed per group."""

from __future__ import annotations

import time
from collections.abc import Sequence
from threading import Event, Thread

from opencqrs_py.engines.runs import GroupRun, claim, release, settle
from opencqrs_py.engines.watching import HeadWatcher
from opencqrs_py.processing.clocks import SystemClock
from opencqrs_py.processing.ports import Clock
from opencqrs_py.processing.supervision import NO_OBSERVER, Observer, SupervisedPartition

__all__ = ["ThreadEngine"]

_QUIET_SECONDS = 0.05  # without a new event, after which progress over events of others is stored
_UNSTORED_SECONDS = 1.0  # longest time that it is not, however many events come
_IDLE_SECONDS = 1.0  # longest sleep of an idle partition, should a wake-up be lost


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
        self._runs = tuple(runs)
        self._owner = owner
        self._observer = observer
        self._clock = clock or SystemClock()
        self._stopping = Event()
        self._failure: BaseException | None = None
        self._partitions: list[SupervisedPartition] = []
        self._threads: list[Thread] = []
        self._watchers = {id(run.processing.source): HeadWatcher(run.processing.source) for run in self._runs}

    def start(self) -> None:
        """Claim all partitions and start their threads."""
        for watcher in self._watchers.values():
            watcher.start()
        for run in self._runs:
            for partition in claim(run, self._owner, self._clock, self._observer):
                self._partitions.append(partition)
                name = f"opencqrs-{run.group}-{partition.partition}"
                self._threads.append(Thread(target=self._work, args=(run, partition), name=name, daemon=True))
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raise what ended a thread, if something did: a partition must not stop and say nothing."""
        if self._failure is not None:
            raise self._failure

    def stop(self, patience: float) -> None:
        """Let every thread finish the chunk in hand, for at most ``patience`` seconds in all."""
        self._stopping.set()
        for watcher in self._watchers.values():
            watcher.stop()
        until = time.monotonic() + patience
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, until - time.monotonic()))

    def partitions(self) -> Sequence[SupervisedPartition]:
        """Return every partition that was started."""
        return tuple(self._partitions)

    def _work(self, run: GroupRun, partition: SupervisedPartition) -> None:
        try:
            self._step_until_stopped(run, partition)
        except BaseException as error:  # seen by check(); a thread's own end is seen by nobody
            self._failure = error

    def _step_until_stopped(self, run: GroupRun, partition: SupervisedPartition) -> None:
        watcher = self._watchers[id(run.processing.source)]
        processor = run.processing.processor(partition.partition)
        tracker = run.processing.tracker
        flushing = _Flushing(watcher)
        interruptions = watcher.interruptions
        while not self._stopping.is_set() and not partition.over:
            wait = partition.wait()
            if wait > 0:
                self._stopping.wait(wait)
                continue
            if watcher.interruptions != interruptions:
                interruptions = watcher.interruptions
                partition.doubt()
            seen = watcher.head
            flushes = flushing.due(partition, seen) and not partition.cursor.doubtful
            outcome = (processor.flush if flushes else processor.step)(partition.cursor)
            settle(partition, outcome, tracker, self._observer)
            if outcome.idle or _is_done(partition, watcher.head):
                # Beyond what was seen before the step, too: it has found nothing there, and would find nothing again.
                watcher.wait_beyond(max(partition.cursor.position, seen), _IDLE_SECONDS)
        if partition.trouble is None:
            settle(partition, processor.flush(partition.cursor), tracker, self._observer)
        release(partition, tracker, self._observer)


def _is_done(partition: SupervisedPartition, head: int) -> bool:
    """Say whether the partition is exactly at the newest event seen, so that a look for more can be saved."""
    return partition.cursor.position == head and partition.done(head)


class _Flushing:
    """When to store progress over events that were not the partition's: in a quiet moment, but not too late.

    Else each new event would cost every other partition of its group a transaction.
    """

    def __init__(self, watcher: HeadWatcher) -> None:
        self._watcher = watcher
        self._since: float | None = None  # when the progress that is not stored began

    def due(self, partition: SupervisedPartition, seen: int) -> bool:
        """Wait a moment for new events if there is only progress to store; say whether it is to be stored now."""
        cursor = partition.cursor
        if cursor.position == cursor.stored or partition.trouble is not None:
            self._since = None
            return False
        self._since = self._since or time.monotonic()
        if cursor.position != seen:
            return False
        self._watcher.wait_beyond(seen, _QUIET_SECONDS)
        return self._watcher.head == seen or time.monotonic() - self._since > _UNSTORED_SECONDS

"""The processor of one partition, made by hand: no container, no configuration."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from threading import Event as Signal
from threading import Lock, Thread, current_thread, get_ident

from opencqrs_py.engines.driver import PartitionDriver, claim
from opencqrs_py.engines.following import follow
from opencqrs_py.engines.parts import ProcessorOptions, make_processing
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.engines.watching import HeadWatcher
from opencqrs_py.errors import OpenCqrsError
from opencqrs_py.model.handler import Handler
from opencqrs_py.model.partition import Partition, layout
from opencqrs_py.model.progress import PartitionStatus
from opencqrs_py.processing.checkpoints.checkpoints import CheckpointTrigger
from opencqrs_py.processing.definitions import Definition, in_order
from opencqrs_py.processing.ports import BackOff, EventSource, ProgressTracker
from opencqrs_py.processing.sequencing import PartitionResolver


class EventHandlingProcessor:
    """Handles the events of one partition of a group, on any thread.

    ``run`` returns after ``stop`` is called from another thread; ``start`` runs on a separate thread; ``step`` does one
    step, for custom loops. Partitions of a group may run in one process or in several, each with its processor. If
    several processors claim the same partition, the last one has it; the others end.

    Args:
        partition: The partition, ``0..partition_resolver.partitions - 1``.
        subject: Root subject.
        recursive: Whether its child subjects count too.
        reader: The event store.
        tracker: Where progress goes, and which transaction handlers write in.
        sequence_resolver: Determines what is handled in order; gets the stored event, or by annotation an object.
        partition_resolver: Maps sequence ids to partitions, and knows their number.
        definitions: Definitions or decorated functions, at least one, all of one group.
        backoff: Waits between an event's attempts.
        options: Optional parts.

    Raises:
        ValueError: Without definitions, with definitions of several groups, or for a partition that does not exist; if
            events are to be parked, but the tracker has no inbox or the partition resolver is your own.
        HandlerSignatureError: If a handler, or another given function, cannot be called as declared.
        AssemblyError: OCQ-514, if the sequence resolver does not take what the group handles.

    Source:
        OpenCQRS ``EventHandlingProcessor``.
    """

    def __init__(  # noqa: PLR0913 what OpenCQRS' processor takes, in its order
        self,
        partition: int,
        subject: str,
        recursive: bool,  # noqa: FBT001 the place that it has in OpenCQRS
        reader: EventSource,
        tracker: ProgressTracker,
        sequence_resolver: Callable[..., str],
        partition_resolver: PartitionResolver,
        definitions: Sequence[Definition],
        backoff: BackOff,
        *,
        options: ProcessorOptions | None = None,
    ) -> None:
        self._options = options or ProcessorOptions()
        handlers = in_order(definitions)
        self.group = _only_group(handlers)
        self.partition = _partition(partition, partition_resolver.partitions)
        processing = make_processing(
            self.group,
            handlers,
            reader,
            tracker,
            sequence_resolver,
            partition_resolver,
            self._options,
            subject=subject,
            recursive=recursive,
        )
        partitions, initial = layout(self.partition.modulus), self._options.initial_position
        run = GroupRun(processing, partitions, lambda: initial, backoff, self._options.on_exhausted)
        self._group_run = replace(run, on_undecodable=self._options.on_undecodable)
        self._driving = Lock()  # held by the thread that steps, or releases the partition
        self._thread_driving: int | None = None
        self._stopping = Signal()
        self._ended = Signal()
        self._ended.set()
        self._thread: Thread | None = None  # made by the last start
        self._watcher: HeadWatcher | None = None  # of the active run
        self._driver: PartitionDriver | None = None  # of the last claim
        self._claimed = False

    @property
    def is_running(self) -> bool:
        """Whether the loop of ``run`` or ``start`` is active; false as soon as it has ended, for any reason (K8)."""
        return not self._ended.is_set()

    def status(self) -> PartitionStatus | None:
        """Return the status, also of a run that has ended; ``None`` before the first claim."""
        return self._driver.supervised.status() if self._driver is not None else None

    @property
    def trigger(self) -> CheckpointTrigger:
        """Requests checkpoints of the participants that have the partition now.

        Raises:
            ValueError: If there is no participant, or none has the partition: before the first step, after a stop.
        """
        trigger = self._driver.processor.trigger if self._driver is not None and self._claimed else None
        if trigger is None:
            raise ValueError(f"no participant of group '{self.group}' has partition {self.partition}")
        return trigger

    def step(self) -> float | None:
        """Handle the next chunk, after claiming the partition if necessary.

        Returns:
            Seconds to wait before the next step: 0 when there may be more to do, ``None`` when nothing is left to read
            or the partition has been taken over.

        Raises:
            OpenCqrsError: If it is already running.
            EventStoreError: OCQ-310, if the group's progress belongs to another number of partitions.
        """
        self._begin_driving()
        try:
            if not self._claimed:
                self._stopping.clear()
            wait = _step(self._claim())
            if self._stopping.is_set():  # requested by a handler, or by a caller that stopped waiting
                self._let_go()
            return wait
        finally:
            self._end_driving()

    def run(self) -> None:
        """Handle events as they arrive, on this thread, until ``stop`` is called or another processor takes over.

        When ``stop`` was called before the very first run, it ends at once.

        Raises:
            OpenCqrsError: If it is already running.
            EventStoreError: OCQ-310, if the group's progress belongs to another number of partitions; OCQ-304, if a
                database is unavailable at the start. Later outages are waited for.
        """
        self._begin_driving()
        self._run()

    def start(self) -> None:
        """Claim the partition and run on a separate thread.

        Raises:
            OpenCqrsError: If it is already running.
            EventStoreError: As for ``run``.
        """
        self._begin_driving()
        try:
            self._stopping.clear()
            self._claim()
            self._ended.clear()
            self._thread = Thread(target=self._run, name=f"opencqrs-{self.group}-{self.partition}", daemon=True)
            self._thread_driving = None  # a stop on this thread waits for the new one
            self._thread.start()
        except BaseException:
            self._ended.set()
            self._end_driving()
            raise

    def stop(self, patience: float = 10.0) -> None:
        """Finish the chunk in hand and release the partition. Idempotent.

        It waits for at most ``patience`` seconds; the loop ends after the chunk in hand in any case. A handler or
        observer may call it; then it does not wait.
        """
        self._stopping.set()
        if self._thread_driving == get_ident():
            return
        if self._watcher is not None:
            self._watcher.stop()
        if self._driving.acquire(timeout=patience):
            self._thread_driving = get_ident()
            try:
                self._let_go()
            finally:
                self._end_driving()

    def join(self, seconds: float | None = None) -> bool:
        """Wait until the loop has ended, at most ``seconds``; return whether it has."""
        until = None if seconds is None else time.monotonic() + seconds
        ended = self._ended.wait(seconds)
        if ended and self._thread is not None and self._thread is not current_thread():
            self._thread.join(None if until is None else max(0.0, until - time.monotonic()))
        return ended

    def _begin_driving(self) -> None:
        if not self._driving.acquire(blocking=False):
            raise OpenCqrsError(f"the processor of group '{self.group}' partition {self.partition} is already running")
        self._thread_driving = get_ident()

    def _end_driving(self) -> None:
        self._thread_driving = None
        self._driving.release()

    def _claim(self) -> PartitionDriver:
        """Claim the partition, if necessary."""
        if self._driver is None or not self._claimed:
            owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
            options = self._options
            (self._driver,) = claim(self._group_run, [self.partition], owner, options.clock, options.observer)
            self._claimed = True
        return self._driver

    def _run(self) -> None:
        """Run the loop. The caller holds the lock, which is released at the end."""
        self._thread_driving = get_ident()
        self._ended.clear()
        try:
            if self._claimed or not self._stopping.is_set():
                self._follow(self._claim())
            else:
                self._stopping.clear()
        finally:
            self._ended.set()
            self._end_driving()

    def _follow(self, driver: PartitionDriver) -> None:
        self._watcher = watcher = HeadWatcher(self._group_run.processing.source)
        try:
            follow(driver, watcher, self._stopping)
        finally:
            self._claimed = False
            self._stopping.clear()
            watcher.stop()

    def _let_go(self) -> None:
        """Release the partition; a stop before the first claim is remembered."""
        if self._driver is None:
            return
        self._stopping.clear()
        if self._claimed:
            self._claimed = False
            self._driver.release()


def _step(driver: PartitionDriver) -> float | None:
    if driver.over:
        return None
    if (wait := driver.wait()) > 0:
        return wait
    return None if driver.step().idle else driver.wait()


def _only_group(handlers: Sequence[Handler]) -> str:
    groups = list(dict.fromkeys(handler.mark.group for handler in handlers))
    if len(groups) != 1:
        what = f"definitions of several groups: {' and '.join(groups)}" if groups else "no definitions"
        raise ValueError(f"a processor needs the handlers of one group, got {what}")
    return groups[0]


def _partition(number: int, partitions: int) -> Partition:
    if not 0 <= number < partitions:
        raise ValueError(f"partition must be in 0..{partitions - 1}, got {number}")
    return Partition(partitions, number)

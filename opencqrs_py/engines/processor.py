"""The processor of one partition, made by hand: no container, no configuration."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from threading import Event as Signal
from threading import Lock, Thread, current_thread, get_ident

from opencqrs_py.engines.parts import ProcessorOptions, make_processing
from opencqrs_py.engines.runs import begin, check_log, release, settle
from opencqrs_py.errors import DatabaseFileError, OpenCqrsError
from opencqrs_py.model.handler import Handler
from opencqrs_py.model.outcome import Origin, Outcome
from opencqrs_py.model.partition import Partition, layout
from opencqrs_py.model.progress import PartitionStatus
from opencqrs_py.processing.definitions import Definition, in_order
from opencqrs_py.processing.error_text import trouble_of
from opencqrs_py.processing.interrupts import raise_interrupt
from opencqrs_py.processing.ports import BackOff, EventSource, ProgressTracker, Watch
from opencqrs_py.processing.sequencing import PartitionResolver
from opencqrs_py.processing.supervision import SupervisedPartition

__all__ = ["EventHandlingProcessor"]

_LOOK_SECONDS = 0.2  # longest wait of the store's watch in one piece: so soon a stop is noticed
_IDLE_LOOKS = 5  # looks without anything new, before the store is read all the same
_AFTER_ERROR_SECONDS = 0.5


class EventHandlingProcessor:
    """Handles the events of one partition of a group, on any thread.

    ``run`` stays until ``stop`` is called from another thread; ``start`` runs on a thread of its own; ``step`` does one
    step, for loops of one's own. Partitions of a group may run in one process or in several, each with its processor.
    Of several processors of the same partition the last one that claimed it has it; the others end.

    Args:
        partition: The partition, ``0..partition_resolver.partitions - 1``.
        subject: Root subject.
        recursive: Whether its child subjects count too.
        reader: The event store.
        tracker: Where progress goes, and which transaction handlers write in.
        sequence_resolver: Says what is handled in order; sees the stored event, or by annotation what handlers see.
        partition_resolver: From a sequence id to a partition, and how many of them there are.
        definitions: Definitions or decorated functions, at least one, all of one group.
        backoff: Waits between an event's attempts.
        options: What else it may be given.

    Raises:
        ValueError: Without definitions, with definitions of several groups, for a partition that there is not.
        HandlerSignatureError: If a handler, or another function given, cannot be called as it is written.
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
        self._processing = make_processing(
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
        self._processor = self._processing.processor(self.partition, self._options.clock)
        self._back_off = backoff
        self._driving = Lock()  # held by the thread that steps, and by whoever lets go of the partition
        self._driver: int | None = None  # that thread
        self._stopping = Signal()
        self._ended = Signal()
        self._ended.set()
        self._thread: Thread | None = None  # made by the last start
        self._supervised: SupervisedPartition | None = None
        self._claimed = False

    @property
    def is_running(self) -> bool:
        """Whether ``run`` or ``start`` is at work; false as soon as the loop has ended, for whatever reason (K8)."""
        return not self._ended.is_set()

    def status(self) -> PartitionStatus | None:
        """Return what there is to show, also of a run that has ended; ``None`` before the first claim."""
        return self._supervised.status() if self._supervised is not None else None

    def step(self) -> float | None:
        """Handle the next chunk; take the partition over first, unless it was.

        Returns:
            Seconds to wait before the next step: 0 when there may be more to do, ``None`` when nothing is left to read
            or the partition has been taken over.

        Raises:
            OpenCqrsError: If it runs already.
            EventStoreError: OCQ-310, if the group's progress belongs to another number of partitions.
        """
        self._take_the_wheel()
        try:
            if not self._claimed:
                self._stopping.clear()
            wait = self._step(self._claim())
            if self._stopping.is_set():  # asked for by a handler, or by somebody whose patience has ended
                self._let_go()
            return wait
        finally:
            self._leave_the_wheel()

    def run(self) -> None:
        """Handle events as they come, on this thread, until ``stop`` is called or another processor takes over.

        When ``stop`` was called before the very first run, it ends at once.

        Raises:
            OpenCqrsError: If it runs already.
            EventStoreError: OCQ-310, if the group's progress belongs to another number of partitions; OCQ-304, if a
                database is away at the start. Later outages are waited for.
        """
        self._take_the_wheel()
        self._run()

    def start(self) -> None:
        """Take the partition over and run on a thread of its own.

        Raises:
            OpenCqrsError: If it runs already.
            EventStoreError: As for ``run``.
        """
        self._take_the_wheel()
        try:
            self._stopping.clear()
            self._claim()
            self._ended.clear()
            self._thread = Thread(target=self._run, name=f"opencqrs-{self.group}-{self.partition}", daemon=True)
            self._thread.start()
        except BaseException:
            self._ended.set()
            self._leave_the_wheel()
            raise

    def stop(self, patience: float = 10.0) -> None:
        """Let the chunk in hand be finished and let go of the partition. Idempotent.

        A handler or observer may call it; then it does not wait, and the loop ends behind the chunk in hand.

        Args:
            patience: Seconds to wait at most; the loop ends behind the chunk in hand all the same.
        """
        self._stopping.set()
        if self._driver != get_ident() and self._driving.acquire(timeout=patience):
            self._driver = get_ident()
            try:
                self._let_go()
            finally:
                self._leave_the_wheel()

    def join(self, seconds: float | None = None) -> bool:
        """Wait until the loop has ended, at most ``seconds``; say whether it has."""
        until = None if seconds is None else time.monotonic() + seconds
        ended = self._ended.wait(seconds)
        if ended and self._thread is not None and self._thread is not current_thread():
            self._thread.join(None if until is None else max(0.0, until - time.monotonic()))
        return ended

    def _take_the_wheel(self) -> None:
        if not self._driving.acquire(blocking=False):
            msg = f"the processor of group '{self.group}' partition {self.partition} runs already"
            raise OpenCqrsError(msg)
        self._driver = get_ident()

    def _leave_the_wheel(self) -> None:
        self._driver = None
        self._driving.release()

    def _claim(self) -> SupervisedPartition:
        """Take the partition over, unless it was."""
        if self._supervised is None or not self._claimed:
            owner = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
            tracker, options = self._processing.tracker, self._options
            whole = layout(self.partition.modulus)
            source, initial = self._processing.source, options.initial_position
            (cursor,) = tracker.claim(
                self.group, [self.partition], initial, owner, layout=whole, fingerprint=source.fingerprint(initial)
            )
            check_log(self.group, source, cursor)
            self._supervised = SupervisedPartition(
                self.group, cursor, self._back_off, options.on_exhausted, options.clock
            )
            self._claimed = True
            begin(self._supervised, tracker, options.observer)
        return self._supervised

    def _step(self, supervised: SupervisedPartition) -> float | None:
        if supervised.over:
            return None
        if (wait := supervised.wait()) > 0:
            return wait
        outcome = self._processor.step(supervised.cursor)
        self._settle(supervised, outcome)
        return None if outcome.idle else supervised.wait()

    def _run(self) -> None:
        """Run at the wheel, which the caller has taken, and leave it."""
        self._driver = get_ident()
        self._ended.clear()
        try:
            if self._claimed or not self._stopping.is_set():
                self._run_until_over(self._claim())
            else:
                self._stopping.clear()
        finally:
            self._ended.set()
            self._leave_the_wheel()

    def _run_until_over(self, supervised: SupervisedPartition) -> None:
        try:
            while not self._is_over(supervised):
                self._follow_while_reachable(supervised)
        except BaseException as error:  # not of a step: an observer's, or a fault of the tracker or of the watch
            raise_interrupt(error)
            supervised.take(Outcome(supervised.cursor, trouble=trouble_of(error, Origin.FRAMEWORK)))
            raise
        finally:
            self._let_go()

    def _follow_while_reachable(self, supervised: SupervisedPartition) -> None:
        """Follow the store; return when it is away, or when all is over."""
        try:
            with self._processing.source.watched() as watch:
                self._follow(supervised, watch)
        except Exception as error:
            if not self._processing.source.is_outage(error) and not isinstance(error, DatabaseFileError):
                raise
            supervised.doubt()
            self._step(supervised)  # meets the same error, and reports it
            self._stopping.wait(_AFTER_ERROR_SECONDS)

    def _follow(self, supervised: SupervisedPartition, watch: Watch) -> None:
        head = 0
        while not self._is_over(supervised):
            wait = self._step(supervised)
            if wait is None:
                # Beyond what was seen before the step, too: it has found nothing there, and would find nothing again.
                head = self._await_more(watch, max(supervised.cursor.position, head))
            elif wait > 0:
                self._stopping.wait(wait)

    def _await_more(self, watch: Watch, after: int) -> int:
        """Return the head as soon as it is beyond ``after``, or when it is time to look all the same."""
        for _ in range(_IDLE_LOOKS):
            if self._stopping.is_set():
                break
            head = watch.wait(after, _LOOK_SECONDS)
            if head > after:
                return head
        return after

    def _is_over(self, supervised: SupervisedPartition) -> bool:
        return self._stopping.is_set() or supervised.over

    def _let_go(self) -> None:
        """Store what is still to be stored and release the partition; a stop before the first claim is kept for it."""
        supervised = self._supervised
        if supervised is None:
            return
        self._stopping.clear()
        if self._claimed:
            self._claimed = False
            if supervised.trouble is None:
                self._settle(supervised, self._processor.flush(supervised.cursor))
            release(supervised, self._processing.tracker, self._options.observer)

    def _settle(self, supervised: SupervisedPartition, outcome: Outcome) -> None:
        settle(supervised, outcome, self._processing.tracker, self._options.observer)


def _only_group(handlers: Sequence[Handler]) -> str:
    groups = list(dict.fromkeys(handler.mark.group for handler in handlers))
    if len(groups) != 1:
        what = f"definitions of several groups: {' and '.join(groups)}" if groups else "no definitions"
        msg = f"a processor needs the handlers of one group, got {what}"
        raise ValueError(msg)
    return groups[0]


def _partition(number: int, partitions: int) -> Partition:
    if not 0 <= number < partitions:
        msg = f"partition must be in 0..{partitions - 1}, got {number}"
        raise ValueError(msg)
    return Partition(partitions, number)

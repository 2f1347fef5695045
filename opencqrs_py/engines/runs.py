"""What an engine is given to run a group, and what it answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from opencqrs_py.errors import DatabaseFileError, EventStoreError, OtherLogError
from opencqrs_py.model.outcome import Origin, Outcome
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor, PartitionStatus, ProcessorState
from opencqrs_py.processing.error_text import one_line, trouble_of
from opencqrs_py.processing.group import GroupProcessing
from opencqrs_py.processing.ports import BackOff, Clock, EventSource, ProgressTracker
from opencqrs_py.processing.recovery import Action, OnExhausted
from opencqrs_py.processing.supervision import (
    NO_OBSERVER,
    OUTAGE_BACK_OFF,
    Notice,
    Observer,
    SupervisedPartition,
)

__all__ = ["Engine", "GroupRun", "Recipe", "begin", "check_log", "claim", "publish", "release", "settle"]


T = TypeVar("T")

_log = logging.getLogger(__name__)


class Recipe(Hashable, Protocol):
    """Builds a group's parts in another process. Pickled on the driver, called once per Spark worker."""

    def __call__(self) -> GroupProcessing:
        """Build them."""
        ...


@dataclass(frozen=True)
class GroupRun:
    """A group that an engine is to run.

    Attributes:
        processing: Its parts in this process.
        recipe: Builds the same parts in another process.
        partitions: Its partitions.
        initial: Returns the position at which partitions without progress start.
        prepare: Runs the group's ``@on_start`` functions in one transaction.
        back_off: Waits between an event's attempts.
        on_exhausted: What happens to an event whose attempts are used up.
    """

    processing: GroupProcessing
    recipe: Recipe
    partitions: tuple[Partition, ...]
    initial: Callable[[], int]
    prepare: Callable[[], None]
    back_off: BackOff
    on_exhausted: OnExhausted

    @property
    def group(self) -> str:
        """The group's name."""
        return self.processing.group


class Engine(Protocol):
    """Runs the processors of groups until it is stopped."""

    def start(self) -> None:
        """Claim all partitions and begin.

        Raises:
            EngineError: If the engine cannot run on this machine.
            EventStoreError: If a group's progress does not fit its configuration.
        """
        ...

    def check(self) -> None:
        """Raise the error that ended the engine, if one did."""
        ...

    def stop(self, patience: float) -> None:
        """Finish the events in hand, for at most ``patience`` seconds, and release everything. Idempotent."""
        ...

    def partitions(self) -> Sequence[SupervisedPartition]:
        """Return every partition that was started."""
        ...


def claim(run: GroupRun, owner: str, clock: Clock, observer: Observer = NO_OBSERVER) -> list[SupervisedPartition]:
    """Prepare the group, take its partitions over and return them ready to start.

    A database that cannot be reached at all is an error, since most likely its URL is wrong. Later outages, such as a
    stopped process that holds the write lock of an SQLite file, are waited for.

    Raises:
        DatabaseAwayError: OCQ-304, if the database of the progress cannot be reached.
        EventStoreError: OCQ-310 for another layout of partitions; OCQ-316, if the log is not the one that the progress
            belongs to.
    """
    tracker = run.processing.tracker
    tracker.statuses()
    cursors = _once_available(run, observer, lambda: _claimed(run, owner))
    supervised = [SupervisedPartition(run.group, c, run.back_off, run.on_exhausted, clock) for c in cursors]
    for partition in supervised:
        begin(partition, tracker, observer)
    return supervised


def _once_available(run: GroupRun, observer: Observer, act: Callable[[], T]) -> T:
    """Return what ``act`` returns; while a database or the event store is unavailable, try again."""
    tracker, source = run.processing.tracker, run.processing.source
    waits = OUTAGE_BACK_OFF.waits()
    while True:
        try:
            return act()
        except Exception as error:
            if not (tracker.is_outage(error) or source.is_outage(error)):
                raise
            trouble, wait = trouble_of(error, Origin.OUTAGE), next(waits)
            observer.noticed(Notice(run.group, run.partitions[0], Action.WAIT, trouble, wait=wait))
        time.sleep(wait)


def _claimed(run: GroupRun, owner: str) -> tuple[Cursor, ...]:
    run.prepare()
    tracker, source, initial = run.processing.tracker, run.processing.source, run.initial()
    cursors = tracker.claim(run.group, run.partitions, initial, owner, fingerprint=source.fingerprint(initial))
    try:
        for cursor in cursors:
            check_log(run.group, source, cursor)
    except EventStoreError as error:
        for cursor in cursors:
            failed = ProcessorState.FAILED
            status = PartitionStatus(
                run.group, cursor.partition, cursor.stored, failed, 0, f"[{error.code}] {error.what}"
            )
            tracker.report(replace(status, failure=cursor.failure), cursor.epoch)
        raise
    return cursors


def check_log(group: str, source: EventSource, cursor: Cursor) -> None:
    """See to it that the log is the one that the progress of a partition belongs to.

    Raises:
        OtherLogError: OCQ-316, naming the partition.
    """
    try:
        source.verify(cursor.stored, cursor.fingerprint)
    except OtherLogError as error:
        what = f"group '{group}' partition {cursor.partition}: {error.what}"
        raise OtherLogError(error.code, what, error.where, error.fix) from error


def begin(partition: SupervisedPartition, tracker: ProgressTracker, observer: Observer) -> None:
    """Publish that a partition was taken over, and tell the observer."""
    publish(tracker, partition)
    observer.claimed(partition.group, partition.partition, partition.cursor.stored)


def release(partition: SupervisedPartition, tracker: ProgressTracker, observer: Observer) -> None:
    """Let go of a partition: record that it was stopped, publish it, and tell the observer."""
    partition.stop()
    try:
        publish(tracker, partition)
    finally:
        observer.stopped(partition.group, partition.partition)


def publish(tracker: ProgressTracker, partition: SupervisedPartition) -> None:
    """Let others see a partition's state. Nothing ends because it cannot be shown: the next step meets the reason."""
    try:
        tracker.report(partition.status(), partition.cursor.epoch)
    except DatabaseFileError:
        pass
    except Exception as error:
        if not tracker.is_outage(error):
            where = f"[{partition.group} {partition.partition}]"
            _log.warning("%s its state cannot be reported: %s", where, one_line(error))


def settle(partition: SupervisedPartition, outcome: Outcome, tracker: ProgressTracker, observer: Observer) -> None:
    """Take in what a step came to, tell the observer, and publish a change of state."""
    before = partition.state
    notice = partition.take(outcome)
    observer.advanced(partition.group, partition.partition, outcome)
    for trouble in outcome.missed:
        observer.noticed(Notice(partition.group, partition.partition, None, trouble))
    if notice is not None:
        observer.noticed(notice)
    if notice is not None or partition.state is not before:
        publish(tracker, partition)

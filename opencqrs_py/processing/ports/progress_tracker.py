"""Progress trackers: the progress of each partition of a group, and what changes with it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from typing_extensions import override

from opencqrs_py.model.group_record import FoundGroup, GroupRecord
from opencqrs_py.model.inbox import InboxChange
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor, PartitionStatus, Skip
from opencqrs_py.model.replay import Replay, Reset
from opencqrs_py.processing.ports.inbox import Inbox
from opencqrs_py.processing.ports.transactions import SavingUnit, UnitOfWork


class ProgressTracker(Protocol):
    """Stores the progress of each partition of a group."""

    def claim(
        self,
        group: str,
        partitions: Sequence[Partition],
        initial: int,
        owner: str,
        layout: Sequence[Partition] | None = None,
        *,
        fingerprint: str = "",
    ) -> tuple[Cursor, ...]:
        """Take the partitions over from any other owner; those without progress start at ``initial``.

        The cursors carry the recorded fingerprint of the log, and the failure that blocks a partition.

        Args:
            group: Processing group.
            partitions: What to take over.
            initial: Position after which partitions without progress start, at least 0.
            owner: Name of the claiming process, for messages.
            layout: All partitions of the group, if only some of them are taken over.
            fingerprint: What identifies the log up to ``initial``.

        Raises:
            EventStoreError: OCQ-310, if the group's progress belongs to another layout of partitions; OCQ-305, if
                the open transaction of the previous process cannot be ended.
        """
        ...

    def unit(
        self, group: str, cursor: Cursor, to: int, *, fingerprint: str = "", skip: Skip | None = None
    ) -> AbstractContextManager[UnitOfWork]:
        """Open the unit of work that moves progress from ``cursor.stored`` to ``to`` if the block succeeds.

        Moving the progress is its last step, so if a handler ends the transaction early, events are repeated, not lost.

        Args:
            group: Processing group.
            cursor: Where the partition stands.
            to: The new position, at least ``cursor.stored``.
            fingerprint: What identifies the log up to ``to``.
            skip: The event that is skipped, recorded with the progress.

        Raises:
            FencedError: On entering, if the progress or the epoch is no longer the cursor's; a tracker that cannot
                block later claims checks again before it commits.
            TransactionEndedError: On leaving, if the block ended the transaction.
            ValueError: On entering, if ``to`` is before ``cursor.stored``.
        """
        ...

    def renewed(self, group: str, cursor: Cursor) -> Cursor | None:
        """Return where the partition resumes, or ``None`` if the cursor no longer holds the claim."""
        ...

    def report(self, status: PartitionStatus, epoch: int) -> None:
        """Publish the state of a processor, and record the failure that blocks it, or clear it.

        If the status has no checkpoint, the published one remains until the next claim. Ignored when ``epoch`` is not
        the current one. Does not touch the progress, nor the time at which it was stored, since a processor that waits
        for a database reports that repeatedly. The time is set if the status has one.
        """
        ...

    def statuses(self) -> list[PartitionStatus]:
        """Return the status of every partition of every group, by group, modulus and residue."""
        ...

    def skipped(self) -> list[Skip]:
        """Return the events that were skipped, by group and position."""
        ...

    def is_outage(self, error: BaseException) -> bool:
        """Return whether ``error`` means that the tracker's database is temporarily unavailable."""
        ...


def statuses_of(tracker: ProgressTracker, group: str) -> list[PartitionStatus]:
    """Return the status of every partition of one group, by modulus and residue."""
    return [status for status in tracker.statuses() if status.group == group]


@runtime_checkable
class SucceedingTracker(ProgressTracker, Protocol):
    """A tracker that lets one run of a task take partitions over from another run, under the same claim."""

    def succeed(self, group: str, cursor: Cursor, owner: str | None = None) -> Cursor | None:
        """Take a partition over under the next epoch, if the cursor's epoch is still current.

        A unit of work that is open under the old epoch is waited for, or cannot commit; no new one can be opened.

        Args:
            group: Processing group.
            cursor: Cursor with the epoch under which the partition is handled.
            owner: The owner that must have claimed it; ``None`` for any.

        Returns:
            Where the partition resumes, or ``None`` if the epoch or the owner has changed.
        """
        ...


@runtime_checkable
class GroupRecords(Protocol):
    """A tracker that also keeps a record of each group, which claims write together with progress."""

    def claim(
        self,
        group: str,
        partitions: Sequence[Partition],
        initial: int,
        owner: str,
        layout: Sequence[Partition] | None = None,
        *,
        fingerprint: str = "",
        keep: Callable[[FoundGroup], GroupRecord] | None = None,
    ) -> tuple[Cursor, ...]:
        """Take partitions over like any tracker, and keep the group's record in the same transaction.

        ``keep`` gets what the claim finds and returns the record to write; an error of it undoes the claim. With it,
        part of the progress of a group with a record may be missing. Without it the record stays unchanged.
        """
        ...

    def records(self) -> list[GroupRecord]:
        """Return the records of all groups, by name. Creates no tables."""
        ...


@runtime_checkable
class RebuildRecords(GroupRecords, Protocol):
    """A tracker that also keeps a record of each rebuild."""

    def rebuilt(self, groups: Collection[str]) -> list[GroupRecord]:
        """Return the records of those of some groups that were rebuilt, or are being rebuilt."""
        ...


@runtime_checkable
class ParkingTracker(ProgressTracker, Inbox, Protocol):
    """A tracker with an inbox, which changes in the same transactions as the progress."""

    @override
    def unit(
        self,
        group: str,
        cursor: Cursor,
        to: int,
        *,
        fingerprint: str = "",
        skip: Skip | None = None,
        change: InboxChange | None = None,
    ) -> AbstractContextManager[UnitOfWork]:
        """Open the unit of work that moves progress and changes the inbox, if the block succeeds.

        Both are its last steps: if a handler ends the transaction early, waiting events are repeated but not lost.

        Args:
            group: Processing group.
            cursor: Where the partition stands.
            to: The new position; ``cursor.stored`` for events from the inbox.
            fingerprint: What identifies the log up to ``to``.
            skip: The event that is skipped, recorded with the progress.
            change: What enters and leaves the inbox; ``None`` for nothing.

        Raises:
            InboxChangedError: On entering, if the entries have been changed since they were read.
            InboxFullError: On entering, OCQ-601, if too many sequences, or too many events of one, would wait.
            FencedError, TransactionEndedError, ValueError: As for any tracker.
        """
        ...


@runtime_checkable
class SavingTracker(ParkingTracker, Protocol):
    """A tracker whose transactions have savepoints."""

    def unit_in_parts(
        self, group: str, cursor: Cursor, to: int, *, fingerprint: str = ""
    ) -> AbstractContextManager[SavingUnit]:
        """Open a unit of work that moves progress from ``cursor.stored`` to ``to``, or as ``conclude`` says.

        Raises:
            InboxFullError: On leaving, OCQ-601, if too many sequences, or too many events of one, would wait.
            FencedError, TransactionEndedError, ValueError: As for any unit.
        """
        ...


@dataclass(frozen=True, slots=True)
class ResetUnit:
    """The unit of work in which a group is reset.

    Attributes:
        unit: The transaction.
        replays: The replay of each partition; ``None`` for one that handles nothing again.
    """

    unit: UnitOfWork
    replays: Mapping[Partition, Replay | None]


@dataclass(frozen=True, slots=True)
class ReplayEnd:
    """The unit of work in which the replay of a partition ends.

    Attributes:
        unit: The transaction.
        finished: The reset whose replay is complete, if no other partition of the group is replaying; else ``None``.
    """

    unit: UnitOfWork
    finished: Reset | None


NeverHandled: TypeAlias = Callable[[Cursor], Collection[int]]
"""Returns the positions of a partition's unhandled events, up to where some are handled ahead of it."""


def nothing_ahead(_cursor: Cursor) -> Collection[int]:
    """Return nothing, for groups whose partitions never change."""
    return ()


@runtime_checkable
class ResettableTracker(ProgressTracker, Protocol):
    """A tracker that can reset a group."""

    def resetting(
        self,
        reset: Reset,
        layout: Sequence[Partition],
        *,
        fingerprint: str = "",
        never_handled: NeverHandled = nothing_ahead,
    ) -> AbstractContextManager[ResetUnit]:
        """Open the unit of work that moves the progress of a whole group if the block succeeds.

        Other owners of its partitions are fenced off, and their transactions are waited for. Missing progress
        is created. Entries of the inbox after
        the position of the reset are removed, as their events are read again; so are the records of skipped events. A
        group that began after the position, by its record, begins at the position from now on.

        Args:
            reset: Group and position.
            layout: All partitions of the group.
            fingerprint: What identifies the log up to the position of the reset.
            never_handled: Called for partitions with events that are handled ahead.

        Raises:
            EventStoreError: OCQ-310, if the group's progress belongs to another layout of partitions; OCQ-305, if the
                open transaction of an owner cannot be ended.
            ResetError: OCQ-612, if too many events wait in the inbox.
            TransactionEndedError: On leaving, if the block ended the transaction.
        """
        ...

    def ending_replay(
        self, group: str, cursor: Cursor, *, after_inbox: bool = False
    ) -> AbstractContextManager[ReplayEnd | None]:
        """Open the unit of work that ends the replay of a partition if the block succeeds.

        Partitions of a group end their replays one at a time, so that exactly one is the last.

        Args:
            group: Processing group.
            cursor: Where the partition stands.
            after_inbox: Whether the replay continues, and the block gets ``None``, while replayed events wait in the
                inbox, except those that wait for a person.

        Raises:
            FencedError: On entering, if the progress or the epoch is no longer the cursor's.
            TransactionEndedError: On leaving, if the block ended the transaction.
        """
        ...


Carry: TypeAlias = Callable[[Mapping[Partition, Cursor]], Mapping[Partition, Cursor]]
"""Maps the cursors of a group's partitions to those of the partitions of a new layout."""


@runtime_checkable
class RepartitioningTracker(GroupRecords, ProgressTracker, Protocol):
    """A tracker that can repartition a group."""

    def repartition(
        self, group: str, partitions: Sequence[Partition], carry: Carry, *, setting: int | None = None
    ) -> Mapping[Partition, Cursor]:
        """Replace partitions that are not in a new layout by its new ones, all or nothing.

        If the group has these partitions already, only the setting is recorded.

        Owners of replaced partitions are fenced off, and their transactions are waited for. Others are not affected.

        Args:
            group: Processing group.
            partitions: The new layout.
            carry: Returns where the new partitions continue; called in the transaction.
            setting: The new value of ``life-cycle.partitions``, if that is the reason.

        Returns:
            The result of ``carry``.

        Raises:
            EventStoreError: OCQ-305, if the open transaction of an owner cannot be ended.
            LayoutError: OCQ-615, if the group has no progress, there is nothing to change or record, or another process
                has changed its partitions.
        """
        ...

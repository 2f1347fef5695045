"""Progress trackers: how far each partition of a group is, and what else moves with that."""

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
    """Remembers how far each partition of a group is."""

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

        The cursors carry what is recorded: the fingerprint of the log, and the failure that holds a partition up.

        Args:
            group: Processing group.
            partitions: What to take over.
            initial: Position after which partitions without progress start, at least 0.
            owner: Name of the claiming process, for messages.
            layout: All partitions of the group when only some of them are taken over.
            fingerprint: What identifies the log up to ``initial``.

        Raises:
            EventStoreError: OCQ-310, if the group's progress belongs to another layout of partitions; OCQ-305, if
                the open transaction of the process before cannot be ended.
        """
        ...

    def unit(
        self, group: str, cursor: Cursor, to: int, *, fingerprint: str = "", skip: Skip | None = None
    ) -> AbstractContextManager[UnitOfWork]:
        """Open the unit of work that moves progress from ``cursor.stored`` to ``to`` if the block succeeds.

        Moving the progress is its last step, so a transaction that a handler ends early repeats events but loses none.

        Args:
            group: Processing group.
            cursor: Where the partition stands.
            to: The new position, at least ``cursor.stored``.
            fingerprint: What identifies the log up to ``to``.
            skip: The event that is skipped, recorded with the progress.

        Raises:
            FencedError: On entering, if the progress or the epoch is not the cursor's any more; a tracker that cannot
                hold off later claims looks again before it commits.
            TransactionEndedError: On leaving, if the block ended the transaction.
            ValueError: On entering, if ``to`` is before ``cursor.stored``.
        """
        ...

    def renewed(self, group: str, cursor: Cursor) -> Cursor | None:
        """Return where the partition resumes, or ``None`` if the cursor no longer holds the claim."""
        ...

    def report(self, status: PartitionStatus, epoch: int) -> None:
        """Publish what a processor does, and record the failure that holds it up, or that there is none.

        What participants have published stays, until the next claim, when the status says nothing of them.
        Ignored when ``epoch`` is not the current one. Does not touch progress.
        """
        ...

    def statuses(self) -> list[PartitionStatus]:
        """Return what is known of every partition of every group, by group, modulus and residue."""
        ...

    def skipped(self) -> list[Skip]:
        """Return the events that were skipped, by group and position."""
        ...

    def is_outage(self, error: BaseException) -> bool:
        """Return whether ``error`` means that the tracker's database is temporarily unavailable."""
        ...


@runtime_checkable
class SucceedingTracker(ProgressTracker, Protocol):
    """A tracker by which one run of a task takes its partitions over from another one, under the same claim."""

    def succeed(self, group: str, cursor: Cursor, owner: str | None = None) -> Cursor | None:
        """Take a partition over under the next epoch, if the cursor's is still the current one.

        A unit of work that is open under that epoch is waited for, or cannot commit; no further one can be opened.

        Args:
            group: Processing group.
            cursor: Under whose epoch the partition is worked on.
            owner: Who must have claimed it; ``None`` for anybody.

        Returns:
            Where the partition resumes, or ``None`` if the epoch or the owner is another one.
        """
        ...


@runtime_checkable
class GroupRecords(Protocol):
    """A tracker that keeps a record of each group, too, and writes it by the claims that make progress."""

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
        """Take partitions over as any tracker does, and keep the group's record in the same transaction.

        ``keep`` returns from what the claim finds the record to write; what it raises undoes the claim. With it,
        progress of a group that has a record may be missing in part. Without it the record stays as it is.
        """
        ...

    def records(self) -> list[GroupRecord]:
        """Return the records of all groups, by name. Nothing is created for it."""
        ...


@runtime_checkable
class ParkingTracker(ProgressTracker, Inbox, Protocol):
    """A tracker with an inbox, which changes in the transactions that move the progress."""

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

        Both are its last steps: a transaction that a handler ends early repeats events that wait, and loses none.

        Args:
            group: Processing group.
            cursor: Where the partition stands.
            to: The new position; ``cursor.stored`` for what comes out of the inbox.
            fingerprint: What identifies the log up to ``to``.
            skip: The event that is skipped, recorded with the progress.
            change: What comes into the inbox and leaves it; ``None`` for nothing.

        Raises:
            InboxChangedError: On entering, if somebody has changed the events since they were read.
            InboxError: On entering, OCQ-601, if too many sequences, or too many events of one, would wait.
            FencedError, TransactionEndedError, ValueError: As for any tracker.
        """
        ...


@runtime_checkable
class SavingTracker(ParkingTracker, Protocol):
    """A tracker whose transactions have savepoints."""

    def unit_in_parts(
        self, group: str, cursor: Cursor, to: int, *, fingerprint: str = ""
    ) -> AbstractContextManager[SavingUnit]:
        """Open a unit of work that moves progress from ``cursor.stored`` to ``to``, or to where it is concluded.

        Raises:
            InboxError: On leaving, OCQ-601, if too many sequences, or too many events of one, would wait.
            FencedError, TransactionEndedError, ValueError: As for any unit.
        """
        ...


@dataclass(frozen=True, slots=True)
class ResetUnit:
    """The unit of work in which a group is reset.

    Attributes:
        unit: The transaction.
        replays: What each partition handles again; ``None`` for one that handles nothing again.
    """

    unit: UnitOfWork
    replays: Mapping[Partition, Replay | None]


@dataclass(frozen=True, slots=True)
class ReplayEnd:
    """The unit of work in which the replay of a partition ends.

    Attributes:
        unit: The transaction.
        finished: The reset that the group's replay has followed, if no other partition is replaying; else ``None``.
    """

    unit: UnitOfWork
    finished: Reset | None


NeverHandled: TypeAlias = Callable[[Cursor], Collection[int]]
"""Returns the positions of a partition's events that nobody has handled, up to where some are handled ahead of it."""


def nothing_ahead(_cursor: Cursor) -> Collection[int]:
    """Return nothing, for groups whose partitions never change."""
    return ()


@runtime_checkable
class ResettableTracker(ProgressTracker, Protocol):
    """A tracker by which a group can be reset."""

    def resetting(
        self,
        reset: Reset,
        layout: Sequence[Partition],
        *,
        fingerprint: str = "",
        never_handled: NeverHandled = nothing_ahead,
    ) -> AbstractContextManager[ResetUnit]:
        """Open the unit of work that moves the progress of a whole group if the block succeeds.

        Other owners of its partitions are fenced off; their transactions are waited for. Progress that was lost in part
        is there again afterwards. What waits in the inbox after
        the position of the reset is removed, since it is read again, and so are the records of events skipped there. A
        group whose record says that it began after the position begins there from now on.

        Args:
            reset: Which group, and to where.
            layout: All partitions of the group.
            fingerprint: What identifies the log up to the position of the reset.
            never_handled: Asked of partitions of which something is handled ahead.

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

        Partitions of a group take turns, so that exactly one is the last.

        Args:
            group: Processing group.
            cursor: Where the partition stands.
            after_inbox: Whether the replay does not end, and ``None`` is given, while events that are handled again
                wait in the inbox for anything but a person.

        Raises:
            FencedError: On entering, if the progress or the epoch is not the cursor's any more.
            TransactionEndedError: On leaving, if the block ended the transaction.
        """
        ...


Carry: TypeAlias = Callable[[Mapping[Partition, Cursor]], Mapping[Partition, Cursor]]
"""Returns from where the partitions of a group stand where the new ones of another layout continue."""


@runtime_checkable
class RepartitioningTracker(GroupRecords, ProgressTracker, Protocol):
    """A tracker by which a group can get other partitions."""

    def repartition(
        self, group: str, partitions: Sequence[Partition], carry: Carry, *, setting: int | None = None
    ) -> Mapping[Partition, Cursor]:
        """Put the partitions of a new layout into the place of those that are not in it; all of it or nothing.

        Owners of those are fenced off; their transactions are waited for. The others are left alone.

        Args:
            group: Processing group.
            partitions: The new layout.
            carry: Returns where the new ones continue; called in the transaction.
            setting: The new ``life-cycle.partitions``, if that is the reason.

        Returns:
            What ``carry`` has returned.

        Raises:
            EventStoreError: OCQ-305, if the open transaction of an owner cannot be ended.
            LayoutError: OCQ-615, if the group has no progress, or another process has changed its partitions meanwhile.
        """
        ...

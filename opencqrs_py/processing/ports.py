"""What the core needs from outside: protocols that adapters fulfil."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TypeAlias, runtime_checkable

from typing_extensions import override

from opencqrs_py.errors import TransactionEndedError
from opencqrs_py.model.appending import Appended, Precondition
from opencqrs_py.model.event import Event
from opencqrs_py.model.group_record import FoundGroup, GroupRecord
from opencqrs_py.model.inbox import EVERYTHING, Fetching, InboxChange, InboxEntry, InboxSelection, ParkedSequences
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor, PartitionStatus, Skip
from opencqrs_py.model.replay import Replay, Reset
from opencqrs_py.model.selection import Selection, Share, Slice
from opencqrs_py.processing.pipelining import Pipeline


class Clock(Protocol):
    """Time. Real in production, moved by hand in tests."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        ...

    def now(self) -> datetime:
        """Return the time of day in UTC."""
        ...


class SystemClock(Clock):
    """The machine's time."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    def now(self) -> datetime:
        """Return the time of day in UTC."""
        return datetime.now(UTC)


class SequenceResolver(Protocol):
    """Derives from an event what must be handled in order."""

    def __call__(self, event: Event, /) -> str:
        """Return the sequence id of an undecoded event."""
        ...


class BackOff(Protocol):
    """How long to wait before each further attempt."""

    def waits(self) -> Iterator[float]:
        """Yield the waits in seconds of one event's attempts 2, 3, …; the end means: give the event up."""
        ...


class Watch(Protocol):
    """Looks out for new events, by the quickest means that the store has. One thread at a time waits."""

    def wait(self, after: int, seconds: float) -> int:
        """Return the head as soon as it is beyond ``after``, or, unchanged, when ``seconds`` are over."""
        ...

    def wake(self) -> None:
        """Have the wait in another thread, or the next one if there is none, return early. Safe for several threads."""
        ...


class EventSource(Protocol):
    """An event log in one global order."""

    def head(self) -> int:
        """Return the position of the newest event, 0 in an empty log."""
        ...

    def read(self, after: int, limit: int, selection: Selection, upto: int | None = None) -> Slice:
        """Return the selected events that follow ``after``, at most ``limit``, with the part of the log they cover.

        Args:
            after: Position before the first one.
            limit: Most events, at least 1.
            selection: Which events.
            upto: The last position of interest, one that ``head()`` or a slice has shown to be final. Nothing after it
                is read, and the slice ends there at the latest; in a log that ends before it, with the log.
        """
        ...

    def position_before(self, moment: datetime) -> int:
        """Return the position after which the first event with ``time >= moment`` comes; the head if none does."""
        ...

    def watched(self) -> AbstractContextManager[Watch]:
        """Open a watch, with what it needs of its own (a connection, a thread); released at the end of the block."""
        ...

    def fingerprint(self, position: int, event: Event | None = None) -> str:
        """Return a text that identifies the log up to ``position``: what its newest event at or below it is.

        Progress is stored with it. An empty log has a fingerprint, too; 1 to 1,000 characters.

        Args:
            position: The last position that counts.
            event: The whole event at ``position``, if the caller has it at hand, so that the store need not read it.
        """
        ...

    def verify(self, position: int, fingerprint: str) -> None:
        """Check that the log still holds at or below ``position`` what ``fingerprint`` says.

        Called at each claim of a partition, and again after an outage. An empty fingerprint, which progress of an older
        version has, asks only whether the log reaches ``position``.

        Raises:
            EventStoreError: OCQ-316, if this is another log, a shorter one, or one that was restored.
        """
        ...

    def is_outage(self, error: BaseException) -> bool:
        """Return whether ``error`` means the store is temporarily unavailable."""
        ...


@runtime_checkable
class SharingSource(Protocol):
    """An event source that can leave out the events of other partitions."""

    def selects(self, share: Share) -> bool:
        """Return whether ``read`` leaves out what does not belong to such a share."""
        ...


@runtime_checkable
class LimitedSource(Protocol):
    """An event source that is not to be read to its end for now."""

    def limit(self) -> int | None:
        """Return the last position to be read, which is final; ``None`` while there is no limit."""
        ...


@runtime_checkable
class PickingSource(Protocol):
    """An event source that can read events at many positions at once."""

    def pick(self, positions: Sequence[int]) -> Sequence[Event]:
        """Return the events at positions that ascend, whole, without those that are not there any more."""
        ...


class EventStore(EventSource, Protocol):
    """An event log that can be added to.

    A store that gives events ids and times of its own, so that it knows none of them again, says so by an attribute
    ``gives_ids`` that is true, and returns the ids of each append.
    """

    def append(
        self,
        events: Iterable[Event],
        preconditions: Sequence[Precondition] = (),
        progress: Callable[[int], None] | None = None,
    ) -> Appended:
        """Add events in their order, all or none; those whose source and id are known already are left out.

        Raises:
            PreconditionFailedError: OCQ-320, naming the first precondition that does not hold.
        """
        ...


class UnitOfWork(Protocol):
    """One transaction in which handlers write."""

    @property
    def connection(self) -> Any:
        """The database connection of the transaction."""
        ...

    @property
    def session(self) -> Any:
        """An object-relational session bound to ``connection``."""
        ...

    def flush(self) -> None:
        """Send what the session holds, if it was asked for, so that nothing of an event waits for the next one."""
        ...

    def end_session(self) -> bool:
        """End the transaction and its session with the database, from another thread than the one that is stuck in it.

        Returns:
            Whether that is done; not every database can.
        """
        return False

    def pipelined(self) -> Pipeline | None:
        """Send the driver's statements of the transaction without waiting for each answer, until that is settled.

        Returns:
            What settles it; ``None`` where each statement waits for its answer.
        """
        return None

    def ended_early(self, error: BaseException) -> TransactionEndedError | None:
        """Return the error to report if the transaction was ended before its time, ``None`` if it is open.

        Asked after a handler raised ``error``; what the transaction holds is lost with the answer.
        """
        ...


class Transactions(Protocol):
    """Opens transactions on the read models' database."""

    def begin(self, *, guarded: bool = True) -> AbstractContextManager[UnitOfWork]:
        """Open a transaction: committed at the end of the block, rolled back when the block raises.

        ``guarded``: it is an error if the block ends the transaction by itself. Definitions of tables end it on some
        databases, so they run in one that is not.

        Raises:
            TransactionEndedError: On leaving, if the block ended a guarded transaction.
        """
        ...

    def is_outage(self, error: BaseException) -> bool:
        """Return whether ``error`` means the database is temporarily unavailable."""
        ...


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
class Inbox(Protocol):
    """Where events wait for their next attempt, beside the progress of their groups."""

    def parked(self, group: str, partitions: Sequence[Partition]) -> dict[Partition, ParkedSequences]:
        """Return which sequences of partitions have events in the inbox, by the CRC-32 of their ids."""
        ...

    def next_due(
        self, group: str, partitions: Sequence[Partition], *, expiring: bool = True
    ) -> dict[Partition, str | None]:
        """Return the ISO 8601 time from which on there is something to do: an event may be tried, or has expired.

        ``None`` if there is no event, or if all wait for a person.

        Args:
            group: Processing group.
            partitions: Partitions of the group.
            expiring: Whether events expire; if not, nobody asks when.
        """
        ...

    def arrange(
        self, group: str, partitions: Sequence[Partition], now: datetime, *, each: bool, expiring: bool = True
    ) -> None:
        """Have the events of partitions be due as the group is set up now; it may have been set up otherwise before.

        Args:
            group: Processing group.
            partitions: Those that this process has claimed.
            now: From when on an event is due that waits for no person and has no time, though it should have one.
            each: Whether each event has a time of its own; else only the first one of each sequence has.
            expiring: Whether events expire; if not, those that were to, or have, do so no more, and are tried.
        """
        ...

    def due(
        self, group: str, partition: Partition, until: datetime, most: int, fetching: Fetching = Fetching.FIRST
    ) -> list[tuple[InboxEntry, ...]]:
        """Return the events of the sequences that have been due for longest, each sequence in the order of positions.

        No sequence is cut but the first one, if it has more events than are asked for. Events that wait for a person
        are among those of their sequence.

        Args:
            group: Processing group.
            partition: Partition of the group.
            until: What is due later does not count.
            most: Most events, at least 1.
            fetching: Which events of a sequence; ``WHOLE`` may return more than ``most`` of one sequence.
        """
        ...

    def is_stuck(self, group: str, sequence_id: str) -> bool:
        """Return whether an event of a sequence waits for a person."""
        ...

    def expired(self, group: str, partition: Partition, now: datetime, most: int) -> tuple[InboxEntry, ...]:
        """Return the first events of a partition that have expired by a time, by position, at most so many."""
        ...

    def entries(
        self,
        group: str,
        *,
        position: int | None = None,
        most: int | None = None,
        selection: InboxSelection = EVERYTHING,
    ) -> list[InboxEntry]:
        """Return the events of a group in the inbox, by sequence and position.

        Args:
            group: Processing group.
            position: Of the event at this position only.
            most: Most events; ``None`` for all.
            selection: Which of them. More may be returned: ids that a database takes for equal.
        """
        ...

    def change(self, group: str, change: InboxChange, skips: Sequence[Skip] = ()) -> bool:
        """Change what waits, for a person; return ``False`` if it is not as it was any more, and nothing is changed.

        Waits for the transactions of the partitions that are under way.

        Args:
            group: Processing group.
            change: What is changed, removed or done. What is done leaves without being handled here, too.
            skips: What is recorded of it.
        """
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


class SavingUnit(UnitOfWork, Protocol):
    """A unit of work of which the last part can be undone by itself, and which may end earlier than it was to."""

    def saved(self) -> Callable[[], bool] | None:
        """Set a savepoint, and return what undoes all that follows it.

        That returns whether it has: not if the transaction has ended, or something is left that it does not undo, such
        as what a session holds. ``None`` if this is clear from the start.
        """
        ...

    def conclude(self, to: int, fingerprint: str, change: InboxChange | None) -> None:
        """Have the progress move to a position, and the inbox change, at the end: instead of what was said before."""
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


class Lock(Protocol):
    """A claim that at most one process holds, for as long as it renews it.

    A node calls all methods of all its locks from one thread. What they raise is logged, and tried again later.
    """

    def acquire(self, timeout: float) -> bool:
        """Take the lock, waiting for at most ``timeout`` seconds; return whether it is held now.

        It is held until it is released, or for at least ``life-cycle.lease.duration`` from now. Not called while it is
        held. A node does not wait: ``timeout`` is 0 then.
        """
        ...

    def renew(self) -> bool:
        """Hold the lock for as long as after ``acquire`` again; return whether it is still held.

        ``False`` if it was lost meanwhile, even if it is free.
        """
        ...

    def release(self) -> None:
        """Give the lock up; nothing happens if it is not held. It may be acquired again."""
        ...


@runtime_checkable
class LockRegistry(Protocol):
    """Knows the locks that processes share."""

    def obtain(self, name: str) -> Lock:
        """Return the lock of that name, not yet acquired; the same name means the same lock in every process.

        A partition's is ``[group=<group>, partition=<residue>]``, as OpenCQRS names it.
        """
        ...


class Injector(Protocol):
    """Gives handlers what else they ask for."""

    def provides(self, wanted: object) -> bool:
        """Return whether something of the annotated type can be had."""
        ...

    def provide(self, wanted: object) -> Any:
        """Return it; asked for at each call of a handler."""
        ...

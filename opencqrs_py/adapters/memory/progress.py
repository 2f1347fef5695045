"""Progress in memory, and units of work without a database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from threading import Condition, Lock
from typing import Any

from typing_extensions import override

from opencqrs_py.adapters.memory.inbox import MemoryInbox
from opencqrs_py.adapters.memory.watching import ConditionWatch
from opencqrs_py.errors import (
    EventStoreError,
    FencedError,
    InboxChangedError,
    LayoutChangedError,
    LayoutError,
)
from opencqrs_py.model.ahead import Ahead
from opencqrs_py.model.group_record import FoundGroup, GroupRecord, begun_by
from opencqrs_py.model.inbox import EVERYTHING, Fetching, InboxChange, InboxEntry, InboxSelection, ParkedSequences
from opencqrs_py.model.naming import counted
from opencqrs_py.model.partition import Partition, are_all
from opencqrs_py.model.progress import Cursor, FailureRecord, PartitionStatus, ProcessorState, Skip
from opencqrs_py.model.replay import Replay, Reset, replay_after
from opencqrs_py.processing.ports import (
    Carry,
    NeverHandled,
    NoUnit,
    ParkingTracker,
    RepartitioningTracker,
    ReplayEnd,
    ResettableTracker,
    ResetUnit,
    SucceedingTracker,
    Transactions,
    UnitOfWork,
    Watch,
    nothing_ahead,
)
from opencqrs_py.processing.reaching import WatchableTracker

_Key = tuple[str, Partition]

_NO_UNIT = NoUnit("there is no database, so no connection and no session")


@dataclass
class _Row:
    """The stored state of a partition."""

    position: int
    fingerprint: str = ""
    epoch: int = 0
    owner: str = ""
    failure: FailureRecord | None = None
    replay: Replay | None = None
    ahead: Ahead | None = None
    skips: list[Skip] = field(default_factory=list)


class InMemoryProgressTracker(
    SucceedingTracker, ParkingTracker, ResettableTracker, RepartitioningTracker, WatchableTracker
):
    """Keeps progress until the process ends; the next start handles everything again.

    On a Spark worker, where no partition was claimed, it only opens transactions: the driver keeps the progress.

    Args:
        transactions: Opens the transactions that handlers write in; ``None``: there is no database.

    Source:
        OpenCQRS in-memory progress tracker.
    """

    def __init__(self, transactions: Transactions | None = None) -> None:
        self._transactions = transactions or NoTransactions()
        self._progress: dict[_Key, _Row] = {}
        self._statuses: dict[_Key, PartitionStatus] = {}
        self._lock = Lock()  # held briefly, around the state above
        self._inbox = MemoryInbox()
        self._stored = Condition()  # notified of stored progress, if a thread waits
        self._watches = 0
        self._records: dict[str, GroupRecord] = {}
        self._gates: dict[_Key, Lock] = {}  # of one partition; held while it commits or is claimed

    @override
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
        with ExitStack() as commits_awaited:
            for partition in sorted(set(partitions)):
                commits_awaited.enter_context(self._gate((group, partition)))
            commits_awaited.enter_context(self._lock)
            whole = set(self._recorded_layout(group) or layout or partitions)
            if gone := next((one for one in partitions if one not in whole), None):
                raise LayoutChangedError.of(group, [(one.modulus, one.residue) for one in sorted(whole)], str(gone))
            held = self._partitions(group)
            _check_layout(group, held, whole)
            if keep is not None:
                self._records[group] = keep(self._found(group, tuple(sorted(whole)), partitions))
            for partition in whole - held:
                self._progress[group, partition] = _Row(initial, fingerprint)
            return tuple(self._claimed((group, partition), owner) for partition in partitions)

    @override
    def records(self) -> list[GroupRecord]:
        with self._lock:
            return [self._records[group] for group in sorted(self._records)]

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
        return self._unit((group, cursor.partition), cursor, to, fingerprint, skip, change)

    @override
    @contextmanager
    def resetting(
        self,
        reset: Reset,
        layout: Sequence[Partition],
        *,
        fingerprint: str = "",
        never_handled: NeverHandled = nothing_ahead,
    ) -> Iterator[ResetUnit]:
        group = reset.group
        known = self._known(group)
        if known - set(layout):
            _check_layout(group, known, set(layout))
        with ExitStack() as in_hand:
            for partition in sorted(layout):
                in_hand.enter_context(self._gate((group, partition)))
            with self._lock:
                rows = {one: self._progress.get((group, one)) for one in layout}
                waiting = [
                    entry
                    for entry in self._inbox.entries(group)
                    if entry.position > reset.position and not entry.replaying
                ]
            farthest = max((row.position for row in rows.values() if row is not None), default=0)
            replays = {one: replay_after(reset, farthest, None) for one in layout}
            for partition, row in rows.items():
                if row is not None:
                    own = [entry.position for entry in waiting if partition.owns(entry.sequence_id)]
                    cursor = _cursor(row, partition)
                    handled_to = cursor.stored if cursor.ahead is None else cursor.ahead.until
                    replays[partition] = replay_after(reset, handled_to, row.replay, (*own, *never_handled(cursor)))
            with self._transactions.begin() as unit:
                yield ResetUnit(unit, replays)
            with self._lock:
                self._inbox = self._inbox.without(group, reset.position)
                begun = begun_by(reset, self._records.get(group), is_new=not known)
                if begun is not None:
                    sequencing = begun.sequencing if self._inbox.entries(group) else ""
                    self._records[group] = replace(begun, sequencing=sequencing)
                for partition, replay in replays.items():
                    self._reset((group, partition), reset.position, fingerprint, replay)

    def _reset(self, key: _Key, position: int, fingerprint: str, replay: Replay | None) -> None:
        row = self._progress.setdefault(key, _Row(position))
        row.position, row.fingerprint, row.replay, row.failure, row.ahead = position, fingerprint, replay, None, None
        row.epoch, row.owner = row.epoch + 1, ""
        row.skips = [skip for skip in row.skips if skip.position <= position]
        self._statuses[key] = PartitionStatus(*key, position, ProcessorState.STOPPED)

    @override
    def repartition(
        self, group: str, partitions: Sequence[Partition], carry: Carry, *, setting: int | None = None
    ) -> Mapping[Partition, Cursor]:
        known = self._known(group)
        leaving = sorted(known - set(partitions))
        if not leaving and (not known or setting is None):
            what = f"group '{group}' has no progress yet" if not known else f"group '{group}' has these partitions"
            raise LayoutError("OCQ-615", what, f"group {group}", "start it first")
        with ExitStack() as in_hand:
            for partition in leaving:
                in_hand.enter_context(self._gate((group, partition)))
            in_hand.enter_context(self._lock)
            carried = dict(carry({one: self._standing((group, one)) for one in sorted(known)}))
            skips = {one: self._progress.pop((group, one)).skips for one in leaving}
            for partition, cursor in carried.items():
                self._progress[group, partition] = _Row(
                    cursor.stored, cursor.fingerprint, cursor.epoch, "", cursor.failure, cursor.replay, cursor.ahead
                )
                state = ProcessorState.STARTING if cursor.unreleased else ProcessorState.STOPPED
                self._statuses[group, partition] = PartitionStatus(group, partition, cursor.stored, state)
            for before, own in skips.items():
                target = next(one for one in sorted(carried) if one.overlaps(before))
                self._progress[group, target].skips += [replace(skip, partition=target) for skip in own]
            if (record := self._records.get(group)) is not None and record.layout is not None:
                self._records[group] = replace(record, layout=record.layout.changed(partitions, setting))
            return carried

    def _standing(self, key: _Key) -> Cursor:
        row = self._progress[key]
        cursor = replace(_cursor(row, key[1]), unreleased=not self._is_released(key))
        return cursor if row.failure is None else cursor.resuming(row.failure)

    @override
    @contextmanager
    def ending_replay(self, group: str, cursor: Cursor, *, after_inbox: bool = False) -> Iterator[ReplayEnd | None]:
        key = (group, cursor.partition)
        with ExitStack() as in_turn:
            for each in sorted(self._known(group)):
                in_turn.enter_context(self._gate((group, each)))
            self._check(key, cursor)
            with self._lock:
                row = self._progress.get(key)
                replays = [one.replay for name, one in self._progress.items() if name[0] == group and name != key]
                own = row.replay if row is not None else None
                waits = any(
                    entry.replaying and entry.status.moves and cursor.partition.owns(entry.sequence_id)
                    for entry in self._inbox.entries(group)
                )
            if after_inbox and waits:
                yield None
                return
            with self._transactions.begin() as unit:
                yield ReplayEnd(unit, own.reset if own is not None and not any(replays) else None)
            if row is not None:
                row.replay = None

    @override
    def parked(self, group: str, partitions: Sequence[Partition]) -> dict[Partition, ParkedSequences]:
        with self._lock:
            return {partition: self._inbox.parked(group, partition) for partition in partitions}

    @override
    def next_due(
        self, group: str, partitions: Sequence[Partition], *, expiring: bool = True
    ) -> dict[Partition, str | None]:
        with self._lock:
            return {partition: self._inbox.next_due(group, partition, expiring=expiring) for partition in partitions}

    @override
    def arrange(
        self, group: str, partitions: Sequence[Partition], now: datetime, *, each: bool, expiring: bool = True
    ) -> None:
        with self._lock:
            for partition in partitions:
                self._inbox = self._inbox.arranged(group, partition, now, each=each, expiring=expiring)

    @override
    def due(
        self, group: str, partition: Partition, until: datetime, most: int, fetching: Fetching = Fetching.FIRST
    ) -> list[tuple[InboxEntry, ...]]:
        with self._lock:
            return self._inbox.due(group, partition, until, most, fetching)

    @override
    def is_stuck(self, group: str, sequence_id: str) -> bool:
        with self._lock:
            return self._inbox.is_stuck(group, sequence_id)

    @override
    def expired(self, group: str, partition: Partition, now: datetime, most: int) -> tuple[InboxEntry, ...]:
        with self._lock:
            return self._inbox.expired(group, partition, now, most)

    @override
    def entries(
        self,
        group: str,
        *,
        position: int | None = None,
        most: int | None = None,
        selection: InboxSelection = EVERYTHING,
    ) -> list[InboxEntry]:
        with self._lock:
            return self._inbox.entries(group, position, most, selection)

    @override
    def change(self, group: str, change: InboxChange, skips: Sequence[Skip] = ()) -> bool:
        with ExitStack() as in_hand:
            for partition in sorted(self._known(group)):
                in_hand.enter_context(self._gate((group, partition)))
            in_hand.enter_context(self._lock)
            try:
                self._inbox = self._inbox.changed(group, change)
            except InboxChangedError:
                return False
            for skip in skips:
                row = self._progress[group, skip.partition]
                row.skips = [*(one for one in row.skips if one.position != skip.position), skip]
        return True

    @override
    def renewed(self, group: str, cursor: Cursor) -> Cursor | None:
        with self._lock:
            row = self._progress.get((group, cursor.partition))
        if row is None or row.epoch != cursor.epoch:
            return None
        return _cursor(row, cursor.partition)

    @override
    def succeed(self, group: str, cursor: Cursor, owner: str | None = None) -> Cursor | None:
        """Take a partition over under the next epoch, if the cursor's is still the current one.

        On a Spark worker, which knows no epochs, the cursor stays unchanged.
        """
        key = (group, cursor.partition)
        with self._gate(key), self._lock:
            row = self._progress.get(key)
            if row is None:
                return cursor
            if row.epoch != cursor.epoch or owner not in (None, row.owner):
                return None
            row.epoch += 1
            return _cursor(row, cursor.partition)

    @override
    def report(self, status: PartitionStatus, epoch: int) -> None:
        key = (status.group, status.partition)
        with self._lock:
            row = self._progress.get(key)
            if row is None or row.epoch == epoch:
                before = self._statuses.get(key)
                if status.checkpoint is None and before is not None:
                    status = replace(status, checkpoint=before.checkpoint)
                self._statuses[key] = status
            if row is not None and row.epoch == epoch:
                row.failure = status.failure

    @override
    def reached(self, group: str) -> int:
        with self._lock:
            found = {one: row.position + 1 for (name, one), row in self._progress.items() if name == group}
            return min(found.values()) if are_all(found) else 0

    @override
    @contextmanager
    def watched(self, group: str) -> Iterator[Watch]:
        with self._stored:
            self._watches += 1
        try:
            yield ConditionWatch(partial(self.reached, group), self._stored)
        finally:
            with self._stored:
                self._watches -= 1

    @override
    def statuses(self) -> list[PartitionStatus]:
        with self._lock:
            keys = sorted(self._progress)
            return [self._seen(key, self._progress[key]) for key in keys]

    @override
    def skipped(self) -> list[Skip]:
        with self._lock:
            skips = [skip for row in self._progress.values() for skip in row.skips]
        return sorted(skips, key=lambda skip: (skip.group, skip.position, skip.partition))

    @override
    def is_outage(self, error: BaseException) -> bool:
        return self._transactions.is_outage(error)

    def _found(self, group: str, partitions: Sequence[Partition], claimed: Sequence[Partition]) -> FoundGroup:
        positions = {partition: row.position for (name, partition), row in self._progress.items() if name == group}
        has_waiting = any(self._inbox.entries(group, None, 1))
        rows = (row for (name, _), row in self._progress.items() if name == group)
        is_ahead = any(row.ahead is not None and row.ahead.until > row.position for row in rows)
        return FoundGroup(self._records.get(group), positions, partitions, lambda: has_waiting, is_ahead, claimed)

    def _recorded_layout(self, group: str) -> tuple[Partition, ...]:
        """Return the partitions of a group that has begun, as they are recorded; none if they are not."""
        record = self._records.get(group)
        has_begun = any(name == group for name, _ in self._progress)
        return record.layout.partitions if has_begun and record is not None and record.layout is not None else ()

    def _known(self, group: str) -> set[Partition]:
        """Return the partitions of a group that have progress, for callers that do not hold the lock."""
        with self._lock:
            return self._partitions(group)

    def _partitions(self, group: str) -> set[Partition]:
        """Return the partitions of a group that have progress, for callers that hold the lock."""
        return {partition for name, partition in self._progress if name == group}

    def _seen(self, key: _Key, row: _Row) -> PartitionStatus:
        status = self._statuses.get(key) or PartitionStatus(*key, 0, ProcessorState.STARTING)
        return replace(
            status,
            position=row.position,
            failure=row.failure,
            skipped=len(row.skips),
            parked=self._inbox.counts(*key),
            replay=row.replay,
            ahead=None if row.ahead is None else row.ahead.after(row.position),
        )

    def _claimed(self, key: _Key, owner: str) -> Cursor:
        row, released = self._progress[key], self._is_released(key)
        self._statuses[key] = PartitionStatus(*key, row.position, ProcessorState.STARTING)
        row.epoch += 1
        row.owner = owner
        cursor = replace(_cursor(row, key[1]), unreleased=not released)
        return cursor if row.failure is None else cursor.resuming(row.failure)

    def _is_released(self, key: _Key) -> bool:
        status = self._statuses.get(key)
        return self._progress[key].epoch == 0 or (status is not None and status.state is ProcessorState.STOPPED)

    @contextmanager
    def _unit(
        self,
        key: _Key,
        cursor: Cursor,
        to: int,
        fingerprint: str,
        skip: Skip | None,
        change: InboxChange | None,
    ) -> Iterator[UnitOfWork]:
        cursor.check_forward(to)
        if change is not None:
            with self._lock:
                self._inbox.changed(key[0], change)
        self._check(key, cursor)
        with ExitStack() as until_stored:
            with self._transactions.begin() as unit:
                yield unit
                until_stored.enter_context(self._gate(key))  # no claim comes between this check and the commit
                self._check(key, cursor)
                if change is not None:
                    with self._lock:
                        self._inbox.changed(key[0], change)  # which is refused before the commit, and made after it
            with self._lock:
                if change is not None:
                    without_limits = replace(change, most_sequences=None, most_of_sequence=None)
                    self._inbox = self._inbox.changed(key[0], without_limits)
                if (row := self._progress.get(key)) is not None:
                    row.position, row.fingerprint = to, fingerprint
                    row.failure = row.failure if cursor.holds_back(to) else None
                    row.skips += [skip] if skip is not None else []
            if self._watches:
                with self._stored:
                    self._stored.notify_all()

    def _gate(self, key: _Key) -> Lock:
        return self._gates.setdefault(key, Lock())

    def _check(self, key: _Key, cursor: Cursor) -> None:
        with self._lock:
            row = self._progress.get(key)
            is_gone = row is None and any(group == key[0] for group, _ in self._progress)
            if is_gone or (row is not None and (row.position, row.epoch) != (cursor.stored, cursor.epoch)):
                msg = f"progress of group '{key[0]}' partition {key[1]} was taken over by another processor"
                raise FencedError(msg)


def _check_layout(group: str, held: set[Partition], whole: set[Partition]) -> None:
    if held and held != whole:
        has = counted(len(held), "partition")
        what = f"group '{group}' has progress for {has}, but is started with {len(whole)}"
        raise EventStoreError("OCQ-310", what, "this process", "start it again to change the partitions")


def _cursor(row: _Row, partition: Partition) -> Cursor:
    ahead = None if row.ahead is None else row.ahead.after(row.position)
    known: dict[str, Any] = {"fingerprint": row.fingerprint, "replay": row.replay, "ahead": ahead}
    return Cursor(partition, row.epoch, row.position, row.position, **known)


class NoTransactions(Transactions):
    """Opens units of work without a transaction: there is no database."""

    @override
    @contextmanager
    def begin(self, *, guarded: bool = True) -> Iterator[UnitOfWork]:
        del guarded
        yield _NO_UNIT

    @override
    def is_outage(self, error: BaseException) -> bool:
        del error
        return False

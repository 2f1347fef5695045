"""Progress on a SQL database, in the transaction in which handlers write."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, func, literal, select, update
from sqlalchemy.exc import DBAPIError
from typing_extensions import override

from opencqrs_py.adapters.sql.bulk.staging import drop_stages, stage_rows
from opencqrs_py.adapters.sql.connections import Statement, reason_of
from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.dialects.faults import UNKNOWN_NAMES, DatabaseAwayError, DatabaseBusyError, Fault
from opencqrs_py.adapters.sql.group_records import SqlGroupRecords
from opencqrs_py.adapters.sql.inbox import SqlInbox
from opencqrs_py.adapters.sql.layouts import REPARTITIONING, SqlLayouts, changed_meanwhile
from opencqrs_py.adapters.sql.progress_rows import (
    EventCounts,
    OtherLayoutError,
    ahead_in,
    check_layout,
    failure_text,
    fenced,
    held,
    replay_of,
    row_of,
    skip_of,
    skip_row,
    status_of,
)
from opencqrs_py.adapters.sql.progress_watching import lock_of_partition, reached_in
from opencqrs_py.adapters.sql.resets import SqlResets
from opencqrs_py.adapters.sql.shadows.guards import OURS
from opencqrs_py.adapters.sql.tables import PROGRESS, SKIPPED, prepare
from opencqrs_py.adapters.sql.transactions import Unit, watch_ends
from opencqrs_py.errors import (
    InboxChangedError,
    LayoutChangedError,
    LayoutError,
    TransactionEndedError,
)
from opencqrs_py.model.group_record import FoundGroup, GroupRecord
from opencqrs_py.model.inbox import EVERYTHING, Fetching, InboxChange, InboxEntry, InboxSelection, ParkedSequences
from opencqrs_py.model.naming import counted, storable
from opencqrs_py.model.partition import Partition, hash_of
from opencqrs_py.model.progress import ERROR_LENGTH, Cursor, PartitionStatus, ProcessorState, Skip
from opencqrs_py.model.replay import Reset
from opencqrs_py.processing.exceptions import one_line
from opencqrs_py.processing.ports import (
    Carry,
    NeverHandled,
    RepartitioningTracker,
    ReplayEnd,
    ResettableTracker,
    ResetUnit,
    SavingTracker,
    SavingUnit,
    SucceedingTracker,
    Watch,
    nothing_ahead,
    statuses_of,
)
from opencqrs_py.processing.reaching import WatchableTracker
from opencqrs_py.processing.staging import RecordBatches, RowStaging, Stage

logger = logging.getLogger("opencqrs.processing")

_RESETTING = "opencqrs groups reset"  # the temporary owner of partitions

# As text, since they are part of each chunk: SQLAlchemy needs half the time to send it.
_HERE = "WHERE group_name = {} AND modulus = {} AND residue = {} AND epoch = {} AND position = {}"
_NOT_MOVED = (
    f"a handler changed the row of its own partition in {PROGRESS.name}, or switched its connection to another "
    "table of that name (search_path, USE): leave that table alone, or set database.schema"
)
_NOT_FOUND = (
    "a handler switched its connection away from the opencqrs_ tables (search_path, USE), or to a role that "
    "may not use them ({}): set database.schema, and send RESET ROLE at the end of the handler"
)
_MOVED = "position = {}, updated_at = {}, log_fingerprint = {}, connection_id = NULL"


class _Statements:
    """The statements for each chunk: to find and lock the row of a partition, and to move its progress.

    ``advance_towards`` moves it to a place before the event that failed. Both find the row in our own table only, since
    a handler may have switched the connection to another one.
    """

    def __init__(self, database: Database) -> None:
        table = database.prefix + PROGRESS.name
        own = "" if database.prefix else database.dialect.own_progress(database)
        # The pool of a user's engine may serve two schemas, and a statement is prepared once a connection.
        name = f"{PROGRESS.name}_{hash_of(f'{database.schema} {own}'):08x}"
        move = f"UPDATE {table} SET {_MOVED}"  # noqa: S608 our own names
        lock = database.dialect.row_lock.format(table, _HERE)
        awaited = lock_of_partition(database.schema)
        self.lock = Statement(f"{name}_lock", lock)
        self.advance = Statement(f"{name}_advance", f"{move}, failure = NULL {_HERE} {own}", awaited)
        self.advance_towards = Statement(f"{name}_advance_towards", f"{move} {_HERE} {own}", awaited)


class SqlProgressTracker(
    SucceedingTracker, SavingTracker, ResettableTracker, RepartitioningTracker, WatchableTracker, RowStaging
):
    """Progress in the table ``opencqrs_progress``, moved by compare-and-set under a fencing epoch, and its inbox.

    Args:
        database: The read models' database: handlers that write through the unit's connection or session share one
            transaction with the progress.

    Source:
        Decision K9; OpenCQRS JDBC progress tracker.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._statements: _Statements | None = None  # until the tables are there
        self._progress, self._skipped = database.table(PROGRESS), database.table(SKIPPED)
        self._inbox = SqlInbox(database)
        self._records = SqlGroupRecords(database)
        self._resets = SqlResets(database, self._inbox, self._records)
        self._layouts = SqlLayouts(database, self._records)

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
        """Take the partitions over; those without progress start at ``initial``.

        Progress of the whole layout is written at the first claim, so that another layout is noticed at once.

        A process that is stopped (SIGSTOP, a paused container, a laptop asleep) keeps its row locked for as long as the
        server considers it alive. Its transaction is waited for, but not for long; then its session is ended. That
        loses nothing: its chunk is rolled back, and handled again by the new owner.

        Raises:
            EventStoreError: OCQ-310, if the group's progress belongs to another layout of partitions.
            LayoutChangedError: OCQ-616, if the group has other partitions by its record.
            DatabaseAwayError: OCQ-305, if the owner's transaction cannot be ended, as on SQLite.
        """
        self._prepare()
        if keep is not None:
            self._records.prepare()
        claim = (group, partitions, layout or partitions, initial, owner, fingerprint, keep)
        try:
            try:
                return self._claimed(*claim)
            except Exception as error:
                if not self._timed_out(error) or not self._end_holders(group, partitions):
                    raise
            return self._claimed(*claim)
        except Exception as error:
            if not self._timed_out(error):
                raise
            raise self._held_too_long(group, partitions) from error

    @property
    def database(self) -> Database:
        """The database."""
        return self._database

    def records(self) -> list[GroupRecord]:
        """Return the records of all groups, by name."""
        return self._records.all()

    def rebuilt(self, groups: Collection[str]) -> list[GroupRecord]:
        """Return the records of those of some groups that were rebuilt, or are being rebuilt."""
        return self._records.rebuilt(groups)

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
        """Open the unit of work that resets a group, see ``ResettableTracker``.

        A claim comes first, in a separate transaction: it waits for the owners' transactions, and fences them off.
        """
        known = [status.partition for status in statuses_of(self, reset.group)]
        if known:
            self.claim(reset.group, known, reset.position, _RESETTING)
        self._records.prepare()
        with self._resets.unit(reset, layout, fingerprint, never_handled) as opened:
            yield opened

    @override
    def repartition(
        self, group: str, partitions: Sequence[Partition], carry: Carry, *, setting: int | None = None
    ) -> Mapping[Partition, Cursor]:
        """Replace partitions by others, see ``RepartitioningTracker``.

        A claim comes first, in a separate transaction: it waits for the owners' transactions, and fences them off.
        """
        known = [status.partition for status in statuses_of(self, group)]
        leaving = sorted(set(known) - set(partitions))
        if not leaving and (not known or setting is None):
            what = f"group '{group}' has no progress yet" if not known else f"group '{group}' has these partitions"
            raise LayoutError("OCQ-615", what, f"group {group}", "start it first")
        self._records.prepare()
        try:
            cursors = self.claim(group, leaving, 0, REPARTITIONING, known) if leaving else []
        except OtherLayoutError:
            raise changed_meanwhile(group) from None
        claimed = {cursor.partition: cursor for cursor in cursors}
        return self._layouts.replace(group, claimed, known, partitions, carry, setting)

    @override
    def ending_replay(
        self, group: str, cursor: Cursor, *, after_inbox: bool = False
    ) -> AbstractContextManager[ReplayEnd | None]:
        self._prepare()
        self._database.guard.require(cursor.file)
        return self._resets.end(group, cursor, after_inbox=after_inbox)

    @override
    @contextmanager
    def unit(
        self,
        group: str,
        cursor: Cursor,
        to: int,
        *,
        fingerprint: str = "",
        skip: Skip | None = None,
        change: InboxChange | None = None,
    ) -> Iterator[Unit]:
        cursor.check_forward(to)
        if cursor.file != (guard := self._database.guard).identity:
            guard.require(cursor.file)
        known = self._statements or self._prepare()
        here = (group, cursor.partition.modulus, cursor.partition.residue, cursor.epoch, cursor.stored)
        with self._database.writing(of_handlers=True) as connection:
            unit = Unit(connection, self._database, self._database.dialect, guarded=True)
            if not unit.begin(known.lock, (known.advance, known.advance_towards), here):
                raise fenced(group, cursor.partition)
            if change is not None:
                self._inbox.check(connection, group, change)
            with unit.kept_open():
                yield unit
            to, fingerprint, late = unit.end or (to, fingerprint, None)
            try:
                if change is not None or late is not None:
                    self._change_inbox(unit, group, change, late)
                if skip is not None:
                    self._record(connection, skip)
                move = known.advance_towards if cursor.holds_back(to) else known.advance
                now = datetime.now(UTC).isoformat(timespec="milliseconds")
                moved = unit.complete(move, (to, now, fingerprint, *here))
            except Exception as error:
                if (reason := self._led_away(error)) is None:
                    raise
                raise TransactionEndedError(_NOT_FOUND.format(reason)) from error
            if not moved:
                self._statements = None  # the table may also have been recreated
                raise TransactionEndedError(_NOT_MOVED)  # the row was locked, so it was not another process
        if unit.stages:
            drop_stages(self._database, unit.stages)

    def _led_away(self, error: Exception) -> str | None:
        """Return why a statement after the handlers did not find one of our tables, all of which existed before."""
        cause = error.orig if isinstance(error, DBAPIError) else error
        if self._database.dialect.fault_of(cause) not in {*UNKNOWN_NAMES, Fault.DENIED} or OURS not in str(cause):
            return None
        return reason_of(error) if isinstance(error, DBAPIError) else one_line(error)

    def _change_inbox(self, unit: Unit, group: str, *changes: InboxChange | None) -> None:
        """Make the changes of a unit; a handler that commits neither removes events from the inbox, nor adds any."""
        unit.require_open()
        for change in filter(None, changes):
            self._inbox.apply(unit.connection, group, change)

    @override
    def unit_in_parts(
        self, group: str, cursor: Cursor, to: int, *, fingerprint: str = ""
    ) -> AbstractContextManager[SavingUnit]:
        return self.unit(group, cursor, to, fingerprint=fingerprint)

    @override
    def parked(self, group: str, partitions: Sequence[Partition]) -> dict[Partition, ParkedSequences]:
        self._prepare()
        with self._database.reading() as connection:
            return self._inbox.parked(connection, group, partitions)

    @override
    def next_due(
        self, group: str, partitions: Sequence[Partition], *, expiring: bool = True
    ) -> dict[Partition, str | None]:
        self._prepare()
        with self._database.reading() as connection:
            return self._inbox.next_due(connection, group, partitions, expiring=expiring)

    @override
    def arrange(
        self, group: str, partitions: Sequence[Partition], now: datetime, *, each: bool, expiring: bool = True
    ) -> None:
        self._prepare()
        each_row = (f"modulus = {int(one.modulus)} AND residue = {int(one.residue)}" for one in partitions)
        with self._database.writing() as connection:
            self._hold(connection, group, f" AND ({' OR '.join(each_row)})")  # else a person may act in the meantime
            self._inbox.arrange(connection, group, partitions, now, each=each, expiring=expiring)

    @override
    def due(
        self, group: str, partition: Partition, until: datetime, most: int, fetching: Fetching = Fetching.FIRST
    ) -> list[tuple[InboxEntry, ...]]:
        self._prepare()
        with self._database.reading() as connection:
            return self._inbox.due(connection, group, partition, until, most, fetching)

    @override
    def is_stuck(self, group: str, sequence_id: str) -> bool:
        self._prepare()
        with self._database.reading() as connection:
            return self._inbox.is_stuck(connection, group, sequence_id)

    @override
    def expired(self, group: str, partition: Partition, now: datetime, most: int) -> tuple[InboxEntry, ...]:
        self._prepare()
        with self._database.reading() as connection:
            return self._inbox.expired(connection, group, partition, now, most)

    @override
    def entries(
        self,
        group: str,
        *,
        position: int | None = None,
        most: int | None = None,
        selection: InboxSelection = EVERYTHING,
    ) -> list[InboxEntry]:
        self._prepare()
        with self._database.reading() as connection:
            return self._inbox.entries(connection, group, position, most, selection)

    @override
    def change(self, group: str, change: InboxChange, skips: Sequence[Skip] = ()) -> bool:
        self._prepare()
        columns, dialect = self._progress.c, self._database.dialect
        with self._database.explained():
            try:
                with self._database.writing() as connection:
                    self._hold(connection, group)  # the current transaction of a partition is finished first
                    # A server that is stricter than READ COMMITTED would show a transaction that waits for the rows the
                    # old inbox, unless they have changed.
                    same = update(self._progress).where(columns.group_name == group).values(epoch=columns.epoch)
                    connection.execute(same)
                    self._inbox.apply(connection, group, change)
                    for skip in skips:
                        self._record(connection, skip)
            except InboxChangedError:
                return False
            except DBAPIError as error:
                if not self._timed_out(error):
                    raise
                raise dialect.too_long(self._database, "the process that handles the group") from error
        return True

    def _hold(self, connection: Connection, group: str, those: str = "") -> None:
        """Prevent other transactions from changing the progress of a group, or its part of the inbox."""
        dialect = self._database.dialect
        place = (f"{self._database.prefix}{PROGRESS.name}", f"group_name = {dialect.mark}{those}", "modulus, residue")
        connection.exec_driver_sql(dialect.held("epoch", *place, dialect.patience), (group,)).all()

    @override
    def stage(self, stage: Stage, run: str, tables: Iterable[RecordBatches]) -> int:
        """Write the rows of a task, see ``RowStaging``. Each table of them is a separate transaction.

        Raises:
            BulkWriteError: OCQ-360, if a key is null; OCQ-363, if the stage cannot be created.
            DBAPIError: As SQLAlchemy raises it.
        """
        return stage_rows(self._database, stage, run, tables)

    @override
    def renewed(self, group: str, cursor: Cursor) -> Cursor | None:
        columns = self._progress.c
        one = self._one(group, cursor.partition, cursor.epoch)
        self._database.guard.require(cursor.file)
        asked = select(columns.position, columns.log_fingerprint, columns.replay, columns.ahead).where(one)
        with self._database.reading() as connection:
            row = connection.execute(asked).first()
        if row is None:
            return None
        known: dict[str, Any] = {"fingerprint": row[1] or "", "replay": replay_of(group, row[2]), "file": cursor.file}
        known["ahead"] = ahead_in(row[3], row[0])
        return Cursor(cursor.partition, cursor.epoch, row[0], row[0], **known)

    @override
    def succeed(self, group: str, cursor: Cursor, owner: str | None = None) -> Cursor | None:
        self._database.guard.require(cursor.file)
        here = self._one(group, cursor.partition, cursor.epoch)
        if owner is not None:
            here &= self._progress.c.owner == owner
        with self._database.writing() as connection:
            if not connection.execute(update(self._progress).where(here).values(epoch=cursor.epoch + 1)).rowcount:
                return None
        return self.renewed(group, replace(cursor, epoch=cursor.epoch + 1))

    @override
    def report(self, status: PartitionStatus, epoch: int) -> None:
        values: dict[str, Any] = {
            "state": status.state.value,
            "attempt": status.attempt,
            "error": storable(status.error, ERROR_LENGTH),
            "next_attempt_at": status.next_attempt_at,
            "failure": failure_text(status.failure),
        }
        if status.updated_at is not None:
            values["updated_at"] = status.updated_at
        if status.checkpoint is not None:
            values["checkpoint"] = status.checkpoint.text
        self._prepare()
        with self._database.writing() as connection:
            one = self._one(status.group, status.partition, epoch)
            connection.execute(update(self._progress).where(one).values(**values))

    @override
    def reached(self, group: str) -> int:
        self._prepare()
        return reached_in(self._database, group)

    @override
    def watched(self, group: str) -> AbstractContextManager[Watch]:
        self._prepare()
        return self._database.dialect.watch_progress(self._database, group)

    @override
    def statuses(self) -> list[PartitionStatus]:
        self._prepare()
        columns, skips = self._progress.c, self._skipped.c
        ordered = select(self._progress).order_by(columns.group_name, columns.modulus, columns.residue)
        of_partition = (skips.group_name, skips.modulus, skips.residue)
        skipped = select(*of_partition, literal(""), func.count()).group_by(*of_partition)
        counted = skipped.union_all(self._inbox.counts(datetime.now(UTC)))
        with self._database.reading() as connection:
            counts = EventCounts(connection.execute(counted))
            return [status_of(row, counts) for row in connection.execute(ordered).mappings()]

    @override
    def skipped(self) -> list[Skip]:
        self._prepare()
        skips = self._skipped.c
        ordered = select(self._skipped).order_by(skips.group_name, skips.position, skips.modulus, skips.residue)
        with self._database.reading() as connection:
            return [skip_of(row) for row in connection.execute(ordered).mappings()]

    @override
    def is_outage(self, error: BaseException) -> bool:
        return self._database.is_outage(error)

    def _record(self, connection: Connection, skip: Skip) -> None:
        """Record a skip, replacing an earlier one: the group's progress may have been reset since."""
        row = skip_row(skip)
        key = [column == row[column.name] for column in self._skipped.primary_key.columns]
        connection.execute(delete(self._skipped).where(*key))
        connection.execute(self._skipped.insert().values(**row))

    def _prepare(self) -> _Statements:
        known = self._statements
        if known is None:
            watch_ends(self._database)
            prepare(self._database, PROGRESS)
            prepare(self._database, SKIPPED)
            self._inbox.prepare()
            known = self._statements = _Statements(self._database)
        return known

    def _claimed(
        self,
        group: str,
        partitions: Sequence[Partition],
        whole: Sequence[Partition],
        initial: int,
        owner: str,
        fingerprint: str,
        keep: Callable[[FoundGroup], GroupRecord] | None,
    ) -> tuple[Cursor, ...]:
        """Claim in one transaction; progress of the whole layout is written, so that another one is noticed at once."""
        database, dialect = self._database, self._database.dialect
        with database.explained(), database.writing(patience=dialect.take_over_seconds) as connection:
            dialect.lock_claim(database, connection, group, partitions)
            known = held(connection, self._progress, group)
            record = None if keep is None else self._records.find(connection, group)
            if known and record is not None and record.layout is not None:
                whole = record.layout.partitions  # which a command may have changed since this process began
            if gone := next((one for one in partitions if one not in whole), None):
                raise LayoutChangedError.of(group, [(one.modulus, one.residue) for one in whole], str(gone))
            if keep is None or not self._kept(connection, group, record, known, whole, partitions, keep):
                check_layout(group, known, whole)
            if not known:
                self._inbox.forget(connection, group, initial)
            self._forget_beyond(connection, group, [known[one] for one in partitions if one in known])
            for partition in whole:
                if partition not in known:
                    if known:  # its progress was lost
                        self._inbox.forget(connection, group, initial, partition)
                    mine = owner if partition in partitions else ""
                    self._begin(connection, group, partition, mine, initial, fingerprint)
                elif partition in partitions:
                    self._take_over(connection, group, partition, owner)
            now_held = held(connection, self._progress, group)
            file = self._database.guard.identity
        crashed = {partition for partition, cursor in known.items() if cursor.unreleased}
        return tuple(replace(now_held[one], file=file, unreleased=one in crashed) for one in partitions)

    def _begin(
        self, connection: Connection, group: str, partition: Partition, owner: str, initial: int, fingerprint: str
    ) -> None:
        """Write the progress of a partition that has none; without an owner it is stopped."""
        fresh = {"position": initial, "epoch": int(bool(owner)), "attempt": 0, "error": ""}
        row = {"group_name": group, "modulus": partition.modulus, "residue": partition.residue}
        values = {**row, **_owned_by(owner), **fresh, "log_fingerprint": fingerprint or None}
        connection.execute(self._progress.insert().values(**values))

    def _take_over(self, connection: Connection, group: str, partition: Partition, owner: str) -> None:
        """Take the next epoch of a partition, which fences off its owner before."""
        this = update(self._progress).where(row_of(self._progress, group, partition))
        connection.execute(this.values(epoch=self._progress.c.epoch + 1, **_owned_by(owner)))

    def _forget_beyond(self, connection: Connection, group: str, claimed: Sequence[Cursor]) -> None:
        """Drop events that wait beyond the progress, which was set back: they are read again."""
        if not claimed:
            return
        newest, count = self._inbox.newest(connection, group), 0
        for cursor in claimed:
            end = cursor.stored if cursor.ahead is None else cursor.ahead.until
            if end < newest:
                count += self._inbox.forget(connection, group, end, cursor.partition)
        if count:
            text = "the progress of group %s was set back, so %s beyond it in the inbox will be read again"
            logger.warning(text, group, counted(count, "event"))

    def _kept(
        self,
        connection: Connection,
        group: str,
        known: GroupRecord | None,
        held: dict[Partition, Cursor],
        whole: Sequence[Partition],
        claimed: Sequence[Partition],
        keep: Callable[[FoundGroup], GroupRecord],
    ) -> bool:
        """Keep the record of a group whose progress fits its layout; return ``False`` if it does not fit."""
        missing = set(whole) - set(held)
        if set(held) - set(whole) or (held and missing and known is None):
            return False
        positions = {partition: cursor.stored for partition, cursor in held.items()}
        is_ahead = any(cursor.ahead is not None for cursor in held.values())
        waiting = partial(self._inbox.has_events, connection, group)
        found = FoundGroup(known, positions, whole, waiting, is_ahead, claimed)
        self._records.write(connection, keep(found), known)
        return True

    def _timed_out(self, error: BaseException) -> bool:
        """Return whether a wait for a lock timed out."""
        if isinstance(error, DatabaseBusyError):
            return True
        return isinstance(error, DBAPIError) and self._database.dialect.fault_of(error) is Fault.LOCK_TIMEOUT

    def _end_holders(self, group: str, partitions: Sequence[Partition]) -> bool:
        """End the sessions whose open transactions hold the partitions; return whether there was one."""
        database, dialect = self._database, self._database.dialect
        with database.reading() as connection:
            found = {dialect.holder_of(database, connection, group, partition) for partition in partitions}
            holders = {holder for holder in found if holder is not None}
            for holder in holders:
                dialect.end_session(connection, holder)
        return bool(holders)

    def _held_too_long(self, group: str, partitions: Sequence[Partition]) -> DatabaseAwayError:
        """Return the error for a claim that timed out, naming the owners of the partitions."""
        columns, database = self._progress.c, self._database
        chosen = (columns.group_name == group) & (columns.owner != "")
        asked = select(columns.modulus, columns.residue, columns.owner).where(chosen)
        with database.reading() as connection:
            rows: list[Any] = [r for r in connection.execute(asked) if Partition(r.modulus, r.residue) in partitions]
        owners = dict.fromkeys(row.owner for row in rows)
        who = f"its owner {' and '.join(owners)}" if owners else "another process"
        what = (
            f"group '{group}' cannot be taken over: {who} (host:process:claim), or another writer, has had a "
            f"transaction open for more than {database.dialect.take_over_seconds:g} seconds"
        )
        return DatabaseBusyError("OCQ-305", what, database.label, "let it finish, or end that process")

    def _one(self, group: str, partition: Partition, epoch: int) -> ColumnElement[bool]:
        return row_of(self._progress, group, partition) & (self._progress.c.epoch == epoch)


def _owned_by(owner: str) -> dict[str, Any]:
    """Return what a claim writes of a partition; without an owner it is stopped."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    if not owner:
        return {"owner": "", "updated_at": now, "state": ProcessorState.STOPPED.value}
    return {"owner": owner, "updated_at": now, "state": ProcessorState.STARTING.value, "checkpoint": None}

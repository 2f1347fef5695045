"""Resets and the ends of replays on a SQL database: a unit of work each, with the handlers' tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, delete, select, update

from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.group_records import SqlGroupRecords
from opencqrs_py.adapters.sql.inbox import SqlInbox
from opencqrs_py.adapters.sql.progress_rows import check_layout, cursor_of, fenced, held, row_of
from opencqrs_py.adapters.sql.tables import PROGRESS, SKIPPED
from opencqrs_py.adapters.sql.transactions import Unit
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor, ProcessorState
from opencqrs_py.model.replay import Replay, Reset, replay_after
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.ports import NeverHandled, ReplayEnd, ResetUnit


class SqlResets:
    """Moves the progress of groups to other positions, in existing tables.

    Args:
        database: The read models' database.
        inbox: Its inbox.
        records: Its records of groups.
    """

    def __init__(self, database: Database, inbox: SqlInbox, records: SqlGroupRecords) -> None:
        self._database = database
        self._inbox = inbox
        self._records = records
        self._progress, self._skipped = database.table(PROGRESS), database.table(SKIPPED)

    @contextmanager
    def unit(
        self, reset: Reset, layout: Sequence[Partition], fingerprint: str, never_handled: NeverHandled
    ) -> Iterator[ResetUnit]:
        """Open the unit of work that resets a group, see ``ResettableTracker``."""
        group, dialect = reset.group, self._database.dialect
        with (
            self._database.explained(),
            self._database.writing(of_handlers=True, patience=dialect.take_over_seconds) as connection,
        ):
            dialect.lock_claim(self._database, connection, group, layout)
            self._records.require_swapped(connection, group)
            known = held(connection, self._progress, group)
            check_layout(group, known, layout if set(known) - set(layout) else tuple(known))  # some may be lost
            replays = self._replays(connection, reset, known, layout, never_handled)
            with self._guarded(connection) as unit:
                yield ResetUnit(unit, replays)
            self._inbox.forget(connection, group, reset.position)
            skips = self._skipped.c
            after = (skips.group_name == group) & (skips.position > reset.position)
            connection.execute(delete(self._skipped).where(after))
            if not self._inbox.has_events(connection, group):
                self._records.forget_sequencing(connection, group)
            self._records.begin_no_later(connection, reset, is_new=not known)
            for partition, replay in replays.items():
                values = {**_stopped_at(reset.position, fingerprint), "replay": None if replay is None else replay.text}
                self._move(connection, group, partition, values, new=partition not in known)

    @contextmanager
    def end(self, group: str, cursor: Cursor, *, after_inbox: bool) -> Iterator[ReplayEnd | None]:
        """Open the unit of work that ends the replay of a partition, see ``ResettableTracker``."""
        columns, partition = self._progress.c, cursor.partition
        in_turn = select(self._progress).where(columns.group_name == group).order_by(columns.modulus, columns.residue)
        with self._database.writing(of_handlers=True) as connection:
            rows = connection.execute(in_turn.with_for_update()).mappings().all()
            others = {(one := cursor_of(row)).partition: one for row in rows}
            own = others.pop(partition, None)
            if own is None or (own.epoch, own.stored) != (cursor.epoch, cursor.stored):
                raise fenced(group, partition)
            if after_inbox and self._inbox.replays_wait(connection, group, partition):
                yield None
                return
            is_last = all(one.replay is None for one in others.values())
            with self._guarded(connection) as unit:
                yield ReplayEnd(unit, own.replay.reset if own.replay is not None and is_last else None)
            connection.execute(
                update(self._progress).where(row_of(self._progress, group, partition)).values(replay=None)
            )

    @contextmanager
    def _guarded(self, connection: Connection) -> Iterator[Unit]:
        unit = Unit(connection, self._database, self._database.dialect, guarded=True)
        unit.set_savepoint()
        with unit.kept_open():
            yield unit
        unit.release_savepoint().close()

    def _replays(
        self,
        connection: Connection,
        reset: Reset,
        known: Mapping[Partition, Cursor],
        layout: Sequence[Partition],
        never_handled: NeverHandled,
    ) -> dict[Partition, Replay | None]:
        waiting = self._inbox.never_handled(connection, reset.group, reset.position)
        farthest = max((cursor.stored for cursor in known.values()), default=0)  # of a partition whose row is lost
        replays = {partition: replay_after(reset, farthest, None) for partition in layout}
        for partition, cursor in known.items():
            own = [position for hash_, position in waiting if hash_ % partition.modulus == partition.residue]
            handled_to = cursor.stored if cursor.ahead is None else cursor.ahead.until
            replays[partition] = replay_after(reset, handled_to, cursor.replay, (*own, *never_handled(cursor)))
        return replays

    def _move(
        self, connection: Connection, group: str, partition: Partition, values: dict[str, Any], *, new: bool
    ) -> None:
        progress = self._progress
        if new:
            row = {"group_name": group, "modulus": partition.modulus, "residue": partition.residue, "epoch": 0}
            connection.execute(progress.insert().values(**row, **values))
        else:
            moved = update(progress).where(row_of(progress, group, partition))
            connection.execute(moved.values(epoch=progress.c.epoch + 1, **values))


def _stopped_at(position: int, fingerprint: str) -> dict[str, Any]:
    """Return the values of a partition that was stopped at a position, and of which nothing has failed."""
    return {
        "position": position,
        "log_fingerprint": fingerprint or None,
        "owner": "",
        "state": ProcessorState.STOPPED.value,
        "attempt": 0,
        "error": "",
        "next_attempt_at": None,
        "failure": None,
        "ahead": None,
        "checkpoint": None,
        "updated_at": in_milliseconds(datetime.now(UTC)),
    }

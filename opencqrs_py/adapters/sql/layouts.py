"""Other partitions for groups on a SQL database: progress rows that replace others."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, delete, select, update

from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.group_records import SqlGroupRecords
from opencqrs_py.adapters.sql.progress_rows import failure_text, held, row_of
from opencqrs_py.adapters.sql.tables import PROGRESS, SKIPPED
from opencqrs_py.errors import LayoutError
from opencqrs_py.model.naming import storable
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import ERROR_LENGTH, Cursor, ProcessorState
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.ports import Carry

REPARTITIONING = "opencqrs groups partitions"
"""The owner of partitions while others replace them."""


class SqlLayouts:
    """Gives groups other partitions, in existing tables.

    Args:
        database: The read models' database.
        records: Its records of groups.
    """

    def __init__(self, database: Database, records: SqlGroupRecords) -> None:
        self._database = database
        self._records = records
        self._progress, self._skipped = database.table(PROGRESS), database.table(SKIPPED)

    def replace(
        self,
        group: str,
        claimed: Mapping[Partition, Cursor],
        known: Collection[Partition],
        partitions: Sequence[Partition],
        carry: Carry,
        setting: int | None,
    ) -> dict[Partition, Cursor]:
        """Replace the partitions that were claimed for this, see ``RepartitioningTracker``."""
        dialect = self._database.dialect
        with (
            self._database.explained(),
            self._database.writing(patience=dialect.take_over_seconds) as connection,
        ):
            dialect.lock_claim(self._database, connection, group, sorted(claimed))
            self._records.require_swapped(connection, group)
            found = held(connection, self._progress, group)
            if set(found) != set(known) or self._are_taken(connection, group, claimed):
                raise changed_meanwhile(group)
            seen = {one: claimed.get(one, cursor) for one, cursor in found.items()}
            carried = dict(carry({one: _as_found(found[one], cursor) for one, cursor in seen.items()}))
            for partition in sorted(claimed):
                connection.execute(delete(self._progress).where(row_of(self._progress, group, partition)))
            for partition, cursor in sorted(carried.items()):
                connection.execute(self._progress.insert().values(group_name=group, **_row(partition, cursor)))
            self._move_skips(connection, group, sorted(claimed), sorted(carried))
            self._records.lay_out(connection, group, partitions, setting)
        return carried

    def _are_taken(self, connection: Connection, group: str, partitions: Collection[Partition]) -> bool:
        """Return whether a process other than the one that replaces them has claimed some of the partitions."""
        columns = self._progress.c
        chosen = (columns.group_name == group) & (columns.owner != REPARTITIONING)
        others = connection.execute(select(columns.modulus, columns.residue).where(chosen))
        return any(Partition(modulus, residue) in partitions for modulus, residue in others)

    def _move_skips(
        self, connection: Connection, group: str, before: Sequence[Partition], after: Sequence[Partition]
    ) -> None:
        """Assign skipped events to a partition that may have had them, for counts and lists."""
        columns, other = self._skipped.c, self._skipped.alias()
        for partition in before:
            target = next(one for one in after if one.overlaps(partition))
            here = (columns.modulus == partition.modulus) & (columns.residue == partition.residue)
            own = columns.group_name == group
            known = (
                other.select()
                .with_only_columns(other.c.position)
                .where(
                    other.c.group_name == group, other.c.modulus == target.modulus, other.c.residue == target.residue
                )
            )
            connection.execute(delete(self._skipped).where(own & here & columns.position.in_(known)))
            moved = update(self._skipped).where(own & here)
            connection.execute(moved.values(modulus=target.modulus, residue=target.residue))


def changed_meanwhile(group: str) -> LayoutError:
    """Return the error for a group whose partitions others have changed or claimed."""
    what = f"another process has changed or claimed partitions of group '{group}' in the meantime"
    return LayoutError("OCQ-615", what, f"group {group}", "run the command again")


def _as_found(found: Cursor, claimed: Cursor) -> Cursor:
    """Return where a partition stands now, and whether its previous owner has crashed."""
    return replace(found, unreleased=claimed.unreleased)


def _row(partition: Partition, cursor: Cursor) -> dict[str, Any]:
    """Return the row of a partition without an owner."""
    failure = cursor.failure
    state = ProcessorState.STARTING if cursor.unreleased else ProcessorState.STOPPED
    return {
        "modulus": partition.modulus,
        "residue": partition.residue,
        "position": cursor.stored,
        "epoch": cursor.epoch,
        "owner": "",
        "state": state.value,
        "attempt": 0 if failure is None else failure.attempts,
        "error": "" if failure is None else storable(failure.last_error, ERROR_LENGTH),
        "next_attempt_at": None if failure is None else failure.next_attempt_at,
        "updated_at": in_milliseconds(datetime.now(UTC)),
        "log_fingerprint": cursor.fingerprint or None,
        "failure": failure_text(failure),
        "replay": None if cursor.replay is None else cursor.replay.text,
        "ahead": None if cursor.ahead is None else cursor.ahead.text,
    }

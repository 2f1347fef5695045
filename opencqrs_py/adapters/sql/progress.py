"""Progress on a SQL database, in the transaction in which handlers write."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, func, select, update

from opencqrs_py.adapters.sql import driver
from opencqrs_py.adapters.sql.databases import Database
from opencqrs_py.adapters.sql.kinds import kind_of
from opencqrs_py.adapters.sql.schema import PROGRESS
from opencqrs_py.adapters.sql.turns import take_row
from opencqrs_py.adapters.sql.units import DatabaseTransactions
from opencqrs_py.adapters.sql.versions import prepare
from opencqrs_py.errors import EventStoreError, FencedError
from opencqrs_py.model.partition import Partition, hash_of
from opencqrs_py.model.progress import Cursor, PartitionStatus, ProcessorState
from opencqrs_py.processing.ports import UnitOfWork

__all__ = ["SqlProgressTracker"]

_ERROR_LENGTH = 1_000  # characters of an error's text that are kept
_CLAIMS = 0x0C9125 << 32  # our advisory locks on PostgreSQL, one for each hash of a group; any number would do

_columns = PROGRESS.c
_one = and_(
    _columns.group_name == bindparam("of_group"),
    _columns.modulus == bindparam("of_modulus"),
    _columns.residue == bindparam("of_residue"),
    _columns.epoch == bindparam("of_epoch"),
)
# As text, since it is part of each chunk: SQLAlchemy needs half the time to send it.
_ADVANCE = driver.Prepared(
    f"{PROGRESS.name}_advance",
    f"UPDATE {PROGRESS.name} SET position = {{}}, updated_at = {{}} WHERE group_name = {{}} "  # noqa: S608 our names
    "AND modulus = {} AND residue = {} AND epoch = {} AND position = {}",
)
_REPORT = update(PROGRESS).where(_one)


class SqlProgressTracker:
    """Progress in the table ``opencqrs_progress``, moved by compare-and-set under a fencing epoch.

    Args:
        database: The read models' database: handlers that write through the unit's connection or session share one
            transaction with the progress.

    Source:
        Decision K9; OpenCQRS JDBC progress tracker.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._transactions = DatabaseTransactions(database)
        self._ready = False

    def claim(
        self,
        group: str,
        partitions: Sequence[Partition],
        initial: int,
        owner: str,
        layout: Sequence[Partition] | None = None,
    ) -> tuple[Cursor, ...]:
        """Take the partitions over; those without progress start at ``initial``.

        Progress of the whole layout is written at the first claim, so that another layout is noticed at once.

        Raises:
            EventStoreError: OCQ-310, if the group's progress belongs to another layout of partitions.
        """
        self._prepare()
        with self._database.writing() as connection:
            _serialise(connection, group)
            held = self._held(connection, group)
            _check_layout(group, held, layout or partitions)
            for partition in layout or partitions:
                mine = partition in partitions
                row = {"group_name": group, "modulus": partition.modulus, "residue": partition.residue}
                state = ProcessorState.STARTING if mine else ProcessorState.STOPPED
                changed = {"owner": owner if mine else "", "updated_at": _now(), "state": state.value}
                if partition not in held:
                    fresh = {"position": initial, "epoch": int(mine), "attempt": 0, "error": ""}
                    connection.execute(PROGRESS.insert().values(**row, **changed, **fresh))
                elif mine:
                    this = and_(*(_columns[name] == value for name, value in row.items()))
                    connection.execute(update(PROGRESS).where(this).values(epoch=_columns.epoch + 1, **changed))
            now_held = self._held(connection, group)
        return tuple(Cursor(p, now_held[p][1], now_held[p][0], now_held[p][0]) for p in partitions)

    def unit(self, group: str, cursor: Cursor, to: int) -> AbstractContextManager[UnitOfWork]:
        """Open a transaction that moves progress from ``cursor.stored`` to ``to``.

        Raises:
            FencedError: On entering, if the progress or the epoch is not the cursor's any more.
            ValueError: On entering, if ``to`` is before ``cursor.stored``.
        """
        return self._unit(group, cursor, to)

    def renewed(self, group: str, cursor: Cursor) -> Cursor | None:
        """Return where the partition goes on if the claim is still the cursor's, ``None`` if somebody else has it."""
        with self._database.reading() as connection:
            key = _key(group, cursor.partition, cursor.epoch)
            position = connection.execute(select(_columns.position).where(_one), key).scalar()
        return None if position is None else Cursor(cursor.partition, cursor.epoch, position, position)

    def report(self, status: PartitionStatus, epoch: int) -> None:
        """Publish what a processor does; ignored when ``epoch`` is not the current one."""
        values = {
            "state": status.state.value,
            "attempt": status.attempt,
            "error": _storable(status.error),
            "next_attempt_at": status.next_attempt_at,
            "updated_at": _now(),
        }
        self._prepare()
        with self._database.writing() as connection:
            connection.execute(_REPORT.values(**values), _key(status.group, status.partition, epoch))

    def statuses(self) -> list[PartitionStatus]:
        """Return what is known of every partition of every group."""
        self._prepare()
        ordered = select(PROGRESS).order_by(_columns.group_name, _columns.modulus, _columns.residue)
        with self._database.reading() as connection:
            return [_status(row) for row in connection.execute(ordered).mappings()]

    def is_outage(self, error: BaseException) -> bool:
        """Say whether the database does not answer for now."""
        return self._database.is_outage(error)

    def _prepare(self) -> None:
        if not self._ready:
            prepare(self._database, PROGRESS)
            self._ready = True

    @contextmanager
    def _unit(self, group: str, cursor: Cursor, to: int) -> Iterator[UnitOfWork]:
        cursor.check_forward(to)
        self._prepare()
        share = cursor.partition
        values = (to, _now(), group, share.modulus, share.residue, cursor.epoch, cursor.stored)
        with self._transactions.begin() as unit:
            if driver.sent_first(unit.connection, _ADVANCE, values) != 1:
                msg = f"progress of group '{group}' partition {cursor.partition} was taken over by another processor"
                raise FencedError(msg)
            unit.begun()
            yield unit

    def _held(self, connection: Connection, group: str) -> dict[Partition, tuple[int, int]]:
        rows = connection.execute(select(PROGRESS).where(_columns.group_name == group))
        return {Partition(row.modulus, row.residue): (row.position, row.epoch) for row in rows}


def _key(group: str, partition: Partition, epoch: int) -> dict[str, Any]:
    return {
        "of_group": group,
        "of_modulus": partition.modulus,
        "of_residue": partition.residue,
        "of_epoch": epoch,
    }


def _serialise(connection: Connection, group: str) -> None:
    """Let claims of a group follow each other, also while it has no row to lock."""
    match kind_of(connection):
        case "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(_CLAIMS + hash_of(group))))
        case "mariadb":
            take_row(connection, PROGRESS.name)


def _storable(error: str) -> str:
    """Return the text without what a database refuses: U+0000 and halves of surrogate pairs."""
    return error[:_ERROR_LENGTH].encode(errors="replace").decode().replace("\0", "?")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _status(row: Any) -> PartitionStatus:
    return PartitionStatus(
        group=row["group_name"],
        partition=Partition(row["modulus"], row["residue"]),
        position=row["position"],
        state=ProcessorState(row["state"]),
        attempt=row["attempt"],
        error=row["error"],
        next_attempt_at=row["next_attempt_at"],
        updated_at=row["updated_at"],
    )


def _check_layout(group: str, held: dict[Partition, Any], partitions: Sequence[Partition]) -> None:
    if not held or set(held) == set(partitions):
        return
    what = f"group '{group}' has progress for {len(held)} partition(s), but {len(partitions)} are configured"
    fix = (
        f"set life-cycle.partitions of '{group}' back to {len(held)}; or, to handle all events anew, delete the "
        f"group's read model and its rows in {PROGRESS.name}"
    )
    raise EventStoreError("OCQ-310", what, f"table {PROGRESS.name}", fix)

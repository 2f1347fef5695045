"""The records of groups on a SQL database: the table ``opencqrs_groups``, beside the progress."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, astuple, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, select, update
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.dialects.faults import Fault
from opencqrs_py.adapters.sql.shadows.rebuild_records import rebuild_of
from opencqrs_py.adapters.sql.tables import GROUPS, REBUILDS, TableMissingError, prepare
from opencqrs_py.model.group_record import (
    GroupRecord,
    HandlersChange,
    RecordedLayout,
    RecordedSelection,
    SettingTexts,
    begun_by,
)
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.replay import Reset
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.group_records import require_swapped

_OF_REBUILD = "rebuild_"  # before the names of columns


class SqlGroupRecords:
    """Reads and writes the records of groups, in the transactions of their claims.

    Args:
        database: The database of the progress.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._table, self._rebuilds = database.table(GROUPS), database.table(REBUILDS)
        named = (column.label(f"{_OF_REBUILD}{column.name}") for column in self._rebuilds.columns)
        same = self._table.c.group_name == self._rebuilds.c.group_name
        self._with_rebuild = select(self._table, *named).join_from(self._table, self._rebuilds, same, isouter=True)
        self._ready = False

    def prepare(self) -> None:
        """Make sure that the table exists."""
        if not self._ready:
            prepare(self._database, GROUPS)
            prepare(self._database, REBUILDS)
            self._ready = True

    def all(self) -> list[GroupRecord]:
        """Return all records, by group; none if there is no table yet."""
        ordered = select(self._table).order_by(self._table.c.group_name)
        try:
            with self._database.reading() as connection:
                return [_record(row) for row in connection.execute(ordered).mappings()]
        except TableMissingError:
            return []

    def rebuilt(self, groups: Collection[str]) -> list[GroupRecord]:
        """Return the records of those of some groups that have had a rebuild; none if there is no table or schema yet.

        Each heartbeat calls it, and must not wait for a connection that handlers use.
        """
        with self._database.waiting() as connection:
            try:
                names = set(connection.execute(select(self._rebuilds.c.group_name)).scalars())
            except DBAPIError as error:
                if self._database.dialect.fault_of(error) is Fault.NO_TABLE:
                    return []
                raise  # a table without all of its columns may have had rows
            found = [self.find(connection, name) for name in sorted(names & set(groups))]
        return [record for record in found if record is not None]

    def find(self, connection: Connection, group: str) -> GroupRecord | None:
        """Return the record of a group with its last rebuild, or ``None``."""
        row = connection.execute(self._with_rebuild.where(self._table.c.group_name == group)).mappings().first()
        return None if row is None else replace(_record(row), rebuild=rebuild_of(row, _OF_REBUILD))

    def require_swapped(self, connection: Connection, group: str) -> None:
        """Raise ``SwapUnderWayError``, OCQ-633, if a swap of the group was interrupted."""
        record = self.find(connection, group)
        require_swapped(group, None if record is None else record.rebuild)

    def begin_no_later(self, connection: Connection, reset: Reset, *, is_new: bool) -> None:
        """Record that a group begins where it was reset to, if that is before its beginning; see ``begun_by``."""
        known = self.find(connection, reset.group)
        if (begun := begun_by(reset, known, is_new=is_new)) is not None:
            self.write(connection, begun, known)

    def write(self, connection: Connection, record: GroupRecord, known: GroupRecord | None) -> None:
        """Replace the known record, unless the new one is the same."""
        if known is None:
            connection.execute(self._table.insert().values(**_row(record)))
        elif record != known:
            this = self._table.c.group_name == record.group
            connection.execute(update(self._table).where(this).values(**_row(record)))

    def lay_out(self, connection: Connection, group: str, partitions: Sequence[Partition], setting: int | None) -> None:
        """Record other partitions of a group; ``setting`` is the new setting, if that was the reason.

        Where none are recorded, it is the setting that they override.
        """
        record = self.find(connection, group)
        if record is None or record.layout is None:
            if setting is not None:
                at = in_milliseconds(datetime.now(UTC))
                known = record or GroupRecord(group, "", None, at)
                self.write(connection, replace(known, layout=RecordedLayout(tuple(partitions), setting)), record)
        else:
            changed = record.layout.changed(partitions, setting)
            this = self._table.c.group_name == group
            connection.execute(update(self._table).where(this).values(layout=_layout_text(changed)))

    def forget_sequencing(self, connection: Connection, group: str) -> None:
        """Accept any sequencing of the group from its next claim; no event is being handled, and none waits."""
        this = self._table.c.group_name == group
        connection.execute(update(self._table).where(this).values(sequencing=""))


def _row(record: GroupRecord) -> dict[str, Any]:
    return {
        "group_name": record.group,
        "initial_setting": record.setting,
        "initial_position": record.position,
        "began_at": record.began_at,
        "handlers": record.handlers,
        "sequencing": record.sequencing,
        "changes": json.dumps([_change(each) for each in record.changes]),
        "layout": None if record.layout is None else _layout_text(record.layout),
        "selection": None if record.selection is None else json.dumps(asdict(record.selection)),
    }


def _record(row: Any) -> GroupRecord:
    return GroupRecord(
        group=row["group_name"],
        setting=row["initial_setting"],
        position=row["initial_position"],
        began_at=row["began_at"],
        handlers=row["handlers"],
        sequencing=row["sequencing"],
        changes=tuple(_changed(*each) for each in json.loads(row["changes"])),
        layout=None if row["layout"] is None else _layout(row["layout"]),
        selection=None if row["selection"] is None else _selection(row["selection"]),
    )


def _change(change: HandlersChange) -> tuple[Any, ...]:
    """Return a change for JSON; without other partitions, in the form that earlier versions of this package read."""
    found = astuple(change)
    return found if change.others else found[:-1]


def _changed(position: int, at: str, before: str, others: Sequence[tuple[int, int]] = ()) -> HandlersChange:
    return HandlersChange(position, at, before, tuple(Partition(*each) for each in others))


def _layout_text(layout: RecordedLayout) -> str:
    partitions = [[one.modulus, one.residue] for one in layout.partitions]
    return json.dumps({"partitions": partitions, "setting": layout.setting, "overridden": layout.overridden})


def _layout(text: str) -> RecordedLayout:
    known = json.loads(text)
    partitions = tuple(Partition(modulus, residue) for modulus, residue in known["partitions"])
    return RecordedLayout(partitions, known["setting"], tuple(known["overridden"]))


def _selection(text: str) -> RecordedSelection:
    known = json.loads(text)
    return RecordedSelection(_settings(known["settings"]), known["since"], _settings(known["before"]))


def _settings(pairs: Sequence[Sequence[str]]) -> SettingTexts:
    return tuple((key, value) for key, value in pairs)

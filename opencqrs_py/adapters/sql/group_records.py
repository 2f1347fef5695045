"""The records of groups on a SQL database: the table ``opencqrs_groups``, beside the progress."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import asdict, astuple, replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Column, Connection, RowMapping, Select, inspect, select, update
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
_ADDED_LATER = ("layout", "selection")  # by later versions of the table


class SqlGroupRecords:
    """Reads and writes the records of groups, in the transactions of their claims.

    Args:
        database: The database of the progress.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._table, self._rebuilds = database.table(GROUPS), database.table(REBUILDS)
        self._with_rebuild = self._joined(self._table.columns)
        self._ready = False

    def prepare(self) -> None:
        """Make sure that the table exists."""
        if not self._ready:
            prepare(self._database, GROUPS)
            prepare(self._database, REBUILDS)
            self._ready = True

    def all(self) -> list[GroupRecord]:
        """Return all records, by group; none if there is no table yet. One of an older version is read as it is."""

        def ordered(columns: Iterable[Column[Any]]) -> Select[Any]:
            return select(*columns).order_by(self._table.c.group_name)

        try:
            with self._database.reading() as connection:
                return [_record(row) for row in self._rows(connection, ordered)]
        except TableMissingError:
            return []

    def rebuilt(self, groups: Collection[str]) -> list[GroupRecord]:
        """Return the records of those of some groups that have had a rebuild; none if there is no table or schema yet.

        Each heartbeat calls it, and must not wait for a connection that handlers use. A table of an older version is
        read as it is, since commands that only look call it, too.
        """
        with self._database.waiting() as connection:
            try:
                names = set(connection.execute(select(self._rebuilds.c.group_name)).scalars())
            except DBAPIError as error:
                if self._database.dialect.fault_of(error) is Fault.NO_TABLE:
                    return []
                raise  # a table without all of its columns may have had rows
            return [record for name in sorted(names & set(groups)) for record in self._seen(connection, name)]

    def _seen(self, connection: Connection, group: str) -> Iterable[GroupRecord]:
        """Yield the record of a group with its last rebuild, if it has one, outside of transactions."""
        this = self._table.c.group_name == group
        return map(_with_rebuild, self._rows(connection, lambda columns: self._joined(columns).where(this)))

    def _joined(self, columns: Iterable[Column[Any]]) -> Select[Any]:
        named = (column.label(f"{_OF_REBUILD}{column.name}") for column in self._rebuilds.columns)
        same = self._table.c.group_name == self._rebuilds.c.group_name
        return select(*columns, *named).join_from(self._table, self._rebuilds, same, isouter=True)

    def _rows(
        self, connection: Connection, query: Callable[[Iterable[Column[Any]]], Select[Any]]
    ) -> Sequence[RowMapping]:
        """Return the rows of a query of columns, without those that the table of an older version does not have."""
        try:
            return connection.execute(query(self._table.columns)).mappings().all()
        except DBAPIError as error:
            if self._database.dialect.fault_of(error) is not Fault.NO_COLUMN:
                raise
        there = {column["name"] for column in inspect(connection).get_columns(GROUPS.name, self._database.schema)}
        known = [column for column in self._table.columns if column.name in there or column.name not in _ADDED_LATER]
        return connection.execute(query(known)).mappings().all()

    def find(self, connection: Connection, group: str) -> GroupRecord | None:
        """Return the record of a group with its last rebuild, or ``None``, from a table of the newest version."""
        row = connection.execute(self._with_rebuild.where(self._table.c.group_name == group)).mappings().first()
        return None if row is None else _with_rebuild(row)

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


def _record(row: RowMapping) -> GroupRecord:
    return GroupRecord(
        group=row["group_name"],
        setting=row["initial_setting"],
        position=row["initial_position"],
        began_at=row["began_at"],
        handlers=row["handlers"],
        sequencing=row["sequencing"],
        changes=tuple(_changed(*each) for each in json.loads(row["changes"])),
        layout=None if row.get("layout") is None else _layout(row["layout"]),
        selection=None if row.get("selection") is None else _selection(row["selection"]),
    )


def _with_rebuild(row: RowMapping) -> GroupRecord:
    return replace(_record(row), rebuild=rebuild_of(row, _OF_REBUILD))


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

"""Rows of a group in our own tables, as a swap moves them between places."""

from __future__ import annotations

from sqlalchemy import Connection

from opencqrs_py.adapters.sql.tables import GROUPS, INBOX, PROGRESS, SKIPPED
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import ProcessorState

KEPT = (PROGRESS, SKIPPED, INBOX, GROUPS)
"""Our tables whose rows of a group go with its own tables."""


class KeptRows:
    """Moves the rows of a group in our tables between places, by their prefixes.

    Args:
        connection: A connection that sees both.
        group: Processing group.
    """

    def __init__(self, connection: Connection, group: str) -> None:
        self._connection = connection
        self._group = group
        self._mark = "?" if connection.dialect.paramstyle == "qmark" else "%s"

    def copy(self, source: str, target: str) -> None:
        """Copy the rows; there must be none of the group in the target, which is of the newest version.

        An older version may have made the source, and without the columns that were added later.
        """
        for table in KEPT:
            there = self._connection.exec_driver_sql(f"SELECT * FROM {source}{table.name} WHERE 1 = 0").keys()  # noqa: S608
            columns = ", ".join(column.name for column in table.columns if column.name in there)
            select_all = f"SELECT {columns} FROM {source}{table.name} WHERE group_name = {self._mark}"  # noqa: S608 our own names
            self._connection.exec_driver_sql(
                f"INSERT INTO {target}{table.name} ({columns}) {select_all}", (self._group,)
            )

    def delete(self, place: str) -> None:
        """Delete the rows."""
        for table in KEPT:
            where = f"{place}{table.name} WHERE group_name = {self._mark}"
            self._connection.exec_driver_sql(f"DELETE FROM {where}", (self._group,))  # noqa: S608

    def _newest_epoch(self, place: str) -> int:
        """Return the highest epoch of its partitions."""
        where = f"{place}{PROGRESS.name} WHERE group_name = {self._mark}"
        return self._connection.exec_driver_sql(f"SELECT max(epoch) FROM {where}", (self._group,)).scalar() or 0  # noqa: S608

    def positions(self, place: str) -> dict[Partition, int]:
        """Return the positions of its partitions."""
        where = f"{place}{PROGRESS.name} WHERE group_name = {self._mark}"
        rows = self._connection.exec_driver_sql(f"SELECT modulus, residue, position FROM {where}", (self._group,))  # noqa: S608
        return {Partition(modulus, residue): position for modulus, residue, position in rows}

    def fence(self, place: str) -> None:
        """Fence off the owners of its partitions, which become stopped, in an epoch that no owner knows."""
        self._fence(place, self._newest_epoch(place) + 1)

    def _fence(self, place: str, epoch: int) -> None:
        values = f"epoch = {self._mark}, owner = '', state = '{ProcessorState.STOPPED.value}', connection_id = NULL"
        where = f"WHERE group_name = {self._mark}"
        self._connection.exec_driver_sql(f"UPDATE {place}{PROGRESS.name} SET {values} {where}", (epoch, self._group))  # noqa: S608

    def replace(self, source: str, live: str, *, keep_replays: bool = False) -> int:
        """Replace the live rows by those of another place, fenced; return the position of the slowest partition.

        With ``keep_replays`` partitions continue the replay of the live ones: what was handled before a reset, and
        which functions are still to be called at the end of the replay, then also applies to the new tables.
        """
        epoch = max(self._newest_epoch(source), self._newest_epoch(live)) + 1
        replays = self._replays(live) if keep_replays else []
        self.delete(live)
        self.copy(source, live)
        self._fence(live, epoch)
        for replay in replays:
            mark = self._mark
            where = f"WHERE group_name = {mark} AND modulus = {mark} AND residue = {mark}"
            self._connection.exec_driver_sql(f"UPDATE {live}{PROGRESS.name} SET replay = {mark} {where}", replay)  # noqa: S608
        return min(self.positions(live).values(), default=0)

    def _replays(self, place: str) -> list[tuple[str, str, int, int]]:
        """Return the stored replay of each partition that has one, with its group, modulus and residue."""
        columns = "replay, group_name, modulus, residue"
        where = f"{place}{PROGRESS.name} WHERE group_name = {self._mark} AND replay IS NOT NULL"
        rows = self._connection.exec_driver_sql(f"SELECT {columns} FROM {where}", (self._group,))  # noqa: S608
        return [tuple(row) for row in rows]

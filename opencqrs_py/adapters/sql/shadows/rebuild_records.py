"""The records of rebuilds on a SQL database: the table ``opencqrs_rebuilds``, with the last rebuild of each group."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, delete, inspect, select

from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.tables import REBUILDS
from opencqrs_py.errors import RebuildError
from opencqrs_py.model.rebuild import RebuildPhase, RebuildRecord, SwappedRelation


class SqlRebuildRecords:
    """Reads and writes the records of rebuilds.

    Args:
        database: The database of the progress.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._table = database.table(REBUILDS)

    def last(self, group: str) -> RebuildRecord | None:
        """Return the last rebuild of a group; ``None`` if there was none, or no table yet."""
        with self._database.reading() as connection:
            if not inspect(connection).has_table(REBUILDS.name, self._database.schema):
                return None
            return self.find(connection, group)

    def required(self, group: str, connection: Connection | None = None) -> RebuildRecord:
        """Return the last rebuild of a group, as a transaction sees it if given; refuse with OCQ-630 if none."""
        found = self.last(group) if connection is None else self.find(connection, group)
        if found is None:
            raise RebuildError("OCQ-630", f"group '{group}' is not being rebuilt", f"group {group}")
        return found

    def find(self, connection: Connection, group: str) -> RebuildRecord | None:
        """Return the last rebuild of a group, as a transaction sees it; ``None`` if there was none."""
        row = connection.execute(select(self._table).where(self._table.c.group_name == group)).mappings().first()
        return None if row is None else rebuild_of(row)

    def write(self, connection: Connection, record: RebuildRecord) -> None:
        """Replace the record of its group."""
        connection.execute(delete(self._table).where(self._table.c.group_name == record.group))
        connection.execute(self._table.insert().values(**rebuild_row(record)))

    def begin(self, connection: Connection, begun: RebuildRecord, *, replaces_builds: bool = False) -> None:
        """Record a build, unless another process has begun or completed one since: its record is not replaced."""
        now = self.find(connection, begun.group)
        if now is not None and now.phase is not RebuildPhase.ENDED and not (replaces_builds and now.has_shadow):
            raise ended_elsewhere(begun.group)
        self.write(connection, begun)

    # Rebuilds of other processes

    def is_current(self, group: str, rebuild: RebuildRecord | None) -> bool:
        """Return whether a rebuild is still the last one of its group; ``None``: it had none."""
        now = self.last(group)
        if now is None or rebuild is None:
            return now is rebuild
        return now.phase is rebuild.phase and now.is_same(rebuild)

    def require_current(self, rebuild: RebuildRecord) -> None:
        """Refuse with OCQ-630 to continue a rebuild that another process has ended, or begun again."""
        if not self.is_current(rebuild.group, rebuild):
            raise ended_elsewhere(rebuild.group)

    @contextmanager
    def explained(self, group: str, rebuild: RebuildRecord | None) -> Iterator[None]:
        """Explain, with OCQ-630, what fails in this block because another process rebuilds the same group.

        Args:
            group: Processing group.
            rebuild: The rebuild of this process, or the last one before it begins.
        """
        try:
            yield
        except Exception as error:
            if self._is_over(group, rebuild):
                raise ended_elsewhere(group) from error
            raise

    def _is_over(self, group: str, rebuild: RebuildRecord | None) -> bool:
        """Return whether another process has ended a rebuild, as far as the database is available."""
        try:
            return not self.is_current(group, rebuild)
        except Exception:  # which is what failed before
            return False


def ended_elsewhere(group: str) -> RebuildError:
    """Return the error for a rebuild that another process has completed, abandoned or begun again."""
    what = f"another process has ended the rebuild of group '{group}' meanwhile, or begun it again"
    return RebuildError("OCQ-630", what, f"group {group}", "opencqrs status --details shows its state")


def rebuild_of(row: Any, prefix: str = "") -> RebuildRecord | None:
    """Return what a row says of a rebuild, in columns with a prefix; ``None`` if these are null."""
    if row[f"{prefix}group_name"] is None:
        return None
    details = json.loads(row[f"{prefix}details"])
    return RebuildRecord(
        group=row[f"{prefix}group_name"],
        phase=RebuildPhase(row[f"{prefix}phase"]),
        handlers=row[f"{prefix}handlers"],
        refused=tuple(json.loads(row[f"{prefix}refused"])),
        relations=tuple(SwappedRelation(*each.split(":", 1)) for each in details["relations"]),
        shared=tuple(details["shared"]),
        undoes=details["undoes"],
        started_at=row[f"{prefix}started_at"],
        conditions=details.get("conditions", {}),
        filled=None if details.get("filled") is None else tuple(details["filled"]),
    )


def rebuild_row(record: RebuildRecord) -> dict[str, Any]:
    """Return the row of a rebuild."""
    details = {
        "relations": [f"{each.kind}:{each.name}" for each in record.relations],
        "shared": record.shared,
        "undoes": record.undoes,
        "conditions": dict(record.conditions),
        "filled": record.filled,
    }
    return {
        "group_name": record.group,
        "phase": record.phase.value,
        "handlers": record.handlers,
        "refused": json.dumps(record.refused),
        "details": json.dumps(details),
        "started_at": record.started_at,
    }

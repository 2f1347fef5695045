"""The rows of the table ``opencqrs_rebuilds``: the last rebuild of each group."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import Connection, Table, select

from opencqrs_py.model.rebuild import RebuildPhase, RebuildRecord, SwappedRelation


def found_rebuild(connection: Connection, table: Table, group: str) -> RebuildRecord | None:
    """Return the last rebuild of a group; ``None`` if there was none."""
    row = connection.execute(select(table).where(table.c.group_name == group)).mappings().first()
    return None if row is None else rebuild_of(row)


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

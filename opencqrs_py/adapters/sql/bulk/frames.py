"""``bulk.upsert`` of a data frame of Spark in a handler: its rows need not fit into the memory of this process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from decimal import Decimal
from typing import Any

from opencqrs_py.adapters.sql.bulk.rows import columns_of, misfit
from opencqrs_py.adapters.sql.bulk.staging import (
    StagedMerge,
    drop_stages,
    leftovers,
    shared_stage,
    temporary_stage,
)
from opencqrs_py.adapters.sql.bulk.target import Target
from opencqrs_py.adapters.sql.bulk.write import ColumnValues, TableShape
from opencqrs_py.adapters.sql.transactions import Unit
from opencqrs_py.processing.staging import FrameRows, RecordBatches, Stage

MOST_HELD = 50_000
"""Rows that are written without a stage; beyond that the driver holds no more than about as many at once."""

# A value of each Spark type, to check a call before the data frame is computed.
_EXAMPLES: dict[str, Any] = {
    **dict.fromkeys(("tinyint", "smallint", "int", "bigint"), 0),
    **dict.fromkeys(("float", "double"), 0.0),
    "boolean": True,
    "void": None,
}


def upsert_frame(target: Target, frame: Any, unit: Unit, rows: FrameRows) -> int:
    """Merge the rows of a data frame into a table; see ``bulk.upsert``.

    A few rows are fetched and written by one statement. More are gathered in a stage and merged from there: tasks fill
    it if they reach the database; else this process does, some thousands at a time.
    """
    columns = tuple(frame.columns)
    shape = target.shape(target.wanted(_examples(target.name, frame.dtypes)))
    shared = _shared_stage(target, shape, columns, unit, rows)
    with rows.collected(frame, shared) as collected:
        merge = None
        if shared is not None and collected.staged:
            unit.stages.append(shared)
            merge = StagedMerge(target, shape, shared, list(collected.staged))
        return _written(target, shape, columns, collected.tables, merge)


def _examples(table: str, types: Sequence[tuple[str, str]]) -> dict[str, ColumnValues]:
    """Return a value for each column, as they are known by their types only."""
    if len({name for name, _ in types}) < len(types):
        raise misfit(table, "two columns of the rows have the same name", "rename one of them")
    if odd := next((name for name, kind in types if kind == "variant"), None):
        raise misfit(table, f"{odd} is a VARIANT", "write it as a text: sf.to_json(…)")
    return {name: [Decimal(0) if kind.startswith("decimal") else _EXAMPLES.get(kind, "")] for name, kind in types}


def _shared_stage(
    target: Target, shape: TableShape, columns: Sequence[str], unit: Unit, rows: FrameRows
) -> Stage | None:
    """Return where tasks may store rows, ``None`` if the transaction would not see them; leftovers are dropped."""
    if not rows.can_stage() or not unit.dialect.sees_stages(target.connection):
        return None
    if not unit.looked_for_leftovers:
        unit.looked_for_leftovers = True
        if found := leftovers(target.connection, unit.database, rows.group):
            drop_stages(unit.database, found)
    return shared_stage(target, shape, columns, unit.database, rows.group)


def _written(
    target: Target,
    shape: TableShape,
    columns: Sequence[str],
    tables: Iterable[RecordBatches],
    merge: StagedMerge | None,
) -> int:
    held: dict[str, list[Any]] = {name: [] for name in columns}
    with ExitStack() as temporary:
        for table in tables:
            for name, values in columns_of(table, target.name).items():
                held[name].extend(values)
            if len(held[columns[0]]) >= MOST_HELD:
                if merge is None:
                    stage = temporary.enter_context(temporary_stage(target, shape, columns))
                    merge = StagedMerge(target, shape, stage)
                merge.add(held)
                held = {name: [] for name in columns}
        if merge is None:
            return target.write(held)
        merge.add(held)
        return merge.merge()

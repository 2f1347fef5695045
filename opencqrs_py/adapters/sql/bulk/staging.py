"""Stages: tables that hold the rows of a data frame until one statement merges them into the read model.

A stage that tasks fill belongs to one call of ``bulk.upsert``, so no other call can meet its rows; and of these only
those count whose runs the call names, so it does not matter which runs of a task were interrupted, or repeated. It is
dropped after the commit. Those of calls that were rolled back, or whose process was killed, are dropped by the next
call of the same group, which holds the lock on the group's progress.

A stage that the driver fills is a temporary table of its transaction.

Rejected: one lasting table for all calls (to delete rows leaves dead ones, and takes longer than to drop a table); a
table for each task (as many definitions as tasks); rows keyed by range and task that a second run replaces (two runs at
once each delete what neither sees, and both insert).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from secrets import token_hex
from typing import Any

from sqlalchemy import Connection, types
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql.bulk.rows import (
    as_kept,
    columns_of,
    in_days_or_moments,
    misfit,
    moments_in,
    rounded_in,
    same_keys,
    short_in,
    shown,
)
from opencqrs_py.adapters.sql.bulk.target import Target
from opencqrs_py.adapters.sql.bulk.write import BulkWrite, ColumnValues, TableShape
from opencqrs_py.adapters.sql.connections import reason_of
from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.dialects.dialect import STAGED_BY, Dialect
from opencqrs_py.adapters.sql.dialects.faults import Fault
from opencqrs_py.errors import BulkWriteError, EventStoreError, UnavailableError
from opencqrs_py.processing.staging import RecordBatches, Stage, StagedRows

STAGES = "opencqrs_staged_"
"""How the names of stages begin."""

_OWN = "driver"  # the run under which the driver adds rows
_GRANT = (
    "grant the database's user the right to create tables beside opencqrs_progress; or aggregate further, as a few "
    "thousand rows per task need no table"
)


# -------------------------------------------------------------------------------------------------------- definitions


def shared_stage(target: Target, shape: TableShape, columns: Sequence[str], database: Database, group: str) -> Stage:
    """Return a stage for one call, which tasks create beside the progress and fill."""
    return _stage(target, shape, columns, database.schema, _beginning(group) + token_hex(8), shared=True)


@contextmanager
def temporary_stage(target: Target, shape: TableShape, columns: Sequence[str]) -> Iterator[Stage]:
    """Create a stage of the transaction, and drop it after the block; a roll back does so, too."""
    stage = _stage(target, shape, columns, None, STAGES + token_hex(8), shared=False)
    target.connection.exec_driver_sql(stage.definition)
    yield stage
    target.connection.exec_driver_sql(f"{target.dialect.drop_temporary} {stage.name}")


def _beginning(group: str) -> str:
    """Return the beginning of the names of a group's stages, which have less than 63 characters."""
    return f"{STAGES}{sha256(group.encode()).hexdigest()[:16]}_"


def _stage(
    target: Target, shape: TableShape, columns: Sequence[str], schema: str | None, name: str, *, shared: bool
) -> Stage:
    dialect, preparer = target.dialect, target.connection.dialect.identifier_preparer
    kinds = tuple(shape.types.get(column, "") for column in columns)
    whole = _quoted(preparer, schema, name)
    written = ", ".join(
        f"{dialect.stage_column(preparer.quote_identifier(column), kind, summed)} AS c{number}"
        for number, (column, kind) in enumerate(zip(columns, kinds, strict=True))
        for summed in (shape.columns[column]["type"] if column in target.add else None,)
    )
    definition = dialect.defined_stage(whole, written, _quoted(preparer, shape.schema, shape.name), shared=shared)
    kept = rounded_in(shape, dialect), short_in(shape), moments_in(shape, dialect)
    return Stage(schema, name, definition, tuple(columns), kinds, target.keys, target.name, *kept)


def _quoted(preparer: Any, schema: str | None, name: str) -> str:
    return ".".join(preparer.quote_identifier(part) for part in (schema, name) if part is not None)


# --------------------------------------------------------------------------------------------------------------- rows


def stage_rows(database: Database, stage: Stage, run: str, tables: Iterable[RecordBatches]) -> int:
    """Create a stage, unless it is there, and write rows into it, each table in a transaction; return how many.

    Runs on executors. Nothing is held open while Spark computes what comes next.

    Raises:
        BulkWriteError: OCQ-360, if a key is null; OCQ-363, if the user may not create the stage.
        DBAPIError: As SQLAlchemy raises it.
    """
    _create(database, stage)
    count = 0
    for table in tables:
        columns = columns_of(table, stage.target)
        with database.writing() as connection:
            count += _insert(connection, database.dialect, stage, run, columns)
    return count


def _create(database: Database, stage: Stage) -> None:
    """Create a stage; it may fail at first because another task creates it at the same time."""
    for again in (True, False):
        try:
            with database.writing() as connection:
                connection.exec_driver_sql(stage.definition)
        except DBAPIError as error:
            if database.dialect.fault_of(error) is Fault.DENIED:
                what = f"no table can be created for the rows of tasks ({reason_of(error)})"
                raise BulkWriteError("OCQ-363", what, f"bulk.upsert into {stage.target}", _GRANT) from None
            if not again:
                raise
        else:
            return


def _insert(
    connection: Connection, dialect: Dialect, stage: Stage, run: str, columns: Mapping[str, ColumnValues]
) -> int:
    for key in stage.keys:
        if None in columns[key]:
            raise misfit(stage.target, f"the key {key} of a row is null", "omit such rows: no row can be found by it")
    columns = in_days_or_moments(columns, stage.moments)
    columns = as_kept(columns, stage.target, dialect, stage.rounded, stage.short)
    named: dict[str, ColumnValues] = {f"c{number}": columns[name] for number, name in enumerate(stage.columns)}
    count = len(named["c0"])
    if count:
        types_in_sql = {**{f"c{number}": kind for number, kind in enumerate(stage.types)}, STAGED_BY: "text"}
        shape = TableShape(stage.name, stage.schema, {}, (), types=types_in_sql)
        preparer = connection.dialect.identifier_preparer
        dialect.upsert(connection, BulkWrite(shape, {**named, STAGED_BY: [run] * count}, (), (), preparer))
    return count


# --------------------------------------------------------------------------------------------------------------- merge


@dataclass
class StagedMerge:
    """The rows of one call that are in a stage, to be merged into their table within the transaction.

    Attributes:
        target: The table, and how rows are merged.
        shape: What the database knows of it.
        stage: Where the rows are.
        staged: The runs of tasks whose rows count.
    """

    target: Target
    shape: TableShape
    stage: Stage
    staged: list[StagedRows] = field(default_factory=list)

    def add(self, columns: Mapping[str, ColumnValues]) -> None:
        """Write rows that the driver has into the stage."""
        count = _insert(self.target.connection, self.target.dialect, self.stage, _OWN, columns)
        self.staged.append(StagedRows(_OWN, count))

    def merge(self) -> int:
        """Merge the rows by one statement in the order of their keys; return how many there are of different keys.

        Raises:
            BulkWriteError: OCQ-360, if the table takes no rows without a column that they leave out; OCQ-362, if two
                rows have the same keys and ``add`` does not cover all other columns.
            UnavailableError: OCQ-420, if rows that tasks have stored are not visible.
            DBAPIError: As SQLAlchemy raises it.
        """
        target = self.target
        total, different = self._counted()
        if total != sum(rows.count for rows in self.staged):
            raise UnavailableError("OCQ-420", f"rows for {target.name} that tasks stored in a table are gone")
        others = [name for name in self.stage.columns if name not in (*target.keys, *target.add)]
        if different < total and others:
            raise self._doubled(others)
        columns, sum_of = dict.fromkeys(self.stage.columns, ()), target.dialect.sum_of
        write = BulkWrite(self.shape, columns, target.keys, target.add, self._preparer, sum_of)
        with target.sending(write):
            target.dialect.upsert_selected(target.connection, write, self._select(summed=different < total), self._runs)
        if others and not target.dialect.stages_collate:
            self._require_all(write, different, others)
        return different

    def _require_all(self, write: BulkWrite, different: int, others: Sequence[str]) -> None:
        """Refuse keys that the table treats as the same, and the stage does not: one row is there for some of them."""
        names = write.listed(self.target.keys)
        text = f"SELECT COUNT(*) FROM {write.table} WHERE ({names}) IN (SELECT {self._keys} {self._from})"  # noqa: S608 quoted
        if self.target.connection.exec_driver_sql(text, self._runs).scalar_one() < different:
            what = f"several rows have keys ({', '.join(self.target.keys)}) that the table treats as the same"
            raise same_keys(self.target.name, what, others)

    @property
    def _preparer(self) -> Any:
        return self.target.connection.dialect.identifier_preparer

    @property
    def _runs(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(rows.run for rows in self.staged))

    @property
    def _from(self) -> str:
        marks = ", ".join([self.target.dialect.mark] * len(self._runs))
        return f"FROM {_quoted(self._preparer, self.stage.schema, self.stage.name)} WHERE {STAGED_BY} IN ({marks})"

    @property
    def _keys(self) -> str:
        return ", ".join(self._column(name) for name in self.target.keys)

    def _column(self, name: str) -> str:
        return f"c{self.stage.columns.index(name)}"

    def _counted(self) -> tuple[int, int]:
        """Return how many rows there are, and how many of different keys."""
        groups = f"SELECT COUNT(*) AS size {self._from} GROUP BY {self._keys}"
        text = f"SELECT COALESCE(SUM(size), 0), COUNT(*) FROM ({groups}) opencqrs_groups"  # noqa: S608 our own names
        total, different = self.target.connection.exec_driver_sql(text, self._runs).one()
        return int(total), int(different)

    def _doubled(self, others: Sequence[str]) -> BulkWriteError:
        keys = self.target.keys
        text = f"SELECT {self._keys}, COUNT(*) {self._from} GROUP BY {self._keys} HAVING COUNT(*) > 1 LIMIT 1"
        *found, count = self.target.connection.exec_driver_sql(text, self._runs).one()
        what = f"{count} rows have the same {', '.join(keys)} ({shown(found)})"
        return same_keys(self.target.name, what, others)

    def _select(self, *, summed: bool) -> str:
        columns = [
            f"SUM({self._column(name)})" if summed and name not in self.target.keys else self._column(name)
            for name in self.stage.columns
        ]
        grouped = f" GROUP BY {self._keys}" if summed else ""
        order = ", ".join(map(self._sorted, self.target.keys))
        return f"SELECT {', '.join(columns)} {self._from}{grouped} ORDER BY {order}"

    def _sorted(self, key: str) -> str:
        column = self._column(key)
        of_texts = isinstance(self.shape.columns[key]["type"], types.String)
        return self.target.dialect.in_python_order(column) if of_texts else column


# ------------------------------------------------------------------------------------------------------------ leftovers


def leftovers(connection: Connection, database: Database, group: str) -> list[Stage]:
    """Return the existing stages of a group, in a transaction that holds the lock on its progress.

    They are those of earlier transactions: a later one begins when this one has ended.
    """
    beginning = _beginning(group)
    text = (
        "SELECT table_name FROM information_schema.tables "  # noqa: S608 our own names
        f"WHERE table_schema = COALESCE({database.dialect.mark}, {database.dialect.current_schema}) "
        f"AND LEFT(table_name, {len(beginning)}) = {database.dialect.mark}"
    )
    names = connection.exec_driver_sql(text, (database.schema, beginning)).scalars().all()
    return [Stage(database.schema, str(name), "", (), (), (), "") for name in names]


def drop_stages(database: Database, stages: Sequence[Stage]) -> None:
    """Drop stages, if they exist. What cannot be dropped is left to the next call of its group."""
    with suppress(DBAPIError, EventStoreError), database.reading(apart=True) as connection:
        for stage in stages:
            name = _quoted(connection.dialect.identifier_preparer, stage.schema, stage.name)
            database.dialect.drop_stage(connection, name)

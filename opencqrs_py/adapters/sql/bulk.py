"""Bulk writes: many rows inserted or merged by one statement, within the caller's transaction."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Context, Decimal, Inexact
from functools import reduce
from itertools import groupby
from operator import add as plus
from threading import Lock
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, Table, inspect
from sqlalchemy.exc import DBAPIError, NoSuchTableError
from sqlalchemy.orm import Session

from opencqrs_py.adapters.sql.bulk_write import BulkWrite, Column, TableShape
from opencqrs_py.adapters.sql.dialect import Dialect, dialect_named
from opencqrs_py.errors import BulkWriteError
from opencqrs_py.model.json_text import write_json

Rows = Any
"""A ``pyarrow.Table``, ``RecordBatch`` or ``DataFrame``, known by what it can do; or a sequence of mappings."""

_PLAIN = frozenset({str, int, float, bool, bytes, Decimal, type(None)})
_NUMBERS = frozenset({int, float, Decimal, type(None)})
_EXACT = Context(prec=10_000, traps=[Inexact])
_CONSTRAINT = "create the table with PRIMARY KEY ({0}) or UNIQUE ({0}), or name the columns of the one that it has"

_TRUSTED_SECONDS = 60.0  # how long a table is taken for unchanged: MariaDB says nothing of a new unique constraint

_Known = dict[tuple[str | None, str], tuple[TableShape, float]]  # each with the monotonic time until which it counts
_shapes: WeakKeyDictionary[Engine, _Known] = WeakKeyDictionary()
_lock = Lock()


def upsert(
    connection: Connection | Session,
    table: str | Table,
    rows: Rows,
    *,
    keys: str | Sequence[str],
    add: str | Sequence[str] = (),
) -> int:
    """Insert rows, or change those that have the same keys, by one statement in the open transaction.

    Rows are written in the order of their keys, so that two transactions that write the same rows wait for each other
    and do not deadlock. What is not given stays as it is, and has its default in a new row.

    Args:
        connection: The transaction: what a handler gets as ``Connection`` or ``Session``.
        table: Name, ``schema.name``, or a table of SQLAlchemy.
        rows: A ``pyarrow.Table``; a ``DataFrame`` of Spark, whose rows come to this process at once; or mappings that
            all have the same keys. Their names are those of the table's columns. A moment with an offset is written in
            UTC, a list or a mapping as JSON.
        keys: The columns by which a row is found: those of the primary key or of another unique constraint.
        add: The columns whose values are added to what is there; nothing there counts as 0. All others are set.

    Returns:
        How many rows were written.

    Raises:
        BulkWriteError: OCQ-360, if rows, columns or the table do not fit each other; OCQ-361, if the database does not
            hold the keys unique; OCQ-362, if two rows have the same keys, unless ``add`` covers all other columns: then
            they are summed.
        TypeError: If ``connection`` or ``rows`` are something else.
        DBAPIError: As SQLAlchemy raises it.
    """
    opened: object = connection
    if isinstance(connection, Session):
        connection.flush()  # what it holds comes before
        opened = connection.connection()
    if not isinstance(opened, Connection):
        msg = f"bulk.upsert needs sqlalchemy.Connection or sqlalchemy.orm.Session, got {type(opened).__qualname__}"
        raise TypeError(msg)
    schema, name = _named(table)
    columns = _columns_of(rows.toArrow() if hasattr(type(rows), "toArrow") else rows, name)
    length = len(next(iter(columns.values()), ()))
    if not length:
        return 0
    wanted = _Wanted(name, columns, _several(keys), _several(add))
    wanted.check()
    dialect = _dialect_of(opened)
    shape = _fitting_shape(opened, dialect, wanted, (schema, name))
    merged = wanted.merged()
    write = BulkWrite(shape, merged, wanted.keys, wanted.add, opened.dialect.identifier_preparer)
    try:
        dialect.upsert(opened, write)
    except DBAPIError:
        _known_shapes(opened).pop((schema, name), None)  # perhaps it was another one
        raise
    return len(write)


def _several(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _named(table: str | Table) -> tuple[str | None, str]:
    if isinstance(table, Table):
        return table.schema, table.name
    schema, _, name = table.rpartition(".")
    return schema or None, name


def _dialect_of(connection: Connection) -> Dialect:
    dialect = dialect_named(connection.dialect.name)
    if dialect is None:
        what = f"bulk.upsert does not know the database {connection.dialect.name}"
        raise BulkWriteError("OCQ-360", what, fix="use SQLite, PostgreSQL or MariaDB")
    return dialect


# ------------------------------------------------------------------------------------------------------------- rows


def _columns_of(rows: Rows, table: str) -> dict[str, Column]:
    if hasattr(rows, "column_names") and hasattr(rows, "columns"):
        names = list(rows.column_names)
        if len(set(names)) < len(names):
            raise _misfit(table, "two columns of the rows have the same name", "rename one of them")
        return {name: _sent(column.to_pylist()) for name, column in zip(names, rows.columns, strict=True)}
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Sequence):
        msg = f"bulk.upsert needs a pyarrow.Table or a sequence of mappings, got {type(rows).__qualname__}"
        raise TypeError(msg)
    return {name: _sent(column) for name, column in _columns_of_mappings(rows, table).items()}


def _columns_of_mappings(rows: Sequence[Any], table: str) -> dict[str, list[Any]]:
    names = list(rows[0]) if rows else []
    for number, row in enumerate(rows, 1):
        if row.keys() != rows[0].keys():
            odd = sorted(map(str, row.keys() ^ rows[0].keys()))
            what = f"row {number} has other columns than the first one ({', '.join(odd)})"
            raise _misfit(table, what, "give each row a value for each column, None for none")
    return {name: [row[name] for row in rows] for name in names}


def _sent(values: Column) -> Column:
    """Return values as every driver takes them; numbers, texts and bytes stay what they are."""
    return values if _PLAIN.issuperset(map(type, values)) else [_sent_value(value) for value in values]


def _sent_value(value: Any) -> Any:
    match value:
        case datetime():
            return value.astimezone(UTC) if value.tzinfo is not None else value
        case UUID():
            return str(value)
        case dict() | list() | tuple():
            return write_json(value)
    return value


def _misfit(table: str, what: str, fix: str) -> BulkWriteError:
    return BulkWriteError("OCQ-360", what, f"bulk.upsert into {table}", fix)


class _Wanted:
    """What a call asks for, before the table is looked at."""

    def __init__(self, table: str, columns: Mapping[str, Column], keys: tuple[str, ...], add: tuple[str, ...]) -> None:
        self.table = table
        self.columns = columns
        self.keys = keys
        self.add = add

    def check(self) -> None:
        """Raise OCQ-360 if the parts of the call do not fit each other."""
        if not self.keys:
            raise _misfit(self.table, "no keys are named", "name the columns by which a row is found: keys=[…]")
        for argument, names in (("keys", self.keys), ("add", self.add)):
            if missing := [name for name in names if name not in self.columns]:
                what = f"{argument} names {', '.join(missing)}, which the rows do not have"
                raise _misfit(self.table, what, f"the rows have {', '.join(map(str, self.columns))}")
        if both := [name for name in self.add if name in self.keys]:
            raise _misfit(self.table, f"{', '.join(both)} is both a key and to be added", "leave it out of add")
        for name in self.keys:
            if None in self.columns[name]:
                what = f"the key {name} of row {list(self.columns[name]).index(None) + 1} is null"
                raise _misfit(self.table, what, "leave rows without a key out: no row is found by it")
        for name in self.add:
            if wrong := set(map(type, self.columns[name])) - _NUMBERS:
                what = f"{name} is to be added and has values of type {', '.join(sorted(t.__name__ for t in wrong))}"
                raise _misfit(self.table, what, "add numbers only")

    def misfits(self, shape: TableShape, dialect: Dialect) -> Iterator[BulkWriteError]:
        """Yield what is wrong with the call for a table."""
        if unknown := [name for name in self.columns if name not in shape.columns]:
            what = f"the table has no column {', '.join(map(str, unknown))}"
            yield _misfit(self.table, what, f"its columns are {', '.join(shape.columns)}")
        elif frozenset(self.keys) not in shape.unique:
            what = f"no unique constraint of the table has the columns {', '.join(self.keys)}"
            where = f"bulk.upsert into {self.table}"
            yield BulkWriteError("OCQ-361", what, where, _CONSTRAINT.format(", ".join(self.keys)))
        elif obstacle := dialect.upsert_obstacle(shape, self.columns, self.keys, self.add):
            yield _misfit(self.table, obstacle, "write these rows with a statement of your own")

    def merged(self) -> dict[str, Column]:
        """Return the columns sorted by the keys; rows with the same keys are summed, or refused."""
        of_keys = [self.columns[name] for name in self.keys]
        keys: Sequence[Any] = of_keys[0] if len(of_keys) == 1 else list(zip(*of_keys, strict=True))
        try:
            order = sorted(range(len(keys)), key=keys.__getitem__)
        except TypeError as error:
            what = f"the values of {', '.join(self.keys)} cannot be sorted ({error})"
            raise _misfit(self.table, what, "give each key column values of one type") from error
        if len(set(keys)) == len(keys):
            return {name: [column[index] for index in order] for name, column in self.columns.items()}
        same = [list(group) for _, group in groupby(order, keys.__getitem__)]
        if others := [name for name in self.columns if name not in (*self.keys, *self.add)]:
            doubled = next(group for group in same if len(group) > 1)
            what = f"{len(doubled)} rows have the same {', '.join(self.keys)} ({keys[doubled[0]]!r})"
            fix = f"keep one of them, or let {', '.join(others)} be added too"
            raise BulkWriteError("OCQ-362", what, f"bulk.upsert into {self.table}", fix)
        return {name: self._summed(name, same) for name in self.columns}

    def _summed(self, name: str, same: Iterable[Sequence[int]]) -> list[Any]:
        column = self.columns[name]
        if name in self.keys:
            return [column[group[0]] for group in same]
        total = _total_of(column)
        return [total([column[index] for index in group]) for group in same]


def _total_of(column: Column) -> Callable[[list[Any]], Any]:
    """Return what sums values of a column; no digit is lost, and nothing counts as 0 beside a number."""
    one: Callable[[Any, Any], Any] = _EXACT.add if Decimal in set(map(type, column)) else plus

    def total(values: list[Any]) -> Any:
        numbers = [value for value in values if value is not None]
        return reduce(one, numbers) if numbers else None

    return total


# ------------------------------------------------------------------------------------------------------------ tables


def _known_shapes(connection: Connection) -> _Known:
    with _lock:
        return _shapes.setdefault(connection.engine, {})


def _fitting_shape(
    connection: Connection, dialect: Dialect, wanted: _Wanted, table: tuple[str | None, str]
) -> TableShape:
    """Return what is known of the table; look again before something is refused, as it may have been changed."""
    known, now = _known_shapes(connection), time.monotonic()
    shape, until = known.get(table, (None, now))
    if shape is not None and now < until and next(wanted.misfits(shape, dialect), None) is None:
        return shape
    shape = _looked_up(connection, dialect, *table)
    known[table] = shape, now + _TRUSTED_SECONDS
    for error in wanted.misfits(shape, dialect):
        raise error
    return shape


def _looked_up(connection: Connection, dialect: Dialect, schema: str | None, name: str) -> TableShape:
    inspector = inspect(connection)
    try:
        columns = {column["name"]: column for column in inspector.get_columns(name, schema=schema)}
    except NoSuchTableError:
        columns = {}
    if not columns:
        fix = "create it, as in an @on_start function; 'schema.name' names one in another schema"
        raise _misfit(name, "there is no such table", fix)
    key = inspector.get_pk_constraint(name, schema=schema)["constrained_columns"]
    constraints = inspector.get_unique_constraints(name, schema=schema)
    indexes = [index for index in inspector.get_indexes(name, schema=schema) if index["unique"]]
    limited = [_columns_in(index) for index in indexes if _is_limited(index)]
    whole = [_columns_in(one) for one in (*constraints, *indexes) if not _is_limited(one)]
    unique = [one for one in (frozenset(key), *whole) if one and one not in limited]
    return TableShape(name, schema, columns, unique, limited, dialect.column_types(connection, schema, name))


def _columns_in(constraint: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name for name in constraint["column_names"] if name is not None)


def _is_limited(index: Mapping[str, Any]) -> bool:
    """Return whether an index has a condition, an expression, or the beginnings of values."""
    options = index.get("dialect_options", {})
    partial = any(option.endswith(("where", "length")) and limit is not None for option, limit in options.items())
    return partial or None in index["column_names"]

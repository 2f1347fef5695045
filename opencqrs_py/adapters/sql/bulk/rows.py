"""The rows of a bulk write: their columns, and whether they fit each other and the table."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal, Inexact
from enum import Enum
from functools import reduce
from math import isfinite
from operator import add as plus
from typing import Any
from uuid import UUID

from sqlalchemy import String

from opencqrs_py.adapters.sql.bulk.write import ColumnValues, TableShape
from opencqrs_py.adapters.sql.dialects.dialect import Dialect
from opencqrs_py.errors import BulkWriteError
from opencqrs_py.model.json_text import write_json
from opencqrs_py.processing.exceptions import one_line
from opencqrs_py.processing.staging import KeptMoment

GivenRows = Any
"""A ``pyarrow.Table``, ``RecordBatch`` or ``DataFrame``, recognised by its methods; or a sequence of mappings."""

_PLAIN = frozenset({str, int, float, bool, bytes, Decimal, UUID, type(None)})
_KNOWN = (str, int, float, bytes, Decimal, type(None), date, time, timedelta, UUID)
_HEX_DIGITS = 32  # of a UUID
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_NUMPY_NUMBERS = ("bool", "int", "uint", "float")  # the prefixes of the names of NumPy's types
_NUMBERS = frozenset({int, float, Decimal, type(None)})
_EXACT = Context(prec=10_000, traps=[Inexact])
_CONSTRAINT = "create the table with PRIMARY KEY ({0}) or UNIQUE ({0}), or name the columns of the one that it has"


def columns_of(rows: GivenRows, table: str) -> dict[str, ColumnValues]:
    """Return the values of rows by column, as drivers take them.

    Raises:
        BulkWriteError: OCQ-360, if two columns have the same name, or the keys of a mapping differ from those of the
            first one.
        TypeError: If they are not rows.
    """
    if hasattr(rows, "column_names") and hasattr(rows, "columns"):
        names = list(rows.column_names)
        if len(set(names)) < len(names):
            raise misfit(table, "two columns of the rows have the same name", "rename one of them")
        return {name: _sent(_values_of(column), name, table) for name, column in zip(names, rows.columns, strict=True)}
    if isinstance(rows, str | bytes | Mapping) or not isinstance(rows, Sequence):
        msg = f"bulk.upsert needs a pyarrow.Table or a sequence of mappings, got {type(rows).__qualname__}"
        raise TypeError(msg)
    return {name: _sent(column, name, table) for name, column in _columns_of_mappings(rows, table).items()}


def _values_of(column: Any) -> list[Any]:
    """Return the values of a column of Arrow, with maps as dictionaries: Arrow makes lists of pairs of them."""
    values: list[Any] = column.to_pylist()
    return [_with_maps(value, column.type) for value in values] if "map<" in str(column.type) else values


def _with_maps(value: Any, kind: Any) -> Any:
    if value is None or not kind.num_fields:
        return value
    if isinstance(value, dict):  # a struct
        return {name: _with_maps(each, kind.field(name).type) for name, each in value.items()}
    if hasattr(kind, "item_type"):  # a map
        return {str(key): _with_maps(each, kind.item_type) for key, each in value}
    return [_with_maps(each, kind.value_type) for each in value]


def _columns_of_mappings(rows: Sequence[Any], table: str) -> dict[str, list[Any]]:
    for kind in set(map(type, rows)):
        if not issubclass(kind, Mapping):
            msg = f"bulk.upsert needs rows that are mappings, such as dict, got {kind.__qualname__}"
            raise TypeError(msg)
    names = list(rows[0]) if rows else []
    for number, row in enumerate(rows, 1):
        if row.keys() != rows[0].keys():
            odd = sorted(map(str, row.keys() ^ rows[0].keys()))
            what = f"row {number} has other columns than the first one ({', '.join(odd)})"
            raise misfit(table, what, "give each row a value for each column, None for none")
    return {name: [row[name] for row in rows] for name in names}


def _sent(values: ColumnValues, name: str, table: str) -> ColumnValues:
    """Return values as every driver takes them; numbers, texts and bytes stay what they are.

    Drivers silently store some others as something else: SQLite's the bytes of NumPy numbers, MariaDB's the ``repr`` of
    objects.

    Raises:
        BulkWriteError: OCQ-360, if there is something else.
    """
    if _PLAIN.issuperset(map(type, values)):
        return values
    try:
        sent = [_sent_value(value) for value in values]
    except (TypeError, ValueError) as error:
        what = f"{name} has a list or mapping that cannot be JSON ({one_line(error)})"
        fix = "write only texts, numbers, booleans, moments, lists, mappings and None to it"
        raise misfit(table, what, fix) from error
    for value in sent:
        is_no_moment = isinstance(value, datetime) and value != value  # noqa: PLR0124 NaT of pandas
        if is_no_moment or not isinstance(value, _KNOWN):
            fix = "write numbers, texts, bytes, moments, lists or mappings, and None where there is no value"
            raise misfit(table, f"{name} has a value of type {type(value).__qualname__}", fix)
    return sent


def _sent_value(value: Any) -> Any:
    match value:
        case Enum():
            return _sent_value(value.value)
        case datetime():
            return value.astimezone(UTC) if value.tzinfo is not None else value
        case dict() | list() | tuple():
            return write_json(value, in_utc=True)  # moments of Spark have the offset of its session
        case bytearray() | memoryview():
            return bytes(value)
        case str() | int() | float():
            return _built_in(value)
    is_number = getattr(value, "ndim", None) == 0 and value.dtype.name.startswith(_NUMPY_NUMBERS)
    return value.item() if is_number else value


def _built_in(value: str | float) -> Any:
    """Return a value of a derived class as a built-in one, which every driver knows; it may override ``__str__``."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, bool):
        return value
    return int(value) if isinstance(value, int) else float(value)


def misfit(table: str, what: str, fix: str) -> BulkWriteError:
    """Return the error for parts of a call that do not fit each other or the table."""
    return BulkWriteError("OCQ-360", what, f"bulk.upsert into {table}", fix)


def same_keys(table: str, what: str, others: Sequence[str]) -> BulkWriteError:
    """Return the error for rows with the same keys whose other columns would be set."""
    fix = f"keep one of them, or include {', '.join(others)} in add, too"
    return BulkWriteError("OCQ-362", what, f"bulk.upsert into {table}", fix)


def check_floats(columns: Mapping[str, ColumnValues], table: str, dialect: Dialect) -> None:
    """Raise OCQ-360 for a float that the database cannot hold: SQLite would silently store NULL for NaN."""
    for name, column in columns.items():
        _check_floats(name, column, set(map(type, column)), table, dialect)


def _check_floats(name: str, column: ColumnValues, kinds: Iterable[type], table: str, dialect: Dialect) -> None:
    if not dialect.unstorable or not any(issubclass(kind, float) for kind in kinds):
        return
    numbers = [value for value in column if isinstance(value, float)]
    if isfinite(sum(numbers)):  # none of them is NaN or infinite
        return
    if found := dialect.unstorable.intersection(map(str, map(float, numbers))):
        what = f"{name} has the value {min(found)}, which a {dialect.name} database cannot store"
        raise misfit(table, what, "write None where there is no number, or omit such rows")


def rounded_in(shape: TableShape, dialect: Dialect) -> tuple[str, ...]:
    """Return the columns of a table that would silently round numbers which they cannot hold."""
    return tuple(name for name, column in shape.columns.items() if dialect.rounds(column["type"]))


def short_in(shape: TableShape) -> tuple[str, ...]:
    """Return the columns of a table in which SQLAlchemy keeps UUIDs without hyphens."""
    return tuple(
        name for name, column in shape.columns.items() if getattr(column["type"], "length", None) == _HEX_DIGITS
    )


def moments_in(shape: TableShape, dialect: Dialect) -> dict[str, KeptMoment]:
    """Return the columns of a table whose days or moments are converted first, and what does so."""
    found = ((name, dialect.kept_moment(column["type"])) for name, column in shape.columns.items())
    return {name: convert for name, convert in found if convert is not None}


def in_days_or_moments(
    columns: Mapping[str, ColumnValues], moments: Mapping[str, KeptMoment]
) -> dict[str, ColumnValues]:
    """Return columns with days where the table has days, and moments where it has moments; see ``moments_in``."""
    kept = dict(columns)
    for name, convert in moments.items():
        if name in columns:
            kept[name] = [convert(value) if isinstance(value, date | str) else value for value in columns[name]]
    return kept


def as_kept(
    columns: Mapping[str, ColumnValues], table: str, dialect: Dialect, rounded: Container[str], short: Container[str]
) -> dict[str, ColumnValues]:
    """Return columns in the form that the table stores unchanged: numbers, and UUIDs in texts of 32 characters.

    Raises:
        BulkWriteError: OCQ-360, for a float that the database cannot hold, or a number that its column would round.
    """
    kept = dict(columns)
    for name, column in columns.items():
        kinds = set(map(type, column))
        _check_floats(name, column, kinds, table, dialect)
        if name in rounded and not kinds.isdisjoint(dialect.rounded_kinds):
            kept[name] = [_kept_number(value, name, table, dialect) for value in column]
        elif name in short and not kinds.isdisjoint((str, UUID)):
            kept[name] = [_without_hyphens(value) for value in column]
    return kept


def _kept_number(value: Any, name: str, table: str, dialect: Dialect) -> Any:
    if not isinstance(value, float | Decimal):
        return value
    kept = dialect.kept_number(value)
    if kept is None:
        what = f"{name} has the value {value}, which its column in a {dialect.name} database cannot hold"
        raise misfit(table, what, "give the column a type that keeps all digits, such as TEXT, or round the value")
    return kept


def _without_hyphens(value: Any) -> Any:
    """Return a UUID, or a text that is one and too long for the column, as SQLAlchemy keeps it there."""
    if isinstance(value, UUID):
        return value.hex
    return UUID(value).hex if isinstance(value, str) and _UUID.fullmatch(value) else value


class UpsertRequest:
    """The request of a call, before the table is inspected."""

    def __init__(
        self, table: str, columns: Mapping[str, ColumnValues], keys: tuple[str, ...], add: tuple[str, ...]
    ) -> None:
        self.table = table
        self.columns = columns
        self.keys = keys
        self.add = add

    def check(self) -> None:
        """Raise OCQ-360 if the parts of the call do not fit each other."""
        if not self.keys:
            raise misfit(self.table, "no keys are named", "name the columns by which a row is found: keys=[…]")
        for argument, names in (("keys", self.keys), ("add", self.add)):
            if missing := [name for name in names if name not in self.columns]:
                what = f"{argument} names {', '.join(missing)}, which the rows do not have"
                raise misfit(self.table, what, f"the rows have {', '.join(map(str, self.columns))}")
        if both := [name for name in self.add if name in self.keys]:
            raise misfit(self.table, f"{', '.join(both)} is both a key and to be added", "remove it from add")
        for name in self.keys:
            if None in self.columns[name]:
                what = f"the key {name} of row {list(self.columns[name]).index(None) + 1} is null"
                raise misfit(self.table, what, "omit rows without a key: no row can be found by it")
        for name in self.add:
            if wrong := set(map(type, self.columns[name])) - _NUMBERS:
                what = f"{name} is in add but has values of type {', '.join(sorted(t.__name__ for t in wrong))}"
                raise misfit(self.table, what, "add numbers only")

    def misfits(self, shape: TableShape, dialect: Dialect) -> Iterator[BulkWriteError]:
        """Yield what is wrong with the call for a table."""
        if unknown := [name for name in self.columns if name not in shape.columns]:
            what = f"the table has no column {', '.join(map(str, unknown))}"
            yield misfit(self.table, what, f"its columns are {', '.join(shape.columns)}")
        elif frozenset(self.keys) not in shape.unique:
            what = f"no unique constraint of the table has the columns {', '.join(self.keys)}"
            where = f"bulk.upsert into {self.table}"
            yield BulkWriteError("OCQ-361", what, where, _CONSTRAINT.format(", ".join(self.keys)))
        elif texts := [name for name in self.add if isinstance(shape.columns[name]["type"], String)]:
            what = f"{', '.join(texts)} is in add, but its column holds texts"
            yield misfit(self.table, what, "give the column a numeric type")
        elif obstacle := dialect.upsert_obstacle(shape, self.columns, self.keys, self.add):
            yield misfit(self.table, obstacle, "write these rows with your own statement")

    def merged(self, texts: Mapping[str, Sequence[str]]) -> dict[str, ColumnValues]:
        """Return the columns sorted by the keys; rows with the same keys are summed, or refused.

        Args:
            texts: The table's form of the values of some key columns, by which they are compared.
        """
        of_keys = [texts.get(name, self.columns[name]) for name in self.keys]
        keys: Sequence[Any] = of_keys[0] if len(of_keys) == 1 else list(zip(*of_keys, strict=True))
        try:
            order = sorted(range(len(keys)), key=keys.__getitem__)
        except TypeError as error:
            what = f"the values of {', '.join(self.keys)} cannot be sorted ({error})"
            raise misfit(self.table, what, "give each key column values of one type") from error
        if len(set(keys)) == len(keys):
            return {name: [column[index] for index in order] for name, column in self.columns.items()}
        rows_of: dict[Any, list[int]] = {}
        for index in order:
            rows_of.setdefault(keys[index], []).append(index)
        same = list(rows_of.values())
        if self.others:
            doubled = next(group for group in same if len(group) > 1)
            key = shown([self.columns[name][doubled[0]] for name in self.keys])
            raise self.doubled(f"{len(doubled)} rows have the same {', '.join(self.keys)} ({key})")
        return {name: self._summed(name, same) for name in self.columns}

    @property
    def others(self) -> list[str]:
        """The columns that are set, so that of rows with the same keys one would be lost."""
        return [name for name in self.columns if name not in (*self.keys, *self.add)]

    def doubled(self, what: str) -> BulkWriteError:
        """Return the error for rows with the same keys."""
        return same_keys(self.table, what, self.others)

    def _summed(self, name: str, same: Iterable[Sequence[int]]) -> list[Any]:
        column = self.columns[name]
        if name in self.keys:
            return [column[group[0]] for group in same]
        total = _total_of(column)
        return [total([column[index] for index in group]) for group in same]


def shown(key: Sequence[Any]) -> str:
    """Return a key as messages show it."""
    texts = [repr(value) if isinstance(value, str | bytes) else str(value) for value in key]
    return texts[0] if len(texts) == 1 else f"({', '.join(texts)})"


def alike(
    rows: Iterable[tuple[Any, ...]], kinds: Container[type], *, numerals: bool = False
) -> list[list[tuple[Any, ...]]]:
    """Return the keys, among different ones, that a database may treat as the same.

    It does so by case, or spaces after a text, and by digits that a column of moments or decimals cuts off.

    Args:
        rows: The keys.
        kinds: The types of values that the database may treat as equal to others.
        numerals: Whether texts may become numbers, as in a column of SQLite that is one of numbers: ``1`` and ``01``;
            or large whole numbers floats.
    """
    folds = {kind: fold for kind, fold in _FOLDS.items() if kind in kinds}
    rows = list(rows)
    found = _grouped(rows, folds)
    if Decimal in folds and any(type(value) is Decimal for row in rows for value in row):
        found += _grouped(rows, {**folds, Decimal: _nearest})  # of two that are rounded to one
    if numerals:
        found += _grouped(rows, {**folds, **dict.fromkeys((str, int, Decimal), _as_float)})
    return found


def _grouped(
    rows: Iterable[tuple[Any, ...]], folds: Mapping[type, Callable[[Any], Any]]
) -> list[list[tuple[Any, ...]]]:
    found: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for row in rows:
        folded = tuple([folds[type(value)](value) if type(value) in folds else value for value in row])
        found.setdefault(folded, []).append(row)
    return [same for same in found.values() if len(same) > 1]


def _as_float(value: str | int | Decimal) -> Any:
    """Return the number that a column of floats makes of a value, without fractions of decimals; else the value."""
    try:
        return float(int(value) if isinstance(value, Decimal) else value)
    except (ValueError, OverflowError):
        return value


def _nearest(value: Decimal) -> int:
    return int(value.to_integral_value(ROUND_HALF_UP))


_FOLDS: Mapping[type, Callable[[Any], Any]] = {
    str: lambda value: value.casefold().rstrip(),
    datetime: datetime.date,  # as a column of dates does
    time: lambda value: (value.hour, value.minute),
    Decimal: int,
}


def _total_of(column: ColumnValues) -> Callable[[list[Any]], Any]:
    """Return a function that sums values of a column; no digit is lost, and null counts as 0 beside a number."""
    one: Callable[[Any, Any], Any] = _EXACT.add if Decimal in set(map(type, column)) else plus

    def total(values: list[Any]) -> Any:
        numbers = [value for value in values if value is not None]
        return reduce(one, numbers) if numbers else None

    return total

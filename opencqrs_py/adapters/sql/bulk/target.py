"""What one call of ``bulk.upsert`` writes to, and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from itertools import chain
from math import isfinite
from typing import Any

from sqlalchemy import Connection, Float, String
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql.bulk.rows import (
    UpsertRequest,
    alike,
    as_kept,
    check_floats,
    in_days_or_moments,
    misfit,
    moments_in,
    rounded_in,
    short_in,
    shown,
)
from opencqrs_py.adapters.sql.bulk.tables import fitting_shape, forget_shape
from opencqrs_py.adapters.sql.bulk.write import BulkWrite, ColumnValues, TableShape
from opencqrs_py.adapters.sql.dialects.dialect import Dialect

Keys = Sequence[tuple[Any, ...]]

_MOST_NAMED = 500  # keys in a statement, or a few more
_NUMBERS = {int, float, bool, Decimal}
_EXACT_IN_FLOATS = 2**53  # up to it a float of double precision holds each whole number


@dataclass(frozen=True)
class Target:
    """A table, and how rows are merged into it: the arguments of ``bulk.upsert`` without the rows."""

    connection: Connection
    dialect: Dialect
    schema: str | None
    name: str
    keys: tuple[str, ...]
    add: tuple[str, ...]

    def wanted(self, columns: Mapping[str, ColumnValues]) -> UpsertRequest:
        """Return the request for some rows; raises OCQ-360 if they do not fit the arguments."""
        found = UpsertRequest(self.name, columns, self.keys, self.add)
        found.check()
        return found

    def shape(self, wanted: UpsertRequest) -> TableShape:
        """Return the shape of the table; raises ``BulkWriteError`` if the rows do not fit it."""
        return fitting_shape(self.connection, self.dialect, wanted, (self.schema, self.name))

    @contextmanager
    def sending(self, write: BulkWrite) -> Iterator[None]:
        """Inspect the table again at the next call, if the statement of the block fails.

        Raises:
            BulkWriteError: OCQ-360, if the rows lack a column that every new row needs.
        """
        try:
            yield
        except DBAPIError as error:
            forget_shape(self.connection, (self.schema, self.name))
            left_out = self.dialect.column_without_value(error.orig, write.shape.name)
            if not write.leaves_empty(left_out):
                raise
            what = f"{left_out} must not be null and has no default, and the rows do not have it"
            fix = f"give {left_out} a default, make it nullable, or write it in each row: existing rows need it, too"
            raise misfit(self.name, what, fix) from error

    def write(self, columns: Mapping[str, ColumnValues]) -> int:
        """Write rows that are all in memory by one statement; return their number after those of one key are summed."""
        if not len(next(iter(columns.values()), ())):
            return 0
        wanted = self.wanted(columns)
        shape = self.shape(wanted)
        preparer = self.connection.dialect.identifier_preparer
        rounded, short = rounded_in(shape, self.dialect), short_in(shape)
        columns = in_days_or_moments(columns, moments_in(shape, self.dialect))
        wanted.columns = as_kept(columns, self.name, self.dialect, rounded, short)
        merged = wanted.merged(self._texts_of_keys(wanted.columns, shape))
        check_floats({name: merged[name] for name in self.add}, self.name, self.dialect)  # a sum may be infinite
        write = BulkWrite(shape, merged, self.keys, self.add, preparer, self.dialect.sum_of)
        with self.sending(write):
            self.dialect.upsert(self.connection, write)
        if wanted.others and len(write) > 1:
            self._require_all(write, wanted)
        return len(write)

    def _texts_of_keys(self, columns: Mapping[str, ColumnValues], shape: TableShape) -> dict[str, Sequence[str]]:
        """Return the texts that text columns make of numbers: for Python 1.5 and 1.50, or 1 and true, are equal."""
        texts: dict[str, Sequence[str]] = {}
        for name in self.keys:
            if isinstance(shape.columns[name]["type"], String):
                kinds = set(map(type, columns[name]))
                if kinds <= _NUMBERS and kinds != {int}:
                    texts[name] = list(map(self.dialect.text_of_number, columns[name]))
        return texts

    def _require_all(self, write: BulkWrite, wanted: UpsertRequest) -> None:
        """Refuse keys that the table treats as the same: only the last of their rows would be stored."""
        columns, kinds = self.dialect.sent(write).columns, self.dialect.confounded
        keys = list(zip(*(columns[name] for name in self.keys), strict=True))
        if self.dialect.equates_letters and kinds.issuperset(map(type, chain(*keys))) and self._are_unusual(write):
            self._require_each(write, wanted, keys)
            return
        numerals = self._has_texts_of_others(write) or self._has_numbers_that_are_rounded(write)
        those = [same for same in alike(keys, kinds, numerals=numerals) if kinds.issuperset(map(type, chain(*same)))]
        for part in _in_parts(those):
            if self._has_all(write, list(chain(*part))):
                continue
            for same in part:
                if not self._has_all(write, same):
                    named = ", ".join(map(shown, self._confounded(write, same)))
                    raise wanted.doubled(f"the table treats {named} as the same {', '.join(self.keys)}")

    def _are_unusual(self, write: BulkWrite) -> bool:
        """Return whether there are texts whose equality only the table can determine.

        They have characters other than visible ASCII ones, or their column does not hold texts.
        """
        if self._has_texts_of_others(write):
            return True
        texts = (value for name in self.keys for value in write.columns[name] if isinstance(value, str))
        return not all(text.isascii() and text.isprintable() for text in texts)

    def _has_texts_of_others(self, write: BulkWrite) -> bool:
        """Return whether there are texts among the keys whose column does not hold texts."""
        others = (name for name in self.keys if not isinstance(write.shape.columns[name]["type"], String))
        return any(isinstance(value, str) for name in others for value in write.columns[name])

    def _has_numbers_that_are_rounded(self, write: BulkWrite) -> bool:
        """Return whether there are whole numbers among the keys that a column of floats does not hold exactly."""
        floats = [name for name in self.keys if isinstance(write.shape.columns[name]["type"], Float)]
        wholes = (value for name in floats for value in write.columns[name] if isinstance(value, int | Decimal))
        return any(isfinite(value) and not -_EXACT_IN_FLOATS <= value <= _EXACT_IN_FLOATS for value in wholes)

    def _require_each(self, write: BulkWrite, wanted: UpsertRequest, keys: Keys) -> None:
        """Refuse keys of which the table has fewer than given: it has one row for several of them."""
        parts = [keys[start : start + _MOST_NAMED] for start in range(0, len(keys), _MOST_NAMED)]
        there = {row for part in parts for row in self._found(write, part)}
        if len(there) == len(keys):
            return
        given = set(keys)
        of_row: dict[tuple[Any, ...], tuple[Any, ...]] = {}
        for key in (key for key in keys if key not in there):
            row = next(iter(self._found(write, [key])), None)
            if row is None:
                what = (
                    f"the table holds {shown(key)} in another form, and may treat it as another {', '.join(self.keys)}"
                )
                raise wanted.doubled(what)
            if (other := row if row in given else of_row.setdefault(row, key)) != key:
                raise wanted.doubled(
                    f"the table treats {shown(other)}, {shown(key)} as the same {', '.join(self.keys)}"
                )

    def _confounded(self, write: BulkWrite, same: Keys) -> Keys:
        """Return two of some keys that the table treats as the same: neighbours in their order."""
        same = sorted(same)
        while len(same) > 2:
            middle = len(same) // 2
            first = same[: middle + 1]
            same = same[middle:] if self._has_all(write, first) else first
        return same

    def _has_all(self, write: BulkWrite, keys: Keys) -> bool:
        """Return whether the table has a row for each of these keys."""
        ((found,),) = self._found(write, keys, "COUNT(*)")
        return bool(found >= len(keys))

    def _found(self, write: BulkWrite, keys: Keys, wanted: str = "") -> Sequence[tuple[Any, ...]]:
        """Return the keys of the table's rows for these keys, or other columns of these rows."""
        names = write.listed(self.keys)
        row = f"({', '.join([self.dialect.mark] * len(self.keys))})"
        among = self.dialect.pairs.format(", ".join([row] * len(keys)))
        text = f"SELECT {wanted or names} FROM {write.table} WHERE ({names}) IN {among}"  # noqa: S608 quoted
        return [tuple(found) for found in self.connection.exec_driver_sql(text, tuple(chain(*keys)))]


def _in_parts(groups: Sequence[Keys]) -> Iterator[Sequence[Keys]]:
    """Yield batches of keys, as many as a statement may name."""
    part: list[Keys] = []
    named = 0
    for same in groups:
        part.append(same)
        named += len(same)
        if named >= _MOST_NAMED:
            yield part
            part, named = [], 0
    if part:
        yield part

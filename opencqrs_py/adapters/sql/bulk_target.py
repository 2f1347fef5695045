"""What one call of ``bulk.upsert`` writes to, and how."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql.bulk_rows import UpsertRequest, alike, check_floats, shown
from opencqrs_py.adapters.sql.bulk_tables import fitting_shape, forget_shape
from opencqrs_py.adapters.sql.bulk_write import BulkWrite, ColumnValues, TableShape
from opencqrs_py.adapters.sql.dialect import Dialect

Keys = Sequence[tuple[Any, ...]]

_MOST_NAMED = 500  # keys in a statement, or a few more


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
        """Return what is wanted of some rows; raises OCQ-360 if they do not fit the arguments."""
        found = UpsertRequest(self.name, columns, self.keys, self.add)
        found.check()
        return found

    def shape(self, wanted: UpsertRequest) -> TableShape:
        """Return the shape of the table; raises ``BulkWriteError`` if the rows do not fit it."""
        return fitting_shape(self.connection, self.dialect, wanted, (self.schema, self.name))

    def forget_shape(self) -> None:
        """Inspect the table again at the next call."""
        forget_shape(self.connection, (self.schema, self.name))

    def write(self, columns: Mapping[str, ColumnValues]) -> int:
        """Write rows that are all here by one statement; return how many they are after those of one key are summed."""
        if not len(next(iter(columns.values()), ())):
            return 0
        wanted = self.wanted(columns)
        shape = self.shape(wanted)
        preparer = self.connection.dialect.identifier_preparer
        merged = wanted.merged()
        check_floats(merged, self.name, self.dialect)
        write = BulkWrite(shape, merged, self.keys, self.add, preparer, self.dialect.sum_of)
        try:
            self.dialect.upsert(self.connection, write)
        except DBAPIError:
            self.forget_shape()
            raise
        if wanted.others:
            self._require_all(write, wanted)
        return len(write)

    def _require_all(self, write: BulkWrite, wanted: UpsertRequest) -> None:
        """Refuse keys that the table takes for the same: only the last of their rows would be there."""
        keys, kinds = zip(*(write.columns[name] for name in self.keys), strict=True), self.dialect.confounded
        those = [same for same in alike(keys, kinds) if kinds.issuperset(map(type, chain(*same)))]
        for part in _in_parts(those):
            if self._has_all(write, list(chain(*part))):
                continue
            for same in part:
                if not self._has_all(write, same):
                    named = ", ".join(map(shown, self._confounded(write, same)))
                    raise wanted.doubled(f"the table takes {named} for the same {', '.join(self.keys)}")

    def _confounded(self, write: BulkWrite, same: Keys) -> Keys:
        """Return two of some keys that the table takes for the same: neighbours in their order."""
        same = sorted(same)
        while len(same) > 2:
            middle = len(same) // 2
            first = same[: middle + 1]
            same = same[middle:] if self._has_all(write, first) else first
        return same

    def _has_all(self, write: BulkWrite, keys: Keys) -> bool:
        """Return whether the table has a row for each of these keys."""
        names = ", ".join(map(write.quoted, self.keys))
        row = f"({', '.join([self.dialect.mark] * len(self.keys))})"
        among = self.dialect.pairs.format(", ".join([row] * len(keys)))
        text = f"SELECT COUNT(*) FROM {write.table} WHERE ({names}) IN {among}"  # noqa: S608 quoted
        found: int = self.connection.exec_driver_sql(text, tuple(chain(*keys))).scalar_one()
        return found >= len(keys)


def _in_parts(groups: Sequence[Keys]) -> Iterator[Sequence[Keys]]:
    """Yield some groups of keys at a time, as many as a statement may name."""
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

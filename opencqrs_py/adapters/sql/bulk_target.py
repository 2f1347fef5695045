"""What one call of ``bulk.upsert`` writes to, and how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql.bulk_rows import UpsertRequest, alike, check_floats
from opencqrs_py.adapters.sql.bulk_tables import fitting_shape, forget_shape
from opencqrs_py.adapters.sql.bulk_write import BulkWrite, ColumnValues, TableShape
from opencqrs_py.adapters.sql.dialect import Dialect


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
        write = BulkWrite(shape, merged, self.keys, self.add, preparer)
        try:
            self.dialect.upsert(self.connection, write)
        except DBAPIError:
            self.forget_shape()
            raise
        if wanted.others:
            self._require_all(write, wanted)
        return len(write)

    def _require_all(self, write: BulkWrite, wanted: UpsertRequest) -> None:
        """Refuse keys that the table's collation takes for the same: only the last of their rows would be there."""
        where = " AND ".join(f"{write.quoted(name)} = {self.dialect.mark}" for name in self.keys)
        for same in alike(zip(*(write.columns[name] for name in self.keys), strict=True)):
            text = f"SELECT COUNT(*) FROM {write.table} WHERE {' OR '.join([f'({where})'] * len(same))}"  # noqa: S608
            values = tuple(value for row in same for value in row)
            if not {str, int}.issuperset(map(type, values)):  # drivers take moments and decimals differently
                continue
            if (self.connection.exec_driver_sql(text, values).scalar() or 0) < len(same):
                named = ", ".join(repr(row[0] if len(row) == 1 else row) for row in same)
                raise wanted.doubled(f"the table takes {named} for the same {', '.join(self.keys)}")

"""A bulk write that is known to fit its table, and the parts of its statement that dialects share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

ColumnValues = Sequence[Any]
"""The values of one column, row by row."""

_SIZES = (512, 64, 8, 1)  # rows of one statement: few different texts, since a driver keeps those that it has prepared


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a database knows about a table.

    Attributes:
        name: Its name, without the schema.
        schema: Its schema; ``None``: where connections begin.
        columns: Its columns by name, as SQLAlchemy's inspector describes them.
        unique: The columns of each unique constraint that applies to all rows, including the primary key.
        limited: The columns of those that apply to some rows only, or to prefixes of values.
        types: The types of its columns in SQL, where the dialect needs them.
    """

    name: str
    schema: str | None
    columns: Mapping[str, Mapping[str, Any]]
    unique: Sequence[frozenset[str]]
    limited: Sequence[frozenset[str]] = ()
    types: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class BulkWrite:
    """Rows that are to be inserted, or merged with the rows of the same keys.

    Attributes:
        shape: The table.
        columns: The values by column, sorted by the keys, no key twice.
        keys: The columns by which a row is found; none: rows are inserted only, as into a stage.
        add: The columns whose values are added to the existing ones; all others are set.
        preparer: Quotes identifiers: SQLAlchemy's of the connection's dialect.
        sum_of: The sum of two expressions in SQL, where ``ON CONFLICT`` is known.
    """

    shape: TableShape
    columns: Mapping[str, ColumnValues]
    keys: Sequence[str]
    add: Sequence[str]
    preparer: Any
    sum_of: str = "{0} + {1}"

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @property
    def others(self) -> list[str]:
        """The columns that are not keys."""
        return [name for name in self.columns if name not in self.keys]

    @property
    def table(self) -> str:
        """The table's name in SQL."""
        name = self.quoted(self.shape.name)
        return name if self.shape.schema is None else f"{self.quoted(self.shape.schema)}.{name}"

    def quoted(self, name: str) -> str:
        """Return a name in SQL, always quoted."""
        return str(self.preparer.quote_identifier(name))

    def listed(self, names: Sequence[str]) -> str:
        """Return names in SQL, with commas between them."""
        return ", ".join(map(self.quoted, names))

    def leaves_empty(self, name: str | None) -> bool:
        """Return whether the table has a column for which neither the rows nor its definition have a value."""
        column = self.shape.columns.get(name or "")
        if column is None or name in self.columns:
            return False
        return column.get("default") is None and "computed" not in column

    def sent_as(self, kinds: Mapping[type, Callable[[Any], Any]]) -> BulkWrite:
        """Return the same rows with the values of some types converted; the first type that fits a value applies."""
        return replace(self, columns={name: _converted(column, kinds) for name, column in self.columns.items()})

    @property
    def insert(self) -> str:
        """The beginning of the statement, up to the columns."""
        return f"INSERT INTO {self.table} AS opencqrs_there ({self.listed(list(self.columns))})"

    @property
    def on_conflict(self) -> str:
        """The end of the statement, where ``ON CONFLICT`` is known."""
        if not self.keys:
            return ""
        others = self.others
        if not others:
            return f"ON CONFLICT ({self.listed(self.keys)}) DO NOTHING"
        changes = ", ".join(map(self._change, others))
        return f"ON CONFLICT ({self.listed(self.keys)}) DO UPDATE SET {changes}"

    def _change(self, name: str) -> str:
        column = self.quoted(name)
        if name not in self.add:
            return f"{column} = excluded.{column}"
        total = self.sum_of.format(f"COALESCE(opencqrs_there.{column}, 0)", f"COALESCE(excluded.{column}, 0)")
        return f"{column} = {total}"

    def in_groups(self, most_values: int) -> Iterator[tuple[int, list[tuple[Any, ...]]]]:
        """Yield a number of rows and the values of as many rows each, one row after the other.

        Args:
            most_values: Of one statement.
        """
        rows = zip(*self.columns.values(), strict=True)
        left = len(self)
        for size in _SIZES:
            if size > 1 and size * len(self.columns) > most_values:
                continue
            count, left = divmod(left, size)
            if count:
                yield size, [tuple(value for row in islice(rows, size) for value in row) for _ in range(count)]


def _converted(column: ColumnValues, kinds: Mapping[type, Callable[[Any], Any]]) -> ColumnValues:
    found = {kind: _conversion(kind, kinds) for kind in set(map(type, column))}
    if not any(found.values()):
        return column
    return [value if (convert := found[type(value)]) is None else convert(value) for value in column]


def _conversion(kind: type, kinds: Mapping[type, Callable[[Any], Any]]) -> Callable[[Any], Any] | None:
    return next((convert for parent, convert in kinds.items() if issubclass(kind, parent)), None)

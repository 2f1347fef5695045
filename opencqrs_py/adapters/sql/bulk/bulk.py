"""Bulk writes: many rows inserted or merged by one statement, within the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, Table
from sqlalchemy.orm import Session

from opencqrs_py.adapters.sql.bulk.frames import upsert_frame
from opencqrs_py.adapters.sql.bulk.rows import GivenRows, columns_of
from opencqrs_py.adapters.sql.bulk.target import Target
from opencqrs_py.adapters.sql.dialects.dialect import Dialect, dialect_of_connection
from opencqrs_py.adapters.sql.transactions import unit_of
from opencqrs_py.errors import BulkWriteError


def upsert(
    connection: Connection | Session,
    table: str | Table,
    rows: GivenRows,
    *,
    keys: str | Sequence[str],
    add: str | Sequence[str] = (),
) -> int:
    """Insert rows, or change those that have the same keys, by one statement in the open transaction.

    Rows are written in the order of their keys, so that two transactions that write the same rows wait for each other
    and do not deadlock. Columns that are not given stay unchanged, and have their defaults in a new row.

    Args:
        connection: The transaction: what a handler gets as ``Connection`` or ``Session``.
        table: Name, ``schema.name``, or a table of SQLAlchemy.
        rows: A ``pyarrow.Table``; a ``DataFrame`` of Spark; or mappings that all have the same keys. Their names are
            those of the table's columns. A moment with an offset is written in UTC, a list or a mapping as JSON. The
            rows of a ``DataFrame`` need not fit into memory in a ``@dataframe_handler``; elsewhere they are all fetched
            into this process. Each row has a value for columns that must not be null and have no default, even if all
            rows exist.
        keys: The columns by which a row is found: those of the primary key or of another unique constraint.
        add: The columns whose values are added to the existing ones; null counts as 0. All others are set.

    Returns:
        How many rows were written.

    Raises:
        BulkWriteError: OCQ-360, if rows, columns or the table do not fit each other; OCQ-361, if the keys are not
            unique in the database; OCQ-362, if two rows have the same keys, unless ``add`` covers all other columns:
            then they are summed.
        TypeError: If ``connection``, ``table`` or ``rows`` has another type.
        DBAPIError: As SQLAlchemy raises it.
    """
    opened: object = connection
    if isinstance(connection, Session):
        connection.flush()  # its pending changes come first
        opened = connection.connection()
    if not isinstance(opened, Connection):
        msg = f"bulk.upsert needs sqlalchemy.Connection or sqlalchemy.orm.Session, got {type(opened).__qualname__}"
        raise TypeError(msg)
    schema, name = _named(table)
    target = Target(opened, _dialect_of(opened), schema, name, _several(keys), _several(add))
    if not hasattr(type(rows), "toArrow"):
        return target.write(columns_of(rows, name))
    unit = unit_of(opened)
    if unit is None or unit.frame_rows is None:
        return target.write(columns_of(rows.toArrow(), name))
    return upsert_frame(target, rows, unit, unit.frame_rows)


def _several(names: str | Sequence[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _named(table: object) -> tuple[str | None, str]:
    if isinstance(table, Table):
        return table.schema, table.name
    if not isinstance(table, str):
        hint = "; a mapped class has it as __table__" if hasattr(table, "__table__") else ""
        msg = f"bulk.upsert needs the name of a table or a sqlalchemy.Table, got {table!r:.100}{hint}"
        raise TypeError(msg)
    schema, _, name = table.rpartition(".")
    return schema or None, name


def _dialect_of(connection: Connection) -> Dialect:
    dialect = dialect_of_connection(connection)
    if dialect is None:
        what = f"bulk.upsert does not know the database {connection.dialect.name}"
        raise BulkWriteError("OCQ-360", what, fix="use SQLite, PostgreSQL or MariaDB")
    return dialect

"""The contents of a database's tables, as tests compare them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import Connection, CursorResult, MetaData, Table, inspect, select
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql.connections import reason_of
from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.dialects.faults import UNKNOWN_NAMES
from opencqrs_py.adapters.sql.tables import TableMissingError
from opencqrs_py.model.masking import scrubbed

_OURS = "opencqrs_"
_CREATE = (
    "correct its name in the query, or create it in an @on_start function, which the first handle() or run() calls"
)


def rows_in(database: Database, query: Any) -> list[tuple[Any, ...]]:
    """Return the rows of a test's query: SQL text, or a statement of SQLAlchemy.

    Raises:
        EventStoreError: OCQ-304, if a table or column of the query does not exist.
    """
    with database.reading() as connection:
        try:
            return [tuple(row) for row in _executed(connection, query)]
        except DBAPIError as error:
            if database.dialect.fault_of(error) not in UNKNOWN_NAMES:
                raise
            # in the block, or it would be explained as an error of our own statement
            what = f"the query {scrubbed(' '.join(str(query).split()))} cannot be run ({reason_of(error)})"
            raise TableMissingError("OCQ-304", what, database.label, _CREATE) from None


def _executed(connection: Connection, query: Any) -> CursorResult[Any]:
    if isinstance(query, str):
        return connection.execution_options(no_parameters=True).exec_driver_sql(query)
    return connection.execute(query)


def table_rows(database: Database) -> dict[str, list[str]]:
    """Return the rows of every table but those of this package, by its name: each row as text, in sorted order.

    Tables of other schemas that the user may read are among them, with the schema before the name.
    """
    with database.reading() as connection:
        return {
            table.fullname: sorted(str(tuple(row)) for row in connection.execute(select(table)))
            for table in _tables(connection, database.dialect.other_tables)
        }


def _tables(connection: Connection, other_tables: str) -> Iterator[Table]:
    others = connection.exec_driver_sql(other_tables).all() if other_tables else ()
    for schema, name in (*((None, name) for name in inspect(connection).get_table_names()), *others):
        if not name.startswith(_OURS):
            yield Table(name, MetaData(), schema=schema, autoload_with=connection)

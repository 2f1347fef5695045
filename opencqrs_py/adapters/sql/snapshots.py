"""The contents of a database's tables, to compare two moments of a test."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, MetaData, Table, inspect, select

from opencqrs_py.adapters.sql.database import Database

_OURS = "opencqrs_"


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

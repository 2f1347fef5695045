"""The contents of a database's tables, to compare two moments of a test."""

from __future__ import annotations

from sqlalchemy import MetaData, Table, inspect, select

from opencqrs_py.adapters.sql.database import Database

_OURS = "opencqrs_"


def table_rows(database: Database) -> dict[str, list[str]]:
    """Return the rows of every table but those of this package, by its name: each row as text, in sorted order."""
    with database.reading() as connection:
        names = [name for name in inspect(connection).get_table_names() if not name.startswith(_OURS)]
        tables = {name: Table(name, MetaData(), autoload_with=connection) for name in names}
        return {
            name: sorted(str(tuple(row)) for row in connection.execute(select(table))) for name, table in tables.items()
        }

"""What is kept in the shadow of a rebuild, as it is read before a swap."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql import Database
from opencqrs_py.adapters.sql.shadows.contents import written_in
from opencqrs_py.adapters.sql.shadows.guards import SEEDED, WRITTEN

UNREADABLE = {
    "mariadb": "SELECT name FROM gone",
    "postgresql": "SELECT CAST(1 / 0 AS text) AS name",
    "sqlite": "SELECT abs(-9223372036854775808) AS name",
}

FILLED = {"loans", "readers"}


@pytest.mark.parametrize(
    ("table", "found"), [(WRITTEN, {"loans", "readers", "books"}), (SEEDED, {"loans"})], ids=["written", "seeded"]
)
def test_tables_named_in_a_shadow_are_found_and_an_unreadable_list_is_not_treated_as_empty(
    database: Database, table: str, found: set[str]
) -> None:
    with database.reading() as connection:

        def written() -> set[str]:
            return written_in(database.dialect, connection, "", ["loans", "readers", "empty"], FILLED.__contains__)

        assert written() == FILLED
        connection.exec_driver_sql("CREATE TABLE gone (name VARCHAR(60))")
        connection.exec_driver_sql(f"CREATE TABLE {table} (name VARCHAR(60))")
        connection.exec_driver_sql(f"INSERT INTO {table} VALUES ('{'books' if table == WRITTEN else 'readers'}')")
        assert written() == found
        connection.exec_driver_sql(f"DROP TABLE {table}")
        connection.exec_driver_sql(f"CREATE VIEW {table} AS {UNREADABLE[database.kind]}")
        connection.exec_driver_sql("DROP TABLE gone")
        with pytest.raises(DBAPIError):
            written()

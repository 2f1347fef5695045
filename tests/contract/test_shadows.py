"""What is kept in the shadow of a rebuild, as it is read before a swap."""

from __future__ import annotations

from collections.abc import Callable, Collection

import pytest
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql import Database
from opencqrs_py.adapters.sql.shadows.guards import SEEDED, WRITTEN
from opencqrs_py.adapters.sql.shadows.shadows import seeded_in, written_in

UNREADABLE = {
    "mariadb": "SELECT name FROM gone",
    "postgresql": "SELECT CAST(1 / 0 AS text) AS name",
    "sqlite": "SELECT abs(-9223372036854775808) AS name",
}

Names = Callable[..., Collection[str]]


@pytest.mark.parametrize(("table", "names"), [(WRITTEN, written_in), (SEEDED, seeded_in)])
def test_tables_named_in_a_shadow_are_found_and_an_unreadable_list_is_not_treated_as_empty(
    database: Database, table: str, names: Names
) -> None:
    with database.reading() as connection:
        assert names(database.dialect, connection, "") == set()
        connection.exec_driver_sql("CREATE TABLE gone (name VARCHAR(60))")
        connection.exec_driver_sql(f"CREATE TABLE {table} (name VARCHAR(60))")
        connection.exec_driver_sql(f"INSERT INTO {table} VALUES ('books')")
        assert names(database.dialect, connection, "") == {"books"}
        connection.exec_driver_sql(f"DROP TABLE {table}")
        connection.exec_driver_sql(f"CREATE VIEW {table} AS {UNREADABLE[database.kind]}")
        connection.exec_driver_sql("DROP TABLE gone")
        with pytest.raises(DBAPIError):
            names(database.dialect, connection, "")

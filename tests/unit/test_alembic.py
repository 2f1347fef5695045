"""The filter for Alembic: our objects, recognised by name."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from opencqrs_py.adapters.sql import tables as schema
from opencqrs_py.alembic import PREFIX, include_name, include_object


def test_all_our_tables_indexes_and_constraints_have_the_prefix() -> None:
    tables = schema.SCHEMA.metadata.tables.values()
    assert len(tables) >= 3
    for table in tables:
        assert table.name.startswith(PREFIX)
        named = [str(each.name) for each in (*table.indexes, *table.constraints) if each.name is not None]
        assert all(name.startswith(PREFIX) for name in named)


@pytest.mark.parametrize(
    ("name", "type_", "table", "included"),
    [
        ("opencqrs_events", "table", None, False),
        ("opencqrs_of_a_later_version", "table", None, False),
        ("lent", "table", None, True),
        ("my_opencqrs_events", "table", None, True),
        ("opencqrs", "table", None, True),
        (None, "schema", None, True),
        ("opencqrs_log", "schema", None, True),
        ("position", "column", "opencqrs_events", False),
        ("opencqrs_events_subject", "index", "opencqrs_events", False),
        ("id", "column", "lent", True),
        ("lent_reader", "index", "lent", True),
        ("opencqrs_events_position_seq", "sequence", None, False),
        (None, "unique_constraint", "lent", True),
        (None, "unique_constraint", "opencqrs_events", False),
    ],
)
def test_our_objects_in_the_database_are_excluded(
    name: str | None,
    type_: str,
    table: str | None,
    included: bool,  # noqa: FBT001
) -> None:
    parents = {"schema_name": None, "table_name": table} if table else {"schema_name": None}
    assert include_name(name, type_, parents) is included
    if type_ != "schema":
        found = SimpleNamespace(name=name, table=SimpleNamespace(name=table) if table else None)
        assert include_object(found, name, type_, reflected=True, compare_to=None) is included


@pytest.mark.parametrize(
    "identity",
    [
        "opencqrs_events_append",
        "public.opencqrs_events_append(rows json, patience text)",
        "log.opencqrs_events.opencqrs_events_in_turn",
        '"log"."opencqrs_events_in_turn"()',
    ],
)
def test_our_functions_and_triggers_are_recognised_with_schema_table_and_arguments(identity: str) -> None:
    assert not include_object(object(), identity, "function", reflected=True, compare_to=None)
    assert include_object(object(), identity.replace("opencqrs", "mine"), "function", reflected=True, compare_to=None)


def test_objects_of_the_users_models_are_always_compared() -> None:
    assert include_object(object(), "opencqrs_like", "table", reflected=False, compare_to=None)
    assert include_object(object(), "opencqrs_like", "table", reflected=True, compare_to=object())


def test_importing_the_filter_loads_no_database() -> None:
    looked = (
        "import sys, opencqrs_py.alembic; print([m for m in ('sqlalchemy', 'alembic', 'pyspark') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", looked], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"

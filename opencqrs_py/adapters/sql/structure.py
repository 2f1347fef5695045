"""The structure of tables where connections begin, as texts by which two moments can be compared."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from typing import Any, NamedTuple

from sqlalchemy import Connection, Inspector, inspect
from sqlalchemy.exc import SAWarning

_NAMES = ("name", "duplicates_constraint")  # of an index and its constraint


class Trigger(NamedTuple):
    """A trigger of a table.

    Attributes:
        definition: The statement that makes it.
        fires: Whether it does; not if it is disabled, or is for replicas only.
    """

    definition: str
    fires: bool = True


Triggers = dict[str, Trigger]
"""The triggers of a table, by name."""


def structure_of(connection: Connection, tables: Iterable[str]) -> dict[str, str]:
    """Return columns, indexes and constraints of tables, by what messages call them; of those that are there."""
    looking, found = inspect(connection), dict[str, str]()
    for table in filter(looking.has_table, tables):
        found[f"columns of table {table}"] = _columns_of(looking, connection, table)
        found[f"indexes or constraints of table {table}"] = _keys_of(looking, table)
    return found


def parts_of(connection: Connection, tables: Iterable[str]) -> dict[tuple[str, ...], str]:
    """Return what messages call the columns, indexes and named checks of tables that are there, by what they are."""
    looking, found = inspect(connection), dict[tuple[str, ...], str]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SAWarning)  # as below
        for table, there in _there(looking, tables).items():
            for column in looking.get_columns(there):
                found[table, "column", column["name"].lower()] = f"column {column['name']} of {table}"
            for index in looking.get_indexes(there):
                identity = text_of({k: v for k, v in index.items() if k not in _NAMES})
                found[table, "index", identity] = f"index {index['name']} of {table}"
            for check in filter(lambda each: each["name"], looking.get_check_constraints(there)):
                found[table, "check", str(check["name"])] = f"check {check['name']} of {table}"
    return found


def _there(looking: Inspector, tables: Iterable[str]) -> dict[str, str]:
    """Return the names of tables that are there, which some databases may spell in another way, by the given ones."""
    known = [*looking.get_table_names(), *looking.get_view_names()]
    spelled = {name.lower(): name for name in known} | {name: name for name in known}
    return {table: spelled.get(table, spelled.get(table.lower(), table)) for table in filter(looking.has_table, tables)}


def _columns_of(looking: Inspector, connection: Connection, table: str) -> str:
    columns = looking.get_columns(table)
    return json.dumps(
        [
            (each["name"], each["type"].compile(dialect=connection.dialect), bool(each["nullable"]), each["default"])
            for each in columns
        ]
    )


def _keys_of(looking: Inspector, table: str) -> str:
    asked = (
        looking.get_indexes,
        looking.get_unique_constraints,
        looking.get_foreign_keys,
        looking.get_check_constraints,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SAWarning)  # of an index that SQLAlchemy cannot describe
        found: list[Any] = [looking.get_pk_constraint(table), *(sorted(map(text_of, each(table))) for each in asked)]
    return text_of(found)


def text_of(found: Any) -> str:
    """Return a part of a structure as a text that is the same at another moment if nothing has changed."""
    return json.dumps(found, default=str, sort_keys=True)

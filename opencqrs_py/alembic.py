"""Filters for Alembic, which keep the tables of this package out of your migrations.

By default they are in the same database as your read models. ``alembic revision --autogenerate`` would drop every table
that your models do not name, including the event log::

    from opencqrs_py.alembic import include_name

    context.configure(connection=connection, target_metadata=target_metadata, include_name=include_name)

This module loads neither Alembic nor SQLAlchemy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["PREFIX", "include_name", "include_object"]

PREFIX = "opencqrs_"
"""The reserved prefix of all tables, indexes, functions and triggers of this package."""


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """Return whether Alembic is to look at something that it has found in the database: not if it is ours.

    Args:
        name: Its name; ``None`` for the default schema.
        type_: ``schema``, ``table``, ``column``, ``index``, ``unique_constraint``, ``foreign_key_constraint``.
        parent_names: The names of what it belongs to, with ``table_name`` for what belongs to a table.

    Source:
        Alembic, ``EnvironmentContext.configure.include_name``.
    """
    return type_ == "schema" or not (_is_ours(parent_names.get("table_name")) or _is_ours(name))


def include_object(
    object_: Any,
    name: str | None,
    type_: str,  # noqa: ARG001 as Alembic calls it
    reflected: bool,  # noqa: FBT001 as Alembic calls it
    compare_to: Any,
) -> bool:
    """Return whether Alembic is to compare something that it has found in the database: not if it is ours.

    Everything that your models name is always compared. Functions and triggers, which other packages add to Alembic,
    may be named with their schema, table and arguments.

    Args:
        object_: The table, column, index, constraint, or an object of another package.
        name: Its name.
        type_: As for ``include_name``.
        reflected: Whether it was found in the database, and not in your models.
        compare_to: What it is compared with; ``None`` if there is nothing.

    Source:
        Alembic, ``EnvironmentContext.configure.include_object``.
    """
    if not reflected or compare_to is not None:
        return True
    table = getattr(getattr(object_, "table", None), "name", None)
    return not (_is_ours(table) or _is_ours(name))


def _is_ours(name: str | None) -> bool:
    """Return whether a name begins with our prefix, apart from a schema or table before it."""
    return name is not None and name.partition("(")[0].rpartition(".")[2].strip('"`').startswith(PREFIX)

"""The schema that our own tables are in, apart from the user's, if a setting names one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlalchemy import URL, Connection
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql.outages import lacks_right, reason_of
from opencqrs_py.errors import EventStoreError

if TYPE_CHECKING:
    from opencqrs_py.adapters.sql.databases import Database

__all__ = ["PARAMETER", "SchemaError", "create_schema", "prefix_of", "taken_out"]

PARAMETER = "opencqrs_schema"
"""The parameter of a database URL that names the schema."""


class SchemaError(EventStoreError):
    """Our tables cannot be in the schema that is set (OCQ-321, OCQ-322)."""


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_QUOTES = {"mariadb": "`", "postgresql": '"'}
_THERE = {
    "mariadb": "SELECT 1 FROM information_schema.schemata WHERE schema_name = %s",
    "postgresql": "SELECT 1 FROM pg_namespace WHERE nspname = %s",
}
_CREATE = {"mariadb": "CREATE DATABASE IF NOT EXISTS", "postgresql": "CREATE SCHEMA IF NOT EXISTS"}
_WORDS = {"mariadb": "database", "postgresql": "schema"}


def taken_out(url: URL) -> tuple[URL, str | None]:
    """Return a URL without the parameter that names the schema, and the schema."""
    named = url.query.get(PARAMETER)
    name = named[-1] if isinstance(named, tuple) else named
    return url.difference_update_query([PARAMETER]), name


def prefix_of(kind: str, schema: str | None, label: str) -> str:
    """Return what stands before the names of our tables.

    Args:
        kind: The kind of database.
        schema: The schema, ``None`` for the one that connections begin in.
        label: How messages name the database.

    Raises:
        EventStoreError: OCQ-321, on SQLite, which has no schemas; OCQ-322 for a name that is none.
    """
    if schema is None:
        return ""
    if kind not in _QUOTES:
        what = f"SQLite has no schemas, but '{schema}' is to be one"
        raise SchemaError("OCQ-321", what, label, "leave database.schema out, or name another file in database.url")
    if not _NAME.fullmatch(schema):
        what = f"'{schema}' cannot be the schema of our tables"
        fix = "use up to 63 letters of ASCII, digits and underscores, not a digit first"
        raise SchemaError("OCQ-322", what, label, fix)
    quote = _QUOTES[kind]
    return f"{quote}{schema}{quote}."


def create_schema(database: Database, connection: Connection) -> None:
    """Create the schema if it is missing.

    Raises:
        EventStoreError: OCQ-323, if the database's user may not.
    """
    kind, schema = database.kind, database.schema
    if schema is None or connection.exec_driver_sql(_THERE[kind], (schema,)).first() is not None:
        return
    statement = f"{_CREATE[kind]} {database.prefix[:-1]}"
    try:
        connection.exec_driver_sql(statement)
    except DBAPIError as error:
        if not lacks_right(error):
            raise
        what = f"the {_WORDS[kind]} '{schema}' for our tables is missing and cannot be created ({reason_of(error)})"
        fix = f"let an administrator run {statement}, and grant all on it to the user; or correct database.schema"
        raise EventStoreError("OCQ-323", what, database.label, fix) from None

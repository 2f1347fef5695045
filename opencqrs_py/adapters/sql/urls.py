"""URLs of databases, and the schema that they may name."""

from __future__ import annotations

import re

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from opencqrs_py.adapters.sql.dialects.dialect import Dialect, dialect_named
from opencqrs_py.adapters.sql.tables import SchemaError
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.mistaken_urls import not_a_database, url_mistake

PARAMETER = "opencqrs_schema"
"""The parameter of a database URL that names the schema."""
_SCHEMA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_PLACE = "setting database.url or event-store.url, option url in Spark"
_KINDS = "use sqlite:///…, postgresql://… or mariadb://…"
_FORMS = "write it as sqlite:///events.db, postgresql://host/database or mariadb://…"
_ESCAPED = "write %40 for every '@' in user and password, %2F for '/' and %3A for ':'"


def parsed_url(url: str) -> URL:
    """Read a URL. Messages do not repeat it, since it is unknown which part is a password."""
    if (mistake := url_mistake(url) or not_a_database(url)) is not None:
        raise EventStoreError("OCQ-301", f"the database URL cannot be used: {mistake[0]}", _PLACE, mistake[1])
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise EventStoreError("OCQ-301", "the database URL cannot be read", _PLACE, _FORMS) from None
    if "@" in (parsed.host or "") or (parsed.host and "@" in (parsed.database or "")):  # a "/" ends the host, too
        raise EventStoreError("OCQ-301", "the database URL cannot be read: it has several '@'", _PLACE, _ESCAPED)
    return parsed


def without_schema(url: URL) -> tuple[URL, str | None]:
    """Return a URL without the parameter that names the schema, and the schema."""
    named = url.query.get(PARAMETER)
    name = named[-1] if isinstance(named, tuple) else named
    return url.difference_update_query([PARAMETER]), name


def dialect_of(url: URL, label: str) -> Dialect:
    """Return the dialect of a URL; raise OCQ-302 if there is none."""
    name = url.get_backend_name()
    dialect = dialect_named(name)
    if dialect is None:
        raise EventStoreError("OCQ-302", f"databases of the kind '{name}' are not supported", label, _KINDS)
    return dialect


def schema_prefix(dialect: Dialect, schema: str | None, label: str) -> str:
    """Return the prefix of our tables' names; raise OCQ-321 or OCQ-322 if there can be no such schema."""
    if schema is None:
        return ""
    if not dialect.quote:
        what = f"SQLite has no schemas, but '{schema}' is configured as one"
        raise SchemaError("OCQ-321", what, label, "remove database.schema, or name another file in database.url")
    if not _SCHEMA_NAME.fullmatch(schema):
        fix = "use up to 63 ASCII letters, digits and underscores, not a digit first"
        raise SchemaError("OCQ-322", f"'{schema}' cannot be the schema of our tables", label, fix)
    return f"{dialect.quote}{schema}{dialect.quote}."

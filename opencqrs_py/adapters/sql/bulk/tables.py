"""The target tables of bulk writes: their description in the database, cached for a while."""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Connection, Engine, inspect
from sqlalchemy.exc import NoSuchTableError

from opencqrs_py.adapters.sql.bulk.rows import UpsertRequest, misfit
from opencqrs_py.adapters.sql.bulk.write import TableShape
from opencqrs_py.adapters.sql.dialects.dialect import Dialect

_TRUSTED_SECONDS = 60.0  # how long a table is assumed unchanged: MariaDB does not report a new unique constraint

_Known = dict[tuple[str | None, str], tuple[TableShape, float]]  # each with the monotonic time until which it is valid
_shapes: WeakKeyDictionary[Engine, _Known] = WeakKeyDictionary()
_lock = Lock()


def forget_shape(connection: Connection, table: tuple[str | None, str]) -> None:
    """Forget what is known about a table, by schema and name: it may have been replaced."""
    _known_shapes(connection).pop(table, None)


def _known_shapes(connection: Connection) -> _Known:
    with _lock:
        return _shapes.setdefault(connection.engine, {})


def fitting_shape(
    connection: Connection, dialect: Dialect, wanted: UpsertRequest, table: tuple[str | None, str]
) -> TableShape:
    """Return what is known about the table; inspect it again before a refusal, since it may have been changed."""
    known, now = _known_shapes(connection), time.monotonic()
    shape, until = known.get(table, (None, now))
    if shape is not None and now < until and next(wanted.misfits(shape, dialect), None) is None:
        return shape
    shape = _looked_up(connection, dialect, *table)
    known[table] = shape, now + _TRUSTED_SECONDS
    for error in wanted.misfits(shape, dialect):
        raise error
    return shape


def _looked_up(connection: Connection, dialect: Dialect, schema: str | None, name: str) -> TableShape:
    inspector = inspect(connection)
    name = dialect.stored_name(connection, schema, name)
    try:
        columns = {column["name"]: column for column in inspector.get_columns(name, schema=schema)}
    except NoSuchTableError:
        columns = {}
    if not columns:
        fix = "create it, as in an @on_start function; 'schema.name' names one in another schema"
        raise misfit(name, "there is no such table", fix)
    key = inspector.get_pk_constraint(name, schema=schema)["constrained_columns"]
    constraints = inspector.get_unique_constraints(name, schema=schema)
    indexes = [index for index in inspector.get_indexes(name, schema=schema) if index["unique"]]
    limited = [_columns_in(index) for index in indexes if _is_limited(index)]
    whole = [_columns_in(one) for one in (*constraints, *indexes) if not _is_limited(one)]
    unique = [one for one in (frozenset(key), *whole) if one and one not in limited]
    return TableShape(name, schema, columns, unique, limited, dialect.column_types(connection, schema, name))


def _columns_in(constraint: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(name for name in constraint["column_names"] if name is not None)


def _is_limited(index: Mapping[str, Any]) -> bool:
    """Return whether an index has a condition, an expression, or the beginnings of values."""
    options = index.get("dialect_options", {})
    partial = any(option.endswith(("where", "length")) and limit is not None for option, limit in options.items())
    return partial or None in index["column_names"]

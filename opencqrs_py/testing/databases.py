"""The databases of tests."""

from __future__ import annotations

import sqlite3
import uuid

from opencqrs_py.adapters.sql import Database, Engine

# A database in memory that all connections of the process share; a plain one belongs to one thread.
_SHARED = sqlite3.sqlite_version_info >= (3, 36)
_IN_MEMORY = "sqlite:///file:/opencqrs-{name}?vfs=memdb&uri=true" if _SHARED else "sqlite://"
_TAKES = 'a URL such as "sqlite:///library.db", a Database or an engine of SQLAlchemy'


def opened_database(given: Database | Engine | str) -> Database:
    """Return the database that a test was given; a new SQLite database in memory for an empty text.

    Raises:
        TypeError: If it is something else, such as a connection.
    """
    if isinstance(given, Database):
        return given
    if isinstance(given, Engine):
        return Database.of(given)
    if given and not isinstance(given, str):
        raise TypeError(f"database takes {_TAKES}, got {given!r}")
    return Database(given or _IN_MEMORY.format(name=uuid.uuid4().hex))

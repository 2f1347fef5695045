"""The databases that an application opens by their URLs, and closes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opencqrs_py.adapters.sql import Database


class OpenedDatabases:
    """The databases of an application that settings name by URL. An engine of a provider is its maker's to close."""

    def __init__(self) -> None:
        self._opened: list[Database] = []

    def open(self, url: str, schema: str | None) -> Database:
        """Return a database, which is reached when it is used first.

        Raises:
            EventStoreError: As ``Database`` raises it.
        """
        from opencqrs_py.adapters.sql import Database  # noqa: PLC0415 loads SQLAlchemy

        database = Database(url, schema)
        self._opened.append(database)
        return database

    def add(self, database: Database) -> None:
        """Have another one closed with these."""
        self._opened.append(database)

    def disconnect(self) -> None:
        """Close the connections to all of them; the next use opens new ones."""
        for database in self._opened:
            database.disconnect()

    def close(self) -> None:
        """Close the connections to all of them, also to those in memory, which end."""
        for database in self._opened:
            database.close()

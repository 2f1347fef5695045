"""Event stores: from the URL in settings to the store that it names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.mapping import TableMapping
from opencqrs_py.processing.ports import EventSource

if TYPE_CHECKING:
    from opencqrs_py.config.settings import MappingSettings

__all__ = ["is_sql", "located", "mapping_of", "open_event_store"]

_SQL = ("mariadb", "mysql", "postgresql", "sqlite")


def is_sql(url: str) -> bool:
    """Say whether a URL names a SQL database; SQLAlchemy's may name a driver behind a ``+``."""
    return url.partition(":")[0].partition("+")[0] in _SQL


def located(url: str, project: Path) -> str:
    """Return a URL with a relative path made absolute, seen from the project folder: SQLite's and those of files."""
    if url.startswith("file:"):
        from opencqrs_py.adapters.files.location import path_of_url  # noqa: PLC0415 only for files

        return path_of_url(url, project.resolve()).as_uri()
    prefix = "sqlite:///"
    path = url.removeprefix(prefix)
    if not url.startswith(prefix) or not path or path.startswith((":memory:", "file:")) or Path(path).is_absolute():
        return url
    return prefix + (project.resolve() / path).as_posix()


def mapping_of(settings: MappingSettings, url: str) -> TableMapping | None:
    """Return the table of another system that settings name, ``None`` when they name none.

    Raises:
        EventStoreError: OCQ-313, if a part is missing; OCQ-314, if the store is no SQL database.
    """
    named = {name: value for name, value in settings if value is not None}
    if not named:
        return None
    missing = [name for name in ("table", "position", "id", "type", "data") if name not in named]
    if missing:
        keys = ", ".join(f"event-store.mapping.{name}" for name in missing)
        what = f"the mapping of a table lacks {', '.join(missing)}"
        raise EventStoreError("OCQ-313", what, "event-store.mapping", f"set {keys}")
    if not is_sql(url):
        what = "event-store.mapping names a table, but the event store is no SQL database"
        fix = "set event-store.url to the database that holds the table, or leave event-store.mapping out"
        raise EventStoreError("OCQ-314", what, "event-store.mapping", fix)
    return TableMapping(**named)


def open_event_store(
    url: str,
    api_token: str = "",
    event_database: Callable[[], object] | None = None,
    mapping: TableMapping | None = None,
) -> EventSource:
    """Return the event store that a URL names. Nothing is reached before it is asked for events.

    Args:
        url: ``sqlite:…``, ``postgresql:…``, ``mariadb:…``, ``file:…`` or ``eventsourcingdb:…``, absolute.
        api_token: What EventSourcingDB asks for.
        event_database: Returns the database of a SQL store, when others share it.
        mapping: The table of another system that is the store; ``None`` for our own.

    Raises:
        EventStoreError: OCQ-301, OCQ-302, OCQ-330 or OCQ-344 for a URL that names no event store; OCQ-303, if what it
            needs is not installed; OCQ-314 for a table of another system on MariaDB.
    """
    from opencqrs_py.adapters.eventsourcingdb import Address  # noqa: PLC0415 as below, only what the URL asks for

    if url.startswith("file:"):
        from opencqrs_py.adapters.files import FileEventSource, path_of_url  # noqa: PLC0415

        return FileEventSource(path_of_url(url, Path.cwd()))
    if Address.is_meant(url):
        from opencqrs_py.adapters.eventsourcingdb import EventSourcingDbEventStore  # noqa: PLC0415

        return EventSourcingDbEventStore(url, api_token)
    from opencqrs_py.adapters.sql import Database, MappedEventSource, SqlEventStore  # noqa: PLC0415

    database = event_database() if event_database is not None else Database(url)
    assert isinstance(database, Database)  # noqa: S101 for the type checker
    return SqlEventStore(database) if mapping is None else MappedEventSource(database, mapping)

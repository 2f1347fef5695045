"""Event stores: from the URL in settings to the store that it names."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from opencqrs_py.assembly.checked_parts import checked_source
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.mapping import TableMapping
from opencqrs_py.model.masking import mask_url
from opencqrs_py.model.mistaken_urls import url_mistake
from opencqrs_py.model.naming import listed, nearest
from opencqrs_py.processing.packages import Registry
from opencqrs_py.processing.ports import EventSource

if TYPE_CHECKING:
    from opencqrs_py.adapters.sql import Database
    from opencqrs_py.config.settings import MappingSettings

ENTRY_POINTS = "opencqrs.event_stores"
_PLACE = "event-store.url"
_SQL = ("mariadb", "mysql", "postgresql", "sqlite")
_OTHERS = ("file", "eventsourcingdb", "")
_FORMS = ("eventsourcingdb://…", "file:…", "mariadb://…", "postgresql://…", "sqlite:///…")
_REGISTRY = Registry(
    ENTRY_POINTS,
    _PLACE,
    EventSource,
    several="event stores of the scheme",
    unusable="the event store of the scheme {} cannot be opened",
    takes="(url, api_token)",
    fix="return an EventSource or EventStore",
    error=EventStoreError,
    code="OCQ-531",
)
_RENAME = "rename the folder, or write the full path of a file elsewhere: sqlite:////srv/events.db"
_OF_URLS = re.compile(r"\?|%[0-9A-Fa-f]{2}")
_AS_URI = re.compile(r"(?:^|&)uri=(?:true|yes|on|y|t|1)(?:&|$)", re.IGNORECASE)  # as SQLAlchemy reads it
_SQLITE = ("sqlite", "sqlite+pysqlite")
_SCHEME = re.compile(r"([a-z][a-z0-9.-]*)(?:\+[^:/]*)?:", re.IGNORECASE)


def is_sql(url: str) -> bool:
    """Return whether a URL names a SQL database; SQLAlchemy's may name a driver after a ``+``."""
    name = url.partition(":")[0].partition("+")[0]
    return name in _SQL or (name not in _OTHERS and _is_registered(name))


@lru_cache
def _is_registered(name: str) -> bool:
    """Return whether another package brings the dialect of a database of that name."""
    return bool(entry_points(group="opencqrs.databases", name=name))


def is_in_files(url: str) -> bool:
    """Return whether the URLs of a kind of database name files, as SQLite's do, or databases in memory.

    Raises:
        EventStoreError: OCQ-531, if another package brings the kind, and cannot be used.
    """
    scheme = url.partition(":")[0]
    name = scheme.partition("+")[0]
    if name in (*_SQL, *_OTHERS) or not _is_registered(name):
        return scheme in _SQLITE
    from opencqrs_py.adapters.sql import dialect_named  # noqa: PLC0415 loads SQLAlchemy

    dialect = dialect_named(name)
    return dialect is not None and dialect.in_files


def located(url: str, project: Path, place: str = _PLACE) -> str:
    """Return a URL with a relative path made absolute, seen from the project folder: of a file, or a database in one.

    Raises:
        EventStoreError: OCQ-301, if the folder's own path would be read as another one in a URL of a database, or has
            bytes that no URL can have; OCQ-531 as ``is_in_files``.
    """
    if _scheme(url) == "file":
        from opencqrs_py.adapters.files.log import path_of_url  # noqa: PLC0415 only for files

        return path_of_url(url, project.resolve()).as_uri()
    scheme, _, path = url.partition("///")
    if _is_relative_uri(url):
        folder = quote(quote(_readable(project, place)))  # SQLAlchemy reads it, then SQLite
        return f"{scheme}///file:{folder}/{path.removeprefix('file:')}"
    file = database_file(url)
    if file is None or file.is_absolute():
        return url
    folder = _readable(project, place)
    if (found := _OF_URLS.search(folder)) is not None:
        what = f"the path of the project folder, {folder}, contains '{found[0]}', which has a special meaning in a URL"
        raise EventStoreError("OCQ-301", what, place, _RENAME)
    return f"{scheme}///{folder}/{path}"


def _readable(project: Path, place: str) -> str:
    """Return the path of the project folder; refuse one that is not valid UTF-8, and has surrogates in Python."""
    folder = project.resolve().as_posix()
    shown = folder.encode("utf-8", "backslashreplace").decode()
    if shown != folder:
        what = f"the path of the project folder, {shown}, is not valid UTF-8, as it must be in a URL"
        raise EventStoreError("OCQ-301", what, place, _RENAME)
    return folder


def _is_relative_uri(url: str) -> bool:
    """Return whether the URL of a database names a file by a URI with a relative path."""
    name, _, query = (_path_in(url) or "").partition("?")
    if not re.match(r"file:(?!/|:|%2F)", name, re.IGNORECASE):
        return False
    return _AS_URI.search(query) is not None and not re.search("mode=memory|vfs=memdb", query)


def database_file(url: str) -> Path | None:
    """Return the file that the URL of a database names, ``None`` for other URLs and for databases in memory."""
    path = (_path_in(url) or "").partition("?")[0]
    return Path(path) if path and not path.startswith((":memory:", "file:")) else None


def _path_in(url: str) -> str | None:
    """Return what follows ``:///`` in the URL of a database in files; ``None`` for other URLs."""
    scheme, slashes, path = url.partition(":///")
    return path if slashes and ":" not in scheme and is_in_files(url) else None


def is_in_memory_of_a_thread(url: str) -> bool:
    """Return whether a URL names a database in memory, of which each thread has its own, empty at first."""
    _, slashes, path = url.partition("://")
    name, _, query = path.removeprefix("/").partition("?")
    if not slashes or "cache=shared" in query or not is_in_files(url):
        return False
    return name in ("", ":memory:", "file::memory:") or (name.startswith("file:") and "mode=memory" in query)


def mapping_of(settings: MappingSettings, url: str) -> TableMapping | None:
    """Return the table of another system that settings name, ``None`` when they name none.

    Raises:
        EventStoreError: OCQ-313, if a part is missing; OCQ-325, if the store is not a SQL database.
    """
    named = {name: value for name, value in settings if value is not None}
    mapping = TableMapping.of(named, "event-store.mapping", "event-store.mapping")
    if mapping is not None:
        refuse_all_but_sql(url, mapping, "event-store.mapping")
    return mapping


def refuse_all_but_sql(url: str, mapping: TableMapping, place: str) -> None:
    """Refuse a table of another system, named in ``place``, in a store that is not a SQL database, with OCQ-325."""
    if not is_sql(url):
        what = f"{mapping.said_in} names a table, but the event store is not a SQL database"
        fix = f"set the store's URL to the database that holds the table, or leave {mapping.said_in} out"
        raise EventStoreError("OCQ-325", what, place, fix)


def unknown_scheme(url: str, where: str = _PLACE) -> EventStoreError | None:
    """Return the error, OCQ-302, that no event store is known by the scheme of a URL; ``None`` if one is.

    The message names the URL as ``where`` does.
    """
    from opencqrs_py.adapters.eventsourcingdb import Address  # noqa: PLC0415 as below, only what the URL asks for

    scheme = _scheme(url)
    if scheme in ("", "file") or is_sql(url) or Address.is_meant(url) or url_mistake(url) or _entries(scheme):
        return None
    others = {entry.name for group in (ENTRY_POINTS, "opencqrs.databases") for entry in entry_points(group=group)}
    forms = sorted({*_FORMS, *(f"{name}://…" for name in others)})
    close = nearest(scheme, [form.partition(":")[0] for form in forms])
    asked = f"did you mean {close}? " if close else ""
    fix = f"{asked}use one of {listed(forms)}; or install the package that adds '{scheme}'"
    return EventStoreError("OCQ-302", f"event stores of the scheme '{scheme}' are not supported", where, fix)


def open_event_store(
    url: str,
    api_token: str = "",
    event_database: Callable[[], Database] | None = None,
    mapping: TableMapping | None = None,
    place: str = "",
    *,
    creates: bool = True,
) -> EventSource:
    """Return the event store that a URL names. It connects on first use.

    Args:
        url: ``sqlite:…``, ``postgresql:…``, ``mariadb:…``, ``file:…`` or ``eventsourcingdb:…``, absolute; or of a
            scheme that another package has registered.
        api_token: The token for EventSourcingDB.
        event_database: Returns the database of a SQL store, when others share it.
        mapping: The table of another system that is the store; ``None`` for our own.
        place: Where the URL is set, for the errors that it may cause; empty if that is not known.
        creates: Whether our own table is created at first use, if it is missing; else that is an error (OCQ-327).

    Raises:
        EventStoreError: OCQ-301, OCQ-302, OCQ-330 or OCQ-344 for a URL that names no event store; OCQ-303, if what it
            needs is not installed; OCQ-325 for a table of another system on MariaDB; OCQ-531, if another package's
            event store cannot be used.
    """
    from opencqrs_py.adapters.eventsourcingdb import Address  # noqa: PLC0415 as below, only what the URL asks for

    if _scheme(url) == "file":
        from opencqrs_py.adapters.files import FileEventSource, path_of_url  # noqa: PLC0415

        return FileEventSource(path_of_url(url, Path.cwd()))
    if Address.is_meant(url):
        from opencqrs_py.adapters.eventsourcingdb import EventSourcingDbEventStore  # noqa: PLC0415

        Address.parse(url, place)  # so that an error names the place
        return EventSourcingDbEventStore(url, api_token)
    if not is_sql(url) and (entries := _entries(_scheme(url))):
        registered: EventSource = _REGISTRY.make(entries, url, api_token)
        return checked_source(registered, mask_url(url))
    if (error := unknown_scheme(url, mask_url(url))) is not None:
        raise error
    from opencqrs_py.adapters.sql import Database, MappedEventSource, SqlEventStore  # noqa: PLC0415

    is_mapped = mapping is not None
    database = event_database() if event_database is not None else Database(url, read_only=is_mapped)
    return SqlEventStore(database, creates=creates) if mapping is None else MappedEventSource(database, mapping)


def _scheme(url: str) -> str:
    """Return the scheme of a URL, without what follows a ``+``; empty if it has none."""
    found = _SCHEME.match(url)
    return found[1].lower() if found else ""


@lru_cache
def _entries(scheme: str) -> tuple[EntryPoint, ...]:
    """Return what other packages have registered for a scheme."""
    return tuple(entry_points(group=ENTRY_POINTS, name=scheme)) if scheme else ()

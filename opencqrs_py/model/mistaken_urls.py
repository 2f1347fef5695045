"""Forms of URLs that users know from other programs, and the correct form of each."""

from __future__ import annotations

import re

# No URL here contains user:password@: messages hide secrets, so *** would replace "password".
_WITH_USER = "with user:password@ in front of the host if it asks for them"
_DATABASES = {
    "postgres": f"postgresql://host/database, {_WITH_USER}",
    "postgresql": f"postgresql://host/database, {_WITH_USER}",
    "mysql": f"mariadb://host/database, {_WITH_USER}",
    "mariadb": f"mariadb://host/database, {_WITH_USER}",
    "sqlite": "sqlite:///events.db, or sqlite:////srv/events.db for an absolute path",
}
_SLASHES = "write three slashes before a relative path, sqlite:///events.db, and four before an absolute one"
_ANY = f"write it like sqlite:///events.db or {_DATABASES['postgresql']}"
_WINDOWS_FIX = "write sqlite:///C:/folder/events.db, or file:///C:/folder for files of events"
_RENAME = "rename the file or folder that it names"
_DRIVERS = {
    "mariadb": ("pymysql", "mysqldb"),
    "mysql": ("pymysql", "mysqldb"),
    "postgresql": ("psycopg",),
    "sqlite": ("pysqlite",),
}
_PORTS = {"mariadb": 3306, "mysql": 3306, "postgresql": 5432}
_SCHEME = re.compile(r"(?P<kind>[A-Za-z][A-Za-z0-9.-]+)(?:\+(?P<driver>[A-Za-z0-9_]*))?:")
# As SQLAlchemy reads it: a password ends at the first @, whatever else is in it.
_PORT = re.compile(r"//(?:[^:/]*(?::[^@]*)?@)?+(?:\[[^]/?]+\]|[^/:?]*):(?P<port>[^/?]*)")
_MOST_PORTS = 65_535
_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|\\\\")
_SURROGATE = re.compile(r"[\ud800-\udfff]")  # Python's form of a byte that is not UTF-8
_PATH = re.compile(r"[\w./ ~-]+")
_SQLITE_FILE = re.compile(r".*\.(?:db|db3|sqlite|sqlite3)", re.IGNORECASE)


def url_mistake(url: str) -> tuple[str, str] | None:
    """Return what is wrong with the URL of a store and how to fix it; ``None`` if it has no known mistake.

    Neither text repeats more of the URL than its scheme, or a path without one.
    """
    if _SURROGATE.search(url):
        on_server = "://" in url and not url.startswith(("sqlite", "file"))
        fix = "write such a character with percent signs, as %C3%A9 for é" if on_server else _RENAME
        return "it is not valid UTF-8", fix
    if _WINDOWS.match(url):
        return "it is a Windows path", _WINDOWS_FIX
    found = _SCHEME.match(url)
    if found is None:
        return _of_path(url)
    return _of_scheme(found["kind"].lower(), found["driver"], url[found.end() :])


def not_a_database(url: str) -> tuple[str, str] | None:
    """Return why a URL, which may be valid for an event store, names no database, and how to fix it; else ``None``."""
    scheme = url.partition(":")[0].partition("+")[0].lower()
    if scheme in {"http", "https"}:
        return (
            "it is an HTTP address",
            "an EventSourcingDB belongs in event-store.url: eventsourcingdb://host:3000",
        )
    if scheme == "file":
        return "files hold events and no tables", "write sqlite:///models.db for an SQLite file"
    if scheme in {"eventsourcingdb", "esdb"}:
        return "an EventSourcingDB holds events and no tables", _ANY
    return None


def _of_scheme(kind: str, driver: str | None, rest: str) -> tuple[str, str] | None:
    if kind == "jdbc":
        inner = rest.partition(":")[0].lower()
        return "it is a JDBC URL", f"write {_DATABASES[inner]}" if inner in _DATABASES else _ANY
    if kind == "postgres":
        return "its scheme is postgres", "write postgresql:// instead of postgres://"
    if kind == "sqlite" and (host := rest[2:3]) and rest.startswith("//") and host not in "/?":
        return "sqlite: is followed by two slashes", _SLASHES
    if driver is not None and kind in _DRIVERS and driver not in _DRIVERS[kind]:
        return f"the driver {driver} is not supported", f"write {kind}:// without a driver; {_DRIVERS[kind][0]} is used"
    if kind in _DATABASES and not rest.startswith("//"):
        return f"{kind}: is not followed by //", f"write {_DATABASES[kind]}"
    return _of_port(kind, rest)


def _of_port(kind: str, rest: str) -> tuple[str, str] | None:
    port = found["port"] if kind in _PORTS and (found := _PORT.match(rest)) else ""
    if not port or "@" in port or (port.isdecimal() and 1 <= int(port) <= _MOST_PORTS):
        return None
    right = f"write {kind}://host:{_PORTS[kind]}/database, {_WITH_USER}"
    return f"its port is not a number from 1 to {_MOST_PORTS:,}", right


def _of_path(url: str) -> tuple[str, str] | None:
    if not _PATH.fullmatch(url) or not ("/" in url or "." in url):
        return None
    if _SQLITE_FILE.fullmatch(url):
        return "it is a path without a scheme", f"write sqlite:///{url}"
    return "it is a path without a scheme", f"write file:{url} for files of events, sqlite:///… for an SQLite file"

"""Forms of a URL that people bring from elsewhere, and the form that the message suggests."""

import pytest

from opencqrs_py.model.masking import mask_url, scrubbed
from opencqrs_py.model.mistaken_urls import url_mistake

WITH_USER = "with user:password@ in front of the host if it asks for them"
POSTGRESQL = f"write postgresql://host/database, {WITH_USER}"
MARIADB = f"write mariadb://host/database, {WITH_USER}"
PORT = {
    "postgresql": f"host:5432/database, {WITH_USER}",
    "mariadb": f"host:3306/database, {WITH_USER}",
    "mysql": f"host:3306/database, {WITH_USER}",
}
SQLITE = "write sqlite:///events.db, or sqlite:////srv/events.db for an absolute path"
FILES = "for files of events, sqlite:///… for an SQLite file"
ANY = f"write it like sqlite:///events.db or postgresql://host/database, {WITH_USER}"
WINDOWS = "write sqlite:///C:/folder/events.db, or file:///C:/folder for files of events"


@pytest.mark.parametrize(
    ("url", "what", "fix"),
    [
        ("postgres://me:secret@h/db", "its scheme is postgres", "write postgresql:// instead of postgres://"),
        ("POSTGRES://h/db", "its scheme is postgres", "write postgresql:// instead of postgres://"),
        ("jdbc:postgresql://h/db?password=secret", "it is a JDBC URL", POSTGRESQL),
        ("jdbc:mysql://h/db", "it is a JDBC URL", MARIADB),
        ("JDBC:mariadb://h/db", "it is a JDBC URL", MARIADB),
        ("jdbc:sqlite:events.db", "it is a JDBC URL", SQLITE),
        ("jdbc:oracle:thin:scott/secret@h", "it is a JDBC URL", ANY),
        (
            "postgresql+psycopg2://me:secret@h/db",
            "the driver psycopg2 is not supported",
            "write postgresql:// without a driver; psycopg is used",
        ),
        (
            "postgresql+asyncpg://h/db",
            "the driver asyncpg is not supported",
            "write postgresql:// without a driver; psycopg is used",
        ),
        (
            "mysql+aiomysql://h/db",
            "the driver aiomysql is not supported",
            "write mysql:// without a driver; pymysql is used",
        ),
        (
            "sqlite+aiosqlite:///x.db",
            "the driver aiosqlite is not supported",
            "write sqlite:// without a driver; pysqlite is used",
        ),
        ("sqlite:////srv/caf\udce9/a.db", "it is not valid UTF-8", "rename the file or folder that it names"),
        (
            "postgresql://u:caf\udce9@h/db",
            "it is not valid UTF-8",
            "write such a character with percent signs, as %C3%A9 for é",
        ),
        ("sqlite:events.db", "sqlite: is not followed by //", SQLITE),
        ("postgresql:me:secret@h/db", "postgresql: is not followed by //", POSTGRESQL),
        *(
            (f"{kind}://{place}", "its port is not a number from 1 to 65,535", f"write {kind}://{PORT[kind]}")
            for kind in PORT
            for place in (
                "h:port/db",
                "me:secret@h:99999/db",
                "me@h:0",
                "[::1]:x/db",
                "me:a/b?c@h:-1/db?x=1",
                "h:1,i:2/d",
            )
        ),
        ("events.db", "it is a path without a scheme", "write sqlite:///events.db"),
        ("/srv/my log.sqlite3", "it is a path without a scheme", "write sqlite:////srv/my log.sqlite3"),
        ("events.ndjson", "it is a path without a scheme", f"write file:events.ndjson {FILES}"),
        ("../logs/", "it is a path without a scheme", f"write file:../logs/ {FILES}"),
        ("C:\\data\\events.db", "it is a Windows path", WINDOWS),
        ("c:/data/events.db", "it is a Windows path", WINDOWS),
        ("\\\\server\\share\\events.db", "it is a Windows path", WINDOWS),
    ],
)
def test_a_known_mistake_is_explained_without_repeating_a_password(url, what, fix):
    assert url_mistake(url) == (what, fix)


@pytest.mark.parametrize("fix", [POSTGRESQL, MARIADB, ANY, SQLITE, WINDOWS])
def test_suggested_urls_contain_nothing_that_is_masked(fix):
    assert (scrubbed(fix), mask_url(fix)) == (fix, fix)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:///events.db",
        "sqlite+pysqlite:///events.db",
        "sqlite://",
        "sqlite:///C:/data/events.db",
        "postgresql://me:secret@h/db",
        "postgresql+psycopg://h/db",
        "postgresql://me:99999@h/db",
        "postgresql://me:a/b?c@h:5432/db",
        "postgresql://[::1]:5432/db?host=a:b",
        "postgresql:///db?host=/tmp",
        "postgresql://h:/db",
        "postgresql://me:sec@ret:x@h/db",
        "mariadb://me@h:65535",
        "mariadb+pymysql://h/db",
        "mysql+mysqldb://h/db",
        "file:events.ndjson",
        "file:///C:/data",
        "eventsourcingdb+https://h",
        "http://h:3000",
        "mongodb://h",
        "nonsense",
        "",
        "me:secret@h/db",
        "me:secret@h",
    ],
)
def test_other_urls_get_no_explanation(url):
    assert url_mistake(url) is None

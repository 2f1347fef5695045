"""URLs of no database, or of an unusable one: each gives one message with the fix."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from threading import Thread
from urllib.parse import quote

import pytest

from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection

MARIADB = pytest.mark.parametrize("kind", [pytest.param("mariadb", marks=pytest.mark.mariadb)])
URL = "the URL (settings event-store.url and database.url, option url in Spark)"


def refusal_of(url: str) -> EventStoreError:
    """Return why a store cannot be opened, after checking that it is not an outage."""
    database = Database(url)
    with pytest.raises(EventStoreError) as caught:
        SqlEventStore(database).head()
    assert not database.is_outage(caught.value)
    database.close()
    return caught.value


@pytest.mark.parametrize(
    ("kind", "parameter", "reason"),
    [
        pytest.param("mariadb", "useSSL=false", "unexpected keyword argument 'useSSL'", marks=pytest.mark.mariadb),
        pytest.param("mariadb", "ssl_ca=/nowhere.pem", "No such file or directory", marks=pytest.mark.mariadb),
        pytest.param("mariadb", "connect_timeout=soon", "invalid literal for int", marks=pytest.mark.mariadb),
        ("sqlite", "timeout=soon", "could not convert string to float"),
    ],
)
def test_a_parameter_unknown_to_the_driver_is_refused(url: str, kind: str, parameter: str, reason: str) -> None:
    error = refusal_of(f"{url}{'&' if '?' in url else '?'}{parameter}")
    assert (error.code, error.fix) == ("OCQ-304", f"fix what follows ? in {URL}")
    assert error.what.startswith("the database cannot be used (")
    assert reason in error.what


@MARIADB
def test_a_mariadb_url_without_a_database_is_refused(url: str) -> None:
    error = refusal_of(url.replace("/test?", "/?"))
    assert (error.code, error.what) == ("OCQ-301", "the database URL names no database")
    assert error.fix == f"write it after the host, mariadb://host/database, in {URL}"


@MARIADB
@pytest.mark.parametrize("charset", ["utf8", "latin1"])
def test_a_charset_that_loses_characters_is_refused(url: str, charset: str) -> None:
    database = Database(url)
    SqlEventStore(database).append([Event(0, "1", "s", "/😀", "t", None, "application/json", "1", None)])
    database.close()
    error = refusal_of(f"{url}&charset={charset}")
    assert (error.code, error.fix) == ("OCQ-304", "remove charset from the URL, or write charset=utf8mb4")
    assert error.what.endswith(", in which characters are lost")
    assert charset in error.what
    database = Database(f"{url}&charset=utf8mb4")
    assert [each.subject for each in SqlEventStore(database).read(0, 9, Selection()).events] == ["/😀"]
    database.close()


@pytest.mark.parametrize(
    ("kind", "parameter", "reason"),
    [
        pytest.param(
            "postgresql",
            "options=-c default_transaction_read_only=on",
            "cannot execute CREATE TABLE in a read-only transaction",
            marks=pytest.mark.postgresql,
        ),
        pytest.param(
            "mariadb",
            "init_command=SET SESSION TRANSACTION READ ONLY",
            "Cannot execute statement in a READ ONLY transaction",
            marks=pytest.mark.mariadb,
        ),
    ],
)
def test_a_read_only_server_is_reported_as_such(url: str, kind: str, parameter: str, reason: str) -> None:
    name, _, value = parameter.partition("=")
    error = refusal_of(f"{url}&{name}={quote(value)}")
    assert (error.code, error.what) == ("OCQ-304", f"the database cannot be used ({reason})")
    assert error.fix == f"name a server, and a user, whose transactions may write in {URL}: a replica may not"


@pytest.fixture
def another_server() -> Iterator[str]:
    """Answers each connection as a server of another kind; gives its host and port."""

    def answer() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:  # closed
                return
            with connection:
                connection.sendall(b"-ERR unknown command\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = Thread(target=answer)
        answering.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
    answering.join()


@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_server_of_another_kind_is_reported_as_such(another_server: str, kind: str) -> None:
    database = Database(f"{kind}://u:secret@{another_server}/d")
    with pytest.raises(EventStoreError, match="OCQ-304") as caught, database.reading():
        pass
    assert caught.value.fix == f"another kind of server answers there: fix scheme, host or port in {URL}"
    assert "secret" not in str(caught.value)
    database.close()

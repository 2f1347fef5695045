"""What accepts a connection and never answers, such as another server or a firewall: an outage, within seconds."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import text

from opencqrs_py.adapters.sql import Database
from opencqrs_py.adapters.sql.dialects.dialect import Dialect
from opencqrs_py.errors import EventStoreError

KINDS = pytest.mark.parametrize("kind", ["postgresql", "mariadb"])


@pytest.fixture
def silent() -> Iterator[str]:
    """Accepts connections and says nothing; gives its host and port."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.release(kind="postgresql")  # whose driver has this timeout itself
@KINDS
def test_a_server_that_never_responds_is_reported_as_unreachable(monkeypatch, silent: str, kind: str) -> None:
    monkeypatch.setattr(Dialect, "connect_seconds", 2)
    database = Database(f"{kind}://u:secret@{silent}/d")
    with (
        pytest.raises(EventStoreError, match=r"\[OCQ-304\] the database cannot be reached \(.*time") as caught,
        database.reading(),
    ):
        pass
    assert database.is_outage(caught.value)
    assert "secret" not in str(caught.value)
    database.close()


@pytest.mark.mariadb
def test_the_connect_timeout_does_not_apply_to_statements(monkeypatch, fresh_url: Callable[[str], str]) -> None:
    monkeypatch.setattr(Dialect, "connect_seconds", 1)
    database = Database(fresh_url("mariadb"))
    with database.reading() as connection:
        assert connection.execute(text("SELECT SLEEP(1.1)")).scalar() == 0
    database.close()


def test_the_users_own_timeout_or_encoding_for_postgresql_wins(monkeypatch) -> None:
    seconds, encoding = {"connect_timeout": Dialect.connect_seconds}, {"client_encoding": "utf8"}
    monkeypatch.delenv("PGCONNECT_TIMEOUT", raising=False)
    monkeypatch.delenv("PGCLIENTENCODING", raising=False)
    for url, expected in {
        "?connect_timeout=3": encoding,
        "?client_encoding=latin1": seconds,
        "?service=mine": {},
        "?application_name=a": seconds | encoding,
    }.items():
        database = Database(f"postgresql://host/d{url}")
        assert database.dialect.connect_args(database.engine.url) == expected
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "3")
    assert database.dialect.connect_args(database.engine.url) == encoding
    monkeypatch.setenv("PGCLIENTENCODING", "latin1")
    assert database.dialect.connect_args(database.engine.url) == {}

"""A handler that takes a transaction needs a database, and a connection of the database's driver."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest
from psycopg.rows import TupleRow
from sqlalchemy import Connection

from opencqrs_py import Event
from opencqrs_py.assembly import parts
from opencqrs_py.assembly.parts import check_transaction
from opencqrs_py.errors import AssemblyError
from opencqrs_py.processing.binding import NothingProvided
from opencqrs_py.processing.signatures import read_signature


def without_connection(raw: Event) -> None: ...
def any_connection(raw: Event, connection: Connection) -> None: ...
def sqlite_connection(raw: Event, connection: sqlite3.Connection) -> None: ...
def postgresql_connection(raw: Event, connection: psycopg.Connection) -> None: ...
def postgresql_connection_with_rows(raw: Event, connection: psycopg.Connection[TupleRow]) -> None: ...


def check(call: Callable[..., Any], *, there: bool = True, url: str = "") -> None:
    check_transaction(read_signature(call, "here", NothingProvided()), "here", there=there, url=lambda: url)


@pytest.mark.parametrize(
    ("call", "url"),
    [
        (without_connection, "sqlite:///a.db"),
        (any_connection, "sqlite:///a.db"),
        (sqlite_connection, "sqlite:///a.db"),
        (postgresql_connection, "postgresql+psycopg://host/a"),
        (postgresql_connection_with_rows, "postgresql://host/a"),
        (sqlite_connection, ""),
    ],
)
def test_a_connection_of_the_databases_own_driver_is_accepted(call: Callable[..., Any], url: str) -> None:
    check(call, url=url)


@pytest.mark.parametrize(
    ("call", "url", "driver", "kind"),
    [
        (sqlite_connection, "postgresql://u:secret@host/a", "sqlite3", "postgresql"),
        (postgresql_connection, "sqlite:///a.db", "psycopg", "sqlite"),
        (postgresql_connection_with_rows, "mariadb+pymysql://host/a", "psycopg", "mariadb"),
    ],
)
def test_a_connection_of_another_driver_is_refused_at_the_start(
    call: Callable[..., Any], url: str, driver: str, kind: str
) -> None:
    with pytest.raises(AssemblyError) as caught:
        check(call, url=url)
    what = f"'connection' asks for a connection of {driver}, but the database is {kind}"
    assert (caught.value.code, caught.value.what, caught.value.where) == ("OCQ-525", what, "here")


@pytest.mark.parametrize(
    ("call", "url"),
    [(without_connection, "sqlite:///a.db"), (any_connection, "shelf://a"), (sqlite_connection, "")],
)
def test_the_dialect_is_looked_up_only_for_a_connection_of_a_driver(
    call: Callable[..., Any], url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "dialect_named", Mock(side_effect=AssertionError))
    check(call, url=url)


@pytest.mark.parametrize("call", [any_connection, sqlite_connection])
def test_without_a_database_a_handler_with_a_connection_is_refused(call: Callable[..., Any]) -> None:
    check(without_connection, there=False)
    with pytest.raises(AssemblyError, match="OCQ-524"):
        check(call, there=False)

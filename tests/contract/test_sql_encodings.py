"""Databases of PostgreSQL in other encodings than UTF-8."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

import pytest
from sqlalchemy import make_url

from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection


def event(subject: str) -> Event:
    return Event(0, "1", "urn:test", subject, "lent", None, "application/json", "1", None)


@pytest.fixture
def encoded(fresh_url: Callable[[str], str]) -> Callable[[str], str]:
    """Makes a database of PostgreSQL in an encoding and returns its URL."""

    def make(encoding: str) -> str:
        url = fresh_url("postgresql")
        with closing(Database(url)) as database, database.reading() as connection:
            locale = f"ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
            connection.exec_driver_sql(f"CREATE DATABASE in_{encoding.lower()} {locale}")
        return make_url(url).set(database=f"in_{encoding.lower()}").render_as_string(hide_password=False)

    return make


@pytest.mark.postgresql
def test_a_database_without_an_encoding_stores_every_character(encoded: Callable[[str], str]) -> None:
    database = Database(encoded("SQL_ASCII"))
    store = SqlEventStore(database)
    store.append([event("/books/grün/漢字")])
    assert [each.subject for each in store.read(0, 9, Selection()).events] == ["/books/grün/漢字"]
    database.close()


@pytest.mark.postgresql
def test_a_character_that_the_database_cannot_store_is_refused_and_nothing_is_added(
    encoded: Callable[[str], str],
) -> None:
    database = Database(encoded("LATIN1"))
    store = SqlEventStore(database)
    store.append([event("/books/grün")])
    with pytest.raises(EventStoreError, match=r'OCQ-306.*has no equivalent in encoding "LATIN1"') as caught:
        store.append([event("/books/漢字")])
    assert not database.is_outage(caught.value)
    assert [each.subject for each in store.read(0, 9, Selection()).events] == ["/books/grün"]
    database.close()

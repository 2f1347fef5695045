"""What a database cannot hold: an explained error that is not an outage, and nothing is added."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import make_url, text

from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.appending import SubjectIsPristine
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection

POSTGRESQL = pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
MARIADB = pytest.mark.parametrize("kind", [pytest.param("mariadb", marks=pytest.mark.mariadb)])
PACKET = 16 * 1024 * 1024  # bytes that MariaDB takes at once by default

Append = Callable[[SqlEventStore, list[Event]], object]
WAYS = pytest.mark.parametrize(
    "append",
    [
        SqlEventStore.append,
        lambda store, events: store.append(iter(events)),
        lambda store, events: store.append(events, [SubjectIsPristine("/never")]),
    ],
    ids=["a list", "a stream", "on condition"],
)


def event(name: str, payload: str = "1") -> Event:
    return Event(0, name, "urn:test", "/books/1", "lent", None, "application/json", payload, None)


def text_of(length: int, character: str = "x") -> str:
    return '"' + character * length + '"'


@POSTGRESQL
@WAYS
def test_an_id_too_long_for_an_index_is_refused(database: Database, append: Append) -> None:
    store = SqlEventStore(database)
    store.append([event("1")])
    long = "".join(map(chr, range(0x4E00, 0x4E00 + 5_000)))  # which cannot be compressed
    with pytest.raises(EventStoreError, match=r"OCQ-306.*index row") as caught:
        append(store, [event("2"), event(long)])
    assert not store.is_outage(caught.value)
    assert store.head() == 1
    assert append(store, [event("2")]) == (1, 1)


@POSTGRESQL
@pytest.mark.parametrize(
    "call", [SqlEventStore.head, lambda store: store.append([event("2")])], ids=["a read", "an append"]
)
def test_a_statement_that_takes_too_long_for_the_server_is_explained(
    database: Database, url: str, call: Callable[[SqlEventStore], object]
) -> None:
    hurried = Database(str(make_url(url).update_query_dict({"options": "-cstatement_timeout=300"})))
    store = SqlEventStore(hurried)
    store.append([event("1")])
    with database.writing() as connection:
        connection.execute(text("LOCK TABLE opencqrs_events"))
        with pytest.raises(
            EventStoreError, match=r"OCQ-305.*due to statement timeout(?s:.*)statement_timeout"
        ) as caught:
            call(store)
    assert store.is_outage(caught.value)
    hurried.close()


class TestAfterTheCommit:
    """What fails then does not say that nothing was added."""

    @pytest.mark.release  # what a log says
    @POSTGRESQL
    def test_missing_statistics_of_the_table_are_warned_of(
        self, database: Database, url: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        hurried = Database(str(make_url(url).update_query_dict({"options": "-cstatement_timeout=2000"})))
        store = SqlEventStore(hurried)
        store.append([event("0")])
        with database.writing() as connection:
            connection.execute(text("LOCK TABLE opencqrs_events IN SHARE UPDATE EXCLUSIVE MODE"))  # as a VACUUM does
            assert store.append([event(str(number)) for number in range(1, 10_001)]) == (10_000, 10_000)
        hurried.close()
        (message,) = caplog.messages
        assert "the events are stored, but the table was not analysed" in message
        assert "OCQ-305" in message

    @POSTGRESQL
    def test_events_that_cannot_be_compared_are_warned_of(
        self, database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        store = SqlEventStore(database)
        store.append([event("1")])
        cut = "SELECT pg_terminate_backend(pg_backend_pid())"
        monkeypatch.setattr(type(database.dialect), "find_stored", lambda *_: (cut, ()))
        assert store.append([event("1"), event("2")]) == (2, 1)
        (message,) = caplog.messages
        assert "the events are stored, but those already known were not compared" in message
        assert "OCQ-304" in message
        assert [each.id for each in store.read(0, 10, Selection()).events] == ["1", "2"]


@pytest.mark.few
@MARIADB
@WAYS
@pytest.mark.parametrize(
    "payload", [text_of(PACKET), text_of(PACKET // 2, '\\"'), text_of(PACKET // 3, "€")], ids=["x", "escaped", "bytes"]
)
def test_an_event_that_is_too_large_for_the_server_is_refused(database: Database, append: Append, payload: str) -> None:
    store = SqlEventStore(database)
    with pytest.raises(EventStoreError, match=r"OCQ-306.*too large") as caught:
        append(store, [event("1"), event("large", payload)])
    assert not store.is_outage(caught.value)
    assert "'large' of 'urn:test'" in str(caught.value)
    assert "max_allowed_packet" in str(caught.value)
    assert store.head() == 0


@MARIADB
def test_an_event_within_the_size_limit_is_accepted(database: Database) -> None:
    store = SqlEventStore(database)
    large = [text_of(PACKET - 20_000), text_of(900_000), text_of(PACKET - 20_000), text_of(PACKET // 4 - 20_000, '\\"')]
    assert store.append([event(str(number), payload) for number, payload in enumerate(large)]) == (4, 4)
    read = store.read(0, 10, Selection()).events
    assert [one.id for one in read] == ["0", "1", "2", "3"]

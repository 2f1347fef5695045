"""Which log a progress belongs to: stores that were replaced, or restored from a backup, are refused."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from sqlalchemy import text

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.adapters.sql import Database, MappedEventSource, SqlEventStore
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model import Event, Selection
from opencqrs_py.model.mapping import TableMapping
from opencqrs_py.model.progress import LogMark
from opencqrs_py.processing.ports import EventSource

MAPPING = TableMapping("opencqrs_events", "position", "id", "type", "payload", source="source", subject="subject")


def numbered(*numbers: int, source: str = "shop") -> list[Event]:
    return [Event(0, f"e{n}", source, "/", "sold", None, "application/json", "{}", None) for n in numbers]


@pytest.fixture
def store(database: Database) -> SqlEventStore:
    return SqlEventStore(database)


@pytest.fixture(params=["ours", "mapped"])
def reopened(
    request: pytest.FixtureRequest, open_database: Callable[[], Database], store: SqlEventStore
) -> Callable[[], EventSource]:
    """Opens the log again, as another process does: as our table, and as if another system filled it."""
    store.head()

    def open_() -> EventSource:
        database = open_database()
        if request.param == "mapped" and database.kind == "mariadb":
            pytest.skip("tables of others cannot be read on MariaDB")
        return SqlEventStore(database) if request.param == "ours" else MappedEventSource(database, MAPPING)

    return open_


def restore(database: Database, upto: int) -> None:
    """Restore the state of an earlier backup; positions continue from there, as on servers."""
    with database.writing() as connection:
        connection.execute(text(f"DELETE FROM opencqrs_events WHERE position > {upto}"))
        match database.kind:
            case "sqlite":
                connection.execute(text(f"UPDATE sqlite_sequence SET seq = {upto} WHERE name = 'opencqrs_events'"))
            case "postgresql":
                connection.execute(text(f"ALTER SEQUENCE opencqrs_events_position_seq RESTART WITH {upto + 1}"))
            case "mariadb":
                connection.execute(text(f"ALTER TABLE opencqrs_events AUTO_INCREMENT = {upto + 1}"))


def refused(source: EventSource, position: int, fingerprint: str) -> str:
    with pytest.raises(EventStoreError) as caught:
        source.verify(position, fingerprint)
    assert caught.value.code == "OCQ-316"
    assert "log_fingerprint" in caught.value.fix
    return caught.value.what


def test_a_restored_store_is_refused_while_it_is_shorter(
    database: Database, store: SqlEventStore, reopened: Callable[[], EventSource]
) -> None:
    store.append(numbered(*range(1, 61)))
    fingerprint = reopened().fingerprint(60)
    restore(database, 20)
    what = refused(reopened(), 60, fingerprint)
    assert "expected event e60 of shop at position 60, but there is none: the log ends at position 20" in what


def test_a_restored_store_that_has_grown_past_the_progress_is_refused(
    database: Database, store: SqlEventStore, reopened: Callable[[], EventSource]
) -> None:
    store.append(numbered(*range(1, 61)))
    fingerprint = reopened().fingerprint(60)
    restore(database, 20)
    store.append(numbered(*range(101, 201)))
    what = refused(reopened(), 60, fingerprint)
    assert "expected event e60 of shop at position 60, but the log has event e140 of shop at position 60" in what


def test_a_store_restored_to_a_position_after_the_progress_is_the_same(
    database: Database, store: SqlEventStore, reopened: Callable[[], EventSource]
) -> None:
    store.append(numbered(*range(1, 61)))
    fingerprint = reopened().fingerprint(20)
    restore(database, 30)
    store.append(numbered(*range(101, 201)))
    reopened().verify(20, fingerprint)


def test_the_same_ids_of_another_source_are_another_log(
    database: Database, store: SqlEventStore, reopened: Callable[[], EventSource]
) -> None:
    store.append(numbered(1, 2, 3))
    fingerprint = reopened().fingerprint(3)
    restore(database, 0)
    store.append(numbered(1, 2, 3, source="another shop"))
    assert "event e3 of another shop" in refused(reopened(), 3, fingerprint)


def test_progress_before_the_first_event_belongs_to_any_log(
    store: SqlEventStore, reopened: Callable[[], EventSource]
) -> None:
    fingerprint = reopened().fingerprint(500)  # a group that is to begin there
    store.append(numbered(*range(1, 4)))
    reopened().verify(500, fingerprint)


def test_between_two_events_the_earlier_one_applies(
    database: Database, store: SqlEventStore, reopened: Callable[[], EventSource]
) -> None:
    store.append(numbered(1, 2, 3, 4))
    with database.writing() as connection:
        connection.execute(text("DELETE FROM opencqrs_events WHERE position = 3"))
    source = reopened()
    assert source.fingerprint(3) == source.fingerprint(2)
    source.verify(3, source.fingerprint(3))


def test_two_logs_in_memory_are_distinguished() -> None:
    first, second = InMemoryEventStore(numbered(1, 2)), InMemoryEventStore(numbered(3, 4))
    first.verify(2, first.fingerprint(2))
    assert "event e2 of shop" in refused(second, 2, first.fingerprint(2))
    assert "ends at 2" in refused(second, 5, "")


@pytest.mark.parametrize("identity", ["x" * 5_000, "größe", "a'b", "\0", "\udcff", "[1]", '"', "😀" * 300])
def test_any_identity_has_a_short_fingerprint_in_ascii(identity: str) -> None:
    marks = [LogMark(7, identity, "id"), LogMark(7, "source", identity), LogMark(8, identity, "id"), LogMark()]
    texts = [mark.text for mark in marks]
    assert len(set(texts)) == len(texts)
    assert all(re.fullmatch(r"[ -~]{1,1000}", one) for one in texts)


def test_the_fingerprint_of_a_read_event_costs_no_read(store: SqlEventStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append(numbered(1, 2, 3))
    (*_, last) = store.read(0, 10, Selection()).events
    monkeypatch.setattr(Database, "fetch", lambda *_: pytest.fail("the store was read"))
    assert store.fingerprint(3, last) == LogMark.of(last).text
    assert store.fingerprint(3) == LogMark.of(last).text  # for the partitions that read next, too

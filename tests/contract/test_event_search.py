"""Finding events by their ids, where ids of several sources are alike."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
from sqlalchemy import text

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.model import Event
from opencqrs_py.processing.finding import FoundEvent

Noted = Callable[[Callable[[str, Any], None]], AbstractContextManager[None]]
LONG = "x" * 300
COUNT = 20_000
ALL = pytest.mark.parametrize(
    "kind",
    [
        "memory",
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.postgresql),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ],
)


@pytest.fixture
def store(kind: str, request: pytest.FixtureRequest) -> Any:
    return InMemoryEventStore() if kind == "memory" else SqlEventStore(request.getfixturevalue("database"))


def event(name: str, source: str) -> Event:
    return Event(0, name, source, "/books/1", "lent", None, "application/json", "{}", None)


@ALL
def test_events_with_an_id_are_found_in_all_sources(store: Any) -> None:
    given = [("1", "b"), ("1", "a"), ("2", "b"), ("10", "b"), ("1 ", "b"), (LONG, "b"), (LONG + "y", "c"), ("É", "é")]
    store.append([event(*each) for each in given])
    assert store.find("1") == [FoundEvent(2, "a"), FoundEvent(1, "b")]
    assert store.find("1", "b") == [FoundEvent(1, "b")]
    assert store.find("1", "B") == []
    assert store.find("10") == [FoundEvent(4, "b")]
    assert store.find("1 ") == [FoundEvent(5, "b")]
    assert store.find(LONG) == [FoundEvent(6, "b")]
    assert store.find("É") == [FoundEvent(8, "é")]
    assert store.find("é") == store.find("3") == store.find("") == []


@pytest.mark.parametrize("source", ["", "s-1"])
def test_events_are_found_by_an_index(database: Database, noted_statements: Noted, source: str) -> None:
    store = SqlEventStore(database)
    store.append(event(f"id-{n}", f"s-{n % 3}") for n in range(COUNT))
    if database.kind != "sqlite":
        with database.reading() as connection:
            connection.execute(text(f"ANALYZE {'TABLE' if database.kind == 'mariadb' else ''} opencqrs_events"))
    sent: list[tuple[str, Any]] = []
    with noted_statements(lambda *one: sent.append(one)):
        assert store.find("id-4000", source) == [FoundEvent(4_001, "s-1")]
    ((statement, values),) = sent
    with database.reading() as connection:
        if database.kind == "postgresql":
            rows = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS) {statement}", values).scalars()
            plan = "\n".join(rows)
            assert "Seq Scan on opencqrs_events" not in plan
            assert "opencqrs_events_source_id" in plan
        elif database.kind == "sqlite":
            plan = " | ".join(
                str(row[-1]) for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", values)
            )
            assert "SCAN opencqrs_events" not in plan
            assert "(source=? AND id=?)" in plan or "(id=? AND source=?)" in plan
        else:
            kinds = [(row.type, row.key) for row in connection.exec_driver_sql(f"EXPLAIN {statement}", values)]
            assert kinds in ([("range", "opencqrs_events_source_id")], [("const", "opencqrs_events_source_id")])

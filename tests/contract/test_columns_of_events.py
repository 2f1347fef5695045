"""Attributes of events read as rows, and the neighbours of positions, on each database."""

from __future__ import annotations

import pytest
from sqlalchemy import delete

from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.adapters.sql.tables import EVENTS
from opencqrs_py.engines.spark.source.ranges import Seekable
from opencqrs_py.engines.spark.source.source import Columnar
from opencqrs_py.model import Event, Selection


@pytest.fixture
def store(database: Database) -> SqlEventStore:
    """A log of the positions 1 to 10 and 41 to 50."""
    store = SqlEventStore(database)
    store.append(
        Event(0, str(n), "urn:s", f"/x/{n % 2}", "odd" if n % 2 else "even", None, "application/json", f"[{n}]", None)
        for n in range(1, 51)
    )
    table = database.table(EVENTS)
    with database.writing() as connection:
        connection.execute(delete(table).where(table.c.position.between(11, 40)))
    return store


def page(store: SqlEventStore, after: int, limit: int, selection: Selection, upto: int, *columns: str) -> object:
    end, rows = store.read_columns(after, limit, selection, upto, columns)
    return end, list(rows)


def test_only_the_requested_attributes_are_read(store: SqlEventStore) -> None:
    assert isinstance(store, Columnar)
    found = page(store, 8, 3, Selection(), 50, "position", "payload")
    assert found == (41, [(9, "[9]"), (10, "[10]"), (41, "[41]")])
    assert page(store, 41, 9, Selection(), 43, "position") == (43, [(42,), (43,)])


def test_a_selection_filters_rows_as_it_filters_events(store: SqlEventStore) -> None:
    odd = Selection("/x/1", types=frozenset({"odd"}))
    assert page(store, 7, 9, odd, 43, "position", "type") == (43, [(9, "odd"), (41, "odd"), (43, "odd")])
    assert page(store, 11, 9, odd, 40, "position", "type") == (40, [])


def test_a_log_that_ends_too_early_gives_no_page(store: SqlEventStore) -> None:
    assert page(store, 50, 9, Selection(), 60, "position") == (50, [])


def test_neighbours_of_positions_are_found_in_one_read(store: SqlEventStore) -> None:
    assert isinstance(store, Seekable)
    assert store.neighbours([0, 5, 10, 25, 45, 50]) == [(None, 1), (5, 6), (10, 41), (10, 41), (45, 46), (50, None)]
    assert store.neighbours([0, 5, 45], nth=10) == [(None, 10), (5, 45), (45, None)]


def test_an_empty_log_has_no_neighbours(database: Database) -> None:
    assert SqlEventStore(database).neighbours([0, 7]) == [(None, None), (None, None)]

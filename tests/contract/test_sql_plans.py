"""Query plans: indexes find rare events, and a replay reads along the primary key."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import text

from opencqrs_py.adapters.sql import Database, SqlEventStore, SqlProgressTracker
from opencqrs_py.adapters.sql.dialects.postgresql import statements_in
from opencqrs_py.adapters.sql.tables import INBOX
from opencqrs_py.model import Event, Selection, layout
from opencqrs_py.model.appending import SubjectIsOnEventId
from opencqrs_py.model.inbox import InboxChange, InboxEntry, InboxStatus
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.selection import Share

Noted = Callable[[Callable[[str, Any], None]], AbstractContextManager[None]]
Plans = Callable[..., list[str]]

COUNT = 30_000
NOW = "2026-01-01T00:00:00.000+00:00"
SCANS = r"SCAN opencqrs_events|Seq Scan|(ALL|index) opencqrs_events"
COMMON = frozenset({"lent", "returned"})


def fill(store: SqlEventStore, database: Database) -> None:
    """Write a log with many common events, and a few rare ones near its end."""
    store.append(
        Event(
            0,
            str(n),
            "s",
            f"/rare/{n}" if rare else f"/books/{n % 5_000}",
            "rare" if rare else ("lent" if n % 2 else "returned"),
            "2026-01-01T00:00:00Z",
            "application/json",
            "{}",
            None,
        )
        for n in range(COUNT)
        for rare in [n > 25_000 and n % 500 == 0]
    )
    if database.kind != "sqlite":
        with database.reading() as connection:
            connection.execute(text(f"ANALYZE {'TABLE' if database.kind == 'mariadb' else ''} opencqrs_events"))


@pytest.fixture
def store(long_log: object, database: Database) -> SqlEventStore:
    store = SqlEventStore(database)
    store.append([])  # checks whether the table exists
    return store


@pytest.fixture
def plans(database: Database, store: SqlEventStore, noted_statements: Noted) -> Plans:
    """Reads once and returns how the database plans each statement that is sent for it, on one line each."""

    def read(selection: Selection, after: int = 0, upto: int | None = None) -> list[str]:
        store.head()
        sent: list[tuple[str, Any]] = []
        with noted_statements(lambda *one: sent.append(one)):
            store.read(after, 1_000, selection, upto)
        return [plan(database, statement, values) for statement, values in sent]

    return read


def plan(database: Database, statement: str, values: Any) -> str:
    explain = "EXPLAIN QUERY PLAN" if database.kind == "sqlite" else "EXPLAIN"
    with database.reading() as connection:
        rows = connection.exec_driver_sql(f"{explain} {statement}", values).all()
    if database.kind == "mariadb":
        return " | ".join(f"{row.type} {row.table} {row.key} {row.Extra}" for row in rows)
    return " | ".join(str(row[-1]) for row in rows)


def walks(found: str) -> bool:
    """Say whether the plan walks along the primary key and sorts nothing."""
    by_key = re.search(r"USING INTEGER PRIMARY KEY|opencqrs_events_pkey|range opencqrs_events PRIMARY", found)
    return bool(by_key) and not re.search(r"opencqrs_events_(subject|type)|TEMP B-TREE|Sort|filesort", found)


def searches(found: str, column: str) -> bool:
    """Say whether the plan uses the index of a column and reads no table as a whole."""
    return f"opencqrs_events_{column}" in found and not re.search(SCANS, found)


@pytest.mark.release(upto=(20000, 30000))
@pytest.mark.parametrize(
    "selection",
    [Selection(), Selection(types=COMMON), Selection("/books"), Selection("/books", types=COMMON)],
    ids=["everything", "types", "subject", "both"],
)
@pytest.mark.parametrize("upto", [None, 20_000, COUNT])
@pytest.mark.few(kind=("postgresql", "mariadb"))
def test_a_replay_reads_along_the_primary_key(plans: Plans, selection: Selection, upto: int | None) -> None:
    (found,) = plans(selection, upto=upto)
    assert walks(found), found


@pytest.mark.parametrize(
    ("selection", "column"),
    [
        (Selection(types=frozenset({"rare"})), "type"),
        (Selection(types=frozenset({"rare", "none", "other"})), "type"),
        (Selection("/rare"), "subject"),
        (Selection("/rare/26000", recursive=False), "subject"),
        (Selection("/rare", types=frozenset({"rare"})), "subject"),
    ],
    ids=["type", "types", "subject with children", "subject", "both"],
)
def test_rare_events_are_found_by_an_index(plans: Plans, selection: Selection, column: str) -> None:
    _walk, _head, count, find = plans(selection)
    assert searches(count, column), count
    assert searches(find, column), find


@pytest.mark.parametrize(
    "selection", [Selection(types=frozenset({"rare"})), Selection("/rare")], ids=["type", "subject"]
)
def test_new_events_are_read_by_the_primary_key(database: Database, plans: Plans, selection: Selection) -> None:
    (found,) = plans(selection, after=COUNT - 1)
    if database.kind != "postgresql":
        assert walks(found), found
    assert not re.search(SCANS, found), found


def test_a_precondition_is_looked_up_by_an_index(
    database: Database, store: SqlEventStore, noted_statements: Noted
) -> None:
    sent: list[tuple[str, Any]] = []
    with noted_statements(lambda *one: sent.append(one)):
        store.append([], [SubjectIsOnEventId("/rare/26000", "26000")])
    (looked_up,) = [one for one in sent if one[0].startswith("SELECT id FROM")]
    found = plan(database, *looked_up)
    assert searches(found, "subject"), found


def test_events_that_leave_the_inbox_are_looked_up_once_each(database: Database, noted_statements: Noted) -> None:
    tracker, sequences = SqlProgressTracker(database), 50
    (cursor,) = tracker.claim("loans", layout(1), 0, "owner")
    entries = [
        InboxEntry("loans", f"/books/{n % sequences}", n, str(n), "s", "/", "t", InboxStatus.PENDING, NOW)
        for n in range(1, 5_001)
    ]
    with tracker.unit("loans", cursor, 5_000, change=InboxChange(NOW, tuple(entries), each=True)):
        pass
    if database.kind != "sqlite":
        with database.reading() as connection:
            connection.execute(text(f"ANALYZE {'TABLE' if database.kind == 'mariadb' else ''} opencqrs_inbox"))
    done = tuple(entries[:200])  # of many more: MariaDB only estimates how many rows there are
    sent: list[tuple[str, Any]] = []
    moved = replace(cursor, stored=5_000, position=5_000)
    change = InboxChange(NOW, done=done, each=True)
    with noted_statements(lambda *one: sent.append(one)), tracker.unit("loans", moved, 5_000, change=change):
        pass
    (taken_out,) = [one for one in sent if one[0].startswith("DELETE FROM")]
    assert "opencqrs_inbox" in taken_out[0]
    found = plan(database, *taken_out)
    on_sqlite = r"sqlite_autoindex_opencqrs_inbox_1 \(group_name=\? AND sequence_hash=\? AND position=\?\)"
    on_postgresql = r"Tid Scan on opencqrs_inbox .*TID Cond"
    assert re.search(f"{on_sqlite}|{on_postgresql}|range opencqrs_inbox PRIMARY", found), found
    assert not re.search(r"ref opencqrs_inbox|SCAN opencqrs_inbox|Seq Scan|Hash|Merge|Bitmap", found), found
    if database.kind == "postgresql":
        keys = r'Index Cond: \(\(group_name = .*(sequence_hash = asked.hash|"position" = asked."position").*\)'
        assert re.search(keys, found), found


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize("older", [False, True], ids=["keys of sqlite", "keys of older versions"])
def test_due_events_are_read_from_an_index_range_in_order(
    database: Database, noted_statements: Noted, *, older: bool
) -> None:
    tracker = SqlProgressTracker(database)
    (cursor,) = tracker.claim("loans", layout(1), 0, "owner")
    if older:
        with database.writing() as connection:
            INBOX.drop(connection)
            INBOX.create(connection)
    entries = [
        InboxEntry("loans", f"/books/{n % 50}", n, str(n), "s", "/", "t", InboxStatus.PENDING, NOW)
        for n in range(1, 501)
    ]
    with tracker.unit("loans", cursor, 500, change=InboxChange(NOW, tuple(entries))):
        pass
    sent: list[tuple[str, Any]] = []
    with noted_statements(lambda *one: sent.append(one)):
        assert len(tracker.due("loans", Partition(1, 0), datetime.fromisoformat(NOW), 1_000)) == 50
        tracker.next_due("loans", layout(1), expiring=False)
    first, counts, rows, next_due = [plan(database, *one) for one in sent if "opencqrs_inbox" in one[0]]
    assert first == "SEARCH opencqrs_inbox USING INDEX opencqrs_inbox_due (group_name=? AND due_ms<?)"
    for found in (counts, rows):
        assert found.endswith("(group_name=? AND sequence_hash=?)"), found
    assert next_due.endswith("COVERING INDEX opencqrs_inbox_due (group_name=? AND due_ms>?)"), next_due


def test_expiry_is_not_queried_if_no_event_expires(database: Database, noted_statements: Noted) -> None:
    tracker = SqlProgressTracker(database)
    tracker.claim("loans", layout(1), 0, "owner")
    sent: list[tuple[str, Any]] = []
    with noted_statements(lambda *one: sent.append(one)):
        tracker.next_due("loans", layout(2), expiring=False)
    assert len(sent) == 2
    assert not [statement for statement, _ in sent if "expires_ms" in statement]


@pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
def test_positions_are_allocated_after_the_events_are_sorted(database: Database) -> None:
    """The server reads JSON in its order anyway, so the result never shows whether an order was requested."""
    SqlEventStore(database).head()
    statement = statements_in(None).insert_all.replace("%s", "'[]'")
    with database.reading() as connection:
        (found,) = connection.exec_driver_sql(f"EXPLAIN (VERBOSE, FORMAT JSON) {statement}").scalar_one()
    (drawing,) = [node for node in nodes(found["Plan"]) if any("nextval(" in one for one in node["Output"])]
    (ordered,) = drawing["Plans"]
    assert "added.place" in ordered["Output"]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the nodes of a plan that put something out."""
    if "Output" in plan:
        yield plan
    for below in plan.get("Plans", ()):
        yield from nodes(below)


@pytest.mark.parametrize("limit", [1, 3, 1_000])
@pytest.mark.few(kind=("postgresql", "mariadb"))
def test_all_query_plans_find_the_same_events(database: Database, store: SqlEventStore, limit: int) -> None:
    selections = [
        Selection(types=frozenset({"rare"})),
        Selection("/rare"),
        Selection("/rare", types=COMMON),
        Selection("/books/17"),
        Selection("/books/17", recursive=False, types=frozenset({"lent", "rare"})),
    ]
    everything = [one for part in parts(store, 5_000, Selection()) for one in part]
    assert len(everything) == COUNT
    for selection in selections:
        found = [one for part in parts(store, limit, selection) for one in part]
        assert found == [one for one in everything if selection.matches(one)]


def parts(store: SqlEventStore, limit: int, selection: Selection) -> list[tuple[Event, ...]]:
    found, after = [], 0
    while (part := store.read(after, limit, selection)).upto > after:
        assert len(part.events) <= limit
        found.append(tuple(part.events))
        after = part.upto
    assert after == COUNT
    return found


@pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
@pytest.mark.parametrize("modulus", [2, 8, 32])
def test_no_parallel_workers_are_started_for_a_share_of_the_events(
    database: Database, store: SqlEventStore, noted_statements: Noted, modulus: int
) -> None:
    sent: list[tuple[str, Any]] = []
    with noted_statements(lambda *one: sent.append(one)):
        store.read(0, 1_000, Selection(share=Share(modulus, frozenset({0}))))
    with database.reading() as connection:
        for small in ("table", "index"):
            connection.exec_driver_sql(f"SET LOCAL min_parallel_{small}_scan_size = 0")
        found = [connection.exec_driver_sql(f"EXPLAIN {text}", values).scalars().all() for text, values in sent]
    assert walks(" | ".join(found[0]))
    assert "Gather" not in str(found)

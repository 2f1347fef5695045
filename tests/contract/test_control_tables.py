"""Where the control tables are, and how many statements coordination takes."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from queue import SimpleQueue

import pytest
from sqlalchemy import create_engine

from opencqrs_py.adapters.sql import Database, SqlControlStore, SqlProgressTracker
from opencqrs_py.adapters.sql import control as control_module
from opencqrs_py.adapters.sql.dialects import sqlite as sqlite_module
from opencqrs_py.adapters.sql.dialects.faults import DatabaseAwayError
from opencqrs_py.control.records import GroupPartition, Node, ProcessIdentity, Runnable, TaskLoad
from opencqrs_py.model.partition import layout

SECONDS = 50  # more than any machine needs, and less than a wait for a connection lasts
NODE = Node("id", "host:1", ProcessIdentity("b", "n", 1, "1"), {"books": Runnable(100)})
KEYS = [GroupPartition("books", partition) for partition in layout(100)]


@pytest.fixture
def control(database: Database):
    found = database.for_control()
    yield found
    found.close()


def test_a_view_has_the_time_of_a_server_which_is_another_clock(control):
    store = SqlControlStore(control)
    store.join(NODE, 1000)
    before = datetime.now(UTC)
    view, after = store.beat("id", 1000), datetime.now(UTC)
    assert view is not None
    if not control.dialect.remote:
        assert view.now is None
        return
    assert view.now is not None
    assert before - timedelta(milliseconds=1) <= view.now <= after + timedelta(milliseconds=1)  # it has whole ones


def test_a_heartbeat_takes_two_statements_however_many_partitions_and_nodes(control, noted_statements):
    store = SqlControlStore(control)
    for number in range(10):
        store.join(replace(NODE, id=f"id {number}"), 1000)
    store.take("id 3", KEYS)
    sent: list[str] = []
    with noted_statements(lambda statement, _values: sent.append(statement)):
        seen = store.beat("id 3", 1000)
    assert seen is not None
    assert len(seen.leases) == 100
    assert [statement.split()[0] for statement in sent if not statement.startswith(("BEGIN", "START", "PRAGMA"))] == [
        "UPDATE",
        "SELECT",
    ]


def test_reporting_its_load_adds_no_statement_to_a_heartbeat(control, noted_statements):
    store = SqlControlStore(control)
    store.join(NODE, 1000)
    sent: list[str] = []
    with noted_statements(lambda statement, _values: sent.append(statement)):
        store.beat_as(replace(NODE, load=TaskLoad({"books": 2}, 4)), 1000)
    assert [statement.split()[0] for statement in sent if not statement.startswith(("BEGIN", "START", "PRAGMA"))] == [
        "UPDATE",
        "SELECT",
    ]


def test_an_open_transaction_does_not_delay_heartbeats(database, control):
    store = SqlControlStore(control)
    store.join(NODE, 1000)
    with database.writing():
        assert store.beat(NODE.id, 1000) is not None


def test_the_control_tables_are_in_the_schema_of_the_database(url, kind):
    if kind == "sqlite":
        pytest.skip("has no schemas")
    database = Database(url, "apart")
    control = database.for_control()
    assert control is not None
    assert control.schema == "apart"
    SqlControlStore(control).join(NODE, 1000)
    with database.reading() as connection:
        assert connection.exec_driver_sql(f"SELECT count(*) FROM {database.prefix}opencqrs_nodes").scalar() == 1
    control.close()
    database.close()


def test_control_tables_are_in_the_database_of_the_users_engine(url, kind):
    engine = create_engine(Database(url).url)
    control = Database.of(engine).for_control()
    assert control is not None
    store = SqlControlStore(control)
    store.join(NODE, 1000)
    assert store.take(NODE.id, KEYS[:1]) == (KEYS[0],)
    store.close()
    engine.dispose()


def test_a_heartbeats_query_about_rebuilds_does_not_wait_for_a_handlers_connection(database):
    database.bound(1)
    tracker = SqlProgressTracker(database)
    tracker.claim("books", layout(1), 0, "me")
    with ThreadPoolExecutor(1) as threads, database.writing():
        assert threads.submit(tracker.rebuilt, ["books"]).result(SECONDS) == []


# Processes that are frozen, on servers


@pytest.fixture
def frozen(database, kind):
    """The control database of another process; the test freezes it within a transaction."""
    if kind == "sqlite":
        pytest.skip("a process that is frozen there may hold the write lock of the file")
    found = database.for_control()
    yield found
    found.close()


def test_a_node_frozen_in_a_heartbeat_does_not_prevent_a_takeover(control, frozen):
    store, other = SqlControlStore(control), SqlControlStore(frozen)
    store.join(NODE, 1000)
    other.join(replace(NODE, id="frozen"), 0.01)
    other.take("frozen", KEYS[:2])
    with frozen.writing() as connection, ThreadPoolExecutor(1) as threads:
        connection.exec_driver_sql(f"UPDATE {frozen.prefix}opencqrs_nodes SET until_ms = 0 WHERE node_id = 'frozen'")
        assert threads.submit(until_taken, store).result(SECONDS) == set(KEYS[:2])
    assert other.beat("frozen", 1000) is None


@pytest.mark.release(kind="mariadb")  # which test_job_stores.py shows
def test_a_node_frozen_while_it_changes_leases_is_disconnected_by_the_server(control, frozen, monkeypatch):
    monkeypatch.setattr(type(frozen.dialect), "standing_seconds", 1.0)
    store, other = SqlControlStore(control), SqlControlStore(frozen)
    store.join(NODE, 1000)
    other.join(replace(NODE, id="frozen"), 0.01)
    change = f"UPDATE {frozen.prefix}opencqrs_leases SET since = 'now'"

    def freeze() -> None:
        with frozen.briefly(1) as connection, ThreadPoolExecutor(1) as threads:
            connection.exec_driver_sql(change)
            assert threads.submit(until_taken, store).result(SECONDS) == set(KEYS[:2])
            connection.exec_driver_sql(change)

    with pytest.raises(DatabaseAwayError):
        freeze()


def test_heartbeats_continue_while_changes_of_leases_wait_for_another_program(
    control, frozen, noted_statements, monkeypatch
):
    monkeypatch.setattr(control_module, "_PATIENCE", 2.0 * SECONDS)
    store = SqlControlStore(control)
    store.join(NODE, 1000)
    sent = SimpleQueue[str]()
    with frozen.writing() as connection, ThreadPoolExecutor(3) as threads:
        connection.exec_driver_sql(f"UPDATE {frozen.prefix}opencqrs_leases SET since = 'now'")
        with noted_statements(lambda statement, _values: sent.put(statement)):
            waiting = [threads.submit(store.take, NODE.id, [key]) for key in KEYS[:2]]
            for _ in waiting:
                while not sent.get(timeout=SECONDS).startswith(f"UPDATE {control.prefix}opencqrs_leases"):
                    pass
        assert threads.submit(store.beat, NODE.id, 1000).result(SECONDS) is not None
        connection.rollback()
        for each in waiting:
            each.exception(SECONDS)


def until_taken(store: SqlControlStore) -> set[GroupPartition]:
    """Try to take two leases, as heartbeats do, until both are taken."""
    until, taken = time.monotonic() + SECONDS, set[GroupPartition]()
    while len(taken) < 2 and time.monotonic() < until:
        with suppress(DatabaseAwayError):
            taken.update(store.take(NODE.id, KEYS[:2]))
    return taken


# SQLite


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(("-wal", "-shm")))


def test_control_tables_of_an_sqlite_database_are_in_a_separate_file(tmp_path):
    database = Database(f"sqlite:///{tmp_path}/library.db")
    control = database.for_control()
    SqlControlStore(control).join(NODE, 1000)
    assert files(tmp_path) == ["library.db", "library.db-control.db"]
    with database.reading() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM sqlite_master").scalar() == 0
    control.close()
    database.close()


@pytest.mark.parametrize("spelled", ["sqlite:///{0}/link.db", "sqlite:///file:{0}/link.db?uri=true"])
def test_opening_the_file_through_a_link_finds_the_same_control_tables(tmp_path, spelled):
    (tmp_path / "data").mkdir()
    first = Database(f"sqlite:///{tmp_path}/data/library.db")
    one = first.for_control()
    SqlControlStore(one).join(NODE, 1000)
    (tmp_path / "link.db").symlink_to(tmp_path / "data" / "library.db")
    second = Database(spelled.format(tmp_path))
    other = second.for_control()
    assert [record.node for record in SqlControlStore(other).view().nodes] == [NODE]
    for database in (one, other, first, second):
        database.close()


def test_a_database_in_memory_has_no_control_tables():
    database = Database("sqlite://")
    assert database.for_control() is None
    database.close()


def test_all_leases_end_when_the_machine_restarts(tmp_path, monkeypatch):
    def opened() -> SqlControlStore:
        database = Database(f"sqlite:///{tmp_path}/library.db")
        control = database.for_control()
        assert control is not None
        database.close()
        return SqlControlStore(control)

    store = opened()
    store.join(NODE, 1000)
    store.take(NODE.id, KEYS)
    store.close()
    monkeypatch.setattr(sqlite_module, "boot_id", lambda: "another")
    monkeypatch.setattr(sqlite_module, "machine_ms", lambda: 5)  # the clock starts again
    store = opened()
    assert [record.alive for record in store.view().nodes] == [False]
    assert store.beat(NODE.id, 1000) is None
    store.join(replace(NODE, id="new"), 1000)
    assert [record.node.id for record in store.view().nodes] == ["new"]
    assert store.take("new", KEYS) == tuple(KEYS)
    store.close()


def test_times_come_from_the_clock_of_the_database(control, monkeypatch):
    store = SqlControlStore(control)
    monkeypatch.setattr("time.time", lambda: 0.0)
    store.join(NODE, 1000)
    monkeypatch.setattr("time.time", lambda: 4e9)
    assert store.beat(NODE.id, 1000) is not None
    assert [record.alive for record in store.view().nodes] == [True]


def test_a_node_written_by_a_newer_package_is_read(control: Database):
    store = SqlControlStore(control)
    store.join(NODE, 1000)
    table = f"{control.prefix}opencqrs_nodes"
    with control.writing() as connection:
        (details,) = connection.exec_driver_sql(f"SELECT details FROM {table}").one()
        newer = details.replace('"modulus"', '"colour": "red", "modulus"').replace('"boot"', '"taste": 1, "boot"')
        mark = control.dialect.mark
        connection.exec_driver_sql(f"UPDATE {table} SET details = {mark}", (newer,))
    assert [record.node for record in store.view().nodes] == [NODE]


def test_a_node_leaves_without_an_error_if_its_tables_were_dropped(control: Database):
    store = SqlControlStore(control)
    store.join(NODE, 1000)
    with control.writing() as connection:
        connection.exec_driver_sql(f"DROP TABLE {control.prefix}opencqrs_leases")
    store.leave(NODE.id)


def test_a_closed_store_can_be_used_again(open_database: Callable[[], Database]):
    control = open_database().for_control()
    assert control is not None
    store = SqlControlStore(control)
    store.join(NODE, 1000)
    store.close()
    assert len(store.view().nodes) == 1
    store.close()

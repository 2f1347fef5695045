"""Databases on engines that users have made: the same rules hold for their transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.pool import StaticPool

from opencqrs_py.adapters.sql import Database, DatabaseTransactions, SqlProgressTracker
from opencqrs_py.adapters.sql.bulk.staging import Stage, drop_stages
from opencqrs_py.errors import EventStoreError
from opencqrs_py.testing.contracts import ProgressTrackerContract, ReadModel


@pytest.fixture
def engine(url: str) -> Iterator[Engine]:
    """An engine as a user makes it, that has been used before we see it."""
    kind, _, rest = url.partition("://")
    driver = {"mariadb": "mariadb+pymysql", "postgresql": "postgresql+psycopg"}.get(kind, kind)
    made = create_engine(f"{driver}://{rest}")
    with made.begin() as connection:
        connection.execute(text("SELECT 1"))
    yield made
    made.dispose()


@pytest.fixture
def open_database(engine: Engine) -> Callable[[], Database]:
    return lambda: Database.of(engine)


@pytest.mark.release(kind=("postgresql", "mariadb"))  # the driver of SQLite is the one that manages transactions itself
@pytest.mark.release(
    "test_units_of_two_partitions_are_committed_and_undone_independently",
    "test_a_crash_between_handler_and_progress_leaves_neither",
    "test_an_error_passes_through_unchanged_and_progress_stays",
    "test_writes_of_handlers_are_committed_with_the_progress",
    "test_concurrent_claims_are_serialised",
    "test_a_run_that_begins_during_a_unit_of_its_predecessor_comes_before_or_after_it",
    "test_a_zombie_with_an_old_epoch_is_fenced",
    kind="sqlite",
)
class TestSqlProgressTrackerOnAnEngineOfOthers(ProgressTrackerContract):
    @pytest.fixture
    def read_model(self, written: ReadModel) -> ReadModel:
        return written

    @pytest.fixture
    def tracker(self, database: Database) -> SqlProgressTracker:
        return SqlProgressTracker(database)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "of-others.db"


def begin_as_documented(engine: Engine) -> None:
    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN")


@pytest.mark.parametrize("prepare", [lambda _engine: None, begin_as_documented], ids=["plain", "with listeners"])
def test_a_writer_holds_the_write_lock_from_its_beginning(file: Path, prepare: Callable[[Engine], None]) -> None:
    engine = create_engine(f"sqlite:///{file}")
    prepare(engine)
    with engine.connect() as connection:  # stays in the pool
        connection.execute(text("SELECT 1"))
    database = Database.of(engine)
    other = sqlite3.connect(file, timeout=0)
    with database.writing() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one() == 60_000
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            other.execute("BEGIN IMMEDIATE")
    other.execute("BEGIN IMMEDIATE")
    other.close()
    engine.dispose()


def test_a_transaction_that_the_user_begins_on_the_engine_is_a_transaction_too(file: Path) -> None:
    engine = create_engine(f"sqlite:///{file}")
    assert Database.of(engine).engine is Database.of(engine).engine is engine
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE kept (id INTEGER)"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE lost (id INTEGER)"))
        connection.rollback()
    with engine.connect() as connection:
        assert connection.execute(text("SELECT name FROM sqlite_master")).scalars().all() == ["kept"]
    engine.dispose()


def test_a_database_in_memory_keeps_its_contents() -> None:
    engine = create_engine("sqlite://", poolclass=StaticPool)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE numbers (n INTEGER)"))
    with DatabaseTransactions(Database.of(engine)).begin() as unit:
        unit.connection.execute(text("INSERT INTO numbers VALUES (1)"))
    with engine.connect() as connection:
        assert connection.execute(text("SELECT n FROM numbers")).scalar_one() == 1
    engine.dispose()


def test_an_engine_of_an_unsupported_kind_is_refused() -> None:
    class MadeElsewhere:
        url = create_engine("sqlite://").url.set(drivername="mssql+pyodbc", host="h", password="hunter2")

    with pytest.raises(EventStoreError, match="'mssql' are not supported") as caught:
        Database.of(MadeElsewhere())  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)


def commit_after_each_statement(engine: Engine) -> Engine:
    @event.listens_for(engine, "after_cursor_execute")
    def _commit(connection: Connection, *_: Any) -> None:
        connection.connection.dbapi_connection.commit()  # type: ignore[union-attr]

    return engine


AUTOCOMMIT: dict[str, Callable[[Engine], Engine]] = {
    "isolation level": lambda engine: create_engine(engine.url, isolation_level="AUTOCOMMIT"),
    "execution option": lambda engine: engine.execution_options(isolation_level="AUTOCOMMIT"),
    "listener": commit_after_each_statement,
}


@pytest.mark.parametrize("prepare", AUTOCOMMIT.values(), ids=AUTOCOMMIT)
def test_an_engine_in_autocommit_is_refused(kind: str, engine: Engine, prepare: Callable[[Engine], Engine]) -> None:
    prepared = prepare(engine)
    database = Database.of(prepared)
    if kind != "postgresql" and prepare is not AUTOCOMMIT["listener"]:
        database.require_transactions("x")  # there, our BEGIN begins a transaction
    else:
        with pytest.raises(EventStoreError, match="OCQ-349") as caught:
            database.require_transactions("provider engine, database.ref")
        assert caught.value.where == "provider engine, database.ref"
        assert "AUTOCOMMIT" in caught.value.fix
    prepared.dispose()


def test_a_server_connection_shared_by_threads_is_refused(kind: str, engine: Engine) -> None:
    shared = create_engine(engine.url, poolclass=StaticPool)
    database = Database.of(shared)
    if kind == "sqlite":
        database.require_transactions("x")  # there, threads that write take turns
    else:
        with pytest.raises(EventStoreError, match="OCQ-349") as caught:
            database.require_transactions("provider engine, database.ref")
        assert (caught.value.where, caught.value.fix) == ("provider engine, database.ref", "create it without that")
        assert "StaticPool" in caught.value.what
    shared.dispose()


def test_an_ordinary_engine_of_a_user_has_transactions(engine: Engine) -> None:
    Database.of(engine).require_transactions("x")
    with engine.connect() as connection:
        connection.execute(text("SELECT 1"))


def test_during_an_outage_an_engine_is_not_refused(tmp_path: Path) -> None:
    Database.of(create_engine(f"sqlite:///{tmp_path}/missing/a.db")).require_transactions("x")


@pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
def test_dropping_a_stage_waits_briefly_and_leaves_no_setting_on_the_connection(engine: Engine, url: str) -> None:
    database, stages = Database.of(engine), [Stage(None, "stage", "", (), (), (), "")]
    there = text("SELECT count(*) FROM pg_class WHERE relname = 'stage'")
    found = []
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE stage (id integer)"))
    with closing(Database(url)) as other, other.writing() as reader:
        reader.exec_driver_sql("SELECT * FROM stage")
        drop_stages(database, stages)
        with engine.connect() as connection:
            found += [connection.execute(there).scalar(), connection.execute(text("SHOW lock_timeout")).scalar()]
    drop_stages(database, stages)
    with engine.connect() as connection:
        found += [connection.execute(there).scalar(), connection.execute(text("SHOW lock_timeout")).scalar()]
    assert found == [1, "0", 0, "0"]

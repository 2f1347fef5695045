"""The driver's own cursor: its statements behave like those of SQLAlchemy."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql import Database, SqlEventStore, SqlProgressTracker
from opencqrs_py.adapters.sql.dialects.faults import DatabaseAwayError
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model import Event, Selection, layout
from opencqrs_py.model.progress import Cursor
from opencqrs_py.testing.contracts import ReadModel

pytestmark = pytest.mark.few(kind=("postgresql", "mariadb"))  # SQLite has all values

POSTGRESQL = pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
NAMES = [
    "größe",
    "100% %s %(x)s",
    "it's",
    'say "so"',
    "back\\slash",
    "a; DROP TABLE opencqrs_progress; --",
    ":x ?",
    "😀",
]


def claimed(tracker: SqlProgressTracker, group: str = "group") -> Cursor:
    (cursor,) = tracker.claim(group, layout(1), 0, "owner")
    return cursor


@pytest.mark.parametrize("group", NAMES)
def test_progress_moves_whatever_the_name_of_the_group(database: Database, written: ReadModel, group: str) -> None:
    tracker = SqlProgressTracker(database)
    with tracker.unit(group, claimed(tracker, group), 5) as unit:
        written.write(unit, "kept")
    assert [(status.group, status.position) for status in tracker.statuses()] == [(group, 5)]
    assert written.values() == ["kept"]


def test_a_first_statement_that_fails_is_explained_and_leaves_nothing_open(
    database: Database, written: ReadModel
) -> None:
    tracker = SqlProgressTracker(database)
    cursor = claimed(tracker)
    with database.writing() as connection:
        connection.execute(text("ALTER TABLE opencqrs_progress RENAME TO elsewhere"))
    with pytest.raises(Exception, match="opencqrs_progress") as caught, tracker.unit("group", cursor, 5):
        raise AssertionError
    assert not tracker.is_outage(caught.value)
    with database.writing() as connection:
        connection.execute(text("ALTER TABLE elsewhere RENAME TO opencqrs_progress"))
    with tracker.unit("group", cursor, 5) as unit:
        written.write(unit, "kept")
    assert written.values() == ["kept"]


def test_a_unit_that_raises_rolls_its_progress_back(database: Database, written: ReadModel) -> None:
    tracker = SqlProgressTracker(database)
    cursor = claimed(tracker)

    def fail() -> None:
        with tracker.unit("group", cursor, 5) as unit:
            written.write(unit, "lost")
            raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        fail()
    assert written.values() == []
    assert [status.position for status in tracker.statuses()] == [0]


def isolation(connection: Connection) -> str:
    return str(connection.execute(text("SHOW transaction_isolation")).scalar_one())


@POSTGRESQL
@pytest.mark.parametrize("level", ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"])
def test_units_use_the_isolation_level_of_their_engine(database: Database, url: str, level: str) -> None:
    engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"), isolation_level=level)  # type: ignore[arg-type]
    tracker = SqlProgressTracker(Database.of(engine))
    with tracker.unit("group", claimed(tracker), 5) as unit:
        assert isolation(unit.connection) == level.lower()
    assert [status.position for status in tracker.statuses()] == [5]
    engine.dispose()


@POSTGRESQL
def test_a_lost_prepared_statement_is_replaced(database: Database) -> None:
    tracker = SqlProgressTracker(database)
    cursor = claimed(tracker)
    for position in range(1, 9):
        with tracker.unit("group", cursor, position) as unit:
            driver = unit.connection.connection.driver_connection
        cursor = cursor.moved_to(position, stored=True)
        if position in (2, 5):
            driver.execute("DEALLOCATE ALL")
            driver.commit()
    assert [status.position for status in tracker.statuses()] == [8]


OURS = [f"opencqrs_progress_{name}" for name in ("advance", "advance_towards", "lock")]


@POSTGRESQL
@pytest.mark.parametrize(("threshold", "prepared"), [("5", OURS), ("none", [])])
def test_nothing_is_prepared_if_a_pooler_forbids_it(
    database: Database, url: str, threshold: str, prepared: list[str]
) -> None:
    pooled = Database(f"{url}&prepare_threshold={threshold}")
    tracker = SqlProgressTracker(pooled)
    cursor = claimed(tracker)
    for position in (1, 2):
        with tracker.unit("group", cursor, position) as unit:
            names = unit.connection.execute(text("SELECT name FROM pg_prepared_statements ORDER BY 1")).scalars().all()
        cursor = cursor.moved_to(position, stored=True)
    ours = [re.sub(r"(?<=^opencqrs_progress_)\w{8}_", "", name) for name in names if not name.startswith("_pg3_")]
    assert ours == prepared
    if threshold == "none":
        assert names == []
    pooled.close()


@POSTGRESQL
@pytest.mark.parametrize("statement", ["EXECUTE one", "PREPARE one AS SELECT 1; PREPARE one AS SELECT 1"])
def test_an_error_of_a_statement_prepared_in_another_session_is_explained(database: Database, statement: str) -> None:
    with pytest.raises(EventStoreError, match="OCQ-304") as caught, database.briefly(1) as connection:
        connection.exec_driver_sql(statement)
    assert "?prepare_threshold=none" in caught.value.fix
    assert not database.is_outage(caught.value)


@POSTGRESQL
def test_such_an_error_in_the_first_statement_of_a_connection_is_explained(url: str) -> None:
    database = Database(url)
    event.listen(database.engine, "connect", lambda connection, _record: connection.execute("EXECUTE one"))
    with pytest.raises(EventStoreError, match="OCQ-304") as caught, database.reading():
        pass
    assert "?prepare_threshold=none" in caught.value.fix
    database.close()


def read_apart(database: Database, statement: str, value: int) -> str:
    other = Database(database.url.render_as_string(hide_password=False), database.schema)
    with closing(other), other.reading() as connection:
        return str(connection.exec_driver_sql(statement, (value,)).scalar_one())


@POSTGRESQL
def test_the_transaction_begins_in_one_message_and_ends_in_one_with_the_progress(database: Database) -> None:
    tracker = SqlProgressTracker(database)
    cursor = claimed(tracker)
    seen = "SELECT query FROM pg_stat_activity WHERE pid = %s"
    for position in (1, 2, 3):
        with tracker.unit("group", cursor, position) as unit:
            process = unit.connection.connection.driver_connection.info.backend_pid
            sent = read_apart(database, seen, process)
        cursor = cursor.moved_to(position, stored=True)
        last = read_apart(database, seen, process)
    assert re.fullmatch(
        r"BEGIN; SAVEPOINT opencqrs_\w{16}; EXECUTE opencqrs_progress_\w{8}_lock\(E'group', 1, 0, 1, 2\)", sent
    )
    assert re.match(r"RELEASE SAVEPOINT opencqrs_\w{16}; EXECUTE opencqrs_progress_\w{8}_advance\(3, .*; COMMIT$", last)


@POSTGRESQL
def test_a_prepared_statement_whose_table_has_changed_is_an_outage_once(
    database: Database,
) -> None:
    def read(connection: Connection) -> int:
        return len(connection.execute(text("SELECT * FROM shelves")).keys())

    with database.writing() as connection:
        connection.execute(text("CREATE TABLE shelves (n INTEGER)"))
    for _ in range(10):  # after five of them the driver prepares the statement
        with database.writing() as connection:
            read(connection)
    with database.writing() as connection:
        connection.exec_driver_sql("DO $$ BEGIN ALTER TABLE shelves ADD COLUMN more INTEGER; END $$")
    with pytest.raises(DBAPIError, match="cached plan") as caught, database.writing() as connection:
        read(connection)
    assert database.is_outage(caught.value)
    with database.writing() as connection:
        assert read(connection) == 2


def test_an_error_while_reading_is_explained_and_not_an_outage(database: Database) -> None:
    with pytest.raises(DBAPIError, match="syntax") as caught:
        database.fetch("SELECT 1 FROM WHERE")
    assert not database.is_outage(caught.value)
    assert "SELECT 1 FROM WHERE" in str(caught.value)
    assert [tuple(row) for row in database.fetch("SELECT 7")] == [(7,)]


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("postgresql", marks=pytest.mark.postgresql),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ],
)
def test_a_connection_lost_while_reading_is_an_outage_and_replaced(
    open_database: Callable[[], Database],
) -> None:
    database = open_database()
    ending = {
        "mariadb": "KILL CONNECTION_ID()",
        "postgresql": "SELECT pg_terminate_backend(pg_backend_pid())",
    }
    with pytest.raises(DatabaseAwayError, match=r"OCQ-304.*no longer answers") as caught:
        database.fetch(ending[database.kind])
    assert database.is_outage(caught.value)
    assert [tuple(row) for row in database.fetch("SELECT 7")] == [(7,)]


def test_reads_see_the_newest_state(database: Database) -> None:
    store = SqlEventStore(database)
    seen: list[Any] = []
    for number in range(3):
        store.append([Event(0, str(number), "s", "/", "t", None, "application/json", None, None)])
        seen.append(len(store.read(0, 10, Selection()).events))
    assert seen == [1, 2, 3]


def test_an_error_of_a_statement_that_bypassed_sqlalchemy_is_explained(database: Database) -> None:
    missing = pytest.raises(EventStoreError, match=r"OCQ-304.*cannot be used")
    with missing, database.reading() as connection, closing(connection.connection.cursor()) as cursor:
        cursor.execute("SELECT 1 FROM made_up")

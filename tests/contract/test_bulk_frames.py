"""bulk.upsert of data frames: rows that tasks stage in a table are merged once, whatever the outcome of their runs."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    MetaData,
    Numeric,
    String,
    Table,
    inspect,
    make_url,
    select,
    text,
)
from sqlalchemy.exc import DBAPIError

from opencqrs_py import bulk
from opencqrs_py.adapters.sql import Database, SqlProgressTracker
from opencqrs_py.adapters.sql.bulk import frames as module
from opencqrs_py.adapters.sql.dialects.faults import Fault
from opencqrs_py.errors import BulkWriteError, UnavailableError
from opencqrs_py.model import Partition
from opencqrs_py.processing.staging import CollectedRows, FrameRows, Stage, StagedRows

pytestmark = (
    pytest.mark.release(  # SQLAlchemy makes the statements, as on PostgreSQL; test_bulk.py has those of one process
        "test_rows_staged_by_tasks_are_merged_with_those_they_returned",
        "test_an_integer_column_rounds_nothing_wherever_its_rows_come_from",
        "test_other_columns_are_set_and_texts_are_stored_unchanged",
        "test_rows_left_by_a_killed_process_are_removed_even_if_few_rows_follow",
        "test_decimals_are_added_exactly_where_the_database_can",
        kind="mariadb",
    )
)

METADATA = MetaData()
LOANS = Table(
    "loans",
    METADATA,
    Column("isbn", String(40), primary_key=True),
    Column("reader", String(40), nullable=True),
    Column("a '% b", BigInteger, nullable=True),
    Column("paid", Numeric(30, 4), nullable=True),
)
ADDED = "a '% b"
TYPES = {"isbn": "string", "reader": "string", ADDED: "bigint", "paid": "decimal(30,4)", "at": "string"}
SEEN = Table("seen", METADATA, Column("isbn", String(40), primary_key=True), Column("at", DateTime))
WHOLE = Partition(1, 0)


class Frame:
    """A data frame by its columns; its rows are brought by ``Rows``."""

    def __init__(self, *columns: str) -> None:
        self.columns = list(columns)
        self.dtypes = [(name, TYPES[name]) for name in columns]

    def toArrow(self) -> Any:  # noqa: N802 Spark's name
        raise AssertionError("its rows come at once")


@dataclass
class Rows(FrameRows):
    """Acts as tasks do: some stage their rows in a table, and others return them."""

    tracker: SqlProgressTracker
    returned: Sequence[pa.Table] = ()
    staged: Sequence[pa.Table] = ()
    unfinished: Sequence[pa.Table] = ()
    of_group: str = "loans"
    stages: list[Stage | None] = field(default_factory=list)
    meanwhile: Callable[[Stage], None] = lambda _: None
    through: Callable[[Stage], Stage] = lambda stage: stage

    @property
    def group(self) -> str:
        return self.of_group

    def can_stage(self) -> bool:
        return True

    @contextmanager
    def collected(self, frame: Any, stage: Stage | None) -> Iterator[CollectedRows]:
        self.stages.append(stage)
        if stage is None:
            yield CollectedRows((), iter([*self.returned, *self.staged]))
            return
        stage = self.through(stage)
        for number, table in enumerate(self.unfinished):
            self.tracker.stage(stage, f"lost-{number}", [table])
        runs = [
            StagedRows(f"run-{number}", self.tracker.stage(stage, f"run-{number}", table.to_batches()))
            for number, table in enumerate(self.staged)
        ]
        self.meanwhile(stage)
        yield CollectedRows(tuple(runs), iter(self.returned))


@pytest.fixture
def tracker(database: Database) -> SqlProgressTracker:
    with database.writing() as created:
        METADATA.create_all(created)
    return SqlProgressTracker(database)


def handled(tracker: SqlProgressTracker, rows: FrameRows, handle: Callable[[Connection], Any], to: int = 1) -> Any:
    """Call a handler of data frames as the engine does, after a new claim."""
    (cursor,) = tracker.claim(rows.group, [WHOLE], 0, "test")
    with tracker.unit(rows.group, cursor, max(to, cursor.stored)) as unit:
        unit.frame_rows = rows
        return handle(unit.connection)


def upserted(tracker: SqlProgressTracker, rows: FrameRows, *columns: str, **arguments: Any) -> int:
    return handled(tracker, rows, lambda connection: bulk.upsert(connection, "loans", Frame(*columns), **arguments))


def rows_in(database: Database) -> list[tuple[Any, ...]]:
    with database.reading() as connection:
        return [tuple(row) for row in connection.execute(select(LOANS).order_by(LOANS.c.isbn))]


def stages_in(database: Database) -> list[str]:
    with database.reading() as connection:
        return [name for name in inspect(connection).get_table_names() if name.startswith("opencqrs_staged")]


def counted(**numbers: int | None) -> pa.Table:
    return pa.table({"isbn": list(numbers), ADDED: pa.array(list(numbers.values()), pa.int64())})


COUNTED = ("isbn", ADDED)
ADDING = {"keys": "isbn", "add": ADDED}


@pytest.fixture
def by_tasks(kind: str) -> None:
    """The database is one in which tasks can leave rows."""
    if kind == "sqlite":
        pytest.skip("SQLite has one writer")


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_HELD", 2)


def test_rows_staged_by_tasks_are_merged_with_those_they_returned(
    tracker: SqlProgressTracker, database: Database, kind: str
) -> None:
    rows = Rows(tracker, returned=[counted(c=4)], staged=[counted(a=1, b=2), counted(a=3)])
    assert upserted(tracker, rows, *COUNTED, **ADDING) == 3
    assert upserted(tracker, rows, *COUNTED, **ADDING) == 3
    assert rows_in(database) == [("a", None, 8, None), ("b", None, 4, None), ("c", None, 8, None)]
    assert [stage is None for stage in rows.stages] == [kind == "sqlite"] * 2
    assert stages_in(database) == []


@pytest.mark.usefixtures("many")
def test_rows_that_only_the_driver_can_fetch_are_written_in_portions(
    tracker: SqlProgressTracker, database: Database
) -> None:
    class Fetched(Rows):
        def can_stage(self) -> bool:
            return False

    rows = Fetched(tracker, returned=[counted(a=1, b=2), counted(a=3, c=None), counted(d=5)])
    assert upserted(tracker, rows, *COUNTED, **ADDING) == 4
    assert upserted(tracker, rows, *COUNTED, **ADDING) == 4
    assert [(isbn, number) for isbn, _, number, _ in rows_in(database)] == [("a", 8), ("b", 4), ("c", 0), ("d", 10)]
    assert stages_in(database) == []


@pytest.mark.usefixtures("by_tasks")
def test_few_rows_need_no_table(tracker: SqlProgressTracker, database: Database) -> None:
    rows = Rows(tracker, returned=[counted(a=1), counted(b=2)])

    def handle(connection: Connection) -> None:
        bulk.upsert(connection, "loans", Frame(*COUNTED), keys="isbn", add=ADDED)
        assert stages_in(database) == []

    handled(tracker, rows, handle)
    assert [row[0] for row in rows_in(database)] == ["a", "b"]


def test_other_columns_are_set_and_texts_are_stored_unchanged(tracker: SqlProgressTracker, database: Database) -> None:
    upserted(
        tracker, Rows(tracker, returned=[pa.table({"isbn": ["é"], "reader": ["old"]})]), "isbn", "reader", keys="isbn"
    )
    staged = [pa.table({"isbn": ["é", "z"], "reader": ['it\'s 100 % \\ "ë"', None]})]
    assert upserted(tracker, Rows(tracker, staged=staged), "isbn", "reader", keys="isbn") == 2
    assert sorted(rows_in(database)) == [("z", None, None, None), ("é", 'it\'s 100 % \\ "ë"', None, None)]


def test_rows_with_only_keys_are_inserted_once(tracker: SqlProgressTracker, database: Database) -> None:
    staged = [pa.table({"isbn": ["a", "b"]}), pa.table({"isbn": ["b"]})]
    assert upserted(tracker, Rows(tracker, staged=staged), "isbn", keys="isbn") == 2
    assert [row[0] for row in rows_in(database)] == ["a", "b"]


def test_rows_with_the_same_keys_are_refused_unless_they_can_be_summed(
    tracker: SqlProgressTracker, database: Database
) -> None:
    staged = [pa.table({"isbn": ["a", "b"], "reader": ["x", "y"]}), pa.table({"isbn": ["b"], "reader": ["z"]})]
    with pytest.raises(BulkWriteError, match=r"OCQ-362.*2 rows have the same isbn \('b'\)"):
        upserted(tracker, Rows(tracker, staged=staged), "isbn", "reader", keys="isbn")
    assert rows_in(database) == []


@pytest.mark.usefixtures("many")
def test_a_key_that_is_null_is_refused(tracker: SqlProgressTracker, database: Database) -> None:
    staged = [pa.table({"isbn": ["a", None], "reader": ["x", "y"]})]
    with pytest.raises(BulkWriteError, match=r"OCQ-360.*the key isbn of a row is null"):
        upserted(tracker, Rows(tracker, staged=staged), "isbn", "reader", keys="isbn")
    assert rows_in(database) == []


@pytest.mark.parametrize("come", ["staged", "returned"])
def test_a_float_that_the_database_cannot_store_is_refused_wherever_its_rows_come_from(
    tracker: SqlProgressTracker, database: Database, come: str
) -> None:
    if database.kind == "sqlite" and come == "staged":
        pytest.skip("SQLite has one writer")
    tables = [pa.table({"isbn": ["a", "b"], "paid": [1.0, float("nan")]})]
    rows = Rows(tracker, **{come: tables})
    if database.kind == "postgresql":
        upserted(tracker, rows, "isbn", "paid", keys="isbn")
        assert [str(row[3]) for row in rows_in(database)] == ["1.0000", "NaN"]
        return
    with pytest.raises(BulkWriteError, match=r"OCQ-360.*paid has the value nan"):
        upserted(tracker, rows, "isbn", "paid", keys="isbn")
    assert rows_in(database) == []


@pytest.mark.parametrize("add", [(), ADDED])
@pytest.mark.parametrize("come", ["staged", "returned"])
@pytest.mark.few(kind="mariadb")
def test_an_integer_column_rounds_nothing_wherever_its_rows_come_from(
    tracker: SqlProgressTracker, database: Database, come: str, add: str | tuple[()]
) -> None:
    if database.kind == "sqlite":
        pytest.skip("a column of SQLite keeps such a number")
    rows = Rows(tracker, **{come: [pa.table({"isbn": ["a", "b"], ADDED: [1.0, 2.5]})]})
    with pytest.raises((BulkWriteError, DBAPIError), match=r"OCQ-360.*has the value 2\.5, which|invalid input syntax"):
        upserted(tracker, rows, *COUNTED, keys="isbn", add=add)
    assert rows_in(database) == []


@pytest.mark.parametrize(
    ("columns", "arguments", "code"),
    [
        (("isbn", "reader"), {"keys": "reader"}, "OCQ-361"),
        (("isbn", "reader"), {"keys": "isbn", "add": "reader"}, "OCQ-360"),
        (("isbn", "isbn"), {"keys": "isbn"}, "OCQ-360"),
        (("isbn",), {"keys": "reader"}, "OCQ-360"),
    ],
)
@pytest.mark.release(kind=("postgresql", "mariadb"))  # before any statement
def test_a_call_that_does_not_fit_the_table_is_refused_before_spark_computes(
    tracker: SqlProgressTracker, columns: tuple[str, ...], arguments: dict[str, Any], code: str
) -> None:
    rows = Rows(tracker)
    with pytest.raises(BulkWriteError, match=code):
        upserted(tracker, rows, *columns, **arguments)
    assert rows.stages == []


def test_a_variant_is_refused_before_spark_computes(
    tracker: SqlProgressTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TYPES, "reader", "variant")
    rows = Rows(tracker)
    with pytest.raises(BulkWriteError, match=r"OCQ-360.*reader is a VARIANT\n.*\n.*to_json"):
        upserted(tracker, rows, "isbn", "reader", keys="isbn")
    assert rows.stages == []


def test_decimals_are_added_exactly_where_the_database_can(tracker: SqlProgressTracker, database: Database) -> None:
    paid = pa.array([pa.scalar("0.1000").cast(pa.decimal128(30, 4))] * 2)
    rows = Rows(tracker, staged=[pa.table({"isbn": ["a", "a"], "paid": paid})])
    if database.kind == "sqlite":
        with pytest.raises(BulkWriteError, match="SQLite adds no decimals exactly"):
            upserted(tracker, rows, "isbn", "paid", keys="isbn", add="paid")
        return
    upserted(tracker, rows, "isbn", "paid", keys="isbn", add="paid")
    assert str(rows_in(database)[0][3]) == "0.2000"


@pytest.mark.usefixtures("by_tasks")
@pytest.mark.parametrize("come", ["staged", "returned"])
def test_sums_are_rounded_once_wherever_their_rows_come_from(
    tracker: SqlProgressTracker, database: Database, come: str
) -> None:
    table = pa.table({"isbn": ["a"] * 100, "paid": pa.array([Decimal("0.00004")] * 100, pa.decimal128(10, 5))})
    rows = Rows(tracker, **{come: [table]})
    assert upserted(tracker, rows, "isbn", "paid", keys="isbn", add="paid") in (1, 100)
    ((*_, paid),) = rows_in(database)
    assert paid == pytest.approx(Decimal("0.004"), rel=Decimal("1e-9"))


@pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
@pytest.mark.parametrize("first", ["TRUNCATE loans", "ALTER TABLE loans RENAME TO old"])
def test_tasks_write_although_the_transaction_has_locked_or_created_the_table(
    tracker: SqlProgressTracker, database: Database, first: str
) -> None:
    rows = Rows(tracker, staged=[counted(a=1)])

    def handle(connection: Connection) -> None:
        connection.exec_driver_sql(first)
        METADATA.create_all(connection)
        bulk.upsert(connection, "loans", Frame(*COUNTED), keys="isbn", add=ADDED)

    handled(tracker, rows, handle)
    assert rows_in(database) == [("a", None, 1, None)]


# Faults


def test_rows_of_task_runs_that_spark_discards_are_not_merged(tracker: SqlProgressTracker, database: Database) -> None:
    rows = Rows(tracker, staged=[counted(a=1)], unfinished=[counted(a=1), counted(b=7)])
    upserted(tracker, rows, *COUNTED, **ADDING)
    assert rows_in(database) == [("a", None, 1, None)]
    assert stages_in(database) == []


def test_a_retry_merges_only_its_own_rows_and_removes_those_of_the_failed_attempt(
    tracker: SqlProgressTracker, database: Database
) -> None:
    rows = Rows(tracker, staged=[counted(a=1)])

    def fail(connection: Connection) -> None:
        bulk.upsert(connection, "loans", Frame(*COUNTED), keys="isbn", add=ADDED)
        raise ValueError("after the merge")

    with pytest.raises(ValueError, match="after the merge"):
        handled(tracker, rows, fail)
    assert len(stages_in(database)) == (database.kind != "sqlite")
    upserted(tracker, rows, *COUNTED, **ADDING)
    assert rows_in(database) == [("a", None, 1, None)]
    assert stages_in(database) == []


@pytest.mark.usefixtures("by_tasks")
def test_rows_left_by_a_killed_process_are_removed_even_if_few_rows_follow(
    tracker: SqlProgressTracker, database: Database
) -> None:
    left: list[Stage] = []

    def crash(stage: Stage) -> None:
        left.append(stage)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        upserted(tracker, Rows(tracker, staged=[counted(a=1)], meanwhile=crash), *COUNTED, **ADDING)
    other = Rows(tracker, staged=[counted(a=1)], of_group="others", meanwhile=crash)
    with pytest.raises(KeyboardInterrupt):
        upserted(tracker, other, *COUNTED, **ADDING)
    upserted(tracker, Rows(tracker, returned=[counted(a=5)]), *COUNTED, **ADDING)
    assert stages_in(database) == [left[1].name]
    assert rows_in(database) == [("a", None, 5, None)]


@pytest.mark.usefixtures("by_tasks")
def test_two_groups_at_once_do_not_see_each_others_rows(tracker: SqlProgressTracker, database: Database) -> None:
    inner = Rows(tracker, staged=[counted(b=2)], of_group="others")
    outer = Rows(
        tracker, staged=[counted(a=1)], meanwhile=lambda _: upserted(tracker, inner, *COUNTED, **ADDING) and None
    )
    upserted(tracker, outer, *COUNTED, **ADDING)
    assert rows_in(database) == [("a", None, 1, None), ("b", None, 2, None)]
    assert stages_in(database) == []


def test_two_data_frames_of_one_call_have_separate_tables(tracker: SqlProgressTracker, database: Database) -> None:
    rows = Rows(tracker, staged=[counted(a=1)])

    def twice(connection: Connection) -> None:
        for _ in range(2):
            bulk.upsert(connection, "loans", Frame(*COUNTED), keys="isbn", add=ADDED)

    handled(tracker, rows, twice)
    assert rows_in(database) == [("a", None, 2, None)]
    assert stages_in(database) == []


@pytest.mark.usefixtures("by_tasks")
def test_rows_that_vanish_before_they_are_merged_are_an_outage(tracker: SqlProgressTracker, database: Database) -> None:
    def empty(stage: Stage) -> None:
        with database.writing() as connection:
            connection.execute(text(f"DELETE FROM {stage.name}"))

    with pytest.raises(UnavailableError, match="OCQ-420"):
        upserted(tracker, Rows(tracker, staged=[counted(a=1)], meanwhile=empty), *COUNTED, **ADDING)
    assert rows_in(database) == []


@pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
def test_a_transaction_that_cannot_see_commits_of_tasks_gets_rows_through_the_driver(
    tracker: SqlProgressTracker, url: str
) -> None:
    stricter = make_url(url).update_query_dict({"options": r"-c default_transaction_isolation=repeatable\ read"})
    with closing(Database(stricter.render_as_string(hide_password=False))) as database:
        rows = Rows(SqlProgressTracker(database), staged=[counted(a=1)])
        upserted(rows.tracker, rows, *COUNTED, **ADDING)
        assert rows.stages == [None]
        assert rows_in(database) == [("a", None, 1, None)]


@pytest.mark.usefixtures("by_tasks")
def test_tasks_write_texts_with_an_offset_as_their_time_in_utc(tracker: SqlProgressTracker, database: Database) -> None:
    """Pickled as for a task: PostgreSQL silently uses only the part before the offset."""
    lent = [{"isbn": "a", "at": "2026-01-01T12:00:00+02:00"}]
    rows = Rows(tracker, staged=[pa.Table.from_pylist(lent)], through=lambda stage: pickle.loads(pickle.dumps(stage)))
    handled(tracker, rows, lambda connection: bulk.upsert(connection, "seen", Frame("isbn", "at"), keys="isbn"))
    with database.reading() as connection:
        moment = datetime(2026, 1, 1, 10)  # noqa: DTZ001 as it is stored
        assert connection.execute(select(SEEN.c.isbn, SEEN.c.at)).one() == ("a", moment)


@pytest.mark.usefixtures("by_tasks")
def test_a_staging_table_that_cannot_be_created_is_refused_naming_the_missing_privilege(
    tracker: SqlProgressTracker, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(database.dialect), "fault_of", lambda *_: Fault.DENIED)
    stage = Stage(None, "opencqrs_staged_x", "CREATE TABLE nowhere.x (y INT)", ("isbn",), ("text",), (), "loans")
    with pytest.raises(BulkWriteError, match=r"OCQ-363") as caught:
        tracker.stage(stage, "run", [])
    assert "grant" in caught.value.fix

"""``bulk.upsert`` on each database: what it writes, what it keeps exact, and what it refuses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from importlib import import_module
from threading import Barrier, Thread
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Date,
    DateTime,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    UniqueConstraint,
    Uuid,
    event,
    select,
    text,
)
from sqlalchemy.event import listen, remove
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, registry

from opencqrs_py import bulk
from opencqrs_py.adapters.sql import Database
from opencqrs_py.adapters.sql.bulk.rows import columns_of
from opencqrs_py.adapters.sql.bulk.staging import StagedMerge, temporary_stage
from opencqrs_py.adapters.sql.bulk.target import Target
from opencqrs_py.adapters.sql.dialects.dialect import dialect_named
from opencqrs_py.errors import BulkWriteError

pytestmark = pytest.mark.few(kind=("postgresql", "mariadb"))  # SQLite has all values

METADATA = MetaData()
LOANS = Table(
    "loans",
    METADATA,
    Column("isbn", String(40), primary_key=True),
    Column("reader", String(40), nullable=True),
    Column("loans", BigInteger, nullable=True),
    Column("paid", Numeric(30, 4), nullable=True),
)
SHELVES = Table(
    'order by; --"`%',
    METADATA,
    Column("select", String(40)),
    Column("a '% b", BigInteger),
    Column("number", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    UniqueConstraint("select", "a '% b"),
)
VALUES = Table(
    "kinds",
    METADATA,
    Column("number", BigInteger, primary_key=True),
    Column("flag", Boolean),
    Column("moment", DateTime),
    Column("day", Date),
    Column("share", Double),
    Column("bytes", LargeBinary),
    Column("document", JSON),
    Column("uuid", String(40)),
    Column("text", String(400)),
    Column("digits", Numeric(40, 20).with_variant(String(60), "sqlite")),
    mariadb_charset="utf8mb4",
    mysql_charset="utf8mb4",
)


@pytest.fixture
def tables(database: Database) -> None:
    with database.writing() as created:
        METADATA.create_all(created)


@pytest.fixture
def connection(database: Database, tables: None) -> Iterator[Connection]:
    with database.writing() as opened:
        yield opened


def rows_of(connection: Connection, table: Table) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))]


@contextmanager
def refused(code: str, what: str) -> Iterator[None]:
    with pytest.raises(BulkWriteError) as caught:
        yield
    assert caught.value.code == code
    assert what in caught.value.what
    assert caught.value.fix


def merge_staged(connection: Connection, table: str, columns: dict[str, Any], key: str, *add: str) -> int:
    """Write rows by way of a stage, as those of a large data frame."""
    dialect = dialect_named(connection.dialect.name)
    assert dialect is not None
    target = Target(connection, dialect, None, table, (key,), add)
    shape = target.shape(target.wanted(columns))
    with temporary_stage(target, shape, tuple(columns)) as stage:
        merge = StagedMerge(target, shape, stage)
        merge.add(columns)
        return merge.merge()


# What it writes


def test_new_rows_are_inserted_and_existing_ones_updated(connection: Connection) -> None:
    first = pa.table({"isbn": ["b", "a"], "reader": ["ada", "bob"], "loans": [1, 2]})
    assert bulk.upsert(connection, "loans", first, keys=["isbn"]) == 2
    assert (
        bulk.upsert(connection, "loans", [{"isbn": "c", "reader": None}, {"isbn": "b", "reader": "eve"}], keys="isbn")
        == 2
    )
    assert rows_of(connection, LOANS) == [("a", "bob", 2, None), ("b", "eve", 1, None), ("c", None, None, None)]


def test_columns_to_add_are_added_to_the_stored_values(connection: Connection) -> None:
    for reader in ("ada", "bob"):
        rows = [{"isbn": "a", "reader": reader, "loans": 2, "paid": None}]
        bulk.upsert(connection, LOANS, rows, keys=["isbn"], add=["loans", "paid"])
    connection.execute(text("UPDATE loans SET loans = NULL"))
    bulk.upsert(connection, LOANS, [{"isbn": "a", "loans": 3}], keys=["isbn"], add=["loans"])
    bulk.upsert(connection, LOANS, [{"isbn": "a", "loans": None}], keys=["isbn"], add=["loans"])
    ((isbn, reader, loans, _),) = rows_of(connection, LOANS)
    assert (isbn, reader, loans) == ("a", "bob", 3)


def test_rows_with_only_keys_are_inserted_once(connection: Connection) -> None:
    for isbns in (["a"], ["a", "b"]):
        bulk.upsert(connection, "loans", pa.table({"isbn": isbns}), keys=["isbn"])
    assert [row[0] for row in rows_of(connection, LOANS)] == ["a", "b"]


def test_rows_with_the_same_keys_are_summed_if_all_other_columns_are_added(connection: Connection) -> None:
    large = 2**61
    table = pa.table({"isbn": ["b", "a", "a", "a"], "loans": [1, large, None, large + 1]})
    assert bulk.upsert(connection, "loans", table, keys=["isbn"], add=["loans"]) == 2
    assert [row[:3] for row in rows_of(connection, LOANS)] == [("a", None, 2 * large + 1), ("b", None, 1)]


def test_without_rows_no_statement_is_sent(connection: Connection) -> None:
    assert bulk.upsert(connection, "nothing", [], keys=["isbn"]) == 0
    assert bulk.upsert(connection, "nothing", pa.table({"isbn": pa.array([], pa.string())}), keys=["isbn"]) == 0


def test_a_chunk_is_one_statement_or_few(connection: Connection, kind: str) -> None:
    sent = []
    rows = [{"isbn": f"{number:05}", "loans": number} for number in range(1_111)]
    bulk.upsert(connection, "loans", rows, keys=["isbn"])
    note = lambda _connection, _cursor, statement, *_: sent.append(statement)  # noqa: E731
    event.listen(connection.engine, "before_cursor_execute", note)
    bulk.upsert(connection, "loans", rows, keys=["isbn"], add=["loans"])
    event.remove(connection.engine, "before_cursor_execute", note)
    assert len(sent) == {"postgresql": 1, "mariadb": 1, "sqlite": 4}[kind]
    assert [row[2] for row in rows_of(connection, LOANS)] == [2 * number for number in range(1_111)]


def test_a_session_works_like_a_connection(connection: Connection) -> None:
    with Session(connection) as session:
        bulk.upsert(session, "loans", [{"isbn": "a"}], keys="isbn")
        assert session.execute(select(LOANS.c.isbn)).scalars().all() == ["a"]


def test_pending_changes_of_a_session_are_written_first(connection: Connection) -> None:
    class Loan:
        def __init__(self, isbn: str, loans: int) -> None:
            self.isbn, self.loans = isbn, loans

    registry().map_imperatively(Loan, LOANS)
    with Session(connection) as session:
        session.add(Loan("a", 1))
        bulk.upsert(session, "loans", [{"isbn": "a", "loans": 2}], keys="isbn", add="loans")
        assert session.execute(select(LOANS.c.loans)).scalars().all() == [3]


def test_all_names_are_quoted(connection: Connection) -> None:
    rows = [{"select": "x%s", "a '% b": 1}, {"select": "x%s", "a '% b": 2}]
    for _ in range(2):
        bulk.upsert(connection, SHELVES, rows, keys=["select", "a '% b"])
    assert [row[:2] for row in rows_of(connection, SHELVES)] == [("x%s", 1), ("x%s", 2)]


@pytest.mark.parametrize("name", ["Loans", "main.LOANS"])
@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_table_name_in_other_case_is_found_if_the_database_finds_it(connection: Connection, name: str) -> None:
    for _ in range(2):
        bulk.upsert(connection, name, [{"isbn": "a", "loans": 1}], keys="isbn", add="loans")
    assert rows_of(connection, LOANS) == [("a", None, 2, None)]


@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_view_has_no_unique_constraint_in_whatever_case_it_is_named(connection: Connection) -> None:
    connection.execute(text("CREATE VIEW lent AS SELECT isbn FROM loans"))
    with refused("OCQ-361", "no unique constraint of the table has the columns isbn"):
        bulk.upsert(connection, "Lent", [A], keys="isbn")


@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_temporary_table_is_found_by_its_name_in_other_case(connection: Connection) -> None:
    connection.execute(text("CREATE TEMPORARY TABLE lent (isbn TEXT UNIQUE, loans INTEGER)"))
    bulk.upsert(connection, "Lent", [{"isbn": "a", "loans": 1}], keys="isbn", add="loans")
    assert connection.execute(text("SELECT * FROM lent")).all() == [("a", 1)]


def test_a_table_can_be_in_another_schema(connection: Connection, kind: str) -> None:
    schema = {"postgresql": "public", "mariadb": "test", "sqlite": "main"}[kind]
    bulk.upsert(connection, f"{schema}.loans", [{"isbn": "a", "loans": 1}], keys="isbn", add="loans")
    assert [row[0] for row in rows_of(connection, LOANS)] == ["a"]


# What it keeps


def test_values_are_read_as_they_were_written(connection: Connection) -> None:
    rows = [
        {
            "number": 2**63 - 1,
            "flag": True,
            "moment": datetime(2026, 3, 1, 12, 30, 0, 123000, tzinfo=timezone(timedelta(hours=2))),
            "day": date(1, 2, 3),
            "share": 0.1 + 0.2,
            "bytes": b"\x00\\x'\xff",
            "document": {"a": [1, Decimal("12345678901234567890.5")]},
            "uuid": UUID(int=7),
            "text": "it's %s ? \\ \" {} é 🐍\n",
            "digits": Decimal("12345678901234567890.12345678901234567890"),
        },
        dict.fromkeys(["flag", "moment", "day", "share", "bytes", "document", "uuid", "text", "digits"])
        | {"number": -5},
    ]
    rows[1] = {name: rows[1][name] for name in rows[0]}
    bulk.upsert(connection, "kinds", rows, keys="number")
    names = [column for column in VALUES.c if column.name not in ("document", "digits")]
    none, found = connection.execute(select(*names).order_by(VALUES.c.number)).all()
    assert tuple(none) == (-5, *[None] * 7)
    moment = datetime(2026, 3, 1, 10, 30, 0, 123000)  # noqa: DTZ001 as it is stored
    assert found.moment in (moment, moment.replace(microsecond=0))  # MariaDB's DATETIME has whole seconds
    assert (found.number, found.flag, found.day) == (2**63 - 1, True, date(1, 2, 3))
    assert (found.share, found.bytes, found.uuid, found.text) == (
        0.1 + 0.2,
        rows[0]["bytes"],
        str(UUID(int=7)),
        rows[0]["text"],
    )
    digits = connection.execute(text("SELECT digits FROM kinds WHERE number > 0")).scalar_one()
    assert Decimal(digits) == rows[0]["digits"]
    document = connection.execute(text("SELECT document FROM kinds WHERE number > 0")).scalar_one()
    assert "12345678901234567890.5" in document if isinstance(document, str) else document["a"][0] == 1


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_a_sum_beyond_64_bits_is_an_error_and_never_a_rounded_number(connection: Connection, number: int) -> None:
    bulk.upsert(connection, "loans", [{"isbn": "a", "loans": number}], keys="isbn", add="loans")
    with pytest.raises(DBAPIError, match=r"overflow|out of range"), connection.begin_nested():
        bulk.upsert(connection, "loans", [{"isbn": "a", "loans": 1 if number > 0 else -1}], keys="isbn", add="loans")
    assert [row[2] for row in rows_of(connection, LOANS)] == [number]
    bulk.upsert(connection, "loans", [{"isbn": "a", "loans": -1 if number > 0 else 1}], keys="isbn", add="loans")
    assert [row[2] for row in rows_of(connection, LOANS)] == [number - 1 if number > 0 else number + 1]


FLOATS = {"nan": ("sqlite", "mariadb"), "inf": ("mariadb",), "-inf": ("mariadb",), "1e308": ()}


@pytest.mark.parametrize("make", [pa.Table.from_pylist, list], ids=["table", "mappings"])
@pytest.mark.parametrize("number", FLOATS)
def test_a_float_is_stored_or_refused_and_never_becomes_null(
    connection: Connection, kind: str, number: str, make: Callable[[Any], Any]
) -> None:
    shares = [None, 0.5, float(number), float(number)]
    rows = make([{"number": key, "share": share} for key, share in enumerate(shares, 1)])
    if kind in FLOATS[number]:
        with refused("OCQ-360", f"share has the value {number}, which a {kind} database cannot store"):
            bulk.upsert(connection, "kinds", rows, keys="number", add="share")
        assert rows_of(connection, VALUES) == []
        return
    bulk.upsert(connection, "kinds", rows, keys="number")
    assert [str(share) for share in connection.scalars(text("SELECT share FROM kinds ORDER BY number"))] == [
        str(share) for share in shares
    ]


NUMBERS = Table(
    "numbers",
    METADATA,
    Column("name", String(9), primary_key=True),
    Column("whole", BigInteger),
    Column("digits", Numeric(38, 18)),
)
SERVERS = ("postgresql", "mariadb")


@pytest.mark.parametrize("make", [pa.Table.from_pylist, list], ids=["table", "mappings"])
@pytest.mark.parametrize("add", [(), ("whole",)])
@pytest.mark.parametrize(
    ("column", "number", "keeping"),
    [
        ("whole", 1.5, ("sqlite",)),
        ("whole", Decimal("0.5"), ("sqlite",)),
        ("whole", Decimal(2**63 - 1), ("sqlite", *SERVERS)),
        ("digits", Decimal("12345678901234567890.123456789012345678"), SERVERS),
        ("digits", Decimal("12345678901234567.5"), SERVERS),
        ("digits", Decimal("6178.4546335"), ("sqlite", *SERVERS)),
        ("digits", Decimal("-0.10"), ("sqlite", *SERVERS)),
    ],
)
@pytest.mark.release(kind=("postgresql", "mariadb"), make=list)  # both become a table
def test_a_number_is_stored_or_refused_and_never_rounded(
    connection: Connection,
    kind: str,
    column: str,
    number: float | Decimal,
    keeping: tuple[str, ...],
    add: tuple[str, ...],
    make: Callable[[Any], Any],
) -> None:
    if kind == "sqlite" and add and isinstance(number, Decimal):
        pytest.skip("SQLite adds no decimals")
    rows = make([{"name": "a", "whole": 1, "digits": 1}, {"name": "b", "whole": 2, "digits": 2}])
    bulk.upsert(connection, "numbers", rows, keys="name")
    row = make([{"name": "b", column: number}])
    added = [column] if column in add else []
    if kind not in keeping:
        told = pytest.raises((BulkWriteError, DBAPIError), match=r"OCQ-360.*cannot hold|invalid input")
        with told, connection.begin_nested():
            bulk.upsert(connection, "numbers", row, keys="name", add=added)
        number = 2
    elif added and number > 2**62:
        return  # the sum is too large
    else:
        bulk.upsert(connection, "numbers", row, keys="name", add=added)
        number = 2 + number if added else number
    found = connection.execute(text(f"SELECT {column} FROM numbers WHERE name = 'b'")).scalar_one()
    assert Decimal(str(found)) == Decimal(str(number))


@pytest.mark.parametrize(
    ("column", "keeps"),
    [
        *[(column, False) for column in ("JSON", "BOOLEAN", "DATE", "DATETIME", "TIMESTAMP", "TIME", "MONEY", "REAL")],
        *[(column, True) for column in ("TEXT", "VARCHAR(40)", "CLOB", "BLOB", "")],
    ],
)
@pytest.mark.parametrize("kind", ["sqlite"])
def test_a_decimal_is_stored_exactly_or_refused_whatever_the_declared_type(
    connection: Connection, column: str, *, keeps: bool
) -> None:
    connection.execute(text(f"CREATE TABLE declared (name TEXT PRIMARY KEY, value {column})"))
    large = [{"name": "a", "value": Decimal("12345678901234567890.5")}]
    if keeps:
        bulk.upsert(connection, "declared", large, keys="name")
    else:
        with refused("OCQ-360", "value has the value 12345678901234567890.5, which its column in a sqlite database"):
            bulk.upsert(connection, "declared", large, keys="name")
    bulk.upsert(connection, "declared", [{"name": "b", "value": Decimal("0.50")}], keys="name")
    found = connection.execute(text("SELECT name, value FROM declared ORDER BY name")).all()
    assert [tuple(row) for row in found] == (
        [("a", "12345678901234567890.5"), ("b", "0.50")] if keeps else [("b", 0.5)]
    )


@pytest.mark.parametrize("there", ["12345678901234567890.55", "many"])
def test_nothing_is_added_to_a_text(connection: Connection, there: str) -> None:
    connection.execute(LOANS.insert().values(isbn="a", reader=there))
    with refused("OCQ-360", "reader is in add, but its column holds texts"):
        bulk.upsert(connection, "loans", [{"isbn": "a", "reader": 2}], keys="isbn", add="reader")
    assert rows_of(connection, LOANS)[0][1] == there


def test_decimals_that_sqlite_would_treat_as_equal_are_refused_as_keys(connection: Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE shares (share DECIMAL(38, 18) PRIMARY KEY, reader VARCHAR(9))")
    ones = [Decimal("12345678901234567.1"), Decimal("12345678901234567.2")]
    rows = [{"share": share, "reader": reader} for share, reader in zip(ones, ["ada", "eve"], strict=True)]
    if connection.dialect.name == "sqlite":
        with refused("OCQ-360", "share has the value 12345678901234567.1, which its column in a sqlite database"):
            bulk.upsert(connection, "shares", rows, keys="share")
        return
    assert bulk.upsert(connection, "shares", rows, keys="share") == 2


@pytest.mark.parametrize("number", [float("nan"), 2.0])
def test_rows_with_equal_keys_are_found_even_if_some_keys_cannot_be_sorted(
    connection: Connection, kind: str, number: float
) -> None:
    connection.exec_driver_sql("CREATE TABLE shares (share DOUBLE PRECISION PRIMARY KEY, reader VARCHAR(9))")
    rows = [{"share": share, "reader": "ada"} for share in (1.0, number, 1.0)]
    code = "OCQ-360" if kind != "postgresql" and number != 2 else "OCQ-362"
    with refused(code, "share"):
        bulk.upsert(connection, "shares", rows, keys="share")


@pytest.mark.parametrize("kind", [pytest.param("mariadb", marks=pytest.mark.mariadb)])
def test_values_that_do_not_fit_are_refused_even_by_a_server_that_would_truncate_them(connection: Connection) -> None:
    connection.execute(text("SET SESSION sql_mode = ''"))
    with pytest.raises(DBAPIError, match="Data too long for column 'isbn'"):
        bulk.upsert(connection, "loans", [{"isbn": "a" * 41, "loans": 1}], keys="isbn")
    with pytest.raises(DBAPIError, match="Out of range value for column 'loans'"):
        bulk.upsert(connection, "loans", [{"isbn": "a", "loans": 2**64}], keys="isbn")
    assert connection.execute(select(LOANS)).all() == []
    assert connection.execute(text("SELECT @@sql_mode")).scalar_one() == ""


def test_a_key_of_zero_is_an_ordinary_key(connection: Connection) -> None:
    for text_ in ("first", "second"):
        rows = [{"number": key, "text": f"{text_} {key}"} for key in (0, 1, 2)]
        bulk.upsert(connection, "kinds", rows, keys="number")
    found = connection.execute(text("SELECT number, text FROM kinds ORDER BY number")).all()
    assert [tuple(row) for row in found] == [(0, "second 0"), (1, "second 1"), (2, "second 2")]


pd: Any = import_module("pandas")  # it has no types


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Shade(StrEnum):
    DARK = "dark"

    def __str__(self) -> str:
        return "a shade"


@pytest.mark.few(kind=("postgresql", "mariadb"))  # converted in Python
@pytest.mark.parametrize(
    ("column", "value", "kept"),
    [
        ("number", np.int64(7), 7),
        ("number", np.uint8(7), 7),
        ("number", Level.HIGH, 3),
        ("share", np.float32(0.5), 0.5),
        ("share", np.float64(0.1), 0.1),
        ("flag", np.bool_(1), True),
        ("text", np.str_("x"), "x"),
        ("text", Colour.RED, "red"),
        ("text", Shade.DARK, "dark"),
        ("bytes", bytearray(b"ab"), b"ab"),
    ],
    ids=str,
)
def test_values_of_other_libraries_and_enums_are_written_as_their_plain_values(
    connection: Connection, column: str, value: Any, kept: Any
) -> None:
    bulk.upsert(connection, "kinds", [{"number": 1, column: value}], keys="number")
    (row,) = connection.execute(select(VALUES.c[column]))
    assert row[0] == kept
    assert type(row[0]) is type(kept)


def test_numbers_of_numpy_are_added(connection: Connection) -> None:
    for _ in range(2):
        bulk.upsert(connection, "loans", [{"isbn": "a", "loans": np.int64(2)}], keys="isbn", add="loans")
    assert rows_of(connection, LOANS)[0][2] == 4


@pytest.mark.parametrize(
    "value",
    [pd.NaT, pd.NA, {1}, object(), pa.scalar(1), np.datetime64("2026-01-01")],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.few(kind=("postgresql", "mariadb"))
def test_a_value_of_a_type_unknown_to_databases_is_refused(connection: Connection, value: Any) -> None:
    with refused("OCQ-360", f"text has a value of type {type(value).__name__}"):
        bulk.upsert(connection, "kinds", [{"number": 1, "text": "x"}, {"number": 2, "text": value}], keys="number")
    assert rows_of(connection, VALUES) == []


@pytest.mark.parametrize("value", [[b"x"], {"a": {1}}, [float("nan")], {1: 2}], ids=str)
@pytest.mark.parametrize("make", [list, lambda rows: pa.table({"number": [1], "text": [[b"x"]]})])
@pytest.mark.few(kind=("postgresql", "mariadb"))  # before any statement
def test_a_list_or_mapping_that_is_not_json_is_refused_naming_its_column(
    connection: Connection, value: Any, make: Callable[[Any], Any]
) -> None:
    with refused("OCQ-360", "text has a list or mapping that cannot be JSON ("):
        bulk.upsert(connection, "kinds", make([{"number": 1, "text": value}]), keys="number")


def test_uuids_are_found_by_sqlalchemy(connection: Connection) -> None:
    """Where the database has no type for them, it keeps them in 32 characters."""
    table = Table("readers", MetaData(), Column("id", Uuid, primary_key=True), Column("name", String(9)))
    table.create(connection)
    connection.execute(table.insert().values(id=UUID(int=7), name="ada"))
    rows = [{"id": UUID(int=7), "name": "eve"}, {"id": UUID(int=8), "name": "bob"}]
    assert bulk.upsert(connection, table, rows, keys="id") == 2
    assert connection.execute(select(table).order_by(table.c.id)).all() == [(UUID(int=7), "eve"), (UUID(int=8), "bob")]
    assert connection.execute(select(table.c.name).where(table.c.id == UUID(int=8))).scalar() == "bob"


def test_a_uuid_given_as_text_is_stored_as_sqlalchemy_stores_uuids(connection: Connection) -> None:
    """Columns of Arrow and Spark have UUIDs as texts."""
    table = Table("readers", MetaData(), Column("id", Uuid, primary_key=True), Column("loans", BigInteger))
    table.create(connection)
    connection.execute(table.insert().values(id=UUID(int=10), loans=1))
    rows = pa.table({"id": [str(UUID(int=10)), str(UUID(int=11)).upper()], "loans": [2, 3]})
    bulk.upsert(connection, table, rows, keys="id", add="loans")
    assert connection.execute(select(table).order_by(table.c.id)).all() == [(UUID(int=10), 3), (UUID(int=11), 3)]


def test_arrow_types_are_written_as_their_values(connection: Connection) -> None:
    moment = datetime(2026, 3, 1, tzinfo=UTC)
    table = pa.table(
        {
            "number": pa.array([1], pa.int64()),
            "moment": pa.array([moment], pa.timestamp("us", "UTC")),
            "digits": pa.array([Decimal("0.00000000000000000001")], pa.decimal128(38, 20)),
            "document": pa.array([{"a": 1}], pa.struct([("a", pa.int64())])),
        }
    )
    bulk.upsert(connection, "kinds", table, keys="number")
    row = connection.execute(select(VALUES.c.moment, VALUES.c.document)).one()
    assert tuple(row) == (moment.replace(tzinfo=None), {"a": 1})
    digits = connection.execute(text("SELECT digits FROM kinds")).scalar_one()
    assert Decimal(digits) == Decimal("0.00000000000000000001")


DATED = Table(
    "dated",
    METADATA,
    Column("day", Date, primary_key=True),
    Column("moment", DateTime, nullable=True),
    Column("n", BigInteger),
)


@pytest.mark.parametrize(
    "moment",
    [
        "2026-01-01T12:00:00+02:00",
        "2026-01-01 12:00:00.000000+0200",
        "20260101T120000+0200",
        "2026-01-01T05:00:00-05:00",
        "2026-01-01T10:00:00Z",
        "2026-01-01T10:00:00",
        datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2))),
    ],
    ids=str,
)
@pytest.mark.parametrize("form", [list, pa.Table.from_pylist], ids=["mappings", "arrow"])
@pytest.mark.few(kind=("postgresql", "mariadb"), form=(list, pa.Table.from_pylist))  # read in Python
def test_texts_with_an_offset_are_written_as_their_time_in_utc(
    connection: Connection, form: Callable[[list[dict[str, Any]]], Any], moment: Any
) -> None:
    """PostgreSQL silently uses only the part before the offset; SQLite keeps the text unchanged."""
    bulk.upsert(connection, "dated", form([{"day": date(2026, 1, 1), "moment": moment}]), keys="day")
    stored = connection.execute(text("SELECT moment FROM dated")).scalar_one()
    if connection.dialect.name == "sqlite" and isinstance(moment, str):
        assert stored == moment
    else:
        assert datetime.fromisoformat(str(stored)) == datetime(2026, 1, 1, 10)  # noqa: DTZ001 as it is stored


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+02:00", "noon"])
def test_texts_that_are_not_times_are_left_to_the_database(connection: Connection, moment: str) -> None:
    rows = [{"day": date(2026, 1, 1), "moment": moment}]
    if connection.dialect.name == "sqlite" or (connection.dialect.name == "postgresql" and moment[0] == "0"):
        bulk.upsert(connection, "dated", rows, keys="day")
        assert connection.execute(text("SELECT moment FROM dated")).scalar_one() is not None
    else:
        with pytest.raises(DBAPIError):
            bulk.upsert(connection, "dated", rows, keys="day")


@pytest.mark.parametrize("staged", [False, True])
def test_dates_and_times_are_stored_as_the_type_of_their_column(connection: Connection, *, staged: bool) -> None:
    """SQLite keeps both as texts, and would find no ``2026-01-02 00:00:00`` by its day."""
    connection.execute(DATED.insert().values(day=date(2026, 1, 2), n=1))
    moments = pa.array(
        [datetime(2026, 1, 2, 3, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC)], pa.timestamp("us", "UTC")
    )
    rows = pa.table({"day": moments, "moment": pa.array([date(2026, 1, 2), None], pa.date32()), "n": [2, 3]})
    if staged:
        merge_staged(connection, "dated", columns_of(rows, "dated"), "day", "n")
    else:
        bulk.upsert(connection, "dated", rows, keys="day", add="n")
    midnight = datetime(2026, 1, 2)  # noqa: DTZ001 as it is stored
    assert rows_of(connection, DATED) == [(date(2026, 1, 2), midnight, 3), (date(2026, 1, 3), None, 3)]
    assert connection.execute(select(DATED.c.n).where(DATED.c.moment == midnight)).scalar() == 3


@pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
def test_durations_are_written_if_the_database_has_intervals(connection: Connection) -> None:
    connection.exec_driver_sql("CREATE TABLE lent (number INTEGER PRIMARY KEY, lasting INTERVAL)")
    durations = [timedelta(days=40, seconds=1, microseconds=5), timedelta(seconds=-1), timedelta(0), None]
    rows = pa.table({"number": [1, 2, 3, 4], "lasting": pa.array(durations, pa.duration("us"))})
    bulk.upsert(connection, "lent", rows, keys="number")
    assert list(connection.scalars(text("SELECT lasting FROM lent ORDER BY number"))) == durations


def test_arrow_maps_of_any_depth_are_written_as_objects(connection: Connection) -> None:
    counts = pa.map_(pa.string(), pa.int64())
    kind = pa.struct([("of", counts), ("each", pa.list_(counts)), ("by number", pa.map_(pa.int32(), counts))])
    value = {"of": [("a", 1)], "each": [[("b", 2)], None, []], "by number": [(7, [("c", 3)])]}
    table = pa.table({"number": [1], "document": pa.array([value], kind)})
    bulk.upsert(connection, "kinds", table, keys="number")
    document = connection.execute(select(VALUES.c.document)).scalar_one()
    assert document == {"of": {"a": 1}, "each": [{"b": 2}, None, {}], "by number": {"7": {"c": 3}}}


def test_times_within_lists_and_objects_are_written_in_utc(connection: Connection) -> None:
    moment = pa.struct([("at", pa.list_(pa.timestamp("us", "Europe/Berlin")))])
    rows = pa.table({"number": [1], "text": pa.array([{"at": [datetime(2026, 1, 1, tzinfo=UTC)]}], moment)})
    bulk.upsert(connection, "kinds", rows, keys="number")
    assert connection.execute(select(VALUES.c.text)).scalar() == '{"at":["2026-01-01T00:00:00+00:00"]}'


def test_decimals_are_added_exactly_or_not_at_all(connection: Connection, kind: str) -> None:
    rows = pa.table({"isbn": ["a", "a"], "paid": pa.array([Decimal("1e20"), Decimal("0.0001")], pa.decimal128(38, 4))})
    if kind == "sqlite":
        with refused("OCQ-360", "SQLite adds no decimals exactly, and paid has some"):
            bulk.upsert(connection, "loans", rows, keys="isbn", add="paid")
        return
    for _ in range(2):
        bulk.upsert(connection, "loans", rows, keys="isbn", add="paid")
    assert rows_of(connection, LOANS)[0][3] == Decimal("200000000000000000000.0002")


def test_a_value_that_is_too_long_is_refused_and_not_truncated(connection: Connection, kind: str) -> None:
    if kind == "sqlite":
        pytest.skip("SQLite has no lengths")
    with pytest.raises(DBAPIError):
        bulk.upsert(connection, "loans", [{"isbn": "x" * 41}], keys="isbn")


# What it refuses

BOOKS = "books (isbn VARCHAR(9) PRIMARY KEY, title VARCHAR(9) NOT NULL, lent INTEGER DEFAULT 0)"
FILLING = {
    "postgresql": [
        "CREATE FUNCTION pg_temp.fill() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN NEW.title := 'untitled'; RETURN NEW; END $$",
        "CREATE TRIGGER fill BEFORE INSERT ON books FOR EACH ROW EXECUTE FUNCTION pg_temp.fill()",
    ],
    "mariadb": ["CREATE TRIGGER fill BEFORE INSERT ON books FOR EACH ROW SET NEW.title = 'untitled'"],
}
COPYING = {
    "sqlite": ["CREATE TRIGGER copy AFTER INSERT ON books BEGIN INSERT INTO titles VALUES (NULL); END"],
    "postgresql": [
        "CREATE FUNCTION pg_temp.copy() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN INSERT INTO titles VALUES (NULL); RETURN NEW; END $$",
        "CREATE TRIGGER copy BEFORE INSERT ON books FOR EACH ROW EXECUTE FUNCTION pg_temp.copy()",
    ],
}
A, AA = {"isbn": "a"}, [{"isbn": "a", "reader": "x"}, {"isbn": "a", "reader": "y"}]
WRONG: list[tuple[Any, dict[str, Any], str, str]] = [
    ([A], {"keys": ["number"]}, "OCQ-360", "keys names number, which the rows do not have"),
    ([A], {"keys": []}, "OCQ-360", "no keys are named"),
    ([A], {"keys": "isbn", "add": ["loans"]}, "OCQ-360", "add names loans, which the rows do not have"),
    ([A], {"keys": "isbn", "add": "isbn"}, "OCQ-360", "isbn is both a key and to be added"),
    ([A | {"titel": 1}], {"keys": "isbn"}, "OCQ-360", "the table has no column titel"),
    ([A, A | {"loans": 1}], {"keys": "isbn"}, "OCQ-360", "row 2 has other columns than the first one (loans)"),
    ([{"isbn": None}], {"keys": "isbn"}, "OCQ-360", "the key isbn of row 1 is null"),
    (
        [A | {"loans": "1"}],
        {"keys": "isbn", "add": "loans"},
        "OCQ-360",
        "loans is in add but has values of type str",
    ),
    ([A | {"loans": True}], {"keys": "isbn", "add": "loans"}, "OCQ-360", "has values of type bool"),
    ([A, {"isbn": 1}], {"keys": "isbn"}, "OCQ-360", "the values of isbn cannot be sorted"),
    ([A | {"reader": "x"}], {"keys": "reader"}, "OCQ-361", "no unique constraint of the table has the columns reader"),
    (AA, {"keys": "isbn"}, "OCQ-362", "2 rows have the same isbn ('a')"),
    (pa.Table.from_arrays([[1], [2]], names=["isbn", "isbn"]), {"keys": "isbn"}, "OCQ-360", "two columns of the rows"),
]


@pytest.mark.parametrize(("rows", "named", "code", "what"), WRONG, ids=[what for *_, what in WRONG])
@pytest.mark.few(kind=("postgresql", "mariadb"))  # before any statement
def test_a_call_that_does_not_match_the_table_is_refused(
    connection: Connection, rows: Any, named: dict[str, Any], code: str, what: str
) -> None:
    with refused(code, what):
        bulk.upsert(connection, "loans", rows, **named)
    assert rows_of(connection, LOANS) == []


@pytest.mark.few(kind=("postgresql", "mariadb"))
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("staged", [True, False])
def test_a_missing_not_null_column_is_named(connection: Connection, *, there: bool, staged: bool) -> None:
    connection.execute(text(f"CREATE TABLE {BOOKS}"))
    if there:
        connection.execute(text("INSERT INTO books VALUES ('a', 'Dune', 0)"))
    rows = {"isbn": ["a"], "lent": [2]}
    with refused("OCQ-360", "title must not be null and has no default, and the rows do not have it"):
        if staged:
            merge_staged(connection, "books", rows, "isbn", "lent")
        else:
            bulk.upsert(connection, "books", pa.table(rows), keys="isbn", add="lent")


def test_a_missing_not_null_column_can_be_filled_by_a_trigger(connection: Connection, kind: str) -> None:
    if kind == "sqlite":
        pytest.skip("SQLite's triggers change no new row")
    connection.execute(text(f"CREATE TABLE {BOOKS}"))
    for statement in FILLING[kind]:
        connection.exec_driver_sql(statement)
    for lent in (1, 2):
        bulk.upsert(connection, "books", [{"isbn": "a", "lent": lent}], keys="isbn", add="lent")
    assert connection.execute(text("SELECT * FROM books")).all() == [("a", "untitled", 3)]


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def test_a_null_error_from_a_triggers_write_to_another_table_is_not_blamed_on_this_one(
    connection: Connection, kind: str
) -> None:
    connection.execute(text(f"CREATE TABLE {BOOKS.replace('NOT NULL,', 'NOT NULL DEFAULT 1,')}"))
    connection.execute(text("CREATE TABLE titles (title VARCHAR(9) NOT NULL)"))
    for statement in COPYING[kind]:
        connection.exec_driver_sql(statement)
    with pytest.raises(DBAPIError, match="title"):
        bulk.upsert(connection, "books", [{"isbn": "a", "lent": 1}], keys="isbn", add="lent")


def test_an_explicit_null_is_left_to_the_database(connection: Connection) -> None:
    connection.execute(text(f"CREATE TABLE {BOOKS}"))
    with pytest.raises(DBAPIError, match="title"):
        bulk.upsert(connection, "books", [{"isbn": "a", "title": None}], keys="isbn")


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def test_a_null_computed_by_the_table_is_left_to_the_database(connection: Connection) -> None:
    computed = "title VARCHAR(9) GENERATED ALWAYS AS (lower(author)) STORED NOT NULL"
    connection.execute(text(f"CREATE TABLE books (isbn VARCHAR(9) PRIMARY KEY, author VARCHAR(9), {computed})"))
    with pytest.raises(DBAPIError, match="title"):
        bulk.upsert(connection, "books", [{"isbn": "a", "author": None}], keys="isbn")


def test_a_missing_table_is_named(connection: Connection) -> None:
    with refused("OCQ-360", "there is no such table"):
        bulk.upsert(connection, "loan", [A], keys="isbn")


def test_arguments_other_than_connections_and_rows_are_refused(connection: Connection) -> None:
    with pytest.raises(TypeError, match=r"needs sqlalchemy.Connection or sqlalchemy.orm.Session, got object"):
        bulk.upsert(object(), "loans", [A], keys="isbn")  # type: ignore[arg-type]
    for rows in ("isbn", {"isbn": "a"}, 1):
        with pytest.raises(TypeError, match=r"needs a pyarrow.Table or a sequence of mappings, got"):
            bulk.upsert(connection, "loans", rows, keys="isbn")
    mapped = type("Loan", (registry().generate_base(),), {"__table__": LOANS})
    for row in (mapped(), ("a", 1), None):
        with pytest.raises(TypeError, match=f"needs rows that are mappings, such as dict, got {type(row).__name__}"):
            bulk.upsert(connection, "loans", [A, row], keys="isbn")
    with pytest.raises(TypeError, match=r"needs the name of a table .*Loan.*; a mapped class has it as __table__"):
        bulk.upsert(connection, mapped, [A], keys="isbn")  # type: ignore[arg-type]


def test_a_partial_index_is_not_a_key(connection: Connection, kind: str) -> None:
    beginnings = Index("beginnings", LOANS.c.reader, unique=True, mysql_length=2)
    condition = {f"{kind}_where": text("loans > 1")} if kind != "mariadb" else {}
    index = beginnings if kind == "mariadb" else Index("some", LOANS.c.reader, unique=True, **condition)
    try:
        index.create(connection)
    finally:
        LOANS.indexes.clear()
    with refused("OCQ-361", "no unique constraint of the table has the columns reader"):
        bulk.upsert(connection, "loans", [{"reader": "x"}], keys="reader")


def test_a_changed_table_is_inspected_again(connection: Connection) -> None:
    with refused("OCQ-360", "the table has no column title"):
        bulk.upsert(connection, "loans", [{"isbn": "a", "title": "Emma"}], keys="isbn")
    connection.execute(text("ALTER TABLE loans ADD COLUMN title VARCHAR(40)"))
    bulk.upsert(connection, "loans", [{"isbn": "a", "title": "Emma"}], keys="isbn")
    assert connection.execute(text("SELECT isbn, title FROM loans")).all() == [("a", "Emma")]


def test_a_constraint_added_while_a_process_runs_is_seen_within_a_minute(
    connection: Connection, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bulk.upsert(connection, "loans", [{"isbn": "a", "reader": "x"}], keys="isbn")
    connection.execute(text("CREATE UNIQUE INDEX readers ON loans (reader)"))
    later = time.monotonic() + 60
    monkeypatch.setattr("opencqrs_py.adapters.sql.bulk.tables.time.monotonic", lambda: later)
    with pytest.raises(BulkWriteError if kind == "mariadb" else DBAPIError):
        bulk.upsert(connection, "loans", [{"isbn": "b", "reader": "x"}], keys="isbn")


def test_a_row_that_conflicts_in_another_unique_key_is_never_changed(connection: Connection, kind: str) -> None:
    connection.execute(text("CREATE UNIQUE INDEX readers ON loans (reader)"))
    bulk.upsert(connection, "loans", [{"isbn": "a", "loans": 1}], keys="isbn")
    rows = [{"isbn": "b", "reader": "x"}, {"isbn": "c", "reader": "x"}]
    if kind == "mariadb":
        with refused("OCQ-360", "MariaDB would also change rows with the same reader"):
            bulk.upsert(connection, "loans", rows, keys="isbn")
    else:
        with pytest.raises(DBAPIError):
            bulk.upsert(connection, "loans", rows, keys="isbn")


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
@pytest.mark.parametrize("other", ["A", "a ", "à"])
def test_keys_that_the_database_treats_as_equal_are_refused(connection: Connection, kind: str, other: str) -> None:
    if kind == "sqlite" and other != "A":
        pytest.skip("SQLite ignores case only")
    collation = "NOCASE" if kind == "sqlite" else "utf8mb4_general_ci"
    connection.execute(
        text(f"CREATE TABLE alike (isbn VARCHAR(40) COLLATE {collation} PRIMARY KEY, reader VARCHAR(9))")
    )
    rows = [{"isbn": "a", "reader": "ada"}, {"isbn": "b", "reader": "bob"}, {"isbn": other, "reader": "eve"}]
    with refused("OCQ-362", "as the same isbn"):
        bulk.upsert(connection, "alike", rows, keys="isbn")


@pytest.mark.parametrize("kind", [pytest.param("mariadb", marks=pytest.mark.mariadb)])
@pytest.mark.parametrize(
    ("column", "one", "other"),
    [
        ("VARCHAR(9) COLLATE utf8mb4_general_ci", "\N{GRINNING FACE}", "\N{PARTY POPPER}"),
        ("VARCHAR(9) COLLATE utf8mb4_general_ci", "Mas", "Ma\N{LATIN SMALL LETTER SHARP S}"),
        ("VARCHAR(9) COLLATE utf8mb4_unicode_520_ci", "Moller", "M\N{LATIN SMALL LETTER O WITH STROKE}ller"),
        ("VARCHAR(9) COLLATE utf8mb4_unicode_520_ci", "oe", "\N{LATIN SMALL LIGATURE OE}"),
        ("VARCHAR(9) COLLATE utf8mb4_unicode_520_ci", "\N{HIRAGANA LETTER KA}", "\N{KATAKANA LETTER GA}"),
        ("VARCHAR(9) COLLATE utf8mb4_unicode_520_ci", "ab", "a\N{ZERO WIDTH SPACE}b"),
        ("VARCHAR(9) COLLATE utf8mb4_unicode_520_ci", "ab", "a\x01b"),
        ("INTEGER", "1", "01"),
    ],
)
def test_keys_that_are_equal_only_under_the_tables_rules_are_refused(
    connection: Connection, column: str, one: str, other: str
) -> None:
    connection.execute(text(f"CREATE TABLE alike (isbn {column} PRIMARY KEY, reader VARCHAR(9))"))
    others = [str(n) for n in range(1_000, 2_500)]  # more than fit into one statement
    rows = [{"isbn": isbn, "reader": "ada"} for isbn in (one, other, *others)]
    with refused("OCQ-362", "as the same isbn"):
        bulk.upsert(connection, "alike", rows, keys="isbn")


@pytest.mark.parametrize("kind", [pytest.param("mariadb", marks=pytest.mark.mariadb)])
def test_texts_that_a_time_column_truncates_are_refused(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE rough (moment DATETIME PRIMARY KEY, n INTEGER)"))
    rows = [{"moment": f"2026-01-02 03:04:05.{n}", "n": n} for n in (1, 2)]
    with refused("OCQ-362", "the table holds '2026-01-02 03:04:05.1' in another form"):
        bulk.upsert(connection, "rough", rows, keys="moment")


def test_texts_of_any_script_are_different_keys_if_the_table_distinguishes_them(
    connection: Connection, kind: str
) -> None:
    binary = {"sqlite": "BINARY", "postgresql": '"C"', "mariadb": "utf8mb4_bin"}[kind]
    columns = f"isbn VARCHAR(9) COLLATE {binary}, day DATE, n INTEGER, PRIMARY KEY (isbn, day)"
    connection.execute(text(f"CREATE TABLE exact ({columns})"))
    texts = ["\N{GRINNING FACE}", "\N{PARTY POPPER}", "o", "\N{LATIN SMALL LETTER O WITH STROKE}", "a", "A", "a\x01"]
    rows = [{"isbn": isbn, "day": date(2026, 1, 2), "n": n} for n, isbn in enumerate(texts)]
    assert bulk.upsert(connection, "exact", rows, keys=["isbn", "day"]) == len(texts)
    assert connection.execute(text("SELECT COUNT(*) FROM exact")).scalar() == len(texts)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
@pytest.mark.parametrize(
    ("column", "value"),
    [("DATE", date(2026, 1, 2)), ("DATETIME", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)), ("BOOLEAN", True)],
)
def test_equal_texts_in_a_composite_key_are_refused(connection: Connection, kind: str, column: str, value: Any) -> None:
    collation = "NOCASE" if kind == "sqlite" else "utf8mb4_general_ci"
    columns = f"isbn VARCHAR(9) COLLATE {collation}, day {column}, reader VARCHAR(9), PRIMARY KEY (isbn, day)"
    connection.execute(text(f"CREATE TABLE alike ({columns})"))
    rows = [{"isbn": isbn, "day": value, "reader": isbn} for isbn in ("a", "A")]
    with refused("OCQ-362", "as the same isbn, day"):
        bulk.upsert(connection, "alike", rows, keys=["isbn", "day"])


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
@pytest.mark.parametrize("texts", [("1", "01"), ("7", "7.0"), ("10", "1e1"), ("x", "3", " 3")])
def test_texts_that_a_numeric_column_treats_as_equal_are_refused(
    connection: Connection, kind: str, texts: tuple[str, ...]
) -> None:
    connection.execute(text("CREATE TABLE counted (number NUMERIC PRIMARY KEY, reader VARCHAR(9))"))
    texts = texts if kind == "sqlite" else tuple(each for each in texts if each.strip() != "x")
    rows = [{"number": each, "reader": str(index)} for index, each in enumerate(texts)]
    with refused("OCQ-362", "as the same number"):
        bulk.upsert(connection, "counted", rows, keys=["number"])


SAME_TEXTS: list[tuple[Any, Any, tuple[str, ...]]] = [
    (Decimal("1.50"), Decimal("1.5"), ()),
    (Decimal("1E+2"), Decimal(100), ("sqlite", *SERVERS)),
    (Decimal(100), 100, ("sqlite", *SERVERS)),
    (2024, 2024.0, ("mariadb",)),
    (0.0, -0.0, ("sqlite", "mariadb")),
    (True, 1, ("sqlite", "mariadb")),
]


@pytest.mark.few(kind=("postgresql", "mariadb"))  # compared in Python
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(("one", "other", "kinds"), SAME_TEXTS, ids=[f"{one} {other}" for one, other, _ in SAME_TEXTS])
def test_numbers_in_a_text_column_are_the_same_keys_in_one_call_as_in_two(
    connection: Connection, kind: str, one: Any, other: Any, kinds: tuple[str, ...], *, together: bool
) -> None:
    rows = [{"isbn": isbn, "loans": loans} for isbn, loans in ((one, 1), (other, 2))]
    for call in [rows] if together else [[row] for row in rows]:
        bulk.upsert(connection, "loans", call, keys="isbn", add="loans")
    assert sorted(row[2] for row in rows_of(connection, LOANS)) == ([3] if kind in kinds else [1, 2])


@pytest.mark.few(kind=("postgresql", "mariadb"))  # compared in Python
@pytest.mark.parametrize("others", [{}, {"day": date(2026, 1, 2)}])
@pytest.mark.parametrize(("one", "other", "kinds"), SAME_TEXTS, ids=[f"{one} {other}" for one, other, _ in SAME_TEXTS])
def test_numbers_in_a_text_column_are_refused_if_they_are_equal_keys(
    connection: Connection, kind: str, one: Any, other: Any, kinds: tuple[str, ...], others: dict[str, Any]
) -> None:
    keys = ["isbn", *others]
    columns = "isbn VARCHAR(40), day DATE, reader VARCHAR(9)"
    connection.execute(text(f"CREATE TABLE lent ({columns}, UNIQUE ({', '.join(keys)}))"))
    rows = [{"isbn": isbn, **others, "reader": reader} for isbn, reader in ((one, "ada"), (other, "eve"))]
    if kind in kinds:
        with refused("OCQ-362", f"the same {', '.join(keys)}"):
            bulk.upsert(connection, "lent", rows, keys=keys)
    else:
        assert bulk.upsert(connection, "lent", rows, keys=keys) == 2
        assert set(connection.scalars(text("SELECT reader FROM lent"))) == {"ada", "eve"}


def test_decimals_in_a_numeric_column_are_equal_keys_whatever_their_digits(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE lent (price NUMERIC(9, 2) PRIMARY KEY, n INTEGER)"))
    rows = [{"price": price, "n": 1} for price in (Decimal("1.50"), Decimal("1.5"))]
    assert bulk.upsert(connection, "lent", rows, keys="price", add="n") == 1
    assert connection.execute(text("SELECT n FROM lent")).scalars().all() == [2]


WHOLE = [
    (2**53, 2**53 + 1),
    (-(2**53) - 1, -(2**53)),
    (7, 2**62, 2**62 + 1),
    (Decimal(2**53), Decimal(2**53 + 1)),
]


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
@pytest.mark.parametrize("keys", WHOLE)
@pytest.mark.parametrize("others", [{}, {"day": date(2026, 1, 2)}])
def test_integers_that_a_float_column_treats_as_equal_are_refused(
    connection: Connection, keys: tuple[Any, ...], others: dict[str, Any]
) -> None:
    columns = "number DOUBLE PRECISION, day DATE, reader VARCHAR(9)"
    connection.execute(text(f"CREATE TABLE counted ({columns}, PRIMARY KEY ({', '.join(['number', *others])}))"))
    rows = [{"number": key, **others, "reader": str(index)} for index, key in enumerate(keys)]
    with refused("OCQ-362", "as the same number"):
        bulk.upsert(connection, "counted", rows, keys=["number", *others])


@pytest.mark.parametrize(("column", "step"), [("DOUBLE PRECISION", 2), ("BIGINT", 1), ("NUMERIC(30, 0)", 1)])
def test_large_integers_are_different_keys_if_the_column_keeps_their_digits(
    connection: Connection, column: str, step: int
) -> None:
    connection.execute(text(f"CREATE TABLE counted (number {column} PRIMARY KEY, reader VARCHAR(9))"))
    rows = [{"number": 2**53 + step * index, "reader": str(index)} for index in range(3)]
    assert bulk.upsert(connection, "counted", rows, keys="number") == 3
    assert connection.execute(text("SELECT COUNT(*) FROM counted")).scalar() == 3


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
def test_texts_of_different_numbers_are_written_to_a_numeric_column(connection: Connection, kind: str) -> None:
    connection.execute(text("CREATE TABLE counted (number INTEGER PRIMARY KEY, reader VARCHAR(9))"))
    rows = [{"number": number, "reader": reader} for number, reader in (("01", "a"), ("2", "b"), ("10", "c"))]
    assert bulk.upsert(connection, "counted", rows, keys=["number"]) == 3
    found = connection.execute(text("SELECT number, reader FROM counted ORDER BY number")).all()
    assert [tuple(row) for row in found] == [(1, "a"), (2, "b"), (10, "c")]


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)])
@pytest.mark.parametrize("same", [True, False])
def test_staged_rows_with_keys_that_the_database_treats_as_equal_are_refused(
    connection: Connection, kind: str, *, same: bool
) -> None:
    names = {"sqlite": ("NOCASE", "BINARY"), "mariadb": ("utf8mb4_general_ci", "utf8mb4_bin")}[kind]
    collation = names[0] if same else names[1]
    connection.execute(
        text(f"CREATE TABLE staged (isbn VARCHAR(9) COLLATE {collation} PRIMARY KEY, reader VARCHAR(9))")
    )
    columns = {"isbn": ["a", "A", "b"], "reader": ["ada", "eve", "bob"]}
    if not same:
        assert merge_staged(connection, "staged", columns, "isbn") == 3
        return
    with refused("OCQ-362", "the same"):
        merge_staged(connection, "staged", columns, "isbn")


MOMENT = datetime(2026, 1, 2, 3, 4, 5, 300_000, UTC).replace(tzinfo=None)
TENTHS = [Decimal("1.1"), Decimal("1.2")]
HUNDREDTHS = [Decimal("1.11"), Decimal("1.12")]
LATER = [MOMENT, MOMENT.replace(microsecond=600_000)]


@pytest.mark.parametrize("kind", [pytest.param("mariadb", marks=pytest.mark.mariadb)])
@pytest.mark.parametrize(
    ("column", "keys"),
    [
        ("DATETIME", LATER),
        ("DATETIME", [one.replace(tzinfo=UTC) for one in LATER]),
        ("DATE", [MOMENT, MOMENT.replace(hour=23)]),
        ("TIME", [one.time() for one in LATER]),
        ("DECIMAL(9, 1)", HUNDREDTHS),
        ("DECIMAL(9, 1)", [Decimal("1.96"), Decimal("2.04")]),
        ("DECIMAL(9, 1)", [Decimal("-1.49"), Decimal("-1.51")]),
        ("DECIMAL(9, 0)", [Decimal("1.6"), Decimal("2.4")]),
    ],
)
def test_keys_whose_digits_the_column_truncates_are_refused(
    connection: Connection, column: str, keys: list[Any]
) -> None:
    connection.execute(
        text(f"CREATE TABLE rough (number INTEGER, moment {column}, n INTEGER, PRIMARY KEY (number, moment))")
    )
    rows = [{"number": 7, "moment": key, "n": n} for n, key in enumerate(keys)]
    with refused("OCQ-362", "as the same number, moment"):
        bulk.upsert(connection, "rough", rows, keys=["number", "moment"])


@pytest.mark.parametrize("kind", [pytest.param("mariadb", marks=pytest.mark.mariadb)])
def test_among_many_times_the_two_that_the_column_treats_as_equal_are_named(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE rough (moment DATETIME PRIMARY KEY, n INTEGER)"))
    moments = [MOMENT.replace(second=second, microsecond=0) for second in range(60)] + [MOMENT]
    rows = [{"moment": moment, "n": n} for n, moment in enumerate(moments)]
    two = "treats 2026-01-02 03:04:05, 2026-01-02 03:04:05.300000 as the same moment"
    with refused("OCQ-362", two):
        bulk.upsert(connection, "rough", rows, keys="moment")


@pytest.mark.few(kind=("postgresql", "mariadb"))
@pytest.mark.parametrize(
    ("columns", "keys"),
    [
        ({"sqlite": "DATETIME", "postgresql": "TIMESTAMP", "mariadb": "DATETIME(6)"}, LATER),
        ({"sqlite": "TIME", "postgresql": "TIME", "mariadb": "TIME(6)"}, [one.time() for one in LATER]),
        (dict.fromkeys(("sqlite", "postgresql", "mariadb"), "DECIMAL(9, 1)"), TENTHS),
        (dict.fromkeys(("sqlite", "postgresql", "mariadb"), "DECIMAL(9, 2)"), HUNDREDTHS),
    ],
)
def test_keys_whose_digits_the_column_keeps_are_different(
    connection: Connection, kind: str, columns: dict[str, str], keys: list[Any]
) -> None:
    connection.execute(text(f"CREATE TABLE fine (moment {columns[kind]} PRIMARY KEY, n INTEGER)"))
    rows = [{"moment": key, "n": n} for n, key in enumerate(keys)]
    assert bulk.upsert(connection, "fine", rows, keys="moment") == len(keys)
    assert connection.execute(text("SELECT COUNT(*) FROM fine")).scalar() == len(keys)


def test_keys_that_differ_in_case_are_different_if_the_table_is_case_sensitive(
    connection: Connection, kind: str
) -> None:
    binary = {"sqlite": "BINARY", "postgresql": '"C"', "mariadb": "utf8mb4_bin"}[kind]
    connection.execute(text(f"CREATE TABLE exact (isbn VARCHAR(40) COLLATE {binary} PRIMARY KEY, reader VARCHAR(9))"))
    rows = [{"isbn": isbn, "reader": isbn} for isbn in ("a", "A", "à")]
    assert bulk.upsert(connection, "exact", rows, keys="isbn") == 3
    assert connection.execute(text("SELECT COUNT(*) FROM exact WHERE isbn = reader")).scalar() == 3


def test_a_single_key_needs_no_comparison_with_others(connection: Connection) -> None:
    bulk.upsert(connection, "loans", [{"isbn": "é", "loans": 1}], keys="isbn")
    sent: list[str] = []
    note = lambda _connection, _cursor, statement, *_: sent.append(statement)  # noqa: E731
    listen(connection, "before_cursor_execute", note)
    bulk.upsert(connection, "loans", [{"isbn": "é", "loans": 2}], keys="isbn")
    remove(connection, "before_cursor_execute", note)
    assert not [statement for statement in sent if statement.startswith("SELECT") and "loans" in statement]
    assert [row[2] for row in rows_of(connection, LOANS)] == [2]


def test_many_keys_that_differ_in_case_are_compared_in_few_statements(connection: Connection, kind: str) -> None:
    binary = {"sqlite": "BINARY", "postgresql": '"C"', "mariadb": "utf8mb4_bin"}[kind]
    columns = f"isbn VARCHAR(40) COLLATE {binary}, number INTEGER, reader VARCHAR(9), PRIMARY KEY (isbn, number)"
    connection.execute(text(f"CREATE TABLE exact ({columns})"))
    rows = [{"isbn": isbn, "number": n, "reader": isbn} for n in range(600) for isbn in ("a", "A")]
    sent: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_others: object) -> None:
        sent.append(statement)

    listen(connection, "before_cursor_execute", note)
    try:
        assert bulk.upsert(connection, "exact", rows, keys=["isbn", "number"]) == 1_200
    finally:
        remove(connection, "before_cursor_execute", note)
    assert sum("SELECT COUNT(*)" in statement for statement in sent) == 3


def test_among_many_keys_the_one_that_the_database_treats_as_equal_is_named(connection: Connection, kind: str) -> None:
    if kind == "postgresql":
        pytest.skip("PostgreSQL refuses the statement itself")
    collation = "NOCASE" if kind == "sqlite" else "utf8mb4_general_ci"
    columns = f"isbn VARCHAR(40) COLLATE {collation}, number INTEGER, reader VARCHAR(9), PRIMARY KEY (isbn, number)"
    connection.execute(text(f"CREATE TABLE alike ({columns})"))
    rows = [{"isbn": f"a{n}", "number": n, "reader": "ada"} for n in range(700)]
    rows.append({"isbn": "A650", "number": 650, "reader": "eve"})
    with refused("OCQ-362", "treats ('A650', 650), ('a650', 650) as the same isbn, number"):
        bulk.upsert(connection, "alike", rows, keys=["isbn", "number"])


# Side by side


def test_transactions_that_write_the_same_rows_in_different_orders_do_not_deadlock(
    database: Database, tables: None, open_database: Callable[[], Database]
) -> None:
    errors: list[BaseException] = []
    together = Barrier(2)

    def write(order: int) -> None:
        other = open_database()
        rows = [{"isbn": f"{number:03}", "loans": 1} for number in range(200)][::order]
        together.wait()
        try:
            for _ in range(20):
                with other.writing() as opened:
                    bulk.upsert(opened, "loans", rows, keys="isbn", add="loans")
        except BaseException as error:
            errors.append(error)

    with database.writing() as opened:  # the rows exist: on MariaDB, inserts of new ones may meet gap locks
        bulk.upsert(opened, "loans", [{"isbn": f"{number:03}", "loans": 0} for number in range(200)], keys="isbn")
    threads = [Thread(target=write, args=(order,)) for order in (1, -1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with database.reading() as opened:
        assert {row[2] for row in rows_of(opened, LOANS)} == {40}

"""Statements that inputs of jobs return: every id once, in the database's own order, however it compares."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Enum,
    Float,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    Select,
    SmallInteger,
    String,
    Table,
    Uuid,
    cast,
    column,
    delete,
    func,
    insert,
    literal_column,
    select,
    table,
    text,
    true,
    type_coerce,
    union,
    union_all,
    update,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.types import TypeDecorator

from opencqrs_py.adapters.sql import Database, DatabaseTransactions, SqlSelector
from opencqrs_py.errors import JobError
from opencqrs_py.model.job import JobId, JobPage

Noted = Callable[[Callable[[str, Any], None]], AbstractContextManager[None]]
POSTGRESQL = pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
SERVERS = pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=getattr(pytest.mark, kind)) for kind in ("postgresql", "mariadb")]
)
NOT_SENT = pytest.mark.release(kind=("postgresql", "mariadb"))
"""Statements that are refused before any database sees them are refused on one."""

METADATA = MetaData()
NUMBERS = [-(2**63), -1, 0, 1, 2, 10, 9, 2**40, 2**31]
NAMES = ["a", "B", "c d", "c-e", "Äx", "äy", "z", "ß1", "é2", "😀", "10", "9", "_", "x" * 190, "%s", ":n", "q'\\"]
UUIDS = [uuid.UUID(int=n) for n in (1, 2**127 + 5, 2**64, 2**100, 7)]
ITEMS = Table(
    "items",
    METADATA,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("name", String(200)),
    Column("uuid", Uuid),
    Column("uuid_text", Uuid(as_uuid=False)),
    Column("part", Integer),
    Column("small", SmallInteger),
    mysql_charset="utf8mb4",
)


class Base(DeclarativeBase):
    metadata = METADATA


class Invoice(Base):
    __tablename__ = "invoices"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(20))


class Shouted(TypeDecorator[str]):
    """A text that is stored in another way."""

    impl = String(200)
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else f"!{value}"

    def process_result_value(self, value: str | None, dialect: Any) -> str | None:
        return None if value is None else value[1:]


SHOUTED = Table("shouted", METADATA, Column("id", Shouted, primary_key=True))


@pytest.fixture
def filled(database: Database) -> Database:
    with database.writing() as connection:
        METADATA.create_all(connection)
        names, ids = [*NAMES, *[None] * 9][: len(NUMBERS)], [*UUIDS, None, None, None, None]
        for number, name, id_ in zip(NUMBERS, names, ids, strict=True):
            as_text = None if id_ is None else str(id_)
            row = {"number": number, "name": name, "uuid": id_, "uuid_text": as_text, "part": number % 3, "small": 1}
            connection.execute(insert(ITEMS).values(row))
        for number, name in enumerate(NAMES[len(NUMBERS) :], 100):
            connection.execute(insert(ITEMS).values(number=number, name=name, part=number % 3))
        connection.execute(insert(Invoice), [{"id": n, "name": f"n{n}"} for n in range(1, 6)])
        connection.execute(insert(SHOUTED), [{"id": name} for name in ("a", "b", "c")])
    return database


@pytest.fixture
def selector(filled: Database) -> SqlSelector:
    return SqlSelector(filled)


def pages(selector: SqlSelector, statement: Any, limit: int, unit: Any = None) -> list[JobId]:
    """Return all ids, as a run reads them: after a page that is not full there is none."""
    found: list[JobId] = []
    while True:
        page = selector.ids(statement, JobPage(limit, found[-1] if found else None), unit)
        assert page is not None
        assert len(page) <= limit
        found += page
        if len(page) < limit:
            return found


ALL_NUMBERS = sorted([*NUMBERS, *range(100, 100 + len(NAMES) - len(NUMBERS))])
OF_PARTS = select(ITEMS.c.number).where(ITEMS.c.part == 1)
STATEMENTS: dict[str, tuple[Any, list[JobId]]] = {
    "plain": (select(ITEMS.c.number), ALL_NUMBERS),
    "none": (select(ITEMS.c.number).where(ITEMS.c.number == 77), []),
    "text": (select(ITEMS.c.name), NAMES),
    "uuid": (select(ITEMS.c.uuid), list(map(str, UUIDS))),
    "uuid as text": (select(ITEMS.c.uuid_text), list(map(str, UUIDS))),
    "own order": (select(ITEMS.c.number).order_by(ITEMS.c.name.desc()), ALL_NUMBERS),
    "own limit": (select(ITEMS.c.number).order_by(ITEMS.c.number.desc()).limit(4), ALL_NUMBERS[-4:]),
    "own offset": (select(ITEMS.c.number).order_by(ITEMS.c.number).limit(3).offset(2), ALL_NUMBERS[2:5]),
    "distinct": (select(ITEMS.c.part).distinct(), [0, 1, 2]),
    "twice": (select(ITEMS.c.part), [0, 1, 2]),
    "group": (select(ITEMS.c.part).group_by(ITEMS.c.part).having(func.count() > 5), None),
    "aggregate": (select(func.max(ITEMS.c.number)), [2**40 if 2**40 > 2**31 else 0]),
    "expression": (select((ITEMS.c.number + 1).label("more")), [n + 1 for n in ALL_NUMBERS]),
    "no name": (select(func.coalesce(ITEMS.c.name, "none")), [*NAMES]),
    "join": (select(Invoice.id).join(ITEMS, ITEMS.c.number > Invoice.id), [1, 2, 3, 4, 5]),
    "outer join": (select(Invoice.id).select_from(ITEMS).outerjoin(Invoice, Invoice.id == ITEMS.c.number), [1, 2]),
    "orm": (select(Invoice.id).where(Invoice.name != "n3"), [1, 2, 4, 5]),
    "union": (union(select(ITEMS.c.part), select(Invoice.id)), [0, 1, 2, 3, 4, 5]),
    "union all": (union_all(select(Invoice.id), select(Invoice.id)), [1, 2, 3, 4, 5]),
    "ordered union": (union(select(ITEMS.c.part), select(Invoice.id)).order_by("part").limit(2), [0, 1]),
    "window": (select(func.row_number().over(order_by=ITEMS.c.name)), list(range(1, len(ALL_NUMBERS) + 1))),
    "cte": (select(OF_PARTS.cte("found").c.number), sorted(n for n in ALL_NUMBERS if n % 3 == 1)),
    "columns of text": (
        text("SELECT id FROM invoices WHERE id > :low").columns(id=Integer).bindparams(low=2),
        [3, 4, 5],
    ),
    "without a type": (select(column("id")).select_from(table("invoices")), [1, 2, 3, 4, 5]),
    "text without a type": (select(literal_column("name")).select_from(text("items")), NAMES),
    "uuid without a type": (select(literal_column("uuid")).select_from(text("items")), None),
    "expression without a type": (select(literal_column("lower(name)")).select_from(text("invoices")), None),
    "none without a type": (select(literal_column("name")).select_from(text("items")).where(text("1 = 0")), []),
    "of the user": (select(SHOUTED.c.id), ["a", "b", "c"]),
    "for update": (select(Invoice.id).order_by(Invoice.name).with_for_update(skip_locked=True), [1, 2, 3, 4, 5]),
    "limited for update": (select(Invoice.id).order_by(Invoice.id).limit(2).with_for_update(), [1, 2]),
}


@pytest.mark.few(kind=("postgresql", "mariadb"))  # SQLAlchemy makes the pages
@pytest.mark.parametrize("name", STATEMENTS)
def test_each_id_is_in_exactly_one_page(selector: SqlSelector, filled: Database, name: str) -> None:
    statement, expected = STATEMENTS[name]
    found = pages(selector, statement, 100)
    with filled.reading() as connection:
        values = set(connection.execute(statement).scalars()) - {None}
    all_ids = {str(value) if isinstance(value, uuid.UUID) else value for value in values}
    assert len(found) == len(set(found))
    assert set(found) == all_ids
    if expected is not None:
        assert set(found) == set(expected)
    if all(isinstance(each, int) for each in found):
        assert found == sorted(found)
    for limit in (1, 2, 3):
        assert pages(selector, statement, limit) == found
        with DatabaseTransactions(filled).begin() as unit:
            assert pages(selector, statement, limit, unit) == found


@POSTGRESQL
@pytest.mark.parametrize("collation", ["C", "pg_c_utf8"])
def test_texts_are_compared_as_the_column_sorts_them(selector: SqlSelector, filled: Database, collation: str) -> None:
    words = Table("words", MetaData(), Column("word", String(collation=collation), primary_key=True))
    with filled.writing() as connection:
        words.create(connection)
        connection.execute(insert(words), [{"word": name} for name in [*NAMES, "A", "b", "C D", "ö", "oe", "of"]])
    for limit in (1, 3):
        found = pages(selector, select(words.c.word), limit)
        with filled.reading() as connection:
            assert found == list(connection.execute(select(words.c.word).order_by(words.c.word)).scalars())


@pytest.mark.parametrize("kind", [pytest.param("mariadb", marks=pytest.mark.mariadb)])
@pytest.mark.parametrize("collation", ["utf8mb4_bin", "utf8mb4_unicode_ci", "utf8mb4_nopad_bin", "latin1_swedish_ci"])
def test_texts_are_compared_as_the_collation_of_a_server_does(
    selector: SqlSelector, filled: Database, collation: str
) -> None:
    kind = String(200, collation=collation)
    words = Table("words", MetaData(), Column("word", kind, primary_key=True), mysql_charset="utf8mb4")
    with filled.writing() as connection:
        words.create(connection)
        fitting = [name for name in NAMES if collation[0] == "u" or name != "😀"]
        connection.execute(insert(words), [{"word": name} for name in fitting])
    for limit in (1, 3):
        found = pages(selector, select(words.c.word), limit)
        with filled.reading() as connection:
            assert found == list(connection.execute(select(words.c.word).order_by(words.c.word)).scalars())


@pytest.mark.few(kind=("postgresql", "mariadb"))  # as above
@pytest.mark.parametrize(
    ("statement", "named", "found"),
    [
        (select(ITEMS.c.number), (1, 2, 3), {1, 2}),
        (
            select(ITEMS.c.number),
            ("1", "-1", "3", "x", "", "01", "1.0", "1_0", " 2", "١", "9" * 30, "9" * 5_000),
            {1, -1},
        ),
        (select(ITEMS.c.number), (2**70, -(2**70), 2**40), {2**40}),
        (select(ITEMS.c.number), (-(2**63), 2**63, -(2**63) - 1), {-(2**63)}),
        (select(ITEMS.c.number), (str(-(2**63)), str(2**63), str(-(2**63) - 1)), {-(2**63)}),
        (select(ITEMS.c.small), (2**40, "99999999", 1), {1}),
        (
            select(ITEMS.c.name),
            ("10", 9, "Äx", "😀", "nobody", "with \0", "half \ud800", "%s"),
            {"10", "9", "Äx", "😀", "%s"},
        ),
        (select(ITEMS.c.uuid), (str(UUIDS[0]), "no uuid", 7, str(uuid.UUID(int=99))), {str(UUIDS[0])}),
        (select(ITEMS.c.uuid_text), (str(UUIDS[1]), "no uuid"), {str(UUIDS[1])}),
        (select(Invoice.id).where(Invoice.id > 2), ("1", "2", "3", "4"), {3, 4}),
        (select(Invoice.id).order_by(Invoice.id).limit(2), (1, 2, 3), {1, 2}),
        (select(Invoice.id).with_for_update(), (1, 2, 99), {1, 2}),
        (select(column("id")).select_from(table("invoices")), ("1", "2", "x"), {1, 2}),
        (select(SHOUTED.c.id), ("a", "x", "!b"), {"a"}),
        (select(Invoice.id), (), set()),
        (select(Invoice.id), tuple(map(str, range(2_500))), {1, 2, 3, 4, 5}),
    ],
)
def test_of_the_requested_ids_those_that_apply_are_found(
    selector: SqlSelector, filled: Database, statement: Any, named: tuple[JobId, ...], found: set[JobId]
) -> None:
    page = JobPage(len(named) or 1, None, named)
    ids = selector.ids(statement, page, None)
    assert ids is not None
    assert len(ids) == len(found)
    assert set(ids) == found
    with DatabaseTransactions(filled).begin() as unit:
        assert selector.ids(statement, page, unit) == ids


def test_only_a_statement_with_a_limit_is_read_at_once(selector: SqlSelector, filled: Database) -> None:
    newest = select(Invoice.id).order_by(Invoice.id.desc()).limit(3)
    assert selector.limited(newest, None) == [5, 4, 3]
    with DatabaseTransactions(filled).begin() as unit:
        assert selector.limited(newest.with_for_update(), unit) == [5, 4, 3]
    assert selector.limited(select(Invoice.id), None) is None
    assert selector.limited([1, 2], None) is None
    with pytest.raises(JobError, match=r"OCQ-665.*selects 2 columns"):
        selector.limited(select(Invoice.id, Invoice.name).limit(1), None)


def test_an_id_selected_with_several_locked_rows_counts_once(selector: SqlSelector, filled: Database) -> None:
    joined = select(Invoice.id).join(ITEMS, true()).with_for_update()
    found: list[JobId] = []
    while ids := selector.ids(joined, JobPage(2, found[-1] if found else None), None):
        found += ids
        assert len(ids) == 2 or found[-1] == 5
    assert found == [1, 2, 3, 4, 5]


class Numbered(TypeDecorator[str]):
    """Texts such as ``INV-7`` that are stored as numbers."""

    impl = Integer
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> int:
        return int(str(value).removeprefix("INV-"))

    def process_result_value(self, value: int | None, dialect: Any) -> str | None:
        return None if value is None else f"INV-{value}"


def test_ids_of_a_type_that_turns_numbers_into_texts_are_found_again(selector: SqlSelector, filled: Database) -> None:
    key = select(type_coerce(Invoice.id, Numbered))
    assert selector.ids(key, JobPage(2, "INV-2"), None) == ["INV-3", "INV-4"]
    assert selector.ids(key, JobPage(4, None, ("INV-2", "4", "none")), None) == ["INV-2", "INV-4"]


@NOT_SENT
@pytest.mark.parametrize("value", [None, [1, 2], "SELECT 1", range(3), ITEMS, select(Invoice.id).scalar_subquery(), 7])
def test_a_value_that_is_not_a_statement_is_left_to_other_inputs(selector: SqlSelector, value: object) -> None:
    assert selector.ids(value, JobPage(10), None) is None


def test_the_result_of_a_statement_is_left_to_other_inputs(selector: SqlSelector, filled: Database) -> None:
    with filled.reading() as connection:
        assert selector.ids(connection.execute(select(Invoice.id)), JobPage(10), None) is None
        assert selector.ids(connection.scalars(select(Invoice.id)), JobPage(10), None) is None


REFUSED: dict[str, tuple[Any, str]] = {
    "text": (text("SELECT id FROM invoices"), r"returned a text\(\)"),
    "two": (select(Invoice.id, Invoice.name), "selects 2 columns"),
    "entity": (select(Invoice), "selects 2 columns"),
    "table": (select(ITEMS), "selects 6 columns"),
    "no column": (select(text("id")).select_from(text("invoices")), "selects 0 columns"),
    "query": (Session().query(Invoice.id), "returned a Query of a session"),
    "update": (update(Invoice).values(name="x").returning(Invoice.id), "the type Update"),
    "delete": (delete(Invoice), "the type Delete"),
    "insert": (insert(Invoice), "the type Insert"),
    "function": (func.max(Invoice.id), "the type max"),
    "boolean": (select(true()), "Boolean"),
    "time": (select(cast(Invoice.name, DateTime)), "DateTime"),
    "decimal": (select(cast(Invoice.id, Numeric(10, 2))), "Numeric"),
    "float": (select(cast(Invoice.id, Float)), "Float"),
    "bytes": (select(cast(Invoice.name, LargeBinary)), "LargeBinary"),
    "enum": (select(cast(Invoice.name, Enum("a", name="e", native_enum=False))), "Enum"),
    "flag": (select(cast(Invoice.id, Boolean)), "Boolean"),
}


@NOT_SENT
@pytest.mark.parametrize("name", REFUSED)
def test_a_statement_that_selects_no_ids_is_refused(selector: SqlSelector, filled: Database, name: str) -> None:
    statement, what = REFUSED[name]
    with pytest.raises(JobError, match=rf"OCQ-665.*{what}"):
        selector.ids(statement, JobPage(10), None)
    with DatabaseTransactions(filled).begin() as unit, pytest.raises(JobError, match="OCQ-665"):
        selector.ids(statement, JobPage(10, None, (1, 2)), unit)


def test_values_that_are_not_ids_are_refused(selector: SqlSelector) -> None:
    untyped = select(literal_column("1.5")).select_from(table("invoices"))
    with pytest.raises(JobError, match=r"OCQ-665.*of the type (float|Decimal)"):
        selector.ids(untyped, JobPage(10), None)


def test_a_run_that_began_with_other_ids_is_not_continued(selector: SqlSelector) -> None:
    with pytest.raises(JobError, match=r"OCQ-665.*'a text' was the last one"):
        selector.ids(select(Invoice.id), JobPage(10, "a text"), None)
    assert selector.ids(select(Invoice.id), JobPage(10, "3"), None) == [4, 5]


def test_an_error_of_the_statement_is_raised_unchanged(selector: SqlSelector, filled: Database) -> None:
    missing = select(column("id")).select_from(table("no_such_table"))
    with pytest.raises(DBAPIError, match="no_such_table"):
        selector.ids(missing, JobPage(10), None)
    assert selector.ids(select(Invoice.id), JobPage(1), None) == [1]


def test_without_a_database_a_select_is_refused() -> None:
    assert SqlSelector(None).ids([1], JobPage(10), None) is None
    with pytest.raises(JobError, match=r"OCQ-665.*there is no database"):
        SqlSelector(None).ids(select(Invoice.id), JobPage(10), None)


def test_a_statement_sees_what_its_transaction_has_written(selector: SqlSelector, filled: Database) -> None:
    with DatabaseTransactions(filled).begin() as unit:
        unit.connection.execute(insert(Invoice).values(id=6, name="new"))
        assert pages(selector, select(Invoice.id), 2, unit) == [1, 2, 3, 4, 5, 6]
        if filled.dialect.remote:
            assert pages(selector, select(Invoice.id), 2) == [1, 2, 3, 4, 5]


def test_a_page_takes_one_statement(selector: SqlSelector, noted_statements: Noted) -> None:
    sent: list[str] = []
    with noted_statements(lambda statement, _values: sent.append(statement)):
        assert selector.ids(select(Invoice.id), JobPage(2, 1), None) == [2, 3]
        assert selector.ids(select(Invoice.id), JobPage(2, None, ("1",)), None) == [1]
    assert len([one for one in sent if not one.startswith(("BEGIN", "START", "PRAGMA"))]) == 2


PLANS = {"sqlite": "EXPLAIN QUERY PLAN ", "postgresql": "EXPLAIN ", "mariadb": "EXPLAIN "}
READ_BY_KEY = {"sqlite": "SEARCH invoices USING INTEGER PRIMARY KEY", "postgresql": "Index Cond", "mariadb": "range"}


@pytest.mark.few(kind=("postgresql", "mariadb"))  # as above
@pytest.mark.parametrize(
    "statement",
    [
        select(Invoice.id).where(Invoice.name != "no"),
        select(Invoice.id).order_by(Invoice.name),
        select(Invoice.id).with_for_update(),
    ],
)
def test_a_page_is_found_by_its_key(
    selector: SqlSelector, filled: Database, kind: str, noted_statements: Noted, statement: Select[Any]
) -> None:
    with filled.writing() as connection:
        connection.execute(insert(Invoice), [{"id": n, "name": f"n{n}"} for n in range(6, 3_000)])
        connection.execute(text("ANALYZE" if kind != "mariadb" else "ANALYZE TABLE invoices"))
    sent: list[tuple[str, Any]] = []
    with noted_statements(lambda statement, values: sent.append((statement, values))):
        assert selector.ids(statement, JobPage(3, 2_000), None) == [2_001, 2_002, 2_003]
    with filled.reading() as connection:
        rows = connection.exec_driver_sql(f"{PLANS[kind]}{sent[-1][0]}", sent[-1][1]).all()
    plan = " ".join(map(str, rows))
    assert READ_BY_KEY[kind] in plan
    assert not any(word in plan for word in ("DERIVED", "Sort", "TEMP B-TREE", "filesort", "SCAN", "Seq Scan")), plan


@SERVERS
def test_only_rows_of_the_page_are_locked(selector: SqlSelector, filled: Database) -> None:
    locking = select(Invoice.id).with_for_update(skip_locked=True)
    transactions = DatabaseTransactions(filled)
    with transactions.begin() as one, transactions.begin() as other:
        assert selector.ids(locking, JobPage(2), one) == [1, 2]
        assert selector.ids(locking, JobPage(2), other) == [3, 4]


def test_a_decimal_id_from_a_database_is_refused(selector: SqlSelector) -> None:
    with pytest.raises(JobError):
        selector._id(Decimal(1))

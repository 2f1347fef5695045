"""Databases to run the contracts on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, Text, event, insert, select, text
from support.cutting import Cutter

from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.adapters.sql.connections import Statement
from opencqrs_py.adapters.sql.transactions import Unit
from opencqrs_py.processing.ports import UnitOfWork

KINDS = [
    pytest.param("sqlite", id="sqlite"),
    pytest.param("postgresql", id="postgresql", marks=pytest.mark.postgresql),
    pytest.param("mariadb", id="mariadb", marks=pytest.mark.mariadb),
]

_METADATA = MetaData()
_WRITTEN = Table(
    "written",
    _METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("value", Text().with_variant(String(200), "mysql", "mariadb"), nullable=False, unique=True),
)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture(scope="module")
def long_log(request: pytest.FixtureRequest, fresh_url: Callable[[str], str]) -> Callable[[str], str]:
    """The URL of a log of each kind of database, which the file's ``fill`` has written once and tests only read."""

    @cache
    def filled(kind: str) -> str:
        url = fresh_url(kind)
        database = Database(url)
        request.module.fill(SqlEventStore(database), database)
        database.close()
        return url

    return filled


_PLACES = {  # that tests write to
    "postgresql": "SELECT 'SCHEMA ' || quote_ident(nspname) || ' CASCADE' FROM pg_namespace "
    "WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'",
    "mariadb": "SELECT 'DATABASE test'",
}


@pytest.fixture
def url(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> str:
    """The URL of an empty database, or of the long log if the test requests it."""
    if "long_log" in request.fixturenames:
        log: str = request.getfixturevalue("long_log")(kind)
        return log
    if kind == "sqlite":
        return f"sqlite:///{tmp_path / 'test.db'}"
    found: str = request.getfixturevalue(f"{kind}_server")
    database = Database(found)
    with database.reading() as connection:
        places = connection.scalars(text(_PLACES[kind])).all()
        for place in places:
            connection.execute(text(f"DROP {place}"))
        connection.execute(text("CREATE SCHEMA public" if kind == "postgresql" else "CREATE DATABASE test"))
    database.close()
    return found


@pytest.fixture
def open_database(url: str) -> Iterator[Callable[[], Database]]:
    """Opens the database again, as another process does."""
    opened: list[Database] = []

    def open_() -> Database:
        opened.append(Database(url))
        return opened[-1]

    yield open_
    for database in opened:
        database.close()


@pytest.fixture
def database(open_database: Callable[[], Database]) -> Database:
    return open_database()


@pytest.fixture
def cutter(open_database: Callable[[], Database]) -> Iterator[Cutter]:
    """Ends connections to the database's server."""
    made = Cutter(open_database())
    yield made
    made.close()


Note = Callable[[str, Any], None]


class NotedStatements:
    """Tells of each statement that is sent to a database, by SQLAlchemy or on the driver's own cursor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    @contextmanager
    def __call__(self, note: Note) -> Iterator[None]:
        def hear(_connection: Any, _cursor: Any, statement: str, values: Any, *_rest: Any) -> None:
            note(statement, values)

        event.listen(Engine, "before_cursor_execute", hear)
        with self._monkeypatch.context() as patch:
            patch.setattr(Database, "fetch", _noting(Database.fetch, note))
            for name in ("begin", "complete"):  # of a unit: each takes a statement of ours, and its values
                patch.setattr(Unit, name, _noting_own(getattr(Unit, name), note))
            yield
        event.remove(Engine, "before_cursor_execute", hear)


def _noting(send: Callable[..., Any], note: Note) -> Callable[..., Any]:
    def noting(database: Database, statement: str, values: tuple[Any, ...] = ()) -> Any:
        note(statement, values)
        return send(database, statement, values)

    return noting


def _noting_own(send: Callable[..., Any], note: Note) -> Callable[..., Any]:
    def noting(unit: Unit, statement: Statement, *rest: Any) -> Any:
        note(statement.text, rest[-1])
        return send(unit, statement, *rest)

    return noting


@pytest.fixture
def noted_statements(monkeypatch: pytest.MonkeyPatch) -> NotedStatements:
    return NotedStatements(monkeypatch)


class WrittenTable:
    """A read model in the same database as the progress. No value can be written twice."""

    def __init__(self, database: Database) -> None:
        self._database = database
        with database.writing() as connection:
            _METADATA.create_all(connection)

    def write(self, unit: UnitOfWork, value: str) -> None:
        unit.connection.execute(insert(_WRITTEN).values(value=value))

    def values(self) -> list[str]:
        with self._database.reading() as connection:
            return list(connection.execute(select(_WRITTEN.c.value).order_by(_WRITTEN.c.number)).scalars())


@pytest.fixture
def written(database: Database) -> WrittenTable:
    return WrittenTable(database)

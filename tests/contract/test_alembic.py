"""Alembic's autogenerate beside our tables: with the filter a migration names the user's tables and nothing of ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.util import CommandError
from sqlalchemy import Column, Index, Integer, MetaData, String, Table, text

from opencqrs_py.adapters.sql import Database, SqlEventStore, SqlProgressTracker
from opencqrs_py.adapters.sql.tables import EVENTS
from opencqrs_py.alembic import PREFIX, include_name, include_object
from opencqrs_py.model.event import Event

ENVIRONMENT = """
from alembic import context
from sqlalchemy import Column, Integer, MetaData, NullPool, Table, create_engine

metadata = MetaData()
Table("lent", metadata, Column("id", Integer, primary_key=True))
{filter}
url = context.config.get_main_option("sqlalchemy.url")
with create_engine(url, poolclass=NullPool).connect() as connection:
    context.configure(connection=connection, target_metadata=metadata{argument})
    with context.begin_transaction():
        context.run_migrations()
    connection.commit()
"""
TEMPLATE = """
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
from alembic import op
import sqlalchemy as sa
def upgrade():
    ${upgrades if upgrades else "pass"}
def downgrade():
    ${downgrades if downgrades else "pass"}
"""
FILTERS = {
    "include_name": {"include_name": include_name},
    "include_object": {"include_object": include_object},
    "include_name in all schemas": {"include_name": include_name, "include_schemas": True},
    "include_object in all schemas": {"include_object": include_object, "include_schemas": True},
}


@pytest.fixture
def store(database: Database) -> SqlEventStore:
    """A database with all of our tables, a user's table that models name, and one that they do not."""
    store = SqlEventStore(database)
    store.append([Event(0, "1", "s", "/a", "t", None, "application/json", "{}", None)])
    SqlProgressTracker(database).statuses()
    models().create_all(database.engine)
    with database.writing() as connection:
        connection.execute(text("CREATE TABLE left_over (id INTEGER PRIMARY KEY)"))
    return store


def models() -> MetaData:
    metadata = MetaData()
    reader = Column("reader", String(50))
    Table("lent", metadata, Column("id", Integer, primary_key=True), reader, Index("lent_reader", reader))
    return metadata


def differences(database: Database, metadata: MetaData, **options: Any) -> set[str]:
    """Return the names of the tables that a migration would change."""
    found = set()
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, **options})
        for difference in compare_metadata(context, metadata):
            _, subject, *_ = difference if isinstance(difference, tuple) else difference[0]
            table = getattr(subject, "table", subject)
            if _is_of(database, getattr(table, "schema", None)):
                found.add(str(getattr(table, "name", table)))
    return found


def _is_of(database: Database, schema: str | None) -> bool:
    """Return whether a schema is of this test; on MariaDB, the schemas are the databases of the server."""
    if database.dialect.name == "mariadb":
        return schema in (None, database.engine.url.database)
    return schema != "information_schema"


@pytest.mark.release(kind="mariadb")  # as on PostgreSQL
def test_without_the_filter_alembic_would_drop_the_event_log(database: Database, store: SqlEventStore) -> None:
    """If this fails, the filter is not needed any more."""
    assert {EVENTS.name, "left_over"} <= differences(database, models())


@pytest.mark.release(kind="mariadb")  # as on PostgreSQL
@pytest.mark.parametrize("options", FILTERS.values(), ids=FILTERS)
@pytest.mark.few(kind="postgresql")
@pytest.mark.release(kind="mariadb", options=FILTERS["include_object in all schemas"])
def test_with_the_filter_only_the_users_tables_are_compared(
    database: Database, store: SqlEventStore, options: dict[str, Any]
) -> None:
    assert differences(database, models(), **options) == {"left_over"}
    added = models()
    Table("new", added, Column("id", Integer, primary_key=True))
    assert differences(database, added, **options) == {"left_over", "new"}


@pytest.mark.parametrize("options", FILTERS.values(), ids=FILTERS)
@pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])
@pytest.mark.few
def test_our_tables_in_another_schema_are_left_alone_too(
    kind: str, database: Database, store: SqlEventStore, options: dict[str, Any]
) -> None:
    with database.writing() as connection:
        connection.execute(text("CREATE SCHEMA log"))
        connection.execute(text(f"CREATE TABLE log.{EVENTS.name} (position BIGINT PRIMARY KEY)"))
    found = differences(database, models(), **options)
    with database.writing() as connection:
        connection.execute(text("DROP SCHEMA log CASCADE"))
    assert found == {"left_over"}


@pytest.fixture
def project(url: str, tmp_path: Path) -> Callable[[str], Config]:
    """Makes an Alembic project with a filter, or without one."""

    def make(name: str) -> Config:
        folder = tmp_path / "migrations"
        (folder / "versions").mkdir(parents=True)
        imported = f"from opencqrs_py.alembic import {name}" if name else ""
        argument = f", {name}={name}" if name else ""
        (folder / "env.py").write_text(ENVIRONMENT.format(filter=imported, argument=argument))
        (folder / "script.py.mako").write_text(TEMPLATE)
        config = Config()
        config.set_main_option("script_location", str(folder))
        url_of_driver = Database(url).engine.url.render_as_string(hide_password=False)
        config.set_main_option("sqlalchemy.url", url_of_driver.replace("%", "%%"))
        return config

    return make


@pytest.mark.parametrize("name", ["include_name", "include_object"])
def test_revision_autogenerate_upgrade_and_check_leave_the_log_unchanged(
    project: Callable[[str], Config], database: Database, store: SqlEventStore, tmp_path: Path, name: str
) -> None:
    config = project(name)
    command.revision(config, "first", autogenerate=True)
    (written,) = (tmp_path / "migrations" / "versions").glob("*.py")
    assert PREFIX not in written.read_text()
    assert "op.drop_table('left_over')" in written.read_text()
    command.upgrade(config, "head")
    command.check(config)
    assert (store.count(), store.head()) == (1, 1)
    assert SqlEventStore(database).append([Event(0, "2", "s", "/a", "t", None, "application/json", "{}", None)]).added


def test_without_the_filter_a_check_would_drop_the_log(project: Callable[[str], Config], store: SqlEventStore) -> None:
    config = project("")
    command.stamp(config, "head")
    with pytest.raises(CommandError, match=EVENTS.name):
        command.check(config)

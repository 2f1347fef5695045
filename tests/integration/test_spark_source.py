"""The stores that ``format("opencqrs")`` opens, without Spark."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from sqlalchemy import inspect

from opencqrs_py.adapters.sql import Database, MappedEventSource, SqlEventStore
from opencqrs_py.assembly.spark_source import EventStoreSource
from opencqrs_py.errors import EngineError, EventStoreError
from opencqrs_py.model.event import Event
from opencqrs_py.model.mapping import TableMapping
from opencqrs_py.model.selection import Selection

pytestmark = pytest.mark.usefixtures("databases_closed")
EVENT = Event(0, "1", "urn:s", "/x", "t", None, "application/json", None, None)


@pytest.fixture
def database(tmp_path):
    SqlEventStore(Database(f"sqlite:///{tmp_path}/a b.db")).append([EVENT])
    return tmp_path / "a b.db"


def test_a_database_is_opened_once_per_process(database):
    source = EventStoreSource.open_source(f"sqlite:///{database}")
    assert source.head() == 1
    assert EventStoreSource.open_source(f"sqlite:///{database}") is source


def test_a_table_of_another_system_can_be_opened_along_with_the_log_of_the_same_database(database):
    mapping = TableMapping("opencqrs_events", "position", "id", "type", "payload", said_in="mapping")
    table = EventStoreSource.open_source(f"sqlite:///{database}", mapping)
    assert isinstance(table, MappedEventSource)
    assert table.head() == 1
    assert EventStoreSource.open_source(f"sqlite:///{database}", replace(mapping)) is table
    assert EventStoreSource.open_source(f"sqlite:///{database}") is not table


def test_a_relative_path_is_resolved_from_the_working_folder_of_the_program(database, monkeypatch):
    monkeypatch.chdir(database.parent)
    assert EventStoreSource.open_source(f"sqlite:///{database.name}").head() == 1


def test_files_are_opened_by_their_url(tmp_path):
    lines = tmp_path / "events.ndjson"
    lines.write_text(json.dumps({"id": "1", "source": "urn:s", "type": "t"}) + "\n")
    assert EventStoreSource.open_source(lines.as_uri()).head() == 1


def test_environment_variables_are_substituted_and_escaped(database, monkeypatch):
    monkeypatch.setenv("LOG_NAME", database.stem)
    with pytest.raises(EngineError, match=r"names the file .*a%20b\.db, which does not exist"):
        EventStoreSource.open_source(f"sqlite:///{database.parent}/${{LOG_NAME}}.db")
    monkeypatch.setenv("LOG_PASSWORD", "p@ss/word:1")
    with pytest.raises(EventStoreError) as caught:
        EventStoreSource.open_source("oracle://ada:${LOG_PASSWORD}@host/log")
    assert caught.value.where == "oracle://ada:***@host/log"


def test_an_unset_variable_is_named():
    with pytest.raises(EngineError) as caught:
        EventStoreSource.open_source("postgresql://ada:${NO_SUCH_PASSWORD}@host/log")
    assert caught.value.what == ("the option 'url' needs the environment variable NO_SUCH_PASSWORD, which is not set")
    assert "spark.executorEnv.NO_SUCH_PASSWORD" in caught.value.fix


@pytest.mark.parametrize("form", ["sqlite:///{}", "sqlite+pysqlite:///{}", "sqlite:///{}?timeout=5"])
def test_a_missing_file_is_refused_and_not_created(tmp_path, form):
    missing = tmp_path / "missing.db"
    with pytest.raises(EngineError, match=r"missing\.db, which does not exist"):
        EventStoreSource.open_source(form.format(missing))
    assert not missing.exists()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(url):
    with pytest.raises(EngineError, match="an in-memory database, which only the process that created it can see"):
        EventStoreSource.open_source(url)


@pytest.mark.parametrize(
    "kind",
    [
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.postgresql),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ],
)
@pytest.mark.parametrize("ask", [lambda source: source.head(), lambda source: source.read(0, 10, Selection())])
def test_a_database_without_a_log_is_refused_and_not_changed(fresh_url, tmp_path, kind, ask):
    url = f"sqlite:///{tmp_path}/shop.db" if kind == "sqlite" else fresh_url(kind)
    database = Database(url)
    with database.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id INTEGER)")
    source = EventStoreSource.open_source(url)
    with pytest.raises(EventStoreError, match="there is no table opencqrs_events in the database") as caught:
        ask(source)
    assert caught.value.code == "OCQ-327"
    with database.reading() as connection:
        assert inspect(connection).get_table_names() == ["orders"]
    SqlEventStore(database).append([EVENT])
    assert source.head() == 1


def test_a_log_copied_without_our_table_of_versions_is_read(database):
    copied = Database(f"sqlite:///{database}")
    with copied.writing() as connection:
        connection.exec_driver_sql("DROP TABLE opencqrs_schema")
    copied.close()
    assert EventStoreSource.open_source(f"sqlite:///{database}").head() == 1


def test_the_token_of_eventsourcingdb_comes_from_the_environment(monkeypatch):
    monkeypatch.setenv("OPENCQRS__EVENT_STORE__API_TOKEN", "secret")
    asked = []
    monkeypatch.setattr(
        "opencqrs_py.assembly.spark_source.open_event_store", lambda url, token, **_: asked.append((url, token))
    )
    EventStoreSource.open_source("eventsourcingdb://host:3000")
    assert asked == [("eventsourcingdb://host:3000", "secret")]

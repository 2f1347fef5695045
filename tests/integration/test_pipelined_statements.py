"""Handlers with a connection of psycopg, whose statements wait for no answer: all is as if they waited for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import pytest
from sqlalchemy import text

from opencqrs_py import Application
from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.adapters.sql.dialects.psycopg_pipeline import PsycopgPipeline
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.progress import ProcessorState
from opencqrs_py.processing.pipelining import Pipelining

EVENTS = 40
LINE = '{{"id": "{0}", "source": "s", "type": "t", "subject": "/x", "data": {{"number": {0}, "key": {1}}}}}'

MODULE = """
import psycopg
from dataclasses import dataclass
from opencqrs_py import event_handling, event_type, on_start
from psycopg.errors import UniqueViolation
from sqlalchemy import Connection, text

@event_type("t")
@dataclass
class Seen:
    number: int
    key: int

@on_start("group")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS log (number integer, note text)"))
    connection.execute(text(
        "CREATE TABLE IF NOT EXISTS keys (key integer PRIMARY KEY, n integer NOT NULL CHECK (n < 1000))"
    ))
    connection.execute(text(
        "CREATE TABLE IF NOT EXISTS late (key integer UNIQUE DEFERRABLE INITIALLY DEFERRED)"
    ))

@event_handling("group")
def handle(event: Seen, connection: psycopg.Connection) -> None:
    note = ""
{body}
    connection.execute("INSERT INTO log VALUES (%s, %s)", (event.number, str(note)))
"""
SETTINGS = {
    "event-handling.standard.processing.engine": "thread",
    "event-handling.standard.retry.policy": "fixed",
    "event-handling.standard.retry.initial-interval": "1ms",
    "event-handling.standard.retry.max-attempts": 2,
}
SPARK = {"spark.master": "local[2]", "event-handling.standard.processing.engine": "spark"}

UPDATE = "UPDATE keys SET n = n + 1 WHERE key = %s"
INSERT = "INSERT INTO keys VALUES (%s, 1)"
COUNT = "SELECT n FROM keys WHERE key = %s"

RIGHT = {
    "rowcount decides": f"""
if connection.execute("{UPDATE}", (event.key,)).rowcount == 0:
    connection.execute("{INSERT}", (event.key,))""",
    "the row count of a cursor of one's own": f"""
with connection.cursor() as cursor:
    cursor.execute("{UPDATE}", (event.key,))
    if not cursor.rowcount:
        cursor.execute("{INSERT}", (event.key,))""",
    "the row count of a cursor that was closed": f"""
with connection.cursor() as cursor:
    cursor.execute("{UPDATE}", (event.key,))
if cursor.rowcount == 0:
    connection.execute("{INSERT}", (event.key,))""",
    "the row count of a cursor of another class": f"""
cursor = psycopg.ClientCursor(connection)
cursor.execute("{UPDATE}", (event.key,))
if cursor.rowcount == 0:
    cursor.execute("{INSERT}", (event.key,))""",
    "the row count of a psycopg.Cursor made by hand": f"""
cursor = psycopg.Cursor(connection).execute("{UPDATE}", (event.key,))
if cursor.rowcount == 0:
    connection.execute("{INSERT}", (event.key,))""",
    "the row count of the second statement of a cursor": f"""
cursor = connection.cursor()
cursor.execute("UPDATE keys SET n = n WHERE key = -1")
cursor.execute("{UPDATE}", (event.key,))
if cursor.rowcount == 0:
    cursor.execute("{INSERT}", (event.key,))""",
    "the message of the server decides": f"""
if connection.execute("{UPDATE}", (event.key,)).statusmessage == "UPDATE 0":
    connection.execute("{INSERT}", (event.key,))""",
    "a row that is read decides": f"""
row = connection.execute("{COUNT}", (event.key,)).fetchone()
note = row
connection.execute("{INSERT}" if row is None else "{UPDATE}", (event.key,))""",
    "what is returned decides": f"""
found = connection.execute("{UPDATE} RETURNING n", (event.key,)).fetchall()
note = found
if not found:
    connection.execute("{INSERT}", (event.key,))""",
    "rows are iterated": """
note = [row for row in connection.execute("SELECT number FROM log ORDER BY number")][-1:]""",
    "rows are fetched one by one": """
cursor = connection.execute("SELECT count(*), max(number) FROM log")
note = [column.name for column in cursor.description], cursor.fetchmany(1), cursor.rownumber, cursor.fetchone()""",
    "results of several statements": """
cursor = connection.execute("SELECT 1; SELECT 2")
note = [each.fetchall() for each in cursor.results()]""",
    "a savepoint for a statement that may fail": f"""
try:
    with connection.transaction():
        connection.execute("{INSERT}", (event.key,))
except UniqueViolation:
    connection.execute("{UPDATE}", (event.key,))""",
    "a savepoint as SQL": f"""
connection.execute("SAVEPOINT mine")
try:
    connection.execute("{INSERT}", (event.key,))
except UniqueViolation:
    connection.execute("ROLLBACK TO SAVEPOINT mine")
    connection.execute("{UPDATE}", (event.key,))
connection.execute("RELEASE SAVEPOINT mine")""",
    "a statement that fails once": """
connection.execute("SELECT 1")
if event.number == 17:
    with __import__("contextlib").suppress(psycopg.Error), connection.transaction():
        connection.execute("SELECT 1 / 0")
        note = "never\"""",
    "many rows at once": """
connection.cursor().executemany("INSERT INTO keys VALUES (%s, 1)", [(event.number * 10 + n,) for n in range(3)])""",
    "rows are copied": """
connection.execute("SELECT 1")
with connection.cursor() as cursor, cursor.copy("COPY keys FROM STDIN") as copy:
    copy.write_row((event.number, 1))""",
    "rows are streamed": """
connection.execute("SELECT 1")
note = list(connection.cursor().stream("SELECT generate_series(1, 3)"))""",
    "a cursor on the server": """
connection.execute("SELECT 1")
with connection.cursor("mine") as cursor:
    cursor.execute("SELECT generate_series(1, 3)")
    note = cursor.fetchall()""",
    "a pipeline of one's own": """
connection.execute("SELECT 1")
with connection.pipeline():
    cursor = connection.execute("SELECT 7")
note = cursor.fetchone()""",
    "many rows at once after a statement": """
connection.execute("SELECT 1")
connection.cursor().executemany("INSERT INTO keys VALUES (%s, 1)", [(event.number * 10 + n,) for n in range(3)])""",
    "a row factory that reads the description": """
def named(cursor):
    names = [column.name for column in cursor.description or ()]
    return lambda values: dict(zip(names, values))
cursors = [connection.cursor(row_factory=named).execute("SELECT repeat('x', 9000) AS text") for _ in range(8)]
if event.number == 39:
    note = [{name: len(value) for name, value in cursor.fetchone().items()} for cursor in cursors]""",
    "a setting of the transaction": """
connection.execute("SET LOCAL work_mem = '1MB'")
note = connection.execute("SHOW work_mem").fetchone()""",
    "a statement in a thread": """
from threading import Thread
connection.execute("INSERT INTO keys VALUES (%s, 1)", (event.number,))
found = []
thread = Thread(target=lambda: found.append(connection.execute("SELECT count(*) FROM keys").fetchone()))
thread.start()
thread.join()
note = found""",
    "the state of the transaction": """
connection.execute("SELECT 1").fetchone()
note = connection.info.transaction_status.name""",
}
HANDLED_AGAIN = {
    "a savepoint for a statement that may fail",
    "a savepoint as SQL",
    "a statement that fails once",
}
FAILS = {
    "a statement fails": f"""connection.execute("{INSERT}", (event.key,))""",
    "a statement fails for a value": """
connection.execute("INSERT INTO keys VALUES (%s, %s)", (event.number, 990 + event.number))""",
    "the error is caught and nothing is rolled back": f"""
try:
    connection.execute("{INSERT}", (event.key,))
except psycopg.Error:
    pass""",
    "errors of others are caught": f"""
if event.number == 16:
    connection.execute("SELECT 1 / 0")
try:
    with connection.transaction():
        connection.execute("{INSERT}", (event.key,))
except psycopg.Error:
    connection.execute("{UPDATE}", (event.key,))""",
    "the handler raises": """
if event.number in (3, 17):
    raise ValueError(event.number)""",
    "the handler raises what hides an error": """
if event.number == 16:
    connection.execute("SELECT 1 / 0")
if event.number == 18:
    raise ValueError(event.number)""",
    "too few values": """
if event.number == 5:
    connection.execute("SELECT %s, %s", (1,))""",
    "no SQL": """
if event.number == 5:
    connection.execute("SELECT 1 FROM WHERE")""",
    "checked at the commit": """connection.execute("INSERT INTO late VALUES (%s)", (event.key,))""",
    "the transaction is committed": """
if event.number == 17:
    connection.execute("COMMIT")""",
    "the transaction is rolled back": """
if event.number == 17:
    connection.execute("ROLLBACK")""",
    "the transaction is committed by a method": """
if event.number == 17:
    connection.commit()""",
}

USUAL = {
    "rowcount decides",
    "a row that is read decides",
    "a savepoint for a statement that may fail",
    "rows are copied",
    "a row factory that reads the description",
    "a statement in a thread",
    "the error is caught and nothing is rolled back",
    "the handler raises what hides an error",
    "the transaction is committed",
}
"""What is tested without ``--all``."""


class Ran(NamedTuple):
    tables: dict[str, list[Any]]
    skipped: list[tuple[int, int, str]]
    ends: list[tuple[int, bool]]
    """Where each partition stands, and whether it has failed; a slow machine may have lost its lease by then."""


def ran(url: str, module: ModuleType, folder: Path, more: Mapping[str, object] = MappingProxyType({})) -> Ran:
    with closing(Database(url)) as database:
        with database.writing() as connection:
            own = database.fetch("SELECT tablename FROM pg_tables WHERE left(tablename, 9) = 'opencqrs_'")
            for table in ("log", "keys", "late", *(name for (name,) in own)):
                connection.execute(text(f"DROP TABLE IF EXISTS {table}"))
        SqlEventStore(database).append([parse_event(LINE.format(n, n % 25)) for n in range(EVENTS)])
        tables = {
            "log": "SELECT number, note FROM log ORDER BY number, note",
            "keys": "SELECT key, n FROM keys ORDER BY key",
            "late": "SELECT key FROM late ORDER BY key",
        }
        with Application({"event-store.url": url, **SETTINGS, **more}, [module], folder) as application:
            result = application.run(until_caught_up=True)
            return Ran(
                {name: [tuple(row) for row in database.fetch(query)] for name, query in tables.items()},
                [(each.position, each.attempts, each.reason) for each in application.skipped()],
                [(each.position, each.state is ProcessorState.FAILED) for each in result.partitions],
            )


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[PsycopgPipeline]:
    """The pipelines that were opened."""
    opened: list[PsycopgPipeline] = []
    initialise = PsycopgPipeline.__init__

    def remembered(pipeline: PsycopgPipeline, connection: Any) -> None:
        initialise(pipeline, connection)
        opened.append(pipeline)

    monkeypatch.setattr(PsycopgPipeline, "__init__", remembered)
    return opened


def both(
    body: str,
    make_module: Callable[[str], ModuleType],
    url: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[Ran, Ran]:
    """Handle the same events with and without a pipeline."""
    written = "\n".join(f"    {line}" for line in body.strip().splitlines())
    module = make_module(MODULE.replace("{body}", written))
    with_pipeline = ran(url, module, folder)
    with monkeypatch.context() as patch:
        patch.setattr(Pipelining, "begins", lambda _self: False)
        return with_pipeline, ran(url, module, folder)


@pytest.fixture
def again(monkeypatch: pytest.MonkeyPatch) -> list[Pipelining]:
    """Those of the chunks that were handled again without a pipeline."""
    found: list[Pipelining] = []
    failed = Pipelining.failed

    def noted(pipelining: Pipelining) -> None:
        found.append(pipelining)
        failed(pipelining)

    monkeypatch.setattr(Pipelining, "failed", noted)
    return found


@pytest.mark.release(what=tuple(what for what in RIGHT if what not in USUAL))
@pytest.mark.postgresql
@pytest.mark.parametrize("what", RIGHT)
def test_allowed_handlers_have_the_same_result_with_and_without_a_pipeline(
    what: str, make_module, postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent, again
) -> None:
    with_pipeline, without = both(RIGHT[what], make_module, postgresql_url, tmp_path, monkeypatch)
    assert with_pipeline == without
    assert [number for number, _ in without.tables["log"]] == list(range(EVENTS))
    assert sum(one.statements for one in sent) > 0
    assert bool(again) == (what in HANDLED_AGAIN)


@pytest.mark.release(body=tuple(body for what, body in FAILS.items() if what not in USUAL))
@pytest.mark.postgresql
@pytest.mark.parametrize("body", FAILS.values(), ids=FAILS)
def test_failures_have_the_same_event_attempts_and_reason_with_and_without_a_pipeline(
    body: str, make_module, postgresql_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sent
) -> None:
    with_pipeline, without = both(body, make_module, postgresql_url, tmp_path, monkeypatch)
    assert with_pipeline == without
    assert without.skipped or without.ends[0][1]
    assert sum(one.statements for one in sent) > 0


@pytest.mark.postgresql
@pytest.mark.parametrize(
    "engine",
    [pytest.param({}, id="thread"), pytest.param(SPARK, id="spark", marks=[pytest.mark.spark, pytest.mark.slow])],
)
def test_both_engines_pipeline_statements(
    engine: dict[str, str], make_module, postgresql_url: str, tmp_path: Path
) -> None:
    body = "    note = type(connection.cursor()).__name__"
    found = ran(postgresql_url, make_module(MODULE.replace("{body}", body)), tmp_path, engine)
    assert found.tables["log"] == [(number, "PipelinedCursor") for number in range(EVENTS)]

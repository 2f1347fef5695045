"""All that handlers can be, in one project: run as a user runs it, on real databases, and once on Spark."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import text
from support.observers import Watching

from opencqrs_py import Application
from opencqrs_py.adapters.sql import Database
from opencqrs_py.model import Event, ProcessorState

THREAD = {"event-handling.standard.processing.engine": "thread"}
SPARK = {
    "spark.master": "local[2]",
    "spark.driver-handles": "never",
    "event-handling.standard.processing.engine": "spark",
}

MakeApplication = Callable[..., Application]


@pytest.fixture(
    params=[
        pytest.param("sqlite_url", id="sqlite"),
        pytest.param("postgresql_url", id="postgresql", marks=pytest.mark.postgresql),
    ]
)
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(request.param)
    return found


def rows(url: str, statement: str) -> list[tuple[Any, ...]]:
    database = Database(url)
    with database.reading() as connection:
        found = [tuple(row) for row in connection.execute(text(statement))]
    database.close()
    return found


@pytest.fixture
def application(tmp_path: Path) -> Iterator[Callable[..., Application]]:
    """Makes applications of a module on a database, and closes them."""
    made: list[Application] = []

    def make(url: str, module: ModuleType, settings: Mapping[str, object] = THREAD, **more: object) -> Application:
        made.append(Application({"event-store.url": url, **settings, **more}, [module], tmp_path))
        return made[-1]

    yield make
    for each in made:
        each.stop()


# Upcasters, lists, envelope, calls after the commit, interceptors and an object resolver, all at once

LIBRARY = """
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dependency_injector import containers, providers
from opencqrs_py import (
    AfterCommit, Event, Invocation, Metadata, Upcast, around_event, around_handler, event_handling, event_type,
    on_start, upcaster,
)
from sqlalchemy import Column, Connection, Integer, MetaData, Table, Text, insert

FOLDER = Path(__file__).parent
METADATA = MetaData()
LISTS, SINGLES = (
    Table(
        name,
        METADATA,
        Column("number", Integer, primary_key=True),
        Column("position", Integer),
        *(Column(each, Text) for each in ("kind", "reader", "actor", "due")),
    )
    for name in ("lists", "singles")
)
SURROUNDED = Table("surrounded", METADATA, Column("number", Integer, primary_key=True), Column("position", Integer))


@dataclass
class ReaderEvent:
    reader: str


@event_type("lent.v2")
@dataclass
class Lent(ReaderEvent):
    isbn: str
    due: str


@event_type("returned.v1")
@dataclass
class Returned(ReaderEvent):
    isbn: str


@upcaster("lent.v1")
def with_due_date(data: dict) -> Upcast:
    return Upcast("lent.v2", {**data, "due": "soon"})


@upcaster("handed-on.v1")
def split(data: dict) -> list[Upcast]:
    isbn = data["isbn"]
    lent = Upcast("lent.v1", {"isbn": isbn, "reader": data["to"]})
    return [Upcast("returned.v1", {"isbn": isbn, "reader": data["from"]}), lent]


@upcaster("draft.v1")
def drop(raw: Event) -> None:
    return None


def by_reader(event: ReaderEvent) -> str:
    return event.reader


class Sequences(containers.DeclarativeContainer):
    by_reader = providers.Object(by_reader)


@on_start("lists")
@on_start("singles")
def tables(connection: Connection) -> None:
    METADATA.create_all(connection)


def row(event: ReaderEvent, raw: Event, metadata: Metadata) -> dict:
    actor, due = metadata.get("actor", "-"), getattr(event, "due", "-")
    kind = type(event).__name__
    return {"position": raw.position, "kind": kind, "reader": event.reader, "actor": actor, "due": due}


def note(file: str, line: object) -> None:
    with (FOLDER / file).open("a") as stream:
        stream.write(f"{line}\\n")


@event_handling("lists")
def write_all(
    events: list[Lent | Returned],
    raws: list[Event],
    metadata: list[Metadata],
    connection: Connection,
    after_commit: AfterCommit,
) -> None:
    connection.execute(insert(LISTS), [row(*each) for each in zip(events, raws, metadata, strict=True)])
    after_commit(lambda: note("committed.txt", len(events)))


@event_handling("singles")
def write(event: ReaderEvent, raw: Event, metadata: Metadata, connection: Connection) -> None:
    connection.execute(insert(SINGLES), row(event, raw, metadata))


@around_event("singles")
def surround(raw: Event, connection: Connection) -> Iterator[None]:
    yield
    connection.execute(insert(SURROUNDED), {"position": raw.position})


@around_handler
def count(invocation: Invocation) -> Iterator[None]:
    yield
    note("invocations.txt", f"{invocation.context.group} {len(invocation.events)}")
"""

COLUMNS = "position, kind, reader, actor, due"
READERS = ("Ada", "Bob", "Cy", "Dan", "Eve")


def made_up_log(number: int) -> list[Event]:
    draw = random.Random(4711)

    def made(position: int) -> Event:
        kind = draw.choice(["lent.v1", "lent.v2", "returned.v1", "handed-on.v1", "draft.v1", "other.v1"])
        payload = {"isbn": str(position), "reader": draw.choice(READERS), "due": "later"}
        if kind == "handed-on.v1":
            payload = {"isbn": str(position), "from": draw.choice(READERS), "to": draw.choice(READERS)}
        data: Any = {"metadata": {"actor": f"actor {position}"}, "payload": payload}
        if kind in ("other.v1", "draft.v1"):
            data = "no envelope" if kind == "other.v1" else {"payload": {}}
        return Event(0, str(position), "s", f"/b/{position}", kind, None, "application/json", json.dumps(data), None)

    return [made(position) for position in range(1, number + 1)]


def plain_script(log: list[Event]) -> list[tuple[int, str, str, str, str]]:
    """The read model as anybody would compute it, without this package's rules."""
    found = []
    for position, event in enumerate(log, start=1):
        payload = event.data["payload"] if isinstance(event.data, dict) else {}
        actor = f"actor {position}"
        if event.type == "lent.v1":
            found.append((position, "Lent", payload["reader"], actor, "soon"))
        elif event.type == "lent.v2":
            found.append((position, "Lent", payload["reader"], actor, "later"))
        elif event.type == "returned.v1":
            found.append((position, "Returned", payload["reader"], actor, "-"))
        elif event.type == "handed-on.v1":
            found.append((position, "Returned", payload["from"], actor, "-"))
            found.append((position, "Lent", payload["to"], actor, "soon"))
    return found


RULES = {
    "events.format": "envelope",
    "event-handling.groups.lists.life-cycle.partitions": 3,
    "event-handling.standard.sequence.resolver-ref": "by_reader",
    "event-handling.groups.lists.processing.batch-size": 40,
}


@pytest.mark.release(url="sqlite_url", settings=SPARK)
@pytest.mark.release(url="postgresql_url", settings=THREAD)
@pytest.mark.parametrize(
    "settings", [pytest.param(THREAD, id="thread"), pytest.param(SPARK, id="spark", marks=pytest.mark.spark)]
)
def test_the_read_models_of_every_form_of_handler_are_those_of_a_plain_script(
    url: str,
    make_module: Callable[[str], ModuleType],
    application: MakeApplication,
    tmp_path: Path,
    settings: Mapping[str, object],
) -> None:
    module, log = make_module(LIBRARY), made_up_log(400)
    made = application(url, module, settings, **RULES)
    made.event_store.append(log)
    watching = Watching()
    assert not made.run(observer=watching, until_caught_up=True).failed
    assert (watching.notices, watching.missed) == ([], [])
    expected = plain_script(log)
    assert rows(url, f"SELECT {COLUMNS} FROM singles ORDER BY number") == expected
    listed = rows(url, f"SELECT {COLUMNS} FROM lists ORDER BY number")
    assert sorted(listed) == sorted(expected)
    for reader in READERS:
        assert [row for row in listed if row[2] == reader] == [row for row in expected if row[2] == reader]
    assert [s.lag for s in made.status()] == [0, 0]

    positions = list(dict.fromkeys(position for position, *_ in expected))
    assert rows(url, "SELECT position FROM surrounded ORDER BY number") == [(position,) for position in positions]
    folder = tmp_path / "code"
    committed = [int(line) for line in (folder / "committed.txt").read_text().split()]
    assert sum(committed) == len(expected)
    assert max(committed) > 1
    invocations = [line.split() for line in (folder / "invocations.txt").read_text().splitlines()]
    assert sorted(int(n) for group, n in invocations if group == "lists") == sorted(committed)
    assert [n for group, n in invocations if group == "singles"] == ["1"] * len(expected)


# The driver's own connection

BY_DRIVER = '''
from pathlib import Path
{imports}
from opencqrs_py import AfterCommit, Event, ProcessingContext, event_handling, on_start
from sqlalchemy import Connection, text

FOLDER = Path(__file__).parent
INSERT = "INSERT INTO handled VALUES ({mark})"


@on_start("group")
def table(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS handled (position INTEGER NOT NULL)"))


def left(name: str) -> bool:
    """Say once for each line of a file that there is one more."""
    file = FOLDER / name
    lines = file.read_text().splitlines() if file.exists() else []
    file.write_text("\\n".join(lines[1:]))
    return bool(lines)


@event_handling("group")
def handle({parameter}, connection: {connection}, after_commit: AfterCommit) -> None:
    {body}
'''
DRIVERS = {
    "sqlite": {"imports": "import sqlite3", "connection": "sqlite3.Connection", "mark": "?"},
    "postgresql": {
        "imports": "from typing import Any\nimport psycopg",
        "connection": "psycopg.Connection[Any]",
        "mark": "%s",
    },
}
LISTS = "raws: list[Event]"
SINGLE = "raw: Event"
INSERT_ALL = "connection.cursor().executemany(INSERT, [(raw.position,) for raw in raws])"
INSERT_ONE = "connection.cursor().execute(INSERT, (raw.position,))"
NOTE = "after_commit(lambda: (FOLDER / 'committed.txt').open('a').write(f'{{len(raws)}}\\n'))"


def by_driver(url: str, parameter: str, *body: str) -> str:
    parts = DRIVERS[url.partition(":")[0].partition("+")[0]]
    return BY_DRIVER.format(parameter=parameter, body="\n    ".join(body), **parts)


def add(made: Application, number: int) -> None:
    made.event_store.append(
        Event(0, str(n), "s", f"/x/{n}", "t", None, "application/json", "{}", None) for n in range(1, number + 1)
    )


def handled(url: str) -> list[int]:
    return [position for (position,) in rows(url, "SELECT position FROM handled ORDER BY position")]


@pytest.mark.release(parameter=SINGLE)
@pytest.mark.parametrize(("parameter", "insert"), [(LISTS, INSERT_ALL), (SINGLE, INSERT_ONE)], ids=["list", "single"])
def test_writes_by_the_drivers_connection_are_in_the_progress_transaction(
    url: str,
    make_module: Callable[[str], ModuleType],
    application: MakeApplication,
    tmp_path: Path,
    parameter: str,
    insert: str,
) -> None:
    made = application(url, make_module(by_driver(url, parameter, insert)))
    add(made, 2_500)
    result = made.run(until_caught_up=True)
    assert not result.failed
    assert handled(url) == list(range(1, 2_501))
    assert sum(result.handled.values()) == 2_500
    assert not made.run(until_caught_up=True).failed
    assert len(handled(url)) == 2_500


FAILS = "if any(raw.position == 7 for raw in raws) and left('failures.txt'): raise ValueError('mine')"


def test_a_list_that_fails_in_the_middle_is_still_handled_exactly_once(
    url: str, make_module: Callable[[str], ModuleType], application: MakeApplication, tmp_path: Path
) -> None:
    """The chunk is halved until event 7 is alone; it fails there, too, is retried, and nothing is doubled."""
    module = make_module(by_driver(url, LISTS, INSERT_ALL, FAILS))
    (tmp_path / "code" / "failures.txt").write_text("x\n" * 7)
    retry = {"event-handling.standard.retry.initial-interval": "1ms"}
    made = application(url, module, {**THREAD, **retry})
    add(made, 20)
    watching = Watching()
    result = made.run(observer=watching, until_caught_up=True)
    assert not result.failed
    assert handled(url) == list(range(1, 21))
    named = {n.failure.event for n in watching.notices if n.failure is not None}
    assert named == {"event 7 at position 7 (t, /x/7)"}
    assert [n.attempt for n in watching.notices if n.failure is not None] == [1, 2, 3]
    assert sum(result.handled.values()) == 20


END = "if any(raw.position == 7 for raw in raws): connection.{end}()"


@pytest.mark.release(end="rollback")
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_handler_that_ends_the_drivers_transaction_stops_its_partition(
    url: str, make_module: Callable[[str], ModuleType], application: MakeApplication, tmp_path: Path, end: str
) -> None:
    module = make_module(by_driver(url, LISTS, INSERT_ALL, END.format(end=end)))
    made = application(url, module)
    add(made, 7)
    result = made.run(until_caught_up=True)
    assert result.failed
    (partition,) = result.partitions
    assert partition.state is ProcessorState.FAILED
    assert "the transaction that it shares with the progress" in partition.error
    assert "event 7 at position 7" in partition.error
    # SQLite's driver cannot be prevented: events committed early are repeated, and none is lost.
    early = end == "commit" and url.startswith("sqlite")
    assert sorted(handled(url)) == (sorted([*range(1, 8), *range(1, 8)]) if early else list(range(1, 7)))
    assert [s.lag for s in made.status()] == [1]


AGAIN = "if any(raw.position == 7 for raw in raws):\n        connection.{end}()\n        connection.execute('SELECT 1')"


@pytest.mark.postgresql
@pytest.mark.parametrize("end", ["commit", pytest.param("rollback", marks=pytest.mark.release)])
def test_on_postgresql_a_new_transaction_does_not_hide_the_end_of_the_first(
    postgresql_url: str,
    make_module: Callable[[str], ModuleType],
    application: MakeApplication,
    tmp_path: Path,
    end: str,
) -> None:
    module = make_module(by_driver(postgresql_url, LISTS, INSERT_ALL, AGAIN.format(end=end)))
    made = application(postgresql_url, module)
    add(made, 7)
    assert made.run(until_caught_up=True).failed
    assert handled(postgresql_url) == list(range(1, 7))
    assert [s.lag for s in made.status()] == [1]


def test_an_after_commit_call_that_raises_is_reported_and_repeats_nothing(
    url: str, make_module: Callable[[str], ModuleType], application: MakeApplication, tmp_path: Path
) -> None:
    ring = "after_commit(lambda: 1 / 0)"
    made = application(url, make_module(by_driver(url, LISTS, INSERT_ALL, ring)))
    add(made, 10)
    watching = Watching()
    assert not made.run(observer=watching, until_caught_up=True).failed
    assert watching.missed == ["division by zero"]
    assert handled(url) == list(range(1, 11))


# Sequences by what events say


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"resolution": "per_level_subject", "level": 1}, "subject"),
        ({"resolution": "per_data_field", "data-field": "reader.name"}, "reader"),
        ({"resolution": "per_metadata_key", "metadata-key": "tenant"}, "tenant"),
    ],
)
def test_the_configured_sequencing_keeps_events_in_order(
    make_module: Callable[[str], ModuleType],
    application: MakeApplication,
    sqlite_url: str,
    settings: dict[str, object],
    key: str,
) -> None:
    source = """
from opencqrs_py import Event, Metadata, ProcessingContext, event_handling, on_start
from sqlalchemy import Connection, text

@on_start("group")
def table(connection: Connection) -> None:
    columns = "subject TEXT, reader TEXT, tenant TEXT, residue INTEGER"
    connection.execute(text(f"CREATE TABLE IF NOT EXISTS handled ({columns})"))

@event_handling("group")
def handle(raw: Event, metadata: Metadata, context: ProcessingContext, connection: Connection) -> None:
    row = {"s": raw.subject.split("/")[1], "r": raw.data["reader"]["name"], "t": str(metadata["tenant"])}
    row["p"] = context.partition.residue
    connection.execute(text("INSERT INTO handled VALUES (:s, :r, :t, :p)"), row)
"""
    group = {f"event-handling.groups.group.sequence.{name}": value for name, value in settings.items()}
    group["event-handling.groups.group.life-cycle.partitions"] = 4
    made = application(sqlite_url, make_module(source), {**THREAD, **group})
    draw = random.Random(3)
    made.event_store.append(
        Event(
            0,
            str(n),
            "s",
            f"/{draw.choice('abcdef')}/{n}",
            "t",
            None,
            "application/json",
            json.dumps({"reader": {"name": draw.choice(READERS)}}),
            json.dumps({"tenant": draw.randrange(5)}),
        )
        for n in range(200)
    )
    assert not made.run(until_caught_up=True).failed
    found = rows(sqlite_url, f"SELECT {key}, count(DISTINCT residue), count(*) FROM handled GROUP BY {key}")
    assert {residues for _, residues, _ in found} == {1}
    assert sum(number for *_, number in found) == 200
    assert rows(sqlite_url, "SELECT count(DISTINCT residue) FROM handled") != [(1,)]


def test_events_without_a_sequence_stop_the_group_after_those_before_them(
    make_module: Callable[[str], ModuleType], application: MakeApplication, sqlite_url: str
) -> None:
    source = by_driver(sqlite_url, SINGLE, INSERT_ONE)
    group = {
        "event-handling.groups.group.sequence.resolution": "per_metadata_key",
        "event-handling.groups.group.sequence.metadata-key": "tenant",
        "event-handling.groups.group.life-cycle.partitions": 2,
    }
    made = application(sqlite_url, make_module(source), {**THREAD, **group})
    made.event_store.append(
        Event(0, str(n), "s", "/x", "t", None, "application/json", "{}", None if n == 5 else '{"tenant": "a"}')
        for n in range(1, 9)
    )
    result = made.run(until_caught_up=True)
    assert {partition.state for partition in result.partitions} == {ProcessorState.FAILED}
    for partition in result.partitions:
        assert partition.error == (
            "[OCQ-214] EventFormatError: the event has no metadata 'tenant', which determines its sequence"
            " - event 5 at position 5 (t, /x)"
        )
    assert handled(sqlite_url) == [1, 2, 3, 4]

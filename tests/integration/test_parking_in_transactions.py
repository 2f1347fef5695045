"""Events that fail now and then are parked in the transaction of the others, and little is handled twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import pytest
from support.rebuilding import KINDS

from opencqrs_py import Application, InboxFilter
from opencqrs_py.adapters.sql import Database, SqlProgressTracker
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.processing.pieces import SIZE

SEQUENCES = 40
CHUNK = 4 * SIZE
HANDLERS = """
from collections import Counter
from opencqrs_py import AfterCommit, Event, event_handling, on_start
from sqlalchemy import Connection, text

calls = Counter()
mailed = Counter()

@on_start("books")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS handled (id INTEGER NOT NULL, book VARCHAR(20) NOT NULL)"))

def write(connection: Connection, event: Event) -> None:
    row = {"id": int(event.id), "book": event.subject}
    connection.execute(text("INSERT INTO handled VALUES (:id, :book)"), row)

@event_handling("books", types=["*"])
def handle(event: Event, connection: Connection) -> None:
    calls[int(event.id)] += 1
    WAYS[event.type](event, connection)
"""
WAYS = """
def at_once(event: Event, connection: Connection) -> None:
    raise ValueError("no")

def after_writing(event: Event, connection: Connection) -> None:
    write(connection, event)
    raise ValueError("no")

def by_statement(event: Event, connection: Connection) -> None:
    write(connection, event)
    connection.execute(text("INSERT INTO missing VALUES (1)"))

def by_cursor(event: Event, connection: Connection) -> None:
    cursor = connection.connection.cursor()
    cursor.execute(f"INSERT INTO handled VALUES ({event.id}, '{event.subject}')")
    raise ValueError("no")

def in_a_savepoint(event: Event, connection: Connection) -> None:
    with connection.begin_nested():
        write(connection, event)
        raise ValueError("no")

def in_an_open_savepoint(event: Event, connection: Connection) -> None:
    connection.begin_nested()
    write(connection, event)
    raise ValueError("no")

def by_savepoint_of_its_own(event: Event, connection: Connection) -> None:
    connection.execute(text("SAVEPOINT mine"))
    write(connection, event)
    raise ValueError("no")

def good(event: Event, connection: Connection) -> None:
    write(connection, event)

def caught(event: Event, connection: Connection) -> None:
    write(connection, event)
    try:
        with connection.begin_nested():
            connection.execute(text("INSERT INTO missing VALUES (1)"))
    except Exception:
        pass

WAYS = {each.__name__: each for each in (at_once, after_writing, by_statement, by_cursor, in_a_savepoint,
        in_an_open_savepoint, by_savepoint_of_its_own, good, caught)}
"""
FAILING = (
    "at_once",
    "after_writing",
    "by_statement",
    "by_cursor",
    "in_a_savepoint",
    "in_an_open_savepoint",
    "by_savepoint_of_its_own",
)
MAILING = HANDLERS.replace(
    "connection: Connection) -> None:\n    calls",
    "connection: Connection, after: AfterCommit) -> None:\n    after(partial(mailed.update, [int(event.id)]))\n"
    "    calls",
).replace("from collections import Counter\n", "from collections import Counter\nfrom functools import partial\n")


class World:
    """A group that parks events at once, and the events of its log by their types."""

    def __init__(self, url: str, folder: Path, module: ModuleType) -> None:
        self.url = url
        self.folder = folder
        self.module: Any = module
        self.types: list[str] = []
        self.without_book = -1
        self.settings = {
            "event-store.url": f"sqlite:///{folder / 'events.db'}",
            "database.url": url,
            "event-handling.standard.processing.engine": "thread",
            "event-handling.standard.processing.batch-size": CHUNK,
            "event-handling.standard.retry.policy": "none",
            "event-handling.standard.retry.on-exhausted": "park",
        }

    def run(self, types: Iterable[str], **settings: Any) -> Application:
        """Handle events of these types, each of the next sequence; return the application, which has ended."""
        self.types = list(types)
        application = Application({**self.settings, **settings}, [self.module], self.folder)
        lines = (
            f'{{"id": "{n}", "source": "s", "type": "{name}", "subject": "/books/{n % SEQUENCES}", '
            f'"data": {{"number": {n}{self.book(n)}}}}}'
            for n, name in enumerate(self.types)
        )
        with application:
            application.event_store.append(map(parse_event, lines))
            application.run(until_caught_up=True)
        return application

    def book(self, number: int) -> str:
        """Return the field by which events may be sequenced; one has none."""
        return "" if number == self.without_book else f', "book": "book {number % SEQUENCES}"'

    @property
    def handled(self) -> list[int]:
        database = Database(self.url)
        with database.reading() as connection:
            found = [row[0] for row in connection.exec_driver_sql("SELECT id FROM handled")]
        database.close()
        return sorted(found)

    def waiting(self, application: Application) -> list[int]:
        with application:
            return sorted(int(entry.event_id) for entry in application.inbox.entries(InboxFilter()))

    @property
    def good(self) -> list[int]:
        """The events that do not wait after a failing one of their sequence."""
        blocked: set[int] = set()
        found = []
        for number, name in enumerate(self.types):
            if name in FAILING:
                blocked.add(number % SEQUENCES)
            if number % SEQUENCES not in blocked:
                found.append(number)
        return found

    def check(self, application: Application) -> None:
        """Compare the read model and the inbox with the expected ones."""
        assert self.handled == self.good
        assert self.waiting(application) == sorted(set(range(len(self.types))) - set(self.good))


BY_BOOK = {
    "event-handling.standard.sequence.resolution": "per_data_field",
    "event-handling.standard.sequence.data-field": "book",
}


def _count(monkeypatch: pytest.MonkeyPatch, name: str, counts: Counter[str]) -> None:
    of_tracker = getattr(SqlProgressTracker, name)

    def counted(tracker: SqlProgressTracker, *given: object, **named: object) -> object:
        counts[name] += 1
        return of_tracker(tracker, *given, **named)

    monkeypatch.setattr(SqlProgressTracker, name, counted)


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'read.db'}"
    fresh: str = request.getfixturevalue("fresh_url")(request.param)
    return fresh


@pytest.fixture
def world(url: str, tmp_path: Path, make_module: Callable[[str], ModuleType]) -> World:
    return World(url, tmp_path, make_module(HANDLERS + WAYS))


def log(count: int, at: dict[int, str]) -> Iterator[str]:
    """Yield the types of events that are good but at some places."""
    return (at.get(number, "good") for number in range(count))


@pytest.mark.release(url="mariadb")  # whose savepoints are those of PostgreSQL
def test_events_before_a_parked_one_take_effect_once(world: World) -> None:
    first, second = 70, CHUNK + 3 * SIZE + 11
    world.check(world.run(log(3 * CHUNK, {first: "after_writing", second: "after_writing"})))
    again = [number for number, count in world.module.calls.items() if count > 1]
    assert set(again) <= set(range(first)) | set(range(second - SIZE, second)), (
        "all before the first, a piece of the next"
    )
    assert len(again) <= first + SIZE


@pytest.mark.parametrize("way", FAILING)
@pytest.mark.few  # random failures, below, are of every way
def test_everything_an_event_does_before_it_fails_is_undone(world: World, way: str) -> None:
    types = log(3 * CHUNK, {7: "at_once", 70: way, 71: "caught", CHUNK + 90: way, CHUNK + 99: way, 2 * CHUNK + 1: way})
    world.check(world.run(types))


@pytest.mark.release(url="mariadb")  # whose savepoints are those of PostgreSQL
@pytest.mark.release(seed=(2, 3, 4))
@pytest.mark.release(sequencing=BY_BOOK)  # which events are one sequence is not in SQL
@pytest.mark.parametrize("sequencing", [{}, BY_BOOK], ids=["by subject", "by data"])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.release(seed=1)
def test_random_failures_leave_a_correct_read_model(world: World, seed: int, sequencing: dict[str, str]) -> None:
    chance = Random(seed)
    names = ["good"] * 60 + ["caught"] * 3 + list(FAILING)
    world.check(world.run([chance.choice(names) for _ in range(4 * CHUNK)], **sequencing))


def test_savepoints_of_sqlite_write_no_files(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path / 'read.db'}")
    with database.writing(of_handlers=True) as connection:
        assert connection.exec_driver_sql("PRAGMA temp_store").scalar_one() == 2  # memory
    database.close()


@pytest.mark.release(url="mariadb")  # whose savepoints are those of PostgreSQL
def test_events_parked_in_one_chunk_take_no_separate_transactions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: Counter[str] = Counter()
    for name in ("unit", "unit_in_parts"):
        _count(monkeypatch, name, counts)
    at = [CHUNK, CHUNK + 1, CHUNK + SIZE - 1, CHUNK + SIZE, CHUNK + 2 * SIZE + 7, 2 * CHUNK - 1]
    types = log(5 * CHUNK // 2, {7: "at_once", **dict.fromkeys(at, "after_writing")})  # which are one page
    world.check(world.run(types))
    first = world.types.index("at_once")
    assert counts["unit_in_parts"] == 3  # from the first failure on
    assert counts["unit"] - counts["unit_in_parts"] == 2  # the chunk that fails, and the events before the failure
    again = [number for number, count in world.module.calls.items() if count > 1 and number > first]
    assert len(again) <= len(at) * SIZE


@pytest.mark.release(url=("postgresql", "mariadb"))  # where the partition stops is not in SQL
@pytest.mark.parametrize("distance", [1, SIZE + 1, 2 * SIZE])
def test_an_event_without_a_sequence_after_a_parked_one_stops_the_partition_there(world: World, distance: int) -> None:
    parked = CHUNK + 2 * SIZE + 5
    world.without_book = parked + distance
    application = world.run(log(3 * CHUNK, {7: "at_once", parked: "after_writing"}), **BY_BOOK)
    until = range(world.without_book)
    assert world.handled == [number for number in world.good if number in until]
    assert world.waiting(application) == sorted(set(until) - set(world.good))


@pytest.mark.release(url=("postgresql", "mariadb"))
def test_after_commit_calls_are_made_once_and_only_for_handled_events(
    url: str, tmp_path: Path, make_module: Callable[[str], ModuleType]
) -> None:
    world = World(url, tmp_path, make_module(MAILING + WAYS))
    world.check(world.run(log(2 * CHUNK, {7: "at_once", 70: "after_writing", CHUNK + 90: "at_once"})))
    assert world.module.mailed == Counter(world.good)


@pytest.mark.release(url=("postgresql", "mariadb"))  # where the partition stops is not in SQL
def test_a_full_inbox_stops_the_partition_at_the_event_and_keeps_those_before_it(world: World) -> None:
    second = CHUNK + 2 * SIZE + 5
    limit = {"event-handling.standard.park.max-sequences": 1}
    application = world.run(log(2 * CHUNK, {7: "at_once", second: "after_writing"}), **limit)
    assert world.handled == [n for n in range(second) if n % SEQUENCES != 7]
    assert world.waiting(application) == [n for n in range(second) if n % SEQUENCES == 7]


OF_A_CLASS = """
from dataclasses import dataclass
from opencqrs_py import event_handling, on_start
from sqlalchemy import Connection, text

@dataclass
class Good:
    number: int

@on_start("books")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS handled (id INTEGER NOT NULL)"))

@event_handling("books", types=["good", "at_once"])
def handle(event: Good, connection: Connection) -> None:
    connection.execute(text("INSERT INTO handled VALUES (:number)"), {"number": event.number})
    if event.number in FAILING:
        raise ValueError("no")
"""


@pytest.mark.postgresql
def test_an_event_is_read_in_full_even_if_the_only_connection_is_that_of_the_transaction(
    fresh_url: Callable[[str], str], tmp_path: Path, make_module: Callable[[str], ModuleType]
) -> None:
    url, failing = fresh_url("postgresql"), {7, 70, CHUNK + 90}
    world = World(url, tmp_path, make_module(OF_A_CLASS))
    world.module.FAILING = failing
    settings = {"event-store.url": url, "database.pool-size": 1}
    types = ["at_once" if number in failing else "good" for number in range(2 * CHUNK)]
    world.check(world.run(types, **settings))

"""The cost of an append by the database's own counters: the same, however many events are stored.

SQLite counts the steps of its virtual machine, MariaDB the rows read, PostgreSQL the pages read.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
from sqlalchemy import create_engine, event

from opencqrs_py.adapters.sql import Database, SqlEventStore
from opencqrs_py.adapters.sql.tables import EVENTS, prepare
from opencqrs_py.model import Event
from opencqrs_py.model.appending import SubjectIsOnEventId, SubjectIsPopulated, SubjectIsPristine

Count = Callable[[], int]
Cost = Callable[[Callable[[], object]], int]

FEW, MANY = 2_000, 42_000
CHUNK = 300
LONG = f"/books/{'0' * 600}"  # longer than the part of a subject in servers' indexes
TOLERANCE = {"sqlite": 1.02, "mariadb": 1.02, "postgresql": 1.5}
"""PostgreSQL's trees of pages have three levels with many events, and two with few."""

COMPARED = {("postgresql", "known events"): 2.5}
"""Known events are compared with the stored ones. PostgreSQL finds these in a small table by reading all of it, and in
a large one by its index, in about as many pages for each event as it takes to see that the event is known."""

_OTHERS = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
_PAGES = """
SELECT sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)
FROM pg_statio_user_tables WHERE relname = 'opencqrs_events'
"""


def made(first: int, count: int) -> list[Event]:
    """Events whose ids and subjects come in no order."""
    return [
        Event(
            0,
            f"{zlib.crc32(str(number).encode()):08x}-{number}",
            "urn:library",
            LONG if number % 401 == 0 else f"/books/{number % 401}",
            f"library.book-{('lent', 'returned')[number % 2]}.v1",
            "2026-01-01T00:00:00Z",
            "application/json",
            "{}",
            None,
        )
        for number in range(first, first + count)
    ]


@contextmanager
def steps_of_sqlite(database: Database) -> Iterator[Count]:
    taken = 0

    def step() -> int:
        nonlocal taken
        taken += 1
        return 0

    def watch(connection: Any, _record: Any) -> None:
        connection.set_progress_handler(step, 1)

    event.listen(database.engine, "connect", watch)
    yield lambda: taken
    event.remove(database.engine, "connect", watch)


@contextmanager
def rows_of_mariadb(database: Database) -> Iterator[Count]:
    def rows_read() -> int:
        with database.reading() as connection:
            rows = connection.exec_driver_sql("SHOW GLOBAL STATUS LIKE 'Handler%%'").all()
        return sum(int(value) for _, value in rows)

    yield rows_read


@contextmanager
def pages_of_postgresql(database: Database) -> Iterator[Count]:
    """Count the pages once all other connections have ended: by then they have reported their counts.

    Autovacuum is off meanwhile, since it would be counted too.
    """
    prepare(database, EVENTS)
    engine = create_engine(database.engine.url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.exec_driver_sql("ALTER TABLE opencqrs_events SET (autovacuum_enabled = off)")

    def pages_read() -> int:
        database.close()
        with engine.connect() as connection:
            while connection.exec_driver_sql(_OTHERS).scalar_one():
                pass
            return int(connection.exec_driver_sql(_PAGES).scalar_one())

    yield pages_read
    engine.dispose()


COUNTED: dict[str, Callable[[Database], AbstractContextManager[Count]]] = {
    "mariadb": rows_of_mariadb,
    "postgresql": pages_of_postgresql,
    "sqlite": steps_of_sqlite,
}


@pytest.fixture
def cost(database: Database) -> Iterator[Cost]:
    """Runs an action, and returns its cost to the database."""
    with COUNTED[database.kind](database) as count:

        def measure(do: Callable[[], object]) -> int:
            before = count()
            do()
            return count() - before

        yield measure


def costs(store: SqlEventStore, cost: Cost, stored: int) -> dict[str, int]:
    """Fill the log up to about ``stored`` events, and return the cost of an append of each kind."""
    here = store.head()
    store.append(made(here, stored - here))
    last = made(stored, 1)[0]
    new = iter(range(stored + 1, stored + 10))
    return {
        "new events": cost(lambda: store.append(made(stored + 10, CHUNK))),
        "known events": cost(lambda: store.append(made(stored + 10, CHUNK))),
        "a new event": cost(lambda: store.append([last])),
        "a known event": cost(lambda: store.append([last])),
        "if pristine": cost(lambda: store.append(made(next(new), 1), [SubjectIsPristine("/never")])),
        "if populated": cost(lambda: store.append(made(next(new), 1), [SubjectIsPopulated("/books/17")])),
        "if a long one populated": cost(lambda: store.append(made(next(new), 1), [SubjectIsPopulated(LONG)])),
        "if on event": cost(lambda: store.append(made(next(new), 1), [SubjectIsOnEventId(last.subject, last.id)])),
    }


@pytest.mark.release(kind=("postgresql", "mariadb"))  # of which test_sql_plans.py has the plans
def test_an_append_costs_the_same_however_many_events_are_stored(database: Database, cost: Cost) -> None:
    store = SqlEventStore(database)
    few, many = costs(store, cost, FEW), costs(store, cost, MANY)
    usual = TOLERANCE[database.kind]
    grown = {
        kind: (few[kind], many[kind])
        for kind in few
        if many[kind] > few[kind] * COMPARED.get((database.kind, kind), usual)
    }
    assert min(few.values()) > 0
    assert not grown, f"of {few}"

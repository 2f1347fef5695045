"""A group that can be rebuilt beside itself, on each kind of database, and its tables as others see them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import text

from opencqrs_py import Application
from opencqrs_py.adapters.sql import Database
from opencqrs_py.adapters.sql.shadows.urls import place_of
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.partition import residue_of

KINDS = [
    "sqlite",
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]
NOT_IN_SQL = pytest.mark.release(world=("postgresql", "mariadb"))
"""Rules of rebuilds that no statement keeps are shown on one database."""

HANDLERS = """
from opencqrs_py import Event, ProcessingContext, event_handling, on_start
from sqlalchemy import Connection, text

@on_start("catalog")
@on_start("audit")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS lent (isbn VARCHAR(20) PRIMARY KEY, n INTEGER NOT NULL)"))
    connection.execute(text("CREATE TABLE IF NOT EXISTS audit (position INTEGER PRIMARY KEY)"))

@event_handling("catalog", types=["lent"])
def lend(event: Event, connection: Connection) -> None:
    book = {"isbn": event.subject}
    if not connection.execute(text("UPDATE lent SET n = n + 1 WHERE isbn = :isbn"), book).rowcount:
        connection.execute(text("INSERT INTO lent VALUES (:isbn, 1)"), book)

mailed = []

@event_handling("catalog", types=["lent"])
def mail(event: Event, context: ProcessingContext) -> None:
    mailed.append((context.position, context.rebuilding))

@event_handling("audit", types=["*"])
def audit(event: Event, connection: Connection) -> None:
    connection.execute(text("INSERT INTO audit VALUES (:position)"), {"position": event.position})
"""
RESEQUENCED: dict[str, Any] = {
    "event-handling.groups.catalog.sequence.resolution": "per_level_subject",
    "event-handling.groups.catalog.sequence.level": 1,
}
"""Settings by which events are in other partitions than by their whole subjects."""

WRONG, RIGHT = "UPDATE lent SET n = 99 WHERE isbn = '/books/3'", 14
NEW = {f"/books/{n}": RIGHT for n in range(7)}
OLD = NEW | {"/books/3": 99}
"""What 98 events make of 7 books, and what is there after ``WRONG``."""


def subject_of(before: int, after: int) -> str:
    """Return a subject that belongs to one of two partitions as a whole, and to another one by its first level."""
    levels = (f"/{n}" for n in count())
    return next(f"{one}/1" for one in levels if (residue_of(f"{one}/1", 2), residue_of(one, 2)) == (before, after))


class World:
    """A database, and applications on it."""

    def __init__(self, url: str, folder: Path, kind: str) -> None:
        self.url = url if kind != "sqlite" else f"sqlite:///{folder / 'read.db'}"
        self.folder = folder
        self.kind = kind
        self.module: ModuleType | None = None
        self.settings: dict[str, Any] = {
            "event-store.url": f"sqlite:///{folder / 'events.db'}",
            "database.url": self.url,
            "event-handling.standard.processing.engine": "thread",
            "event-handling.groups.catalog.life-cycle.partitions": 2,
        }

    def application(self, **settings: Any) -> Application:
        return Application({**self.settings, **settings}, [self.module], self.folder)

    def add(self, count: int, start: int = 0) -> None:
        self.add_of((f"/books/{n % 7}" for n in range(start, start + count)), start)

    def add_of(self, subjects: Iterable[str], start: int = 0) -> None:
        lines = (
            f'{{"id": "{n}", "source": "s", "type": "lent", "subject": "{subject}", "data": {{}}}}'
            for n, subject in enumerate(subjects, start)
        )
        with self.application() as application:
            application.event_store.append(map(parse_event, lines))

    def leave_lagging(self, start: int = 0, fourth: int = 1) -> None:
        """Have 1/2 handle two of five events, and 0/2 all of its own; by ``RESEQUENCED`` the third is of 0/2, too.

        The fourth, which 0/2 handles, is of the partition named.
        """
        self.add_of([subject_of(0, 0), subject_of(1, 1)], start)
        self.run()
        with self.application() as application:
            application.control.stop("catalog:1/2", timeout=None)
        self.add_of([subject_of(1, 0), subject_of(0, fourth), subject_of(0, 0)], start + 2)
        self.run()
        assert self.positions() == {start + 2, start + 5}

    def catch_up(self) -> None:
        """Have 1/2 handle the rest as it is sequenced so far."""
        with self.application() as application:
            application.control.start("catalog:1/2", timeout=None)
        self.run()

    def run(self, **settings: Any) -> None:
        with self.application(**settings) as application:
            assert not application.run(until_caught_up=True).failed

    def send(self, *statements: str) -> list[tuple[Any, ...]]:
        """Send statements; return the rows of the last one."""
        database = Database(self.url)
        rows: list[tuple[Any, ...]] = []
        try:
            with database.reading() as connection:
                for statement in statements:
                    result = connection.execute(text(statement))
                    rows = [tuple(row) for row in result] if result.returns_rows else []
        finally:
            database.close()
        return rows

    def lent(self) -> dict[str, int]:
        return dict(self.send("SELECT isbn, n FROM lent"))

    def positions(self) -> set[int]:
        return {row[0] for row in self.send("SELECT position FROM opencqrs_progress WHERE group_name = 'catalog'")}

    def place(self, kind: str, group: str = "catalog") -> str:
        live = {"sqlite": str(self.folder / "read.db"), "postgresql": "public"}.get(self.kind)
        return place_of(kind, group, live or Database(self.url).url.database or "")

    def is_there(self, kind: str) -> bool:
        name = self.place(kind)
        if self.kind == "sqlite":
            return (self.folder / f"read.db-{name}.db").exists()
        return bool(self.send(f"SELECT 1 FROM information_schema.schemata WHERE schema_name = '{name}'"))


def with_wrong_row(world: World, make_module: Callable[[str], ModuleType]) -> Iterator[World]:
    """Yield a world with a group that has handled 98 events, and one row of whose table has become wrong."""
    world.module = make_module(HANDLERS)
    world.add(98)
    world.run()
    world.send(WRONG)
    yield world
    del world.module.mailed[:]


def of(empty: World, make_module: Callable[[str], ModuleType], tables: str, handler: str, *before: str) -> World:
    """Return a world whose group makes these tables, and handles 20 events by these statements."""
    made = [f"    connection.execute(text({statement!r}))" for statement in filter(None, tables.split(";"))]
    body = [f"    connection.execute(text({statement!r}), known)" for statement in handler.split(";")]
    source = [
        "from opencqrs_py import Event, event_handling, on_start",
        "from sqlalchemy import Connection, text",
        '@on_start("catalog")',
        "def tables(connection: Connection) -> None:",
        *made,
        "    pass",
        '@event_handling("catalog", types=["*"])',
        "def handle(event: Event, connection: Connection) -> None:",
        '    known = {"position": event.position, "subject": event.subject}',
        *body,
    ]
    empty.module = make_module("\n".join(source))
    if before:
        empty.send(*before)
    empty.add(20)
    empty.run()
    return empty

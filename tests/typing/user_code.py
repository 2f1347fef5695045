"""Handlers as users write them under ``mypy --strict``: each decorator keeps the type of what it decorates."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, assert_type

import psycopg
import pyarrow as pa
from psycopg.rows import TupleRow
from pydantic import BaseModel
from sqlalchemy import Connection, text
from sqlalchemy.orm import Session

from opencqrs_py import (
    AfterCommit,
    Event,
    Invocation,
    Metadata,
    NonTransientError,
    ProcessingContext,
    Upcast,
    around_event,
    around_handler,
    bulk,
    event_handling,
    event_type,
    on_start,
    upcaster,
)

log = logging.getLogger(__name__)


@event_type("library.book-lent.v2")
@dataclass(frozen=True)
class BookLent:
    isbn: str
    reader: str


@event_type("library.book-returned.v1")
class BookReturned(BaseModel):
    isbn: str


assert_type(BookLent("1", "Ada").isbn, str)
assert_type(BookReturned(isbn="1").isbn, str)


@on_start("catalog")
def prepare(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS books (isbn TEXT)"))


@event_handling("columns", events=BookLent)
def in_columns(loans: pa.Table, connection: Connection) -> None:
    written: int = bulk.upsert(connection, "books", loans.select(["isbn"]), keys="isbn")
    log.info("%d rows", written)
    bulk.upsert(connection, "loans", [{"isbn": "1", "loans": 1}], keys=["isbn"], add=["loans"])


@event_handling("catalog")
def lend(event: BookLent, connection: Connection, after_commit: AfterCommit) -> None:
    connection.execute(text("INSERT INTO books VALUES (:isbn)"), {"isbn": event.isbn})
    after_commit(lambda: log.info("lent to %s", event.reader))


@event_handling("catalog", order=1)
def write_all(
    events: list[BookLent | BookReturned], raws: Sequence[Event], metadata: list[Metadata], session: Session
) -> None:
    for event, raw, more in zip(events, raws, metadata, strict=True):
        session.execute(text("SELECT 1"), {"isbn": event.isbn, "position": raw.position, "by": more.get("by")})


@event_handling("fast")
def by_driver(events: list[BookLent], connection: sqlite3.Connection) -> None:
    connection.executemany("INSERT INTO books VALUES (?)", [(event.isbn,) for event in events])


@event_handling("fast")
def by_another_driver(event: BookLent, connection: psycopg.Connection[TupleRow]) -> None:
    connection.execute("INSERT INTO books VALUES (%s)", (event.isbn,))


@event_handling("audit", types=["library.*"])
async def audit(data: dict[str, Any], raw: Event, context: ProcessingContext) -> None:
    if not data:
        raise NonTransientError(f"{raw.label} says nothing, on attempt {context.attempt}")


statistics = event_handling("statistics")


@statistics
def count(raw: Event) -> None: ...


@event_handling("reminders")
class Reminders:
    @event_handling
    def remind(self, event: BookLent) -> None: ...


assert_type(Reminders(), Reminders)
Reminders().remind(BookLent("1", "Ada"))


@upcaster("library.book-lent.v1")
def with_reader(data: dict[str, Any]) -> Upcast:
    return Upcast("library.book-lent.v2", {**data, "reader": "unknown"})


@upcaster("library.book-handed-on.v1", "library.book-passed.v1")
def split(data: dict[str, Any]) -> list[Upcast]:
    return [Upcast("library.book-returned.v1", data), Upcast("library.book-lent.v1", data)]


assert_type(with_reader({}), Upcast)
assert_type(split({})[0].type, str)


@around_event
def traced(raw: Event, metadata: Metadata) -> Iterator[None]:
    log.info("%s %s", raw.id, metadata)
    yield


@around_event("catalog", order=1)
@around_handler("catalog", order=2)
def both() -> Iterator[None]:
    yield


@around_handler
def timed(invocation: Invocation, connection: Connection) -> Iterator[None]:
    yield
    connection.execute(text("SELECT 1"), {"handler": invocation.handler, "first": invocation.events[0].position})


def by_reader(event: BookLent, metadata: Metadata) -> str:
    return str(metadata.get("reader", event.reader))

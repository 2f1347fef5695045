"""The event store on a SQL database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, func, or_, select

from opencqrs_py.adapters.sql.databases import Database
from opencqrs_py.adapters.sql.schema import EVENTS, create_missing
from opencqrs_py.model.cloudevents import microseconds
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection, Slice

__all__ = ["SqlEventStore"]

_ROWS_PER_STATEMENT = 5_000
_WRITTEN = ("id", "source", "subject", "type", "time", "content_type", "payload", "extensions", "time_us")
_READ = [EVENTS.c[name] for name in Event._fields]


class SqlEventStore:
    """CloudEvents in the table ``opencqrs_events``.

    Appends are serialised (by SQLite itself, by a table lock on PostgreSQL), so positions become visible in their
    order and a reader that has seen position n never misses an event before it. Rolled-back appends leave holes that
    stay empty.

    Args:
        database: Where the table is; it is created at first use.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ready = False
        self._statements: dict[Selection, Select[Any]] = {}

    def append(self, events: Iterable[Event], progress: Callable[[int], None] | None = None) -> tuple[int, int]:
        """Add events in one transaction; those whose source and id are known already are left out.

        Args:
            events: Any number; read as a stream. When it raises, nothing is added.
            progress: Called now and then with the number of events taken in.

        Returns:
            How many were given and how many of them were added.
        """
        self._prepare()
        given = added = 0
        statement = _insert_statement(self._database.kind)
        with self._database.writing() as connection:
            _lock(connection)
            for rows in _chunks(map(_row, events)):
                added += connection.exec_driver_sql(statement, rows).rowcount
                given += len(rows)
                if progress is not None:
                    progress(given)
            return given, added

    def head(self) -> int:
        """Return the position of the newest event, 0 when there is none."""
        self._prepare()
        with self._database.reading() as connection:
            return _head(connection)

    def count(self) -> int:
        """Return how many events there are."""
        self._prepare()
        with self._database.reading() as connection:
            return connection.execute(select(func.count()).select_from(EVENTS)).scalar_one()

    def read(self, after: int, limit: int, selection: Selection) -> Slice:
        """Return the selected events that follow ``after``, at most ``limit``.

        The head is read first: what is committed between the two statements belongs to the next slice.
        """
        self._prepare()
        with self._database.reading() as connection:
            head = _head(connection)
            if head <= after:
                return Slice(after, after)
            values = {"after": after, "head": head, "most": limit}
            rows = connection.execute(self._statement(selection), values).all()
        events = tuple(map(Event._make, rows))
        return Slice(after, events[-1].position if len(events) == limit else head, events)

    def position_before(self, moment: datetime) -> int:
        """Return the position before the first event with ``time >= moment``; the head if there is none."""
        self._prepare()
        first = select(func.min(EVENTS.c.position)).where(EVENTS.c.time_us >= microseconds(moment.isoformat()))
        with self._database.reading() as connection:
            position = connection.execute(first).scalar()
            return position - 1 if position is not None else _head(connection)

    def is_outage(self, error: BaseException) -> bool:
        """Say whether the store's database does not answer for now."""
        return self._database.is_outage(error)

    def _prepare(self) -> None:
        if not self._ready:
            create_missing(self._database, EVENTS)
            self._ready = True

    def _statement(self, selection: Selection) -> Select[Any]:
        statement = self._statements.get(selection)
        if statement is None:
            position = EVENTS.c.position
            bounds = position > bindparam("after"), position <= bindparam("head")
            wanted = select(*_READ).where(*bounds, *_conditions(selection))
            statement = wanted.order_by(position).limit(bindparam("most"))
            self._statements[selection] = statement
        return statement


def _head(connection: Connection) -> int:
    return connection.execute(select(func.max(EVENTS.c.position))).scalar() or 0


def _conditions(selection: Selection) -> Iterator[ColumnElement[bool]]:
    if selection.types is not None:
        yield EVENTS.c.type.in_(sorted(selection.types))
    if selection.everything:
        return
    exact = EVENTS.c.subject == selection.subject
    if not selection.recursive:
        yield exact
        return
    # A range instead of LIKE: exact in case, nothing to escape. "0" is the character after "/".
    first, beyond = selection.prefix, selection.prefix[:-1] + "0"
    yield or_(exact, and_(EVENTS.c.subject >= first, EVENTS.c.subject < beyond))


def _lock(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql(f"LOCK TABLE {EVENTS.name} IN EXCLUSIVE MODE")


def _insert_statement(kind: str) -> str:
    """Return the statement that adds an event unless it is known.

    Not ``ON CONFLICT DO NOTHING``: an event that is left out would still use up a position.
    """
    mark = "?" if kind == "sqlite" else "%s"
    values = ", ".join(f"CAST({mark} AS {EVENTS.c[name].type})" for name in _WRITTEN)
    unknown = f"NOT EXISTS (SELECT 1 FROM {EVENTS.name} WHERE source = {mark} AND id = {mark})"  # noqa: S608 our names
    return f"INSERT INTO {EVENTS.name} ({', '.join(_WRITTEN)}) SELECT {values} WHERE {unknown}"


def _row(event: Event) -> tuple[Any, ...]:
    return (*event[1:], microseconds(event.time), event.source, event.id)


def _chunks(rows: Iterator[tuple[Any, ...]]) -> Iterator[list[tuple[Any, ...]]]:
    while chunk := list(islice(rows, _ROWS_PER_STATEMENT)):
        yield chunk

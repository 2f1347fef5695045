"""Appending to the table of events: one transaction, in turn with all others that append."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import orjson
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from opencqrs_py.adapters.sql.databases import Database
from opencqrs_py.adapters.sql.schema import EVENTS
from opencqrs_py.adapters.sql.turns import in_turn, in_turn_at_once
from opencqrs_py.adapters.sql.versions import APPENDS, EVENTS_CHANNEL, INDEXED_LENGTH
from opencqrs_py.model.appending import Appended, Precondition, check
from opencqrs_py.model.cloudevents import microseconds
from opencqrs_py.model.event import Event

__all__ = ["append_events"]

_ROWS_PER_STATEMENT = 5_000
_ROWS_AT_ONCE = 100  # few enough to be sent together with the begin and the end of their transaction
_CHARACTERS_PER_STATEMENT = 8_000_000  # of payloads; what is taken in at once stays small, however large events are

_Row = tuple[Any, ...]
_WRITTEN = ("id", "source", "subject", "type", "time", "content_type", "payload", "extensions", "time_us")
_PAYLOAD, _ID_AND_SOURCE = _WRITTEN.index("payload"), slice(0, 2)
_NAMES = ", ".join(_WRITTEN)

# Never ON CONFLICT DO NOTHING: an event that is left out would still use up a position.
_MARKS = ", ".join("?" * len(_WRITTEN))
_INSERT_NEW = f"INSERT INTO {EVENTS.name} ({_NAMES}) VALUES ({_MARKS})"  # noqa: S608 our own names
_INSERT_UNKNOWN = f"""
INSERT INTO {EVENTS.name} ({_NAMES}) SELECT {_MARKS}
WHERE NOT EXISTS (SELECT 1 FROM {EVENTS.name} WHERE id = ? AND source = ?)
"""  # noqa: S608 our own names

_COLUMNS = ", ".join(f"{name} {'bigint' if name == 'time_us' else 'text'}" for name in _WRITTEN)
# Known events are looked for one by one: as a join, the server might read the whole table for a few new rows.
_INSERT_ALL = f"""
WITH fresh AS (
    INSERT INTO {EVENTS.name} ({_NAMES}) SELECT {", ".join(f"added.{name}" for name in _WRITTEN)}
    FROM ROWS FROM (json_to_recordset(%s::json) AS ({_COLUMNS})) WITH ORDINALITY AS added ({_NAMES}, place)
    WHERE (SELECT 1 FROM {EVENTS.name} known WHERE known.source = added.source AND known.id = added.id) IS NULL
    ORDER BY added.place RETURNING position
)
SELECT count(*), pg_notify('{EVENTS_CHANNEL}', max(position)::text) FROM fresh
"""  # noqa: S608 our own names

_NEWEST = {
    "sqlite": f"SELECT id FROM {EVENTS.name} WHERE subject = ? ORDER BY position DESC LIMIT 1",  # noqa: S608
    "postgresql": f"SELECT id FROM {EVENTS.name} WHERE left(subject, {INDEXED_LENGTH}) = left(%s, {INDEXED_LENGTH}) "  # noqa: S608
    "AND subject = %s ORDER BY position DESC LIMIT 1",
}


def append_events(
    database: Database,
    events: Iterable[Event],
    preconditions: Sequence[Precondition],
    progress: Callable[[int], None] | None,
) -> Appended:
    """Add events in one transaction; those whose source and id are known already are left out.

    Args:
        database: Where the table is.
        events: Any number; read as a stream. When it raises, nothing is added.
        preconditions: Checked before the first event is taken.
        progress: Called now and then with the number of events taken in.

    Returns:
        How many were given and how many of them were added.

    Raises:
        DatabaseAwayError: OCQ-305, if another program has been appending for too long.
        PreconditionFailedError: OCQ-320, naming the first precondition that does not hold.
    """
    given = added = 0
    insert = _insert_sqlite if database.kind == "sqlite" else _insert_postgresql
    if database.kind == "postgresql" and not preconditions and _is_short(events):
        rows = list(map(_row, events))
        return Appended(len(rows), in_turn_at_once(database, APPENDS, _INSERT_ALL, (_as_json(rows),)))
    with in_turn(database, APPENDS) as connection:
        check(preconditions, lambda subject: _newest(connection, subject), database.label)
        for rows in _chunks(map(_row, events)):
            added += insert(connection, rows)
            given += len(rows)
            if progress is not None:
                progress(given)
    return Appended(given, added)


def _is_short(events: Iterable[Event]) -> bool:
    """Say whether the events are there already, few and not large."""
    if not isinstance(events, Sequence) or not 0 < len(events) <= _ROWS_AT_ONCE:
        return False
    return sum(len(event.payload or "") for event in events) <= _CHARACTERS_PER_STATEMENT


def _newest(connection: Connection, subject: str) -> str | None:
    statement = _NEWEST[connection.dialect.name]
    values = (subject,) * (statement.count("?") or statement.count("%s"))
    row = connection.exec_driver_sql(statement, values).first()
    return None if row is None else str(row[0])


def _insert_sqlite(connection: Connection, rows: list[_Row]) -> int:
    """Take the events for new ones, which they mostly are: to look for each first takes twice the time."""
    try:
        with connection.begin_nested():
            return connection.exec_driver_sql(_INSERT_NEW, rows).rowcount
    except IntegrityError:
        return connection.exec_driver_sql(_INSERT_UNKNOWN, [(*row, *row[_ID_AND_SOURCE]) for row in rows]).rowcount


def _insert_postgresql(connection: Connection, rows: list[_Row]) -> int:
    """Send all rows as one JSON text, the quickest there is for the driver, and tell who listens of the newest."""
    added: int = connection.exec_driver_sql(_INSERT_ALL, (_as_json(rows),)).scalar_one()
    return added


def _as_json(rows: list[_Row]) -> str:
    once: dict[_Row, _Row] = {}
    for row in rows:  # a single statement does not see what it adds itself
        once.setdefault(row[_ID_AND_SOURCE], row)
    return orjson.dumps([dict(zip(_WRITTEN, row, strict=True)) for row in once.values()]).decode()


def _row(event: Event) -> _Row:
    return (*event[1:], microseconds(event.time))


def _chunks(rows: Iterator[_Row]) -> Iterator[list[_Row]]:
    chunk: list[_Row] = []
    characters = 0
    for row in rows:
        chunk.append(row)
        characters += len(row[_PAYLOAD] or "")
        if len(chunk) == _ROWS_PER_STATEMENT or characters >= _CHARACTERS_PER_STATEMENT:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk

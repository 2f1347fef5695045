"""Appending to the table of events: one transaction, in turn with all others that append."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import orjson
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError

from opencqrs_py.adapters.sql.databases import Database
from opencqrs_py.adapters.sql.mariadb import identity_of, insert_new, select_known
from opencqrs_py.adapters.sql.outages import reason_of
from opencqrs_py.adapters.sql.page_cache import large_cache
from opencqrs_py.adapters.sql.postgresql import APPENDS, WRITTEN, lock_in, statements_in
from opencqrs_py.adapters.sql.schema import EVENTS
from opencqrs_py.adapters.sql.turns import bounded, in_turn
from opencqrs_py.adapters.sql.versions import INDEXED_LENGTH
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.appending import Appended, Precondition, check
from opencqrs_py.model.event import Event
from opencqrs_py.model.times import microseconds

__all__ = ["append_events"]

_ROWS_PER_STATEMENT = 5_000
_CHUNKS_OF_ALL_DAYS = 1  # of an append; one of more chunks is an import
_ROWS_AT_ONCE = 100  # few enough to be sent together with the begin and the end of their transaction
_ROWS_UNFORESEEN = 10_000  # of one append, after which PostgreSQL is told to look at the table, as else it guesses
_CHARACTERS_PER_STATEMENT = 8_000_000  # of payloads; what is taken in at once stays small, however large events are
_CHARACTERS_ON_MARIADB = 1_000_000  # of everything: servers refuse statements of more than 16 MiB by default

_ESCAPED_ON_MARIADB = "\0\n\r\x1a\"'\\"  # take two bytes in a statement
_ROOM_ON_MARIADB = 10_000  # bytes, for the rest of the statement
_SMALLER = "nothing was added; on PostgreSQL id and source may have about 2,700 bytes together"

_Row = tuple[Any, ...]
_PAYLOAD, _ID_AND_SOURCE = WRITTEN.index("payload"), slice(0, 2)
_ID, _SOURCE, _TIME = 0, 1, WRITTEN.index("time_us")
_NAMES = ", ".join(WRITTEN)

# Never ON CONFLICT DO NOTHING: an event that is left out would still use up a position.
_MARKS = ", ".join("?" * len(WRITTEN))
_INSERT_NEW = f"INSERT INTO {EVENTS.name} ({_NAMES}) VALUES ({_MARKS})"  # noqa: S608 on SQLite, which has no schemas
_INSERT_UNKNOWN = f"""
INSERT INTO {EVENTS.name} ({_NAMES}) SELECT {_MARKS}
WHERE NOT EXISTS (SELECT 1 FROM {EVENTS.name} WHERE id = ? AND source = ?)
"""  # noqa: S608 our own names
_POSITIONS = "SELECT seq FROM sqlite_sequence WHERE name = ?"

_NEWEST = {
    "sqlite": f"SELECT id FROM {{}}{EVENTS.name} WHERE subject = ? ORDER BY position DESC LIMIT 1",  # noqa: S608
    # As a plain condition the server would think that it leaves hardly any, and read and sort all the subject has.
    "postgresql": f"SELECT id FROM {{}}{EVENTS.name} "  # noqa: S608
    f"WHERE left(subject, {INDEXED_LENGTH}) = left(%s, {INDEXED_LENGTH}) "
    "AND CASE subject WHEN %s THEN true ELSE false END ORDER BY position DESC LIMIT 1",
    "mariadb": f"SELECT id FROM {{}}{EVENTS.name} WHERE subject = %s ORDER BY position DESC LIMIT 1",  # noqa: S608
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
        DatabaseAwayError: OCQ-304, if the database goes away meanwhile; OCQ-305, if another program has been appending
            for too long.
        EventStoreError: OCQ-304, if the database's user may not add events; OCQ-306, if the database cannot hold one of
            them.
        PreconditionFailedError: OCQ-320, naming the first precondition that does not hold.
    """
    try:
        with database.explained():
            return _append(database, events, preconditions, progress)
    except DBAPIError as error:
        if database.is_outage(error):
            raise
        what = f"the database does not take the events in ({reason_of(error)})"
        raise EventStoreError("OCQ-306", what, database.label, _SMALLER) from None


def _append(
    database: Database,
    events: Iterable[Event],
    preconditions: Sequence[Precondition],
    progress: Callable[[int], None] | None,
) -> Appended:
    given = added = 0
    insert = _INSERTS[database.kind]
    at_once = database.kind == "postgresql" and not preconditions and _is_short(events)
    if at_once and (done := _append_at_once(database, list(map(_row, events)))) is not None:
        return done
    with in_turn(database, APPENDS) as connection, ExitStack() as until_all_are_in:
        check(preconditions, lambda subject: _newest(database, connection, subject), database.label)
        for number, rows in enumerate(_chunks(map(_row, events))):
            if number == _CHUNKS_OF_ALL_DAYS:
                until_all_are_in.enter_context(large_cache(connection))
            added += insert(database, connection, rows)
            given += len(rows)
            if progress is not None:
                progress(given)
    if database.kind == "postgresql" and added >= _ROWS_UNFORESEEN:
        with database.reading() as connection:
            connection.exec_driver_sql(f"ANALYZE {database.prefix}{EVENTS.name}")
    return Appended(given, added)


def _append_at_once(database: Database, rows: list[_Row]) -> Appended | None:
    """Append by one statement that is a transaction of its own: one round trip instead of four.

    Returns:
        ``None``, and nothing is done, if transactions are stricter than the turn needs.
    """
    with bounded(database, lock_in(database.schema, APPENDS)) as patience:
        ((added,),) = database.fetch(statements_in(database.schema).append_at_once, (_as_json(rows), patience))
    return None if added < 0 else Appended(len(rows), added)


def _is_short(events: Iterable[Event]) -> bool:
    """Say whether the events are there already, few and not large."""
    if not isinstance(events, Sequence) or not 0 < len(events) <= _ROWS_AT_ONCE:
        return False
    return sum(len(event.payload or "") for event in events) <= _CHARACTERS_PER_STATEMENT


def _newest(database: Database, connection: Connection, subject: str) -> str | None:
    statement = _NEWEST[database.kind].format(database.prefix)
    values = (subject,) * (statement.count("?") or statement.count("%s"))
    row = connection.exec_driver_sql(statement, values).first()
    return None if row is None else str(row[0])


def _insert_sqlite(_database: Database, connection: Connection, rows: list[_Row]) -> int:
    """Take the events for new ones, which they mostly are: to look for each first takes twice the time.

    What was added before a known one stays: for a savepoint SQLite would write a copy of each page that it changes to
    a file of its own, and the more events are stored, the more pages there are to change.
    """
    before = _given_positions(connection) if len(rows) > 1 else 0
    try:
        return connection.exec_driver_sql(_INSERT_NEW, rows).rowcount
    except IntegrityError:
        rest = connection.exec_driver_sql(_INSERT_UNKNOWN, [(*row, *row[_ID_AND_SOURCE]) for row in rows])
        return rest.rowcount if len(rows) == 1 else _given_positions(connection) - before


def _given_positions(connection: Connection) -> int:
    """Return how many positions SQLite has given so far; an event that is left out uses up none."""
    return connection.exec_driver_sql(_POSITIONS, (EVENTS.name,)).scalar() or 0


def _insert_postgresql(database: Database, connection: Connection, rows: list[_Row]) -> int:
    """Send all rows as one JSON text, the quickest there is for the driver, and tell who listens of the newest."""
    insert_all = statements_in(database.schema).insert_all
    added: int = connection.exec_driver_sql(insert_all, (_as_json(rows),)).scalar_one()
    return added


def _insert_mariadb(database: Database, connection: Connection, rows: list[_Row]) -> int:
    """Look for those that are known first: an insert that fails would use up positions."""
    found: dict[bytes, _Row] = {}
    for row in rows:
        found.setdefault(identity_of(row[_SOURCE], row[_ID]), row)
    selected = connection.exec_driver_sql(select_known(database.prefix, len(found)), tuple(found))
    known = frozenset(selected.scalars())
    new = [row for identity, row in found.items() if identity not in known]
    for few in _chunks(iter(new), _CHARACTERS_ON_MARIADB, _length_of_all):
        *others, last = few
        if _length_of_all(last) <= _CHARACTERS_ON_MARIADB:
            _send_to_mariadb(database, connection, few)
            continue
        _check_size(connection, last)
        _send_to_mariadb(database, connection, others)
        _send_to_mariadb(database, connection, [last])  # alone it fits, as was seen; with the others it need not
    return len(new)


def _send_to_mariadb(database: Database, connection: Connection, rows: list[_Row]) -> None:
    if rows:
        connection.exec_driver_sql(
            insert_new(database.prefix, len(rows)), tuple(value for row in rows for value in row)
        )


def _check_size(connection: Connection, row: _Row) -> None:
    """Refuse what the server would cut the connection for, which would look like an outage."""
    texts = [text for text in row[:_TIME] if text is not None]
    size = sum(len(text.encode()) + sum(map(text.count, _ESCAPED_ON_MARIADB)) for text in texts) + _ROOM_ON_MARIADB
    most: int = connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one()
    if size > most:
        what = f"the event is too large: it takes a statement of {size:,} bytes, and the server takes {most:,}"
        fix = "nothing was added; let an administrator raise max_allowed_packet"
        raise EventStoreError("OCQ-306", what, f"event {row[_ID]!r} of {row[_SOURCE]!r}", fix)


_INSERTS = {"mariadb": _insert_mariadb, "postgresql": _insert_postgresql, "sqlite": _insert_sqlite}


def _as_json(rows: list[_Row]) -> str:
    once: dict[_Row, _Row] = {}
    for row in rows:  # a single statement does not see what it adds itself
        once.setdefault(row[_ID_AND_SOURCE], row)
    return orjson.dumps([dict(zip(WRITTEN, row, strict=True)) for row in once.values()]).decode()


def _row(event: Event) -> _Row:
    return (*event[1:], microseconds(event.time))


def _length_of_payload(row: _Row) -> int:
    return len(row[_PAYLOAD] or "")


def _length_of_all(row: _Row) -> int:
    return sum(map(len, filter(None, row[:_TIME])))


def _chunks(
    rows: Iterator[_Row], most: int = _CHARACTERS_PER_STATEMENT, length_of: Callable[[_Row], int] = _length_of_payload
) -> Iterator[list[_Row]]:
    chunk: list[_Row] = []
    characters = 0
    for row in rows:
        chunk.append(row)
        characters += length_of(row)
        if len(chunk) == _ROWS_PER_STATEMENT or characters >= most:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk

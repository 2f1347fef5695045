"""The event store on a SQL database."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeGuard

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from typing_extensions import override

from opencqrs_py.adapters.sql.connections import reason_of
from opencqrs_py.adapters.sql.dialects.dialect import Row, chunks
from opencqrs_py.adapters.sql.reading import SqlEventSource, read_at
from opencqrs_py.adapters.sql.tables import EVENTS, WRITTEN
from opencqrs_py.errors import EventStoreError, ExplainedError
from opencqrs_py.model.appending import Appended, Clashes, Precondition, check, identified
from opencqrs_py.model.event import Event
from opencqrs_py.model.times import microseconds
from opencqrs_py.processing.ports import EventStore

_log = logging.getLogger("opencqrs.store")
_ROWS_PER_STATEMENT = 5_000
_CHARACTERS_PER_STATEMENT = 8_000_000  # of payloads; limits the memory for large events
_PICKED_AT_ONCE = 1_000
_USUAL_CHUNKS = 1  # of an append; one of more chunks is an import
_ROWS_AT_ONCE = 100  # few enough to be sent together with the begin and the end of their transaction
_PAYLOAD = WRITTEN.index("payload")
_COMPARED_AT_ONCE = 500
_DUPLICATE = "23505"  # of PostgreSQL
_AGAIN = "nothing was added; try again, and positions continue after the newest one"
_SMALLER = "nothing was added; on PostgreSQL id and source may have about 2,700 bytes together"


class SqlEventStore(SqlEventSource, EventStore):
    """CloudEvents in the table ``opencqrs_events``.

    Appends follow each other (by SQLite's own lock, by one that the table's trigger takes on servers), so positions
    become visible in their order and a reader that has seen position n never misses an event before it. Rolled-back
    appends leave gaps that stay empty.

    Args:
        database: Where the table is.
        creates: As of ``SqlEventSource``.
    """

    @override
    def append(
        self,
        events: Iterable[Event],
        preconditions: Sequence[Precondition] = (),
        progress: Callable[[int], None] | None = None,
    ) -> Appended:
        """Add events in one transaction, in which the preconditions are checked before the first event is taken.

        Raises:
            DatabaseAwayError: OCQ-304, if the database becomes unavailable; OCQ-305, if another program has been
                appending for too long.
            EventStoreError: OCQ-304, if the database's user may not add events; OCQ-306, if the database cannot hold
                one of them.
            EventFormatError: OCQ-212, if an event has no id or no source.
            PreconditionFailedError: OCQ-320, naming the first precondition that does not hold.
        """
        if not self._ready:
            self._prepare()
        database = self._database
        try:
            with database.explained():
                return self._append(events, preconditions, progress)
        except DBAPIError as error:
            if database.is_outage(error):
                raise
            what = f"the database does not accept the events ({reason_of(error)})"
            if getattr(error.orig, "sqlstate", None) == _DUPLICATE:  # of a position: known events are left out
                self._ready = False
                raise EventStoreError("OCQ-306", what, database.label, _AGAIN) from None
            raise EventStoreError("OCQ-306", what, database.label, _SMALLER) from None

    def pick(self, positions: Sequence[int]) -> list[Event]:
        """Return the events at positions, with one statement per thousand."""
        if not self._ready:
            self._prepare()
        parts = (positions[first : first + _PICKED_AT_ONCE] for first in range(0, len(positions), _PICKED_AT_ONCE))
        with self._database.guard.quiet():
            return [event for part in parts for event in read_at(self._database, part)]

    def _append(
        self,
        events: Iterable[Event],
        preconditions: Sequence[Precondition],
        progress: Callable[[int], None] | None,
    ) -> Appended:
        database, dialect, clashes = self._database, self._database.dialect, Clashes()
        if not preconditions and _is_short(events):
            new = dialect.append_at_once(database, map(_row, events))
            if new is not None:
                if new < len(events):
                    self._compare_later(clashes, events)
                return Appended(len(events), new)
        given = added = 0
        with dialect.append_lock(database) as connection, ExitStack() as until_all_are_in:
            check(preconditions, lambda subject: self._newest(connection, subject), database.label)
            rows = map(_row, events)
            for number, chunk in enumerate(
                chunks(rows, _ROWS_PER_STATEMENT, _CHARACTERS_PER_STATEMENT, _length_of_payload)
            ):
                if number == _USUAL_CHUNKS:
                    until_all_are_in.enter_context(dialect.bulk_loading(connection))
                new = dialect.insert(database, connection, chunk)
                if new < len(chunk):
                    self._compare(clashes, connection, [_event(row) for row in chunk])
                added += new
                given += len(chunk)
                if progress is not None:
                    progress(given)
        with _after_commit("the table was not analysed, and reads may be slower until it is"):
            dialect.settle(database, added)
        _warn_of(clashes)
        return Appended(given, added)

    def _compare_later(self, clashes: Clashes, events: Sequence[Event]) -> None:
        """Compare the appended events with the stored ones, in a separate transaction."""
        undone = "those already known were not compared with the stored ones"
        with _after_commit(undone), self._database.reading() as connection:
            self._compare(clashes, connection, events)
        _warn_of(clashes)

    def _compare(self, clashes: Clashes, connection: Connection, events: Sequence[Event]) -> None:
        """Look for events that differ from the stored ones with the same source and id."""
        table = self._database.prefix + EVENTS.name
        for first in range(0, len(events), _COMPARED_AT_ONCE):
            part = events[first : first + _COMPARED_AT_ONCE]
            keys = list({(event.source, event.id): None for event in part})
            statement, values = self._database.dialect.find_stored(table, Event._fields, keys)
            clashes.look(part, (Event(*row) for row in connection.exec_driver_sql(statement, values)))

    def _newest(self, connection: Connection, subject: str) -> str | None:
        """Return the id of the newest event of a subject."""
        dialect, table = self._database.dialect, self._database.prefix + EVENTS.name
        values = (subject,) * dialect.newest.count("{mark}")
        row = connection.exec_driver_sql(dialect.newest.format(table=table, mark=dialect.mark), values).first()
        return None if row is None else str(row[0])


def _is_short(events: Iterable[Event]) -> TypeGuard[Sequence[Event]]:
    """Return whether the events are a sequence, few, and not large."""
    if not isinstance(events, Sequence) or not 0 < len(events) <= _ROWS_AT_ONCE:
        return False
    return sum(len(event.payload or "") for event in events) <= _CHARACTERS_PER_STATEMENT


def _row(event: Event) -> Row:
    return (*identified(event)[1:], microseconds(event.time))


def _event(row: Row) -> Event:
    """Return the event of a row that has no position yet."""
    return Event(0, *row[:-1])


@contextmanager
def _after_commit(undone: str) -> Iterator[None]:
    """Log an error instead of raising it: the events are stored, and the caller would append them again."""
    try:
        yield
    except Exception as error:
        match error:
            case ExplainedError():
                reason = f"[{error.code}] {error.what}"
            case DBAPIError():
                reason = reason_of(error)
            case _:
                reason = repr(error)
        _log.warning("the events are stored, but %s: %s", undone, reason)


def _warn_of(clashes: Clashes) -> None:
    if clashes.message:
        _log.warning("%s", clashes.message)


def _length_of_payload(row: Row) -> int:
    return len(row[_PAYLOAD] or "")

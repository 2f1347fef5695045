"""Event sources that are tables of other systems, read by a mapping of their columns. Nothing is ever written there."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from threading import Lock
from typing import Any

from sqlalchemy import Connection

from opencqrs_py.adapters.sql.at_work import AtWork
from opencqrs_py.adapters.sql.databases import Database
from opencqrs_py.adapters.sql.foreign import ForeignTable, fitted, in_utc
from opencqrs_py.adapters.sql.horizon import Horizon
from opencqrs_py.adapters.sql.kinds import mark_of
from opencqrs_py.adapters.sql.outages import DatabaseAwayError
from opencqrs_py.adapters.sql.watching import polling
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.event import Event
from opencqrs_py.model.fingerprint import LogMark, check_mark
from opencqrs_py.model.mapping import TableMapping
from opencqrs_py.model.selection import Selection, Slice
from opencqrs_py.model.times import microseconds
from opencqrs_py.processing.ports import Watch

__all__ = ["MappedEventSource"]

_STRETCH = 10_000  # rows that are searched at once
_STRETCHES = 20  # stretches that one call searches, so that it comes back in good time
_FIRST_SECONDS = 10.0  # so long a first look waits for those at work
_PAUSE_SECONDS = 0.01
_STALLED_SECONDS = 10.0  # after that long a transaction that holds the horizon back is spoken of
_JSON = "application/json"

_log = logging.getLogger(__name__)


class MappedEventSource:
    """Somebody else's table as an event log.

    On PostgreSQL it is read up to the horizon below which nothing can be added any more. SQLite has one writer at a
    time, so everything that can be seen is final.

    Args:
        database: Where the table is.
        mapping: Which column holds what.

    Raises:
        EventStoreError: OCQ-325 on MariaDB, which does not tell who is at work.
    """

    def __init__(self, database: Database, mapping: TableMapping) -> None:
        if database.kind == "mariadb":
            what = "tables of others cannot be read on MariaDB: it does not tell whether a lower position may come yet"
            fix = "export the events to files, or append them to an event store of ours as they happen"
            raise EventStoreError("OCQ-325", what, database.label, fix)
        self._database = database
        self._mapping = mapping
        self._mark = mark_of(database.kind)
        self._looking = Lock()
        self._horizon = Horizon()
        self._moved = time.monotonic()
        self._spoken_of: frozenset[str] = frozenset()
        self._table: ForeignTable | None = None
        self._at_work: AtWork | None = None

    def head(self) -> int:
        """Return the horizon: the highest position below which nothing will be added, 0 in an empty table.

        Raises:
            EventStoreError: OCQ-313, OCQ-314, OCQ-338 or OCQ-339, if the mapping does not fit the table.
            DatabaseAwayError: OCQ-315, if at the first look a transaction does not end that may hold a lower position.
        """
        with self._database.reading() as connection:
            return self._look(connection)

    def read(self, after: int, limit: int, selection: Selection, upto: int | None = None) -> Slice:
        """Return the selected events that follow ``after``, at most ``limit``; there may be more behind the slice.

        What is not behind ``upto`` is read without a look at the horizon, which may have to wait for others.
        """
        with self._database.reading() as connection:
            known = self._horizon.upto or 0
            if upto is None:
                final = known if known > after else self._look(connection)
                return self._within(connection, after, final, limit, selection)
            part = self._within(connection, after, upto, limit, selection)
            if upto <= max(known, after) or self._there(connection, part, upto):
                return part
            return self._within(connection, after, min(upto, self._look(connection)), limit, selection)

    def position_before(self, moment: datetime) -> int:
        """Return the position before the first event with ``time >= moment``; the head if there is none.

        Raises:
            EventStoreError: OCQ-339, if an event before it has something else for a time.
        """
        wanted = microseconds(moment.isoformat())
        assert wanted is not None  # noqa: S101 for the type checker
        after, head = 0, self.head()
        while after < head:
            part = self.read(after, _STRETCH, Selection())
            for event in part.events:
                happened = self._time_of(event)
                if happened is not None and happened >= wanted:
                    return event.position - 1
            after = part.upto
        return head

    def watched(self) -> AbstractContextManager[Watch]:
        """Open a watch, on a connection of its own that is closed at the end of the block."""
        return self._watched()

    def fingerprint(self, position: int, event: Event | None = None) -> str:
        """Return a text that identifies the log up to ``position``: its newest row at or below it."""
        return LogMark.of(event if event is not None else self._newest(position)).text

    def verify(self, position: int, fingerprint: str) -> None:
        """Check that the table still holds what ``fingerprint`` says.

        Raises:
            EventStoreError: OCQ-316, if it does not.
        """

        def find(marked: int) -> LogMark | None:
            found = LogMark.of(self._newest(marked))
            return found if found.position == marked else None

        check_mark(position, fingerprint, self.head, find, f"{self._database.label} table '{self._mapping.table}'")

    def is_outage(self, error: BaseException) -> bool:
        """Say whether the database does not answer for now, or a transaction has to end first."""
        return self._database.is_outage(error)

    @contextmanager
    def _watched(self) -> Iterator[Watch]:
        with polling(self._database, self._look) as watch:
            yield watch

    def _look(self, connection: Connection) -> int:
        """Return the horizon, as it is now; one looks at a time, as what was seen must be taken in in this order."""
        with self._looking:
            until = time.monotonic() + _FIRST_SECONDS
            while True:
                self._look_once(connection)
                if self._horizon.upto is not None:
                    return self._horizon.upto
                if time.monotonic() >= until:
                    raise self._held_up(connection)
                time.sleep(_PAUSE_SECONDS)

    def _look_once(self, connection: Connection) -> None:
        self._fitted(connection)
        before = self._horizon.mark
        if self._at_work is None:
            self._horizon.look(self._highest(connection), frozenset())
            return
        if before is None and self._at_work.doubt:
            _log.warning("%s", self._at_work.doubt)
        seen = self._at_work.look(connection)
        self._horizon.look(seen.highest, seen.at_work)
        if self._horizon.mark != before or seen.highest == self._horizon.upto:
            self._moved = time.monotonic()
        elif time.monotonic() - self._moved >= _STALLED_SECONDS and self._horizon.waited_for != self._spoken_of:
            self._spoken_of = self._horizon.waited_for
            _log.warning("%s", self._held_up(connection).what)

    def _held_up(self, connection: Connection) -> DatabaseAwayError:
        assert self._at_work is not None  # noqa: S101 only there somebody is waited for
        who = self._at_work.describe(connection, self._horizon.waited_for)
        what = (
            f"{who} may still add events to '{self._mapping.table}' below position {self._horizon.mark}; "
            f"nothing behind {self._horizon.upto or 0} is read until it has ended"
        )
        return DatabaseAwayError("OCQ-315", what, self._database.label, "let it finish, or end it")

    def _fitted(self, connection: Connection) -> ForeignTable:
        if self._table is None:
            table = fitted(self._database, connection, self._mapping)
            if self._database.kind == "postgresql":
                self._at_work = AtWork.on(self._database, connection, self._mapping, table)
            self._table = table
        return self._table

    def _highest(self, connection: Connection) -> int:
        table = self._fitted(connection)
        return connection.exec_driver_sql(f"SELECT max({table.position}) FROM {table.name}").scalar() or 0  # noqa: S608

    def _newest(self, position: int) -> Event | None:
        with self._database.reading() as connection:
            table = self._fitted(connection)
            where = f"{table.name} WHERE {table.position} <= {self._mark} ORDER BY {table.position} DESC LIMIT 1"
            row = connection.exec_driver_sql(f"SELECT {table.selected} FROM {where}", (position,)).first()  # noqa: S608
        return None if row is None else self._event(row)

    def _there(self, connection: Connection, part: Slice, upto: int) -> bool:
        """Say whether the table reaches as far as the slice: it may have been restored since ``upto`` was seen."""
        seen = part.events[-1].position if part.events else part.after
        return part.upto < upto or seen == upto or self._highest(connection) >= upto

    def _within(self, connection: Connection, after: int, upto: int, limit: int, selection: Selection) -> Slice:
        """Read of ``after + 1..upto``, where nothing will be added any more."""
        if upto <= after:
            return Slice(after, after)
        if selection.everything and selection.types is None:
            return self._page(connection, after, upto, limit, "", ())
        conditions, values = self._conditions(connection, selection)
        start = after
        for _ in range(_STRETCHES):
            end = self._end_of_stretch(connection, start, upto)
            part = self._page(connection, start, end, limit, conditions, values)
            if part.events or part.upto == upto:
                return Slice(after, part.upto, part.events)
            start = part.upto
        return Slice(after, start)

    def _end_of_stretch(self, connection: Connection, after: int, upto: int) -> int:
        """Return the position of the row with which a stretch ends; rows may be removed meanwhile, but none added."""
        table = self._fitted(connection)
        text = (
            f"SELECT {table.position} FROM {table.name} WHERE {table.position} > {self._mark} "  # noqa: S608 quoted
            f"AND {table.position} <= {self._mark} ORDER BY {table.position} LIMIT 1 OFFSET {_STRETCH - 1}"
        )
        end = connection.exec_driver_sql(text, (after, upto)).scalar()
        return upto if end is None else int(end)

    def _page(
        self, connection: Connection, after: int, upto: int, limit: int, conditions: str, values: tuple[str, ...]
    ) -> Slice:
        """Read one page; a limit around the inner rows keeps a server from looking for another way than the key."""
        table = self._fitted(connection)
        rows = f"{table.name} WHERE {table.position} > {self._mark} AND {table.position} <= {self._mark}"
        if conditions:
            rows = f"(SELECT * FROM {rows} ORDER BY {table.position} LIMIT {_STRETCH}) stretch WHERE {conditions}"  # noqa: S608
        text = f"SELECT {table.selected} FROM {rows} ORDER BY {table.position} LIMIT {self._mark}"  # noqa: S608 quoted
        found = connection.exec_driver_sql(text, (after, upto, *values, limit))
        events = tuple(self._event(row) for row in found)
        return Slice(after, events[-1].position if len(events) == limit else upto, events)

    def _conditions(self, connection: Connection, selection: Selection) -> tuple[str, tuple[str, ...]]:
        table = self._fitted(connection)
        texts: list[str] = []
        values: tuple[str, ...] = ()
        if selection.types is not None:
            kinds = tuple(sorted(selection.types))
            texts.append(f"{table.type} IN ({', '.join([self._mark] * len(kinds))})" if kinds else "1 = 0")
            values += kinds
        if not selection.everything:
            exact = f"{table.subject} = {self._mark}"
            below = f"substr({table.subject}, 1, {len(selection.prefix)}) = {self._mark}"
            texts.append(f"({exact} OR {below})" if selection.recursive else exact)
            values += (selection.subject, selection.prefix) if selection.recursive else (selection.subject,)
        return " AND ".join(texts), values

    def _time_of(self, event: Event) -> int | None:
        try:
            return microseconds(event.time)
        except ValueError:
            what = (
                f"the column '{self._mapping.time}' of '{self._mapping.table}' holds {event.time!r}, which is no time"
            )
            fix = (
                f"name a column of timestamps or RFC 3339 texts in {self._mapping.said_in}.time, or start at a position"
            )
            raise EventStoreError("OCQ-339", what, event.label, fix) from None

    def _event(self, row: Any) -> Event:
        position, event_id, source, subject, kind, moment, data, metadata = row
        if source is None:
            source = self._mapping.source_value or self._mapping.table
        extensions = None if metadata == "null" else metadata
        return Event(position, event_id, source, subject or "/", kind, in_utc(moment), _JSON, data, extensions)

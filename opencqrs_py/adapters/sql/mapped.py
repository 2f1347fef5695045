"""Event sources that are tables of other systems, read by a mapping of their columns. Nothing is ever written there."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from itertools import pairwise, takewhile
from threading import Lock
from typing import Any

from sqlalchemy import Connection
from typing_extensions import override

from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.dialects.faults import DatabaseAwayError
from opencqrs_py.adapters.sql.foreign import ForeignTable, Horizon, Writers, doubts, fitted
from opencqrs_py.adapters.sql.watching import polling
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.event import NOT_UTF_8, Event
from opencqrs_py.model.mapping import TableMapping
from opencqrs_py.model.progress import LogMark, check_mark
from opencqrs_py.model.selection import Selection, Slice
from opencqrs_py.model.times import in_utc, microseconds
from opencqrs_py.processing.ports import EventSource, Watch

_PAGE_ROWS = 10_000  # rows that are searched at once
_PAGES = 20  # that one call searches, so that it returns in good time
_FIRST_SECONDS = 10.0  # for which a first check waits for active transactions
_PAUSE_SECONDS = 0.01
_STALLED_SECONDS = 10.0  # after which a transaction that holds the horizon back is logged
_REUSED = (
    "rows of '%s' were removed, and a new row has the position %d, which is not read: everything up to %d was read "
    "before. The position of a removed row must not be given again, for which a column of SQLite needs INTEGER PRIMARY "
    "KEY AUTOINCREMENT; do not restart a sequence (%s)"
)
_JSON = "application/json"
_BY_POSITION = "ORDER BY 1"  # by its number, since other columns of what is selected may have its name
_NEEDED = {"id": 1, "source": 2, "subject": 3, "type": 4}  # columns of what is selected that must be texts
_WITHOUT_DEFAULT = ("id", "type")

_log = logging.getLogger("opencqrs.store")


class MappedEventSource(EventSource):
    """A table of another system as an event log, read by a mapping of its columns.

    On PostgreSQL it is read up to the horizon below which nothing can be added. SQLite has one writer at a
    time, so everything that can be seen is final.

    Raises:
        EventStoreError: OCQ-325 on MariaDB, which does not show active transactions.
    """

    def __init__(self, database: Database, mapping: TableMapping) -> None:
        if not database.dialect.reads_foreign_tables:
            what = (
                "tables of others cannot be read on MariaDB: it does not show whether a lower position may still come"
            )
            fix = "export the events to files, or append them to an event store of ours as they happen"
            raise EventStoreError("OCQ-325", what, database.label, fix)
        self._database = database
        self._mapping = mapping
        self._mark = database.dialect.mark
        self._looking = Lock()
        self._horizon = Horizon()
        self._moved = time.monotonic()
        self._logged: frozenset[str] = frozenset()
        self._highest_row = 0
        self._reuse_logged = False
        self._table: ForeignTable | None = None
        self._writers: Writers | None = None

    @override
    def head(self) -> int:
        """Return the horizon: the highest position below which nothing will be added, 0 in an empty table.

        Raises:
            EventStoreError: OCQ-313, OCQ-314, OCQ-338 or OCQ-339, if the mapping does not fit the table.
            DatabaseAwayError: OCQ-315, if at the first look a transaction does not end that may hold a lower position.
        """
        with self._database.reading() as connection:
            return self._look(connection)

    def newest(self) -> int:
        """Return the highest position in the table, 0 in an empty one; see ``HeldUpSource``."""
        with self._database.reading() as connection:
            return self._highest(connection)

    @override
    def read(self, after: int, limit: int, selection: Selection, upto: int | None = None) -> Slice:
        """Return the selected events that follow ``after``, at most ``limit``; there may be more after the slice.

        Up to ``upto`` it reads without determining the horizon, which may have to wait for others.
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

    @override
    def position_before(self, moment: datetime) -> int:
        """Return the position before the first event with ``time >= moment``; the head if there is none.

        Raises:
            EventStoreError: OCQ-339, if an event before it has something else for a time.
        """
        wanted = microseconds(moment.isoformat())
        assert wanted is not None  # noqa: S101 for the type checker
        after, head = 0, self.head()
        while after < head:
            part = self.read(after, _PAGE_ROWS, Selection())
            for event in part.events:
                happened = self._time_of(event)
                if happened is not None and happened >= wanted:
                    return event.position - 1
            after = part.upto
        return head

    @override
    @contextmanager
    def watched(self) -> Iterator[Watch]:
        with polling(self._database, self._look) as watch:
            yield watch

    @override
    def fingerprint(self, position: int, event: Event | None = None) -> str:
        return LogMark.of(event if event is not None else self._newest(position)).text

    @override
    def verify(self, position: int, fingerprint: str) -> None:

        def find(marked: int) -> LogMark | None:
            found = LogMark.of(self._newest(marked))
            return found if found.position == marked else None

        label = f"{self._database.label} table '{self._mapping.table}'"
        check_mark(position, fingerprint, self.newest, find, label)  # whatever is open: what was handled is final

    @override
    def is_outage(self, error: BaseException) -> bool:
        return self._database.is_outage(error)

    def renew(self) -> None:
        """Forget the horizon: the next check waits, as the first one did, until everything visible by then is final."""
        with self._looking:
            self._horizon = Horizon()

    def _look(self, connection: Connection) -> int:
        """Return the current horizon; by one thread at a time, as observations must be processed in their order."""
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
        if self._writers is None:
            highest = self._highest(connection)
            self._notice_reuse(highest)
            self._horizon.look(highest, frozenset())
            return
        if before is None and self._writers.doubt:
            _log.warning("%s", self._writers.doubt)
        highest, active = self._writers.look(connection)
        self._notice_reuse(highest)
        self._horizon.look(highest, active)
        if self._horizon.mark != before or highest == self._horizon.upto:
            self._moved = time.monotonic()
        elif time.monotonic() - self._moved >= _STALLED_SECONDS and self._horizon.waited_for != self._logged:
            self._logged = self._horizon.waited_for
            _log.warning("%s", self._held_up(connection).what)

    def _notice_reuse(self, highest: int) -> None:
        """Log once that a removed row's position was given again: everything up to the horizon was read before."""
        upto, before = self._horizon.upto or 0, self._highest_row
        self._highest_row = highest
        if before < highest <= upto and not self._reuse_logged:
            self._reuse_logged = True
            _log.warning(_REUSED, self._mapping.table, highest, upto, self._database.label)

    def _held_up(self, connection: Connection) -> DatabaseAwayError:
        assert self._writers is not None  # noqa: S101 else no transaction is waited for
        who = self._writers.describe(connection, self._horizon.waited_for)
        what = (
            f"{who} may still add events to '{self._mapping.table}' below position {self._horizon.mark}; "
            f"nothing after {self._horizon.upto or 0} is read until it has ended"
        )
        return DatabaseAwayError("OCQ-315", what, self._database.label, "let it finish, or end it")

    def _fitted(self, connection: Connection) -> ForeignTable:
        if self._table is None:
            table = fitted(self._database, connection, self._mapping)
            self._writers = self._database.dialect.writers(self._database, connection, self._mapping, table)
            self._table = table
            for doubt in doubts(self._database, connection, self._mapping, table):
                _log.warning("%s", doubt)
        return self._table

    def _highest(self, connection: Connection) -> int:
        table = self._fitted(connection)
        found = connection.exec_driver_sql(f"SELECT max({table.position}) FROM {table.name}").scalar() or 0  # noqa: S608
        if not isinstance(found, int):  # SQLite keeps anything in any column
            raise self._no_position(f"holds {found!r}, which is not a position")
        return found

    def _newest(self, position: int) -> Event | None:
        with self._database.reading() as connection:
            table = self._fitted(connection)
            where = f"{table.name} WHERE {table.position} <= {self._mark} {_BY_POSITION} DESC LIMIT 1"
            row = connection.exec_driver_sql(f"SELECT {table.selected} FROM {where}", (position,)).first()  # noqa: S608
        return None if row is None else self._event(_decoded(row))

    def _there(self, connection: Connection, part: Slice, upto: int) -> bool:
        """Return whether the table reaches as far as the slice: it may have been restored since ``upto`` was seen."""
        seen = part.events[-1].position if part.events else part.after
        return part.upto < upto or seen == upto or self._highest(connection) >= upto

    def _within(self, connection: Connection, after: int, upto: int, limit: int, selection: Selection) -> Slice:
        """Read from ``after + 1..upto``, which is final."""
        if upto <= after:
            return Slice(after, after)
        if selection.everything and selection.types is None:
            return self._page(connection, after, upto, limit, "", ())
        conditions, values = self._conditions(connection, selection)
        start = after
        for _ in range(_PAGES):
            end = self._end_of_page(connection, start, upto)
            part = self._page(connection, start, end, limit, conditions, values)
            if part.events or part.upto == upto:
                return Slice(after, part.upto, part.events)
            start = part.upto
        return Slice(after, start)

    def _end_of_page(self, connection: Connection, after: int, upto: int) -> int:
        """Return the position of the row with which a page ends; rows may be removed meanwhile, but none added."""
        table = self._fitted(connection)
        text = (
            f"SELECT {table.position} FROM {table.name} WHERE {table.position} > {self._mark} "  # noqa: S608 quoted
            f"AND {table.position} <= {self._mark} ORDER BY {table.position} LIMIT 1 OFFSET {_PAGE_ROWS - 1}"
        )
        end = connection.exec_driver_sql(text, (after, upto)).scalar()
        return upto if end is None else int(end)

    def _page(
        self,
        connection: Connection,
        after: int,
        upto: int,
        limit: int,
        conditions: str,
        values: tuple[str | bytes, ...],
    ) -> Slice:
        """Read one page, and one row more, which shows whether its position comes twice.

        It ends before a row that is not an event, at which the next one begins. A limit around the inner rows
        keeps a server from looking for another way than the key.
        """
        table = self._fitted(connection)
        rows = f"{table.name} WHERE {table.position} > {self._mark} AND {table.position} <= {self._mark}"
        if conditions:
            rows = f"(SELECT * FROM {rows} ORDER BY {table.position} LIMIT {_PAGE_ROWS + 1}) page WHERE {conditions}"  # noqa: S608
        text = f"SELECT {table.selected} FROM {rows} {_BY_POSITION} LIMIT {self._mark}"  # noqa: S608 quoted
        found = list(map(_decoded, connection.exec_driver_sql(text, (after, upto, *values, limit + 1))))
        for one, other in pairwise(found):
            if one[0] == other[0]:
                raise self._no_position(
                    f"is {one[0]} in several rows, for example those with the ids {one[1]} and {other[1]}"
                )
        whole = list(takewhile(lambda row: not _unusable(row), found[:limit]))
        if len(whole) < len(found[:limit]):
            if not whole:
                raise self._incomplete(found[0])
            upto = whole[-1][0]
        events = tuple(map(self._event, whole))
        return Slice(after, events[-1].position if len(events) == limit else upto, events)

    def _incomplete(self, row: Any) -> EventStoreError:
        part = _unusable(row)
        why = "is NULL" if row[_NEEDED[part]] is None else "holds bytes that are not UTF-8"
        column = f"the column '{self._mapping.columns[part]}' of '{self._mapping.table}'"
        what = f"{column} {why} in the row at position {row[0]}"
        fix = f"put a text there, or name a column that has one in each row in {self._mapping.said_in}.{part}"
        return EventStoreError("OCQ-339", what, self._database.label, fix)

    def _no_position(self, why: str) -> EventStoreError:
        what = f"the column '{self._mapping.position}' of '{self._mapping.table}' {why}"
        fix = f"name a column of whole numbers, each in one row only, in {self._mapping.said_in}.position"
        return EventStoreError("OCQ-339", what, self._database.label, fix)

    def _conditions(self, connection: Connection, selection: Selection) -> tuple[str, tuple[str | bytes, ...]]:
        table = self._fitted(connection)
        texts: list[str] = []
        values: tuple[str | bytes, ...] = ()
        if selection.types is not None:
            kinds = tuple(map(table.type.value, sorted(selection.types)))
            texts.append(f"{table.type.expression} IN ({', '.join([self._mark] * len(kinds))})" if kinds else "1 = 0")
            values += kinds
        if not selection.everything:
            column, subject, prefix = table.subject, *map(table.subject.value, (selection.subject, selection.prefix))
            exact = f"{column.expression} = {self._mark}"
            below = f"substr({column.expression}, 1, {len(prefix)}) = {self._mark}"
            texts.append(f"({exact} OR {below})" if selection.recursive else exact)
            values += (subject, prefix) if selection.recursive else (subject,)
        return " AND ".join(texts), values

    def _time_of(self, event: Event) -> int | None:
        try:
            return microseconds(event.time)
        except ValueError:
            column = f"the column '{self._mapping.time}' of '{self._mapping.table}'"
            what = f"{column} holds {event.time!r}, which is not a time"
            fix = (
                f"name a column of timestamps or RFC 3339 texts in {self._mapping.said_in}.time, or start at a position"
            )
            raise EventStoreError("OCQ-339", what, event.label, fix) from None

    def _event(self, row: Any) -> Event:
        position, event_id, source, subject, kind, moment, data, metadata = map(_shown, row)
        if source is None:
            source = self._mapping.source_value or self._mapping.table
        extensions = None if metadata == "null" else metadata
        return Event(position, event_id, source, subject or "/", kind, in_utc(moment), _JSON, data, extensions)


def _decoded(row: Any) -> tuple[Any, ...]:
    """Return a row with texts for bytes; bytes that are not UTF-8 are left."""
    try:
        return tuple([value.decode() if type(value) is bytes else value for value in row])
    except UnicodeDecodeError:
        return tuple(map(_text_of, row))


def _text_of(value: Any) -> Any:
    try:
        return value.decode() if type(value) is bytes else value
    except UnicodeDecodeError:
        return value


def _shown(value: Any) -> Any:
    """Return a value of a decoded row; for bytes that are left, a text that is not JSON."""
    return NOT_UTF_8 + value.decode(errors="backslashreplace") if type(value) is bytes else value


def _unusable(row: Any) -> str:
    """Return the attribute for which a decoded row is not an event; empty if it is one."""
    for part, column in _NEEDED.items():
        if type(row[column]) is bytes or (row[column] is None and part in _WITHOUT_DEFAULT):
            return part
    return ""

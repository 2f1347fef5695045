"""Reading the table of events: which statement is right for how much of the log is wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from threading import Lock

from sqlalchemy import Connection, func, select
from typing_extensions import override

from opencqrs_py.adapters.sql.connections import Rows
from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.read_requests import COLUMNS, LIVE, ReadRequest, head_query
from opencqrs_py.adapters.sql.tables import EVENTS, prepare
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.event import Event
from opencqrs_py.model.partition import hash_of
from opencqrs_py.model.progress import LogMark, check_mark
from opencqrs_py.model.selection import Selection, Share, Slice
from opencqrs_py.model.times import microseconds
from opencqrs_py.processing.finding import FindingSource, FoundEvent
from opencqrs_py.processing.ports import EventSource, SharingSource, Watch
from opencqrs_py.processing.sequence_resolvers import cut_subject

_AS_EVENT = partial(tuple.__new__, Event)  # what Event._make does, without its check: rows have the columns asked for
_WHOLE = ", ".join(Event._fields)


class SqlEventSource(EventSource, SharingSource, FindingSource):
    """The table ``opencqrs_events`` as it is read.

    Args:
        database: Where the table is; it is created at first use.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._table = database.table(EVENTS)
        self._ready = False
        self._known = 0  # a position that the log has reached
        self._few_until = -1  # the end of the last read, if it has found few events: then so will the next one
        self._lock = Lock()
        self._selects: dict[bool, bool] = {}  # shares: by whether the subject is cut
        self._fingerprint: tuple[int, str] | None = None  # the last one, which partitions ask for one after the other

    @override
    def head(self) -> int:
        self._prepare()
        with self._database.reading() as connection:
            return self._look(connection)

    def selects(self, share: Share) -> bool:
        """Return whether the database computes the sequences' numbers, and as we do."""
        cut = share.level is not None
        if cut not in self._selects:
            try:
                self._selects[cut] = hashes_alike(self._database, share.level)
            except Exception as error:
                if not self._database.is_outage(error):
                    self._selects[cut] = False
                return False
        return self._selects[cut]

    def count(self) -> int:
        """Return how many events there are."""
        self._prepare()
        with self._database.reading() as connection:
            return connection.execute(select(func.count()).select_from(self._table)).scalar_one()

    @override
    def read(self, after: int, limit: int, selection: Selection, upto: int | None = None) -> Slice:
        """Return the selected events that follow ``after``; the head is not asked for: up to ``upto`` all is final."""
        if not self._ready:
            self._prepare()
        live = 0 < self._known - after <= LIVE or after == self._few_until
        columns = _WHOLE if live else COLUMNS.get(selection.attributes, _WHOLE)
        request = ReadRequest(self._database, selection, limit, columns)
        with self._database.guard.quiet():
            if upto is None:
                end, rows = request.following(after, self._known)
            else:
                end, rows = request.within(after, upto, self._known)
        self._few_until = end if len(rows) <= LIVE else -1
        if columns is _WHOLE or not rows:
            return Slice(after, end, tuple(map(_AS_EVENT, rows)))
        return Slice(after, end, Chunk(rows, partial(read_whole, self._database)))

    def read_columns(
        self, after: int, limit: int, selection: Selection, upto: int, columns: Sequence[str]
    ) -> tuple[int, Rows]:
        """Read some attributes of events as rows, without an object for each event.

        Args:
            after: As of ``read``, and the next three.
            limit: Most rows.
            selection: Which events.
            upto: The last position of interest.
            columns: The attributes, the position first.

        Returns:
            The last position of the page, and its rows.
        """
        if not self._ready:
            self._prepare()
        request = ReadRequest(self._database, selection, limit, ", ".join(columns))
        with self._database.guard.quiet():
            return request.within(after, upto, self._known)

    def neighbours(self, positions: Sequence[int], nth: int = 1) -> list[tuple[int | None, int | None]]:
        """Return for each position the last event at or before it, and the ``nth`` one after it, by the index."""
        self._prepare()
        return neighbours(self._database, f"{self._database.prefix}{EVENTS.name}", "position", positions, nth)

    def find(self, event_id: str, source: str = "") -> list[FoundEvent]:
        """Return the events with an id, by source; of one source if it is named. An index finds them."""
        self._prepare()
        table = self._database.prefix + EVENTS.name
        rows = self._database.fetch(*self._database.dialect.find_event(table, event_id, source))
        return [FoundEvent(position, of) for position, of in rows]

    @override
    def position_before(self, moment: datetime) -> int:
        self._prepare()
        columns = self._table.c
        late_enough = select(columns.position).where(columns.time_us >= microseconds(moment.isoformat()))
        with self._database.reading() as connection:
            head = self._look(connection)
            position = connection.execute(late_enough.order_by(columns.position).limit(1)).scalar()
            return head if position is None else position - 1

    @override
    @contextmanager
    def watched(self) -> Iterator[Watch]:
        self._prepare()
        with self._database.dialect.watch(self._database, self._look) as watch:
            yield watch

    @override
    def fingerprint(self, position: int, event: Event | None = None) -> str:
        if event is not None:
            text = LogMark(event.position, event.source, event.id).text
        else:
            if not self._ready:
                self._prepare()
            with self._lock:
                known = self._fingerprint
            if known is not None and known[0] == position:
                return known[1]
            text = newest_mark(self._database, position).text
        with self._lock:
            self._fingerprint = (position, text)
        return text

    @override
    def verify(self, position: int, fingerprint: str) -> None:
        self._prepare()

        def find(marked: int) -> LogMark | None:
            found = newest_mark(self._database, marked)
            return found if found.position == marked else None

        with self._lock:
            self._fingerprint = None
        check_mark(position, fingerprint, self.head, find, self._database.label)

    @override
    def is_outage(self, error: BaseException) -> bool:
        return self._database.is_outage(error)

    def _look(self, connection: Connection) -> int:
        self._known = head_of(self._database, connection)
        return self._known

    def _prepare(self) -> None:
        if not self._ready:
            prepare(self._database, EVENTS)
            self._ready = True


def head_of(database: Database, connection: Connection) -> int:
    """Return the position of the newest event, 0 when there is none."""
    return connection.exec_driver_sql(head_query(database.prefix)).scalar() or 0


def newest_mark(database: Database, position: int) -> LogMark:
    """Return the mark of the newest event at or below a position."""
    where = f"WHERE position <= {database.dialect.mark} ORDER BY position DESC LIMIT 1"
    text = f"SELECT position, source, id FROM {database.prefix}{EVENTS.name} {where}"  # noqa: S608 our own names
    rows = database.fetch(text, (position,))
    return LogMark(*rows[0]) if rows else LogMark()


def hashes_alike(database: Database, level: int | None) -> bool:
    """Return whether the database computes the number of a sequence as ``hash_of`` does; raises where it cannot."""
    subject = "/loans/Bücher/4711/€"
    found = database.dialect.hash_of(f"'{subject}'", level)
    if not found:
        return False
    ((number,),) = database.fetch(f"SELECT {found}")
    return bool(number == hash_of(subject if level is None else cut_subject(subject, level)))


def read_whole(database: Database, position: int) -> Event:
    """Return the event at a position with all its attributes."""
    where = f"position = {database.dialect.mark}"
    (row,) = database.fetch(f"SELECT {_WHOLE} FROM {database.prefix}{EVENTS.name} WHERE {where}", (position,))  # noqa: S608
    return Event(*row)


def read_at(database: Database, positions: Sequence[int]) -> list[Event]:
    """Return the events at positions with all their attributes, in the order of the log."""
    given = ", ".join(str(int(position)) for position in positions)
    where = f"WHERE position IN ({given}) ORDER BY position"
    return [_AS_EVENT(row) for row in database.fetch(f"SELECT {_WHOLE} FROM {database.prefix}{EVENTS.name} {where}")]  # noqa: S608


def neighbours(
    database: Database, table: str, column: str, positions: Sequence[int], nth: int
) -> list[tuple[int | None, int | None]]:
    """Return for each position the last row at or before it, and the ``nth`` one after it, in one statement.

    Args:
        database: Where the table is.
        table: As statements name it, and its column of positions, which has an index.
        column: See ``table``.
        positions: Up to some hundred.
        nth: At least 1.
    """
    given = " UNION ALL ".join(f"SELECT {int(position)} AS bound" for position in positions)
    before = f"SELECT max({column}) FROM {table} WHERE {column} <= bounds.bound"  # noqa: S608 our own text, as below
    rows = f"SELECT {column} FROM {table} WHERE {column} > bounds.bound ORDER BY {column}"  # noqa: S608
    text = f"SELECT ({before}), ({rows} LIMIT 1 OFFSET {nth - 1}) FROM ({given}) AS bounds"  # noqa: S608
    return [(last, first) for last, first in database.fetch(text)]

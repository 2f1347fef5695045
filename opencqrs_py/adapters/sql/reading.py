"""Reading the table of events: which statement suits how much of the log is wanted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache, partial
from threading import Lock
from typing import Any, NamedTuple

from sqlalchemy import Connection, func, select
from typing_extensions import override

from opencqrs_py.adapters.sql.connections import FetchedRows
from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.dialects.dialect import Dialect
from opencqrs_py.adapters.sql.tables import EVENTS, prepare, see_that_it_exists
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.event import Event
from opencqrs_py.model.partition import hash_of
from opencqrs_py.model.progress import LogMark, check_mark
from opencqrs_py.model.selection import Selection, Share, Slice
from opencqrs_py.model.times import in_utc, microseconds
from opencqrs_py.processing.finding import FindingSource, FoundEvent
from opencqrs_py.processing.ports import EventSource, SharingSource, Watch
from opencqrs_py.processing.sequence_resolvers import cut_subject

LIVE = 32  # events at the head: they are read whole, since each commit needs the identity of its last one
_WINDOW = 10_000  # positions to scan before an index is used to find the next selected event
_FEW = 10_000  # events that an index may find and that are then sorted to get at the first ones
_PAGE = 10_000  # events that are searched for a time at once, where the first one has it as a text only
_MANY_TYPES = 50  # with more of them, hardly any event is rare

# The columns that are read where only these attributes are needed.
COLUMNS = {
    frozenset[str](): "position, type, payload",
    frozenset({"subject"}): "position, type, payload, subject",
    frozenset({"subject", "time"}): "position, type, payload, subject, time",
}

_AS_EVENT = partial(tuple.__new__, Event)  # what Event._make does, without its check: rows have the columns asked for
_WHOLE = ", ".join(Event._fields)


class SqlEventSource(EventSource, SharingSource, FindingSource):
    """The table ``opencqrs_events`` as it is read.

    Args:
        database: Where the table is.
        creates: Whether the table is created at first use, if it is missing; else that is an error (OCQ-327).
    """

    def __init__(self, database: Database, *, creates: bool = True) -> None:
        self._database = database
        self._creates = creates
        self._table = database.table(EVENTS)
        self._ready = False
        self._known = 0  # a position that the log has reached
        self._few_until = -1  # the end of the last read, if it has found few events: then so will the next one
        self._lock = Lock()
        self._selects: dict[bool, bool] = {}  # shares: by whether the subject is cut
        self._fingerprint: tuple[int, str] | None = None  # the last one, which partitions request one after the other

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
        """Return the selected events that follow ``after``, without reading the head, since ``upto`` is final."""
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
    ) -> tuple[int, FetchedRows]:
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
        columns, wanted = self._table.c, microseconds(moment.isoformat())
        assert wanted is not None  # noqa: S101 for the type checker
        # Other programs need not fill the column that is searched.
        late_or_text = (columns.time_us >= wanted) | (columns.time_us.is_(None) & columns.time.is_not(None))
        found = select(columns.position, columns.time_us, columns.time).where(late_or_text).order_by(columns.position)
        with self._database.reading() as connection:
            head, after, limit = self._look(connection), 0, 1
            while True:
                part = found.where(columns.position > after, columns.position <= head).limit(limit)
                rows = connection.execute(part).all()
                for position, time_us, text in rows:
                    happened = _moment_of(text) if time_us is None else time_us
                    if happened is not None and happened >= wanted:
                        return int(position) - 1
                if len(rows) < limit:
                    return head
                after, limit = rows[-1].position, _PAGE

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
            if not self._creates:
                see_that_it_exists(self._database, EVENTS)
            prepare(self._database, EVENTS)
            self._ready = True


def _moment_of(said: str) -> int | None:
    """Return the microseconds of a time, ``None`` if it is not a time."""
    try:
        return microseconds(in_utc(said))
    except (AttributeError, TypeError, ValueError):  # SQLite keeps anything in any column
        return None


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


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A read request for at most ``limit`` selected events, and the columns that are read of them.

    A scan along the positions is best if a large part of the log is selected. It ends early in a *window* without any
    selected event: then, if there are few in the rest of the log, an index finds them.
    """

    database: Database
    selection: Selection
    limit: int
    columns: str

    def following(self, after: int, known: int) -> _Found:
        """Return the next events; fewer than the limit do not mean that there are no more.

        The log has reached the position ``known`` already, 0 when none is known. Appends become visible in the order of
        their positions. So when a statement shows nothing at or below a position that was known before it, nothing will
        ever come there.

        MariaDB decides transaction by transaction what a statement may see, while others commit: one statement may show
        an event and not the one before. But the next statement shows both. So events beyond a position that was known
        before are not used there.
        """
        parts = _parts(self.selection)
        window = None if parts is None else after + _WINDOW * parts
        if not self.database.dialect.ordered_reads:
            known = known if known > after else self._head()
            if known <= after:
                return after, ()
            window = known if window is None else min(window, known)
        rows = self._walk(after, window)
        if rows:
            return rows[-1][0], rows
        if after < known and (window is None or known <= window):
            return known, ()
        head = self._head()
        if head <= after:
            return after, ()
        rows = self._rest(after, head)
        return rows[-1][0] if len(rows) == self.limit else head, rows

    def within(self, after: int, upto: int, known: int) -> _Found:
        """Return the next events of ``after + 1..upto``, all of which are known to be final.

        So one statement shows them all, on MariaDB, too. Only a slice that ends after the position ``known`` is checked
        again: a log that was restored may end before it.
        """
        if upto <= after:
            return after, ()
        parts = _parts(self.selection)
        end = upto if parts is None else min(upto, after + _WINDOW * parts)
        rows = self._walk(after, end)
        if not rows and end < upto:
            rows, end = self._rest(after, upto), upto
        last: int = rows[-1][0] if rows else after
        if len(rows) == self.limit or (rows and end < upto):
            return last, rows
        if end <= known or last == end:
            return end, rows
        head = self._head()
        return (end, rows) if end <= head else self.within(after, head, head)

    def _walk(self, after: int, upto: int | None) -> FetchedRows:
        """Scan along the positions."""
        database = self.database
        text, values = _walking(database.dialect, self.selection, database.prefix, self.columns, upto is not None)
        bounds = (after, self.limit) if upto is None else (after, upto, self.limit)
        return database.fetch(text, (*values, *bounds))

    def _rest(self, after: int, head: int) -> FetchedRows:
        """Return the events up to the head by an index, if that is quicker than continuing the scan."""
        database, mark = self.database, self.database.dialect.mark
        rare = _searching(database.dialect, self.selection, database.prefix)
        if rare is None or head - after <= _WINDOW:
            return self._walk(after, head)
        where = f"{rare.text}position > {mark} AND position <= {mark}"
        positions = f"SELECT position FROM {rare.table} WHERE {where}"  # noqa: S608 our own text
        counted = f"SELECT count(*) FROM ({positions} LIMIT {mark}) AS found"  # noqa: S608
        ((found,),) = database.fetch(counted, (*rare.values, after, head, _FEW + 1))
        if found > _FEW:
            return self._walk(after, head)
        table = f"{database.prefix}{EVENTS.name} WHERE position IN ({positions})"
        text = f"SELECT {self.columns} FROM {table} ORDER BY position LIMIT {mark}"  # noqa: S608
        return database.fetch(text, (*rare.values, after, head, self.limit))

    def _head(self) -> int:
        ((head,),) = self.database.fetch(head_query(self.database.prefix))
        return head or 0


@lru_cache(maxsize=1_000)
def _parts(selection: Selection) -> int | None:
    """Return in how many windows the selected events are about as many as in one; ``None`` where none is needed."""
    share = selection.share
    if share is not None:
        return share.modulus // len(share.residues)
    return None if selection.types is None and selection.everything else 1


class _Conditions(NamedTuple):
    """Conditions joined by AND.

    Attributes:
        text: SQL; ends with AND, unless it is empty, so that a condition on the position can follow.
        values: For its marks, in their order.
        table: The table; SQLite, which cannot tell what is rare, and MariaDB also get the index.
    """

    text: str
    values: tuple[Any, ...]
    table: str = EVENTS.name


@lru_cache(maxsize=1_000)
def _walking(
    dialect: Dialect,
    selection: Selection,
    prefix: str,
    columns: str,
    bounded: bool,  # noqa: FBT001 part of a key
) -> tuple[str, tuple[Any, ...]]:
    """Return a statement for a walk along the positions, which on SQLite no index is used for instead, and its values.

    SQLite does not know how many events are of a type, and would collect and sort those of the whole log to return the
    first few. It looks for no index when a column is part of an expression. The last values of the statement are the
    position before the walk, the last one of it if it is bounded, and the limit.
    """
    joined = _joined(*_types(dialect, selection), *_subjects(dialect, selection), *_shares(dialect, selection))
    mark = dialect.mark
    where = f"{joined.text}position > {mark}" + (f" AND position <= {mark}" if bounded else "")
    table = f"{prefix}{EVENTS.name}{dialect.walk_hint}"
    return f"SELECT {columns} FROM {table} WHERE {where} ORDER BY position LIMIT {mark}", joined.values  # noqa: S608


@lru_cache(maxsize=1_000)
def _searching(dialect: Dialect, selection: Selection, prefix: str = "") -> _Conditions | None:
    """Return conditions that an index answers; ``None`` when the selection leaves out too little for that."""
    types = sorted(selection.types or ())
    if not selection.everything:
        column, found = "subject", _range(dialect, "subject", *_bounds(selection))
    elif 0 < len(types) <= _MANY_TYPES:
        column, found = "type", _one_of(dialect, "type", types)
    else:
        return None
    others = *_types(dialect, selection), *_subjects(dialect, selection), *_shares(dialect, selection)
    joined = _joined(found, *others)
    index = f"{EVENTS.name}_{column}"
    return joined._replace(table=f"{prefix}{EVENTS.name}{dialect.search_hint.format(index)}")


def _joined(*conditions: _Conditions) -> _Conditions:
    text = "".join(f"{one.text} AND " for one in conditions)
    return _Conditions(text, tuple(value for one in conditions for value in one.values))


def _types(dialect: Dialect, selection: Selection) -> list[_Conditions]:
    if selection.types is None:
        return []
    types = tuple(sorted(selection.types))
    return [
        _Conditions(f"{dialect.unindexed.format('type')} IN ({_marks(dialect, types)})" if types else "1 = 0", types)
    ]


def _subjects(dialect: Dialect, selection: Selection) -> list[_Conditions]:
    """A range instead of LIKE: exact in case, nothing to escape."""
    if selection.everything:
        return []
    column, mark = dialect.unindexed.format("subject"), dialect.mark
    exact = f"{column} = {mark}"
    if not selection.recursive:
        return [_Conditions(exact, (selection.subject,))]
    below = f"({exact} OR ({column} >= {mark} AND {column} < {mark}))"
    return [_Conditions(below, (selection.subject, selection.prefix, _bounds(selection)[1]))]


def _shares(dialect: Dialect, selection: Selection) -> list[_Conditions]:
    """Compare the number of the sequence.

    PostgreSQL takes each number for one of two hundred, and would start parallel workers at each statement to find so
    few events; of a CASE it takes half.
    """
    share = selection.share
    if share is None:
        return []
    number = dialect.modulo.format(dialect.hash_of("subject", share.level), share.modulus)
    residues = ", ".join(map(str, sorted(share.residues)))
    return [_Conditions(f"CASE WHEN {number} IN ({residues}) THEN TRUE ELSE FALSE END", ())]


def _bounds(selection: Selection) -> tuple[str, str]:
    """Return the first and the last text between which all selected subjects lie."""
    if not selection.recursive:
        return selection.subject, selection.subject
    return selection.subject, selection.prefix[:-1] + "0"  # the character after "/"


def _range(dialect: Dialect, column: str, first: str, last: str) -> _Conditions:
    indexed, mark = dialect.indexed.format(column), dialect.mark
    if first == last:
        return _one_of(dialect, column, [first])
    values = tuple(text[: dialect.indexed_length] for text in (first, last))
    return _Conditions(f"{indexed} >= {mark} AND {indexed} <= {mark}", values)


def _one_of(dialect: Dialect, column: str, texts: list[str]) -> _Conditions:
    values = tuple(text[: dialect.indexed_length] for text in texts)
    return _Conditions(f"{dialect.indexed.format(column)} IN ({_marks(dialect, values)})", values)


def _marks(dialect: Dialect, values: tuple[str, ...]) -> str:
    return ", ".join([dialect.mark] * len(values))


def head_query(prefix: str) -> str:
    """Return the query for the position of the newest event."""
    return f"SELECT max(position) FROM {prefix}{EVENTS.name}"  # noqa: S608 our own names


_Found = tuple[int, FetchedRows]
"""The position up to which the rows are complete, and the rows."""

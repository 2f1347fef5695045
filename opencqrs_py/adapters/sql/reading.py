"""Reading the table of events: which statement is right for how much of the log is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

from sqlalchemy import Connection

from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.dialect import Dialect
from opencqrs_py.adapters.sql.tables import EVENTS
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.event import Event
from opencqrs_py.model.fingerprint import LogMark
from opencqrs_py.model.selection import Selection, Slice

_WINDOW = 10_000  # positions that are walked along before an index is asked where the next selected event is
_FEW = 10_000  # events that an index may find and that are then sorted to get at the first ones
_MANY_TYPES = 50  # with more of them, hardly anything is rare

_AS_EVENT = partial(tuple.__new__, Event)  # what Event._make does, without its check: rows have the columns asked for
_SELECT = f"SELECT {', '.join(Event._fields)} FROM"
_SELECT_ROWS = "SELECT position, type, payload FROM"
_SELECT_ROWS_AND_SUBJECTS = "SELECT position, type, payload, subject FROM"


def head_of(database: Database, connection: Connection) -> int:
    """Return the position of the newest event, 0 when there is none."""
    return connection.exec_driver_sql(_head(database.prefix)).scalar() or 0


def newest_mark(database: Database, position: int) -> LogMark:
    """Return the mark of the newest event at or below a position."""
    where = f"WHERE position <= {database.dialect.mark} ORDER BY position DESC LIMIT 1"
    text = f"SELECT position, source, id FROM {database.prefix}{EVENTS.name} {where}"  # noqa: S608 our own names
    rows = database.fetch(text, (position,))
    return LogMark(*rows[0]) if rows else LogMark()


def _head(prefix: str) -> str:
    return f"SELECT max(position) FROM {prefix}{EVENTS.name}"  # noqa: S608 our own names


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A read request for at most ``limit`` selected events.

    A walk along the positions is the right thing where a good part of the log is selected. It is cut short in a
    *window* without any selected event: then, if there are few in the rest of the log, an index finds them.
    """

    database: Database
    selection: Selection
    limit: int

    def following(self, after: int, known: int) -> Slice:
        """Return the next events; fewer than the limit do not mean that there are no more.

        The log has reached the position ``known`` already, 0 when none is known. Appends become visible in the order of
        their positions. So when a statement shows nothing at or below a position that was known before it, nothing will
        ever come there.

        MariaDB decides transaction by transaction what a statement may see, while others commit: one statement may show
        an event and not the one before. But the next statement shows both. So nothing is taken there from beyond a
        position that was known before.
        """
        everything = self.selection.everything and self.selection.types is None
        window = None if everything else after + _WINDOW
        if not self._dialect.ordered_reads:
            known = known if known > after else self._head()
            if known <= after:
                return Slice(after, after)
            window = known if window is None else min(window, known)
        events = self._walk(after, window)
        if events:
            return Slice(after, events[-1].position, events)
        if after < known and (window is None or known <= window):
            return Slice(after, known)
        head = self._head()
        if head <= after:
            return Slice(after, after)
        rare = self._rare(after, head)
        events = self._find(after, head, rare) if rare is not None else self._walk(after, head)
        return Slice(after, events[-1].position if len(events) == self.limit else head, events)

    def within(self, after: int, upto: int, known: int) -> Slice:
        """Return the next events of ``after + 1..upto``, all of which are known to be final.

        So one statement shows them all, on MariaDB, too. Only a slice that ends where no event is known to be, after
        the position ``known``, is made sure of: a log that was restored may end before it.
        """
        if upto <= after:
            return Slice(after, after)
        everything = self.selection.everything and self.selection.types is None
        end = upto if everything else min(upto, after + _WINDOW)
        events = self._walk(after, end)
        if not events and end < upto:
            rare, end = self._rare(after, upto), upto
            events = self._find(after, end, rare) if rare is not None else self._walk(after, end)
        if len(events) == self.limit or (events and end < upto):
            return Slice(after, events[-1].position, events)
        if end <= known or (events and events[-1].position == end):
            return Slice(after, end, events)
        head = self._head()
        return Slice(after, end, events) if end <= head else self.within(after, head, head)

    def _walk(self, after: int, upto: int | None) -> Sequence[Event]:
        conditions, mark = _walking(self._dialect, self.selection, self.database.prefix), self._dialect.mark
        bound, values = ("", ()) if upto is None else (f" AND position <= {mark}", (upto,))
        where = f"{conditions.text}position > {mark}{bound}"
        text = f"{self._select} {conditions.table} WHERE {where} ORDER BY position LIMIT {mark}"
        return self._events(text, (*conditions.values, after, *values, self.limit))

    def _rare(self, after: int, head: int) -> _Conditions | None:
        """Return conditions that an index answers, if that is quicker than to walk on."""
        conditions = _searching(self._dialect, self.selection, self.database.prefix)
        if conditions is None or head - after <= _WINDOW:
            return None
        text = f"SELECT count(*) FROM ({self._positions(conditions)} LIMIT {self._dialect.mark}) AS found"  # noqa: S608
        ((found,),) = self.database.fetch(text, (*conditions.values, after, head, _FEW + 1))
        return conditions if found <= _FEW else None

    def _find(self, after: int, head: int, rare: _Conditions) -> Sequence[Event]:
        found = f"position IN ({self._positions(rare)})"
        table = self.database.prefix + EVENTS.name
        text = f"{self._select} {table} WHERE {found} ORDER BY position LIMIT {self._dialect.mark}"
        return self._events(text, (*rare.values, after, head, self.limit))

    def _positions(self, conditions: _Conditions) -> str:
        mark = self._dialect.mark
        where = f"{conditions.text}position > {mark} AND position <= {mark}"
        return f"SELECT position FROM {conditions.table} WHERE {where}"  # noqa: S608 our own text

    def _events(self, text: str, values: tuple[Any, ...]) -> Sequence[Event]:
        rows = self.database.fetch(text, values)
        if self._select is _SELECT or not rows:
            return tuple(map(_AS_EVENT, rows))
        return Chunk(rows, self._whole)

    def _whole(self, position: int) -> Event:
        text = f"{_SELECT} {self.database.prefix}{EVENTS.name} WHERE position = {self._dialect.mark}"
        (row,) = self.database.fetch(text, (position,))
        return Event(*row)

    def _head(self) -> int:
        ((head,),) = self.database.fetch(_head(self.database.prefix))
        return head or 0

    @property
    def _select(self) -> str:
        if not self.selection.attributes:
            return _SELECT_ROWS
        return _SELECT_ROWS_AND_SUBJECTS if self.selection.attributes == {"subject"} else _SELECT

    @property
    def _dialect(self) -> Dialect:
        return self.database.dialect


class _Conditions(NamedTuple):
    """Conditions joined by AND.

    Attributes:
        text: SQL; ends with AND, unless it is empty, so that a condition on the position can follow.
        values: For its marks, in their order.
        table: The table; SQLite, which cannot tell what is rare, and MariaDB get the index as well.
    """

    text: str
    values: tuple[Any, ...]
    table: str = EVENTS.name


@lru_cache(maxsize=1_000)
def _walking(dialect: Dialect, selection: Selection, prefix: str = "") -> _Conditions:
    """Return conditions for a walk along the positions, which on SQLite no index is used for instead.

    SQLite has no idea how many events are of a type, and would collect and sort a whole log's to return the first few.
    It looks for no index when a column is part of an expression.
    """
    joined = _joined(*_types(dialect, selection), *_subjects(dialect, selection))
    return joined._replace(table=f"{prefix}{EVENTS.name}{dialect.walk_hint}")


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
    joined = _joined(found, *_types(dialect, selection), *_subjects(dialect, selection))
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

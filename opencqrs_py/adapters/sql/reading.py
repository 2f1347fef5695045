"""Reading the table of events: which statement is right for how much of the log is wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import Connection

from opencqrs_py.adapters.sql.conditions import Conditions, searching, walking
from opencqrs_py.adapters.sql.databases import Database
from opencqrs_py.adapters.sql.kinds import mark_of
from opencqrs_py.adapters.sql.schema import EVENTS
from opencqrs_py.model.event import Event
from opencqrs_py.model.fingerprint import LogMark
from opencqrs_py.model.rows import EventRows
from opencqrs_py.model.selection import Selection, Slice

__all__ = ["Reading", "head_of", "newest_mark"]

_WINDOW = 10_000  # positions that are walked along before an index is asked where the next selected event is
_FEW = 10_000  # events that an index may find and that are then sorted to get at the first ones

_AS_EVENT = partial(tuple.__new__, Event)  # what Event._make does, without its check: rows have the columns asked for
_SELECT = f"SELECT {', '.join(Event._fields)} FROM"
_SELECT_ROWS = "SELECT position, type, payload FROM"
_SELECT_ROWS_AND_SUBJECTS = "SELECT position, type, payload, subject FROM"


def head_of(database: Database, connection: Connection) -> int:
    """Return the position of the newest event, 0 when there is none."""
    return connection.exec_driver_sql(_head(database.prefix)).scalar() or 0


def newest_mark(database: Database, position: int) -> LogMark:
    """Return the mark of the newest event at or below a position."""
    where = f"WHERE position <= {mark_of(database.kind)} ORDER BY position DESC LIMIT 1"
    text = f"SELECT position, source, id FROM {database.prefix}{EVENTS.name} {where}"  # noqa: S608 our own names
    rows = database.fetch(text, (position,))
    return LogMark(*rows[0]) if rows else LogMark()


def _head(prefix: str) -> str:
    return f"SELECT max(position) FROM {prefix}{EVENTS.name}"  # noqa: S608 our own names


@dataclass(frozen=True, slots=True)
class Reading:
    """A reader's wish.

    A walk along the positions is the right thing where a good part of the log is selected. It is cut short in a
    *window* without any selected event: then, if there are few in the rest of the log, an index finds them.

    Attributes:
        database: Where the events are.
        selection: Which events.
        limit: Most events, at least 1.
    """

    database: Database
    selection: Selection
    limit: int

    def following(self, after: int, known: int) -> Slice:
        """Return the next events; fewer than the limit do not mean that there are no more.

        Appends become visible in the order of their positions. So when a statement shows nothing at or below a
        position that was known before it, nothing will ever come there.

        MariaDB decides transaction by transaction what a statement may see, while others commit: one statement may
        show an event and not the one before. But the next statement shows both. So nothing is taken there from beyond
        a position that was known before.

        Args:
            after: Position before the slice.
            known: A position that the log has reached already, 0 when none is known.
        """
        everything = self.selection.everything and self.selection.types is None
        window = None if everything else after + _WINDOW
        if self._kind == "mariadb":
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
        """Return the next events of ``after + 1..upto``, all of which somebody has seen to be final.

        So one statement shows them all, on MariaDB, too. Only a slice that ends where no event is known to be is made
        sure of: a log that was restored may end before it.

        Args:
            after: Position before the slice.
            upto: Last position of interest.
            known: A position that the log has reached already, 0 when none is known.
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
        conditions, mark = walking(self._kind, self.selection, self.database.prefix), mark_of(self._kind)
        bound, values = ("", ()) if upto is None else (f" AND position <= {mark}", (upto,))
        where = f"{conditions.text}position > {mark}{bound}"
        text = f"{self._select} {conditions.table} WHERE {where} ORDER BY position LIMIT {mark}"
        return self._events(text, (*conditions.values, after, *values, self.limit))

    def _rare(self, after: int, head: int) -> Conditions | None:
        """Return conditions that an index answers, if that is quicker than to walk on."""
        conditions = searching(self._kind, self.selection, self.database.prefix)
        if conditions is None or head - after <= _WINDOW:
            return None
        text = f"SELECT count(*) FROM ({self._positions(conditions)} LIMIT {mark_of(self._kind)}) AS found"  # noqa: S608
        ((found,),) = self.database.fetch(text, (*conditions.values, after, head, _FEW + 1))
        return conditions if found <= _FEW else None

    def _find(self, after: int, head: int, rare: Conditions) -> Sequence[Event]:
        found = f"position IN ({self._positions(rare)})"
        table = self.database.prefix + EVENTS.name
        text = f"{self._select} {table} WHERE {found} ORDER BY position LIMIT {mark_of(self._kind)}"
        return self._events(text, (*rare.values, after, head, self.limit))

    def _positions(self, conditions: Conditions) -> str:
        mark = mark_of(self._kind)
        where = f"{conditions.text}position > {mark} AND position <= {mark}"
        return f"SELECT position FROM {conditions.table} WHERE {where}"  # noqa: S608 our own text

    def _events(self, text: str, values: tuple[Any, ...]) -> Sequence[Event]:
        rows = self.database.fetch(text, values)
        if self._select is _SELECT or not rows:
            return tuple(map(_AS_EVENT, rows))
        return EventRows(rows, self._whole)

    def _whole(self, position: int) -> Event:
        text = f"{_SELECT} {self.database.prefix}{EVENTS.name} WHERE position = {mark_of(self._kind)}"
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
    def _kind(self) -> str:
        return self.database.kind

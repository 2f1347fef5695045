"""Read requests: the statements that read selected events of the log."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from opencqrs_py.adapters.sql.connections import Rows
from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.dialect import Dialect
from opencqrs_py.adapters.sql.tables import EVENTS
from opencqrs_py.model.selection import Selection

LIVE = 32  # events at the head: they are read whole, since each commit asks for the identity of its last one


_WINDOW = 10_000  # positions that are walked along before an index is asked where the next selected event is


_FEW = 10_000  # events that an index may find and that are then sorted to get at the first ones


_MANY_TYPES = 50  # with more of them, hardly anything is rare


# The columns that are read where no more than these attributes are looked at.
COLUMNS = {
    frozenset[str](): "position, type, payload",
    frozenset({"subject"}): "position, type, payload, subject",
    frozenset({"subject", "time"}): "position, type, payload, subject, time",
}


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A read request for at most ``limit`` selected events, and the columns that are read of them.

    A walk along the positions is the right thing where a good part of the log is selected. It is cut short in a
    *window* without any selected event: then, if there are few in the rest of the log, an index finds them.
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
        an event and not the one before. But the next statement shows both. So nothing is taken there from beyond a
        position that was known before.
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

        So one statement shows them all, on MariaDB, too. Only a slice that ends where no event is known to be, after
        the position ``known``, is made sure of: a log that was restored may end before it.
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

    def _walk(self, after: int, upto: int | None) -> Rows:
        """Walk along the positions."""
        database = self.database
        text, values = _walking(database.dialect, self.selection, database.prefix, self.columns, upto is not None)
        bounds = (after, self.limit) if upto is None else (after, upto, self.limit)
        return database.fetch(text, (*values, *bounds))

    def _rest(self, after: int, head: int) -> Rows:
        """Return the events up to the head by an index, if that is quicker than to walk on."""
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
        table: The table; SQLite, which cannot tell what is rare, and MariaDB get the index as well.
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

    SQLite has no idea how many events are of a type, and would collect and sort a whole log's to return the first few.
    It looks for no index when a column is part of an expression. The last values of the statement are the position
    before the walk, the last one of it if it is bounded, and the limit.
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


_Found = tuple[int, Rows]
"""Up to which position the rows are all that there are, and the rows."""

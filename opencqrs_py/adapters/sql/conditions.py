"""Conditions: a selection of events in SQL."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from opencqrs_py.adapters.sql.kinds import mark_of
from opencqrs_py.adapters.sql.schema import EVENTS
from opencqrs_py.adapters.sql.versions import INDEXED_LENGTH
from opencqrs_py.model.selection import Selection

__all__ = ["Conditions", "searching", "walking"]

_MANY_TYPES = 50  # with more of them, hardly anything is rare


class Conditions(NamedTuple):
    """Conditions joined by AND.

    Attributes:
        text: SQL; ends with AND, unless it is empty, so that a condition on the position can follow.
        values: For its marks, in their order.
        table: The table; SQLite, which cannot tell what is rare, and MariaDB are told the index as well.
    """

    text: str
    values: tuple[Any, ...]
    table: str = EVENTS.name


@lru_cache(maxsize=1_000)
def walking(kind: str, selection: Selection, prefix: str = "") -> Conditions:
    """Return conditions for a walk along the positions, which on SQLite no index is used for instead.

    SQLite has no idea how many events are of a type, and would collect and sort a whole log's to return the first few.
    It looks for no index when a column is part of an expression.

    Args:
        kind: The kind of database.
        selection: Which events.
        prefix: What stands before the names of our tables.
    """
    joined = _joined(*_types(kind, selection), *_subjects(kind, selection))
    return joined._replace(table=f"{prefix}{EVENTS.name}{' FORCE INDEX (PRIMARY)' if kind == 'mariadb' else ''}")


@lru_cache(maxsize=1_000)
def searching(kind: str, selection: Selection, prefix: str = "") -> Conditions | None:
    """Return conditions that an index answers; ``None`` when the selection leaves out too little for that."""
    types = sorted(selection.types or ())
    if not selection.everything:
        column, found = "subject", _range(kind, "subject", *_bounds(selection))
    elif 0 < len(types) <= _MANY_TYPES:
        column, found = "type", _one_of(kind, "type", types)
    else:
        return None
    joined = _joined(found, *_types(kind, selection), *_subjects(kind, selection))
    index = f"{EVENTS.name}_{column}"
    told = {"sqlite": f" INDEXED BY {index}", "mariadb": f" FORCE INDEX ({index})"}.get(kind, "")
    return joined._replace(table=f"{prefix}{EVENTS.name}{told}")


def _joined(*conditions: Conditions) -> Conditions:
    text = "".join(f"{one.text} AND " for one in conditions)
    return Conditions(text, tuple(value for one in conditions for value in one.values))


def _types(kind: str, selection: Selection) -> list[Conditions]:
    if selection.types is None:
        return []
    types = tuple(sorted(selection.types))
    return [Conditions(f"{_unindexed(kind, 'type')} IN ({_marks(kind, types)})" if types else "1 = 0", types)]


def _subjects(kind: str, selection: Selection) -> list[Conditions]:
    """A range instead of LIKE: exact in case, nothing to escape."""
    if selection.everything:
        return []
    column, mark = _unindexed(kind, "subject"), mark_of(kind)
    exact = f"{column} = {mark}"
    if not selection.recursive:
        return [Conditions(exact, (selection.subject,))]
    below = f"({exact} OR ({column} >= {mark} AND {column} < {mark}))"
    return [Conditions(below, (selection.subject, selection.prefix, _bounds(selection)[1]))]


def _bounds(selection: Selection) -> tuple[str, str]:
    """Return the first and the last text between which all selected subjects lie."""
    if not selection.recursive:
        return selection.subject, selection.subject
    return selection.subject, selection.prefix[:-1] + "0"  # the character after "/"


def _range(kind: str, column: str, first: str, last: str) -> Conditions:
    indexed, mark = _indexed(kind, column), mark_of(kind)
    if first == last:
        return _one_of(kind, column, [first])
    values = tuple(_held(kind, text) for text in (first, last))
    return Conditions(f"{indexed} >= {mark} AND {indexed} <= {mark}", values)


def _one_of(kind: str, column: str, texts: list[str]) -> Conditions:
    values = tuple(_held(kind, text) for text in texts)
    return Conditions(f"{_indexed(kind, column)} IN ({_marks(kind, values)})", values)


def _marks(kind: str, values: tuple[str, ...]) -> str:
    return ", ".join([mark_of(kind)] * len(values))


def _unindexed(kind: str, column: str) -> str:
    return f"+{column}" if kind == "sqlite" else column


def _indexed(kind: str, column: str) -> str:
    """Return what the index of a column is made on; servers' hold the beginning of a text only, and MariaDB knows."""
    return f"left({column}, {INDEXED_LENGTH})" if kind == "postgresql" else column


def _held(kind: str, text: str) -> str:
    return text[:INDEXED_LENGTH] if kind == "postgresql" else text

"""Reads the catalog of PostgreSQL, and sends statements without values to it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from opencqrs_py.adapters.sql.connections import run
from opencqrs_py.adapters.sql.shadows.guards import is_ours

_KINDS = {"r": "table", "p": "table", "v": "view", "m": "materialized view", "S": "sequence", "f": "foreign table"}

# Sequences of columns move with their tables.
_RELATIONS = """
SELECT relname, relkind, oid FROM pg_class
WHERE relnamespace = to_regnamespace(%s) AND relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
    AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = pg_class.oid
                    AND relkind = 'S' AND refobjsubid > 0 AND deptype IN ('a', 'i'))
ORDER BY relname
"""
_PARTS = "SELECT inhrelid, inhparent FROM pg_inherits WHERE inhrelid = ANY(%s) AND inhparent = ANY(%s)"
_SHOWN_BY = """
SELECT DISTINCT ev_class, refobjid FROM pg_depend
JOIN pg_rewrite ON classid = 'pg_rewrite'::regclass AND objid = pg_rewrite.oid
WHERE refclassid = 'pg_class'::regclass AND ev_class = ANY(%s) AND refobjid = ANY(%s) AND ev_class <> refobjid
"""
_COUNTED_BY = """
SELECT DISTINCT refobjid, adrelid FROM pg_depend
JOIN pg_attrdef ON classid = 'pg_attrdef'::regclass AND objid = pg_attrdef.oid
WHERE refclassid = 'pg_class'::regclass AND refobjid = ANY(%s)
"""
VIEWS = ("view", "materialized view")


@dataclass(frozen=True, slots=True)
class Relation:
    """A relation in one of the places."""

    name: str
    kind: str  # as ``ALTER`` calls it
    number: int


def quoted(name: str) -> str:
    """Return a name, quoted for a statement."""
    return '"' + name.replace('"', '""') + '"'


def relations(connection: Connection, schema: str, *, ours: bool = False) -> list[Relation]:
    """Return what is in a schema, but for our own tables, and for sequences that belong to columns."""
    rows = connection.exec_driver_sql(_RELATIONS, (quoted(schema),))
    return [Relation(name, _KINDS[kind], number) for name, kind, number in rows if ours or not is_ours(name)]


def is_table(connection: Connection, name: str) -> bool:
    """Return whether a name in a statement is that of a table."""
    asked = "SELECT relkind IN ('r', 'p') FROM pg_class WHERE oid = to_regclass(%s)"
    return bool(connection.exec_driver_sql(asked, (name,)).scalar())


def has_rows(connection: Connection, schema: str, table: str) -> bool:
    """Return whether a table, or a materialized view, has any."""
    cursor = run(connection, f"SELECT EXISTS (SELECT FROM {quoted(schema)}.{quoted(table)})")  # noqa: S608 quoted
    (found,) = cursor.fetchone()
    cursor.close()
    return bool(found)


@dataclass(frozen=True, slots=True)
class Ties:
    """Which relations belong together, by their numbers.

    Attributes:
        parts: Partitions and children of tables, each with its parent.
        shown: Views, each with what it shows.
        counted: Sequences, each with a table that takes numbers from it by a default.
    """

    parts: tuple[tuple[int, int], ...] = ()
    shown: tuple[tuple[int, int], ...] = ()
    counted: tuple[tuple[int, int], ...] = ()

    def moved(self, known: Sequence[Relation], written: Collection[int]) -> set[int]:
        """Return what is swapped if these were written to: parts of tables go together, and views with what they show.

        A view of nothing but tables that stay, such as another group's, stays as well.
        """
        moved = {each.number for each in known if each.number in written and each.kind not in VIEWS}
        while joined := {n for pair in self.parts if moved.intersection(pair) for n in pair} - moved:
            moved |= joined
        moved |= {sequence for sequence, table in self.counted if table in moved}
        for each in sorted(known, key=lambda one: one.number):  # a view is younger than what it shows
            bases = [base for view, base in self.shown if view == each.number]
            if each.kind in VIEWS and (not bases or moved.intersection(bases)):
                moved.add(each.number)
        return moved


def ties(connection: Connection, known: Sequence[Relation]) -> Ties:
    """Return how relations belong together; of sequences also with tables that are none of these."""
    numbers = [each.number for each in known]

    def pairs(query: str, *given: list[int]) -> tuple[tuple[int, int], ...]:
        return tuple((one, other) for one, other in connection.exec_driver_sql(query, given))

    sequences = [each.number for each in known if each.kind == "sequence"]
    return Ties(pairs(_PARTS, numbers, numbers), pairs(_SHOWN_BY, numbers, numbers), pairs(_COUNTED_BY, sequences))

"""The catalogue of MariaDB: what is in a database, and how it is copied to another one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from graphlib import TopologicalSorter
from typing import Any

from sqlalchemy import Connection

from opencqrs_py.adapters.sql.connections import run
from opencqrs_py.adapters.sql.shadows.comparison import Columns
from opencqrs_py.adapters.sql.shadows.guards import is_ours
from opencqrs_py.adapters.sql.tables import GROUPS
from opencqrs_py.model.rebuild import Difference

_KINDS = {"BASE TABLE": "table", "VIEW": "view", "SEQUENCE": "sequence", "SYSTEM VERSIONED": "table"}

_TABLES = "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = %s ORDER BY table_name"


_DEFAULTS = """
SELECT table_name, column_name, column_default FROM information_schema.columns
WHERE table_schema = %s AND INSTR(column_default, %s) > 0
"""


_VIEW = """
SELECT view_definition, algorithm, security_type, check_option FROM information_schema.views
WHERE table_schema = %s AND table_name = %s
"""


_COLUMNS = """
SELECT column_name, collation_name FROM information_schema.columns WHERE table_schema = %s AND table_name = %s
    AND COALESCE(generation_expression, '') = '' ORDER BY ordinal_position
"""


def quoted(name: str) -> str:
    """Return a name, quoted for a statement."""
    return "`" + name.replace("`", "``") + "`"


def relations(connection: Connection, place: str) -> dict[str, str]:
    """Return the kind of each relation in a database, by its name, except our own."""
    rows = connection.exec_driver_sql(_TABLES, (place,))
    return {name: _KINDS.get(kind, "table") for name, kind in rows if not is_ours(name)}


def has_rows(connection: Connection, place: str, table: str) -> bool:
    """Return whether a table or view has any."""
    cursor = run(connection, f"SELECT 1 FROM {quoted(place)}.{quoted(table)} LIMIT 1")  # noqa: S608 quoted
    found = cursor.fetchone() is not None
    cursor.close()
    return found


def is_used(connection: Connection, place: str, sequence: str) -> bool:
    """Return whether a sequence has given out numbers; one that has not may be another group's."""
    cursor = run(connection, f"SELECT next_not_cached_value > start_value FROM {quoted(place)}.{quoted(sequence)}")  # noqa: S608 quoted
    (found,) = cursor.fetchone()
    cursor.close()
    return bool(found)


def record_in(connection: Connection, place: str, group: str) -> tuple[str, str]:
    """Return the fingerprints of handlers and sequencing that a group's record has in a place."""
    asked = f"SELECT handlers, sequencing FROM {place}{GROUPS.name} WHERE group_name = %s"  # noqa: S608 our own names
    row = connection.exec_driver_sql(asked, (group,)).first()
    return ("", "") if row is None else (row[0], row[1])


def move_defaults(connection: Connection, source: str, target: str) -> None:
    """Have columns in ``target`` draw from the sequences there, and no longer from those that came from ``source``."""
    sign = f"{quoted(source)}."
    for table, column, default in connection.exec_driver_sql(_DEFAULTS, (target, sign)).all():
        changed = f"ALTER COLUMN {quoted(column)} SET DEFAULT ({_moved(default, source, target, None)})"
        run(connection, f"ALTER TABLE {quoted(target)}.{quoted(table)} {changed}").close()


def copy_views(
    connection: Connection, names: Iterable[str], source: str, target: str, only: Collection[str] | None = None
) -> None:
    """Make views of one place in another one, each after those that it shows; harmless if it is repeated.

    Args:
        connection: A connection that sees both.
        names: The views; those that are not in ``source`` are left out.
        source: Where they are.
        target: Where they are made. They show what is there.
        only: What is in the target beside them, if not all is: they keep showing the rest where it is.
    """
    found = {name: connection.exec_driver_sql(_VIEW, (source, name)).first() for name in names}
    views = {name: row for name, row in found.items() if row is not None}
    there = None if only is None else {*only, *views}
    for name in _bases_first({name: row[0] for name, row in views.items()}, source):
        text, algorithm, security, check = views[name]
        kind = f"ALGORITHM = {algorithm} SQL SECURITY {security} VIEW"
        option = "" if check == "NONE" else f" WITH {check} CHECK OPTION"
        moved = _moved(text, source, target, there)
        run(connection, f"CREATE OR REPLACE {kind} {quoted(target)}.{quoted(name)} AS {moved}{option}").close()


def _bases_first(texts: dict[str, str], place: str) -> Iterable[str]:
    """Return the names of views of a place, given their texts: each after those that it shows."""
    signs = {name: f"{quoted(place)}.{quoted(name)}" for name in texts}
    shown = {name: [other for other in texts if other != name and signs[other] in text] for name, text in texts.items()}
    return TopologicalSorter(shown).static_order()


def _moved(text: str, source: str, target: str, only: Collection[str] | None) -> str:
    """Return the text of a view or default with another place: in all names of ``source`` in it, or only in these."""

    def renamed(found: re.Match[str]) -> str:
        is_there = only is None or found[1].replace("``", "`") in only
        return f"{quoted(target)}.`{found[1]}`" if is_there else found[0]

    return re.sub(rf"{re.escape(quoted(source))}\.`((?:[^`]|``)+)`", renamed, text)


def copy_structure(connection: Connection, live: str, shadow: str, tables: Sequence[str]) -> None:
    """Make tables in the shadow as they are live, with indexes and the foreign keys between them, and no rows."""
    for name in tables:
        run(connection, f"CREATE TABLE {shadow}.{quoted(name)} LIKE {live}.{quoted(name)}").close()
    for name in tables:
        cursor = run(connection, f"SHOW CREATE TABLE {live}.{quoted(name)}")
        lines = [line.strip().rstrip(",") for line in cursor.fetchone()[1].splitlines()]
        cursor.close()
        for line in lines:
            if line.startswith("CONSTRAINT") and " FOREIGN KEY " in line:
                run(connection, f"ALTER TABLE {shadow}.{quoted(name)} ADD {line}").close()


def difference(connection: Connection, name: str, live: str, shadow: str, examples: int) -> Difference:
    """Return how a table of the shadow differs from the live one, with some rows as examples."""
    """Compare rows character by character, whatever the collations of their columns are."""
    known, others = (connection.exec_driver_sql(_COLUMNS, (place, name)).all() for place in (live, shadow))
    columns = Columns.of((row[0] for row in known), (row[0] for row in others), str.lower)
    texts = {name for name, collation in known if collation is not None}
    chosen = ", ".join(compared(column, is_text=column in texts) for column in columns.both) or "1"
    one, other = (f"SELECT {chosen} FROM {quoted(each)}.{quoted(name)}" for each in (live, shadow))  # noqa: S608

    def rows(query: str) -> list[Any]:
        cursor = run(connection, query)
        found = list(cursor.fetchall())
        cursor.close()
        return found

    def count(query: str) -> int:
        return int(rows(f"SELECT COUNT(*) FROM ({query}) counted")[0][0])  # noqa: S608

    missing, added = count(f"{one} EXCEPT ALL {other}"), count(f"{other} EXCEPT ALL {one}")
    shown: list[str] = []
    for sign, query in (("-", f"{one} EXCEPT ALL {other}"), ("+", f"{other} EXCEPT ALL {one}")):
        if missing or added:
            shown += [f"{sign} {tuple(row)}" for row in rows(f"{query} ORDER BY 1 LIMIT {examples}")]
    return Difference(name, count(one), count(other), missing, added, tuple(shown), columns.live, columns.shadow)


def compared(column: str, *, is_text: bool) -> str:
    """Return what stands for a column in a comparison that takes case, accents and spaces at the end into account."""
    name = quoted(column)
    return f"CONVERT({name} USING utf8mb4) COLLATE utf8mb4_nopad_bin AS {name}" if is_text else name

"""Moving tables, views, types and functions of PostgreSQL from one schema to another, and what stands in the way."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from opencqrs_py.adapters.sql.connections import run
from opencqrs_py.adapters.sql.dialects.postgresql_catalog import Relation, quoted, relations
from opencqrs_py.adapters.sql.shadows.postgresql_belongings import Special, give, give_special, have_fire, taken_from
from opencqrs_py.adapters.sql.shadows.postgresql_dependents import users_of
from opencqrs_py.model.rebuild import ShadowTable

SPECIALS = {
    "type": """
        SELECT typname, pg_type.oid FROM pg_type LEFT JOIN pg_class ON pg_class.oid = typrelid
        WHERE typnamespace = to_regnamespace(%s) AND (typtype::text IN ('e', 'd', 'r', 'm') OR relkind = 'c') ORDER BY 1
    """,
    "collation": "SELECT collname, oid FROM pg_collation WHERE collnamespace = to_regnamespace(%s) ORDER BY 1",
    "function": """
        SELECT proname || '(' || pg_get_function_identity_arguments(oid) || ')', oid FROM pg_proc
        WHERE pronamespace = to_regnamespace(%s) ORDER BY 1
    """,
}
"""How what is swapped besides relations is found in a schema: name and number of each, by kind."""

_STATISTICS = "SELECT stxname FROM pg_statistic_ext WHERE stxrelid = to_regclass(%s)"
_KEYS_TO_OTHERS = """
SELECT conname, conrelid::regclass::text, confrelid::regclass::text FROM pg_constraint
WHERE contype = 'f' AND conparentid = 0 AND conrelid = ANY(%s) AND confrelid <> ALL(%s)
"""
_UNUSUAL = """
SELECT relname, CASE
    WHEN relrowsecurity OR EXISTS (SELECT FROM pg_policy WHERE polrelid = pg_class.oid) THEN 'row level security'
    WHEN relkind IN ('r', 'p') AND EXISTS (SELECT FROM pg_rewrite WHERE ev_class = pg_class.oid AND ev_type <> '1')
        THEN 'a rule'
    WHEN relkind = 'f' THEN 'a server of others behind it'
    WHEN EXISTS (SELECT FROM pg_inherits WHERE inhrelid = pg_class.oid AND inhparent <> ALL(%s)) THEN 'a parent outside'
    WHEN EXISTS (SELECT FROM pg_inherits WHERE inhparent = pg_class.oid AND inhrelid <> ALL(%s)) THEN 'a child outside'
    WHEN EXISTS (SELECT FROM pg_publication_rel WHERE prrelid = pg_class.oid
                 AND (to_jsonb(pg_publication_rel) ->> 'prqual' IS NOT NULL
                      OR to_jsonb(pg_publication_rel) ->> 'prattrs' IS NOT NULL)) THEN 'a filter of a publication'
    WHEN relreplident = 'i' THEN 'a replica identity of its own'
    WHEN NOT pg_has_role(relowner, 'USAGE') THEN 'an owner that this user is not a member of'
    END AS reason
FROM pg_class WHERE oid = ANY(%s) ORDER BY relname
"""


def exchange(
    connection: Connection,
    live: str,
    moved: Sequence[ShadowTable],
    source: str,
    target: str,
    gone: Sequence[ShadowTable] = (),
    *,
    with_triggers: bool = True,
) -> None:
    """Move what a schema has to ``target``, and what ``source`` has there; the new takes over what was granted.

    Args:
        connection: In the transaction of the swap.
        live: The schema.
        moved: What comes from ``source``, each in place of its namesake.
        source: Schema of the new.
        target: Schema for the old.
        gone: What else leaves.
        with_triggers: Whether the new takes over triggers, too, and when they fire.
    """
    numbers = {each.name: each for each in relations(connection, live)}
    specials = [{(e.kind, e.name): e for e in specials_of(connection, place)} for place in (live, source)]
    taken, given = {}, dict[tuple[str, str], Special]()
    leaving = {(space_of(each.kind), each.name): each for each in (*moved, *gone)}  # a table may become a view
    for each in leaving.values():
        if (special := specials[0].get((each.kind, each.name))) is not None:
            given[each.kind, each.name] = Special.of(connection, special)
            _move_special(connection, special, target)
        elif each.kind not in SPECIALS and each.name in numbers:
            there = numbers[each.name]
            taken[each.name] = taken_from(connection, there, with_triggers=with_triggers)
            _move(connection, there.kind, each.name, live, target)
    for each in moved:
        if (special := specials[1].get((each.kind, each.name))) is not None:
            _move_special(connection, special, live)
        else:
            _move(connection, each.kind, each.name, source, live)
    for key, kept in given.items():
        if key in specials[1]:
            give_special(connection, specials[1][key], kept)
    replaced = [each for each in moved if each.name in taken and each.kind not in SPECIALS]
    for each in replaced:
        give(connection, live, target, each, taken[each.name])
    for each in replaced:
        have_fire(connection, f"{quoted(live)}.{quoted(each.name)}", taken[each.name].firing)


def specials_of(connection: Connection, schema: str) -> list[Relation]:
    """Return the types, collations and functions of a schema; their names do not say that arguments are of it, too."""
    return [
        Relation(name.replace(f"{schema}.", ""), kind, number)
        for kind, query in SPECIALS.items()
        for name, number in connection.exec_driver_sql(query, (quoted(schema),))
    ]


def objects_of(connection: Connection, schema: str) -> list[Relation]:
    """Return all that can be swapped of a schema."""
    return [*relations(connection, schema), *specials_of(connection, schema)]


def specials_that_go(connection: Connection, specials: Sequence[Relation], moved: Sequence[Relation]) -> set[Relation]:
    """Return the types, functions and collations that go with what is moved: all but those that only others need."""
    going = set[Relation]()
    while moved and (
        found := [each for each in specials if each not in going and _is_needed(connection, each, [*moved, *going])]
    ):
        going.update(found)
    return going


def obstacles(connection: Connection, live: Sequence[Relation]) -> list[str]:
    """Return what depends on live objects, or stands in the way of new ones in their place."""
    found = [f"the {user.name} would keep using the old {user.used}" for user in users_of(connection, live)]
    numbers = [each.number for each in live if each.kind not in SPECIALS]
    for name, table, other in connection.exec_driver_sql(_KEYS_TO_OTHERS, (numbers, numbers)):
        found.append(f"the foreign key {name} of {table} refers to {other}, which is not swapped")
    for name, reason in connection.exec_driver_sql(_UNUSUAL, (numbers, numbers, numbers)):
        if reason is not None:
            found.append(f"{name} has {reason}")
    return found


def space_of(kind: str) -> str:
    """Return among what a name is unique: all relations share their names."""
    return kind if kind in SPECIALS else "relation"


def _is_needed(connection: Connection, special: Relation, moved: Sequence[Relation]) -> bool:
    users = users_of(connection, [special])
    return not users or len(users_of(connection, [special], but=moved)) < len(users)


def _move(connection: Connection, kind: str, name: str, source: str, target: str) -> None:
    for statistics in connection.exec_driver_sql(_STATISTICS, (f"{quoted(source)}.{quoted(name)}",)).scalars().all():
        _move(connection, "statistics", statistics, source, target)  # which stay where they are when their table moves
    run(connection, f"ALTER {kind.upper()} {quoted(source)}.{quoted(name)} SET SCHEMA {quoted(target)}").close()


def _move_special(connection: Connection, special: Relation, target: str) -> None:
    """Move a type, collation or function, unless it has come with another one, as PostgreSQL 17 does it with types."""
    if special not in specials_of(connection, target):
        one = Special.of(connection, special)
        run(connection, f"ALTER {one.altered} {one.name} SET SCHEMA {quoted(target)}").close()

"""What depends on objects of PostgreSQL, which reference each other by number, so that moves keep the references.

The rules are those by which ``DROP … CASCADE`` finds what goes as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection

from opencqrs_py.adapters.sql.dialects.postgresql_catalog import Relation, quoted

_CATALOGS = {"type": "pg_type", "function": "pg_proc", "collation": "pg_collation"}
_GIVEN = "SELECT * FROM unnest(%s::text[], %s::oid[]) AS given (class, number)"
_PARTS = """
UNION SELECT classid::regclass::text, objid FROM pg_depend
JOIN inside ON refclassid = inside.class::regclass AND refobjid = inside.number WHERE deptype IN ('a', 'i', 'P', 'S')
"""
# Of a view the rule depends on tables, and is an internal part of the view: the whole of such a part is found as well.
_USERS = f"""
WITH RECURSIVE roots AS ({_GIVEN}), inside AS (({_GIVEN} UNION TABLE roots) {_PARTS}),
edges AS (
    SELECT refclassid, refobjid, refobjsubid, classid, objid, objsubid FROM pg_depend
    UNION ALL
    SELECT classid, objid, objsubid, refclassid, refobjid, refobjsubid FROM pg_depend WHERE deptype IN ('i', 'e')
),
users AS (
    SELECT class AS root_class, number AS root, class::regclass::oid AS class, number, 0 AS part FROM roots
    UNION SELECT root_class, root, edges.classid, edges.objid, edges.objsubid FROM edges
    JOIN users ON refclassid = class AND refobjid = number AND (part = 0 OR refobjsubid = part)
)
SELECT DISTINCT ON (1, 2, 3) class::regclass::text, number, part, pg_describe_object(class, number, part),
    pg_describe_object(root_class::regclass, root, 0)
FROM users
WHERE NOT EXISTS (SELECT FROM inside WHERE inside.class::regclass = users.class AND inside.number = users.number)
    AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = class AND objid = users.number AND deptype IN ('i', 'e'))
ORDER BY 1, 2, 3, 5
"""  # noqa: S608 our own text
_STAYING = f"""
WITH RECURSIVE inside AS ({_GIVEN} {_PARTS})
SELECT classid::regclass::text, objid FROM pg_depend
WHERE refclassid = 'pg_namespace'::regclass AND refobjid = to_regnamespace(%s)
    AND NOT EXISTS (SELECT FROM inside WHERE class::regclass = classid AND number = objid)
"""  # noqa: S608 our own text


@dataclass(frozen=True, slots=True)
class User:
    """An object that depends on another one; both as PostgreSQL describes them."""

    name: str
    used: str


def users_of(connection: Connection, used: Iterable[Relation], but: Iterable[Relation] = ()) -> list[User]:
    """Return what depends on some objects, but for themselves, some others, and the parts of all these."""
    return _users(connection, _numbers(used), _numbers(but))


def users_of_rest(connection: Connection, schema: str, moved: Iterable[Relation] = ()) -> list[User]:
    """Return what depends on the content of a schema, but is none of it, or is of what is moved out of it.

    Args:
        connection: A connection that sees both.
        schema: The schema.
        moved: What is moved out of it, with its parts.
    """
    staying = connection.exec_driver_sql(_STAYING, (*_numbers(moved), quoted(schema))).all()
    return _users(connection, ([row[0] for row in staying], [row[1] for row in staying]), ([], []))


Numbers = tuple[list[str], list[int]]


def _numbers(objects: Iterable[Relation]) -> Numbers:
    """Return the catalogs of objects, and their numbers there."""
    known = [*objects]
    return [_CATALOGS.get(each.kind, "pg_class") for each in known], [each.number for each in known]


def _users(connection: Connection, used: Numbers, but: Numbers) -> list[User]:
    return [User(name, of) for *_, name, of in connection.exec_driver_sql(_USERS, (*used, *but))]

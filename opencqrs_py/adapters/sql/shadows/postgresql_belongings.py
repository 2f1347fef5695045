"""What belongs to a table on PostgreSQL beside its columns and rows: owner, privileges, triggers, publications."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from opencqrs_py.adapters.sql.connections import run
from opencqrs_py.adapters.sql.dialects.postgresql_catalog import Relation, quoted
from opencqrs_py.model.rebuild import ShadowTable

_ACCESS = """
SELECT privilege_type, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END, is_grantable,
    NULL AS attname
FROM pg_class, aclexplode(relacl) WHERE oid = %s AND grantee <> relowner
UNION ALL
SELECT privilege_type, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END, is_grantable,
    attname
FROM pg_attribute, aclexplode(attacl) WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped
"""
_KEPT_OF = "SELECT pg_get_userbyid(relowner), relreplident FROM pg_class WHERE oid = %s"
# A trigger of a table with partitions has a copy at each of them, which comes with it; since PostgreSQL 13 it shows.
_TRIGGERS = """
SELECT tgname, pg_get_triggerdef(oid), tgenabled::text,
    coalesce(to_jsonb(pg_trigger) ->> 'tgparentid', '0') <> '0'
FROM pg_trigger WHERE tgrelid = %s AND NOT tgisinternal ORDER BY tgname
"""
_FIRING = {"O": "ENABLE", "D": "DISABLE", "R": "ENABLE REPLICA", "A": "ENABLE ALWAYS"}
_PUBLICATIONS = (
    "SELECT pubname FROM pg_publication_rel JOIN pg_publication ON prpubid = pg_publication.oid WHERE prrelid = %s"
)


_OWNED = """
SELECT attname, objid, objid::regclass::text FROM pg_depend JOIN pg_class ON pg_class.oid = objid AND relkind = 'S'
JOIN pg_attribute ON attrelid = refobjid AND attnum = refobjsubid
WHERE classid = 'pg_class'::regclass AND refclassid = 'pg_class'::regclass AND refobjid = %s
    AND refobjsubid > 0 AND deptype IN ('a', 'i')
"""
# Of types, collations and functions; where nothing was granted or revoked, what everybody has.
_SPECIAL = """
SELECT pg_get_userbyid({prefix}owner), oid::{named}::text FROM {catalog} WHERE oid = %s
"""
_SPECIAL_ACCESS = """
SELECT privilege_type, CASE grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(grantee)) END, is_grantable,
    NULL AS attname
FROM {catalog}, aclexplode(coalesce({prefix}acl, acldefault('{default}', {prefix}owner)))
WHERE oid = %s AND grantee <> {prefix}owner
"""
_SPECIALS = {
    "type": {"altered": "TYPE", "catalog": "pg_type", "prefix": "typ", "named": "regtype", "default": "T"},
    "collation": {"altered": "COLLATION", "catalog": "pg_collation", "prefix": "coll", "named": "regcollation"},
    "function": {"altered": "ROUTINE", "catalog": "pg_proc", "prefix": "pro", "named": "regprocedure", "default": "f"},
}
Access = frozenset[tuple[str, str, bool, str | None]]


@dataclass(frozen=True, slots=True)
class Kept:
    """What a table takes over from the one that it replaces.

    Attributes:
        owner: The role to which it belongs.
        identity: Its replica identity, as the catalog has it.
        access: Privileges of others: which, whose, whether they may grant it, and on which column.
        sequences: Those on the sequences of its columns, by column.
        triggers: Definitions of its triggers, by name, but for those that come with a table whose partition it is.
        firing: When each of its triggers fires, by name, as the catalog has it.
        publications: Those in which it is named.
    """

    owner: str
    identity: str
    access: Access
    sequences: dict[str, Access]
    triggers: dict[str, str]
    firing: dict[str, str]
    publications: tuple[str, ...]


def taken_from(connection: Connection, one: Relation, *, with_triggers: bool = True) -> Kept:
    """Return what a table has that another one is to take over; no triggers for one that comes back with its own."""
    number = one.number
    owner, identity = connection.exec_driver_sql(_KEPT_OF, (number,)).one()
    sequences = {column: _access(connection, each) for column, each, _ in _owned(connection, number)}
    found = connection.exec_driver_sql(_TRIGGERS, (number,)).all() if with_triggers else ()
    triggers = {name: definition for name, definition, _, is_copy in found if not is_copy}
    firing = {row[0]: row[2] for row in found}
    publications = tuple(connection.exec_driver_sql(_PUBLICATIONS, (number,)).scalars())
    return Kept(owner, identity, _access(connection, number), sequences, triggers, firing, publications)


def give(connection: Connection, live: str, target: str, one: ShadowTable, kept: Kept) -> None:
    """Give a table that replaces another one the same owner, privileges, triggers and publications.

    Args:
        connection: The transaction of the swap.
        live: The schema in which it is.
        target: The schema in which the other one is now.
        one: The table.
        kept: What it takes over.
    """
    name, old = f"{quoted(live)}.{quoted(one.name)}", f"{quoted(target)}.{quoted(one.name)}"
    number = connection.exec_driver_sql("SELECT to_regclass(%s)::oid", (name,)).scalar_one()
    owner = connection.exec_driver_sql(_KEPT_OF, (number,)).one()[0]
    if owner != kept.owner:  # before the privileges, which come from the owner
        run(connection, f"ALTER {one.kind.upper()} {name} OWNER TO {quoted(kept.owner)}").close()
    _let_in(connection, "SEQUENCE" if one.kind == "sequence" else "TABLE", name, number, kept.access)
    for column, sequence, its_name in _owned(connection, number):
        if column in kept.sequences:
            _let_in(connection, "SEQUENCE", its_name, sequence, kept.sequences[column])
    there = {row[0] for row in connection.exec_driver_sql(_TRIGGERS, (number,))}
    for trigger, definition in kept.triggers.items():
        if trigger not in there:
            run(connection, definition).close()
    for publication in kept.publications:
        run(connection, f"ALTER PUBLICATION {quoted(publication)} DROP TABLE {old}").close()
        run(connection, f"ALTER PUBLICATION {quoted(publication)} ADD TABLE {name}").close()
    if kept.identity in ("f", "n") and one.kind == "table":
        run(connection, f"ALTER TABLE {name} REPLICA IDENTITY {'FULL' if kept.identity == 'f' else 'NOTHING'}").close()


@dataclass(frozen=True, slots=True)
class Special:
    """The owner of a type, collation or function, its name in statements, and the privileges of others."""

    altered: str
    owner: str
    name: str
    access: Access

    @classmethod
    def of(cls, connection: Connection, one: Relation) -> Special:
        """Return these of an existing one."""
        known = _SPECIALS[one.kind]
        owner, name = connection.exec_driver_sql(_SPECIAL.format(**known), (one.number,)).one()
        rows = connection.exec_driver_sql(_SPECIAL_ACCESS.format(**known), (one.number,)) if "default" in known else ()
        return cls(known["altered"], owner, name, frozenset(tuple(row) for row in rows))


def give_special(connection: Connection, one: Relation, kept: Special) -> None:
    """Give a type, collation or function the owner and privileges of the one that it replaces."""
    now = Special.of(connection, one)
    if now.owner != kept.owner:
        run(connection, f"ALTER {now.altered} {now.name} OWNER TO {quoted(kept.owner)}").close()
        now = Special.of(connection, one)
    for privilege, grantee, _, _ in sorted(now.access - kept.access, key=str):
        run(connection, f"REVOKE {privilege} ON {now.altered} {now.name} FROM {grantee}").close()
    for privilege, grantee, grantable, _ in sorted(kept.access - now.access, key=str):
        option = " WITH GRANT OPTION" if grantable else ""
        run(connection, f"GRANT {privilege} ON {now.altered} {now.name} TO {grantee}{option}").close()


def have_fire(connection: Connection, table: str, firing: dict[str, str]) -> None:
    """Have triggers of a table, whose name is quoted, fire when others of these names did; all must exist by now."""
    number = connection.exec_driver_sql("SELECT to_regclass(%s)::oid", (table,)).scalar_one()
    for name, _, fires, _ in connection.exec_driver_sql(_TRIGGERS, (number,)).all():
        if firing.get(name, fires) != fires:
            run(connection, f"ALTER TABLE ONLY {table} {_FIRING[firing[name]]} TRIGGER {quoted(name)}").close()


def _access(connection: Connection, number: int) -> Access:
    return frozenset(tuple(row) for row in connection.exec_driver_sql(_ACCESS, (number, number)))


def _owned(connection: Connection, number: int) -> list[tuple[str, int, str]]:
    """Return the sequences of a table's columns: column, number, and name with its schema where that is needed."""
    return [tuple(row) for row in connection.exec_driver_sql(_OWNED, (number,))]


def _let_in(connection: Connection, kind: str, name: str, number: int, access: Access) -> None:
    """Give others exactly these privileges; default privileges may have given more, or others."""
    given = _access(connection, number)
    for privilege, grantee, _, column in sorted(given - access, key=str):
        run(connection, f"REVOKE {privilege}{_of(column)} ON {kind} {name} FROM {grantee}").close()
    for privilege, grantee, grantable, column in sorted(access - given, key=str):
        if column is None or _has_column(connection, number, column):
            option = " WITH GRANT OPTION" if grantable else ""
            run(connection, f"GRANT {privilege}{_of(column)} ON {kind} {name} TO {grantee}{option}").close()


def _of(column: str | None) -> str:
    return "" if column is None else f" ({quoted(column)})"


def _has_column(connection: Connection, table: int, name: str) -> bool:
    asked = "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = %s AND attname = %s AND NOT attisdropped)"
    return bool(connection.exec_driver_sql(asked, (table, name)).scalar())

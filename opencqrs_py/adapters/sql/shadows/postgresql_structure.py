"""The structure of PostgreSQL's tables, and how it is copied to another schema."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from sqlalchemy import Connection

from opencqrs_py.adapters.sql.connections import run
from opencqrs_py.adapters.sql.dialects.postgresql_catalog import is_table, quoted, relations
from opencqrs_py.adapters.sql.shadows.postgresql_belongings import have_fire
from opencqrs_py.adapters.sql.structure import Trigger, Triggers
from opencqrs_py.errors import RebuildError
from opencqrs_py.model.naming import listed

_OF_SEVERAL = """
SELECT relname FROM pg_class WHERE oid = ANY(%s) AND (relkind = 'p'
    OR EXISTS (SELECT FROM pg_inherits WHERE pg_class.oid IN (inhrelid, inhparent))) ORDER BY relname
"""
_KEYS = """
SELECT 'ALTER TABLE ' || conrelid::regclass || ' ADD CONSTRAINT ' || quote_ident(conname) || ' '
    || pg_get_constraintdef(oid)
FROM pg_constraint WHERE contype IN ('p', 'u', 'x') AND conrelid = ANY(%s) ORDER BY conname
"""
_INDEXES = """
SELECT pg_get_indexdef(indexrelid, 0, true) FROM pg_index WHERE indrelid = ANY(%s) AND indisvalid
    AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid AND contype IN ('p', 'u', 'x'))
ORDER BY indexrelid::regclass::text
"""
_KEYS_WITHIN = """
SELECT 'ALTER TABLE ' || conrelid::regclass || ' ADD CONSTRAINT ' || quote_ident(conname) || ' '
    || pg_get_constraintdef(oid)
FROM pg_constraint WHERE contype = 'f' AND conparentid = 0 AND conrelid = ANY(%s) AND confrelid = ANY(%s)
ORDER BY conname
"""
_SEQUENCES = """
SELECT adrelid::regclass::text, quote_ident(attname), quote_ident(relname), pg_get_expr(adbin, adrelid),
    'AS ' || seqtypid::regtype || ' START ' || seqstart || ' INCREMENT ' || seqincrement || ' MINVALUE ' || seqmin
    || ' MAXVALUE ' || seqmax || ' CACHE ' || seqcache || CASE WHEN seqcycle THEN ' CYCLE' ELSE '' END
FROM pg_attribute JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
JOIN pg_depend ON classid = 'pg_class'::regclass AND refclassid = 'pg_class'::regclass AND refobjid = attrelid
    AND refobjsubid = attnum AND deptype = 'a'
JOIN pg_sequence ON seqrelid = objid JOIN pg_class ON pg_class.oid = objid
WHERE attrelid = ANY(%s) AND attidentity = ''
ORDER BY relname
"""
_OWN_TRIGGERS = """
SELECT tgname, tgenabled::text, pg_get_triggerdef(oid, true) FROM pg_trigger
WHERE tgrelid = %s AND NOT tgisinternal ORDER BY tgname
"""

# But for those that come with a table whose partition it is.
_TRIGGERS_OF = """
SELECT relname, tgname, pg_get_triggerdef(pg_trigger.oid), tgenabled IN ('O', 'A') FROM pg_trigger
JOIN pg_class ON pg_class.oid = tgrelid JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname = current_schema() AND relname = ANY(%s) AND NOT tgisinternal
    AND coalesce(to_jsonb(pg_trigger) ->> 'tgparentid', '0') = '0'
"""


def triggers_of(connection: Connection, tables: Collection[str]) -> dict[str, Triggers]:
    """Return the triggers of tables in the current schema."""
    found = dict[str, Triggers]((name, {}) for name in tables)
    for table, name, definition, fires in connection.exec_driver_sql(_TRIGGERS_OF, (list(tables),)):
        found[table][name] = Trigger(definition, fires)
    return found


def copy_structure(connection: Connection, live: str, shadow: str, tables: Sequence[str]) -> None:
    """Make tables in another schema as they are live: columns, defaults, sequences, indexes, keys, triggers; no rows.

    Names are kept, since handlers and migrations may use them.

    Raises:
        RebuildError: OCQ-630, if one is not a table, or has partitions, or a parent.
    """
    numbers = {each.name: each.number for each in relations(connection, live) if each.name in tables}
    _require_fit(connection, live, tables, numbers)
    for name in tables:
        of = f"{quoted(live)}.{quoted(name)}"
        like = f"(LIKE {of} INCLUDING ALL EXCLUDING INDEXES)"
        run(connection, f"CREATE TABLE {quoted(shadow)}.{quoted(name)} {like}").close()
    path = connection.exec_driver_sql("SHOW search_path").scalar_one()
    run(connection, f"SET LOCAL search_path = {quoted(live)}").close()  # so definitions do not name it
    statements = list(_definitions(connection, quoted(shadow), list(numbers.values())))
    triggers = {name: connection.exec_driver_sql(_OWN_TRIGGERS, (numbers[name],)).all() for name in numbers}
    run(connection, f"SET LOCAL search_path = {quoted(shadow)}, {quoted(live)}").close()
    for statement in statements:
        run(connection, statement).close()
    for name, found in triggers.items():
        for _, _, definition in found:
            run(connection, definition).close()
        have_fire(connection, f"{quoted(shadow)}.{quoted(name)}", {trigger: fires for trigger, fires, _ in found})
    run(connection, f"SET LOCAL search_path = {path}").close()


def _require_fit(connection: Connection, live: str, tables: Sequence[str], numbers: Mapping[str, int]) -> None:
    if unfit := [name for name in tables if not is_table(connection, f"{quoted(live)}.{quoted(name)}")]:
        what = f"{listed(unfit)} of rebuild.tables is not a table"
        raise RebuildError("OCQ-630", what, fix="create views in @on_start")
    if several := connection.exec_driver_sql(_OF_SEVERAL, (list(numbers.values()),)).scalars().all():
        what = f"{listed(several)} of rebuild.tables has partitions, or is one, or inherits; a copy would not"
        raise RebuildError("OCQ-630", what, fix="create it in @on_start")


def _definitions(connection: Connection, shadow: str, numbers: list[int]) -> Iterator[str]:
    """Yield the statements that make what belongs to tables; they name no schema but the shadow's."""
    for table, column, sequence, default, options in connection.exec_driver_sql(_SEQUENCES, (numbers,)):
        yield f"CREATE SEQUENCE {shadow}.{sequence} {options} OWNED BY {shadow}.{table}.{column}"
        yield f"ALTER TABLE {table} ALTER {column} SET DEFAULT {default}"
    for query in (_KEYS, _INDEXES):
        yield from connection.exec_driver_sql(query, (numbers,)).scalars()
    yield from connection.exec_driver_sql(_KEYS_WITHIN, (numbers, numbers)).scalars()

"""Shadows on PostgreSQL: a schema beside the live one; all of a swap is one transaction."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from typing_extensions import override

from opencqrs_py.adapters.sql.connections import as_sqlalchemy, reason_of, send
from opencqrs_py.adapters.sql.shadow_guards import WRITTEN, WRITTEN_COLUMNS
from opencqrs_py.adapters.sql.shadow_urls import ShadowOf, marked
from opencqrs_py.adapters.sql.shadows import (
    KEPT,
    Comparison,
    KeptRows,
    Shadows,
    Swap,
    Swapped,
    built_record,
    fate_of,
    is_ours,
    require_same_layout,
    written_in,
)
from opencqrs_py.adapters.sql.tables import PROGRESS
from opencqrs_py.errors import EventStoreError, RebuildError
from opencqrs_py.model.naming import listed
from opencqrs_py.model.rebuild import Difference, Fate, RebuildPhase, RebuildRecord, ShadowTable

_PATIENCE_MS = 50  # that readers wait behind a swap that cannot get its locks
_KINDS = {"r": "table", "p": "table", "v": "view", "m": "materialized view", "S": "sequence", "f": "foreign table"}
_WITH_ROWS = ("table", "materialized view")

# Sequences of columns move with their tables.
_RELATIONS = """
SELECT relname, relkind, oid FROM pg_class
WHERE relnamespace = to_regnamespace(%s) AND relkind IN ('r', 'p', 'v', 'm', 'S', 'f')
    AND NOT EXISTS (SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = pg_class.oid
                    AND relkind = 'S' AND refobjsubid > 0 AND deptype IN ('a', 'i'))
ORDER BY relname
"""
_TYPES = """
SELECT typname FROM pg_type WHERE typnamespace = to_regnamespace(%s) AND typtype IN ('e', 'd') ORDER BY typname
"""
_ROUTINES = """
SELECT proname || '(' || pg_get_function_identity_arguments(oid) || ')', quote_ident(proname) || '('
    || pg_get_function_identity_arguments(oid) || ')'
FROM pg_proc WHERE pronamespace = to_regnamespace(%s) ORDER BY 1
"""
_USERS_OF_TYPES = """
SELECT DISTINCT typname, attrelid::regclass::text FROM pg_type
JOIN pg_attribute ON atttypid IN (pg_type.oid, typarray) AND NOT attisdropped
JOIN pg_class ON pg_class.oid = attrelid AND relkind IN ('r', 'p', 'm', 'f')
WHERE typnamespace = to_regnamespace(%s) AND typname = ANY(%s) AND attrelid <> ALL(%s)
"""
# Who holds on to tables by their numbers, which they keep when they move.
_VIEWS_ON = """
SELECT DISTINCT ev_class::regclass::text, refobjid::regclass::text FROM pg_depend
JOIN pg_rewrite ON classid = 'pg_rewrite'::regclass AND objid = pg_rewrite.oid
WHERE refclassid = 'pg_class'::regclass AND refobjid = ANY(%s) AND ev_class <> ALL(%s)
"""
_KEYS_ACROSS = """
SELECT conname, conrelid::regclass::text, confrelid::regclass::text FROM pg_constraint
WHERE contype = 'f' AND conparentid = 0 AND (conrelid = ANY(%s)) <> (confrelid = ANY(%s))
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
    WHEN NOT pg_has_role(relowner, 'USAGE') THEN 'an owner that this user is no member of'
    END AS reason
FROM pg_class WHERE oid = ANY(%s) ORDER BY relname
"""
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
_TRIGGERS = (
    "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE tgrelid = %s AND NOT tgisinternal ORDER BY tgname"
)
_PUBLICATIONS = (
    "SELECT pubname FROM pg_publication_rel JOIN pg_publication ON prpubid = pg_publication.oid WHERE prrelid = %s"
)
_SERIALS = """
SELECT attname FROM pg_attribute JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
WHERE attrelid = %s AND attidentity = '' AND NOT attisdropped AND pg_get_serial_sequence(%s, attname) IS NOT NULL
"""
_KEYS_WITHIN = """
SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
WHERE contype = 'f' AND conparentid = 0 AND conrelid = ANY(%s) AND confrelid = ANY(%s)
"""
_OWN_TRIGGERS = (
    "SELECT pg_get_triggerdef(oid, true) FROM pg_trigger WHERE tgrelid = %s AND NOT tgisinternal ORDER BY tgname"
)


@dataclass(frozen=True, slots=True)
class _Relation:
    """A relation in one of the places."""

    name: str
    kind: str  # as ``ALTER`` calls it
    number: int


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a table that takes the place of another one takes over from it."""

    owner: str
    identity: str
    access: tuple[tuple[str, str, bool, str | None], ...]
    triggers: dict[str, str]
    publications: tuple[str, ...]


class PostgresqlShadows(Shadows):
    """Keeps shadows in schemas of the same database, since a table moves from one to another in no time."""

    @cached_property
    @override
    def _live_place(self) -> str:
        with self._database.reading() as connection:
            found: str | None = connection.exec_driver_sql("SELECT current_schema()").scalar()
        if found is None:
            what = "the user's search path has no schema that is there"
            raise RebuildError("OCQ-630", what, self._database.label, "create it, or set the search path")
        return found

    @property
    def _ours(self) -> str:
        """What stands before our own tables that are live."""
        return self._database.prefix or f"{_quoted(self._live_place)}."

    @override
    def url(self, record: RebuildRecord) -> str:
        return self._url(self._place("shadow", record.group), record.shared)

    def _url(self, schema: str, shared: Sequence[str] = ()) -> str:
        said = self._database.url.query.get("options", "")
        before = " ".join(said) if isinstance(said, tuple) else said
        path = f"{before} -csearch_path={schema}".strip()
        url = self._database.url.update_query_dict({"options": path})
        return marked(url, ShadowOf(self._live_place, tuple(shared)))

    @override
    def exists(self, group: str) -> bool:
        return self._has_schema(self._place("shadow", group))

    def _has_schema(self, name: str) -> bool:
        with self._database.reading() as connection:
            asked = "SELECT to_regnamespace(%s) IS NOT NULL"
            return bool(connection.exec_driver_sql(asked, (_quoted(name),)).scalar())

    @override
    def _live_names(self) -> list[str]:
        with self._database.reading() as connection:
            return [each.name for each in _relations(connection, self._live_place)]

    @override
    def _make_place(self, begun: RebuildRecord, tables: Sequence[str], shared: Sequence[str]) -> None:
        live, shadow = self._live_place, self._place("shadow", begun.group)
        try:
            with self._database.dialect.change_lock(self._database) as connection:
                connection.exec_driver_sql(f"CREATE SCHEMA {_quoted(shadow)}")
                connection.exec_driver_sql(f"CREATE TABLE {_quoted(shadow)}.{WRITTEN} {WRITTEN_COLUMNS}")
                for table in shared:
                    view, of = f"{_quoted(shadow)}.{_quoted(table)}", f"{_quoted(live)}.{_quoted(table)}"
                    _run(connection, f"CREATE VIEW {view} AS SELECT * FROM {of}").close()  # noqa: S608 quoted
                _copy_structure(connection, live, shadow, tables)
                self._write(connection, begun)
        except DBAPIError as error:
            if self._database.is_outage(error):
                raise
            what = f"the shadow of group '{begun.group}' cannot be made ({reason_of(error)})"
            fix = f"let an administrator GRANT CREATE ON DATABASE, or run CREATE SCHEMA {shadow} AUTHORIZATION the user"
            raise RebuildError("OCQ-630", what, self._database.label, fix) from None

    @override
    def look(self, group: str, named: Collection[str], shared: Collection[str]) -> list[ShadowTable]:
        shadow = self._place("shadow", group)
        with self._database.reading() as connection:
            relations = _relations(connection, shadow)
            live = {each.name for each in _relations(connection, self._live_place)}
            written = written_in(connection, f"{_quoted(shadow)}.")
            found = []
            for each in relations:
                if each.name in shared:
                    found.append(ShadowTable(each.name, "view", Fate.SHARED, "rebuild.shared-tables"))
                    continue
                has_rows = each.kind in _WITH_ROWS and _has_rows(connection, shadow, each.name)
                carries = each.name in written or has_rows or each.kind not in _WITH_ROWS
                fate = fate_of(live=each.name in live, written=carries, named=each.name in named)
                how = "rebuild.tables" if each.name in named else "made by @on_start"
                found.append(ShadowTable(each.name, each.kind, fate, how))
            moved = any(each.fate in (Fate.SWAPPED, Fate.ADDED) for each in found)
            for kind, query in (("type", _TYPES), ("function", _ROUTINES)):
                here = [row[0] for row in connection.exec_driver_sql(query, (_quoted(shadow),))]
                there = {row[0] for row in connection.exec_driver_sql(query, (_quoted(self._live_place),))}
                fates = {True: Fate.SWAPPED, False: Fate.ADDED}
                found += [ShadowTable(name, kind, fates[name in there] if moved else Fate.LEFT) for name in here]
        return found

    @override
    def refusals(self, group: str, tables: Sequence[ShadowTable]) -> list[str]:
        with self._database.reading() as connection:
            return self._refusals(connection, group, tables)

    def _refusals(self, connection: Connection, group: str, tables: Sequence[ShadowTable]) -> list[str]:
        moved = {each.name for each in tables if each.fate in (Fate.SWAPPED, Fate.ADDED)}
        shadow = _relations(connection, self._place("shadow", group))
        live = [each for each in _relations(connection, self._live_place) if each.name in moved]
        found = _obstacles(connection, [each.number for each in live])
        gone = [each.number for each in shadow if each.name in moved]
        for name, table, other in connection.exec_driver_sql(_KEYS_ACROSS, (gone, gone)):
            found.append(f"the foreign key {name} of {table} leads to {other}, one of which nothing was written to")
        types = [each.name for each in tables if each.kind == "type" and each.fate is Fate.SWAPPED]
        users = (_quoted(self._live_place), types, [each.number for each in live])
        for name, user in connection.exec_driver_sql(_USERS_OF_TYPES, users):
            found.append(f"the type {name} is also that of {user}")
        right = "has_schema_privilege(%s, 'CREATE')"
        if not connection.exec_driver_sql(f"SELECT {right}", (self._live_place,)).scalar():
            found.append(f"the user may not create tables in the schema {self._live_place}")
        return found

    @override
    def _compared(self, group: str, tables: Sequence[str], examples: int) -> Comparison:
        shadow, live = (_quoted(each) for each in (self._place("shadow", group), self._live_place))
        with self._database.writing(isolation="REPEATABLE READ") as connection:
            rows = KeptRows(connection, group, "%s")
            positions = rows.positions(self._ours), rows.positions(f"{shadow}.")
            found = (_difference(connection, name, live, shadow, examples) for name in tables)
            return Comparison(*positions, tuple(found))

    @override
    def drop_shadow(self, group: str) -> None:
        with self._database.dialect.change_lock(self._database) as connection:
            self._drop(connection, self._place("shadow", group))
            known = self.record(group)
            if known is not None and known.phase is RebuildPhase.BUILDING:
                self._write(connection, replace(known, phase=RebuildPhase.ENDED))

    @override
    def drop_old(self, group: str) -> None:
        with self._database.dialect.change_lock(self._database) as connection:
            self._drop(connection, self._place("old", group))
            known = self.record(group)
            if known is not None:
                self._write(connection, replace(known, phase=RebuildPhase.ENDED, relations=()))

    def _drop(self, connection: Connection, schema: str) -> None:
        """Drop a schema of ours; refuse if others hold on to what is in it."""
        found = connection.exec_driver_sql("SELECT to_regnamespace(%s)::oid", (_quoted(schema),)).scalar()
        if found is None:
            return
        numbers = [each.number for each in _relations(connection, schema, ours=True)]
        views = connection.exec_driver_sql(_VIEWS_ON, (numbers, numbers)).all()
        keys = connection.exec_driver_sql(_KEYS_ACROSS, (numbers, numbers)).all()
        holders = [str(row[0]) for row in views] + [f"the foreign key {row[0]} of {row[1]}" for row in keys]
        if holders:
            what = f"the schema {schema} cannot be dropped: {listed(holders)} would go with it"
            raise RebuildError("OCQ-630", what, self._database.label, "drop that first")
        connection.exec_driver_sql("SET LOCAL lock_timeout = '10s'")
        connection.exec_driver_sql(f"DROP SCHEMA {_quoted(schema)} CASCADE")

    @override
    def _swap(self, swap: Swap) -> Swapped:
        group = swap.group
        shadow, old = self._place("shadow", group), self._place("old", group)
        self._analyse(shadow)
        with self._database.writing(isolation="READ COMMITTED") as connection:
            before = self._locked_record(connection, group)
            known = self._records.find(connection, group)
            rows = KeptRows(connection, group, "%s")
            with self._fenced(connection, group) as live:
                swap.reached(live)
                layout = rows.positions(f"{_quoted(shadow)}.")
                require_same_layout(group, live, layout)
                where = f"{_quoted(shadow)}.{PROGRESS.name} WHERE group_name = %s"
                connection.exec_driver_sql(f"SELECT 1 FROM {where} FOR UPDATE", (group,)).all()  # noqa: S608
            tables = self.look(group, swap.named, before.shared)
            moved = [each for each in tables if each.fate in (Fate.SWAPPED, Fate.ADDED)]
            if refused := self._refusals(connection, group, tables):
                raise _cannot(group, refused)
            connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {_quoted(old)}")
            self._copy_kept_tables(connection, old)
            began = self._lock(connection, [each.name for each in moved if each.fate is Fate.SWAPPED])
            self._exchange(connection, moved, shadow, old)
            rows.copy(self._ours, f"{_quoted(old)}.")
            position = rows.replace(f"{_quoted(shadow)}.", self._ours)
            rows.fence(f"{_quoted(shadow)}.", rows.newest_epoch(f"{_quoted(shadow)}.") + 1)
            self._records.write(connection, built_record(known, swap), self._records.find(connection, group))
            record = replace(self._swapped_record(swap, known, before), relations=_relations_of(moved))
            self._write(connection, record)
            self._notify(connection)
        return Swapped(position, tuple(tables), time.monotonic() - began)

    @override
    def _undo(self, group: str) -> Swapped:
        shadow, old = self._place("shadow", group), self._place("old", group)
        with self._database.writing(isolation="READ COMMITTED") as connection:
            before = self._locked_record(connection, group)
            rows = KeptRows(connection, group, "%s")
            with self._fenced(connection, group):
                pass
            kept = _relations(connection, old)
            live = {each.name for each in _relations(connection, self._live_place)}
            built = [_kind_and_name(each) for each in before.relations]
            connection.exec_driver_sql(f"CREATE SCHEMA {_quoted(shadow)}")
            back = [ShadowTable(e.name, e.kind, Fate.SWAPPED if e.name in live else Fate.ADDED) for e in kept]
            for kind, query in (("type", _TYPES), ("function", _ROUTINES)):
                there = [row[0] for row in connection.exec_driver_sql(query, (_quoted(old),))]
                back += [ShadowTable(name, kind, Fate.SWAPPED) for name in there]
            mine = [each.number for each in _relations(connection, self._live_place) if each.name in dict(_flip(built))]
            if refused := _obstacles(connection, mine):
                raise _cannot(group, refused)
            began = self._lock(connection, [name for kind, name in built if name in live and kind == "table"])
            gone = [ShadowTable(name, kind, Fate.SWAPPED) for kind, name in built]
            self._exchange(connection, back, old, shadow, gone)
            position = rows.replace(f"{_quoted(old)}.", self._ours)
            self._write(connection, self._undone_record(before, self._records.find(connection, group)))
            self._notify(connection)
        seconds = time.monotonic() - began
        self._drop_in_peace(shadow)
        self._drop_in_peace(old)
        return Swapped(position, tuple(back), seconds)

    def _locked_record(self, connection: Connection, group: str) -> RebuildRecord:
        table = f"{self._ours}{self._rebuilds.name}"
        connection.exec_driver_sql(f"SELECT 1 FROM {table} WHERE group_name = %s FOR UPDATE", (group,)).all()  # noqa: S608
        found = self.record(group)
        if found is None:
            raise RebuildError("OCQ-630", f"group '{group}' is not being rebuilt", f"group {group}")
        return found

    def _lock(self, connection: Connection, names: Iterable[str]) -> float:
        """Lock tables against readers, or give up soon: who comes after us waits as well. Return when that began."""
        live = _quoted(self._live_place)
        tables = [f"{live}.{_quoted(name)}" for name in names]
        tables = [each for each in tables if _is_table(connection, each)]
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_PATIENCE_MS}ms'")
        began = time.monotonic()
        if tables:
            _run(connection, f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE").close()
        return began

    def _exchange(
        self,
        connection: Connection,
        moved: Sequence[ShadowTable],
        source: str,
        target: str,
        gone: Sequence[ShadowTable] = (),
    ) -> None:
        """Move live relations to ``target``, those of ``source`` to live; the new ones take over what was granted."""
        live = self._live_place
        numbers = {each.name: each for each in _relations(connection, live)}
        taken = {}
        leaving = {(each.kind, each.name): each for each in (*moved, *gone)}.values()
        for each in leaving:
            if each.kind in ("type", "function"):
                if self._has(connection, live, each):
                    _move(connection, each.kind, each.name, live, target)
            elif each.name in numbers:
                there = numbers[each.name]
                taken[each.name] = _taken_from(connection, there)
                _move(connection, there.kind, each.name, live, target)
        for each in moved:
            _move(connection, each.kind, each.name, source, live)
        for each in moved:
            if each.name in taken and each.kind not in ("type", "function"):
                _give(connection, live, target, each, taken[each.name])

    def _has(self, connection: Connection, schema: str, one: ShadowTable) -> bool:
        query = _TYPES if one.kind == "type" else _ROUTINES
        return any(row[0] == one.name for row in connection.exec_driver_sql(query, (_quoted(schema),)))

    def _copy_kept_tables(self, connection: Connection, schema: str) -> None:
        for table in KEPT:
            like = f"{_quoted(schema)}.{table.name} (LIKE {self._ours}{table.name} INCLUDING ALL)"
            connection.exec_driver_sql(f"CREATE TABLE IF NOT EXISTS {like}")

    def _analyse(self, schema: str) -> None:
        """Have the planner know the new tables before anybody reads them."""
        with self._database.reading() as connection:
            for each in _relations(connection, schema):
                if each.kind in _WITH_ROWS:
                    _run(connection, f"ANALYZE {_quoted(schema)}.{_quoted(each.name)}").close()

    def _notify(self, connection: Connection) -> None:
        connection.exec_driver_sql(self._database.dialect.notify_nodes)

    def _drop_in_peace(self, schema: str) -> None:
        """Drop what is of no use any more; if that fails, it may be dropped later."""
        try:
            with self._database.dialect.change_lock(self._database) as connection:
                self._drop(connection, schema)
        except (DBAPIError, EventStoreError):
            return


def _run(connection: Connection, statement: str) -> Any:
    """Send a statement without values, in which a percent sign is one; return the driver's cursor."""
    dialect = connection.dialect
    try:
        return send(connection, statement.replace("%", "%%"))
    except dialect.loaded_dbapi.Error as error:
        raise as_sqlalchemy(dialect, error, statement, connection.connection.dbapi_connection) from None


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _cannot(group: str, refused: Sequence[str]) -> RebuildError:
    what = f"group '{group}' cannot be rebuilt beside the live tables: {'; '.join(refused[:10])}"
    fix = "let @on_start make it, or drop it before and make it again after the rebuild; or reset the group"
    return RebuildError("OCQ-630", what, f"group {group}", fix)


def _relations(connection: Connection, schema: str, *, ours: bool = False) -> list[_Relation]:
    rows = connection.exec_driver_sql(_RELATIONS, (_quoted(schema),))
    return [_Relation(name, _KINDS[kind], number) for name, kind, number in rows if ours or not is_ours(name)]


def _is_table(connection: Connection, name: str) -> bool:
    asked = "SELECT relkind IN ('r', 'p') FROM pg_class WHERE oid = to_regclass(%s)"
    return bool(connection.exec_driver_sql(asked, (name,)).scalar())


def _has_rows(connection: Connection, schema: str, table: str) -> bool:
    cursor = _run(connection, f"SELECT EXISTS (SELECT FROM {_quoted(schema)}.{_quoted(table)})")  # noqa: S608 quoted
    (found,) = cursor.fetchone()
    cursor.close()
    return bool(found)


def _obstacles(connection: Connection, live: list[int]) -> list[str]:
    """Return what holds on to live tables, or stands in the way of new ones in their place."""
    found = []
    for view, table in connection.exec_driver_sql(_VIEWS_ON, (live, live)):
        found.append(f"the view {view} would keep showing the old {table}")
    for name, table, other in connection.exec_driver_sql(_KEYS_ACROSS, (live, live)):
        found.append(f"the foreign key {name} of {table} leads to {other}, one of which is not the group's")
    for name, reason in connection.exec_driver_sql(_UNUSUAL, (live, live, live)):
        if reason is not None:
            found.append(f"{name} has {reason}")
    return found


def _relations_of(moved: Iterable[ShadowTable]) -> tuple[str, ...]:
    return tuple(f"{each.kind}:{each.name}" for each in moved)


def _kind_and_name(said: str) -> tuple[str, str]:
    kind, _, name = said.partition(":")
    return kind, name


def _flip(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, kind) for kind, name in pairs]


def _move(connection: Connection, kind: str, name: str, source: str, target: str) -> None:
    if kind == "function":
        head, bracket, rest = name.partition("(")
        moved = f"ROUTINE {_quoted(source)}.{_quoted(head)}{bracket}{rest}"
    else:
        moved = f"{kind.upper()} {_quoted(source)}.{_quoted(name)}"
    _run(connection, f"ALTER {moved} SET SCHEMA {_quoted(target)}").close()


def _taken_from(connection: Connection, one: _Relation) -> _Kept:
    number = one.number
    owner, identity = connection.exec_driver_sql(_KEPT_OF, (number,)).one()
    access = tuple(tuple(row) for row in connection.exec_driver_sql(_ACCESS, (number, number)))
    triggers = {row[0]: row[1] for row in connection.exec_driver_sql(_TRIGGERS, (number,))}
    publications = tuple(connection.exec_driver_sql(_PUBLICATIONS, (number,)).scalars())
    return _Kept(owner, identity, access, triggers, publications)


def _give(connection: Connection, live: str, target: str, one: ShadowTable, kept: _Kept) -> None:
    """Have a table that has taken the place of another one belong to the same people, and serve the same."""
    name, old = f"{_quoted(live)}.{_quoted(one.name)}", f"{_quoted(target)}.{_quoted(one.name)}"
    number = connection.exec_driver_sql("SELECT to_regclass(%s)::oid", (name,)).scalar_one()
    kind = "SEQUENCE" if one.kind == "sequence" else "TABLE"
    for privilege, grantee, grantable, column in kept.access:
        of_column = f" ({_quoted(column)})" if column is not None else ""
        if column is not None and not _has_column(connection, number, column):
            continue
        option = " WITH GRANT OPTION" if grantable else ""
        _run(connection, f"GRANT {privilege}{of_column} ON {kind} {name} TO {grantee}{option}").close()
    there = {row[0] for row in connection.exec_driver_sql(_TRIGGERS, (number,))}
    for trigger, definition in kept.triggers.items():
        if trigger not in there:
            _run(connection, definition).close()
    for publication in kept.publications:
        _run(connection, f"ALTER PUBLICATION {_quoted(publication)} DROP TABLE {old}").close()
        _run(connection, f"ALTER PUBLICATION {_quoted(publication)} ADD TABLE {name}").close()
    if kept.identity in ("f", "n") and one.kind == "table":
        _run(connection, f"ALTER TABLE {name} REPLICA IDENTITY {'FULL' if kept.identity == 'f' else 'NOTHING'}").close()
    owner = connection.exec_driver_sql(_KEPT_OF, (number,)).one()[0]
    if owner != kept.owner:
        _run(connection, f"ALTER {one.kind.upper()} {name} OWNER TO {_quoted(kept.owner)}").close()


def _has_column(connection: Connection, table: int, name: str) -> bool:
    asked = "SELECT EXISTS (SELECT FROM pg_attribute WHERE attrelid = %s AND attname = %s AND NOT attisdropped)"
    return bool(connection.exec_driver_sql(asked, (table, name)).scalar())


def _copy_structure(connection: Connection, live: str, shadow: str, tables: Sequence[str]) -> None:
    """Make tables in the shadow as they are live: columns, defaults, sequences, indexes, keys, triggers; no rows."""
    numbers = {each.name: each.number for each in _relations(connection, live) if each.name in tables}
    if unfit := [name for name in tables if not _is_table(connection, f"{_quoted(live)}.{_quoted(name)}")]:
        what = f"{listed(unfit)} of rebuild.tables is no table"
        raise RebuildError("OCQ-630", what, fix="make views in @on_start")
    for name in tables:
        new, of = f"{_quoted(shadow)}.{_quoted(name)}", f"{_quoted(live)}.{_quoted(name)}"
        _run(connection, f"CREATE TABLE {new} (LIKE {of} INCLUDING ALL)").close()
        for column in connection.exec_driver_sql(_SERIALS, (numbers[name], of)).scalars().all():
            sequence = f"{_quoted(shadow)}.{_quoted(f'{name}_{column}_seq'[:63])}"
            _run(connection, f"CREATE SEQUENCE {sequence} OWNED BY {new}.{_quoted(column)}").close()
            default = "'" + sequence.replace("'", "''") + "'"
            _run(connection, f"ALTER TABLE {new} ALTER {_quoted(column)} SET DEFAULT nextval({default})").close()
    path = connection.exec_driver_sql("SHOW search_path").scalar_one()
    known = list(numbers.values())
    _run(connection, f"SET LOCAL search_path = {_quoted(live)}").close()
    keys = connection.exec_driver_sql(_KEYS_WITHIN, (known, known)).all()
    triggers = [t for number in known for t in connection.exec_driver_sql(_OWN_TRIGGERS, (number,)).scalars()]
    _run(connection, f"SET LOCAL search_path = {_quoted(shadow)}, {_quoted(live)}").close()
    for table, name, definition in keys:
        _run(connection, f"ALTER TABLE {table} ADD CONSTRAINT {_quoted(name)} {definition}").close()
    for definition in triggers:
        _run(connection, definition).close()
    _run(connection, f"SET LOCAL search_path = {path}").close()


def _difference(connection: Connection, name: str, live: str, shadow: str, examples: int) -> Difference:
    one, other = f"{live}.{_quoted(name)}", f"{shadow}.{_quoted(name)}"

    def count(query: str) -> int:
        cursor = _run(connection, query)
        (found,) = cursor.fetchone()
        cursor.close()
        return int(found)

    def rows(left: str, right: str, sign: str) -> list[str]:
        texts = f"SELECT t::text FROM {left} t EXCEPT ALL SELECT t::text FROM {right} t ORDER BY 1 LIMIT {examples}"  # noqa: S608
        cursor = _run(connection, texts)
        found = [f"{sign} {row[0]}" for row in cursor.fetchall()]
        cursor.close()
        return found

    missing = count(f"SELECT count(*) FROM (SELECT t::text FROM {one} t EXCEPT ALL SELECT t::text FROM {other} t) d")  # noqa: S608
    added = count(f"SELECT count(*) FROM (SELECT t::text FROM {other} t EXCEPT ALL SELECT t::text FROM {one} t) d")  # noqa: S608
    rows_live, rows_shadow = (count(f"SELECT count(*) FROM {each}") for each in (one, other))  # noqa: S608
    shown = (*rows(one, other, "-"), *rows(other, one, "+")) if missing or added else ()
    return Difference(name, rows_live, rows_shadow, missing, added, shown)

"""Shadows on PostgreSQL: a schema beside the live one; all of a swap is one transaction."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property, partial

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from typing_extensions import override

from opencqrs_py.adapters.sql.connections import run
from opencqrs_py.adapters.sql.dialects.postgresql_catalog import Relation, has_rows, is_table, quoted, relations, ties
from opencqrs_py.adapters.sql.progress_rows import held
from opencqrs_py.adapters.sql.shadows.comparison import Columns, Comparison
from opencqrs_py.adapters.sql.shadows.contents import Fates, written_in
from opencqrs_py.adapters.sql.shadows.guards import WRITTEN, WRITTEN_COLUMNS
from opencqrs_py.adapters.sql.shadows.kept_rows import KEPT, KeptRows
from opencqrs_py.adapters.sql.shadows.postgresql_dependents import users_of_rest
from opencqrs_py.adapters.sql.shadows.postgresql_moves import (
    exchange,
    objects_of,
    obstacles,
    space_of,
    specials_of,
    specials_that_go,
)
from opencqrs_py.adapters.sql.shadows.postgresql_structure import copy_structure, triggers_of
from opencqrs_py.adapters.sql.shadows.servers import ServerShadows, not_made
from opencqrs_py.adapters.sql.shadows.swaps import (
    Swap,
    Swapped,
    obstructed,
    old_gone,
    require_building,
    require_old,
    require_same_layout,
)
from opencqrs_py.adapters.sql.shadows.urls import ShadowOf, marked
from opencqrs_py.adapters.sql.structure import Triggers
from opencqrs_py.adapters.sql.tables import PROGRESS, REBUILDS
from opencqrs_py.errors import EventStoreError, RebuildError
from opencqrs_py.model.naming import listed
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.rebuild import Difference, Fate, RebuildPhase, RebuildRecord, ShadowTable

_PATIENCE_MS = 50  # that readers wait behind a swap that cannot get its locks
_WITH_ROWS = ("table", "materialized view")
_FIX = "have @on_start create it, or drop it before and create it again after the rebuild; or reset the group"

_COLUMNS = """
SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


class PostgresqlShadows(ServerShadows):
    """Keeps shadows in schemas of the same database, since a table moves from one to another in no time."""

    of_tables = "make the user the owner of the tables of rebuild.tables"
    taken = frozenset({"42P06"})  # the schema exists

    @cached_property
    @override
    def _live_place(self) -> str:
        with self._database.reading() as connection:
            found: str | None = connection.exec_driver_sql("SELECT current_schema()").scalar()
        if found is None:
            what = "the user's search path contains no existing schema"
            raise RebuildError("OCQ-630", what, self._database.label, "create it, or set the search path")
        return found

    @property
    def _ours(self) -> str:
        """Prefix of our own live tables."""
        return self._database.prefix or f"{quoted(self._live_place)}."

    @override
    def _url(self, place: str, shared: Sequence[str] = ()) -> str:
        said = self._database.url.query.get("options", "")
        before = " ".join(said) if isinstance(said, tuple) else said
        path = f"{before} -csearch_path={place}".strip()
        url = self._database.url.update_query_dict({"options": path})
        return marked(url, ShadowOf(self._live_place, tuple(shared)))

    @override
    def _is_there(self, place: str) -> bool:
        with self._database.reading() as connection:
            asked = "SELECT to_regnamespace(%s) IS NOT NULL"
            return bool(connection.exec_driver_sql(asked, (quoted(place),)).scalar())

    @override
    def _live_names(self) -> list[str]:
        with self._database.reading() as connection:
            return [each.name for each in relations(connection, self._live_place)]

    @override
    def _make_place(self, begun: RebuildRecord, tables: Sequence[str], shared: Sequence[str]) -> None:
        live, shadow = self._live_place, self._place("shadow", begun.group)
        with self._making(begun.group), self._database.dialect.change_lock(self._database) as connection:
            with self._granted(not_made(begun.group)):
                connection.exec_driver_sql(f"CREATE SCHEMA {quoted(shadow)}")
            connection.exec_driver_sql(f"CREATE TABLE {quoted(shadow)}.{WRITTEN} {WRITTEN_COLUMNS}")
            for table in shared:
                view, of = f"{quoted(shadow)}.{quoted(table)}", f"{quoted(live)}.{quoted(table)}"
                run(connection, f"CREATE VIEW {view} AS SELECT * FROM {of}").close()  # noqa: S608 quoted
            copy_structure(connection, live, shadow, tables)
            self.rebuilds.begin(connection, begun)

    @override
    def _grant(self) -> str:
        asked = "SELECT 'ON DATABASE ' || quote_ident(current_database()) || ' TO ' || quote_ident(current_user)"
        with self._database.reading() as connection:
            return f"GRANT CREATE {connection.exec_driver_sql(asked).scalar_one()}"

    @override
    def _triggers(self, connection: Connection, tables: Collection[str]) -> dict[str, Triggers]:
        return triggers_of(connection, tables)

    @override
    def look(self, group: str, named: Collection[str], shared: Collection[str]) -> list[ShadowTable]:
        shadow = self._place("shadow", group)
        with self._database.reading() as connection:
            known = relations(connection, shadow)
            live = {each.name for each in relations(connection, self._live_place)}
            own = [each for each in known if each.name not in shared]
            moving = self._moving(connection, shadow, own, live, named)
            fates = Fates(live, {each.name for each in moving}, named, shared)
            found = [fates.of(each.name, each.kind) for each in known]
            there = {(each.kind, each.name) for each in specials_of(connection, self._live_place)}
            specials = specials_of(connection, shadow)
            stays = any(each.fate is Fate.LEFT for each in found)
            going = specials_that_go(connection, specials, moving) if stays else {*specials}
            for each in specials:
                fate = Fate.SWAPPED if (each.kind, each.name) in there else Fate.ADDED
                found.append(ShadowTable(each.name, each.kind, fate if each in going else Fate.LEFT))
        return found

    def _moving(
        self,
        connection: Connection,
        shadow: str,
        known: Sequence[Relation],
        live: Collection[str],
        named: Collection[str],
    ) -> list[Relation]:
        """Return what is swapped: what handlers have written to, what is new, and what belongs to it."""
        place, is_filled = f"{quoted(shadow)}.", partial(has_rows, connection, shadow)
        tables = [each.name for each in known if each.kind == "table"]
        names = {*named, *written_in(self._database.dialect, connection, place, tables, is_filled)}
        carries = {each.number for each in known if each.name in names or each.name not in live}
        moved = ties(connection, known).moved(known, carries)
        return [each for each in known if each.number in moved]

    @override
    def refusals(self, group: str, tables: Sequence[ShadowTable]) -> list[str]:
        with self._database.reading() as connection:
            return self._refusals(connection, group, tables)

    def _refusals(self, connection: Connection, group: str, tables: Sequence[ShadowTable]) -> list[str]:
        place = self._place("shadow", group)
        moved = {(space_of(each.kind), each.name) for each in tables if each.is_moved}
        live, shadow = (
            [each for each in objects_of(connection, one) if (space_of(each.kind), each.name) in moved]
            for one in (self._live_place, place)
        )
        found = obstacles(connection, live)
        for user in users_of_rest(connection, place, shadow):
            used = user.used.replace(f"{place}.", "")
            found.append(f"the {user.name} needs the {used}, which stays as it is".replace(f"{place}.", ""))
        right = "has_schema_privilege(%s, 'CREATE')"
        if not connection.exec_driver_sql(f"SELECT {right}", (self._live_place,)).scalar():
            found.append(f"the user may not create tables in the schema {self._live_place}")
        return found

    @override
    def _compared(self, group: str, tables: Sequence[str], examples: int) -> Comparison:
        shadow, live = (quoted(each) for each in (self._place("shadow", group), self._live_place))
        with self._database.writing(isolation="REPEATABLE READ") as connection:
            rows = KeptRows(connection, group)
            positions = rows.positions(self._ours), rows.positions(f"{shadow}.")
            found = (_difference(connection, name, live, shadow, examples) for name in tables)
            return Comparison(*positions, tuple(found))

    @override
    def _drop_shadow(self, group: str) -> None:
        with self._database.dialect.change_lock(self._database) as connection:
            self._drop(connection, self._place("shadow", group))
            known = self.rebuilds.last(group)
            if known is not None and known.phase is RebuildPhase.BUILDING:
                self.rebuilds.write(connection, replace(known, phase=RebuildPhase.ENDED))

    @override
    def drop_old(self, group: str) -> None:
        with self._database.dialect.change_lock(self._database) as connection:
            self._drop(connection, self._place("old", group))
            known = self.rebuilds.last(group)
            if known is not None:
                self.rebuilds.write(connection, replace(known, phase=RebuildPhase.ENDED, relations=()))

    def _drop(self, connection: Connection, schema: str) -> None:
        """Drop a schema of ours; refuse if others hold on to what is in it."""
        found = connection.exec_driver_sql("SELECT to_regnamespace(%s)::oid", (quoted(schema),)).scalar()
        if found is None:
            return
        if holders := [user.name for user in users_of_rest(connection, schema)]:
            what = f"the schema {schema} cannot be dropped: {listed(holders)} would go with it"
            raise RebuildError("OCQ-630", what, self._database.label, "drop that first")
        connection.exec_driver_sql("SET LOCAL lock_timeout = '10s'")
        connection.exec_driver_sql(f"DROP SCHEMA {quoted(schema)} CASCADE")

    @override
    def _swap(self, swap: Swap) -> Swapped:
        group = swap.group
        shadow, old = self._place("shadow", group), self._place("old", group)
        self._analyse(shadow)
        with self._database.writing(isolation="READ COMMITTED") as connection:
            before = self._locked_record(connection, group)
            require_building(swap, before)
            known = self._groups.find(connection, group)
            rows = KeptRows(connection, group)
            live = self._lock_live(connection, group)
            swap.reached(live)
            require_same_layout(group, live, rows.positions(f"{quoted(shadow)}."))
            where = f"{quoted(shadow)}.{PROGRESS.name} WHERE group_name = %s"
            connection.exec_driver_sql(f"SELECT 1 FROM {where} FOR UPDATE", (group,)).all()  # noqa: S608
            tables = self.look(group, swap.named, before.shared)
            moved = [each for each in tables if each.is_moved]
            if refused := self._refusals(connection, group, tables):
                raise obstructed(group, refused, _FIX)
            connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {quoted(old)}")
            self._copy_kept_tables(connection, old)
            began = self._lock(connection, [each.name for each in moved if each.fate is Fate.SWAPPED])
            self._require_same_structure(connection, swap, before)
            before = self._swapping(connection, swap, before, tables)
            exchange(connection, self._live_place, moved, shadow, old)
            rows.copy(self._ours, f"{quoted(old)}.")
            position = rows.replace(f"{quoted(shadow)}.", self._ours, keep_replays=True)
            rows.fence(f"{quoted(shadow)}.")
            self._record_swap(connection, swap, known, before)
            self._notify(connection)
        return Swapped(position, tuple(tables), time.monotonic() - began)

    @override
    def _undo(self, group: str, fills: Collection[str]) -> Swapped:
        shadow, old = self._place("shadow", group), self._place("old", group)
        with self._database.writing(isolation="READ COMMITTED") as connection:
            before = self._locked_record(connection, group)
            require_old(before)
            if not self._is_there(old):
                raise old_gone(group, f"schema {old}")
            self._lock_live(connection, group)
            kept = relations(connection, old)
            live = {each.name for each in relations(connection, self._live_place)}
            connection.exec_driver_sql(f"CREATE SCHEMA {quoted(shadow)}")
            back = [ShadowTable(e.name, e.kind, Fate.SWAPPED if e.name in live else Fate.ADDED) for e in kept]
            back += [ShadowTable(each.name, each.kind, Fate.SWAPPED) for each in specials_of(connection, old)]
            leaving = {(space_of(each.kind), each.name) for each in before.relations}
            mine = [e for e in objects_of(connection, self._live_place) if (space_of(e.kind), e.name) in leaving]
            if refused := obstacles(connection, mine):
                raise obstructed(group, refused, _FIX)
            tables = [each.name for each in before.relations if each.name in live and each.kind == "table"]
            began = self._lock(connection, tables)
            self._require_empty(connection, before, fills)
            gone = [ShadowTable(each.name, each.kind, Fate.SWAPPED) for each in before.relations]
            exchange(connection, self._live_place, back, old, shadow, gone, with_triggers=False)
            position = KeptRows(connection, group).replace(f"{quoted(old)}.", self._ours)
            self._record_undo(connection, before)
            self._notify(connection)
        seconds = time.monotonic() - began
        self._drop_in_peace(shadow)
        self._drop_in_peace(old)
        return Swapped(position, tuple(back), seconds)

    def _locked_record(self, connection: Connection, group: str) -> RebuildRecord:
        table = f"{self._ours}{REBUILDS.name}"
        connection.exec_driver_sql(f"SELECT 1 FROM {table} WHERE group_name = %s FOR UPDATE", (group,)).all()  # noqa: S608
        return self.rebuilds.required(group)

    def _lock_live(self, connection: Connection, group: str) -> dict[Partition, int]:
        """Lock the live partitions of a group, and return their positions."""
        progress = self._database.table(PROGRESS)
        known = held(connection, progress, group)
        self._database.dialect.lock_claim(self._database, connection, group, list(known))
        return {partition: cursor.stored for partition, cursor in held(connection, progress, group).items()}

    def _lock(self, connection: Connection, names: Iterable[str]) -> float:
        """Lock tables against readers, for a short time only, as later readers wait as well. Return when that began."""
        live = quoted(self._live_place)
        tables = [f"{live}.{quoted(name)}" for name in names]
        tables = [each for each in tables if is_table(connection, each)]
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_PATIENCE_MS}ms'")
        began = time.monotonic()
        if tables:
            run(connection, f"LOCK TABLE {', '.join(tables)} IN ACCESS EXCLUSIVE MODE").close()
        return began

    def _copy_kept_tables(self, connection: Connection, schema: str) -> None:
        for table in KEPT:
            like = f"{quoted(schema)}.{table.name} (LIKE {self._ours}{table.name} INCLUDING ALL)"
            connection.exec_driver_sql(f"CREATE TABLE IF NOT EXISTS {like}")

    def _analyse(self, schema: str) -> None:
        """Fill materialized views, and analyse the new tables before they are read."""
        with self._database.reading() as connection:
            known = relations(connection, schema)
            for each in sorted(known, key=lambda one: one.number):  # one may show another that is older
                if each.kind == "materialized view":
                    run(connection, f"REFRESH MATERIALIZED VIEW {quoted(schema)}.{quoted(each.name)}").close()
            for each in known:
                if each.kind in _WITH_ROWS:
                    run(connection, f"ANALYZE {quoted(schema)}.{quoted(each.name)}").close()

    def _notify(self, connection: Connection) -> None:
        connection.exec_driver_sql(self._database.dialect.notify_nodes)

    def _drop_in_peace(self, schema: str) -> None:
        """Drop what is no longer needed; if that fails, it is dropped later."""
        try:
            with self._database.dialect.change_lock(self._database) as connection:
                self._drop(connection, schema)
        except (DBAPIError, EventStoreError):
            return


def _difference(connection: Connection, name: str, live: str, shadow: str, examples: int) -> Difference:
    one, other = f"{live}.{quoted(name)}", f"{shadow}.{quoted(name)}"
    known, others = (connection.exec_driver_sql(_COLUMNS, (each,)).scalars().all() for each in (one, other))
    columns = Columns.of(known, others)
    row = f"ROW({', '.join(map(quoted, columns.both))})::text AS row"

    def count(query: str) -> int:
        cursor = run(connection, query)
        (found,) = cursor.fetchone()
        cursor.close()
        return int(found)

    def only(left: str, right: str) -> str:
        return f"SELECT {row} FROM {left} EXCEPT ALL SELECT {row} FROM {right}"  # noqa: S608 quoted

    def rows(query: str, sign: str) -> list[str]:
        cursor = run(connection, f"{query} ORDER BY 1 LIMIT {examples}")
        found = [f"{sign} {row[0]}" for row in cursor.fetchall()]
        cursor.close()
        return found

    missing, added = (count(f"SELECT count(*) FROM ({only(*each)}) d") for each in ((one, other), (other, one)))  # noqa: S608
    rows_live, rows_shadow = (count(f"SELECT count(*) FROM {each}") for each in (one, other))  # noqa: S608
    shown = (*rows(only(one, other), "-"), *rows(only(other, one), "+")) if missing or added else ()
    return Difference(name, rows_live, rows_shadow, missing, added, shown, columns.live, columns.shadow)

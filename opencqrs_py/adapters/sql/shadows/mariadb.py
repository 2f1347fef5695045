"""Shadows on MariaDB: a database beside the live one. Definitions commit, so a swap has steps that can be repeated.

First an intent is recorded, and both groups are fenced off. Then one atomic ``RENAME TABLE`` moves all tables, and with
them a table whose new name shows that it was done. Then the progress follows. Claims wait for the end of that, or are
refused, if its process was killed in the middle, until it is completed.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from typing_extensions import override

from opencqrs_py.adapters.sql.connections import reason_of, run
from opencqrs_py.adapters.sql.dialects.faults import Fault
from opencqrs_py.adapters.sql.dialects.mariadb_catalog import (
    copy_structure,
    copy_views,
    difference,
    has_rows,
    is_used,
    move_defaults,
    quoted,
    record_in,
    relations,
)
from opencqrs_py.adapters.sql.progress_rows import held
from opencqrs_py.adapters.sql.shadows.comparison import Comparison
from opencqrs_py.adapters.sql.shadows.contents import Fates, prepare_place, written_in
from opencqrs_py.adapters.sql.shadows.guards import WRITTEN, WRITTEN_COLUMNS
from opencqrs_py.adapters.sql.shadows.kept_rows import KeptRows
from opencqrs_py.adapters.sql.shadows.servers import ServerShadows, not_made
from opencqrs_py.adapters.sql.shadows.swaps import (
    BusyError,
    Swap,
    Swapped,
    obstructed,
    old_gone,
    require_building,
    require_old,
    require_same_layout,
)
from opencqrs_py.adapters.sql.shadows.urls import ShadowOf, marked
from opencqrs_py.adapters.sql.tables import GROUPS, PROGRESS, SCHEMA
from opencqrs_py.errors import RebuildError
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.rebuild import Fate, RebuildPhase, RebuildRecord, ShadowTable

_NOT_YET, _DONE = "opencqrs_swapping", "opencqrs_swapped"  # the table whose name shows whether all were renamed
_UNKNOWN_DATABASE = 1049
_RENAME_SECONDS = 5.0  # that a swap tries to get the locks of all tables, while the live group waits
_RENAME_PAUSE = 0.01
_FIX = "drop it before and create it again after the rebuild; or reset the group"

_TRIGGERS = "SELECT trigger_name, event_object_table FROM information_schema.triggers WHERE event_object_schema = %s"
_KEYS = """
SELECT DISTINCT constraint_name, table_schema, table_name, referenced_table_schema, referenced_table_name
FROM information_schema.key_column_usage
WHERE referenced_table_name IS NOT NULL AND (table_schema = %s OR referenced_table_schema = %s)
"""


class MariaDbShadows(ServerShadows):
    """Keeps shadows in databases of the same server, since a table moves from one to another in no time."""

    of_tables = "grant the user ALL on the tables of rebuild.tables, and SELECT on those of rebuild.shared-tables"
    taken = frozenset({1007, _UNKNOWN_DATABASE, 1050})  # the database exists, is gone, or has its first table

    @property
    @override
    def _live_place(self) -> str:
        found = self._database.url.database
        if not found:
            raise RebuildError("OCQ-630", "the URL names no database", self._database.label, "name one in database.url")
        return found

    @property
    def _ours(self) -> str:
        return self._database.prefix or f"{quoted(self._live_place)}."

    @override
    def _url(self, place: str, shared: Sequence[str] = ()) -> str:
        return marked(self._database.url.set(database=place), ShadowOf(self._live_place, tuple(shared)))

    @override
    def _is_there(self, place: str) -> bool:
        with self._database.reading() as connection:
            found = connection.exec_driver_sql(self._database.dialect.find_schema, (place,)).first()
        return found is not None

    @override
    def _live_names(self) -> list[str]:
        with self._database.reading() as connection:
            return list(relations(connection, self._live_place))

    @override
    def _make_place(self, begun: RebuildRecord, tables: Sequence[str], shared: Sequence[str]) -> None:
        live, shadow = (quoted(each) for each in (self._live_place, self._place("shadow", begun.group)))
        if self._database.url.drivername != "mysql+pymysql":
            what = f"the driver {self._database.url.drivername} does not show its statements, which a rebuild checks"
            raise RebuildError("OCQ-630", what, self._database.label, "use the driver PyMySQL: mariadb://…")
        with self._database.reading() as connection, self._making(begun.group):
            with self._granted(not_made(begun.group)):
                connection.exec_driver_sql(f"CREATE DATABASE {shadow} CHARACTER SET {self._charset(connection)}")
                connection.exec_driver_sql(f"CREATE TABLE {shadow}.{WRITTEN} {WRITTEN_COLUMNS}")
            for table in shared:  # a view, which cannot be written to while it is read
                view, of = f"{shadow}.{quoted(table)}", f"{live}.{quoted(table)}"
                run(connection, f"CREATE ALGORITHM = TEMPTABLE VIEW {view} AS SELECT * FROM {of}").close()  # noqa: S608
            copy_structure(connection, live, shadow, tables)
        self._begin_after(begun)

    def _charset(self, connection: Connection) -> str:
        asked = (
            "SELECT CONCAT(default_character_set_name, ' COLLATE ', default_collation_name) "
            "FROM information_schema.schemata WHERE schema_name = %s"
        )
        found: str = connection.exec_driver_sql(asked, (self._live_place,)).scalar_one()
        return found

    @override
    def _grant(self) -> str:
        with self._database.reading() as connection:
            name, _, host = connection.exec_driver_sql("SELECT CURRENT_USER()").scalar_one().rpartition("@")
        return f"GRANT ALL ON `opencqrs\\_%`.* TO {quoted(name)}@{quoted(host)}"

    @override
    def look(self, group: str, named: Collection[str], shared: Collection[str]) -> list[ShadowTable]:
        shadow = self._place("shadow", group)
        with self._database.reading() as connection:
            live = relations(connection, self._live_place)
            known = relations(connection, shadow)
            moved = {*named, *(known.keys() - live.keys()), *self._written(connection, shadow, known)}
        fates = Fates(live, moved, named, shared)
        return [fates.of(name, kind) for name, kind in known.items()]

    def _written(self, connection: Connection, shadow: str, known: Mapping[str, str]) -> set[str]:
        """Return what handlers have written to, with used sequences, and all views."""
        tables = [name for name, kind in known.items() if kind == "table"]
        is_filled = partial(has_rows, connection, shadow)
        written = written_in(self._database.dialect, connection, f"{quoted(shadow)}.", tables, is_filled)
        used = (n for n, kind in known.items() if kind == "sequence" and is_used(connection, shadow, n))
        return {*written, *used, *(name for name, kind in known.items() if kind == "view")}

    @override
    def refusals(self, group: str, tables: Sequence[ShadowTable]) -> list[str]:
        shadow = self._place("shadow", group)
        moved = {each.name for each in tables if each.is_moved}
        with self._database.reading() as connection:
            found = self._obstacles(connection, self._live_place, moved)
            found += self._obstacles(connection, shadow, moved)
            live = relations(connection, self._live_place)
            found += _of_other_kinds(live, tables)
            found += self._unreadable(connection, [name for name in moved if live.get(name) == "view"])
        return found

    def _unreadable(self, connection: Connection, views: Collection[str]) -> Iterator[str]:
        """Yield the live views that cannot be made again beside the old tables, after these were moved."""
        for name in sorted(views):
            try:
                run(connection, f"SHOW COLUMNS FROM {quoted(self._live_place)}.{quoted(name)}").close()
            except DBAPIError as error:
                if self._database.is_outage(error):
                    raise
                yield f"the view {name} cannot be read ({reason_of(error)})"

    def _obstacles(self, connection: Connection, place: str, names: Collection[str]) -> list[str]:
        found = [
            f"{table} has the trigger {trigger}, and MariaDB moves no table with triggers"
            for trigger, table in connection.exec_driver_sql(_TRIGGERS, (place,))
            if table in names
        ]
        for name, schema, table, other_schema, other in connection.exec_driver_sql(_KEYS, (place, place)):
            inside = [(schema, table), (other_schema, other)]
            if sum(where == place and one in names for where, one in inside) == 1:
                text = f"the foreign key {name} of {schema}.{table} leads to {other_schema}.{other}"
                found.append(f"{text}, one of which is not swapped with the other")
        return found

    @override
    def _compared(self, group: str, tables: Sequence[str], examples: int) -> Comparison:
        shadow = self._place("shadow", group)
        with self._database.reading() as connection:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            connection.exec_driver_sql("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            try:
                rows = KeptRows(connection, group)
                positions = rows.positions(self._ours), rows.positions(f"{quoted(shadow)}.")
                found = [difference(connection, name, self._live_place, shadow, examples) for name in tables]
            finally:
                connection.exec_driver_sql("COMMIT")
        return Comparison(*positions, tuple(found))

    @override
    def _drop_shadow(self, group: str) -> None:
        known = self.rebuilds.last(group)
        if known is not None and known.phase is RebuildPhase.BUILDING:
            self._require_visible(self._place("shadow", group))
            with self._database.writing() as connection:
                self.rebuilds.write(connection, replace(known, phase=RebuildPhase.ENDED))
        self._drop(self._place("shadow", group))

    @override
    def drop_old(self, group: str) -> None:
        known, old = self.rebuilds.last(group), self._place("old", group)
        if known is not None and known.keeps_old:
            self._require_visible(old)
        self._drop(old)
        if known is not None:
            with self._database.writing() as connection:
                self.rebuilds.write(connection, replace(known, phase=RebuildPhase.ENDED, relations=()))

    def _require_visible(self, name: str) -> None:
        """Refuse with OCQ-630 if the user lacks privileges on a database: the server lists it as if it did not exist.

        One that was dropped is refused, too, unless the user could use it if it existed.
        """
        self._tables_in(name)

    def _tables_in(self, name: str) -> Sequence[str]:
        """Return the tables of a database, none if it does not exist; refuse with OCQ-630 what the user may not see."""
        with self._database.reading() as connection, self._granted(f"the database {name} cannot be used"):
            try:
                return connection.exec_driver_sql(f"SHOW TABLES FROM {quoted(name)}").scalars().all()
            except DBAPIError as error:
                if self._database.dialect.code_of(error.orig) != _UNKNOWN_DATABASE:
                    raise
        return ()

    def _drop(self, name: str) -> None:
        if not self._is_there(name):  # which a user without privileges on it may not even try
            return
        with self._database.reading() as connection, self._granted(f"the database {name} cannot be dropped"):
            keys = connection.exec_driver_sql(_KEYS, (name, name)).all()
            across = [f"the foreign key {row[0]} of {row[1]}.{row[2]}" for row in keys if row[1] != row[3]]
            if across:
                what = f"the database {name} cannot be dropped: {', '.join(across)} refers to it"
                raise RebuildError("OCQ-630", what, self._database.label, "drop that first")
            connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {quoted(name)}")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold off claims, and other swaps, until the end of the block."""
        with self._database.writing() as connection:
            where = f"WHERE table_name = '{PROGRESS.name}' FOR UPDATE WAIT 10"
            connection.exec_driver_sql(f"SELECT version FROM {self._database.prefix}{SCHEMA.name} {where}").all()  # noqa: S608
            yield

    @override
    def _swap(self, swap: Swap) -> Swapped:
        group = swap.group
        old = self._place("old", group)
        self._make_if_missing(old)
        prepare_place(self._url(old))
        self._analyse(self._place("shadow", group))
        with self._alone():
            require_building(swap, self.rebuilds.required(group))
            self._renew_marker(old)
            tables = self._fence(swap)
            seconds = self._renamed(group)
            with self._database.explained():  # no reason to begin again: the next command completes the swap
                position = self._follow(group, swap)
        return Swapped(position, tuple(tables), seconds)

    @override
    def _undo(self, group: str, fills: Collection[str]) -> Swapped:
        shadow, old = self._place("shadow", group), self._place("old", group)
        before = self.rebuilds.required(group)
        self._require_visible(old)
        if not self._is_there(old):
            raise old_gone(group, f"database {old}")
        if refused := self._undo_obstacles(before):
            raise obstructed(group, refused, _FIX)
        self._make_if_missing(shadow)
        with self._alone():
            require_old(self.rebuilds.required(group))
            self._renew_marker(old)
            with self._database.reading() as connection:
                back, live = relations(connection, old), relations(connection, self._live_place)
            with self._database.writing() as connection:
                rows = KeptRows(connection, group)
                self._lock_live(connection, group)
                self._require_empty(connection, before, fills)
                rows.fence(self._ours)
                self.rebuilds.write(connection, replace(before, phase=RebuildPhase.SWAPPING, undoes=True))
            seconds = self._renamed(group)
            with self._database.explained():
                position = self._follow_back(group)
        self._drop(shadow)
        self._drop(old)
        found = [ShadowTable(n, k, Fate.SWAPPED if n in live else Fate.ADDED, "kept") for n, k in back.items()]
        return Swapped(position, tuple(found), seconds)

    @override
    def complete(self, group: str) -> None:
        known = self.rebuilds.last(group)
        if known is None or known.phase is not RebuildPhase.SWAPPING:
            return
        self._prepare()
        with self._alone():
            known = self.rebuilds.required(group)
            if known.phase is not RebuildPhase.SWAPPING:
                return
            if not self._is_renamed(group):
                self._take_back(group)
                return
            if known.undoes:
                self._follow_back(group)
            else:
                self._require_visible(self._place("shadow", group))
                self._follow(group, None)
        self._drop(self._place("shadow", group))
        if known.undoes:
            self._drop(self._place("old", group))

    def _undo_obstacles(self, before: RebuildRecord) -> list[str]:
        names = {each.name for each in before.relations if each.kind == "table"}
        with self._database.reading() as connection:
            return self._obstacles(connection, self._live_place, names)

    def _lock_live(self, connection: Connection, group: str) -> dict[Partition, int]:
        progress = self._database.table(PROGRESS)
        known = held(connection, progress, group)
        self._database.dialect.lock_rows(self._database, connection, group, list(known), " WAIT 10")
        return {partition: cursor.stored for partition, cursor in held(connection, progress, group).items()}

    def _fence(self, swap: Swap) -> list[ShadowTable]:
        """Have both groups wait where they are equal, and record what is about to happen."""
        group = swap.group
        shadow, old = self._place("shadow", group), self._place("old", group)
        with self._database.writing() as connection:
            before, rows = self.rebuilds.required(group), KeptRows(connection, group)
            require_building(swap, before)
            live = self._lock_live(connection, group)
            swap.reached(live)
            place = f"{quoted(shadow)}."
            where = f"{place}{PROGRESS.name} WHERE group_name = %s FOR UPDATE WAIT 10"
            connection.exec_driver_sql(f"SELECT 1 FROM {where}", (group,)).all()  # noqa: S608
            require_same_layout(group, live, rows.positions(place))
            tables = self.look(group, swap.named, before.shared)
            if refused := self.refusals(group, tables):
                raise obstructed(group, refused, _FIX)
            self._require_same_structure(connection, swap, before)
            for each in (self._ours, place):
                rows.fence(each)
            rows.delete(f"{quoted(old)}.")
            rows.copy(self._ours, f"{quoted(old)}.")
            self._write_code(connection, place, swap)
            begun = self._swapping(connection, swap, before, tables)
            self.rebuilds.write(connection, replace(begun, phase=RebuildPhase.SWAPPING))
        return tables

    def _write_code(self, connection: Connection, place: str, swap: Swap) -> None:
        """Record in the shadow which code has built it, all of the group's."""
        values = "handlers = %s, sequencing = %s WHERE group_name = %s"
        known = (swap.handlers, swap.sequencing, swap.group)
        connection.exec_driver_sql(f"UPDATE {place}{GROUPS.name} SET {values}", known)  # noqa: S608

    def _renamed(self, group: str) -> float:
        """Rename all tables, or return to the state before the intent; return how many seconds that took."""
        began = time.monotonic()
        try:
            self._rename(group, self.rebuilds.required(group))
        except BaseException:
            self._take_back(group)
            raise
        return time.monotonic() - began

    def _rename(self, group: str, record: RebuildRecord) -> None:
        """Rename all tables at once, with the one that shows it; wait for others in short pieces."""
        live, shadow, old = (quoted(e) for e in (self._live_place, *(self._place(k, group) for k in ("shadow", "old"))))
        source, target = (old, shadow) if record.undoes else (shadow, old)
        with self._database.reading() as connection:
            there, coming = relations(connection, self._live_place), relations(connection, source.strip("`"))
            built = [each.name for each in record.relations if each.kind != "view"]
            new = [name for name, kind in coming.items() if kind != "view"] if record.undoes else built
            moves = [(live, target, name) for name in built if name in there and there[name] != "view"]
            moves += [(source, live, name) for name in new]
            pairs = [f"{one}.{quoted(name)} TO {two}.{quoted(name)}" for one, two, name in moves]
            pairs.append(f"{old}.{_NOT_YET} TO {old}.{_DONE}")
            until = time.monotonic() + _RENAME_SECONDS
            wait = 0
            while True:
                try:
                    run(
                        connection, f"SET STATEMENT lock_wait_timeout = {wait} FOR RENAME TABLE {', '.join(pairs)}"
                    ).close()
                except Exception as error:
                    if self._database.dialect.fault_of(error) is not Fault.LOCK_TIMEOUT:
                        raise
                    if time.monotonic() >= until:
                        raise BusyError("other programs hold locks on its tables") from None
                    time.sleep(_RENAME_PAUSE)
                else:
                    return

    def _is_renamed(self, group: str) -> bool:
        return _DONE in self._tables_in(self._place("old", group))

    def _take_back(self, group: str) -> None:
        """Return to the state before the intent, if nothing was renamed yet."""
        if self._is_renamed(group):
            return
        known = self.rebuilds.required(group)
        phase = RebuildPhase.SWAPPED if known.undoes else RebuildPhase.BUILDING
        with self._database.writing() as connection:
            self.rebuilds.write(connection, replace(known, phase=phase, undoes=False))

    def _follow(self, group: str, swap: Swap | None) -> int:
        """Have the progress follow the tables, and views and defaults what they name."""
        shadow, old = self._place("shadow", group), self._place("old", group)
        before = self.rebuilds.required(group)
        views = [each.name for each in before.relations if each.kind == "view"]
        with self._database.reading() as connection:
            move_defaults(connection, shadow, self._live_place)
            kept = relations(connection, old)
            copy_views(connection, [name for name in views if name not in kept], self._live_place, old, kept)
            copy_views(connection, views, shadow, self._live_place)
        with self._database.writing() as connection:
            rows, known = KeptRows(connection, group), self._groups.find(connection, group)
            built = record_in(connection, f"{quoted(shadow)}.", group)
            done = swap or Swap(before, built[0], built[1], lambda _: None)
            position = rows.replace(f"{quoted(shadow)}.", self._ours, keep_replays=True)
            self._record_swap(connection, done, known, before)
        return position

    def _follow_back(self, group: str) -> int:
        old, before = self._place("old", group), self.rebuilds.required(group)
        with self._database.reading() as connection:
            kept = [name for name, kind in relations(connection, old).items() if kind == "view"]
            copy_views(connection, kept, old, self._live_place)
            for each in before.relations:
                if each.kind == "view" and each.name not in kept:
                    run(connection, f"DROP VIEW IF EXISTS {quoted(self._live_place)}.{quoted(each.name)}").close()
        with self._database.writing() as connection:
            position = KeptRows(connection, group).replace(f"{quoted(old)}.", self._ours)
            self._record_undo(connection, before)
        return position

    def _make_if_missing(self, name: str) -> None:
        with self._database.reading() as connection, self._granted(f"the database {name} cannot be made"):
            connection.exec_driver_sql(f"CREATE DATABASE IF NOT EXISTS {quoted(name)}")

    def _renew_marker(self, old: str) -> None:
        """Have it show that nothing was renamed yet; only while no swap is under way, which it would take back."""
        with self._database.reading() as connection:
            for name in (_DONE, _NOT_YET):
                connection.exec_driver_sql(f"DROP TABLE IF EXISTS {quoted(old)}.{name}")
            connection.exec_driver_sql(f"CREATE TABLE {quoted(old)}.{_NOT_YET} (nothing INT)")

    def _analyse(self, place: str) -> None:
        with self._database.reading() as connection:
            for name, kind in relations(connection, place).items():
                if kind == "table":
                    run(connection, f"ANALYZE TABLE {quoted(place)}.{quoted(name)}").close()


def _of_other_kinds(live: dict[str, str], tables: Sequence[ShadowTable]) -> Iterator[str]:
    """Yield tables that would become views, and views that would become tables: one rename does not do that."""
    for each in tables:
        before = live.get(each.name, each.kind)
        if each.fate is Fate.SWAPPED and before != each.kind and "view" in (before, each.kind):
            yield f"{each.name} is a {before} and would become a {each.kind}"

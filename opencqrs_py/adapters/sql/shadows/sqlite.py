"""Shadows on SQLite: a file beside the live one. A swap copies its tables into the live file, in one transaction."""

from __future__ import annotations

import logging
import sqlite3
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import URL, Connection
from typing_extensions import override

from opencqrs_py.adapters.sql.dialects.sqlite_file import CONTROL_SUFFIX, make_with_rights_of
from opencqrs_py.adapters.sql.shadows.comparison import Columns, Comparison
from opencqrs_py.adapters.sql.shadows.contents import Fates, prepare_place, shared_table, written_in
from opencqrs_py.adapters.sql.shadows.guards import WRITTEN, WRITTEN_COLUMNS, is_ours
from opencqrs_py.adapters.sql.shadows.kept_rows import KEPT, KeptRows
from opencqrs_py.adapters.sql.shadows.rebuild_records import ended_elsewhere
from opencqrs_py.adapters.sql.shadows.shadows import Shadows
from opencqrs_py.adapters.sql.shadows.swaps import (
    Swap,
    Swapped,
    obstructed,
    old_gone,
    require_building,
    require_old,
    require_same_layout,
)
from opencqrs_py.adapters.sql.shadows.urls import ShadowOf, marked, place_of
from opencqrs_py.adapters.sql.structure import Trigger, Triggers
from opencqrs_py.adapters.sql.tables import PROGRESS
from opencqrs_py.errors import RebuildError
from opencqrs_py.model.naming import listed
from opencqrs_py.model.rebuild import Difference, Fate, RebuildPhase, RebuildRecord, ShadowTable

_log = logging.getLogger("opencqrs.control")
_OTHER = "opencqrs_other"  # the file from which tables are copied, in the connection to the live one
LET_GO_SECONDS = 3.0  # that an abort waits at most for the process that fills the shadow
_PAUSE = 0.02  # seconds between two looks whether it is closed
_FIX = "empty the tables in @on_reset, and reset the group"
_BYTES_A_SECOND = 50_000_000  # that are copied, about
_MASTER = "SELECT type, name, tbl_name, sql FROM {}sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"


class SqliteShadows(Shadows):
    """Keeps shadows in separate files, since two files have no transaction in common."""

    @property
    @override
    def _live_place(self) -> str:
        with self._database.reading() as connection:
            driver: Any = connection.connection.dbapi_connection
            name = str(driver.execute("PRAGMA database_list").fetchone()[2])
        if not name or not Path(name).exists():
            what = "a database in memory cannot be rebuilt beside itself"
            raise RebuildError("OCQ-630", what, self._database.label, "name a file in database.url")
        return str(Path(name).resolve())

    @override
    def _place(self, kind: str, group: str) -> str:
        live = Path(self._live_place)
        return str(live.with_name(f"{live.name}-{place_of(kind, group, str(live))}.db"))

    def _file(self, kind: str, group: str) -> Path:
        return Path(self._place(kind, group))

    @override
    def _url(self, place: str, shared: Sequence[str] = ()) -> str:
        url = URL.create("sqlite", database=f"file:{quote(place)}", query={"uri": "true"})
        return marked(url, ShadowOf(self._live_place, tuple(shared)))

    @override
    def _is_there(self, place: str) -> bool:
        return Path(place).exists()

    @override
    def _live_names(self) -> list[str]:
        with self._database.reading() as connection:
            return [name for _, name, _ in _objects(connection, "", ("table", "view"))]

    @override
    def _make_place(self, begun: RebuildRecord, tables: Sequence[str], shared: Sequence[str]) -> None:
        del shared  # they are views of each connection
        shadow = self._file("shadow", begun.group)
        _remove(shadow)
        with self._database.reading() as connection:
            made = [sql for _, name, sql in _objects(connection, "", ("table",)) if name in tables]
            made += [
                sql
                for kind, _, table, sql in connection.exec_driver_sql(_MASTER.format("")).all()
                if kind in ("index", "trigger") and _is_among(table, tables)
            ]
        make_with_rights_of(Path(self._live_place), shadow)
        with closing(sqlite3.connect(shadow, isolation_level=None)) as new:
            new.execute("PRAGMA journal_mode=WAL")
            new.execute("BEGIN IMMEDIATE")
            new.execute(f"CREATE TABLE {WRITTEN} {WRITTEN_COLUMNS}")
            for sql in made:
                new.execute(sql)
            new.execute("COMMIT")
        prepare_place(self._url(str(shadow)))
        self._begin_after(begun, replaces_builds=True)  # as its file has replaced that of another build

    @override
    def _triggers(self, connection: Connection, tables: Collection[str]) -> dict[str, Triggers]:
        found = connection.exec_driver_sql(_MASTER.format("main.")).all()
        return {
            table: {
                name: Trigger(sql) for kind, name, of, sql in found if kind == "trigger" and _is_among(of, (table,))
            }
            for table in tables
        }

    @override
    def look(self, group: str, named: Collection[str], shared: Collection[str]) -> list[ShadowTable]:
        with self._database.reading() as connection, _attached(connection, self._file("shadow", group)):
            return self._look(connection, named, shared)

    def _look(self, connection: Connection, named: Collection[str], shared: Collection[str]) -> list[ShadowTable]:
        place = f"{_OTHER}."
        live = {name.lower() for _, name, _ in _objects(connection, "", ("table", "view"))}
        there = _objects(connection, place, ("table", "view"))
        known = [each for each in there if not _is_among(each[1], shared)]  # a shared one hides what @on_start has made

        def is_filled(table: str) -> bool:
            return connection.exec_driver_sql(f"SELECT 1 FROM {place}{_quoted(table)} LIMIT 1").first() is not None  # noqa: S608 quoted

        tables = [name for kind, name, _ in known if kind == "table"]
        moved = {*named, *written_in(self._database.dialect, connection, place, tables, is_filled)}
        moved |= {name for kind, name, _ in known if kind == "view" or name.lower() not in live}
        fates = Fates({name for _, name, _ in known if name.lower() in live}, moved, named)
        return [*map(shared_table, shared), *(fates.of(name, kind) for kind, name, _ in known)]

    @override
    def refusals(self, group: str, tables: Sequence[ShadowTable]) -> list[str]:
        with self._database.reading() as connection, _attached(connection, self._file("shadow", group)):
            return _virtual(connection, tables)

    @override
    def _compared(self, group: str, tables: Sequence[str], examples: int) -> Comparison:
        with self._database.reading() as connection, _attached(connection, self._file("shadow", group)):
            connection.exec_driver_sql("BEGIN")
            try:
                rows = KeptRows(connection, group)
                positions = rows.positions(""), rows.positions(f"{_OTHER}.")
                return Comparison(*positions, tuple(_difference(connection, name, examples) for name in tables))
            finally:
                connection.exec_driver_sql("ROLLBACK")

    @override
    def _drop_shadow(self, group: str) -> None:
        known = self.rebuilds.last(group)
        if known is not None and known.phase is RebuildPhase.BUILDING:
            with self._database.writing() as connection:
                self.rebuilds.write(connection, replace(known, phase=RebuildPhase.ENDED))
            _wait_until_closed(self._file("shadow", group))
        _remove(self._file("shadow", group))

    @override
    def drop_old(self, group: str) -> None:
        known = self.rebuilds.last(group)
        if known is not None:
            with self._database.writing() as connection:
                self.rebuilds.write(connection, replace(known, phase=RebuildPhase.ENDED, relations=()))
        _remove(self._file("old", group))

    @override
    def _swap(self, swap: Swap) -> Swapped:
        group = swap.group
        shadow, old = self._file("shadow", group), self._file("old", group)
        try:
            size = shadow.stat().st_size
        except FileNotFoundError:
            raise ended_elsewhere(group) from None
        wait = max(1, round(2 * size / _BYTES_A_SECOND))  # the old tables are copied as well
        text = "the tables of group %s are copied into the live file (%s bytes): other writers wait for about %d s"
        _log.warning(text, group, f"{size:,}", wait)
        with self._writing() as (connection, enforced):
            before, known = self.rebuilds.required(group, connection), self._groups.find(connection, group)
            require_building(swap, before)
            self._require_same_structure(connection, swap, before)
            rows = KeptRows(connection, group)
            live = rows.positions("")
            swap.reached(live)
            self._fence_shadow(shadow, group)
            with _attached(connection, shadow):
                require_same_layout(group, live, rows.positions(f"{_OTHER}."))
                tables = self._look(connection, swap.named, before.shared)
                if refused := _virtual(connection, tables):
                    raise obstructed(group, refused, _FIX)
                moved = [each for each in tables if each.is_moved]
                before = self._swapping(connection, swap, before, tables)
                self._keep(old, group, [each.name for each in moved if each.fate is Fate.SWAPPED])
                began = time.monotonic()
                _exchange(connection, [each.name for each in moved], [each.name for each in moved], keep=True)
                position = rows.replace(f"{_OTHER}.", "", keep_replays=True)
                self._record_swap(connection, swap, known, before)
                _check_references(connection, group, enforced=enforced)
                connection.exec_driver_sql("COMMIT")
        return Swapped(position, tuple(tables), time.monotonic() - began)

    @override
    def _undo(self, group: str, fills: Collection[str]) -> Swapped:
        old = self._file("old", group)
        if not old.exists():
            raise old_gone(group, str(old))
        with self._writing() as (connection, enforced):
            before = self.rebuilds.required(group, connection)
            require_old(before)
            self._require_empty(connection, before, fills)
            with _attached(connection, old):
                live = {name.lower() for _, name, _ in _objects(connection, "", ("table", "view"))}
                back = _objects(connection, f"{_OTHER}.", ("table", "view"))
                began = time.monotonic()
                gone = [each.name for each in before.relations]
                _exchange(connection, [name for _, name, _ in back], gone, keep=False)
                position = KeptRows(connection, group).replace(f"{_OTHER}.", "")
                self._record_undo(connection, before)
                _check_references(connection, group, enforced=enforced)
                connection.exec_driver_sql("COMMIT")
        _remove(old)
        tables = [
            ShadowTable(n, kind, Fate.SWAPPED if n.lower() in live else Fate.ADDED, "kept") for kind, n, _ in back
        ]
        return Swapped(position, tuple(tables), time.monotonic() - began)

    @contextmanager
    def _writing(self) -> Iterator[tuple[Connection, bool]]:
        """Open a transaction that files can be attached in, and which the block commits.

        Gives whether references between tables are enforced. They are not within it: where a table is dropped, SQLite
        would delete, by ``ON DELETE CASCADE``, the rows of others that refer to it.
        """
        with self._database.guard.turn(), self._database.reading() as connection:
            enforced = bool(connection.exec_driver_sql("PRAGMA foreign_keys").scalar())
            connection.exec_driver_sql("PRAGMA foreign_keys = OFF")
            temporary = connection.exec_driver_sql("PRAGMA temp_store").scalar_one()
            connection.exec_driver_sql("PRAGMA temp_store = FILE")  # indexes of whole tables are sorted there
            driver: Any = connection.connection.dbapi_connection
            try:
                connection.exec_driver_sql("BEGIN IMMEDIATE")
                yield connection, enforced
            finally:
                if driver.in_transaction:
                    connection.exec_driver_sql("ROLLBACK")
                if enforced:
                    connection.exec_driver_sql("PRAGMA foreign_keys = ON")
                connection.exec_driver_sql(f"PRAGMA temp_store = {temporary}")
                _detach(connection)

    @staticmethod
    def _fence_shadow(shadow: Path, group: str) -> None:
        """Prevent further writes to the shadow."""
        with closing(sqlite3.connect(shadow, isolation_level=None, timeout=60)) as connection:
            fence = f"UPDATE {PROGRESS.name} SET epoch = epoch + 1 WHERE group_name = ?"  # noqa: S608 our own names
            connection.execute(fence, (group,))

    def _keep(self, old: Path, group: str, names: Sequence[str]) -> None:
        """Copy live tables, and our rows of the group, to the file of the old ones, as they are before the swap."""
        _remove(old)
        make_with_rights_of(Path(self._live_place), old)
        prepare_place(self._url(str(old)))
        with closing(sqlite3.connect(old, isolation_level=None)) as connection:
            connection.execute(f"ATTACH DATABASE ? AS {_OTHER}", (self._live_place,))
            connection.execute("BEGIN")
            _copy(connection, names)
            for table in KEPT:
                columns = ", ".join(column.name for column in table.columns)
                rows = f"SELECT {columns} FROM {_OTHER}.{table.name} WHERE group_name = ?"  # noqa: S608
                connection.execute(f"INSERT INTO {table.name} ({columns}) {rows}", (group,))
            connection.execute("COMMIT")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _is_among(table: str, names: Collection[str]) -> bool:
    """Return whether a table is one of some, as SQLite compares names: each keeps the spelling of its definition."""
    return table.lower() in {name.lower() for name in names}


def _check_references(connection: Connection, group: str, *, enforced: bool) -> None:
    """Refuse a swap after which rows refer to others that are not there, where the project has SQLite see to that."""
    broken = _driver(connection).execute("PRAGMA main.foreign_key_check").fetchall() if enforced else []
    if broken:
        found = sorted({f"{row[0]} to {row[2]}" for row in broken})
        raise obstructed(group, [f"rows would refer to missing rows: {listed(found)}"], _FIX)


def _objects(connection: Any, place: str, kinds: Collection[str]) -> list[tuple[str, str, str]]:
    """Return kind, name and definition of what is in a place, but for what is ours or SQLite's own."""
    execute = connection.exec_driver_sql if isinstance(connection, Connection) else connection.execute
    rows = execute(_MASTER.format(place)).fetchall()
    return [(k, n, sql) for k, n, _, sql in rows if k in kinds and not is_ours(n) and not n.startswith("sqlite_")]


def _driver(connection: Connection) -> Any:
    return connection.connection.dbapi_connection


@contextmanager
def _attached(connection: Connection, file: Path) -> Iterator[None]:
    driver = _driver(connection)
    driver.execute(f"ATTACH DATABASE ? AS {_OTHER}", (str(file),))
    try:
        yield
    finally:
        if not driver.in_transaction:
            _detach(connection)


def _detach(connection: Connection) -> None:
    driver = _driver(connection)
    if any(row[1] == _OTHER for row in driver.execute("PRAGMA database_list").fetchall()):
        driver.execute(f"DETACH DATABASE {_OTHER}")


def _exchange(connection: Connection, coming: Sequence[str], leaving: Sequence[str], *, keep: bool) -> None:
    """Replace live tables and views by those of the other file; ``keep`` triggers that only the live ones have."""
    driver = _driver(connection)
    kept = [
        (name, sql)
        for kind, name, table, sql in driver.execute(_MASTER.format("main.")).fetchall()
        if keep and kind == "trigger" and _is_among(table, leaving) and _is_among(table, coming)
    ]
    kinds = {name: kind for kind, name, _ in _objects(driver, "main.", ("table", "view"))}
    for name in sorted(filter(lambda each: _is_among(each, leaving), kinds), key=lambda each: kinds[each] != "view"):
        driver.execute(f"DROP {kinds[name].upper()} main.{_quoted(name)}")
    _copy(driver, coming)
    there = {name for kind, name, *_ in driver.execute(_MASTER.format("main.")).fetchall() if kind == "trigger"}
    for name, sql in kept:
        if name not in there:
            driver.execute(sql)


def _copy(driver: Any, names: Sequence[str]) -> None:
    """Copy tables with rows and indexes, then views and triggers, from the other file to the main one."""
    found = driver.execute(_MASTER.format(f"{_OTHER}.")).fetchall()
    wanted = [row for row in found if _is_among(row[2], names) and not row[1].startswith("sqlite_")]
    for kind in ("table", "index"):
        for _, _, _, sql in (row for row in wanted if row[0] == kind):
            driver.execute(sql)
    for _, name, _, _ in (row for row in wanted if row[0] == "table"):
        _copy_rows(driver, name)
    _copy_counters(driver, [row[1] for row in wanted if row[0] == "table"])
    for kind in ("view", "trigger"):
        for _, _, _, sql in (row for row in wanted if row[0] == kind):
            driver.execute(sql)


def _copy_rows(driver: Any, name: str) -> None:
    """Copy the rows of a table, with the row ids by which handlers may know them."""
    here, there = f"main.{_quoted(name)}", f"{_OTHER}.{_quoted(name)}"
    shape = f"SELECT name, hidden, pk > 0 AND upper(type) = 'INTEGER' FROM pragma_table_xinfo(?, '{_OTHER}')"  # noqa: S608
    columns = driver.execute(shape, (name,)).fetchall()
    is_indexed = driver.execute("SELECT 1 FROM pragma_index_list(?, 'main')", (name,)).fetchone() is not None
    is_generated = any(hidden for _, hidden, _ in columns)
    if not is_generated and (is_indexed or any(is_key for *_, is_key in columns)):  # whole pages are copied
        driver.execute(f"INSERT INTO {here} SELECT * FROM {there}")  # noqa: S608 quoted
        return
    names = [column for column, hidden, _ in columns if not hidden]
    known = {column.lower() for column, *_ in columns}
    row_id = next((each for each in ("rowid", "oid", "_rowid_") if each not in known), None)
    if row_id is not None and _has_row_ids(driver, there, row_id):
        names.append(row_id)
    listed = ", ".join(map(_quoted, names))
    driver.execute(f"INSERT INTO {here} ({listed}) SELECT {listed} FROM {there}")  # noqa: S608 quoted


def _has_row_ids(driver: Any, table: str, name: str) -> bool:
    """Return whether the rows of a table have ids, which those of one ``WITHOUT ROWID`` have not."""
    try:
        driver.execute(f"SELECT {name} FROM {table} LIMIT 0")  # noqa: S608 our own names
    except sqlite3.OperationalError:
        return False
    return True


def _copy_counters(driver: Any, tables: Iterable[str]) -> None:
    """Have AUTOINCREMENT continue where it was."""
    asked = f"SELECT 1 FROM {_OTHER}.sqlite_master WHERE name = 'sqlite_sequence'"  # noqa: S608 our own names
    if driver.execute(asked).fetchone() is None:
        return
    for name in tables:
        row = driver.execute(f"SELECT seq FROM {_OTHER}.sqlite_sequence WHERE name = ?", (name,)).fetchone()  # noqa: S608
        if row is not None:
            driver.execute("DELETE FROM main.sqlite_sequence WHERE name = ?", (name,))
            driver.execute("INSERT INTO main.sqlite_sequence (name, seq) VALUES (?, ?)", (name, row[0]))


def _virtual(connection: Connection, tables: Sequence[ShadowTable]) -> list[str]:
    names = {each.name for each in tables if each.fate is not Fate.SHARED}
    found = []
    for place in ("main.", f"{_OTHER}."):
        for _, name, sql in _objects(connection, place, ("table",)):
            if name in names and sql.upper().startswith("CREATE VIRTUAL"):
                found.append(f"{name} is a virtual table")
    return sorted(set(found))


def _wait_until_closed(file: Path) -> None:
    """Wait briefly until no process has a file open: the one that fills it checks every second whether to end.

    Without the file it would report an outage, with advice for people.
    """
    until = time.monotonic() + LET_GO_SECONDS
    while _is_open(file) and time.monotonic() < until:
        time.sleep(_PAUSE)


def _is_open(file: Path) -> bool:
    """Return whether another process has a file open: only its sole user may leave the write-ahead log."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=rw", uri=True, timeout=0)) as connection:
            connection.execute("PRAGMA journal_mode=DELETE")
    except sqlite3.Error as error:
        return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return False


def _remove(file: Path) -> None:
    for name in (str(file), f"{file}{CONTROL_SUFFIX}"):
        for suffix in ("", "-wal", "-shm"):
            Path(f"{name}{suffix}").unlink(missing_ok=True)


def _difference(connection: Connection, name: str, examples: int) -> Difference:
    """Compare rows byte by byte, whatever the collations of their columns are."""
    driver = _driver(connection)
    shape = "SELECT name FROM pragma_table_info(?, ?)"
    known, others = ([row[0] for row in driver.execute(shape, (name, place))] for place in ("main", _OTHER))
    columns = Columns.of(known, others, str.lower)
    chosen = ", ".join(f"{_quoted(column)} COLLATE BINARY AS {_quoted(column)}" for column in columns.both)
    every = " UNION ALL ".join(
        f"SELECT {', '.join(filter(None, (chosen, f'{sign} AS {_OTHER}')))} FROM {place}.{_quoted(name)}"  # noqa: S608 quoted
        for place, sign in (("main", 1), (_OTHER, -1))
    )
    keys = ", ".join(f"{_quoted(column)} COLLATE BINARY" for column in columns.both) or "1"
    differing = f"SELECT *, sum({_OTHER}) AS surplus FROM ({every}) GROUP BY {keys} HAVING sum({_OTHER}) <> 0"  # noqa: S608
    counted = f"SELECT total(max(surplus, 0)), total(max(-surplus, 0)) FROM ({differing})"  # noqa: S608 as above
    missing, added = map(int, driver.execute(counted).fetchone())
    shown = [
        f"{sign} {row[:-2]}"
        for sign, side in (("-", ">"), ("+", "<"))
        for row in driver.execute(f"SELECT * FROM ({differing}) WHERE surplus {side} 0 LIMIT ?", (examples,))  # noqa: S608
    ]
    live, shadow = (
        int(driver.execute(f"SELECT count(*) FROM {place}.{_quoted(name)}").fetchone()[0])  # noqa: S608 quoted
        for place in ("main", _OTHER)
    )
    return Difference(name, live, shadow, missing, added, tuple(shown), columns.live, columns.shadow)

"""SQLite: one writer at a time, on a file that must stay in its place."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import URL, Connection, Engine, Index, Integer, PrimaryKeyConstraint, Table, create_engine, event, types
from sqlalchemy.exc import IntegrityError
from sqlalchemy.types import TypeEngine
from typing_extensions import override

from opencqrs_py.adapters.processes import boot_id, machine_ms
from opencqrs_py.adapters.sql.bulk.write import BulkWrite, ColumnValues, TableShape
from opencqrs_py.adapters.sql.connections import undoing
from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.dialects.dialect import Dialect, Row, register
from opencqrs_py.adapters.sql.dialects.faults import URL_SETTINGS, Fault, driver_error
from opencqrs_py.adapters.sql.dialects.file_guard import FileGuard
from opencqrs_py.adapters.sql.dialects.sqlite_file import (
    CONTROL_SUFFIX,
    READING,
    FileToRead,
    SqliteFile,
    begin,
    begin_on_engine_of_others,
    main_file,
    make_with_rights_of,
    opens_read_only,
    path_of,
    result_code,
    use_write_ahead_log,
)
from opencqrs_py.adapters.sql.shadows.guards import ShadowGuard, SqliteGuard
from opencqrs_py.adapters.sql.shadows.urls import ShadowOf
from opencqrs_py.adapters.sql.tables import EVENTS, INBOX, INBOX_DUE, WRITTEN
from opencqrs_py.model.partition import Partition, hash_of
from opencqrs_py.processing.sequence_resolvers import cut_subject
from opencqrs_py.processing.staging import KeptMoment

if TYPE_CHECKING:
    from opencqrs_py.adapters.sql.shadows.shadows import Shadows

# Result codes that pass by themselves: BUSY, LOCKED, IOERR, FULL, CANTOPEN, PROTOCOL.
_AWAY = {5, 6, 10, 13, 14, 15}

# What a crashed writer has left, which a reader cannot repair: the next program that may write does.
_UNREPAIRED = {sqlite3.SQLITE_READONLY_RECOVERY, sqlite3.SQLITE_READONLY_CANTINIT, sqlite3.SQLITE_READONLY_ROLLBACK}

_CACHE_BYTES = 128 * 1024 * 1024
_KIBIBYTE = 1024  # SQLite takes a negative size of its cache for KiB, a positive one for pages

# Never ON CONFLICT DO NOTHING: an event that is left out would still use up a position.
_NAMES, _MARKS = ", ".join(WRITTEN), ", ".join("?" * len(WRITTEN))
_INSERT_NEW = f"INSERT INTO {EVENTS.name} ({_NAMES}) VALUES ({_MARKS})"  # noqa: S608 our own names, as below
_INSERT_UNKNOWN = f"""
INSERT INTO {EVENTS.name} ({_NAMES}) SELECT {_MARKS}
WHERE NOT EXISTS (SELECT 1 FROM {EVENTS.name} WHERE id = ? AND source = ?)
"""  # noqa: S608
_POSITIONS = "SELECT seq FROM sqlite_sequence WHERE name = ?"

_LARGEST = 2**63 - 1
_AS_TEXT: dict[type, Callable[[Any], str]] = {
    Decimal: lambda value: format(value, "f"),
    UUID: str,
    datetime: lambda value: value.replace(tzinfo=None).isoformat(" ", "microseconds"),
    date: date.isoformat,
    time_of_day: lambda value: value.isoformat("microseconds"),
}


_SUM = (  # a sum beyond 64 bits would become a floating-point number; abs() of the least whole number raises
    "CASE WHEN typeof({0} + {1}) = 'real' AND typeof({0}) = 'integer' AND typeof({1}) = 'integer' "
    "THEN abs(-9223372036854775807 - 1) ELSE {0} + {1} END"
)


class SqliteDialect(Dialect):
    """SQLite through Python's own driver, with a write-ahead log.

    It does not know what is rare, and would collect and sort a whole log's events of a type to return the first few. So
    an index is forced or, by a column that is part of an expression, prevented.
    """

    name = "sqlite"
    modulo = "{} % {}"
    driver = "sqlite"
    driver_package = "sqlite3"
    mark = "?"
    skip_locked = ""
    rounded_kinds = (Decimal,)
    now_ms = "opencqrs_now_ms()"
    era = "opencqrs_era()"
    wall_ms = (
        "CAST(round((julianday('now') - 2440587.5) * 86400000) AS INTEGER)"  # no function of ours, for users' engines
    )
    quote = ""
    search_hint = " INDEXED BY {}"
    pairs = "(VALUES {})"
    sum_of = _SUM
    unpacks_json = True
    unindexed = "+{}"
    row_lock = "SELECT 1 FROM {} {}"  # the transaction holds the write lock
    ordered_reads = True
    row_settings = ("row_factory", "text_factory")
    replaceable_methods = False
    remote = False
    in_files = True
    confounded = frozenset({str, int, float, bool, bytes})  # whatever is sent
    stages_collate = False  # CREATE TABLE … AS leaves COLLATE out
    unstorable = frozenset({"nan"})  # it stores NaN as NULL
    loses_transactions = False
    reads_foreign_tables = True
    faults = {  # noqa: RUF012 none changes it
        sqlite3.SQLITE_READONLY: Fault.READ_ONLY,
        sqlite3.SQLITE_CORRUPT: Fault.DAMAGED,
        sqlite3.SQLITE_NOTADB: Fault.DAMAGED,
        sqlite3.SQLITE_FULL: Fault.FULL,
        sqlite3.SQLITE_BUSY: Fault.BUSY,
    }
    fault_texts = (("^no such table", Fault.NO_TABLE), ("^no such column", Fault.NO_COLUMN))
    fix_refused = fix_read_only = f"fix {URL_SETTINGS}: it must name an SQLite file, which this user may write"

    @override
    def fix_to_reach(self, url: URL) -> str:
        path = path_of(url.database or "")
        if path.is_dir():
            return f"it is a folder: name a file in it, in {URL_SETTINGS}"
        if not path.parent.is_dir():
            return f"create the folder {path.parent}, or fix {URL_SETTINGS}"
        if opens_read_only(url):
            return f"allow this user to read {path}, and if it has a write-ahead log, the files -wal and -shm beside it"
        what = "the file" if path.exists() else f"the folder {path.parent}"
        return f"allow this user to read and write {what}, or fix {URL_SETTINGS}"

    @override
    def file(self, url: URL) -> FileGuard:
        return FileToRead(url.database, self) if opens_read_only(url) else SqliteFile(url.database, self)

    @override
    def may_be_same(self, url: URL, other: URL) -> bool:
        return path_of(url.database or "").resolve() == path_of(other.database or "").resolve()

    @override
    def read_only_url(self, url: URL) -> URL:
        in_memory = url.query.get("mode") == "memory" or url.query.get("vfs") == "memdb"
        if in_memory or not url.database or ":memory:" in url.database:
            return url
        name = url.database if url.database.startswith("file:") else Path(url.database).absolute().as_uri()
        return url.set(database=name).update_query_dict({"mode": "ro", "uri": "true"})

    @override
    def control_url(self, database: Database) -> URL | None:
        """Return the file beside that of the database: a chunk of events holds the only write lock of that one."""
        with database.reading() as connection:
            name = main_file(connection)
        if not name or not Path(name).exists():  # a database in memory may have a name, too
            return None
        return URL.create(self.driver, database=f"{Path(name).resolve()}{CONTROL_SUFFIX}")

    @override
    def connect(self, driver: Any, args: Sequence[Any], settings: dict[str, Any]) -> Any:
        name = str(args[0]) if args else ""
        if name.endswith(CONTROL_SUFFIX):
            make_with_rights_of(Path(name.removesuffix(CONTROL_SUFFIX)), Path(name))
        return super().connect(driver, args, settings)

    @override
    def engine(self, url: URL) -> Engine:
        engine = create_engine(url, connect_args={"timeout": self.patience})

        @event.listens_for(engine, "connect")
        def _configure(connection: Any, _record: Any) -> None:
            connection.isolation_level = None  # transactions begin where we say, not where the driver guesses
            connection.execute("PRAGMA temp_store = MEMORY")  # else savepoints copy each page that changes into a file
            connection.create_function("opencqrs_now_ms", 0, machine_ms)
            connection.create_function("opencqrs_era", 0, boot_id)
            connection.create_function("opencqrs_hash", 2, _hash_of, deterministic=True)
            if not opens_read_only(url):
                use_write_ahead_log(connection, self.patience)

        event.listen(engine, "begin", begin)
        return engine

    @override
    def shadow_guard(self, database: Database, shadow: ShadowOf) -> ShadowGuard:
        return SqliteGuard(shadow)

    @override
    def shadows(self, database: Database) -> Shadows:
        from opencqrs_py.adapters.sql.shadows.sqlite import SqliteShadows  # noqa: PLC0415 only for rebuilds

        return SqliteShadows(database)

    @override
    def hash_of(self, column: str, level: int | None) -> str:
        return f"opencqrs_hash({column}, {level or 'NULL'})"

    @override
    def adopt(self, engine: Engine) -> None:
        if not event.contains(engine, "begin", begin_on_engine_of_others):
            event.listen(engine, "begin", begin_on_engine_of_others)

    @override
    def reading_engine(self, engine: Engine, *, borrowed: bool) -> Engine:
        return engine.execution_options(**{READING: True})

    @override
    def switch(self, driver: Any, *, autocommit: bool) -> None:
        """Do nothing: transactions begin explicitly."""

    @override
    def is_outage(self, error: BaseException | None, *, cut: bool) -> bool | None:
        """Return it whatever ``cut`` says: a connection that is closed was closed by this process."""
        if not isinstance(error, sqlite3.Error):
            return None
        return result_code(error) in _AWAY or getattr(error, "sqlite_errorcode", 0) in _UNREPAIRED

    @override
    def code_of(self, error: BaseException | None) -> int | None:
        return result_code(error) if isinstance(error, sqlite3.Error) else None

    @override
    def fault_of(self, error: BaseException | None) -> Fault | None:
        return super().fault_of(error) if isinstance(driver_error(error), sqlite3.Error) else None

    @override
    def adapt(self, table: Table) -> None:
        if table.name == EVENTS.name:
            table.c.position.type = Integer()
            table.kwargs["sqlite_autoincrement"] = True  # no position twice, even after the newest event was deleted
        if table.name == INBOX.name:  # one index for its sequences and as the key: each costs as much as the row itself
            columns = table.c
            key = PrimaryKeyConstraint(columns.group_name, columns.sequence_hash, columns.position)
            table.append_constraint(key)
            table.indexes.clear()
            due = (columns.group_name, columns.due_ms, columns.position)
            Index(INBOX_DUE, *due, sqlite_where=columns.due_ms.is_not(None))

    @override
    def append_lock(self, database: Database) -> AbstractContextManager[Connection]:
        return database.writing()

    @override
    def change_lock(self, database: Database) -> AbstractContextManager[Connection]:
        return database.writing()

    @override
    def insert(self, database: Database, connection: Connection, rows: list[Row]) -> int:
        """Assume that the events are new, as they mostly are: looking for each first takes twice the time.

        What was added before a known one stays: for a savepoint SQLite would write a copy of each page that it changes
        to a file of its own, and the more events are stored, the more pages there are to change.
        """
        before = _given_positions(connection) if len(rows) > 1 else 0
        try:
            return connection.exec_driver_sql(_INSERT_NEW, rows).rowcount
        except IntegrityError:
            rest = connection.exec_driver_sql(_INSERT_UNKNOWN, [(*row, *row[:2]) for row in rows])
            return rest.rowcount if len(rows) == 1 else _given_positions(connection) - before

    @override
    @contextmanager
    def bulk_loading(self, connection: Connection) -> Iterator[None]:
        """Hold up to 128 MiB of the database in memory.

        Ids and subjects come in no order, so each event changes a page somewhere in the middle of each of their
        indexes. By default SQLite holds 2 MiB of pages; the indexes of 100,000 events are larger, and from then on it
        would read a page and write another one for each event. At the end of the block the memory is free again. There
        is one writer at a time, so that one such cache is in use for a file, however many processes there are.
        """
        before: int = connection.exec_driver_sql("PRAGMA cache_size").scalar_one()
        page: int = connection.exec_driver_sql("PRAGMA page_size").scalar_one()
        if (before * page if before >= 0 else -before * _KIBIBYTE) >= _CACHE_BYTES:
            yield
            return
        connection.exec_driver_sql(f"PRAGMA cache_size = {-_CACHE_BYTES // _KIBIBYTE}")
        with undoing(connection, f"PRAGMA cache_size = {before}"):
            yield

    @override
    def change_counter(self, connection: Connection) -> Callable[[], int] | None:
        name = main_file(connection)  # there is none in memory
        driver: Any = connection.connection.dbapi_connection
        return (
            (lambda: int(driver.execute("PRAGMA data_version").fetchone()[0])) if name and Path(name).exists() else None
        )

    @override
    def in_transaction(self, driver: Any) -> bool | None:
        return bool(driver.in_transaction)

    @override
    def as_read(self, column: str, kind: TypeEngine[Any]) -> str:
        """Return bytes: texts need not be valid, either. UTF-16 always is, so texts of such a database stay texts."""
        is_utf_8 = f"typeof({column}) = 'blob' OR CAST('/' AS BLOB) = x'2f'"
        return f"CASE WHEN {is_utf_8} THEN CAST({column} AS BLOB) ELSE {self.as_text(column, kind)} END"

    @override
    def sent(self, write: BulkWrite) -> BulkWrite:
        """Return moments and times as SQLAlchemy stores them, and the digits of a ``Decimal`` as text."""
        return write.sent_as(_AS_TEXT)

    @override
    def stored_name(self, connection: Connection, schema: str | None, table: str) -> str:
        """Return it from the list of tables: SQLAlchemy finds columns in any case, constraints by that name only."""
        quote = connection.dialect.identifier_preparer.quote_identifier
        lists = [f"{quote(schema)}.sqlite_master"] if schema else ["sqlite_temp_master", "sqlite_master"]
        for each in lists:
            asked = f"SELECT name FROM {each} WHERE type IN ('table', 'view') AND name = ? COLLATE NOCASE"  # noqa: S608
            if found := connection.exec_driver_sql(asked, (table,)).scalar():
                return str(found)
        return table

    @override
    def column_without_value(self, error: BaseException | None, table: str) -> str | None:
        if getattr(error, "sqlite_errorcode", 0) != sqlite3.SQLITE_CONSTRAINT_NOTNULL:
            return None
        return str(error).removeprefix(f"NOT NULL constraint failed: {table}.")

    @override
    def upsert_obstacle(
        self, shape: TableShape, columns: Mapping[str, ColumnValues], keys: Sequence[str], add: Sequence[str]
    ) -> str:
        decimals = [name for name in add if Decimal in set(map(type, columns[name]))]
        if not decimals:
            return ""
        return f"SQLite adds no decimals exactly, and {', '.join(decimals)} has some; whole numbers, as cents, it does"

    @override
    def rounds(self, of: TypeEngine[Any]) -> bool:
        """Return true but for texts, bytes and columns without a type: JSON and dates become numbers here, too."""
        return not isinstance(of, types.String | types.LargeBinary | types.NullType)

    @override
    def kept_number(self, number: float | Decimal) -> Any:
        """Return a decimal as a whole number or a float: of a text SQLite makes the nearest float, or one beside it."""
        if not isinstance(number, Decimal):
            return number
        if not number.is_finite():
            return None
        if abs(number) <= _LARGEST and number == int(number):
            return int(number)
        nearest = float(number)
        return nearest if Decimal(repr(nearest)) == number else None

    @override
    def kept_moment(self, of: TypeEngine[Any]) -> KeptMoment | None:
        """Return what SQLAlchemy does, and other databases: for SQLite they are texts, and their column no matter."""
        if isinstance(of, types.DateTime):
            return _moment
        return _day if isinstance(of, types.Date) else None

    @override
    def held(self, columns: str, table: str, where: str, order: str, seconds: float) -> str:
        """Return a plain query: the transaction holds the write lock already."""
        return f"SELECT {columns} FROM {table} WHERE {where} ORDER BY {order}"  # noqa: S608 our own names

    @override
    def lock_claim(
        self, database: Database, connection: Connection, group: str, partitions: Sequence[Partition]
    ) -> None:
        """Lock nothing: the transaction holds the write lock already."""


def _day(value: date | str) -> date | str:
    return value.date() if isinstance(value, datetime) else value


def _moment(value: date | str) -> date | str:
    return value if isinstance(value, datetime | str) else datetime.combine(value, time_of_day())


def _given_positions(connection: Connection) -> int:
    """Return how many positions SQLite has given so far; an event that is left out uses up none."""
    return connection.exec_driver_sql(_POSITIONS, (EVENTS.name,)).scalar() or 0


register(SqliteDialect())


@lru_cache(maxsize=100_000)
def _hash_of(subject: str, level: int | None) -> int:
    return hash_of(subject if level is None else cut_subject(subject, level))

"""What differs from one database to another. A dialect is one class in one module, registered by its name.

A fourth database is a subclass of ``Dialect`` that keeps the contracts of event stores and progress trackers. Another
package names it in an entry point of the group ``opencqrs.databases``; its name is the scheme of its URLs.
"""

# ruff: noqa: ARG002, B027 -- most dialects do not need all hooks, nor each of their arguments

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from decimal import Decimal
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar

from sqlalchemy import URL, Connection, Engine, Table, create_engine, exc, types
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine

from opencqrs_py.adapters.sql.connections import Statement, replace_cut_connections
from opencqrs_py.adapters.sql.dialects.faults import (
    URL_SETTINGS,
    WRITABLE,
    ConnectionLostError,
    DatabaseAwayError,
    DatabaseBusyError,
    Fault,
    driver_error,
)
from opencqrs_py.adapters.sql.dialects.file_guard import FileGuard
from opencqrs_py.adapters.sql.pool import KeepingPool
from opencqrs_py.adapters.sql.progress_watching import polling_progress
from opencqrs_py.adapters.sql.tables import PROGRESS
from opencqrs_py.adapters.sql.watching import ReadHead, polling
from opencqrs_py.control.ports import Notices
from opencqrs_py.errors import EventStoreError, RebuildError
from opencqrs_py.model.mapping import TableMapping
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.times import moment_in_utc
from opencqrs_py.processing.packages import Registry
from opencqrs_py.processing.pipelining import Pipeline
from opencqrs_py.processing.ports import Watch
from opencqrs_py.processing.staging import KeptMoment

if TYPE_CHECKING:
    from opencqrs_py.adapters.sql.bulk.write import BulkWrite, ColumnValues, TableShape
    from opencqrs_py.adapters.sql.database import Database
    from opencqrs_py.adapters.sql.foreign import ForeignTable, Writers
    from opencqrs_py.adapters.sql.shadows.guards import ShadowGuard
    from opencqrs_py.adapters.sql.shadows.shadows import Shadows
    from opencqrs_py.adapters.sql.shadows.urls import ShadowOf
    from opencqrs_py.adapters.sql.transactions import Unit

STAGED_BY = "staged_by"  # the column of a stage with the name of the task's run
Row = tuple[Any, ...]
Values = tuple[str | int, ...]
Code = int | str

_THIS_MACHINE = ("localhost", "127.0.0.1", "::1")


class Dialect(ABC):
    """One kind of database: the statements and behaviour that differ from the others. It has no state.

    A dialect has to have a ``name``, a ``driver``, and the abstract methods: two about errors, three about locks, and
    ``insert``. All else has a default, which fits a server that speaks standard SQL and can lock a row.
    """

    name: ClassVar[str] = ""  # what the package calls the database and, with the aliases, the schemes of its URLs
    aliases: ClassVar[tuple[str, ...]] = ()
    driver: ClassVar[str]  # SQLAlchemy's dialect and driver, if a URL names none
    driver_package: ClassVar[str] = ""  # with the class of the connections that handlers may ask for, as "sqlite3"
    extra: ClassVar[str] = ""  # the extra of this package that installs the driver
    mark: ClassVar[str] = "%s"  # placeholder of a value in a statement
    patience: ClassVar[float] = 60.0  # seconds that one waits for other writers

    # Connections

    remote: ClassVar[bool] = True  # whether it is a server, whose connections can be cut
    in_files: ClassVar[bool] = False  # whether its URLs name files as SQLite's do: scheme:///path
    default_port: ClassVar[int | None] = None  # of a server, if a URL names a host without one
    connect_seconds: ClassVar[int] = 10  # for a server to authenticate a user

    def driver_url(self, url: URL) -> URL:
        """Return the URL as SQLAlchemy takes it."""
        return url if "+" in url.drivername else url.set(drivername=self.driver)

    def may_be_same(self, url: URL, other: URL) -> bool:
        """Return whether two URLs may name the same database: what one of them leaves out can be as in the other."""
        pairs = (
            (_host_of(url), _host_of(other)),
            (self._port_of(url), self._port_of(other)),
            (url.database, other.database),
        )
        return all(one == another for one, another in pairs if one and another)

    def _port_of(self, url: URL) -> int | None:
        return url.port or (self.default_port if url.host else None)

    def read_only_url(self, url: URL) -> URL:
        """Return the URL that opens a file read-only; on a server, the same URL."""
        return url

    def file(self, url: URL) -> FileGuard:
        """Return what watches over the file of a database, if it is one."""
        return FileGuard()

    def engine(self, url: URL) -> Engine:
        """Return an engine of our own."""
        engine = create_engine(url, poolclass=KeepingPool, connect_args=self.connect_args(url))
        replace_cut_connections(engine)
        return engine

    def connect(self, driver: Any, args: Sequence[Any], settings: dict[str, Any]) -> Any:
        """Open a connection of the driver, for an engine of our own."""
        return driver.connect(*args, **settings)

    def connect_args(self, _url: URL) -> dict[str, Any]:
        """Return what an engine of our own hands to the driver besides the URL."""
        return {}

    def adopt(self, engine: Engine) -> None:
        """Make sure that our transactions begin correctly on an engine of the user."""

    def control_url(self, database: Database) -> URL | None:
        """Return where the control tables of a database are; ``None`` for one that no other process can see."""
        return database.url

    def reading_engine(self, engine: Engine, *, borrowed: bool) -> Engine:
        """Return the engine whose statements each see the newest state; one that is ``borrowed`` is the user's.

        Both engines of ours share a pool, whose connections ``switch`` puts into the required mode.
        """
        return engine.execution_options(isolation_level="AUTOCOMMIT") if borrowed else engine

    def writing_engine(self, engine: Engine, *, borrowed: bool) -> Engine:
        """Return the engine whose connections begin transactions."""
        return engine

    def switch(self, driver: Any, *, autocommit: bool) -> None:
        """Make each statement on a driver's idle connection its own transaction, or begin one."""
        if driver.autocommit != autocommit:
            driver.autocommit = autocommit

    def check_server(self, connection: Connection, label: str) -> None:
        """Raise OCQ-302 if another server than this dialect's answers."""

    # Rebuilds

    # Whether DDL commits, so that a swap has steps, between which a process may end.
    swaps_in_steps: ClassVar[bool] = False

    def shadow_guard(self, database: Database, shadow: ShadowOf) -> ShadowGuard:
        """Return what watches over what is written to a shadow.

        Raises:
            EventStoreError: OCQ-302, where there are no shadows.
        """
        raise EventStoreError("OCQ-302", f"{self.name} databases have no shadows", database.label)

    def shadows(self, database: Database) -> Shadows:
        """Return what keeps the shadows beside the tables of a database.

        Raises:
            RebuildError: OCQ-630, where there are none.
        """
        what = f"groups cannot be rebuilt beside the live one on {self.name}"
        raise RebuildError("OCQ-630", what, database.label, "empty the tables in @on_reset, and opencqrs groups reset")

    # Errors

    faults: ClassVar[Mapping[Code, Fault]] = {}  # what errors of the driver report, by their codes: see ``code_of``
    fault_texts: ClassVar[Sequence[tuple[str, Fault]]] = ()  # others, by a pattern that is found in their messages
    # What to do when the database refuses the connection.
    fix_refused: ClassVar[str] = f"fix user, password or database in {URL_SETTINGS}; the user must have access to it"
    fix_read_only: ClassVar[str] = WRITABLE

    @abstractmethod
    def is_outage(self, error: BaseException | None, *, cut: bool) -> bool | None:
        """Return whether the database is temporarily unavailable, ``None`` if the error is not of its driver.

        ``cut`` says whether SQLAlchemy considers the connection cut.
        """

    @abstractmethod
    def code_of(self, error: BaseException | None) -> Code | None:
        """Return the code of a driver's own error; ``None``: it has none, or is not of this driver."""

    def fault_of(self, error: BaseException | None) -> Fault | None:
        """Return what an error of the driver, or SQLAlchemy's around it, reports; ``None``: something else.

        The code decides; the message only where the code says nothing.
        """
        found = driver_error(error)
        code = self.code_of(found)
        if code is not None and code in self.faults:
            return self.faults[code]
        return next((fault for text, fault in self.fault_texts if re.search(text, str(found))), None)

    def fix_to_reach(self, url: URL) -> str:
        """Return what to do when the database cannot be reached."""
        return f"start it, or fix {URL_SETTINGS}"

    # Tables

    quote: ClassVar[str] = '"'  # quotes the name of a schema; empty where there are no schemas
    schema_word: ClassVar[str] = "schema"  # what a schema is called
    # Finds a schema by its name.
    find_schema: ClassVar[str] = "SELECT 1 FROM information_schema.schemata WHERE schema_name = %s"
    create_schema: ClassVar[str] = "CREATE SCHEMA IF NOT EXISTS"  # creates one, with its quoted name after it
    # Lists schema and name of the tables in other schemas of the database that may be read; empty: there are none.
    other_tables: ClassVar[str] = ""
    create_index: ClassVar[str] = "CREATE INDEX"
    index_key: ClassVar[str] = "{}"  # the columns of an index of a subject or type

    def adapt(self, table: Table) -> None:
        """Change a copy of one of our tables into what the database needs."""

    def create(self, database: Database, connection: Connection, table: Table) -> None:
        """Create one of our tables, which is missing."""
        database.table(table).create(connection)

    def turn_statements(self, database: Database) -> tuple[str, ...]:
        """Return the statements that make other programs that add events take the append lock, too."""
        return ()

    def find_turns(self, database: Database) -> str:
        """Return the query that checks for what ``turn_statements`` creates; empty if it cannot get lost."""
        return ""

    def find_hidden(self, database: Database) -> str:
        """Return the query that has a row if all events are hidden from the user; empty if that is impossible."""
        return ""

    def own_progress(self, database: Database) -> str:
        """Return a condition that is true in our own progress table only, wherever a handler switches its connection.

        It is for a table without a schema in its name. Empty if the name is sufficient.
        """
        return ""

    def order_statements(self, database: Database, connection: Connection) -> tuple[str, ...]:
        """Return the statements that put the events of an older version of the table into the order of their ids."""
        return ()

    def step_fix(self, error: BaseException | None) -> str:
        """Return what to do if the user may not change our tables in this way; empty for other errors."""
        return ""

    # Appends

    @abstractmethod
    def append_lock(self, database: Database) -> AbstractContextManager[Connection]:
        """Open a transaction that begins when all other appends have ended, and sees what they wrote.

        Positions must become visible in their order, with any number of writers: see ``turn_statements``.

        Raises:
            DatabaseAwayError: OCQ-305, if another holds the lock for too long; OCQ-304, if the database is unavailable.
        """

    @abstractmethod
    def change_lock(self, database: Database) -> AbstractContextManager[Connection]:
        """Open a transaction that begins when all others that change our tables have ended. Raises as above."""

    def start_lock(self, database: Database) -> AbstractContextManager[object]:
        """Return a block for one process at a time: two that create the same table at once may get errors.

        Raises:
            DatabaseAwayError: As ``append_lock``.
        """
        return nullcontext()

    def append_at_once(self, database: Database, rows: Iterable[Row]) -> int | None:
        """Append a few rows by one statement that is its own transaction.

        Returns:
            How many were new; ``None``, and nothing is done, where that is not possible.
        """
        return None

    @abstractmethod
    def insert(self, database: Database, connection: Connection, rows: list[Row]) -> int:
        """Add rows under the append lock, except known ones, which use up no position; return how many were new."""

    def bulk_loading(self, connection: Connection) -> AbstractContextManager[None]:
        """Return a block in which very many events are added."""
        return nullcontext()

    def settle(self, database: Database, added: int) -> None:
        """Run the maintenance after an append of ``added`` events."""

    # Reads

    # Whether no statement shows an event that was appended after one that it does not show.
    ordered_reads: ClassVar[bool] = False
    # After the table's name, restricts the database to the index of the positions.
    walk_hint: ClassVar[str] = ""
    search_hint: ClassVar[str] = ""  # after the table's name, forces the index in the braces
    unindexed: ClassVar[str] = "{}"  # a column, in the braces, for which no index is used
    indexed: ClassVar[str] = "{}"  # a column as its index holds it
    indexed_length: ClassVar[int | None] = None  # how many characters an index holds; ``None``: all
    modulo: ClassVar[str] = "mod({}, {})"
    # Finds the id of the newest event of a subject; each mark is the subject.
    newest: ClassVar[str] = "SELECT id FROM {table} WHERE subject = {mark} ORDER BY position DESC LIMIT 1"

    def hash_of(self, column: str, level: int | None) -> str:
        """Return an expression for the number by which the sequence of a subject is assigned, empty if there is none.

        The plain form is ``opencqrs_py.model.partition.hash_of`` of the subject, cut to a level if one is given.
        """
        return ""

    def watch(self, database: Database, look: ReadHead) -> AbstractContextManager[Watch]:
        """Open a watch on the events by the quickest means available; ``look`` returns the head."""
        return polling(database, look, self.change_counter)

    def watch_progress(self, database: Database, group: str) -> AbstractContextManager[Watch]:
        """Open a watch on the stored progress of a group by the quickest means available."""
        return polling_progress(database, group, self.change_counter)

    def change_counter(self, connection: Connection) -> Callable[[], int] | None:
        """Return what counts the changes that other connections make to the database; ``None``: nothing does."""
        return None

    def find_event(self, table: str, event_id: str, source: str) -> tuple[str, Row]:
        """Return what finds position and source of the events with an id, of all sources or of one, and its values.

        The index begins with the source, so this iterates over the sources, which are few.
        """
        found = f"SELECT position, source FROM {table} WHERE id = {self.mark}"  # noqa: S608 our own names
        if source:
            return f"{found} AND source = {self.mark}", (event_id, source)
        following = f"SELECT min(source) FROM {table} WHERE source > known.source"  # noqa: S608
        sources = (
            f"WITH RECURSIVE known (source) AS (SELECT min(source) FROM {table} UNION ALL "  # noqa: S608
            f"SELECT ({following}) FROM known WHERE known.source IS NOT NULL)"
        )
        joined = f"known JOIN {table} event ON event.source = known.source"
        chosen = f"SELECT event.position, event.source FROM {joined}"  # noqa: S608
        return f"{sources} {chosen} AND event.id = {self.mark} ORDER BY event.source", (event_id,)

    def find_stored(self, table: str, columns: Sequence[str], keys: Sequence[tuple[str, str]]) -> tuple[str, Row]:
        """Return what finds the events of some hundred pairs of source and id, by the index, and its values."""
        wanted = ", ".join([f"({self.mark}, {self.mark})"] * len(keys))
        found = f"SELECT {', '.join(f'event.{name}' for name in columns)} FROM wanted"  # noqa: S608 our own names
        joined = f"CROSS JOIN {table} event WHERE event.source = wanted.source AND event.id = wanted.id"
        return f"WITH wanted (source, id) AS (VALUES {wanted}) {found} {joined}", tuple(chain.from_iterable(keys))

    # Tables of others

    # Whether it shows up to where a foreign table is final.
    reads_foreign_tables: ClassVar[bool] = False
    exact: ClassVar[str] = "{} COLLATE BINARY"  # compares a text character by character
    compares_bytes: ClassVar[bool] = False  # whether its columns of bytes hold nothing else, see ``as_text``

    def writers(
        self, database: Database, connection: Connection, mapping: TableMapping, table: ForeignTable
    ) -> Writers | None:
        """Return what shows the transactions that may still add events; ``None`` if everything to be seen is final."""
        return None

    def as_text(self, column: str, kind: TypeEngine[Any]) -> str:
        """Return an expression for the text of a column; a timestamp without a zone is treated as UTC.

        For a column of bytes it is the column itself if the dialect ``compares_bytes``.
        """
        return f"CAST({column} AS TEXT)"

    def as_read(self, column: str, kind: TypeEngine[Any]) -> str:
        """Return an expression for what ``as_text`` returns, as bytes if they may not be valid text."""
        return self.as_text(column, kind)

    # Units of work

    # Locks the row of a partition: the table, and the condition.
    row_lock: ClassVar[str] = "SELECT 1 FROM {} {} FOR UPDATE"
    row_settings: ClassVar[tuple[str, ...]] = ("row_factory",)  # of a driver's connection: its row factory
    replaceable_methods: ClassVar[bool] = True  # whether methods of the driver's connections can be replaced
    # Whether a unit of work may begin and end in one message: see ``begin_at_once`` and ``commit_at_once``.
    sends_at_once: ClassVar[bool] = False
    # Whether a transaction may be lost without an error at its commit: see ``has_failed``.
    loses_transactions: ClassVar[bool] = True

    def begin_at_once(
        self, connection: Connection, savepoint: str, lock: Statement, later: Sequence[Statement], values: Values
    ) -> bool | None:
        """Begin a transaction, set a savepoint and lock a row by one message; ``later`` are those that may end it.

        Returns:
            Whether the row was found; ``None``, and nothing is done, on a connection where that is not possible.
        """
        return None

    def commit_at_once(self, connection: Connection, savepoint: str, move: Statement, values: Values) -> bool | None:
        """Release a savepoint, send the last statement and commit, by one message; nothing is committed without a row.

        Returns:
            Whether the row was found; ``None``, and nothing is done, on a connection where that is not possible.
        """
        return None

    def pipelined(self, connection: Connection) -> Pipeline | None:
        """Send statements on the driver's connection without waiting for each answer; ``None`` where it cannot."""
        return None

    def watch_statements(self, unit: Unit, driver: Any, undone: ExitStack) -> None:
        """Watch handlers' statements, where seemingly harmless ones end a transaction."""

    def in_transaction(self, driver: Any) -> bool | None:
        """Return whether a connection of the driver is in a transaction, ``None`` if that does not show."""
        return None

    def has_failed(self, connection: Connection, *, erred: bool) -> bool:
        """Return whether a commit would roll back, or everything was rolled back, without any error.

        ``erred`` tells whether a statement has failed, as far as ``watch_statements`` has seen.
        """
        return False

    def left_in_place(self, cursor: Any) -> str:
        """Return what the rollback that a driver's cursor has just sent could not undo; empty if nothing is left."""
        return ""

    # Bulk writes of handlers

    most_marks: ClassVar[int] = 30_000  # in one statement
    sum_of: ClassVar[str] = "{0} + {1}"  # of two expressions; an error if it is beyond the range of whole numbers
    rounded_kinds: ClassVar[tuple[type, ...]] = ()  # of numbers that columns may change, see ``rounds``
    unstorable: ClassVar[frozenset[str]] = frozenset()  # floats that a column cannot hold: nan, inf, -inf
    # Types of keys of which a column may silently treat two as the same; and integers, which may be mixed with them.
    confounded: ClassVar[frozenset[type]] = frozenset({str, int})
    equates_letters: ClassVar[bool] = False  # whether collations treat different letters, or signs, as the same

    def upsert(self, connection: Connection, write: BulkWrite) -> None:
        """Insert rows, or merge them with those of the same keys, in the order given.

        The default fits databases with ``ON CONFLICT``: statements of many rows, with a mark for each value.
        """
        marks = f"({', '.join([self.mark] * len(write.columns))})"
        for size, values in self.sent(write).in_groups(self.most_marks):
            text = f"{write.insert} VALUES {', '.join([marks] * size)} {write.on_conflict}"
            connection.exec_driver_sql(text, values)

    def sent(self, write: BulkWrite) -> BulkWrite:
        """Return rows with their values as the driver gets them."""
        return write

    def upsert_selected(self, connection: Connection, write: BulkWrite, select: str, values: tuple[Any, ...]) -> None:
        """Insert the rows that a query returns, or merge them as ``upsert`` does; ``write`` names the columns only."""
        connection.exec_driver_sql(f"{write.insert} {select} {write.on_conflict}", values)

    def stored_name(self, connection: Connection, schema: str | None, table: str) -> str:
        """Return a table's name as the database stores it, if table names are case-insensitive."""
        return table

    def column_types(self, connection: Connection, schema: str | None, table: str) -> dict[str, str]:
        """Return the types of a table's columns as ``upsert`` names them, where it does."""
        return {}

    def column_without_value(self, error: BaseException | None, table: str) -> str | None:
        """Return the column of a table that must not be null and was null in a row, if that is the error."""
        return None

    def upsert_obstacle(
        self, shape: TableShape, columns: Mapping[str, ColumnValues], keys: Sequence[str], add: Sequence[str]
    ) -> str:
        """Return why these rows cannot be merged correctly on this database; empty if they can."""
        return ""

    def text_of_number(self, number: float | Decimal) -> str:
        """Return the text that a text column makes of a number; it may distinguish what the column does not."""
        return format(number, "f") if isinstance(number, Decimal) else repr(number + 0)

    def rounds(self, of: TypeEngine[Any]) -> bool:
        """Return whether a column of that type silently rounds numbers which it cannot hold."""
        return False

    def kept_number(self, number: float | Decimal) -> Any:
        """Return a number as it is sent to such a column; ``None`` if the column would round it."""
        return number

    def kept_moment(self, of: TypeEngine[Any]) -> KeptMoment | None:
        """Return the conversion of a moment, a day or a text to a column of that type, if the database lacks it.

        The default does so where moments have no offset: a text with one is written as its moment in UTC, as that of a
        datetime is. Else PostgreSQL silently drops the offset, and MariaDB refuses the text.
        """
        return moment_in_utc if isinstance(of, types.DateTime) and not of.timezone else None

    # Stages: tables that hold rows until one statement merges them

    stages_collate: ClassVar[bool] = True  # whether the columns of stages compare texts as those of the table do
    # Where connections begin; empty if no other connection can fill a stage while a transaction is open.
    current_schema: ClassVar[str] = ""
    drop_temporary: ClassVar[str] = "DROP TABLE"  # drops a temporary table without ending the transaction

    def defined_stage(self, name: str, columns: str, of: str, *, shared: bool) -> str:
        """Return the statement that creates an empty table with some columns of another one, unless it is there.

        One that is not ``shared`` is visible to this connection only, and ends with it at the latest.
        """
        empty = f"SELECT {columns}, CAST('' AS CHAR(40)) AS {STAGED_BY} FROM {of} WHERE 1 = 0"  # noqa: S608 our own names
        return f"CREATE TEMPORARY TABLE {name} AS {empty}"

    def stage_column(self, column: str, kind: str, summed: TypeEngine[Any] | None) -> str:
        """Return an expression for the type of a stage's column, from that of the table whose rows it will hold.

        Args:
            column: Name of the column.
            kind: Its type in the table, as the database writes it.
            summed: Type of the column in the table if rows of the stage are summed: each row then has to be kept as it
                is, even where that type would round it; else ``None``.
        """
        return column

    def in_python_order(self, column: str) -> str:
        """Return an expression that sorts texts by their characters, as Python does."""
        return column

    def sees_stages(self, connection: Connection) -> bool:
        """Return whether a transaction that is open sees what others commit from now on."""
        return False

    def drop_stage(self, connection: Connection, table: str) -> None:
        """Drop a stage, if it exists; wait at most a second for its users."""
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {table}")

    # Rows that one transaction has locked

    skip_locked: ClassVar[str] = " FOR UPDATE SKIP LOCKED"  # after a query: it skips rows that others have locked

    def held(self, columns: str, table: str, where: str, order: str, seconds: float) -> str:
        """Return a query for rows that no other transaction may change until this one ends.

        Args:
            columns: What to read of them.
            table: The table, with its prefix.
            where: Which rows, by their primary key.
            order: The column of the primary key, in whose order they are locked.
            seconds: How long to wait for other transactions. The time of day must be read after that wait, by another
                statement.
        """
        return f"SELECT {columns} FROM {table} WHERE {where} ORDER BY {order} FOR UPDATE"  # noqa: S608 our own names

    def isolation_after_waits(self, database: Database) -> str | None:
        """Return the isolation that shows what was committed during a wait for a row; ``None``: it is the usual one."""
        return None

    def insert_unless_known(self, connection: Connection, insert: str, key: str, values: Row) -> bool:
        """Insert one row unless there is one with its primary key, and return whether it is new.

        The transaction continues in both cases. All other errors are raised.
        """
        return connection.exec_driver_sql(f"{insert} ON CONFLICT ({key}) DO NOTHING", values).rowcount == 1

    # Taking over

    take_over_seconds: ClassVar[float] = 10.0  # how long a claim waits for the transaction of the previous owner
    standing_seconds: ClassVar[float] = 5.0  # how long a short transaction may be idle

    @abstractmethod
    def lock_claim(
        self, database: Database, connection: Connection, group: str, partitions: Sequence[Partition]
    ) -> None:
        """Let claims of a group follow each other, and lock the rows of the partitions, with a bounded wait.

        Raises:
            DBAPIError: If a lock was not available in time: ``Fault.LOCK_TIMEOUT``.
        """

    def lock_rows(
        self, database: Database, connection: Connection, group: str, partitions: Sequence[Partition], wait: str = ""
    ) -> None:
        """Lock the rows of partitions on a server; ``wait`` is its clause that limits the wait of a statement."""
        where = f"{database.prefix}{PROGRESS.name} WHERE group_name = %s AND modulus = %s AND residue = %s"
        for partition in sorted(partitions):
            row = (group, partition.modulus, partition.residue)
            connection.exec_driver_sql(f"SELECT epoch FROM {where} FOR UPDATE{wait}", row).all()  # noqa: S608 our own names

    def holder_of(self, database: Database, connection: Connection, group: str, partition: Partition) -> int | None:
        """Return the session whose open transaction holds a partition."""
        return None

    def bound_transaction(self, connection: Connection, seconds: float, *, borrowed: bool) -> None:
        """Limit how long a transaction waits for locks, and how long it may be idle: then the server ends it.

        A process that is frozen in one would keep its locks for as long as it is frozen.

        Args:
            connection: In the transaction.
            seconds: To wait for a lock. It may be idle for ``standing_seconds``.
            borrowed: Whether its connection belongs to an engine of the user, and must stay as it is.
        """

    def ending_what_stands(self, connection: Connection, *, borrowed: bool) -> AbstractContextManager[None]:
        """Have the server end the transaction of a connection if no statement comes for ``standing_seconds``.

        Unlike ``bound_transaction`` it leaves the connection unchanged, which others may use after the block.
        """
        return nullcontext()

    def session_of(self, driver: Any) -> int | None:
        """Return the number of a driver connection's session, by which it can be ended; ``None`` if it cannot be."""
        return None

    def end_session(self, connection: Connection, holder: int) -> None:
        """End a session; raises a ``DBAPIError`` if the database's user may not."""

    # Control tables, jobs and inbox

    # The milliseconds of a clock that all processes share; in the era that ``era`` names they never go back.
    now_ms: ClassVar[str] = "CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)"
    era: ClassVar[str] = "''"
    wall_ms: ClassVar[str] = now_ms  # the time of day in milliseconds since 1970, while a transaction lasts, too
    # What is sent to notify other nodes at once of a change in the control tables; empty: not possible.
    notify_nodes: ClassVar[str] = ""
    pairs: ClassVar[str] = "({})"  # a list of pairs of values, in the braces, among which a pair of columns may be
    unpacks_json: ClassVar[bool] = False  # whether ``json_each`` makes rows of a list that is given as one value
    unpacks_arrays: ClassVar[bool] = False  # whether ``unnest`` and ``json_to_recordset`` do

    def notices(self, database: Database) -> AbstractContextManager[Notices] | None:
        """Open a listener for ``notify_nodes``, on its own connection."""
        return None

    # Helpers

    def too_long(self, database: Database, who: str = "another program") -> DatabaseAwayError:
        """Return the error for a wait for a lock that timed out."""
        what = f"{who} has been writing for more than {self.patience:g} seconds"
        return DatabaseBusyError("OCQ-305", what, database.label, "let it finish, or end it")


def _host_of(url: URL) -> str:
    """Return the host of a URL for comparisons: in lower case, with one name for this machine."""
    host = (url.host or "").lower()
    return "localhost" if host in _THIS_MACHINE else host


DIALECT = "opencqrs_dialect"  # among the options of an engine of our own
ENTRY_POINTS = "opencqrs.databases"
_REGISTRY = Registry(
    ENTRY_POINTS,
    "database.url or event-store.url",
    Dialect,
    several="databases of the kind",
    unusable="databases of the kind {} cannot be used",
    takes="no arguments",
    fix="return a Dialect of opencqrs_py.adapters.sql",
    error=EventStoreError,
    code="OCQ-531",
)
_known: dict[str, Dialect] = {}


def register(dialect: Dialect) -> None:
    """Make a dialect known by its name and its aliases."""
    for name in (dialect.name, *dialect.aliases):
        _known[name] = dialect


def dialect_named(name: str) -> Dialect | None:
    """Return the dialect of that name or alias, ``None`` if there is none.

    Raises:
        EventStoreError: OCQ-531, if the dialect of another package cannot be used.
    """
    if name not in _known and (entries := _entries(name)):
        _known[name] = _of_package(entries)
    return _known.get(name)


@lru_cache
def _entries(name: str) -> tuple[EntryPoint, ...]:
    """Return what other packages have registered for a name. Searching them reads files of every package."""
    return tuple(entry_points(group=ENTRY_POINTS, name=name))


def dialect_of_connection(connection: Connection) -> Dialect | None:
    """Return the dialect of the database that made a connection; for one of the user's engines, by its name."""
    ours: Dialect | None = connection.get_execution_options().get(DIALECT)
    return dialect_named(connection.dialect.name) if ours is None else ours


def _of_package(entries: tuple[EntryPoint, ...]) -> Dialect:
    """Return the dialect that a package registers. It is known by this name only: others may be those of our own."""
    made: Dialect = _REGISTRY.make(entries)
    entry = entries[0]
    if entry.name not in (made.name, *made.aliases):
        what = f"what '{entry.name}' registers is the dialect of databases of the kind '{made.name}'"
        raise _REGISTRY.refused(entry, what, f'set name = "{entry.name}" in its class, or add it to its aliases')
    return made


def is_outage(error: BaseException) -> bool:
    """Return whether ``error`` means that a database is temporarily unavailable.

    Errors of every driver count, also wrapped by SQLAlchemy: a handler may use its own connection to another database.
    """
    if isinstance(error, exc.TimeoutError | DatabaseAwayError | ConnectionLostError):
        return True
    cut = isinstance(error, DBAPIError) and error.connection_invalidated
    of_driver = driver_error(error)
    for dialect in dict.fromkeys(_known.values()):
        found = dialect.is_outage(of_driver, cut=cut)
        if found is not None:
            return found
    return cut


def chunks(rows: Iterable[Row], most_rows: int, most: int, length_of: Callable[[Row], int]) -> Iterator[list[Row]]:
    """Yield the rows in lists of up to ``most_rows``, each of which ends when its lengths add up to ``most``."""
    chunk: list[Row] = []
    length = 0
    for row in rows:
        chunk.append(row)
        length += length_of(row)
        if len(chunk) == most_rows or length >= most:
            yield chunk
            chunk, length = [], 0
    if chunk:
        yield chunk

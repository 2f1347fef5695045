"""A database: its engine, and its connections for reading and writing."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property
from threading import Lock, get_ident
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Engine, Table, create_engine, event, exc
from sqlalchemy.exc import DBAPIError, NoSuchModuleError
from sqlalchemy.pool import QueuePool

from opencqrs_py.adapters.sql.database_file import DatabaseFile
from opencqrs_py.adapters.sql.driver import Fetching, Rows
from opencqrs_py.adapters.sql.kinds import DRIVERS, EXTRAS, kind_named
from opencqrs_py.adapters.sql.mariadb_engine import begin_on_mariadb_engine_of_others, mariadb_engine
from opencqrs_py.adapters.sql.outages import (
    LOCK_NOT_AVAILABLE,
    DatabaseAwayError,
    DatabaseBusyError,
    is_outage,
    lacks_right,
    reason_of,
    sql_state,
)
from opencqrs_py.adapters.sql.own_schema import prefix_of, taken_out
from opencqrs_py.adapters.sql.pooling import WRITING, replace_cut_connections
from opencqrs_py.adapters.sql.schema import in_schema
from opencqrs_py.adapters.sql.urls import label_of, parsed_url
from opencqrs_py.errors import EventStoreError, NonTransientError
from opencqrs_py.model.masking import remember, scrubbed, secrets_in

__all__ = ["Database"]

T = TypeVar("T")

_SQLITE_PATIENCE = 60.0  # seconds that a writer waits for the one before it
_SQLITE_QUIET = 0.1  # seconds that a reader waits for a writer of the same process
_SQLITE_PAUSE = 0.005  # seconds between two looks, where SQLite does not wait by itself
_URL = "the URL (settings event-store.url and database.url, option url in Spark)"
_MEND_FILE = f"mend {_URL}: it must name an SQLite file, which this user may write"
_MEND_SERVER = f"mend user, password or database in {_URL}; the user must have a right to it"
_GRANT = f"let an administrator grant the right, or name another user in {_URL}"
_FIND_FILE = f"mend {_URL}: its folder must exist, and this user may read and write there"
_START = f"start it, or mend {_URL}"
_AGAIN = "see to it that it answers, and do the same again"
_WAYS = "sqlite:///…, postgresql://… or mariadb://…"


class Database:
    """One database, opened at first use. Safe for several threads; not to be used across a fork.

    Args:
        url: SQLAlchemy URL, ``sqlite:///…``, ``postgresql://…``, or ``mariadb://…`` and ``mysql://…`` for MariaDB. Its
            parameter ``opencqrs_schema`` names the schema, too, and wins.
        schema: The schema of our own tables, on MariaDB a database of the same server; created if it is missing.
            ``None``: where connections begin. Handlers' statements are not touched by it.

    Attributes:
        label: How messages name the database.
        kind: ``sqlite``, ``postgresql`` or ``mariadb``.
        schema: The schema of our own tables.
        prefix: What stands before their names in statements.

    Raises:
        EventStoreError: OCQ-301 for an unreadable URL, OCQ-302 for a database that is not supported, OCQ-321 for a
            schema on SQLite, OCQ-322 for a name that is none.
    """

    def __init__(self, url: str, schema: str | None = None) -> None:
        remember(secrets_in(url))
        parsed, named = taken_out(parsed_url(url))
        self.label = label_of(parsed)
        self.kind = kind_named(parsed.get_backend_name())
        if self.kind not in DRIVERS:
            what = f"databases of the kind '{self.kind}' are not supported"
            raise EventStoreError("OCQ-302", what, self.label, f"use {_WAYS}")
        self.schema = named or schema or None
        self.prefix = prefix_of(self.kind, self.schema, self.label)
        turns = _Turns() if self.kind == "sqlite" else None
        self._turn: Callable[[], AbstractContextManager[None]] = nullcontext if turns is None else turns.take
        self._quiet: Callable[[], AbstractContextManager[None]] = nullcontext if turns is None else turns.between
        driver = parsed.drivername if "+" in parsed.drivername else DRIVERS[self.kind]
        self._url = parsed.set(drivername=driver.replace("mariadb+", "mysql+"))
        self._of_others = False
        self._file = DatabaseFile(parsed.database if self.kind == "sqlite" else None)

    @classmethod
    def of(cls, engine: Engine, schema: str | None = None) -> Self:
        """Return the database of an engine that somebody else has made; on SQLite its transactions begin as ours do.

        Raises:
            EventStoreError: OCQ-302 for a database that is not supported.
        """
        url = engine.url.set(drivername=engine.url.get_backend_name())  # whatever driver it uses
        database = cls(url.render_as_string(hide_password=False), schema)
        begin = {"sqlite": _begin_on_engine_of_others, "mariadb": begin_on_mariadb_engine_of_others}.get(database.kind)
        if begin is not None and not event.contains(engine, "begin", begin):
            event.listen(engine, "begin", begin)
        database.engine = engine
        database._of_others = True
        return database

    def table(self, table: Table) -> Table:
        """Return one of our tables, in the schema that it has here."""
        return in_schema(table, self.schema)

    @cached_property
    def engine(self) -> Engine:
        """The SQLAlchemy engine.

        Raises:
            EventStoreError: OCQ-303, if the database's driver is not installed.
        """
        try:
            if self.kind == "sqlite":
                return _sqlite_engine(self._url)
            engine = mariadb_engine(self._url) if self.kind == "mariadb" else create_engine(self._url)
        except (ModuleNotFoundError, NoSuchModuleError) as error:
            fix = f"pip install 'opencqrs-py[{EXTRAS[self.kind]}]'"
            raise EventStoreError(
                "OCQ-303", f"the database driver is missing ({scrubbed(str(error))})", self.label, fix
            ) from error
        replace_cut_connections(engine)
        return engine

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a connection whose statements each see the newest state; there is no transaction around them.

        Raises:
            DatabaseAwayError: OCQ-304, if the database cannot be reached.
            EventStoreError: OCQ-304, if it does not let us in or lacks us a right, or there is no such database.
            DatabaseFileError: OCQ-342, if its SQLite file was deleted or replaced.
        """
        self._file.check()  # before a connection is opened, which would create a file that is gone
        with self._reached(self._reading_engine.connect) as connection, self.explained():
            self._check_server(connection)
            self._file.follow(connection)
            yield connection

    def fetch(self, statement: str, values: tuple[Any, ...] = ()) -> Rows:
        """Return the rows of a statement that sees the newest state and has no transaction around it.

        Args:
            statement: With the marks of the driver.
            values: For the marks, in their order.

        Raises:
            DatabaseAwayError: OCQ-304, if the database cannot be reached.
            EventStoreError: OCQ-304, if it does not let us in, or there is no such database.
            DatabaseFileError: OCQ-342, if its SQLite file was deleted or replaced.
            DBAPIError: As SQLAlchemy raises it.
        """
        self._file.check()
        if self._fetching is not None:
            with self.explained():
                return self._fetching.fetch(statement, values)
        with self.reading() as connection:  # where a connection's set-up is SQLAlchemy's matter
            result = connection.exec_driver_sql(statement, values)
            return result.cursor.fetchall() if result.cursor is not None else ()

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Tell plainly that the database went away, or which right its user lacks.

        It is for statements of ours: what a handler's statement meets stays the driver's error.

        Raises:
            DatabaseAwayError: OCQ-304, if the database does not answer any more.
            EventStoreError: OCQ-304, if the user lacks a right.
            DBAPIError: As it came, if it is another one.
        """
        try:
            yield
        except DBAPIError as error:
            self._file.check()  # which SQLite may answer with an error of its own
            if self.is_outage(error) and sql_state(error) != LOCK_NOT_AVAILABLE:  # who waits explains that better
                what = f"the database does not answer any more ({reason_of(error)})"
                raise DatabaseAwayError("OCQ-304", what, self.label, _AGAIN) from None
            if not lacks_right(error):
                raise
            what = f"the database cannot be used ({reason_of(error)})"
            raise EventStoreError("OCQ-304", what, self.label, _GRANT) from None

    def quiet(self) -> AbstractContextManager[None]:
        """Return a block for a long read, on SQLite one in which no thread of this process writes.

        SQLite's driver lets go of the interpreter at each row and each statement, so two busy threads would hand it to
        and fro, and both take twice the time. A writer that takes long is not waited for.
        """
        return self._quiet()

    @contextmanager
    def writing(
        self, *, patience: float | None = None, isolation: str | None = None, of_handlers: bool = False
    ) -> Iterator[Connection]:
        """Open a transaction that may write; on SQLite it holds the write lock from its beginning.

        Threads of one process take turns on a lock of ours first: SQLite's own waiting is a sleep that grows.

        Args:
            patience: Seconds to wait for the write lock of an SQLite file; ``None``: 60.
            isolation: The transaction's isolation level, as SQLAlchemy calls it; ``None``: the server's default.
            of_handlers: Whether handlers write in it: after an error its connection is not used again.

        Raises:
            DatabaseAwayError: OCQ-304, if the database cannot be reached; OCQ-305, if another process has held the
                write lock of an SQLite file for too long.
            EventStoreError: OCQ-304, if it does not let us in, or does not let us write.
            DatabaseFileError: OCQ-342, if its SQLite file was deleted or replaced, also while the block ran: then
                nothing is committed.
            NonTransientError: On SQLite, if this very thread is in such a transaction already.
        """
        self._file.check()
        with self._turn(), self._reached(self._writing_engine.connect) as connection:
            self._check_server(connection)
            self._file.follow(connection)
            if isolation is not None:
                connection.execution_options(isolation_level=isolation)
            # No execution option, which would cost 4 us at each statement.
            connection.info[WRITING] = _SQLITE_PATIENCE if patience is None else patience
            clean = self._clean(connection, of_handlers=of_handlers)
            with clean, self._reached(connection.begin), self._file.checked(connection):
                yield connection

    def check_file(self, connection: Connection) -> None:
        """Raise if the SQLite file of an open connection was deleted or replaced; others have none.

        Raises:
            DatabaseFileError: OCQ-342.
        """
        self._file.check(connection)

    @contextmanager
    def _clean(self, connection: Connection, *, of_handlers: bool) -> Iterator[None]:
        """Around a transaction: after an error, give no connection of an unknown state back to the pool.

        A handler may have left a setting, or an open transaction. A database in memory lives and ends with its
        connection, so that one is only rolled back.
        """
        try:
            yield
        except BaseException as error:
            if of_handlers or isinstance(error, DBAPIError):
                with suppress(Exception):  # of one that is closed or cut already
                    connection.connection.rollback()
                    if self.kind != "sqlite" or self._file.is_followed:
                        connection.invalidate()
            raise

    @cached_property
    def _writing_engine(self) -> Engine:
        if self.kind == "mariadb" and self._of_others:
            return self.engine.execution_options(isolation_level="AUTOCOMMIT")
        return self.engine

    @cached_property
    def _reading_engine(self) -> Engine:
        if self.kind == "sqlite" or (self.kind == "mariadb" and not self._of_others):
            return self.engine.execution_options(opencqrs_reading=True)
        if self._of_others:
            return self.engine.execution_options(isolation_level="AUTOCOMMIT")
        # One of its own: to switch a connection to and fro takes longer than a short read.
        engine = create_engine(self._url, isolation_level="AUTOCOMMIT")
        replace_cut_connections(engine)
        return engine

    @cached_property
    def _fetching(self) -> Fetching | None:
        """Reads on the driver's connections, where they are ours and any thread may use them."""
        if self._of_others or self.kind == "mariadb" or not isinstance(self._reading_engine.pool, QueuePool):
            return None
        return Fetching(self._reading_engine, self._reached)

    def _check_server(self, connection: Connection) -> None:
        if self.kind == "mariadb" and not getattr(connection.dialect, "is_mariadb", False):
            what = "the server is MySQL, which is not supported; MariaDB is"
            raise EventStoreError("OCQ-302", what, self.label, f"use {_WAYS}")

    def _reached(self, reach: Callable[[], T]) -> T:
        try:
            return reach()
        except DBAPIError as error:
            reason = reason_of(error)
            if not self.is_outage(error):
                fix = _MEND_FILE if self.kind == "sqlite" else _MEND_SERVER
                raise EventStoreError("OCQ-304", f"the database cannot be used ({reason})", self.label, fix) from None
            if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                what = f"another process has been writing for too long ({reason})"
                raise DatabaseBusyError("OCQ-305", what, self.label, "let it finish, or end it") from None
            what = f"the database cannot be reached ({reason})"
            raise DatabaseAwayError(
                "OCQ-304", what, self.label, _FIND_FILE if self.kind == "sqlite" else _START
            ) from None

    def is_outage(self, error: BaseException) -> bool:
        """Say whether ``error`` means that the database does not answer for now."""
        return is_outage(error)

    def close(self) -> None:
        """Close all connections; the next use opens new ones."""
        if (fetching := self.__dict__.get("_fetching")) is not None:
            fetching.close()
        for name in ("engine", "_reading_engine"):
            if name in self.__dict__:
                getattr(self, name).dispose()
        self._file.forget()


class _Turns:
    """The turns that the threads of a process take when they write to an SQLite file."""

    def __init__(self) -> None:
        self._free = Lock()
        self._holder: int | None = None

    @contextmanager
    def take(self) -> Iterator[None]:
        """Wait for the turn; who waits for itself, or for somebody who has hung up, is told so."""
        if self._holder == get_ident():
            msg = "a transaction is open on this thread already: write through its connection or session"
            raise NonTransientError(msg)
        if not self._free.acquire(timeout=_SQLITE_PATIENCE):
            msg = f"another thread has been writing for {_SQLITE_PATIENCE:g} seconds"
            raise exc.TimeoutError(msg)
        with self._held():
            yield

    @contextmanager
    def between(self) -> Iterator[None]:
        """Wait for the turn, but not for long; who has it already, or does not get it, goes on without."""
        if self._holder == get_ident() or not self._free.acquire(timeout=_SQLITE_QUIET):
            yield
            return
        with self._held():
            yield

    @contextmanager
    def _held(self) -> Iterator[None]:
        self._holder = get_ident()
        try:
            yield
        finally:
            self._holder = None
            self._free.release()


def _use_write_ahead_log(connection: sqlite3.Connection) -> None:
    """Switch the journal mode; for this SQLite does not wait by itself when another process is switching too."""
    until = time.monotonic() + _SQLITE_PATIENCE
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= until:
                raise
            time.sleep(_SQLITE_PAUSE)
        else:
            return


def _begin_on_engine_of_others(connection: Connection) -> None:
    """Begin a transaction; the engine's pool may hold connections from before we knew it, so each is looked at."""
    driver: Any = connection.connection.dbapi_connection
    if driver.in_transaction:  # begun by a listener of the engine's maker, which knows no writers
        driver.rollback()
    if "opencqrs" not in connection.info:
        connection.info["opencqrs"] = True
        driver.isolation_level = None
        driver.execute(f"PRAGMA busy_timeout={_SQLITE_PATIENCE * 1000:.0f}")
        _use_write_ahead_log(driver)
    _begin(connection)


def _begin(connection: Connection) -> None:
    patience = connection.info.pop(WRITING, None)
    if connection.get_execution_options().get("opencqrs_reading", False):
        return
    if patience in (None, _SQLITE_PATIENCE):
        connection.exec_driver_sql("BEGIN" if patience is None else "BEGIN IMMEDIATE")
        return
    connection.exec_driver_sql(f"PRAGMA busy_timeout={patience * 1000:.0f}")
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout={_SQLITE_PATIENCE * 1000:.0f}")


def _sqlite_engine(url: Any) -> Engine:
    engine = create_engine(url, connect_args={"timeout": _SQLITE_PATIENCE})

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions begin where we say, not where the driver guesses
        _use_write_ahead_log(connection)

    event.listen(engine, "begin", _begin)
    return engine

"""A database: its engine, its connections for reading and writing, and its transactions."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from threading import Lock, get_ident
from typing import Any, Self, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event, exc, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.orm import Session

from opencqrs_py.adapters.sql.outages import DatabaseAwayError, is_outage
from opencqrs_py.adapters.sql.pooling import replace_cut_connections
from opencqrs_py.errors import EventStoreError, NonTransientError, OpenCqrsError

__all__ = ["Database", "DatabaseTransactions"]

T = TypeVar("T")

_SQLITE_PATIENCE = 60.0  # seconds that a writer waits for the one before it
_SQLITE_PAUSE = 0.005  # seconds between two looks, where SQLite does not wait by itself
_PSYCOPG_IDLE = 0  # psycopg.pq.TransactionStatus.IDLE
_PSYCOPG_IN_ERROR = 3  # psycopg.pq.TransactionStatus.INERROR
_DRIVERS = {"sqlite": "sqlite", "postgresql": "postgresql+psycopg"}


class Database:
    """One database, opened at first use. Safe for several threads; not to be used across a fork.

    Args:
        url: SQLAlchemy URL, ``sqlite:///…`` or ``postgresql://…``.

    Raises:
        EventStoreError: OCQ-301 for an unreadable URL, OCQ-302 for a database that is not supported.
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
        except (ArgumentError, ValueError):
            fix = "write it as sqlite:///events.db or postgresql://user:password@host/database"
            raise EventStoreError("OCQ-301", "the database URL cannot be read", fix=fix) from None
        self.kind = parsed.get_backend_name()
        if self.kind not in _DRIVERS:
            what = f"databases of the kind '{self.kind}' are not supported"
            raise EventStoreError("OCQ-302", what, parsed.render_as_string(), "use sqlite:///… or postgresql://…")
        self._turn = _Turns().take if self.kind == "sqlite" else nullcontext
        named = parsed.drivername != self.kind
        self._url = parsed if named else parsed.set(drivername=_DRIVERS[self.kind])
        self.label = parsed.render_as_string(hide_password=True)

    @classmethod
    def of(cls, engine: Engine) -> Self:
        """Return the database of an engine that somebody else has made; on SQLite its transactions begin as ours do.

        Raises:
            EventStoreError: OCQ-302 for a database that is not supported.
        """
        database = cls(engine.url.render_as_string(hide_password=False))
        if database.kind == "sqlite" and not event.contains(engine, "begin", _begin_on_engine_of_others):
            event.listen(engine, "begin", _begin_on_engine_of_others)
        database.engine = engine
        return database

    @cached_property
    def engine(self) -> Engine:
        """The SQLAlchemy engine.

        Raises:
            EventStoreError: OCQ-303, if the database's driver is not installed.
        """
        try:
            if self.kind == "sqlite":
                return _sqlite_engine(self._url)
            engine = create_engine(self._url)
        except (ModuleNotFoundError, NoSuchModuleError) as error:
            fix = "pip install 'opencqrs-py[postgresql]'"
            raise EventStoreError("OCQ-303", f"the database driver is missing ({error})", self.label, fix) from error
        replace_cut_connections(engine)
        return engine

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a connection whose statements each see the newest state; there is no transaction around them.

        Raises:
            DatabaseAwayError: OCQ-304, if the database cannot be reached.
        """
        with self._reached(self._reading_engine.connect) as connection:
            yield connection

    @contextmanager
    def writing(self, **options: Any) -> Iterator[Connection]:
        """Open a transaction that may write; on SQLite it holds the write lock from its beginning.

        Threads of one process take turns on a lock of ours first: SQLite's own waiting is a sleep that grows.

        Args:
            options: Execution options of SQLAlchemy that the connection gets besides.

        Raises:
            DatabaseAwayError: OCQ-304, if the database cannot be reached; OCQ-305, if another process has held the
                write lock of an SQLite file for too long.
            NonTransientError: On SQLite, if this very thread is in such a transaction already.
        """
        with self._turn(), self._reached(self._writing_engine.connect) as connection:
            if options:
                connection.execution_options(**options)
            with self._reached(connection.begin):
                yield connection

    @cached_property
    def _writing_engine(self) -> Engine:
        return self.engine.execution_options(opencqrs_writing=True)

    @cached_property
    def _reading_engine(self) -> Engine:
        if self.kind == "sqlite":
            return self.engine.execution_options(opencqrs_reading=True)
        return self.engine.execution_options(isolation_level="AUTOCOMMIT")

    def _reached(self, reach: Callable[[], T]) -> T:
        try:
            return reach()
        except DBAPIError as error:
            if not self.is_outage(error):
                raise
            reason = (str(error.orig).strip() or type(error.orig).__name__).splitlines()[0]
            if getattr(error.orig, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY:
                what = f"another process has been writing for {_SQLITE_PATIENCE:g} seconds ({reason})"
                raise DatabaseAwayError("OCQ-305", what, self.label, "let it finish, or end it") from None
            what = f"the database cannot be reached ({reason})"
            fix = "start it, or mend event-store.url or database.url; a folder named there must exist"
            raise DatabaseAwayError("OCQ-304", what, self.label, fix) from None

    def is_outage(self, error: BaseException) -> bool:
        """Say whether ``error`` means that the database does not answer for now."""
        return is_outage(error)

    def close(self) -> None:
        """Close all connections; the next use opens new ones."""
        if "engine" in self.__dict__:
            self.engine.dispose()


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
        self._holder = get_ident()
        try:
            yield
        finally:
            self._holder = None
            self._free.release()


class _Unit:
    """A transaction that handlers write in."""

    __slots__ = ("_begun", "_rolled_back", "_session", "connection")

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.connection.commit = self.connection.rollback = _refuse  # type: ignore[method-assign]
        self._session: Session | None = None
        self._rolled_back = False
        self._begun = False

    def begun(self) -> None:
        """Take note of a first statement; psycopg begins with that, and before it looks as if it had ended."""
        self._begun = True

    @property
    def session(self) -> Session:
        """The unit's session, made at first use."""
        if self._session is None:
            self._session = Session(self.connection)
        return self._session

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Refuse ``commit()`` of the driver's own connection and notice its ``rollback()``, if the driver lets us."""
        driver: Any = self.connection.connection.dbapi_connection
        if isinstance(driver, sqlite3.Connection):  # its methods cannot be replaced; the end is seen when it is there
            yield
            return
        roll_back = driver.rollback

        def rollback() -> None:  # SQLAlchemy's, too, as when a session cannot be flushed
            self._rolled_back = True
            roll_back()

        driver.commit, driver.rollback = _refuse, rollback
        try:
            yield
        finally:
            del driver.commit, driver.rollback

    def finish(self) -> None:
        """Write out what the session still holds, and see that what was written can still be committed."""
        if self._session is not None:
            self._session.flush()
        if self._rolled_back or not self.connection.in_transaction() or self._ended():
            _refuse()
        if _failed(self.connection):
            msg = "a statement failed and its error was caught: run such statements within connection.begin_nested()"
            raise OpenCqrsError(msg)

    def _ended(self) -> bool:
        """Say whether the transaction was ended on the driver's own connection."""
        driver = self.connection.connection.dbapi_connection
        status = getattr(getattr(driver, "info", None), "transaction_status", None)
        return getattr(driver, "in_transaction", None) is False or (self._begun and status == _PSYCOPG_IDLE)


class DatabaseTransactions:
    """Opens the transactions that handlers write in.

    Args:
        database: The read models' database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @contextmanager
    def begin(self) -> Iterator[_Unit]:
        """Open a transaction: committed at the end of the block, rolled back when the block raises.

        Raises:
            NonTransientError: If the block ended the transaction, or tried to.
            OpenCqrsError: If a statement failed in the block, and with it the transaction, and nobody said so.
        """
        with self._database.writing() as connection:
            unit = _Unit(connection)
            with unit.kept_open():
                yield unit
                unit.finish()

    def is_outage(self, error: BaseException) -> bool:
        """Say whether the database does not answer for now."""
        return self._database.is_outage(error)


def _failed(connection: Connection) -> bool:
    """Say whether PostgreSQL would answer a commit by rolling back, without any error."""
    driver = connection.connection.dbapi_connection
    return getattr(getattr(driver, "info", None), "transaction_status", None) == _PSYCOPG_IN_ERROR


def _refuse() -> None:
    """Progress is written first in a unit, so a commit inside it would mark events done that nobody has handled."""
    msg = "a handler must not end the transaction that it shares with the progress: leave commit() and rollback() out"
    raise NonTransientError(msg)


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
    options = connection.get_execution_options()
    if not options.get("opencqrs_reading", False):
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("opencqrs_writing", False) else "BEGIN")


def _sqlite_engine(url: Any) -> Engine:
    engine = create_engine(url, connect_args={"timeout": _SQLITE_PATIENCE})

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # transactions begin where we say, not where the driver guesses
        _use_write_ahead_log(connection)

    event.listen(engine, "begin", _begin)
    return engine

"""A database: its engine, and its connections for reading and writing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cached_property
from typing import Any, Self, TypeAlias, TypeVar, cast

from sqlalchemy import Connection, Engine, RootTransaction, Table
from sqlalchemy.exc import DBAPIError, NoSuchModuleError
from sqlalchemy.pool import ConnectionPoolEntry, QueuePool, StaticPool
from typing_extensions import override

from opencqrs_py.adapters.forks import Inherited, keep_open, leave_to_parent_in_forks
from opencqrs_py.adapters.sql.connections import (
    WRITING,
    FetchedRows,
    as_sqlalchemy,
    close_pool,
    close_quietly,
    connect_by,
    is_sound,
    reason_of,
    refused_parameters,
)
from opencqrs_py.adapters.sql.dialects.dialect import DIALECT, is_outage
from opencqrs_py.adapters.sql.dialects.faults import (
    ANOTHER_SERVER,
    FREE_SPACE,
    GRANT,
    NO_PREPARING,
    REPAIR,
    RESTORE,
    UNKNOWN_NAMES,
    ConnectionLostError,
    DatabaseAwayError,
    DatabaseBusyError,
    Fault,
    lost_before,
)
from opencqrs_py.adapters.sql.pool import MOST_CONNECTIONS, KeepingPool
from opencqrs_py.adapters.sql.shadows.guards import ShadowGuard
from opencqrs_py.adapters.sql.shadows.urls import without_mark
from opencqrs_py.adapters.sql.slots import Slot, Slots
from opencqrs_py.adapters.sql.tables import TableMissingError, adapted
from opencqrs_py.adapters.sql.urls import dialect_of, parsed_url, schema_prefix, without_schema
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.masking import mask_url, remember, scrubbed, secrets_in
from opencqrs_py.model.properties import locked_cached_property

T = TypeVar("T")

_KeptConnections: TypeAlias = list[tuple[Any, float]]
"""Connections of the driver for short reads, each with its last use in monotonic seconds."""

_MOST_KEPT = 5  # connections for short reads, as many as SQLAlchemy's pool keeps
# Connections: one for the heartbeat, which must not wait for a change of leases, by a node or a command, since either
# may wait for a lock; and one for the requests of a page in the meantime.
_OF_CONTROL = 4
_NO_SLOT: AbstractContextManager[Slot | None] = nullcontext()
_PROBE = ("SAVEPOINT opencqrs_probe", "RELEASE SAVEPOINT opencqrs_probe")  # which needs one transaction
_PROBE_SECONDS = 1.0  # to wait for another writer of an SQLite file, which does not concern the engine
_FIX_CANCELLED = (
    "end whatever holds a lock on its tables; or give the user more time (statement_timeout, max_statement_time)"
)
_FIX_COMMITS = 'create it without isolation_level="AUTOCOMMIT", and without listeners that commit'
_ENGINES = ("engine", "_reading_engine")  # that have a pool, which may be the same one
_SLOT = "opencqrs_slot"  # in the ``info`` of a connection: by which right its transaction has it


class Database(Inherited):
    """One database, opened at first use. Safe for several threads; a fork opens connections of its own.

    Args:
        url: SQLAlchemy URL, ``sqlite:///…``, ``postgresql://…``, or ``mariadb://…`` and ``mysql://…`` for MariaDB. Its
            parameter ``opencqrs_schema`` also names the schema, and takes precedence.
        schema: The schema of our own tables, on MariaDB a database of the same server; created if it is missing.
            ``None``: where connections begin. It does not affect handlers' statements.
        connections: How many connections to a server the threads of this process share, at least 1. Watches have their
            own connections, which do not count; SQLite's are not limited.
        read_only: Whether an SQLite file is left as it is: it is neither created nor switched to a write-ahead log. On
            a server its user's privileges determine what may be changed.

    Attributes:
        label: How messages name the database.
        url: Its URL as SQLAlchemy takes it, with the password.
        dialect: What differs from other databases.
        kind: The dialect's name: ``sqlite``, ``postgresql``, ``mariadb``, or another one.
        schema: The schema of our own tables.
        prefix: Prefix of their names in statements.
        new_tables: The names of our tables that this process has created and not reported yet.
        guard: Watches over the file, if it is one.
        shadow: What it is the shadow of, in a rebuild; ``None`` for any other.
        shadow_guard: Watches over what is written to a shadow; ``None`` for any other.

    Raises:
        EventStoreError: OCQ-301 for an unreadable URL, OCQ-302 for a database that is not supported, OCQ-321 for a
            schema on SQLite, OCQ-322 for a name that is none.
    """

    def __init__(
        self, url: str, schema: str | None = None, connections: int = MOST_CONNECTIONS, *, read_only: bool = False
    ) -> None:
        remember(secrets_in(url))
        parsed, named = without_schema(parsed_url(url))
        parsed, self.shadow = without_mark(parsed)
        self.label = mask_url(parsed.render_as_string(hide_password=True))
        self.dialect = dialect_of(parsed, self.label)
        self.kind = self.dialect.name
        self.schema = named or schema or None
        self.prefix = schema_prefix(self.dialect, self.schema, self.label)
        self.new_tables: set[str] = set()
        self._given = self.dialect.read_only_url(parsed) if read_only else parsed
        self.url = self.dialect.driver_url(self._given)
        self._of_others = False
        self.guard = self.dialect.file(self._given)
        self._follows = False  # whether the guard knows the file
        self._kept: _KeptConnections = []
        self._slots = Slots(connections, self.label) if self.dialect.remote else None
        self.shadow_guard: ShadowGuard | None = None
        if self.shadow is not None:
            self.shadow_guard = self.dialect.shadow_guard(self, self.shadow)
        leave_to_parent_in_forks(self)

    @classmethod
    def of(cls, engine: Engine, schema: str | None = None) -> Self:
        """Return the database of an engine of the user; our transactions on it begin as on our own.

        Raises:
            EventStoreError: OCQ-302 for a database that is not supported.
        """
        url = engine.url.set(drivername=engine.url.get_backend_name())  # whatever driver it uses
        database = cls(url.render_as_string(hide_password=False), schema)
        database.dialect.adopt(engine)
        database.engine = engine
        database._of_others = True
        database._slots = None  # its creator decides on the number of connections
        return database

    def may_be(self, other: Database) -> bool:
        """Return whether another object may stand for the same database, as far as their URLs show."""
        same_driver = self.dialect.driver_package == other.dialect.driver_package
        return same_driver and self.dialect.may_be_same(self.url, other.url)

    def for_control(self) -> Database | None:
        """Return the database of the control tables, with its own connections, which no handler can exhaust.

        It is this one, and for an SQLite file the file beside it. ``None``: no other process can see this database.
        """
        if self._of_others and self.dialect.control_url(self) is self.url:
            return self  # how its maker opens connections is not known
        url = self.dialect.control_url(self)
        if url is None:
            return None
        given = self._given if url is self.url else url  # messages name it as it was written
        control = Database(given.render_as_string(hide_password=False), self.schema, _OF_CONTROL)
        if url is self.url:
            control.new_tables = self.new_tables
        return control

    @contextmanager
    def briefly(self, seconds: float) -> Iterator[Connection]:
        """Open a transaction as ``writing`` does that must not block others, even if this process is frozen in it.

        Args:
            seconds: To wait for a lock. A server ends it if no statement comes for ``Dialect.standing_seconds``.

        Raises:
            EventStoreError: As ``writing`` and ``explained``; OCQ-305, if the wait for a lock timed out.
        """
        with self.explained(), self.writing(patience=seconds) as connection:
            self.make_brief(connection, seconds)
            yield connection

    def make_brief(self, connection: Connection, seconds: float) -> None:
        """Limit the transaction of a connection as ``briefly`` does."""
        self.dialect.bound_transaction(connection, seconds, borrowed=self._of_others)

    def ending_what_stands(self, connection: Connection) -> AbstractContextManager[None]:
        """Have the server end the transaction of a connection if this process is frozen in it, as its dialect does."""
        return self.dialect.ending_what_stands(connection, borrowed=self._of_others)

    @property
    def place(self) -> str:
        """How messages name the database and the schema of our tables, once a connection was opened."""
        first = self.engine.dialect.default_schema_name
        named = self.schema or (None if first == self.url.database else first)  # which MariaDB does not tell apart
        return f"{self.label}, {self.dialect.schema_word} {named}" if named else self.label

    def table(self, table: Table) -> Table:
        """Return one of our tables, in the schema that it has here."""
        return adapted(table, self.dialect, self.schema)

    @locked_cached_property
    def engine(self) -> Engine:
        """The SQLAlchemy engine; raises OCQ-303 if the database's driver is not installed."""
        try:
            engine = self.dialect.engine(self.url)
        except (ModuleNotFoundError, NoSuchModuleError) as error:
            what = f"the database driver is missing ({scrubbed(str(error))})"
            fix = f"pip install 'opencqrs-py[{self.dialect.extra}]'"
            raise EventStoreError("OCQ-303", what, self.label, fix) from error
        except ValueError as error:
            raise refused_parameters(error, self.label) from error
        engine.update_execution_options(**{DIALECT: self.dialect})
        connect_by(engine, self.dialect.connect, self.label)
        if self._slots is not None and isinstance(engine.pool, KeepingPool):
            engine.pool.most = self._slots.most
        if self.shadow_guard is not None:
            self.shadow_guard.enclose(engine)
        return engine

    @contextmanager
    def reading(self, *, apart: bool = False) -> Iterator[Connection]:
        """Open a connection whose statements each see the newest state; there is no transaction around them.

        Args:
            apart: Whether it is in addition to those that threads share, and is closed at the end: it is used for long,
                or must not wait for handlers.

        Raises:
            DatabaseAwayError: OCQ-304, if the database cannot be reached.
            EventStoreError: OCQ-304, if it refuses the user, there is no such database, or a privilege is missing.
            DatabaseFileError: OCQ-326, if its SQLite file was deleted or replaced.
        """
        self.guard.check()  # before a connection is opened, which would create a missing file
        with (
            _NO_SLOT if apart or self._slots is None else self._slots.one(lasting=False),
            self._connected(self._reading_engine, autocommit=True) as connection,
            self.explained(),
        ):
            if apart and self._slots is not None:
                connection.detach()
            yield connection

    @contextmanager
    def waiting(self) -> Iterator[Connection]:
        """Open a connection as ``reading`` does, to wait on it for what others write.

        It is in addition to those that threads share, so that no handler waits for it. It is then kept for them, since
        a new one takes longer to open than most waits last; after an error it is closed.
        """
        self.guard.check()
        with self._connected(self._reading_engine, autocommit=True) as connection, self.explained():
            if self._of_others and self.dialect.remote:
                connection.detach()
            try:
                yield connection
            except BaseException:
                with suppress(Exception):
                    if self.guard.outlives_connections:
                        connection.invalidate()
                raise

    def fetch(self, statement: str, values: tuple[Any, ...] = ()) -> FetchedRows:
        """Return the rows of a statement that sees the newest state and has no transaction around it.

        The statement has the marks of the driver for values. It is sent on a connection of the driver that is kept for
        the next one: taking one out of SQLAlchemy's pool and returning it takes longer than a short read.

        Raises:
            DBAPIError: As SQLAlchemy raises it; else as ``reading``.
        """
        self.guard.check()
        if self._slots is not None and self._lends_connections:
            with self._slots.one(lasting=False):
                return self._fetched(statement, values)
        if not self._keeps_connections:
            with self.reading() as of_pool:
                result = of_pool.exec_driver_sql(statement, values)
                return result.cursor.fetchall() if result.cursor is not None else ()
        kept = self._kept
        connection = self._taken(kept)
        try:
            cursor = connection.cursor()
            cursor.execute(statement, values)
            rows: FetchedRows = cursor.fetchall()
        except BaseException as error:
            self._explain_fetch(error, statement, connection)
            raise
        if len(kept) < _MOST_KEPT:
            kept.append((connection, time.monotonic()))
            if self._kept is not kept:
                _close_all(kept)
        else:
            close_quietly(connection)
        return rows

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Explain that the database became unavailable, or which privilege its user lacks.

        It is for our statements: errors of a handler's statements stay the driver's.

        Raises:
            DatabaseAwayError: OCQ-304, if the database no longer answers; OCQ-305, if the wait for a lock timed out.
            EventStoreError: OCQ-304, if the user lacks a privilege, or a table or column is missing.
            DBAPIError: Unchanged, if it is another one; the driver's own error for a statement that bypassed
                SQLAlchemy.
        """
        try:
            yield
        except ConnectionLostError:
            raise lost_before(self.label) from None
        except self._errors as error:
            self._explain(self._as_sqlalchemy(error))
            raise

    @contextmanager
    def writing(
        self, *, patience: float | None = None, isolation: str | None = None, of_handlers: bool = False
    ) -> Iterator[Connection]:
        """Open a transaction that may write; on SQLite it holds the write lock from its beginning.

        Threads of one process take turns on a lock of ours first: SQLite's own waiting is a sleep that grows.

        Args:
            patience: Seconds to wait for the write lock of an SQLite file, and for other threads of this process that
                have it; ``None``: 60.
            isolation: The transaction's isolation level, as SQLAlchemy calls it; ``None``: the server's default.
            of_handlers: Whether handlers write in it: after an error its connection is not used again.

        Raises:
            DatabaseAwayError: OCQ-304, if the database cannot be reached; OCQ-305, if another process or
                thread has held the write lock of an SQLite file for too long.
            EventStoreError: OCQ-304, if it refuses the user, or does not allow writing.
            DatabaseFileError: OCQ-326, if its SQLite file was deleted or replaced, also while the block ran: then
                nothing is committed.
            NonTransientError: On SQLite, if this thread is already in such a transaction.
        """
        raised: BaseException | None = None
        self.guard.check()
        with (
            self.guard.turn(patience),
            _NO_SLOT if self._slots is None else self._slots.one(lasting=True) as slot,
            self._connected(self._writing_engine, autocommit=False) as connection,
        ):
            connection.info[_SLOT] = slot
            if isolation is not None:
                connection.execution_options(isolation_level=isolation)
            # No execution option, which would cost 4 us at each statement.
            connection.info[WRITING] = self.dialect.patience if patience is None else patience
            try:
                with self._begun(connection):
                    try:
                        yield connection
                    except BaseException as error:
                        raised = error
                        if isinstance(error, DBAPIError):  # which may mean that its file is gone
                            self.guard.check(connection)
                        raise
                    self.guard.check(connection)
            except BaseException as error:
                if of_handlers or isinstance(error, DBAPIError):
                    self._discard(connection)
                if of_handlers and raised is not None and raised is not error:
                    raise raised from raised.__cause__  # not the error of the rollback of a closed connection
                raise

    def require_transactions(self, place: str) -> None:
        """Refuse a user's engine on which a transaction does not last; an outage does not prove that.

        Args:
            place: How messages name the engine.

        Raises:
            EventStoreError: OCQ-349.
        """
        if not self._of_others:
            return
        if self.dialect.remote and isinstance(self.engine.pool, StaticPool):  # on SQLite threads take turns
            what = "all threads share one connection of this engine, and so their transactions (poolclass=StaticPool)"
            raise EventStoreError("OCQ-349", what, place, "create it without that")
        try:
            with self.writing(patience=_PROBE_SECONDS) as connection:
                for statement in _PROBE:
                    connection.exec_driver_sql(statement)
        except DatabaseAwayError:
            return
        except DBAPIError as error:
            if self.is_outage(error):
                return
            what = f"a transaction on this engine ends with each statement ({reason_of(error)})"
            raise EventStoreError("OCQ-349", what, place, _FIX_COMMITS) from None

    def bound(self, connections: int = MOST_CONNECTIONS) -> None:
        """Change how many connections to a server the threads of this process share."""
        if self._slots is not None:
            self._slots.most = connections
            if "engine" in self.__dict__ and isinstance(self.engine.pool, KeepingPool):
                self.engine.pool.bound(connections)

    def abandon(self, connection: Connection) -> None:
        """Give the slot of a transaction whose thread hangs to another thread."""
        slot = connection.connection.info.get(_SLOT)
        if self._slots is not None and slot is not None:
            self._slots.free(slot)

    def is_outage(self, error: BaseException) -> bool:
        """Return whether ``error`` means that a database is temporarily unavailable."""
        return is_outage(error)

    def close(self) -> None:
        """Close all connections; the next use opens new ones, also to an SQLite file that replaces this one."""
        self._close_connections()
        self.guard.forget()
        self._follows = False

    def disconnect(self) -> None:
        """Close all connections; the next use opens new ones to the same SQLite file.

        A database in memory, which would end, stays open.
        """
        if self.guard.outlives_connections:
            self._close_connections()

    @override
    def close_before_fork(self) -> None:
        """Close the idle connections to an SQLite file, so that a fork may open it."""
        if not self.dialect.remote and not self.guard.has_turn:
            self.disconnect()

    @override
    def leave_to_parent(self) -> None:
        """In a fork: open new connections, and close none of the parent. A database in memory is a copy of its own."""
        self.guard.leave_to_parent()
        if self._slots is not None:
            self._slots = Slots(self._slots.most, self.label)
        if not self.guard.outlives_connections:
            return
        kept, self._kept = self._kept, []
        keep_open(kept)
        for name in _ENGINES:
            if name in self.__dict__:
                engine = getattr(self, name)
                keep_open(engine.pool)
                engine.dispose(close=False)

    def _close_connections(self) -> None:
        kept, self._kept = self._kept, []  # one in use is closed by its user, which finds others here
        _close_all(kept)
        for name in _ENGINES:
            if name in self.__dict__:
                close_pool(getattr(self, name))

    def _connected(self, engine: Engine, *, autocommit: bool) -> Connection:
        """Return a connection to a server of the right kind, or to the file that is in use."""
        try:
            connection = engine.connect()
        except DBAPIError as error:
            raise self._unreachable(error) from None
        try:
            if self._slots is not None:
                self.dialect.switch(connection.connection.dbapi_connection, autocommit=autocommit)
            if self.dialect.remote:
                self.dialect.check_server(connection, self.label)
            if not self._follows:
                self.guard.follow(connection)
                self._follows = True
        except BaseException:
            connection.close()
            raise
        return connection

    def _begun(self, connection: Connection) -> RootTransaction:
        try:
            return connection.begin()
        except DBAPIError as error:
            raise self._unreachable(error) from None

    def _discard(self, connection: Connection) -> None:
        """After an error, do not return a connection in an unknown state to the pool.

        A handler may have left a setting, or an open transaction. A database in memory lives and ends with its
        connection, so that one is only rolled back.
        """
        with suppress(Exception):  # of one that is closed or cut already
            connection.connection.rollback()
            if self.guard.outlives_connections:
                connection.invalidate()

    def _fetched(self, statement: str, values: tuple[Any, ...]) -> FetchedRows:
        """Return the rows of a statement that is sent on one of the connections that all threads share."""
        pool = cast("KeepingPool", self._reading_engine.pool)
        entry = self._lent(pool)
        connection: Any = entry.dbapi_connection
        try:
            self.dialect.switch(connection, autocommit=True)
            cursor = connection.cursor()
            cursor.execute(statement, values)
            rows: FetchedRows = cursor.fetchall()
        except BaseException as error:
            try:
                self._explain_fetch(error, statement, connection)
            finally:
                pool.drop(entry)
            raise
        pool.give_back(entry)
        return rows

    def _lent(self, pool: KeepingPool) -> ConnectionPoolEntry:
        try:
            return pool.lend()
        except self._errors as error:
            raise self._unreachable(self._as_sqlalchemy(error)) from None

    def _taken(self, kept: _KeptConnections) -> Any:
        """Return a connection of the driver for a short read, on which nothing has arrived since its last use."""
        while True:
            try:
                connection, used = kept.pop()
            except IndexError:  # the last one may go to another thread
                return self._opened()
            if not self.dialect.remote or is_sound(connection, used):
                return connection
            close_quietly(connection)

    def _opened(self) -> Any:
        try:
            connection = self._reading_engine.raw_connection()
        except self._errors as error:
            raise self._unreachable(self._as_sqlalchemy(error)) from None
        opened = connection.dbapi_connection
        connection.detach()
        return opened

    def _explain_fetch(self, error: BaseException, statement: str, connection: Any) -> None:
        """Raise what a driver's error means; return after another one, such as an interrupt in the middle."""
        dialect = self.engine.dialect
        if not isinstance(error, dialect.loaded_dbapi.Error):
            close_quietly(connection)
            return
        wrapped = as_sqlalchemy(dialect, error, statement, connection)  # which checks whether it was cut
        close_quietly(connection)
        self._explain(wrapped)
        raise wrapped from error

    @property
    def _errors(self) -> tuple[type[Exception], ...]:
        """What may be raised by the driver, or by SQLAlchemy for it, as a listener of ours does."""
        return DBAPIError, self.engine.dialect.loaded_dbapi.Error

    def _as_sqlalchemy(self, error: Exception) -> DBAPIError:
        return error if isinstance(error, DBAPIError) else as_sqlalchemy(self.engine.dialect, error, None, None)

    def _explain(self, error: DBAPIError) -> None:
        """Raise the explained error for an error; return if there is none."""
        self.guard.check()  # to which SQLite may answer with its own error
        reason, fault = reason_of(error), self.dialect.fault_of(error)
        if fault is Fault.LOCK_TIMEOUT:
            what = f"another program has held a lock for too long ({reason})"
            raise DatabaseBusyError("OCQ-305", what, self.label, "let it finish, or end it") from None
        if fault is Fault.CANCELLED:
            what = f"the server has ended a statement of opencqrs ({reason})"
            raise DatabaseAwayError("OCQ-305", what, self.label, _FIX_CANCELLED) from None
        if self.is_outage(error):
            fix = FREE_SPACE if fault is Fault.FULL else "make sure that it is available, and try again"
            what = f"the database no longer answers ({reason})"
            raise DatabaseAwayError("OCQ-304", what, self.label, fix) from None
        what = f"the database cannot be used ({reason})"
        if fault in UNKNOWN_NAMES:
            raise TableMissingError("OCQ-304", what, self.label, RESTORE) from None
        fixes = {
            Fault.DAMAGED: REPAIR,
            Fault.DENIED: GRANT,
            Fault.READ_ONLY: self.dialect.fix_read_only,
            Fault.UNPREPARED: NO_PREPARING,
        }
        if fault is not None and fault in fixes:
            raise EventStoreError("OCQ-304", what, self.label, fixes[fault]) from None

    @locked_cached_property
    def _writing_engine(self) -> Engine:
        return self.dialect.writing_engine(self.engine, borrowed=self._of_others)

    @locked_cached_property
    def _reading_engine(self) -> Engine:
        return self.dialect.reading_engine(self.engine, borrowed=self._of_others)

    @cached_property
    def _lends_connections(self) -> bool:
        """Whether short reads use the connections that transactions use as well."""
        return self._slots is not None and isinstance(self._reading_engine.pool, KeepingPool)

    @cached_property
    def _keeps_connections(self) -> bool:
        """Whether the driver's connections are ours, and any thread may use them."""
        return not self._of_others and isinstance(self._reading_engine.pool, QueuePool)

    def _unreachable(self, error: DBAPIError) -> EventStoreError:
        """Return why no connection can be opened, or no transaction begun."""
        reason, fault = reason_of(error), self.dialect.fault_of(error)
        fixes = {
            Fault.DAMAGED: REPAIR,
            Fault.FULL: FREE_SPACE,
            Fault.ANOTHER_KIND: ANOTHER_SERVER,
            Fault.UNPREPARED: NO_PREPARING,
        }
        fix = None if fault is None else fixes.get(fault)
        if not self.is_outage(error):
            what = f"the database cannot be used ({reason})"
            return EventStoreError("OCQ-304", what, self.label, fix or self.dialect.fix_refused)
        if fault is Fault.BUSY:
            what = f"another process has been writing for too long ({reason})"
            return DatabaseBusyError("OCQ-305", what, self.label, "let it finish, or end it")
        what = f"the database cannot be reached ({reason})"
        return DatabaseAwayError("OCQ-304", what, self.label, fix or self.dialect.fix_to_reach(self.url))


def _close_all(kept: _KeptConnections) -> None:
    while kept:
        with suppress(IndexError):  # another thread has closed it
            close_quietly(kept.pop()[0])

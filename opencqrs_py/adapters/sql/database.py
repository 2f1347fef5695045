"""A database: its engine, and its connections for reading and writing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cached_property
from typing import Any, Self, TypeVar

from sqlalchemy import URL, Connection, Engine, Table, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError
from sqlalchemy.pool import QueuePool

from opencqrs_py.adapters.sql.connections import WRITING, Fetching, Rows, close_pool, reason_of
from opencqrs_py.adapters.sql.dialect import (
    GRANT,
    RESTORE,
    DatabaseAwayError,
    DatabaseBusyError,
    Dialect,
    dialect_named,
    is_outage,
)
from opencqrs_py.adapters.sql.tables import SchemaError, TableMissingError, adapted
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.masking import mask_url, remember, scrubbed, secrets_in
from opencqrs_py.model.mistaken_urls import not_a_database, url_mistake

T = TypeVar("T")

PARAMETER = "opencqrs_schema"
"""The parameter of a database URL that names the schema."""

_SCHEMA_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_PLACE = "setting database.url or event-store.url, option url in Spark"
_KINDS = "use sqlite:///…, postgresql://… or mariadb://…"
_FORMS = "write it as sqlite:///events.db, postgresql://user:password@host/database or mariadb://…"
_ESCAPED = "write %40 for every '@' in user and password, %2F for '/' and %3A for ':'"


class Database:
    """One database, opened at first use. Safe for several threads; not to be used across a fork.

    Args:
        url: SQLAlchemy URL, ``sqlite:///…``, ``postgresql://…``, or ``mariadb://…`` and ``mysql://…`` for MariaDB. Its
            parameter ``opencqrs_schema`` names the schema, too, and wins.
        schema: The schema of our own tables, on MariaDB a database of the same server; created if it is missing.
            ``None``: where connections begin. Handlers' statements are not touched by it.

    Attributes:
        label: How messages name the database.
        dialect: What differs from other databases.
        kind: The dialect's name: ``sqlite``, ``postgresql``, ``mariadb``, or another one.
        schema: The schema of our own tables.
        prefix: What stands before their names in statements.

    Raises:
        EventStoreError: OCQ-301 for an unreadable URL, OCQ-302 for a database that is not supported, OCQ-321 for a
            schema on SQLite, OCQ-322 for a name that is none.
    """

    def __init__(self, url: str, schema: str | None = None) -> None:
        remember(secrets_in(url))
        parsed, named = _without_schema(_parsed(url))
        self.label = mask_url(parsed.render_as_string(hide_password=True))
        self.dialect = _dialect_of(parsed, self.label)
        self.kind = self.dialect.name
        self.schema = named or schema or None
        self.prefix = _prefix(self.dialect, self.schema, self.label)
        self._url = self.dialect.driver_url(parsed)
        self._of_others = False
        self._file = self.dialect.file(parsed)

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
        return database

    @property
    def url(self) -> URL:
        """Its URL as SQLAlchemy takes it, with the password."""
        return self._url

    def for_control(self) -> Database | None:
        """Return the database of the control tables, with connections of its own that no handler can use up.

        It is this one, and for an SQLite file the file beside it. ``None``: no other process can see this database.
        """
        if self._of_others and self.dialect.control_url(self) is self.url:
            return self  # how its maker opens connections is not known
        url = self.dialect.control_url(self)
        return None if url is None else Database(url.render_as_string(hide_password=False), self.schema)

    def table(self, table: Table) -> Table:
        """Return one of our tables, in the schema that it has here."""
        return adapted(table, self.dialect, self.schema)

    @cached_property
    def engine(self) -> Engine:
        """The SQLAlchemy engine; raises OCQ-303 if the database's driver is not installed."""
        try:
            return self.dialect.engine(self._url)
        except (ModuleNotFoundError, NoSuchModuleError) as error:
            what = f"the database driver is missing ({scrubbed(str(error))})"
            fix = f"pip install 'opencqrs-py[{self.dialect.extra}]'"
            raise EventStoreError("OCQ-303", what, self.label, fix) from error

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a connection whose statements each see the newest state; there is no transaction around them.

        Raises:
            DatabaseAwayError: OCQ-304, if the database cannot be reached.
            EventStoreError: OCQ-304, if it refuses the user, there is no such database, or a privilege is missing.
            DatabaseFileError: OCQ-342, if its SQLite file was deleted or replaced.
        """
        self._file.check()  # before a connection is opened, which would create a file that is gone
        with self._reached(self._reading_engine.connect) as connection, self.explained():
            self.dialect.check_server(connection, self.label)
            self._file.follow(connection)
            yield connection

    def fetch(self, statement: str, values: tuple[Any, ...] = ()) -> Rows:
        """Return the rows of a statement that sees the newest state and has no transaction around it.

        The statement has the marks of the driver for values.

        Raises:
            DBAPIError: As SQLAlchemy raises it; else as ``reading``.
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
        """Explain that the database became unavailable, or which privilege its user lacks.

        It is for statements of ours: what a handler's statement meets stays the driver's error.

        Raises:
            DatabaseAwayError: OCQ-304, if the database does not answer any more; OCQ-305, if a lock was waited for in
                vain.
            EventStoreError: OCQ-304, if the user lacks a privilege, or a table or column is missing.
            DBAPIError: As it came, if it is another one.
        """
        try:
            yield
        except DBAPIError as error:
            self._file.check()  # which SQLite may answer with an error of its own
            reason = reason_of(error)
            if self.dialect.is_lock_timeout(error.orig):
                what = f"another program has held a lock for too long ({reason})"
                raise DatabaseBusyError("OCQ-305", what, self.label, "let it finish, or end it") from None
            if self.is_outage(error):
                remedy = "free space on its disk" if self.dialect.is_full(error.orig) else "make sure that it answers"
                what = f"the database does not answer any more ({reason})"
                raise DatabaseAwayError("OCQ-304", what, self.label, f"{remedy}, and do the same again") from None
            if self.dialect.misses_table(error.orig):
                what = f"the database cannot be used ({reason})"
                raise TableMissingError("OCQ-304", what, self.label, RESTORE) from None
            if not self.dialect.denies(error.orig):
                raise
            raise EventStoreError("OCQ-304", f"the database cannot be used ({reason})", self.label, GRANT) from None

    def quiet(self) -> AbstractContextManager[None]:
        """Return a block for a long read, on SQLite one in which no thread of this process writes.

        A writer that takes long is not waited for.
        """
        return self._file.quiet()

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
            EventStoreError: OCQ-304, if it refuses the user, or does not let us write.
            DatabaseFileError: OCQ-342, if its SQLite file was deleted or replaced, also while the block ran: then
                nothing is committed.
            NonTransientError: On SQLite, if this very thread is in such a transaction already.
        """
        self._file.check()
        with self._file.turn(), self._reached(self._writing_engine.connect) as connection:
            self.dialect.check_server(connection, self.label)
            self._file.follow(connection)
            if isolation is not None:
                connection.execution_options(isolation_level=isolation)
            # No execution option, which would cost 4 us at each statement.
            connection.info[WRITING] = self.dialect.patience if patience is None else patience
            clean = self._clean(connection, of_handlers=of_handlers)
            with clean, self._reached(connection.begin), self._file.checked(connection):
                yield connection

    def check_file(self, connection: Connection) -> None:
        """Raise OCQ-342 if the SQLite file of an open connection was deleted or replaced; others have none."""
        self._file.check(connection)

    @property
    def file(self) -> str:
        """What identifies the SQLite file that is in use; empty before the first connection, and for others."""
        return self._file.identity

    def require_file(self, identity: str) -> None:
        """Raise OCQ-342 if the SQLite file in use, or the one that would be opened, is not the one with this ``file``.

        A claim holds in one file. Without this a process that begins later would take a copy for it.
        """
        if identity:
            self._file.require(identity)

    def is_outage(self, error: BaseException) -> bool:
        """Return whether ``error`` means that a database is temporarily unavailable."""
        return is_outage(error)

    def close(self) -> None:
        """Close all connections; the next use opens new ones, also to another SQLite file in the place of this one."""
        self._close_connections()
        self._file.forget()

    def disconnect(self) -> None:
        """Close all connections; the next use opens new ones to the same SQLite file.

        A database in memory, which would end, stays open.
        """
        if self._file.outlives_connections:
            self._close_connections()

    def _close_connections(self) -> None:
        if (fetching := self.__dict__.get("_fetching")) is not None:
            fetching.close()
        for name in ("engine", "_reading_engine"):
            if name in self.__dict__:
                close_pool(getattr(self, name))

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
                    if self._file.outlives_connections:
                        connection.invalidate()
            raise

    @property
    def _own_url(self) -> URL | None:
        return None if self._of_others else self._url

    @cached_property
    def _writing_engine(self) -> Engine:
        return self.dialect.writing_engine(self.engine, self._own_url)

    @cached_property
    def _reading_engine(self) -> Engine:
        return self.dialect.reading_engine(self.engine, self._own_url)

    @cached_property
    def _fetching(self) -> Fetching | None:
        """Reads on the driver's connections, where they are ours and any thread may use them."""
        engine = self._reading_engine
        shared = not self._of_others and isinstance(engine.pool, QueuePool)
        return Fetching(engine, self._reached) if shared else None

    def _reached(self, reach: Callable[[], T]) -> T:
        try:
            return reach()
        except DBAPIError as error:
            reason = reason_of(error)
            if not self.is_outage(error):
                what = f"the database cannot be used ({reason})"
                raise EventStoreError("OCQ-304", what, self.label, self.dialect.fix_refused) from None
            if self.dialect.is_busy(error.orig):
                what = f"another process has been writing for too long ({reason})"
                raise DatabaseBusyError("OCQ-305", what, self.label, "let it finish, or end it") from None
            what = f"the database cannot be reached ({reason})"
            raise DatabaseAwayError("OCQ-304", what, self.label, self.dialect.fix_to_reach(self._url)) from None


def _parsed(url: str) -> URL:
    """Read a URL. It is not repeated in a message, since it cannot be known what of it is a password."""
    if (mistake := url_mistake(url) or not_a_database(url)) is not None:
        raise EventStoreError("OCQ-301", f"the database URL cannot be used: {mistake[0]}", _PLACE, mistake[1])
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise EventStoreError("OCQ-301", "the database URL cannot be read", _PLACE, _FORMS) from None
    if "@" in (parsed.host or ""):
        raise EventStoreError("OCQ-301", "the database URL cannot be read: it has several '@'", _PLACE, _ESCAPED)
    return parsed


def _without_schema(url: URL) -> tuple[URL, str | None]:
    """Return a URL without the parameter that names the schema, and the schema."""
    named = url.query.get(PARAMETER)
    name = named[-1] if isinstance(named, tuple) else named
    return url.difference_update_query([PARAMETER]), name


def _dialect_of(url: URL, label: str) -> Dialect:
    name = url.get_backend_name()
    dialect = dialect_named(name)
    if dialect is None:
        raise EventStoreError("OCQ-302", f"databases of the kind '{name}' are not supported", label, _KINDS)
    return dialect


def _prefix(dialect: Dialect, schema: str | None, label: str) -> str:
    if schema is None:
        return ""
    if not dialect.quote:
        what = f"SQLite has no schemas, but '{schema}' is to be one"
        raise SchemaError("OCQ-321", what, label, "leave database.schema out, or name another file in database.url")
    if not _SCHEMA_NAME.fullmatch(schema):
        fix = "use up to 63 letters of ASCII, digits and underscores, not a digit first"
        raise SchemaError("OCQ-322", f"'{schema}' cannot be the schema of our tables", label, fix)
    return f"{dialect.quote}{schema}{dialect.quote}."

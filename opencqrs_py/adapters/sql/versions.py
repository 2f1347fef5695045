"""Versions of our tables: a table is created at first use, and brought forward when an older package has made it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Connection, Table, inspect, select
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql import mariadb, postgresql
from opencqrs_py.adapters.sql.databases import Database
from opencqrs_py.adapters.sql.kinds import kind_of
from opencqrs_py.adapters.sql.outages import reason_of, server_error
from opencqrs_py.adapters.sql.own_schema import create_schema
from opencqrs_py.adapters.sql.schema import EVENTS, PROGRESS, SCHEMA
from opencqrs_py.adapters.sql.turns import in_turn
from opencqrs_py.errors import EventStoreError

__all__ = ["INDEXED_LENGTH", "prepare"]

# PostgreSQL's advisory lock that is taken in turn by those who change tables.
_CHANGES = 0x0C9127 << 32
INDEXED_LENGTH = 500  # characters that a server's indexes hold of a subject or type; PostgreSQL takes up to 2,704 bytes
_NOT_ALLOWED = (1142, 1227, 1419)  # MariaDB: no privilege, or, with a binary log, triggers for administrators only

Step = Callable[[Database, Connection], None]


def prepare(database: Database, table: Table) -> None:
    """See that ``table`` is there in the version that this package knows; harmless when several processes do it.

    Who finds it so has sent one statement and waits for no writer.

    Raises:
        EventStoreError: OCQ-304, if the database's user may not read or create it; OCQ-311, if a newer package has
            changed the table; OCQ-312, if MariaDB does not let us create the trigger that all who add events need, or
            alter the table.
    """
    version = _recorded(database, table)
    newest = 1 + len(_STEPS.get(table.name, ()))
    if version is None or version < newest:
        version = _bring_forward(database, table)
    if version > newest:
        what = f"the table {table.name} has version {version}, and this package knows versions up to {newest}"
        raise EventStoreError("OCQ-311", what, database.label, "update it: pip install --upgrade opencqrs-py")


def _recorded(database: Database, table: Table) -> int | None:
    try:
        with database.reading() as connection:
            return _version(database, connection, table)
    except DBAPIError as error:
        if database.is_outage(error):
            raise
        return None  # nothing of ours is there yet, most likely; else the next statement meets the same error


def _version(database: Database, connection: Connection, table: Table) -> int | None:
    versions = database.table(SCHEMA).c
    asked = select(versions.version).where(versions.table_name == table.name)
    return connection.execute(asked).scalar()


def _bring_forward(database: Database, table: Table) -> int:
    """Take the steps that are missing, and record the version.

    It is one transaction, but not on MariaDB: there each statement counts at once. What was broken off half-way is
    done again there, so every step leaves alone what it finds done.
    """
    with database.explained(), in_turn(database, _CHANGES) as connection:
        create_schema(database, connection)
        versions = database.table(SCHEMA)
        versions.create(connection, checkfirst=True)
        recorded = _version(database, connection, table)
        version = recorded or _create(database, connection, table)
        for step in _STEPS.get(table.name, ())[version - 1 :]:
            _take_step(database, connection, step)
            version += 1
        row = {"version": version}
        if recorded is None:
            connection.execute(versions.insert().values(table_name=table.name, **row))
        else:
            connection.execute(versions.update().where(versions.c.table_name == table.name).values(**row))
        return version


def _create(database: Database, connection: Connection, table: Table) -> int:
    """Create the table, unless it is there from a time before versions were recorded."""
    if kind_of(connection) == "mariadb" and table is EVENTS:
        connection.exec_driver_sql(mariadb.create_events(database.prefix))
    elif not inspect(connection).has_table(table.name, schema=database.schema):
        database.table(table).create(connection)
    return 1


def _take_step(database: Database, connection: Connection, step: Step) -> None:
    try:
        step(database, connection)
    except DBAPIError as error:
        if server_error(error) not in _NOT_ALLOWED:
            raise
        what = f"the table {EVENTS.name} cannot be completed ({reason_of(error)})"
        fix = (
            "let an administrator run GRANT ALL ON the database, and with a binary log "
            "SET GLOBAL log_bin_trust_function_creators = 1"
        )
        raise EventStoreError("OCQ-312", what, database.label, fix) from None


def _search_events(database: Database, connection: Connection) -> None:
    """Version 2 of the event store: rare subjects and types are found quickly."""
    for name in ("subject", "type"):
        new, key = {
            "sqlite": ("", name),
            "postgresql": ("", f"left({name}, {INDEXED_LENGTH}), position"),
            "mariadb": ("IF NOT EXISTS ", f"{name}({INDEXED_LENGTH}), position"),
        }[kind_of(connection)]
        table = database.prefix + EVENTS.name
        connection.exec_driver_sql(f"CREATE INDEX {new}{EVENTS.name}_{name} ON {table} ({key})")


def _serialise_events(database: Database, connection: Connection) -> None:
    """Version 3 of the event store: servers let all who add events take turns; PostgreSQL tells those who listen."""
    statements: Sequence[str] = ()
    match database.kind:
        case "mariadb":
            statements = mariadb.serialised(database.prefix)
        case "postgresql":
            statements = postgresql.statements_in(database.schema).serialised
    for statement in statements:
        connection.exec_driver_sql(statement)


def _order_identities(database: Database, connection: Connection) -> None:
    """Version 4 of the event store: on MariaDB ids in order are kept in order, as they are on the others."""
    if kind_of(connection) == "mariadb" and not mariadb.is_ordered(connection, database.schema):
        connection.exec_driver_sql(mariadb.ordered(database.prefix))


def _record_failures(database: Database, connection: Connection) -> None:
    """Version 2 of the progress: it holds the log's fingerprint, the failure in hand, and the open transaction."""
    there = {column["name"] for column in inspect(connection).get_columns(PROGRESS.name, database.schema)}
    for name, kind in (("log_fingerprint", "TEXT"), ("failure", "TEXT"), ("connection_id", "BIGINT")):
        if name not in there:
            connection.exec_driver_sql(f"ALTER TABLE {database.prefix}{PROGRESS.name} ADD COLUMN {name} {kind}")


_STEPS: dict[str, tuple[Step, ...]] = {
    EVENTS.name: (_search_events, _serialise_events, _order_identities),
    PROGRESS.name: (_record_failures,),
}

"""Versions of our tables: a table is created at first use, and brought forward when an older package has made it."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Connection, Table, inspect, select
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql.databases import Database
from opencqrs_py.adapters.sql.schema import EVENTS, SCHEMA
from opencqrs_py.adapters.sql.turns import in_turn
from opencqrs_py.errors import EventStoreError

__all__ = ["APPENDS", "EVENTS_CHANNEL", "INDEXED_LENGTH", "prepare"]

# PostgreSQL's advisory locks that are taken in turn, by those who change tables and by those who add events.
_CHANGES = 0x0C9127 << 32
APPENDS = 0x0C9126 << 32
EVENTS_CHANNEL = "opencqrs_events"  # where PostgreSQL tells those who listen that events are being added
INDEXED_LENGTH = 500  # characters that PostgreSQL's indexes hold of a subject or type; more than 2,704 bytes it refuses

Step = Callable[[Connection], None]


def prepare(database: Database, table: Table) -> None:
    """See that ``table`` is there in the version that this package knows; harmless when several processes do it.

    Who finds it so has sent one statement and waits for no writer.

    Raises:
        EventStoreError: OCQ-311, if a newer package has changed the table.
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
            return _version(connection, table)
    except DBAPIError as error:
        if database.is_outage(error):
            raise
        return None  # nothing of ours is there yet, most likely; else the next statement meets the same error


def _version(connection: Connection, table: Table) -> int | None:
    asked = select(SCHEMA.c.version).where(SCHEMA.c.table_name == table.name)
    return connection.execute(asked).scalar()


def _bring_forward(database: Database, table: Table) -> int:
    with in_turn(database, _CHANGES) as connection:
        SCHEMA.create(connection, checkfirst=True)
        recorded = _version(connection, table)
        version = recorded or _create(connection, table)
        for step in _STEPS.get(table.name, ())[version - 1 :]:
            step(connection)
            version += 1
        row = {"version": version}
        if recorded is None:
            connection.execute(SCHEMA.insert().values(table_name=table.name, **row))
        else:
            connection.execute(SCHEMA.update().where(SCHEMA.c.table_name == table.name).values(**row))
        return version


def _create(connection: Connection, table: Table) -> int:
    """Create the table as its first version made it, unless it is there from a time before versions were recorded."""
    if not inspect(connection).has_table(table.name):
        table.create(connection)
    return 1


def _search_events(connection: Connection) -> None:
    """Version 2 of the event store: rare subjects and types are found quickly."""
    for name in ("subject", "type"):
        key = name if connection.dialect.name == "sqlite" else f"left({name}, {INDEXED_LENGTH}), position"
        connection.exec_driver_sql(f"CREATE INDEX {EVENTS.name}_{name} ON {EVENTS.name} ({key})")


def _serialise_events(connection: Connection) -> None:
    """Version 3 of the event store: PostgreSQL lets all who add events take turns, and tells those who listen.

    Our own appends do both themselves; this is for other programs. The turn is taken before the first position is given
    and kept until the commit, so that positions become visible in their order. The lock is one that, unlike a lock on
    the table, lets the server look after the table meanwhile.
    """
    if connection.dialect.name != "postgresql":
        return
    connection.exec_driver_sql(
        f"CREATE OR REPLACE FUNCTION {EVENTS.name}_in_turn() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"IF current_setting('opencqrs.turn', true) IS DISTINCT FROM '{APPENDS}' THEN "
        f"PERFORM pg_advisory_xact_lock({APPENDS}); PERFORM pg_notify('{EVENTS_CHANNEL}', ''); "
        f"END IF; RETURN NULL; END $$"
    )
    connection.exec_driver_sql(
        f"CREATE TRIGGER {EVENTS.name}_in_turn BEFORE INSERT ON {EVENTS.name} "
        f"FOR EACH STATEMENT EXECUTE FUNCTION {EVENTS.name}_in_turn()"
    )


_STEPS: dict[str, tuple[Step, ...]] = {EVENTS.name: (_search_events, _serialise_events)}

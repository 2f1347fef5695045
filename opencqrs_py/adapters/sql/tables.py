"""The tables of this package: created at first use, and upgraded if an older package created them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    inspect,
    select,
)
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.sql.connections import reason_of
from opencqrs_py.adapters.sql.dialects.faults import RESTORE, Fault
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.naming import listed

if TYPE_CHECKING:
    from opencqrs_py.adapters.sql.database import Database
    from opencqrs_py.adapters.sql.dialects.dialect import Dialect

logger = logging.getLogger("opencqrs.store")

_metadata = MetaData()

SCHEMA = Table(
    "opencqrs_schema",
    _metadata,
    Column("table_name", Text, primary_key=True),
    Column("version", Integer, nullable=False),
)

EVENTS = Table(
    "opencqrs_events",
    _metadata,
    Column("position", BigInteger, primary_key=True, autoincrement=True),
    Column("id", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("type", Text, nullable=False),
    Column("time", Text),  # as it was sent
    Column("content_type", Text, nullable=False),
    Column("payload", Text),  # the data as JSON
    Column("extensions", Text),  # all other attributes as one JSON object
    Column("time_us", BigInteger),  # ``time`` in microseconds since 1970, to search by
    UniqueConstraint("source", "id", name="opencqrs_events_source_id"),
)

WRITTEN = tuple(str(column.name) for column in EVENTS.columns)[1:]
"""The columns that an append fills."""

PROGRESS = Table(
    "opencqrs_progress",
    _metadata,
    Column("group_name", Text, primary_key=True),
    Column("modulus", BigInteger, primary_key=True, autoincrement=False),
    Column("residue", BigInteger, primary_key=True, autoincrement=False),
    Column("position", BigInteger, nullable=False),
    Column("epoch", BigInteger, nullable=False),  # grows with each claim; fences out earlier owners
    Column("owner", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("error", Text, nullable=False),
    Column("next_attempt_at", Text),
    Column("updated_at", Text, nullable=False),
    Column("log_fingerprint", Text),  # the newest event at or below the position; NULL: not known, and not checked
    Column("failure", Text),  # of the event that holds the partition up, as JSON
    Column("connection_id", BigInteger),  # MariaDB: of the transaction that is open, for a claim by another process
    Column("replay", Text),  # what is handled again since a reset, as JSON in ASCII
    Column("ahead", Text),  # what was handled beyond the position before the partitions changed, as JSON
    Column("checkpoint", Text),  # how far participants are, as JSON in ASCII; NULL: there are none
)

SKIPPED = Table(
    "opencqrs_skipped",
    _metadata,
    Column("group_name", Text, primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("modulus", BigInteger, primary_key=True, autoincrement=False),
    Column("residue", BigInteger, primary_key=True, autoincrement=False),
    Column("event_id", Text, nullable=False),
    Column("event_source", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("event_type", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("reason", Text, nullable=False),
    Column("skipped_at", Text, nullable=False),
)

GROUPS = Table(
    "opencqrs_groups",
    _metadata,
    Column("group_name", Text, primary_key=True),
    Column("initial_setting", Text, nullable=False),  # as it was when the group began; empty: not known
    Column("initial_position", BigInteger),  # NULL: not known
    Column("began_at", Text, nullable=False),
    Column("handlers", Text, nullable=False),  # fingerprint of the code; empty: not known, and not compared
    Column("sequencing", Text, nullable=False),  # the same
    Column("changes", Text, nullable=False),  # of the handlers, as JSON in ASCII
    Column("layout", Text),  # which partitions it has, and why, as JSON; NULL: not recorded yet
    Column("selection", Text),  # the settings that select its events, as JSON in ASCII; NULL: not recorded yet
)

REBUILDS = Table(
    "opencqrs_rebuilds",
    _metadata,
    Column("group_name", Text, primary_key=True),
    Column("phase", Text, nullable=False),
    Column("handlers", Text, nullable=False),  # fingerprint of the code that builds or has built the group
    Column("refused", Text, nullable=False),  # fingerprints of code that must no longer run it, as JSON
    Column("details", Text, nullable=False),  # as JSON
    Column("started_at", Text, nullable=False),
)

INBOX_DUE = "opencqrs_inbox_due"

INBOX = Table(  # on SQLite with other keys
    "opencqrs_inbox",
    _metadata,
    Column("group_name", Text, primary_key=True),
    Column("position", BigInteger, primary_key=True, autoincrement=False),
    Column("sequence_hash", BigInteger, primary_key=True, autoincrement=False),  # CRC-32 of the sequence id
    Column("sequence_id", Text, nullable=False),  # as JSON in ASCII: every database keeps it as it is
    Column("event_id", Text, nullable=False),
    Column("event_source", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("event_type", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("parked_at", Text, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("retries", Integer, nullable=False),
    Column("due_ms", BigInteger),  # since 1970; NULL: another event of the sequence, or a person, comes first
    Column("errors", Text, nullable=False),  # how attempts have ended, as JSON in ASCII
    Column("expires_ms", BigInteger),  # since 1970; NULL: never
    Column("replaying", Integer),  # 1: it was handled before a reset, and is handled again
    Index(INBOX_DUE, "group_name", "due_ms", "position"),
    Index("opencqrs_inbox_sequence", "group_name", "sequence_hash", "position"),
)

NODES = Table(
    "opencqrs_nodes",
    _metadata,
    Column("node_id", Text, primary_key=True),
    Column("era", Text, nullable=False),  # SQLite: of which boot the clock is; other eras are over
    Column("until_ms", BigInteger, nullable=False),  # on the database's clock: when the leases of the node end
    Column("buried", Integer, nullable=False),  # 1: they have ended, and can no longer be extended
    Column("details", Text, nullable=False),  # the node, as JSON
)

LEASES = Table(
    "opencqrs_leases",
    _metadata,
    Column("group_name", Text, primary_key=True),
    Column("modulus", BigInteger, primary_key=True, autoincrement=False),  # 0: what is wanted of the whole group
    Column("residue", BigInteger, primary_key=True, autoincrement=False),
    Column("node_id", Text, nullable=False),  # the holder, if that node is not buried; empty: none
    Column("term", BigInteger, nullable=False),  # grows whenever it changes hands
    Column("since", Text, nullable=False),
    Column("wanted", Text, nullable=False),  # empty: not specified
    Column("avoided_node", Text, nullable=False),
    Column("avoided_until_ms", BigInteger, nullable=False),
)

JOBS = Table(
    "opencqrs_jobs",
    _metadata,
    Column("job", Text, primary_key=True),
    Column(
        "next_ms", BigInteger
    ),  # since 1970: the next tick; NULL: there is none, or a run lasts from whose end it counts
    Column("paused_ms", BigInteger),  # since 1970; NULL: it is not paused
    Column("details", Text, nullable=False),  # the rest of the record, as JSON in ASCII
)

JOB_RUNS = Table(
    "opencqrs_job_runs",
    _metadata,
    Column("run_id", Text, primary_key=True),
    Column("job", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("requested_ms", BigInteger, nullable=False),  # since 1970, as all times
    Column("scheduled_ms", BigInteger),  # the tick; NULL: no schedule has started it
    Column("due_ms", BigInteger),  # NULL: it may begin at once
    Column("started_ms", BigInteger),
    Column("ended_ms", BigInteger),  # NULL: it has not ended
    Column("ran_ms", BigInteger),  # ``ended_ms``, if it had begun before
    Column("cancelled_ms", BigInteger),  # when it was asked to end
    Column("owner", Text, nullable=False),  # the node that has it in hand; empty: none
    Column("token", BigInteger, nullable=False),  # grows whenever it changes hands; fences out earlier owners
    Column("position", Text, nullable=False),  # what of it is done, as JSON in ASCII
    Column("done", BigInteger),  # how far it is, as the job itself says
    Column("total", BigInteger),
    Column("parent", Text, nullable=False),  # the run whose ids it has a part of; empty: it is not a child
    Column("details", Text, nullable=False),  # the rest of the run, as JSON in ASCII
    Index("opencqrs_job_runs_open", "ended_ms", "job"),
    Index("opencqrs_job_runs_newest", "requested_ms"),
    Index("opencqrs_job_runs_of_job", "job", "requested_ms"),
    Index("opencqrs_job_runs_ran", "job", "ran_ms"),
    Index("opencqrs_job_runs_children", "parent"),
)

_AFTER_VERSIONS = (PROGRESS, SKIPPED, INBOX, GROUPS)
"""Tables of which each but the first was always recorded in ``opencqrs_schema``, and created after those before it."""

NAMES = frozenset(_metadata.tables)
"""The names of all of them."""


@lru_cache
def adapted(table: Table, dialect: Dialect, schema: str | None) -> Table:
    """Return one of our tables as a database has it, in a schema or, if that is ``None``, where connections begin."""
    copy = table.to_metadata(MetaData(), schema=cast("Any", schema))
    dialect.adapt(copy)
    return copy


class TableMissingError(EventStoreError):
    """A table or column of ours is missing in the database (OCQ-304)."""


class SchemaError(EventStoreError):
    """Our tables cannot be in the schema that is set (OCQ-321, OCQ-322)."""


def prepare(database: Database, table: Table) -> None:
    """Make sure that ``table`` exists in the version that this package knows; several processes may do so at once.

    If it is, that takes one statement, for a log two on MariaDB and three on PostgreSQL, and waits for no writer.

    Raises:
        EventStoreError: OCQ-304, if the database's user may not read or create it, or sees no row of it; OCQ-311, if a
            newer package has changed the table; OCQ-312, if MariaDB does not let us create the trigger that all who add
            events need, or alter the table; OCQ-323, if the schema is missing and the user may not create it.
    """
    version = _recorded(database, table)
    newest = _newest(table)
    if version is None or version < newest:
        version = _bring_forward(database, table)
    elif table.name == EVENTS.name and version == newest:
        _see_that_rows_show(database)
        _see_to_turns(database)
    if version > newest:
        what = f"the table {table.name} has version {version}, but this package knows versions up to {newest}"
        raise EventStoreError("OCQ-311", what, database.label, "update it: pip install --upgrade opencqrs-py")


def see_that_it_exists(database: Database, table: Table) -> None:
    """Refuse a database without ``table``, for a program that only reads: it may be the wrong one.

    Raises:
        EventStoreError: OCQ-327, if the table is missing.
    """
    with database.explained(), database.reading() as connection:
        exists = inspect(connection).has_table(table.name, schema=database.schema)
    if not exists:
        what = f"there is no table {database.prefix}{table.name} in the database, and so no event log"
        fix = "name the database to which the events are appended; if none have been, append the first one"
        raise EventStoreError("OCQ-327", what, database.label, fix)


def _see_that_rows_show(database: Database) -> None:
    """Refuse a log whose events are all hidden from the user: it would look empty, and groups caught up."""
    statement = database.dialect.find_hidden(database)
    if statement and database.fetch(statement):
        what = f"row level security hides all rows of {EVENTS.name} from this user: no policy lets it select any"
        fix = f"ALTER TABLE {database.prefix}{EVENTS.name} DISABLE ROW LEVEL SECURITY, or a policy for the user"
        raise EventStoreError("OCQ-304", what, database.label, fix)


def _see_to_turns(database: Database) -> None:
    """Have other programs that add events take the append lock again, after a backup of only the tables was restored.

    Have positions continue after the newest one, too, if rows were copied and their sequence was not.
    """
    statement = database.dialect.find_turns(database)
    if not statement or database.fetch(statement):
        return
    try:
        with database.explained(), database.dialect.change_lock(database) as connection:
            _take_step(database, connection, _serialise_events)
    except (EventStoreError, DBAPIError) as error:
        if database.is_outage(error):
            raise
        text = (
            "%s has lost its trigger, or its sequence is behind its positions, so events that are added may be missed: "
            "have its owner run opencqrs (%s)"
        )
        logger.warning(text, EVENTS.name, error.what if isinstance(error, EventStoreError) else reason_of(error))


def _recorded(database: Database, table: Table) -> int | None:
    try:
        with database.reading() as connection:
            return _version(database, connection, table)
    except TableMissingError:
        return None
    except DBAPIError as error:
        if database.is_outage(error):
            raise
        return None  # its schema is not there yet, most likely; else the next statement meets the same error


def _version(database: Database, connection: Connection, table: Table) -> int | None:
    versions = database.table(SCHEMA).c
    return connection.execute(select(versions.version).where(versions.table_name == table.name)).scalar()


def _bring_forward(database: Database, table: Table) -> int:
    """Take the steps that are missing, and record the version.

    It is one transaction, but not on MariaDB: there each statement counts at once. Interrupted steps are repeated
    there, so every step skips what is already done.
    """
    with database.explained(), database.dialect.change_lock(database) as connection:
        _create_schema(database, connection)
        versions, recorded = database.table(SCHEMA), None
        is_first = not inspect(connection).has_table(SCHEMA.name, schema=database.schema)
        if is_first:
            _require_all_earlier(database, connection)
            versions.create(connection)
        else:
            recorded = _version(database, connection, table)
        version = recorded or _create(database, connection, table)
        if is_first and table.name in database.new_tables:
            database.new_tables.add(SCHEMA.name)
        for step in _STEPS.get(table.name, ())[version - 1 :]:
            _take_step(database, connection, step)
            version += 1
        if recorded is None:
            connection.execute(versions.insert().values(table_name=table.name, version=version))
        else:
            connection.execute(versions.update().where(versions.c.table_name == table.name).values(version=version))
        return version


def _require_all_earlier(database: Database, connection: Connection) -> None:
    """Refuse tables that were restored without their versions and without some of the tables created before them.

    Those would be created empty, and what they held be lost without a message, such as parked events.
    """
    found, earlier = inspect(connection), list[str]()
    for table in _AFTER_VERSIONS:
        if not found.has_table(table.name, schema=database.schema):
            earlier.append(table.name)
        elif earlier:
            lost = listed([*earlier, SCHEMA.name])
            what = f"tables that were created before {table.name} are missing in the database: {lost}"
            raise EventStoreError("OCQ-304", what, database.label, RESTORE)


def _create_schema(database: Database, connection: Connection) -> None:
    dialect, schema = database.dialect, database.schema
    if schema is None or connection.exec_driver_sql(dialect.find_schema, (schema,)).first() is not None:
        return
    statement = f"{dialect.create_schema} {database.prefix[:-1]}"
    try:
        connection.exec_driver_sql(statement)
    except DBAPIError as error:
        if dialect.fault_of(error) is not Fault.DENIED:
            raise
        missing = f"the {dialect.schema_word} '{schema}' for our tables is missing"
        what = f"{missing} and cannot be created ({reason_of(error)})"
        fix = f"have an administrator run {statement}, and grant all on it to the user; or correct database.schema"
        raise EventStoreError("OCQ-323", what, database.label, fix) from None


def _create(database: Database, connection: Connection, table: Table) -> int:
    """Create the table, unless it is there from a time before versions were recorded; return its version.

    A new one has all columns that steps add, so only those of the event store, which do more, are left to take.
    It is noted as new even if the transaction fails: MariaDB keeps it, elsewhere the next attempt makes it again.
    """
    if inspect(connection).has_table(table.name, schema=database.schema):
        return 1
    database.dialect.create(database, connection, table)
    database.new_tables.add(table.name)
    return 1 if table.name == EVENTS.name else _newest(table)


def _newest(table: Table) -> int:
    return 1 + len(_STEPS.get(table.name, ()))


MigrationStep = Callable[["Database", Connection], None]


def _take_step(database: Database, connection: Connection, step: MigrationStep) -> None:
    try:
        step(database, connection)
    except DBAPIError as error:
        fix = database.dialect.step_fix(error.orig)
        if not fix:
            raise
        what = f"the table {EVENTS.name} cannot be completed ({reason_of(error)})"
        raise EventStoreError("OCQ-312", what, database.label, fix) from None


def _search_events(database: Database, connection: Connection) -> None:
    """Version 2 of the event store: rare subjects and types are found quickly."""
    dialect, table = database.dialect, database.prefix + EVENTS.name
    there = {index["name"] for index in inspect(connection).get_indexes(EVENTS.name, database.schema)}
    for name in ("subject", "type"):
        if f"{EVENTS.name}_{name}" not in there:  # as where the table was copied without that of the versions
            key = dialect.index_key.format(name)
            connection.exec_driver_sql(f"{dialect.create_index} {EVENTS.name}_{name} ON {table} ({key})")


def _serialise_events(database: Database, connection: Connection) -> None:
    """Version 3 of the event store: on servers all programs that add events take the append lock."""
    _send(connection, database.dialect.turn_statements(database))


def _order_identities(database: Database, connection: Connection) -> None:
    """Version 4 of the event store: on MariaDB ids in order are kept in order, as they are on the others."""
    _send(connection, database.dialect.order_statements(database, connection))


def _record_failures(database: Database, connection: Connection) -> None:
    """Version 2 of the progress: it holds the log's fingerprint, the failure in hand, and the open transaction."""
    there = {column["name"] for column in inspect(connection).get_columns(PROGRESS.name, database.schema)}
    added = (("log_fingerprint", "TEXT"), ("failure", "TEXT"), ("connection_id", "BIGINT"))
    table = database.prefix + PROGRESS.name
    _send(connection, [f"ALTER TABLE {table} ADD COLUMN {name} {kind}" for name, kind in added if name not in there])


def _record_replays(database: Database, connection: Connection) -> None:
    """Version 3 of the progress: a group may be reset, and then handles events again."""
    _add_column(database, connection, PROGRESS, "replay", "TEXT")


def _record_what_is_ahead(database: Database, connection: Connection) -> None:
    """Version 4 of the progress: partitions may change, and then some sequences are farther than others."""
    _add_column(database, connection, PROGRESS, "ahead", "TEXT")


def _record_checkpoints(database: Database, connection: Connection) -> None:
    """Version 5 of the progress: participants confirm what is durable, and handle more than that."""
    _add_column(database, connection, PROGRESS, "checkpoint", "TEXT")


def _record_layouts(database: Database, connection: Connection) -> None:
    """Version 2 of the groups: partitions may change."""
    _add_column(database, connection, GROUPS, "layout", "TEXT")


def _record_selections(database: Database, connection: Connection) -> None:
    """Version 3 of the groups: settings that select the events of a group may change."""
    _add_column(database, connection, GROUPS, "selection", "TEXT")


def _expire_parked(database: Database, connection: Connection) -> None:
    """Version 2 of the inbox: events may expire."""
    _add_column(database, connection, INBOX, "expires_ms", "BIGINT")


def _replay_parked(database: Database, connection: Connection) -> None:
    """Version 3 of the inbox: events that wait may be handled again since a reset."""
    _add_column(database, connection, INBOX, "replaying", "INTEGER")


def _add_column(database: Database, connection: Connection, table: Table, name: str, kind: str) -> None:
    there = {column["name"] for column in inspect(connection).get_columns(table.name, database.schema)}
    if name not in there:
        _send(connection, [f"ALTER TABLE {database.prefix}{table.name} ADD COLUMN {name} {kind}"])


def _send(connection: Connection, statements: Iterable[str]) -> None:
    for statement in statements:
        connection.exec_driver_sql(statement)


_STEPS: dict[str, tuple[MigrationStep, ...]] = {
    EVENTS.name: (_search_events, _serialise_events, _order_identities),
    PROGRESS.name: (_record_failures, _record_replays, _record_what_is_ahead, _record_checkpoints),
    GROUPS.name: (_record_layouts, _record_selections),
    INBOX.name: (_expire_parked, _replay_parked),
}

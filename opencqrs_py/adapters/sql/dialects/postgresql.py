"""PostgreSQL: an advisory lock for appends, notifications, and units of work that begin and end in one message."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

import orjson
from sqlalchemy import URL, Connection, Table, Text, types
from sqlalchemy.exc import DBAPIError
from sqlalchemy.types import TypeEngine
from typing_extensions import override

from opencqrs_py.adapters.sql.bulk.write import BulkWrite, ColumnValues
from opencqrs_py.adapters.sql.connections import Statement, as_sqlalchemy, undoing
from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.dialects.dialect import STAGED_BY, Dialect, Row, Values, register
from opencqrs_py.adapters.sql.dialects.faults import DatabaseBusyError, Fault
from opencqrs_py.adapters.sql.foreign import ForeignTable, Writers
from opencqrs_py.adapters.sql.progress_watching import AWAITED, CHANNEL, listening_for_progress
from opencqrs_py.adapters.sql.shadows.guards import PostgresqlGuard, ShadowGuard
from opencqrs_py.adapters.sql.shadows.urls import ShadowOf
from opencqrs_py.adapters.sql.tables import EVENTS, JOB_RUNS, JOBS, PROGRESS, WRITTEN
from opencqrs_py.adapters.sql.transactions import ended
from opencqrs_py.adapters.sql.watching import Arrivals, ReadHead, listening
from opencqrs_py.control.ports import Notices
from opencqrs_py.model.mapping import TableMapping
from opencqrs_py.model.partition import Partition, hash_of
from opencqrs_py.processing.pipelining import Pipeline
from opencqrs_py.processing.ports import Watch

if TYPE_CHECKING:
    from opencqrs_py.adapters.sql.shadows.shadows import Shadows

_LOCK_NOT_AVAILABLE = "55P03"
# SQLSTATE classes that pass by themselves: connection, rolled back for others, resources, shutdown, lock not available.
# Not among them: 57014, a statement that was cancelled or took too long, which is the handler's.
_AWAY = ("08", "40", "53", "57P", _LOCK_NOT_AVAILABLE)
_NOT_NULL = "23502"
# The server's messages when it refuses a user. Before a connection exists libpq passes on no SQLSTATE, so these are
# texts; in another language they count as an outage.
_REFUSES = re.compile(
    r"authentication failed for user|no password supplied|pg_hba\.conf|is not permitted to log in|"
    r"permission denied for database|(?:role|database) \".*\" does not exist"
)
_THRESHOLD = "prepare_threshold"  # psycopg's: after how many uses a statement is prepared, None for never
_NO_SAVEPOINT = ("3B001", "25P01")  # the savepoint does not exist, or there is no transaction
_IN_ERROR = 3  # psycopg.pq.TransactionStatus.INERROR

# Advisory locks: of claims (one for each hash of a group), of appends, and of changes of our tables. Any numbers do.
_CLAIMS, APPENDS, _CHANGES, _STARTS = (number << 32 for number in range(0x0C9125, 0x0C9129))
_TAKE = """
SELECT pg_advisory_xact_lock(%s), current_setting('transaction_isolation')
FROM set_config('lock_timeout', %s, true) patience, set_config('opencqrs.turn', %s, true) turn
"""
_HOLDER = """
SELECT pid, application_name, to_char(xact_start, 'YYYY-MM-DD HH24:MI:SS TZ')
FROM pg_locks JOIN pg_stat_activity USING (pid)
WHERE locktype = 'advisory' AND granted AND (classid::bigint << 32) + objid::bigint = %s
"""
_BOUND_STANDING = "SELECT set_config('idle_in_transaction_session_timeout', %s, true)"
_BOUND = """
SELECT set_config('lock_timeout', %s, true), set_config('idle_in_transaction_session_timeout', %s, true)
"""
# A row that is locked names the transaction that has locked it; that transaction holds a lock on its own number.
_HOLDER_OF_ROW = """
SELECT locks.pid FROM {} progress
JOIN pg_locks locks ON locks.locktype = 'transactionid' AND locks.granted AND locks.transactionid = progress.xmax
WHERE group_name = %s AND modulus = %s AND residue = %s AND locks.pid <> pg_backend_pid()
"""

_COMPARED = {
    EVENTS.name: ("subject", "type"),
    JOBS.name: ("job",),
    JOB_RUNS.name: ("run_id", "job", "parent"),
}  # byte by byte

_NOT_FOUND = "opencqrs: no row"  # in the error of a prepared statement that found no row
_INDEXED_LENGTH = 500  # characters that an index holds; the server takes up to 2,704 bytes
_ROWS_UNFORESEEN = 10_000  # of one append, after which the server has to analyse the table
_RFC_3339 = 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'

# The types without lengths: a cast to a length cuts values off, where an insert refuses them.
_COLUMN_TYPES = """
SELECT attname, format('%%I.%%I', nspname, typname)
FROM pg_attribute JOIN pg_type ON pg_type.oid = atttypid JOIN pg_namespace ON pg_namespace.oid = typnamespace
WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped
"""

_LARGEST = 2**63 - 1  # whole number that is surely written as JSON
_AS_TEXT: dict[type, Callable[[Any], str]] = {
    Decimal: lambda value: format(value, "f"),
    bytes: lambda value: f"\\x{value.hex()}",
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: time.isoformat,
    timedelta: lambda value: f"{value.days} days {value.seconds}.{value.microseconds:06} seconds",
}

_NAMES = ", ".join(WRITTEN)
_COLUMNS = ", ".join(f"{name} {'bigint' if name == 'time_us' else 'text'}" for name in WRITTEN)


_CONTROL = "opencqrs_control"  # the channel on which nodes hear of changes in the control tables of their database


class _Notices(Notices):
    """Gets notifications of changes, and of groups for which callers wait, on a listening connection."""

    def __init__(self, driver: Any) -> None:
        self._driver = driver
        self._arrivals = Arrivals(driver)
        self._awaited: set[str] = set()

    @override
    def wait(self, seconds: float) -> bool:
        found = self._heard()  # also what arrived with the answer to a statement
        if not found:
            self._arrivals.wait(seconds)
            found = self._heard()
        self._awaited.update(each.payload for each in found if each.channel == AWAITED)
        return any(each.channel == _CONTROL for each in found)

    @override
    def wake(self) -> None:
        self._arrivals.wake()

    def close(self) -> None:
        """Give back what wakes it; the connection is the caller's."""
        self._arrivals.close()

    def _heard(self) -> list[Any]:
        return list(self._driver.notifies(timeout=0))

    @override
    def awaited(self) -> frozenset[str]:
        heard, self._awaited = frozenset(self._awaited), set()
        return heard


class PostgresqlDialect(Dialect):
    """PostgreSQL through psycopg."""

    notify_nodes = f"SELECT pg_notify('{_CONTROL}', '')"

    name = "postgresql"
    driver = "postgresql+psycopg"
    driver_package = "psycopg"
    default_port = 5432
    extra = "postgresql"
    find_schema = "SELECT 1 FROM pg_namespace WHERE nspname = %s"
    other_tables = (
        "SELECT nspname, relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
        "WHERE relkind IN ('r', 'p') AND nspname !~ '^pg_' AND nspname <> 'information_schema' "
        "AND nspname IS DISTINCT FROM current_schema() AND has_schema_privilege(pg_namespace.oid, 'USAGE') "
        "AND has_table_privilege(pg_class.oid, 'SELECT')"
    )
    indexed = f"left({{}}, {_INDEXED_LENGTH})"
    indexed_length = _INDEXED_LENGTH
    index_key = f"left({{}}, {_INDEXED_LENGTH}), position"
    # As a plain condition the server would think that it leaves hardly any, and read and sort all the subject has.
    newest = (
        f"SELECT id FROM {{table}} WHERE left(subject, {_INDEXED_LENGTH}) = left({{mark}}, {_INDEXED_LENGTH}) "  # noqa: S608
        "AND CASE subject WHEN {mark} THEN true ELSE false END ORDER BY position DESC LIMIT 1"
    )
    unpacks_arrays = True
    sends_at_once = True
    ordered_reads = True
    exact = '{} COLLATE "C"'
    reads_foreign_tables = True
    compares_bytes = True
    current_schema = "current_schema()"
    faults = {  # noqa: RUF012 none changes it
        "42501": Fault.DENIED,  # on an object
        "3F000": Fault.DENIED,  # on all schemas in the search path, or there are none
        "25006": Fault.READ_ONLY,  # also reported by a replica
        "42703": Fault.NO_COLUMN,
        "42P01": Fault.NO_TABLE,
        _LOCK_NOT_AVAILABLE: Fault.LOCK_TIMEOUT,
        "57014": Fault.CANCELLED,
        "40P01": Fault.DEADLOCK,
        "42P05": Fault.UNPREPARED,  # a statement of this name exists already
        "26000": Fault.UNPREPARED,  # there is none
    }
    fault_texts = (("received invalid response to SSL negotiation", Fault.ANOTHER_KIND),)

    @override
    def connect_args(self, url: URL) -> dict[str, Any]:
        """Return missing settings: a timeout for a server that accepts a connection but sends nothing, and UTF-8.

        ``prepare_threshold``, a setting of the driver itself, is converted for it: a URL has only texts.

        By default the driver uses the database's encoding: it raises an error of Python for a character that LATIN1
        lacks, and makes bytes of all texts of SQL_ASCII.
        """
        ours = {"connect_timeout": self.connect_seconds, "client_encoding": "utf8"}
        unset = {"connect_timeout": "PGCONNECT_TIMEOUT", "client_encoding": "PGCLIENTENCODING"}.items()
        free = [name for name, variable in unset if name not in url.query and variable not in os.environ]
        converted = {_THRESHOLD: _threshold(url.query[_THRESHOLD])} if _THRESHOLD in url.query else {}
        return converted if "service" in url.query else converted | {name: ours[name] for name in free}

    @override
    def shadow_guard(self, database: Database, shadow: ShadowOf) -> ShadowGuard:
        return PostgresqlGuard(database, shadow.live)

    @override
    def shadows(self, database: Database) -> Shadows:
        from opencqrs_py.adapters.sql.shadows.postgresql import PostgresqlShadows  # noqa: PLC0415 only for rebuilds

        return PostgresqlShadows(database)

    @override
    def hash_of(self, column: str, level: int | None) -> str:
        """Cut only what has more levels; by ``split_part``, in half the time of arrays, if all levels have a name.

        ``crc32`` exists from version 18 on.
        """
        level = level or 0
        parts = " || ".join(f"'/' || split_part({column}, '/', {number + 2})" for number in range(level))
        levels = f"'/' || array_to_string((string_to_array({column}, '/'))[2:{level + 1}], '/')"
        short = f"WHEN {column} LIKE '/%%' AND {column} NOT LIKE '{'/%%' * (level + 1)}' THEN {column} "
        whole = f"WHEN split_part({column}, '/', {level + 1}) <> '' THEN {parts} "
        cut = f"CASE {short}{whole}WHEN strpos({column}, '/') = 0 THEN '' ELSE {levels} END" if level else column
        return f"crc32(convert_to({cut}, 'UTF8'))"

    @override
    def is_outage(self, error: BaseException | None, *, cut: bool) -> bool | None:
        if not hasattr(error, "sqlstate"):
            return None
        state = self.code_of(error)
        if _is_outdated(error):
            return True
        if not any(kind.__name__ == "OperationalError" for kind in type(error).__mro__):  # psycopg's: it is an extra
            return cut
        if state is None and _REFUSES.search(str(error).partition("\n")[0]) is not None:
            return False
        return cut or state is None or state.startswith(_AWAY)  # without a state the connection itself failed

    @override
    def code_of(self, error: BaseException | None) -> str | None:
        """Return the SQLSTATE, ``None`` when the connection itself failed or the error is another driver's."""
        state = getattr(error, "sqlstate", None)
        return None if state is None else str(state)

    @override
    def adapt(self, table: Table) -> None:
        """Compare subjects, types, and names and ids of jobs byte by byte, whatever the database's language."""
        for name in _COMPARED.get(table.name, ()):
            table.c[name].type = Text(collation="C")

    @override
    def turn_statements(self, database: Database) -> tuple[str, ...]:
        return statements_in(database.schema).serialised

    @override
    def find_turns(self, database: Database) -> str:
        """Find the trigger: a dump of tables has no functions, so a trigger that calls one is not restored from it.

        Neither does a replication, or a copy of rows, bring the sequence forward. Then positions are given again: an
        append fails, or fills a gap that groups have passed.
        """
        return statements_in(database.schema).find_turns

    @override
    def find_hidden(self, database: Database) -> str:
        return statements_in(database.schema).find_hidden

    @override
    def own_progress(self, database: Database) -> str:
        """Name the table by its number: ``search_path`` may lead to another schema that has one of its name."""
        ((oid,),) = database.fetch(f"SELECT CAST(CAST('{PROGRESS.name}' AS regclass) AS oid)::bigint")
        return f"AND tableoid = {int(oid)}"

    @override
    def append_lock(self, database: Database) -> AbstractContextManager[Connection]:
        return self._locked(database, APPENDS)

    @override
    def change_lock(self, database: Database) -> AbstractContextManager[Connection]:
        return self._locked(database, _CHANGES)

    @override
    def start_lock(self, database: Database) -> AbstractContextManager[object]:
        return self._locked(database, _STARTS)

    @override
    def append_at_once(self, database: Database, rows: Iterable[Row]) -> int | None:
        """Take one round trip instead of four; transactions may be stricter than the lock needs."""
        with self._bounded(database, lock_in(database.schema, APPENDS)) as patience:
            statement = statements_in(database.schema).append_at_once
            ((added,),) = database.fetch(statement, (_as_json(rows), patience))
        return None if added < 0 else int(added)

    @override
    def insert(self, database: Database, connection: Connection, rows: list[Row]) -> int:
        """Send all rows as one JSON text, the quickest there is for the driver, and notify listeners of the newest."""
        insert_all = statements_in(database.schema).insert_all
        added: int = connection.exec_driver_sql(insert_all, (_as_json(rows),)).scalar_one()
        return added

    @override
    def settle(self, database: Database, added: int) -> None:
        if added >= _ROWS_UNFORESEEN:
            with database.reading() as connection:
                connection.exec_driver_sql(f"ANALYZE {database.prefix}{EVENTS.name}")

    @override
    def watch(self, database: Database, look: ReadHead) -> AbstractContextManager[Watch]:
        known = statements_in(database.schema)
        return listening(database, look, known.channel, known.table_number)

    @override
    def watch_progress(self, database: Database, group: str) -> AbstractContextManager[Watch]:
        return listening_for_progress(database, group)

    @override
    def writers(
        self, database: Database, connection: Connection, mapping: TableMapping, table: ForeignTable
    ) -> Writers | None:
        return Writers.of(database, connection, mapping, table)

    @override
    def as_text(self, column: str, kind: TypeEngine[Any]) -> str:
        if isinstance(kind, types.DateTime):
            moment = f"{column} AT TIME ZONE 'UTC'" if kind.timezone else column
            return f"to_char({moment}, '{_RFC_3339}')"
        if isinstance(kind, types.LargeBinary):
            return column  # convert_from would fail for all rows of a page if one of them is not UTF-8
        return f"{column}::text"

    @override
    def begin_at_once(
        self, connection: Connection, savepoint: str, lock: Statement, later: Sequence[Statement], values: Values
    ) -> bool | None:
        """Send BEGIN, which psycopg sends by itself, together with what follows. If that fails, the usual way explains.

        Statements are prepared at the first unit of a connection. That is forbidden (``prepare_threshold=None``) where
        connections lead through a pooler.
        """
        driver: Any = connection.connection.dbapi_connection
        if connection.dialect.driver != "psycopg" or not _begins_as_usual(driver):
            return None
        known = connection.info.get(lock.name)
        if known:
            found = _sent(driver, f"BEGIN; SAVEPOINT {savepoint}; {_execution(lock, values)}")
            if not found.error_message:
                return int(found.ntuples) == 1
            driver.pgconn.exec_(b"ROLLBACK")  # not by rollback(), which is watched: the handler did not call it
        for statement in (lock, *later):
            if known is None:
                driver.execute(_preparation(statement))
            connection.info[statement.name] = known is None  # after an error, it is left at the usual way
        if known is None:
            _forget_with_others(driver, connection.info, [statement.name for statement in (lock, *later)])
        return None

    @override
    def commit_at_once(self, connection: Connection, savepoint: str, move: Statement, values: Values) -> bool | None:
        if connection.dialect.driver != "psycopg" or not connection.info.get(move.name):
            return None
        driver: Any = connection.connection.dbapi_connection
        result = _sent(driver, f"RELEASE SAVEPOINT {savepoint}; {_execution(move, values)}; COMMIT")
        return not result.error_message or _found_nothing(connection, result)

    @override
    def pipelined(self, connection: Connection) -> Pipeline | None:
        if connection.dialect.driver != "psycopg":
            return None
        from opencqrs_py.adapters.sql.dialects.psycopg_pipeline import open_pipeline  # noqa: PLC0415 of an extra

        return open_pipeline(connection.connection.dbapi_connection)

    @override
    def has_failed(self, connection: Connection, *, erred: bool) -> bool:
        driver = connection.connection.dbapi_connection
        return getattr(getattr(driver, "info", None), "transaction_status", None) == _IN_ERROR

    @override
    def held(self, columns: str, table: str, where: str, order: str, seconds: float) -> str:
        """Limit the wait by the same statement: the setting is made before the first row is locked."""
        patience = f"set_config('lock_timeout', '{seconds * 1_000:.0f}ms', true)"
        held = f"SELECT {columns} FROM {table} held, {patience} patience"  # noqa: S608 our own names
        return f"{held} WHERE {where} ORDER BY {order} FOR UPDATE OF held"

    @override
    def isolation_after_waits(self, database: Database) -> str | None:
        (row,) = database.fetch("SHOW default_transaction_isolation")
        return None if row[0] == "read committed" else "READ COMMITTED"

    @override
    def lock_claim(
        self, database: Database, connection: Connection, group: str, partitions: Sequence[Partition]
    ) -> None:
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{self.take_over_seconds * 1_000:.0f}ms'")
        key = _CLAIMS + hash_of(group if database.schema is None else f"{database.schema}.{group}")
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (key,))
        self.lock_rows(database, connection, group, partitions)

    @override
    def holder_of(self, database: Database, connection: Connection, group: str, partition: Partition) -> int | None:
        text = _HOLDER_OF_ROW.format(database.prefix + PROGRESS.name)
        values = (group, partition.modulus, partition.residue)
        pid: int | None = connection.exec_driver_sql(text, values).scalar()
        return pid

    @override
    def upsert(self, connection: Connection, write: BulkWrite) -> None:
        """Send each column as one JSON text, the quickest there is for the driver; the server casts its values."""
        names = [f"c{number}" for number in range(len(write.columns))]
        types = [write.shape.types[name] for name in write.columns]
        given = ", ".join(["json_array_elements_text(%s::json)"] * len(names))
        cast = ", ".join(f"{name}::{kind}" for name, kind in zip(names, types, strict=True))
        rows = f"SELECT {cast} FROM ROWS FROM ({given}) AS given({', '.join(names)})"  # noqa: S608 our own names
        values = tuple(map(_json_of, write.sent_as(_AS_TEXT).columns.values()))
        connection.exec_driver_sql(f"{write.insert} {rows} {write.on_conflict}", values)

    @override
    def column_types(self, connection: Connection, schema: str | None, table: str) -> dict[str, str]:
        quote = connection.dialect.identifier_preparer.quote_identifier
        name = ".".join(quote(part).replace("%%", "%") for part in (schema, table) if part is not None)
        rows = connection.exec_driver_sql(_COLUMN_TYPES, (name,))
        return {column: kind.replace("%", "%%") for column, kind in rows}

    @override
    def text_of_number(self, number: float | Decimal) -> str:
        return format(number, "f") if isinstance(number, Decimal) else repr(number).lower()  # true, false

    @override
    def column_without_value(self, error: BaseException | None, table: str) -> str | None:
        """Return it unless a function ran, as of a trigger, which may write to other tables.

        The name of the table proves nothing: it may be that of a partition.
        """
        found = getattr(error, "diag", None)
        return found.column_name if found and self.code_of(error) == _NOT_NULL and not found.context else None

    @override
    def defined_stage(self, name: str, columns: str, of: str, *, shared: bool) -> str:
        """Skip the write-ahead log: after a crash of the server the transaction that would merge is lost, too.

        The statement does not name the other table: the transaction may have created or locked it, so tasks would not
        see it, or wait.
        """
        kind, rest = ("UNLOGGED", "") if shared else ("TEMPORARY", " ON COMMIT DROP")
        return f"CREATE {kind} TABLE IF NOT EXISTS {name}{rest} AS SELECT {columns}, '' AS {STAGED_BY} WHERE 1 = 0"

    @override
    def stage_column(self, column: str, kind: str, summed: TypeEngine[Any] | None) -> str:
        return f"NULL::{kind}"

    @override
    def in_python_order(self, column: str) -> str:
        return self.exact.format(f"{column}::text")

    @override
    def sees_stages(self, connection: Connection) -> bool:
        return connection.exec_driver_sql("SHOW transaction_isolation").scalar() == "read committed"

    @override
    def drop_stage(self, connection: Connection, table: str) -> None:
        connection.exec_driver_sql("BEGIN")
        with undoing(connection, "COMMIT"):  # of the setting, too; after an error it rolls back
            connection.exec_driver_sql("SET LOCAL lock_timeout = '1s'")
            super().drop_stage(connection, table)

    @override
    @contextmanager
    def notices(self, database: Database) -> Iterator[Notices]:
        with database.reading(apart=True) as connection:
            connection.detach()  # the next user of a pool must not listen
            connection.exec_driver_sql(f"LISTEN {_CONTROL}")
            connection.exec_driver_sql(f"LISTEN {AWAITED}")
            with closing(_Notices(connection.connection.dbapi_connection)) as notices:
                yield notices

    @override
    def bound_transaction(self, connection: Connection, seconds: float, *, borrowed: bool) -> None:
        limits = tuple(f"{each * 1_000:.0f}ms" for each in (seconds, self.standing_seconds))
        connection.exec_driver_sql(_BOUND, limits)

    @override
    def ending_what_stands(self, connection: Connection, *, borrowed: bool) -> AbstractContextManager[None]:
        connection.exec_driver_sql(_BOUND_STANDING, (f"{self.standing_seconds * 1_000:.0f}ms",))
        return nullcontext()

    @override
    def session_of(self, driver: Any) -> int | None:
        pid: int = driver.info.backend_pid
        return pid

    @override
    def end_session(self, connection: Connection, holder: int) -> None:
        connection.exec_driver_sql("SELECT pg_terminate_backend(%s)", (holder,))

    @contextmanager
    def _locked(self, database: Database, lock: int) -> Iterator[Connection]:
        """Open a transaction that holds an advisory lock.

        Under a stricter isolation, which a server may have by default, statements would still see what was before the
        wait.
        """
        key = lock_in(database.schema, lock)
        for isolation in (None, "READ COMMITTED"):
            with database.writing(isolation=isolation) as connection:
                with self._bounded(database, key) as patience:
                    row = connection.exec_driver_sql(_TAKE, (key, patience, str(key))).one()
                if row[1] == "read committed":
                    yield connection
                    return

    @contextmanager
    def _bounded(self, database: Database, key: int) -> Iterator[str]:
        """Name the holder of an advisory lock after too long a wait; the block gets the patience as a setting."""
        try:
            yield f"{self.patience * 1_000:.0f}ms"
        except (DBAPIError, DatabaseBusyError) as error:
            if isinstance(error, DBAPIError) and self.fault_of(error) is not Fault.LOCK_TIMEOUT:
                raise
        else:
            return
        with database.reading() as connection:
            holder = connection.exec_driver_sql(_HOLDER, (key,)).first()
        if holder is None:
            raise self.too_long(database)
        name = f" of '{holder[1]}'" if holder[1] else ""
        who = f"the server process {holder[0]}{name}, in a transaction that began at {holder[2]},"
        raise self.too_long(database, who)


@dataclass(frozen=True, slots=True)
class LogStatements:
    """What is sent for the log of one schema.

    A channel is the whole database's, and each of its schemas may hold a log. So an append notifies of the newest
    position and, after a space, the table's number, which identifies it among those of the same name.

    Our own appends take the append lock and notify themselves; the trigger does both for other programs, and only
    signals that there is something new. The lock is taken before the first position is given and kept until the commit,
    so that positions become visible in their order. Unlike a lock on the table, it does not block the server's
    maintenance of the table.
    """

    channel: str
    table_number: str  # an expression
    insert_all: str  # adds rows under the append lock
    append_at_once: str  # takes the lock, too; gives -1 if transactions do not see what was written during the wait
    serialised: tuple[str, ...]  # the trigger, and the function of the statement before
    find_turns: str  # finds the trigger, if it is there and not disabled, unless known positions would be given again
    find_hidden: str  # finds the table, if row level security is on for the user, and no policy shows a row


def lock_in(schema: str | None, lock: int) -> int:
    """Return the key of an advisory lock in a schema: keys are the whole database's, and each schema may hold a log."""
    return lock if schema is None else lock + crc32(schema.encode())


@lru_cache
def statements_in(schema: str | None) -> LogStatements:
    """Return the statements for the log of a schema, ``None`` for the one that connections begin in."""
    prefix = "" if schema is None else f'"{schema}".'
    table, lock = prefix + EVENTS.name, lock_in(schema, APPENDS)
    channel = EVENTS.name if schema is None else f"{EVENTS.name}_{crc32(schema.encode()):08x}"
    number = f"'{table}'::regclass::oid"
    return LogStatements(
        channel=channel,
        table_number=number,
        insert_all=f"""{_fresh(table, "%s::json")}
SELECT count(*), pg_notify('{channel}', max(position) || ' ' || {number}) FROM fresh
""",  # noqa: S608 our own names
        append_at_once=f"SELECT {table}_append(%s::json, %s)",
        serialised=(
            _in_turn(table, lock, channel),
            f"DROP TRIGGER IF EXISTS {EVENTS.name}_in_turn ON {table}",
            _trigger(table, lock),
            _append(table, lock, channel, number),
            f"SELECT setval(sequence, newest) {_behind(table)}",  # no writer is under way: the trigger is new
        ),
        find_turns=f"""
SELECT 1 FROM pg_trigger WHERE tgrelid = '{table}'::regclass AND tgname = '{EVENTS.name}_in_turn' AND tgenabled <> 'D'
AND NOT EXISTS (SELECT 1 {_behind(table)})
""",  # noqa: S608 our own names
        find_hidden=f"""
SELECT 1 FROM pg_class WHERE oid = '{table}'::regclass AND row_security_active(oid) AND NOT EXISTS (
    SELECT 1 FROM pg_policy CROSS JOIN unnest(polroles) AS role WHERE polrelid = pg_class.oid AND polpermissive
    AND polcmd IN ('r', '*') AND CASE role WHEN 0 THEN true ELSE pg_has_role(role, 'USAGE') END
)
""",  # noqa: S608 our own names
    )


def _behind(table: str) -> str:
    """Return the end of a query that finds the sequence of the positions, if the newest position is beyond it."""
    return f"""
FROM (SELECT to_regclass(pg_get_serial_sequence('{table}', 'position')) AS sequence, max(position) AS newest
FROM {table}) AS log WHERE CASE WHEN has_sequence_privilege(sequence, 'USAGE')
THEN newest > COALESCE(pg_sequence_last_value(sequence), 0) ELSE false END
"""  # noqa: S608 our own names


def _fresh(table: str, rows: str) -> str:
    """Return the statement that adds rows of JSON in their order, except known ones.

    Known events are looked up one by one: for a join, the server might read the whole table for a few new rows.
    """
    return f"""
WITH fresh AS (
    INSERT INTO {table} ({_NAMES}) SELECT {", ".join(f"added.{name}" for name in WRITTEN)}
    FROM ROWS FROM (json_to_recordset({rows}) AS ({_COLUMNS})) WITH ORDINALITY AS added ({_NAMES}, place)
    WHERE (SELECT 1 FROM {table} known WHERE known.source = added.source AND known.id = added.id) IS NULL
    ORDER BY added.place RETURNING position
)"""  # noqa: S608 our own names


def _append(table: str, lock: int, channel: str, number: str) -> str:
    return f"""
CREATE OR REPLACE FUNCTION {table}_append(rows json, patience text) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    added bigint;
    newest bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN -1;
    END IF;
    PERFORM set_config('opencqrs.turn', '{lock}', true);
    IF NOT pg_try_advisory_xact_lock({lock}) THEN
        PERFORM set_config('lock_timeout', patience, true), pg_advisory_xact_lock({lock});
    END IF;
    {_fresh(table, "rows")} SELECT count(*), max(position) INTO added, newest FROM fresh;
    IF added > 0 THEN
        PERFORM pg_notify('{channel}', newest || ' ' || {number});
    END IF;
    RETURN added;
END $$
"""  # noqa: S608 our own names


def _in_turn(table: str, lock: int, channel: str) -> str:
    return f"""
CREATE OR REPLACE FUNCTION {table}_in_turn() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock({lock});
    PERFORM pg_notify('{channel}', '');
    RETURN NULL;
END $$
"""


def _trigger(table: str, lock: int) -> str:
    return f"""
CREATE TRIGGER {EVENTS.name}_in_turn BEFORE INSERT ON {table} FOR EACH STATEMENT
WHEN (current_setting('opencqrs.turn', true) IS DISTINCT FROM '{lock}') EXECUTE FUNCTION {table}_in_turn()
"""


def _as_json(rows: Iterable[Row]) -> str:
    once: dict[Row, Row] = {}
    for row in rows:  # a single statement does not see what it adds itself
        once.setdefault(row[:2], row)
    return orjson.dumps([dict(zip(WRITTEN, row, strict=True)) for row in once.values()]).decode()


def _json_of(column: ColumnValues) -> str:
    """Return the values of a column as JSON that preserves numbers exactly."""
    kinds = set(map(type, column))
    if int in kinds and not all(abs(value) <= _LARGEST for value in column if type(value) is int):
        column = [str(value) if type(value) is int else value for value in column]
    if float in kinds:  # also infinity and NaN, which JSON does not have
        column = [repr(value) if type(value) is float else value for value in column]
    return orjson.dumps(column).decode()


def _is_outdated(error: BaseException | None) -> bool:
    """Return whether the driver had prepared a statement whose table has other columns now; it prepares it again."""
    return getattr(getattr(error, "diag", None), "source_function", None) == "RevalidateCachedQuery"


def _threshold(given: str | tuple[str, ...]) -> int | None:
    """Return how psycopg takes its setting ``prepare_threshold`` of a URL."""
    if isinstance(given, str) and given.lower() == "none":
        return None
    if isinstance(given, str) and given.isdecimal():
        return int(given)
    msg = f"{_THRESHOLD} must be none or a whole number, not {given!r}"
    raise ValueError(msg)


def _begins_as_usual(driver: Any) -> bool:
    """Return whether a transaction of psycopg begins with a plain BEGIN, and statements may be prepared."""
    special = (driver.isolation_level, driver.read_only, driver.deferrable)
    return not driver.autocommit and special == (None, None, None) and driver.prepare_threshold is not None


def _preparation(statement: Statement) -> str:
    """Return what prepares a statement; one that moves the progress raises if it finds no row.

    It notifies of the new position if the lock of its partition is held because a caller waits for it.
    """
    text = statement.text.format(*(f"${n}" for n in range(1, statement.text.count("{}") + 1)))
    if text.startswith("UPDATE"):
        counted = f"CAST('{_NOT_FOUND} ' || count(*) AS integer)"  # no constant, which would be cast at once
        moved = f"{text} RETURNING position, {statement.lock} AS lock"
        notified = f"pg_notify('{CHANNEL}', lock || ' ' || position)::text"
        told = f"count(CASE WHEN pg_try_advisory_xact_lock(lock) THEN NULL ELSE {notified} END)"
        text = f"WITH moved AS ({moved}) SELECT CASE WHEN count(*) = 1 THEN 1 ELSE {counted} END, {told} FROM moved"  # noqa: S608
    return f"PREPARE {statement.name} AS {text}"


def _execution(statement: Statement, values: Values) -> str:
    return f"EXECUTE {statement.name}({', '.join(map(_literal, values))})"


def _sent(driver: Any, text: str) -> Any:
    return driver.pgconn.exec_(text.encode(driver.info.encoding))


def _literal(value: str | int) -> str:
    if isinstance(value, int):
        return str(value)
    quoted = value.replace("\\", "\\\\").replace("'", "''")
    return f"E'{quoted}'"  # with a backslash for each one, whatever standard_conforming_strings says


def _forget_with_others(driver: Any, info: dict[Any, Any], names: Sequence[str]) -> None:
    """Forget our prepared statements when psycopg has the server drop all of a connection.

    It does so after DROP and ROLLBACK, if it has prepared statements itself. The next unit prepares ours again.
    """
    manager = driver._prepared  # noqa: SLF001 the only way
    drop_all = manager.clear

    def clear() -> bool:
        dropped: bool = drop_all()
        if dropped:
            for name in names:
                info.pop(name, None)
            del manager.clear
        return dropped

    manager.clear = clear


def _found_nothing(connection: Connection, result: Any) -> bool:
    """Return false if the last statement has found no row; raise any other error of its message."""
    from psycopg.errors import error_from_result  # noqa: PLC0415 of an extra

    driver: Any = connection.connection.dbapi_connection
    error = error_from_result(result, encoding=driver.info.encoding)
    if _NOT_FOUND in str(error):
        return False
    if error.sqlstate in _NO_SAVEPOINT:
        raise ended(connection, error, "RELEASE SAVEPOINT") from error
    raise as_sqlalchemy(connection.dialect, error, "COMMIT", driver) from error


register(PostgresqlDialect())

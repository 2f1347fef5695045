"""MariaDB: hashes distinguish events, a row is the append lock, and transactions begin explicitly."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from datetime import date, datetime, time
from decimal import Decimal
from hashlib import sha256
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any
from uuid import UUID

from sqlalchemy import URL, Connection, Engine, String, Table, create_engine, event, types
from sqlalchemy.dialects.mysql import LONGTEXT
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError
from sqlalchemy.types import TypeEngine
from typing_extensions import override

from opencqrs_py.adapters.sql.bulk.write import BulkWrite, ColumnValues, TableShape
from opencqrs_py.adapters.sql.connections import WRITING, replace_cut_connections, undoing
from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.dialects.dialect import Dialect, Row, chunks, register
from opencqrs_py.adapters.sql.dialects.faults import URL_SETTINGS, Fault
from opencqrs_py.adapters.sql.pool import KeepingPool
from opencqrs_py.adapters.sql.shadows.guards import MariaDbGuard, ShadowGuard
from opencqrs_py.adapters.sql.shadows.urls import ShadowOf
from opencqrs_py.adapters.sql.tables import EVENTS, JOB_RUNS, PROGRESS, SCHEMA, WRITTEN
from opencqrs_py.adapters.sql.transactions import Unit, refuse
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.partition import Partition

if TYPE_CHECKING:
    from opencqrs_py.adapters.sql.shadows.shadows import Shadows

logger = logging.getLogger("opencqrs.store")

# Errors that pass by themselves: out of disk, memory, connections or locks, a Galera node without its cluster (1047),
# shutdown, broken connections, lock waits, deadlocks, a connection that was killed, too many of a user. From 2000 on,
# they are the client's own.
_DUPLICATE, _LOCK_WAIT_TIMEOUT, _DEADLOCK = 1062, 1205, 1213
_NO_DEFAULT = 1364  # of a column that must not be null, and is not named
_AWAY = {1021, 1037, 1038, 1040, 1041, 1047, 1053, 1079, 1152, 1158, 1159, 1160, 1161, 1203, _LOCK_WAIT_TIMEOUT, 1206}
_ENDS_TRANSACTION = {_LOCK_WAIT_TIMEOUT, _DEADLOCK, 1206}  # too many locks; of them a timeout only by an option
_AWAY |= {_DEADLOCK, 1226, 1927, 2002, 2003, 2005, 2006, 2013, 2055, 0}
_DENIES_STEP = {1142, 1227, 1419}  # no privilege, or, with a binary log, triggers for administrators only
_DRIVERS = ("pymysql", "MySQLdb")

_IN_TRANSACTION = 1  # a bit of the status that the server sends with each answer: SERVER_STATUS_IN_TRANS
_READING = "opencqrs_reading"  # execution option: no transaction
# A stricter isolation would still show what was there before the wait for another writer.
_ISOLATION = "TRANSACTION ISOLATION LEVEL READ COMMITTED"
_BEGIN = "START TRANSACTION"
_COMMENTS = re.compile(r"(?:\s+|/\*(?!!).*?\*/|(?:#|--\s)[^\n]*\n)*", re.DOTALL)
_COMMITS = re.compile(
    r"(?:ALTER|ANALYZE|BEGIN|COMMIT|CREATE(?!\s+TEMPORARY)|DROP(?!\s+TEMPORARY)|GRANT|LOCK|OPTIMIZE|RENAME|REPAIR|REVOKE|"
    r"ROLLBACK(?!\s+(?:WORK\s+)?TO)|SET\s+(?:SESSION\s+|@@(?:SESSION\.)?)?AUTOCOMMIT|START|TRUNCATE|UNLOCK)\b",
    re.IGNORECASE,
)

# Tables with transactions, and texts that are compared character by character, spaces at the end too.
_CHARSET = "utf8mb4"
_OPTIONS = {"engine": "InnoDB", "charset": _CHARSET, "collate": "utf8mb4_nopad_bin"}
# Indexes hold texts of a limited length only.
_KEY_LENGTHS = {"table_name": 64, "group_name": 500, "node_id": 100, "job": 500, "run_id": 600}
_LONG_TEXTS = {JOB_RUNS.name: ("position", "details")}  # which hold ids, as many as there are; others up to 64 KiB
_INDEXED_LENGTH = 500  # characters

_BYTES_OF_ID, _BYTES_OF_HASH = 20, 16
_HASH = "UNHEX(SHA2(CONCAT(CHAR_LENGTH(source), ':', source, id), 256))"
# The identity of an event is too long for an index, so a column has its hash, which does not
# show up in ``SELECT *``.
_CREATE_EVENTS = f"""
CREATE TABLE IF NOT EXISTS {{table}} (
    position BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    id MEDIUMTEXT NOT NULL, source MEDIUMTEXT NOT NULL, subject MEDIUMTEXT NOT NULL, type MEDIUMTEXT NOT NULL,
    time MEDIUMTEXT, content_type MEDIUMTEXT NOT NULL, payload LONGTEXT, extensions LONGTEXT, time_us BIGINT,
    identity BINARY(32) AS ({_HASH}) PERSISTENT INVISIBLE,
    UNIQUE KEY {EVENTS.name}_source_id (identity)
) {" ".join(f"{option.upper()}={value}" for option, value in _OPTIONS.items())}
"""
# The beginning of the id precedes its hash, so that ascending ids are added at the end of the index. Hashes alone
# go to a page anywhere in it, and once it is larger than the server's memory (with 128 MiB after a million events) each
# append reads pages and writes them back.
_ORDERED = f"""
ALTER TABLE {{table}} MODIFY identity VARBINARY({_BYTES_OF_ID + _BYTES_OF_HASH})
AS (CONCAT(LEFT(CAST(id AS BINARY), {_BYTES_OF_ID}), LEFT({_HASH}, {_BYTES_OF_HASH}))) PERSISTENT INVISIBLE
"""
_LENGTH_OF_IDENTITY = f"""
SELECT character_octet_length FROM information_schema.columns
WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = '{EVENTS.name}' AND column_name = 'identity'
"""  # noqa: S608 our own names

_NOT_ROLLED_BACK = 1196  # a warning: "Some non-transactional changed tables couldn't be rolled back"
_WITHOUT_TRANSACTIONS = """
SELECT CONCAT(table_schema, '.', table_name), engine FROM information_schema.tables
WHERE engine IN (SELECT engine FROM information_schema.engines WHERE transactions <> 'YES')
AND table_type = 'BASE TABLE' AND table_schema NOT IN ('mysql', 'sys', 'performance_schema', 'information_schema')
ORDER BY table_schema <> DATABASE(), 1 LIMIT 5
"""

_lenient: set[str] = set()  # the databases of which this process has warned

_FIND_TURNS = """
SELECT 1 FROM information_schema.triggers
WHERE event_object_schema = {schema} AND event_object_table = '{table}' AND trigger_name = '{table}_in_turn'
UNION ALL SELECT 1 FROM DUAL WHERE NOT EXISTS (
    SELECT 1 FROM (
        SELECT grantee, privilege_type FROM information_schema.user_privileges
        UNION ALL SELECT grantee, privilege_type FROM information_schema.schema_privileges
        WHERE {schema} LIKE table_schema
        UNION ALL SELECT grantee, privilege_type FROM information_schema.table_privileges
        WHERE table_schema = {schema} AND table_name = '{table}'
    ) AS known WHERE privilege_type = 'TRIGGER' AND grantee = CONCAT('''', REPLACE(CURRENT_USER(), '@', '''@'''), '''')
)
"""

_LOCKED = "@opencqrs_turn"  # a variable of the connection: it holds the append lock already
# Our own appends hold the lock already; the trigger is for other programs. It fires before the first position is given,
# and the row that it locks stays locked until the commit, so that positions become visible in their order.
_TRIGGER = f"""
CREATE OR REPLACE TRIGGER {{table}}_in_turn BEFORE INSERT ON {{table}} FOR EACH ROW
BEGIN
    DECLARE turn INT;
    IF {_LOCKED} IS NULL THEN
        SELECT version INTO turn FROM {{versions}} WHERE table_name = '{EVENTS.name}' FOR UPDATE;
    END IF;
END
"""  # noqa: S608 our own names
# The names of locks, which are the whole server's.
_CHANGES = "CONCAT('opencqrs.', SHA1(COALESCE(%s, DATABASE())))"
_STARTS = "CONCAT('opencqrs.starts.', SHA1(COALESCE(%s, DATABASE())))"

_NAME_IT = f"write it after the host, mariadb://host/database, in {URL_SETTINGS}"
_MOST_ROWS, _MOST_CHARACTERS = 5_000, 1_000_000  # of a statement: servers refuse more than 16 MiB by default
_ESCAPED = "\0\n\r\x1a\"'\\"  # take two bytes in a statement
_ROOM = 10_000  # bytes, for the rest of the statement
_OTHER_VALUE = 20  # characters of a value that is not text, about
_SENT: dict[type, Callable[[Any], Any]] = {datetime: lambda value: value.replace(tzinfo=None), UUID: str}
_TEXTS = slice(0, -1)  # of a row: all but the time in microseconds


class MariaDbDialect(Dialect):
    """MariaDB through PyMySQL; SQLAlchemy speaks to it as to MySQL, too."""

    name = "mariadb"
    aliases = ("mysql",)
    driver = "mysql+pymysql"
    driver_package = "pymysql"
    default_port = 3306
    extra = "mariadb"
    row_settings = ("cursorclass",)
    now_ms = wall_ms = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) DIV 1000"
    quote = "`"
    schema_word = "database"
    create_schema = "CREATE DATABASE IF NOT EXISTS"
    walk_hint = " FORCE INDEX (PRIMARY)"
    unstorable = frozenset({"nan", "inf", "-inf"})
    rounded_kinds = (float, Decimal)
    # Columns cut digits off without an error; dates and others stand beside texts.
    confounded = frozenset({str, int, bool, bytes, date, datetime, time, Decimal})
    equates_letters = True
    create_index = "CREATE INDEX IF NOT EXISTS"  # each statement counts at once, and may be sent again
    index_key = f"{{}}({_INDEXED_LENGTH}), position"
    search_hint = " FORCE INDEX ({})"
    current_schema = "DATABASE()"
    drop_temporary = "DROP TEMPORARY TABLE"
    swaps_in_steps = True
    row_lock = "UPDATE {} SET connection_id = CONNECTION_ID() {}"
    faults = {  # noqa: RUF012 none changes it
        **dict.fromkeys((1044, 1142, 1143, 1227, 1370), Fault.DENIED),  # a database, table, column, privilege, routine
        **dict.fromkeys((1290, 1792, 1836), Fault.READ_ONLY),  # the server, by an option; the transaction; the storage
        **dict.fromkeys((1317, 1969), Fault.CANCELLED),  # by KILL QUERY, or by max_statement_time
        1054: Fault.NO_COLUMN,
        1146: Fault.NO_TABLE,
        _LOCK_WAIT_TIMEOUT: Fault.LOCK_TIMEOUT,
        _DEADLOCK: Fault.DEADLOCK,
    }
    fault_texts = (("Packet sequence number wrong", Fault.ANOTHER_KIND),)
    # ``ordered_reads`` is false: what a statement sees is decided transaction by transaction, while others commit.

    @override
    def driver_url(self, url: URL) -> URL:
        found = super().driver_url(url)
        return found.set(drivername=found.drivername.replace("mariadb+", "mysql+"))

    @override
    def engine(self, url: URL) -> Engine:
        """Return an engine whose transactions begin explicitly.

        By default the driver would begin one with any first statement, and again after each statement that commits
        implicitly; nothing would show that it is another transaction.
        """
        engine = create_engine(url, isolation_level="AUTOCOMMIT", poolclass=KeepingPool)

        @event.listens_for(engine, "connect")
        def _configure(connection: Any, _record: Any) -> None:
            with connection.cursor() as cursor:
                cursor.execute(f"SET SESSION {_ISOLATION}")

        @event.listens_for(engine, "begin")
        def _begin(connection: Connection) -> None:
            if not connection.get_execution_options().get(_READING, False):
                connection.exec_driver_sql(_BEGIN)

        replace_cut_connections(engine)
        return engine

    @override
    def connect(self, driver: Any, args: Sequence[Any], settings: dict[str, Any]) -> Any:
        """Open a connection; PyMySQL's only if the server lets the user in within a time.

        By default that driver waits forever for a server that accepts a connection but sends nothing. A limit for all
        reads would end long statements, too, so it holds until the connection is open.
        """
        if driver.driver != "pymysql":
            return super().connect(driver, args, settings)
        limit = settings.get("read_timeout")
        connection = driver.connect(*args, **{**settings, "read_timeout": limit or self.connect_seconds})
        connection._read_timeout = limit  # noqa: SLF001 the only way
        return connection

    @override
    def adopt(self, engine: Engine) -> None:
        if not event.contains(engine, "begin", _begin_on_engine_of_others):
            event.listen(engine, "begin", _begin_on_engine_of_others)

    @override
    def reading_engine(self, engine: Engine, *, borrowed: bool) -> Engine:
        return (
            super().reading_engine(engine, borrowed=True) if borrowed else engine.execution_options(**{_READING: True})
        )

    @override
    def switch(self, driver: Any, *, autocommit: bool) -> None:
        """Do nothing: transactions begin explicitly."""

    @override
    def writing_engine(self, engine: Engine, *, borrowed: bool) -> Engine:
        return engine.execution_options(isolation_level="AUTOCOMMIT") if borrowed else engine

    @override
    def check_server(self, connection: Connection, label: str) -> None:
        if not getattr(connection.dialect, "is_mariadb", False):
            what = "the server is MySQL, which is not supported; MariaDB is"
            raise EventStoreError("OCQ-302", what, label, "use sqlite:///…, postgresql://… or mariadb://…")
        charset = getattr(connection.connection.dbapi_connection, "charset", _CHARSET)  # of PyMySQL
        if charset != _CHARSET:  # the server puts a question mark for each character that it lacks
            what = f"the connection speaks {charset}, in which characters are lost"
            raise EventStoreError("OCQ-304", what, label, f"remove charset from the URL, or write charset={_CHARSET}")

    @override
    def shadow_guard(self, database: Database, shadow: ShadowOf) -> ShadowGuard:
        return MariaDbGuard(database)

    @override
    def shadows(self, database: Database) -> Shadows:
        from opencqrs_py.adapters.sql.shadows.mariadb import MariaDbShadows  # noqa: PLC0415 only for rebuilds

        return MariaDbShadows(database)

    @override
    def hash_of(self, column: str, level: int | None) -> str:
        levels = f"SUBSTRING(SUBSTRING_INDEX({column}, '/', {(level or 0) + 1}), LOCATE('/', {column}))"
        cut = column if level is None else f"CASE WHEN LOCATE('/', {column}) = 0 THEN '' ELSE {levels} END"
        return f"CRC32({cut})"

    @override
    def is_outage(self, error: BaseException | None, *, cut: bool) -> bool | None:
        number = self.code_of(error)
        return None if number is None else cut or number in _AWAY

    @override
    def code_of(self, error: BaseException | None) -> int | None:
        """Return the number of MariaDB's error, 0 when the connection was closed; ``None`` for errors of others."""
        if error is None or not type(error).__module__.startswith(_DRIVERS) or not error.args:
            return None
        return error.args[0] if isinstance(error.args[0], int) else None

    @override
    def adapt(self, table: Table) -> None:
        keys = {column.name for index in table.indexes for column in index.columns} | {
            *table.primary_key.columns.keys()
        }
        for column in keys & _KEY_LENGTHS.keys():
            table.c[column].type = String(_KEY_LENGTHS[column])
        for column in _LONG_TEXTS.get(table.name, ()):
            table.c[column].type = LONGTEXT()
        table.kwargs.update(
            {f"{name}_{option}": v for name in (self.name, *self.aliases) for option, v in _OPTIONS.items()}
        )

    @override
    def create(self, database: Database, connection: Connection, table: Table) -> None:
        if table.name != EVENTS.name:
            super().create(database, connection, table)
            return
        connection.exec_driver_sql(_CREATE_EVENTS.format(table=database.prefix + EVENTS.name))

    @override
    def own_progress(self, database: Database) -> str:
        """Name the database: ``USE`` may lead to another one that has a table of the name."""
        ((name,),) = database.fetch("SELECT HEX(DATABASE())")
        return f"AND HEX(DATABASE()) = '{name}'"

    @override
    def turn_statements(self, database: Database) -> tuple[str, ...]:
        prefix = database.prefix
        return (_TRIGGER.format(table=prefix + EVENTS.name, versions=prefix + SCHEMA.name),)

    @override
    def find_turns(self, database: Database) -> str:
        """Find the trigger, or that the user has no privilege of its own to create it: others do not see triggers.

        A dump can leave triggers out, and where a copy replaces the table they stay with the old one.
        """
        schema = "DATABASE()" if database.schema is None else f"'{database.schema}'"
        return _FIND_TURNS.format(table=EVENTS.name, schema=schema)

    @override
    def order_statements(self, database: Database, connection: Connection) -> tuple[str, ...]:
        length: int = connection.exec_driver_sql(_LENGTH_OF_IDENTITY, (database.schema,)).scalar_one()
        is_ordered = length == _BYTES_OF_ID + _BYTES_OF_HASH
        return () if is_ordered else (_ORDERED.format(table=database.prefix + EVENTS.name),)

    @override
    def step_fix(self, error: BaseException | None) -> str:
        if self.code_of(error) not in _DENIES_STEP:
            return ""
        return (
            "have an administrator run GRANT ALL ON the database, and with a binary log "
            "SET GLOBAL log_bin_trust_function_creators = 1"
        )

    @override
    def find_event(self, table: str, event_id: str, source: str) -> tuple[str, Row]:
        """Return it for the index of identities, each of which begins with an id."""
        found = f"SELECT position, source FROM {table} WHERE id = %s"  # noqa: S608 our own names
        if source:
            return f"{found} AND identity = %s", (event_id, identity_of(source, event_id))
        first = event_id.encode()[:_BYTES_OF_ID]
        last = first + b"\xff" * (_BYTES_OF_ID + _BYTES_OF_HASH - len(first))
        return f"{found} AND identity BETWEEN %s AND %s ORDER BY source", (event_id, first, last)

    @override
    def find_stored(self, table: str, columns: Sequence[str], keys: Sequence[tuple[str, str]]) -> tuple[str, Row]:
        found = f"SELECT {', '.join(columns)} FROM {table}"  # noqa: S608 our own names
        identities = tuple(identity_of(source, event_id) for source, event_id in keys)
        return f"{found} WHERE identity IN ({', '.join(['%s'] * len(identities))})", identities

    @override
    @contextmanager
    def append_lock(self, database: Database) -> Iterator[Connection]:
        with database.writing() as connection:
            try:
                self._lock_version(database, connection, EVENTS, self.patience)
            except DBAPIError as error:
                if self.fault_of(error) is not Fault.LOCK_TIMEOUT:
                    raise
                raise self.too_long(database) from None
            connection.exec_driver_sql(f"SET {_LOCKED} = 1")
            with undoing(connection, f"SET {_LOCKED} = NULL"):
                yield connection

    @override
    def change_lock(self, database: Database) -> AbstractContextManager[Connection]:
        return self._named_lock(database, _CHANGES)

    @override
    def start_lock(self, database: Database) -> AbstractContextManager[object]:
        return self._named_lock(database, _STARTS)

    @contextmanager
    def _named_lock(self, database: Database, name: str) -> Iterator[Connection]:
        """Hold a lock of the connection: changes of tables end a transaction here."""
        with database.reading() as connection:
            values = (database.schema, self.patience)
            locked = connection.exec_driver_sql(f"SELECT GET_LOCK({name}, %s)", values).scalar()
            if locked is None and database.schema is None:  # nothing to lock: no database is selected
                raise EventStoreError("OCQ-301", "the database URL names no database", database.label, _NAME_IT)
            if locked != 1:
                raise self.too_long(database)
            try:
                yield connection
            finally:
                with suppress(SQLAlchemyError):  # the connection is gone, and the lock with it; nothing is to commit
                    connection.exec_driver_sql(f"DO RELEASE_LOCK({name})", (database.schema,))

    @override
    def insert(self, database: Database, connection: Connection, rows: list[Row]) -> int:
        """Look for those that are known first: an insert that fails would use up positions."""
        found: dict[bytes, Row] = {}
        for row in rows:
            found.setdefault(identity_of(row[1], row[0]), row)
        table = database.prefix + EVENTS.name
        known_ones = f"SELECT identity FROM {table} WHERE identity IN ({', '.join(['%s'] * len(found))})"  # noqa: S608
        known = frozenset(connection.exec_driver_sql(known_ones, tuple(found)).scalars())
        new = [row for identity, row in found.items() if identity not in known]
        for few in chunks(new, _MOST_ROWS, _MOST_CHARACTERS, _length_of):
            *others, last = few
            if _length_of(last) <= _MOST_CHARACTERS:
                _insert_new(connection, table, few)
                continue
            _check_size(connection, last)
            _insert_new(connection, table, others)
            _insert_new(connection, table, [last])  # alone it fits, as was seen; with the others it need not
        return len(new)

    @override
    def watch_statements(self, unit: Unit, driver: Any, undone: ExitStack) -> None:
        """Watch what is sent, as some statements commit by themselves, and some errors roll back.

        In a guarded unit they are refused. Elsewhere, as where tables are created at the start, another transaction is
        begun after them.
        """
        if self.in_transaction(driver) is None:
            return
        mode, label = getattr(unit.connection.dialect, "_sql_mode", None), unit.database.label
        if mode is not None and "STRICT_" not in mode and label not in _lenient:
            _lenient.add(label)
            text = "%s cuts what does not fit into a column, without an error: add STRICT_TRANS_TABLES to sql_mode"
            logger.warning(text, label)
        send, guard = driver.query, unit.database.shadow_guard

        def query(statement: str | bytes, *arguments: Any) -> Any:
            text = statement if isinstance(statement, str) else bytes(statement[:200]).decode(errors="replace")
            if guard is not None:
                whole = statement if isinstance(statement, str) else bytes(statement).decode(errors="replace")
                guard.see(whole, of_handler=unit.guarded)
            ends = commits_by_itself(text)
            if ends and unit.guarded:
                what = " ".join(_below_comments(text).split()[:2])
                refuse(f"'{what}' commits implicitly on MariaDB: run it in @on_start")
            try:
                answer = send(statement, *arguments)
            except Exception as error:
                unit.erred = True
                if self.code_of(error) in _ENDS_TRANSACTION:
                    unit.lost = self._begun_again(driver, send) or unit.lost
                raise
            if ends:
                send(_BEGIN)
            return answer

        driver.query = query
        undone.callback(delattr, driver, "query")

    def _begun_again(self, driver: Any, send: Callable[[str], object]) -> bool:
        """Begin a transaction if the server has ended that of a unit: by itself each further statement would commit."""
        with suppress(Exception):  # the connection is gone, too
            send("DO 0")  # whose answer has the status
            if not self.in_transaction(driver):
                send(_BEGIN)
                return True
        return False

    @override
    def upsert(self, connection: Connection, write: BulkWrite) -> None:
        """Insert the rows by one statement, or by as few as the server takes."""
        marks = f"({', '.join(['%s'] * len(write.columns))})"
        rows = zip(*self.sent(write).columns.values(), strict=True)
        for few in chunks(rows, _MOST_ROWS, _MOST_CHARACTERS, _length_of_values):
            text = f"{_into(write)} VALUES {', '.join([marks] * len(few))} {_on_duplicate(write)}"
            connection.exec_driver_sql(text, tuple(value for row in few for value in row))

    @override
    def sent(self, write: BulkWrite) -> BulkWrite:
        return write.sent_as(_SENT)

    @override
    def upsert_selected(self, connection: Connection, write: BulkWrite, select: str, values: tuple[Any, ...]) -> None:
        connection.exec_driver_sql(f"{_into(write)} {select} {_on_duplicate(write)}", values)

    @override
    def defined_stage(self, name: str, columns: str, of: str, *, shared: bool) -> str:
        temporary = super().defined_stage(name, columns, of, shared=False)
        return temporary.replace("TEMPORARY TABLE", "TABLE IF NOT EXISTS", 1) if shared else temporary

    @override
    def stage_column(self, column: str, kind: str, summed: TypeEngine[Any] | None) -> str:
        if summed is None:
            return column
        return f"CAST(NULL AS {'DOUBLE' if isinstance(summed, types.Float) else 'DECIMAL(65, 30)'})"

    @override
    def in_python_order(self, column: str) -> str:
        return f"BINARY {column}"

    @override
    def sees_stages(self, connection: Connection) -> bool:
        return True  # transactions of handlers are READ COMMITTED here, whatever the server's default is

    @override
    def drop_stage(self, connection: Connection, table: str) -> None:
        connection.exec_driver_sql(f"SET STATEMENT lock_wait_timeout = 1 FOR DROP TABLE IF EXISTS {table}")

    @override
    def text_of_number(self, number: float | Decimal) -> str:
        found = super().text_of_number(number)
        return found if isinstance(number, Decimal) else found.removesuffix(".0")

    @override
    def column_without_value(self, error: BaseException | None, table: str) -> str | None:
        if error is None or self.code_of(error) != _NO_DEFAULT:
            return None
        return str(error.args[1]).partition("'")[2].partition("'")[0]  # Field 'title' doesn't have a default value

    @override
    def upsert_obstacle(
        self, shape: TableShape, columns: Mapping[str, ColumnValues], keys: Sequence[str], add: Sequence[str]
    ) -> str:
        """Return the constraints by which the server would change the row of another key: it checks all unique ones."""
        for others in (*shape.unique, *shape.limited):
            if others != frozenset(keys) and not any(_never_collides(shape, columns, name) for name in others):
                names = ", ".join(name for name in shape.columns if name in others)
                return f"MariaDB would also change rows with the same {names}, which must be unique, too"
        return ""

    @override
    def rounds(self, of: TypeEngine[Any]) -> bool:
        return isinstance(of, types.Integer)

    @override
    def kept_number(self, number: float | Decimal) -> Any:
        return None if isfinite(number) and number != int(number) else number

    @override
    def in_transaction(self, driver: Any) -> bool | None:
        status = getattr(driver, "server_status", None)
        return None if status is None else bool(status & _IN_TRANSACTION)

    @override
    def has_failed(self, connection: Connection, *, erred: bool) -> bool:
        """Ask the server, if a statement has failed: there may be no transaction."""
        return erred and not connection.exec_driver_sql("SELECT @@in_transaction").scalar()

    @override
    def left_in_place(self, cursor: Any) -> str:
        """Name the tables without transactions, as of MyISAM, if the server says that a roll back has changed not all.

        It says so of temporary tables, too, with which nothing is wrong: a connection that has made one is not asked.
        """
        if not getattr(cursor, "warning_count", 0):  # of PyMySQL
            return ""
        if _NOT_ROLLED_BACK not in [number for _, number, _ in _rows(cursor, "SHOW WARNINGS")]:
            return ""
        if _rows(cursor, "SHOW SESSION STATUS LIKE 'Com_create_temporary_table'")[0][1] != "0":
            return ""
        names = ", ".join(map(" ".join, _rows(cursor, _WITHOUT_TRANSACTIONS)))
        return (
            "what it wrote to tables without transactions stays there, and each further attempt writes it again: have "
            f"them changed by ALTER TABLE … ENGINE=InnoDB ({names or 'the server shows none of them'}), and put their "
            "rows right, or reset the group"
        )

    @override
    def held(self, columns: str, table: str, where: str, order: str, seconds: float) -> str:
        """Find the rows by their key: a walk through the table would wait for other rows, too."""
        found = f"SELECT {columns} FROM {table}{self.walk_hint} WHERE {where}"  # noqa: S608 our own names
        return f"{found} ORDER BY {order} FOR UPDATE WAIT {ceil(seconds)}"

    @override
    def insert_unless_known(self, connection: Connection, insert: str, key: str, values: Row) -> bool:
        """Use a plain insert: a duplicate undoes only the statement, and ``IGNORE`` would hide other errors."""
        try:
            connection.exec_driver_sql(insert, values)
        except IntegrityError as error:
            if self.code_of(error.orig) != _DUPLICATE:
                raise
            return False
        return True

    @override
    def lock_claim(
        self, database: Database, connection: Connection, group: str, partitions: Sequence[Partition]
    ) -> None:
        self._lock_version(database, connection, PROGRESS, self.take_over_seconds)
        self.lock_rows(database, connection, group, partitions, f" WAIT {ceil(self.take_over_seconds)}")

    @override
    def holder_of(self, database: Database, connection: Connection, group: str, partition: Partition) -> int | None:
        """Read what an open transaction has written into the row, and not committed: the number of its connection."""
        connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED")
        where = f"{database.prefix}{PROGRESS.name} WHERE group_name = %s AND modulus = %s AND residue = %s"
        values = (group, partition.modulus, partition.residue)
        number: int | None = connection.exec_driver_sql(f"SELECT connection_id FROM {where}", values).scalar()  # noqa: S608
        return number

    @override
    def bound_transaction(self, connection: Connection, seconds: float, *, borrowed: bool) -> None:
        if not borrowed:  # there is no such setting for one transaction
            waits = f"innodb_lock_wait_timeout = {ceil(seconds)}"
            connection.exec_driver_sql(f"SET SESSION {waits}, idle_transaction_timeout = {ceil(self.standing_seconds)}")

    @override
    @contextmanager
    def ending_what_stands(self, connection: Connection, *, borrowed: bool) -> Iterator[None]:
        if borrowed:  # its own setting would not be known afterwards
            yield
            return
        connection.exec_driver_sql(f"SET SESSION idle_transaction_timeout = {ceil(self.standing_seconds)}")
        with undoing(connection, "SET SESSION idle_transaction_timeout = DEFAULT"):
            yield

    @override
    def session_of(self, driver: Any) -> int | None:
        number: int = driver.thread_id()
        return number

    @override
    def end_session(self, connection: Connection, holder: int) -> None:
        connection.exec_driver_sql("KILL CONNECTION %s", (holder,))

    def _lock_version(self, database: Database, connection: Connection, table: Table, seconds: float) -> None:
        """Wait until no other transaction holds the row of a table in the table of versions, and hold it."""
        where = f"WHERE table_name = %s FOR UPDATE WAIT {ceil(seconds)}"
        text = f"SELECT version FROM {database.prefix}{SCHEMA.name} {where}"  # noqa: S608 our own names
        if connection.exec_driver_sql(text, (table.name,)).first() is None:  # nothing would be locked
            what = f"the table {SCHEMA.name} has lost its row of {table.name}, which writers lock"
            raise EventStoreError("OCQ-304", what, database.label, "any command that reads that table restores it")


def identity_of(source: str, event_id: str) -> bytes:
    """Return the identity of an event, as in the column ``identity``."""
    hashed = sha256(f"{len(source)}:{source}{event_id}".encode()).digest()
    return event_id.encode()[:_BYTES_OF_ID] + hashed[:_BYTES_OF_HASH]


def _rows(cursor: Any, statement: str) -> list[Row]:
    """Return the rows of a statement, whatever row factory a handler has set."""
    cursor.execute(statement)
    return [tuple(row.values()) if isinstance(row, dict) else row for row in cursor.fetchall()]


def commits_by_itself(statement: str) -> bool:
    """Return whether a statement ends the transaction that it runs in."""
    return _COMMITS.match(_below_comments(statement)) is not None


def _below_comments(statement: str) -> str:
    start = _COMMENTS.match(statement)
    return statement[start.end() :] if start else statement


def _begin_on_engine_of_others(connection: Connection) -> None:
    """Begin a transaction of ours on an engine of the user; others begin as the user likes."""
    if connection.info.pop(WRITING, False):
        connection.exec_driver_sql(f"SET {_ISOLATION}")  # of the next transaction only
        connection.exec_driver_sql(_BEGIN)


def _insert_new(connection: Connection, table: str, rows: list[Row]) -> None:
    if rows:
        marks = ", ".join([f"({', '.join(['%s'] * len(WRITTEN))})"] * len(rows))
        text = f"INSERT INTO {table} ({', '.join(WRITTEN)}) VALUES {marks}"  # noqa: S608 our own names
        connection.exec_driver_sql(text, tuple(value for row in rows for value in row))


def _check_size(connection: Connection, row: Row) -> None:
    """Refuse what the server would cut the connection for, which would look like an outage."""
    texts = [text for text in row[_TEXTS] if text is not None]
    size = sum(len(text.encode()) + sum(map(text.count, _ESCAPED)) for text in texts) + _ROOM
    most: int = connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one()
    if size > most:
        what = f"the event is too large: it takes a statement of {size:,} bytes, and the server takes {most:,}"
        fix = "nothing was added; have an administrator increase max_allowed_packet"
        raise EventStoreError("OCQ-306", what, f"event {row[0]!r} of {row[1]!r}", fix)


def _into(write: BulkWrite) -> str:
    """Return the beginning of the statement, which changes no value, whatever the server's mode is.

    Otherwise it would cut texts and numbers that do not fit, and make a 0 in a column that counts on the next number.
    """
    counts_on = any(write.shape.columns.get(name, {}).get("autoincrement") is True for name in write.columns)
    modes = ",STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO" if counts_on else ",STRICT_ALL_TABLES"
    exact = f"SET STATEMENT sql_mode = CONCAT(@@sql_mode, '{modes}') FOR"
    return f"{exact} INSERT INTO {write.table} ({write.listed(list(write.columns))})"


def _on_duplicate(write: BulkWrite) -> str:
    if not write.keys:
        return ""
    return f"ON DUPLICATE KEY UPDATE {', '.join(_change(write, name) for name in write.others or write.keys)}"


def _change(write: BulkWrite, name: str) -> str:
    column = write.quoted(name)
    if name not in write.add:
        return f"{column} = VALUES({column})"
    return f"{column} = COALESCE({column}, 0) + COALESCE(VALUES({column}), 0)"


def _never_collides(shape: TableShape, columns: Mapping[str, ColumnValues], name: str) -> bool:
    """Return whether a column gets a unique value in each new row: an automatic number, or null."""
    known = shape.columns[name]
    has_none = known["nullable"] and known.get("default") in (None, "NULL")
    return name not in columns and bool(known.get("autoincrement") is True or has_none)


def _length_of_values(row: Row) -> int:
    return sum(len(value) if isinstance(value, str | bytes) else _OTHER_VALUE for value in row)


def _length_of(row: Row) -> int:
    return sum(map(len, filter(None, row[_TEXTS])))


register(MariaDbDialect())

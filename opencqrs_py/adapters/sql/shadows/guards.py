"""Guards of shadows: what handlers write in a rebuild stays in the shadow, and the tables written to are recorded.

Each transaction is checked before its commit; one that writes to other tables is refused and rolled back.
"""

from __future__ import annotations

import re
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, Engine, event

from opencqrs_py.errors import RebuildError, RebuildWriteError
from opencqrs_py.model.naming import listed

if TYPE_CHECKING:
    from opencqrs_py.adapters.sql.database import Database
    from opencqrs_py.adapters.sql.shadows.urls import ShadowOf

OURS = "opencqrs_"
"""How the names of our own tables begin."""

WRITTEN = "opencqrs_written"
"""The table of a shadow with the names of the tables that handlers have written to."""

SEEDED = "opencqrs_seeded"
"""The table of a shadow with the names of the tables in which ``@on_start`` has put rows."""

WRITTEN_COLUMNS = "(name VARCHAR(255) PRIMARY KEY)"
"""The columns of both."""

LIVE = "opencqrs_live"
"""The name of the live file in the connections to the shadow of an SQLite database."""

_FIX = (
    "remove the schema or database from the statement; name tables that migrations make in rebuild.tables, "
    "and move what is not the group's own read model to its own group"
)


_FIX_OF_POOLER = "rebuild through a direct connection, as a pooler such as PgBouncer may not pass on that parameter"


def is_ours(name: str) -> bool:
    """Return whether a table is one of this package's."""
    return name.startswith(OURS)


class ShadowGuard(ABC):
    """Watches what is written through the connections of a shadow. Safe for several threads."""

    def __init__(self) -> None:
        self._stored: frozenset[str] = frozenset()

    def enclose(self, engine: Engine) -> None:  # noqa: B027 one guard needs it
        """Watch the connections of an engine. Called once, before the first connection."""

    def see(self, _statement: str, *, of_handler: bool) -> None:  # noqa: ARG002 one guard needs it
        """Check a statement before it is sent, if the database does not show what it writes.

        Args:
            _statement: Its text.
            of_handler: Whether a handler sends it, and not ``@on_start``, which may make tables of other groups, too.

        Raises:
            RebuildWriteError: OCQ-634, if it may write outside.
        """
        return

    def check(self, connection: Connection, *, of_handler: bool) -> None:
        """Check what a transaction has written, and record the tables if it is a handler's.

        Raises:
            RebuildWriteError: OCQ-634, if some of it is outside.
        """
        new = self._written(connection) - self._stored
        if not new or not of_handler:
            return
        self._stored = frozenset(connection.exec_driver_sql(f"SELECT name FROM {WRITTEN}").scalars())  # noqa: S608
        for name in sorted(new - self._stored):
            self._store(connection, name)

    @abstractmethod
    def _written(self, connection: Connection) -> set[str]:
        """Return the tables that the transaction has written to, perhaps with those of others before it."""

    @abstractmethod
    def _store(self, connection: Connection, name: str) -> None:
        """Record a table; other transactions may do the same."""


def outside(names: Iterable[str]) -> RebuildWriteError:
    """Return the error for a handler that has written to tables outside of the shadow."""
    what = f"in a rebuild a handler writes to {listed(sorted(set(names)))}, which is outside of the new tables"
    return RebuildWriteError("OCQ-634", what, fix=_FIX)


# By its locks: whatever writes to a table holds one until the end of the transaction, also a trigger or a function.
# A table that it has dropped no longer has a name in this transaction.
_LOCKED = """
SELECT DISTINCT found.nspname = current_schema(), found.nspname, held.relname, locks.relation
FROM pg_locks locks LEFT JOIN pg_class held ON held.oid = locks.relation
LEFT JOIN pg_namespace found ON found.oid = held.relnamespace
WHERE locks.pid = pg_backend_pid() AND locks.locktype = 'relation' AND locks.granted
    AND locks.database = (SELECT oid FROM pg_database WHERE datname = current_database())
    AND locks.mode NOT IN ('AccessShareLock', 'RowShareLock')
    AND (held.oid IS NULL OR held.relkind NOT IN ('i', 'I', 't'))
    AND coalesce(found.nspname, '') NOT LIKE 'pg\\_%%'
"""
_DROPPED = """
SELECT nspname || '.' || relname FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE pg_class.oid = ANY(%s) AND nspname <> %s AND nspname NOT LIKE 'pg\\_%%'
"""


class PostgresqlGuard(ShadowGuard):
    """Checks the locks of the transaction.

    Args:
        database: The shadow.
        live: Schema of the live tables.
    """

    def __init__(self, database: Database, live: str) -> None:
        super().__init__()
        self._database = database
        self._live = live
        self._is_led = False  # to the schema of the shadow, which was seen once

    def _written(self, connection: Connection) -> set[str]:
        if not self._is_led:
            self._require_led(connection)
        rows = connection.exec_driver_sql(_LOCKED).all()
        others = [f"{schema}.{name}" for inside, schema, name, _ in rows if schema is not None and not inside]
        gone = [number for _, schema, _, number in rows if schema is None]
        if gone:
            here: str = connection.exec_driver_sql("SELECT current_schema()").scalar_one()
            with self._database.reading() as seeing:  # as it was before this transaction
                others += seeing.exec_driver_sql(_DROPPED, (gone, here)).scalars().all()
        if others:
            raise outside(others)
        return {name for inside, _, name, _ in rows if inside and not is_ours(name)}

    def _require_led(self, connection: Connection) -> None:
        if connection.exec_driver_sql("SELECT current_schema()").scalar() == self._live:
            what = f"the connections of the rebuild lead to the live schema {self._live}: their options are ignored"
            raise RebuildError("OCQ-634", what, fix=_FIX_OF_POOLER)
        self._is_led = True

    def _store(self, connection: Connection, name: str) -> None:
        connection.exec_driver_sql(f"INSERT INTO {WRITTEN} VALUES (%s) ON CONFLICT DO NOTHING", (name,))  # noqa: S608 ours


_READS = re.compile(
    r"\s*(?:SELECT|SHOW|DESCRIBE|DESC|EXPLAIN|WITH\b(?!.*\b(?:INSERT|UPDATE|DELETE|REPLACE)\b))\b",
    re.IGNORECASE | re.DOTALL,
)
# Elsewhere, or in a compound statement, only a parser could find out which tables it writes to.
_HIDDEN = re.compile(
    r"\s*(?:\w+\s*:\s*)?"
    r"(PREPARE|EXECUTE|USE|LOAD|HANDLER|BEGIN\s+NOT\s+ATOMIC|IF|CASE|LOOP|WHILE|REPEAT|FOR)\b",
    re.IGNORECASE,
)
_SIMPLE = re.compile(r"\s*(?:SAVEPOINT|RELEASE|ROLLBACK|COMMIT|START|BEGIN|SET)\b", re.IGNORECASE)
_SETTING = re.compile(
    r"\s*SET\s+STATEMENT\b(?:'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|[^'\"])*?\bFOR\b", re.IGNORECASE
)
_LITERALS = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|--\s[^\n]*|#[^\n]*", re.DOTALL)
_TARGET = re.compile(
    r"\s*(?:(?:INSERT|REPLACE)\s+(?:LOW_PRIORITY\s+|DELAYED\s+|HIGH_PRIORITY\s+|IGNORE\s+)*(?:INTO\s+)?"
    r"|UPDATE\s+(?:LOW_PRIORITY\s+|IGNORE\s+)*|DELETE\s+(?:LOW_PRIORITY\s+|QUICK\s+|IGNORE\s+)*FROM\s+|"
    r"TRUNCATE\s+(?:TABLE\s+)?)(?:`((?:[^`]|``)+)`|(\w+))(?=\s*(?:\(|;|\Z|(?:AS\s+)?(?:`?\w+`?\s+)?"
    r"(?:SET|SELECT|WHERE|VALUES?|ORDER|LIMIT|RETURNING|PARTITION|WITH)\b))",  # else there are several
    re.IGNORECASE,
)
_COMMENTS = re.compile(
    r"('(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.|\"\")*\"|`(?:[^`]|``)*`)"  # quoted text, which is kept
    r"|/\*M?!\d*|/\*(?!M?!).*?\*/|--\s[^\n]*|#[^\n]*",  # of a comment that is executed only its beginning
    re.DOTALL,
)
_AFTER_TARGETS = re.compile(r"\b(?:SET|WHERE|SELECT|VALUES?)\b", re.IGNORECASE)
_TARGET_WITH_MORE = re.compile(r"[\w`]+")
# What a statement may write to is before that word; after it, a name before a dot may be a table's.
_TARGETS = re.compile(
    r"\s*(?:UPDATE\b.*?(?<!`)\bSET|DELETE\b.*?(?<!`)\bWHERE|(?:INSERT|REPLACE)\b.*?(?<!`)\b(?:SET|SELECT|VALUES?))"
    r"\b(?!`)",
    re.IGNORECASE | re.DOTALL,
)
_BEFORE_NO_COLUMN = re.compile(r"\b(?:FROM|JOIN|FOR|(?:NEXTVAL|SETVAL|LASTVAL)\s*\()\s*\Z", re.IGNORECASE)
_LONGEST_BEFORE = 40  # characters of that, with blanks
_CALLED = re.compile(r"\s*(?:`(?:[^`]|``)+`|[\w$]+)\s*\(")


def _uncommented(statement: str) -> str:
    """Return a statement of MariaDB without comments; what is executed of them stays."""
    if not any(sign in statement for sign in ("/*", "--", "#")):
        return statement
    return _COMMENTS.sub(lambda found: found[1] or " ", statement)


def _targets_of(statement: str) -> str:
    """Return the part of a statement, without literals, in which its targets are; empty if it may not be all of it."""
    found = _TARGETS.match(statement)
    if found is None or found[0].count("(") != found[0].count(")") or ";" in statement.rstrip("; \n\t"):
        return ""
    return found[0]


def _is_column(statement: str, found: re.Match[str], targets: str) -> bool:
    """Return whether a name before a dot is that of a target or its alias, so that a column follows."""
    alone = rf"(?<![\w`.])`?{re.escape(found[1])}`?(?![\w`]|\s*\.)"
    before = statement[max(0, found.start() - _LONGEST_BEFORE) : found.start()]
    return (
        found.start() >= len(targets)
        and re.search(alone, targets, re.IGNORECASE) is not None
        and not _CALLED.match(statement, found.end())
        and not _BEFORE_NO_COLUMN.search(before)
    )


class MariaDbGuard(ShadowGuard):
    """Checks the text of each statement, since the server does not show what a transaction has written.

    Another database is reached by its name before a dot only. So a statement that writes, and names one, is refused,
    even if it only reads there, unless that is the name of a table that it writes to, before a column. So is a
    statement that reads and calls a routine of another database, since the routine may write; and so are compound
    statements, and those whose text is elsewhere.

    Args:
        database: The shadow.
    """

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self._others: re.Pattern[str] | None = None
        self._seen: set[str] = set()

    def see(self, statement: str, *, of_handler: bool) -> None:
        """Check a statement before it is sent."""
        statement = _SETTING.sub("", _uncommented(statement), count=1)
        if hidden := _HIDDEN.match(statement):
            raise outside([f"what '{hidden[1]}' hides"])
        if _SIMPLE.match(statement) or _READS.match(statement):
            self._require_own_routines(statement)
            return
        others, bare = self._names_of_others(), statement
        if others.search(statement):
            bare = _LITERALS.sub("''", statement)
            targets = _targets_of(bare)
            for found in others.finditer(bare):
                if not _is_column(bare, found, targets):
                    raise outside([f"database {found[1]}"])
        if not of_handler:
            return
        target = _TARGET.match(bare)
        if target is not None:
            self._seen.add((target[1] or target[2]).replace("``", "`"))
        else:
            targets = _AFTER_TARGETS.split(_LITERALS.sub("''", statement), 1)[0]
            self._seen.update(word.strip("`") for word in _TARGET_WITH_MORE.findall(targets))

    def _written(self, connection: Connection) -> set[str]:
        found, self._seen = self._seen, set()
        if not found - self._stored:
            return set()
        tables = connection.exec_driver_sql(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()"
        )
        names = {name for name in tables.scalars() if not is_ours(name)}
        lower = {each.lower() for each in found}
        self._seen = found & names  # until they are stored
        return {name for name in names if name in found or name.lower() in lower}

    def _store(self, connection: Connection, name: str) -> None:
        connection.exec_driver_sql(f"INSERT IGNORE INTO {WRITTEN} VALUES (%s)", (name,))  # noqa: S608 ours

    def _require_own_routines(self, statement: str) -> None:
        """Refuse a statement that only reads if it calls a routine of another database, which may write there."""
        if "(" not in statement or "." not in statement:
            return
        bare = _LITERALS.sub("''", statement)
        for found in self._names_of_others().finditer(bare):
            if _CALLED.match(bare, found.end()):
                raise outside([f"database {found[1]}, of which it calls a routine"])

    def _names_of_others(self) -> re.Pattern[str]:
        if self._others is None:
            self._others = self._named()
        return self._others

    def _named(self) -> re.Pattern[str]:
        with self._database.reading() as connection:
            here = connection.exec_driver_sql("SELECT DATABASE()").scalar_one()
            names = [name for name in connection.exec_driver_sql("SHOW DATABASES").scalars() if name != here]
        choice = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
        return re.compile(rf"(?<![\w`.])`?({choice})`?\s*\.", re.IGNORECASE)


_WRITES = {sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE}


class SqliteGuard(ShadowGuard):
    """Checks each statement as SQLite prepares it, including its triggers.

    Args:
        shadow: The description of the shadow.
    """

    def __init__(self, shadow: ShadowOf) -> None:
        super().__init__()
        self._shadow = shadow
        self._seen: set[str] = set()
        self._refused: set[str] = set()

    def enclose(self, engine: Engine) -> None:
        """Show the shared tables in each connection, and watch it."""

        @event.listens_for(engine, "connect")
        def _configure(connection: Any, _record: Any) -> None:
            if self._shadow.shared:
                uri = f"{self._shadow.live.replace('%', '%25').replace('?', '%3f').replace('#', '%23')}"
                connection.execute(f"ATTACH DATABASE ? AS {LIVE}", (f"file:{uri}?mode=ro",))
                for table in self._shadow.shared:
                    name = '"' + table.replace('"', '""') + '"'
                    connection.execute(f"CREATE TEMP VIEW {name} AS SELECT * FROM {LIVE}.{name}")  # noqa: S608
            connection.set_authorizer(self._authorised)

    def _authorised(self, action: int, name: str | None, more: str | None, where: str | None, by: str | None) -> int:
        if action in (sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH):
            self._refused.add(f"file {name}")
            return sqlite3.SQLITE_DENY
        # Where no column is read, as by count(*), SQLite leaves out the view.
        counted = not more and name in self._shadow.shared
        if action == sqlite3.SQLITE_READ and where == LIVE and by is None and not counted:
            return sqlite3.SQLITE_DENY  # a name that the shadow does not have: SQLite looks for it there, too
        if action in _WRITES and name is not None:
            if where == LIVE:
                self._refused.add(name)
                return sqlite3.SQLITE_DENY
            if not name.startswith((OURS, "sqlite_")):
                self._seen.add(name)
        return sqlite3.SQLITE_OK

    def check(self, connection: Connection, *, of_handler: bool) -> None:
        """Check what has been written, and record the tables."""
        if self._refused:
            refused, self._refused = self._refused, set()
            raise outside(refused)
        if not of_handler:
            self._seen.clear()
            driver: Any = connection.connection.dbapi_connection
            driver.set_authorizer(self._authorised)  # has SQLite prepare again what it has prepared
        super().check(connection, of_handler=of_handler)

    def _written(self, connection: Connection) -> set[str]:
        del connection
        return set(self._seen)

    def _store(self, connection: Connection, name: str) -> None:
        connection.exec_driver_sql(f"INSERT OR IGNORE INTO {WRITTEN} VALUES (?)", (name,))  # noqa: S608 ours

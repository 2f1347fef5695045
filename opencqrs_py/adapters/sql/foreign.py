"""Tables of other systems: whether a mapping fits them, how their columns are read, and which writers are active.

PostgreSQL shows the transactions that write to a table by their locks. An insert locks its table before it draws a
position from a sequence, and a transaction that draws one directly locks the sequence. Both locks are released when the
transaction has ended and what it wrote is visible. So each transaction that may still commit a position that is lower
than one already seen holds such a lock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, inspect, types
from sqlalchemy.exc import NoSuchTableError
from sqlalchemy.types import TypeEngine

from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.mapping import TableMapping

_NAMED = 10  # most names in a message
_RESTORED = "-1/"  # prefix of the virtual transaction of a prepared transaction after a restart

_RELATION = "SELECT relkind FROM pg_class WHERE oid = %s::regclass"
_SEQUENCES = """
SELECT DISTINCT seqrelid::regclass::text, seqincrement, seqcache, seqcycle
FROM pg_attribute holder
JOIN pg_depend ON refclassid = 'pg_class'::regclass AND refobjid = holder.attrelid AND refobjsubid = holder.attnum
LEFT JOIN pg_depend used ON pg_depend.classid = 'pg_attrdef'::regclass AND used.classid = pg_depend.classid
    AND used.objid = pg_depend.objid AND used.refclassid = 'pg_class'::regclass
JOIN pg_sequence sequence ON sequence.seqrelid IN (pg_depend.objid, used.refobjid)
WHERE holder.attrelid = %s::regclass AND holder.attname = %s
"""

_NOT_ONE_BY_ONE = """
SELECT seqrelid::regclass::text FROM pg_sequence
WHERE (seqincrement <> 1 OR seqcache > 1 OR seqcycle) AND NOT EXISTS (
    SELECT FROM pg_depend WHERE classid = 'pg_class'::regclass AND objid = seqrelid AND refobjsubid > 0
    OR classid = 'pg_attrdef'::regclass AND refclassid = 'pg_class'::regclass AND refobjid = seqrelid
)
"""

_SEEN = """
WITH RECURSIVE family AS (
    SELECT %s::regclass::oid AS id UNION SELECT inhrelid FROM pg_inherits JOIN family ON inhparent = family.id
), kin AS (
    SELECT id FROM family UNION SELECT inhparent FROM pg_inherits JOIN kin ON inhrelid = kin.id
)
SELECT pg_is_in_recovery(), {subscribed}, coalesce((SELECT max({position}) FROM {table}), 0),
    array(
        SELECT DISTINCT coalesce(virtualtransaction, '') || ' ' || coalesce(pid::text, 'prepared')
        FROM pg_locks JOIN pg_class locked ON locked.oid = relation
        WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND (relation IN (SELECT id FROM family) OR {sequences})
    )
"""

# Rows go to the table itself, to a part of it, or, if it is a part, through the table of which it is one.
_SUBSCRIBED = "EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid IN (SELECT id FROM kin))"
_SHOWS_SUBSCRIPTIONS = "SELECT has_table_privilege('pg_catalog.pg_subscription_rel', 'SELECT')"

_WHO = """
SELECT pid, application_name, to_char(xact_start, 'YYYY-MM-DD HH24:MI:SS TZ') FROM pg_stat_activity
WHERE pid = ANY(%s) ORDER BY xact_start LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Compared:
    """An expression that is compared character by character.

    Attributes:
        expression: The expression.
        binary: Whether it is bytes, and is compared with bytes.
    """

    expression: str
    binary: bool

    def value(self, text: str) -> str | bytes:
        """Return a text as the expression is compared with it."""
        return text.encode() if self.binary else text


@dataclass(frozen=True, slots=True)
class ForeignTable:
    """A table as statements name it.

    Attributes:
        name: The table, quoted.
        position: The column of positions, quoted.
        selected: The expressions of a ``SELECT`` for the parts of an event: position, id, source, subject, type, time,
            data, metadata.
        subject: The subject, as conditions compare it.
        type: The type, likewise.
    """

    name: str
    position: str
    selected: str
    subject: Compared
    type: Compared


def fitted(database: Database, connection: Connection, mapping: TableMapping) -> ForeignTable:
    """Return the table of a mapping; raise OCQ-313 if it or a column is missing, OCQ-339 if a column is unsuitable."""
    schema, _, table = mapping.table.rpartition(".")
    found = _columns(database, connection, mapping)
    missing = [f"{part} ({column})" for part, column in mapping.columns.items() if column not in found]
    if missing:
        what = f"the table '{mapping.table}' has no column for {', '.join(missing)}; it has {listed(found)}"
        raise EventStoreError("OCQ-313", what, database.label, f"fix {mapping.said_in}")
    _check_types(database, mapping, found)
    return _named(database, connection, mapping, table, schema, found)


def doubts(database: Database, connection: Connection, mapping: TableMapping, table: ForeignTable) -> list[str]:
    """Return which rows would not be read: those with another row's position, with none, or with one below 1."""
    schema, _, name = mapping.table.rpartition(".")
    inspector, place = inspect(connection), (name, schema or None)
    keys: list[list[str | None]] = [list(inspector.get_pk_constraint(*place)["constrained_columns"])]
    indexes = inspector.get_indexes(*place, include_auto_indexes=True)  # those of constraints, which SQLite leaves out
    keys += [each["column_names"] for each in indexes if each["unique"]]
    column, found = f"the column '{mapping.position}' of '{mapping.table}'", []
    has_key = any(key[:1] == [mapping.position] for key in keys)  # a partitioned table has more columns in its keys
    if not has_key and name not in inspector.get_view_names(schema or None):
        found.append(
            f"{column} has no unique index. If rows can have the same position, as with a version that counts each "
            f"stream for itself, events are missed: name a column that numbers all rows in {mapping.said_in}.position"
        )
    first = f"SELECT min({table.position}) FROM {table.name}"  # noqa: S608 quoted
    lowest = connection.exec_driver_sql(first, ()).scalar()
    if isinstance(lowest, int) and lowest < 1:
        found.append(
            f"{column} begins at {lowest}, and rows below 1 are not read. Name a column in {mapping.said_in}.position "
            f"that begins at 1, for example one that is generated as {mapping.position} + {1 - lowest}"
        )
    absent = f"SELECT 1 FROM {table.name} WHERE {table.position} IS NULL LIMIT 1"  # noqa: S608 quoted
    if connection.exec_driver_sql(absent, ()).first() is not None:
        found.append(f"{column} is NULL in some rows, which are not read")
    return [f"{each} ({database.label})" for each in found]


def _columns(database: Database, connection: Connection, mapping: TableMapping) -> dict[str, Any]:
    inspector = inspect(connection)
    schema, _, table = mapping.table.rpartition(".")
    try:
        return {column["name"]: column["type"] for column in inspector.get_columns(table, schema or None)}
    except NoSuchTableError:
        there = [*inspector.get_table_names(schema or None), *inspector.get_view_names(schema or None)]
        what = f"there is no table '{table}'; the tables are: {listed(there)}"
        raise EventStoreError("OCQ-313", what, database.label, f"fix {mapping.said_in}.table") from None


def _check_types(database: Database, mapping: TableMapping, found: dict[str, Any]) -> None:
    wanted: dict[str, tuple[type[Any], ...]] = {
        "position": (types.Integer,),
        "time": (types.DateTime, types.String, types.NullType),
    }
    for part, kinds in wanted.items():
        column = mapping.columns.get(part)
        if column is not None and not isinstance(found[column], kinds):
            what = f"the column '{column}' of '{mapping.table}' is {found[column]}, which is not a {part}"
            fix = {
                "position": "name a column of whole numbers",
                "time": "name a column of timestamps or RFC 3339 texts",
            }
            raise EventStoreError("OCQ-339", what, database.label, f"{fix[part]} in {mapping.said_in}.{part}")


def _named(
    database: Database, connection: Connection, mapping: TableMapping, table: str, schema: str, found: dict[str, Any]
) -> ForeignTable:
    quote = connection.dialect.identifier_preparer.quote_identifier
    dialect = database.dialect

    def expression_of(part: str, expression: Callable[[str, TypeEngine[Any]], str]) -> str:
        column = mapping.columns.get(part)
        return "NULL" if column is None else expression(quote(column), found[column])

    def compared(part: str, form: str) -> Compared:
        binary = dialect.compares_bytes and isinstance(found.get(mapping.columns.get(part, "")), types.LargeBinary)
        text = form.format(expression_of(part, dialect.as_text))
        return Compared(f"({text if binary else dialect.exact.format(text)})", binary)

    parts = ("id", "source", "subject", "type", "time", "data", "metadata")
    return ForeignTable(
        name=f"{quote(schema)}.{quote(table)}" if schema else quote(table),
        position=quote(mapping.position),
        selected=", ".join([quote(mapping.position), *(expression_of(part, dialect.as_read) for part in parts)]),
        subject=compared("subject", "COALESCE(NULLIF({}, ''), '/')"),
        type=compared("type", "{}"),
    )


def listed(names: Any) -> str:
    """Return the first few names, sorted."""
    ordered = sorted(names)
    more = [f"and {len(ordered) - _NAMED} more"] if len(ordered) > _NAMED else []
    return ", ".join([*ordered[:_NAMED], *more]) or "none"


@dataclass(frozen=True, slots=True)
class Writers:
    """Shows which transactions write to a table, by a statement.

    Attributes:
        doubt: Why events can still be missed, empty if there is no reason.
    """

    database: Database
    table: str
    statement: str
    doubt: str = ""

    @classmethod
    def of(cls, database: Database, connection: Connection, mapping: TableMapping, table: ForeignTable) -> Writers:
        """Return the reader of a table.

        Raises:
            EventStoreError: OCQ-338 on a view, which does not show who is writing; OCQ-314, if positions are not drawn
                one by one.
        """
        kind = connection.exec_driver_sql(_RELATION, (_plain(table.name),)).scalar_one()
        if kind not in ("r", "p"):
            what = f"'{mapping.table}' is not a table but a view, which does not show who is writing"
            fix = "name the table itself in event-store.mapping.table"
            raise EventStoreError("OCQ-338", what, database.label, fix)
        sequences = connection.exec_driver_sql(_SEQUENCES, (_plain(table.name), mapping.position)).all()
        for sequence in sequences:
            _check(database, mapping, *sequence)
        own = ", ".join("'{}'::regclass".format(name.replace("'", "''").replace("%", "%%")) for name, *_ in sequences)
        drawn = f"relation IN ({own})" if own else "locked.relkind = 'S'"
        shown = connection.exec_driver_sql(_SHOWS_SUBSCRIPTIONS).scalar_one()
        subscribed = _SUBSCRIBED if shown else "false"  # all users may read it unless an administrator has revoked that
        statement = _SEEN.format(position=table.position, table=table.name, sequences=drawn, subscribed=subscribed)
        return cls(database, table.name, statement, "" if own else _doubt(connection, mapping, table))

    def look(self, connection: Connection) -> tuple[int, frozenset[str]]:
        """Return the highest visible position, and the transactions that are active after it was seen.

        A transaction is active if it writes, or has drawn a position. Some may have begun since, but none is missed.

        Raises:
            EventStoreError: OCQ-338, on a replica, which does not know the active transactions, or if a subscription
                fills the table: it repeats transactions in the order of their commits, when no lower one is open here.
        """
        row = connection.exec_driver_sql(self.statement, (_plain(self.table),)).one()
        if row[0]:
            what = "the server is a replica, which does not know the active transactions"
            raise EventStoreError("OCQ-338", what, self.database.label, "name the primary server in event-store.url")
        if row[1]:
            what = (
                f"a subscription (logical replication) fills {_plain(self.table)}, so a lower position may become "
                "visible after a higher one, and this server does not know the active transactions"
            )
            fix = "name the server that publishes the table in event-store.url; or drop a subscription that has ended"
            raise EventStoreError("OCQ-338", what, self.database.label, fix)
        return row[2], frozenset(row[3])

    def describe(self, connection: Connection, active: frozenset[str]) -> str:
        """Return the transaction that has been active the longest, as messages name it."""
        processes = [int(one.split()[1]) for one in active if one.split()[1].isdecimal()]
        row = connection.exec_driver_sql(_WHO, (processes,)).first()
        if row is None:
            return "a prepared transaction" if active and not processes else "a transaction"
        name = f" of '{row[1]}'" if row[1] else ""
        return f"the server process {row[0]}{name}, in a transaction that began at {row[2]},"


def _check(database: Database, mapping: TableMapping, name: str, step: int, cached: int, cycles: bool) -> None:  # noqa: FBT001 a row
    """Refuse a sequence with which a lower position can appear without a sign of its transaction."""
    fix = f"have their owner run ALTER SEQUENCE {name} INCREMENT 1 CACHE 1 NO CYCLE"
    if cached > 1:
        why = f"connections draw {cached} at once from {name}"
    elif step < 0:
        why = f"{name} counts down"
    elif cycles:
        why = f"{name} starts again at its end"
    elif step > 1:
        why = f"{name} counts in steps of {step}, so numbers between them can come later"
        fix = f"draw a number for each row when it is inserted (with Hibernate: allocationSize=1), and {fix}"
    else:
        return
    raise EventStoreError("OCQ-314", f"the positions of '{mapping.table}' need not grow: {why}", database.label, fix)


def _doubt(connection: Connection, mapping: TableMapping, table: ForeignTable) -> str:
    """Name the sequences by which the column could be filled in blocks; a column need not know its sequence."""
    found = connection.exec_driver_sql(_NOT_ONE_BY_ONE).scalars().all()
    if not found:
        return ""
    return (
        f"if the positions of '{mapping.table}' are drawn from {listed(found)}, which do not count one by one, events "
        f"can be missed; name the sequence that they are drawn from: "
        f"ALTER SEQUENCE … OWNED BY {_plain(table.name)}.{_plain(table.position)}"
    )


def _plain(quoted: str) -> str:
    """Return a quoted name as a value; in statements a percent sign is doubled."""
    return quoted.replace("%%", "%")


@dataclass(slots=True)
class Horizon:
    """The horizon: it moves by evidence that transactions have ended, never by time.

    A transaction draws a position and commits later, so positions become visible in any order. Each that may still
    commit a position up to a *mark*, the highest one that was seen, was active when it was seen. So when all that were
    active then have ended, the horizon is at the mark.

    Attributes:
        upto: The horizon; ``None`` as long as nothing is known.
        mark: Position that becomes the horizon next; ``None`` before the first check.
        waited_for: Transactions that were active when the mark was seen, and have not ended.
    """

    upto: int | None = None
    mark: int | None = None
    waited_for: frozenset[str] = field(default=frozenset())

    def look(self, highest: int, active: frozenset[str]) -> None:
        """Note the highest position that was read, and the open writing transactions, which were queried after it."""
        if self.mark is not None:
            self.waited_for = _still_open(self.waited_for, active)
            if self.waited_for:
                return
            self._reach(self.mark)
        if not active:
            self._reach(highest)
        self.mark, self.waited_for = highest, active

    def _reach(self, position: int) -> None:
        self.upto = max(self.upto or 0, position)


def _still_open(waited_for: frozenset[str], active: frozenset[str]) -> frozenset[str]:
    """Return those of the active transactions that were waited for, by the names that they have now.

    ``PREPARE TRANSACTION`` keeps the virtual transaction, and takes the process away. After a restart, and at once in
    old releases, a prepared transaction has the number -1/… instead, so each of these may be one that is not found.
    """
    waited = set(map(_virtual, waited_for))
    ended = waited.difference(map(_virtual, active))
    renamed = any(not one.startswith(_RESTORED) for one in ended)
    return frozenset(one for one in active if _virtual(one) in waited or (renamed and one.startswith(_RESTORED)))


def _virtual(name: str) -> str:
    """Return the virtual transaction of a name, without its process."""
    return name.partition(" ")[0]

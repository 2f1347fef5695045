"""Who is at work on a table that others fill: PostgreSQL tells it by the locks of the transactions.

An insert locks its table before it draws a position from a sequence, and a transaction that draws one by itself
locks the sequence. Both locks are let go when the transaction has ended and what it wrote can be seen. So whoever may
still commit a position that is lower than one already seen holds such a lock.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from opencqrs_py.adapters.sql.databases import Database
from opencqrs_py.adapters.sql.foreign import ForeignTable
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.mapping import TableMapping

__all__ = ["AtWork", "Seen"]

_RELATION = "SELECT relkind FROM pg_class WHERE oid = %s::regclass"
_SEQUENCES = """
SELECT DISTINCT sequence.seqrelid::regclass::text, sequence.seqcache, sequence.seqincrement < 0 OR sequence.seqcycle
FROM pg_attribute holder
JOIN pg_depend ON refclassid = 'pg_class'::regclass AND refobjid = holder.attrelid AND refobjsubid = holder.attnum
LEFT JOIN pg_depend used ON pg_depend.classid = 'pg_attrdef'::regclass AND used.classid = pg_depend.classid
    AND used.objid = pg_depend.objid AND used.refclassid = 'pg_class'::regclass
JOIN pg_sequence sequence ON sequence.seqrelid IN (pg_depend.objid, used.refobjid)
WHERE holder.attrelid = %s::regclass AND holder.attname = %s
"""
_SEEN = """
WITH RECURSIVE family AS (
    SELECT %s::regclass::oid AS id UNION SELECT inhrelid FROM pg_inherits JOIN family ON inhparent = family.id
)
SELECT pg_is_in_recovery(), coalesce((SELECT max({position}) FROM {table}), 0),
    array(
        SELECT DISTINCT coalesce(virtualtransaction, '') || ' ' || coalesce(pid::text, 'prepared')
        FROM pg_locks JOIN pg_class locked ON locked.oid = relation
        WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted
            AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
            AND (relation IN (SELECT id FROM family) OR {sequences})
    )
"""
_WHO = """
SELECT pid, application_name, to_char(xact_start, 'YYYY-MM-DD HH24:MI:SS TZ') FROM pg_stat_activity
WHERE pid = ANY(%s) ORDER BY xact_start LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at the table has shown.

    Attributes:
        highest: Highest position that can be seen.
        at_work: Transactions that write, or have drawn a position, looked for after that.
    """

    highest: int
    at_work: frozenset[str]


@dataclass(frozen=True, slots=True)
class AtWork:
    """Looks who is at work.

    Attributes:
        database: Where the table is.
        table: The table, quoted.
        statement: What shows it.
    """

    database: Database
    table: str
    statement: str

    @classmethod
    def on(cls, database: Database, connection: Connection, mapping: TableMapping, table: ForeignTable) -> AtWork:
        """Return what looks at a table.

        Raises:
            EventStoreError: OCQ-314, if nothing would tell who is at work: on a view, or when positions are not drawn
                one by one.
        """
        kind = connection.exec_driver_sql(_RELATION, (_plain(table.name),)).scalar_one()
        if kind not in ("r", "p"):
            what = f"'{mapping.table}' is no table but a view, which does not tell who is writing"
            fix = "name the table itself in event-store.mapping.table"
            raise EventStoreError("OCQ-314", what, database.label, fix)
        sequences = connection.exec_driver_sql(_SEQUENCES, (_plain(table.name), mapping.position)).all()
        for name, cached, odd in sequences:
            if cached > 1 or odd:
                what = f"the positions of '{mapping.table}' do not grow: connections draw {cached} at once from {name}"
                fix = f"let their owner run ALTER SEQUENCE {name} CACHE 1 NO CYCLE"
                raise EventStoreError("OCQ-314", what, database.label, fix)
        own = ", ".join("'{}'::regclass".format(name.replace("'", "''").replace("%", "%%")) for name, *_ in sequences)
        drawn = f"relation IN ({own})" if own else "locked.relkind = 'S'"
        return cls(database, table.name, _SEEN.format(position=table.position, table=table.name, sequences=drawn))

    def look(self, connection: Connection) -> Seen:
        """Look now; what is found at work may have begun after the highest position was seen, but none is left out.

        Raises:
            EventStoreError: OCQ-314, on a replica, which does not know who is at work.
        """
        row = connection.exec_driver_sql(self.statement, (_plain(self.table),)).one()
        if row[0]:
            what = "the server is a replica, which does not know the transactions that are at work"
            raise EventStoreError("OCQ-314", what, self.database.label, "name the primary server in event-store.url")
        return Seen(row[1], frozenset(row[2]))

    def describe(self, connection: Connection, at_work: frozenset[str]) -> str:
        """Return who has been at work the longest, as a message says it."""
        processes = [int(one.split()[1]) for one in at_work if one.split()[1].isdecimal()]
        row = connection.exec_driver_sql(_WHO, (processes,)).first()
        if row is None:
            return "a prepared transaction" if at_work and not processes else "a transaction"
        name = f" of '{row[1]}'" if row[1] else ""
        return f"the server process {row[0]}{name}, in a transaction that began at {row[2]},"


def _plain(quoted: str) -> str:
    """Return a quoted name as a value; in statements a percent sign is doubled."""
    return quoted.replace("%%", "%")

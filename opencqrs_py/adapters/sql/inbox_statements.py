"""The statements about many rows of the inbox, as text: SQLAlchemy would take as long as the database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import orjson
from sqlalchemy import BigInteger, Connection, Integer
from sqlalchemy.types import TypeEngine
from typing_extensions import override

from opencqrs_py.adapters.sql.connections import FetchedRows
from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.inbox_rows import COLUMNS
from opencqrs_py.adapters.sql.tables import INBOX
from opencqrs_py.model.inbox import InboxStatus

InboxRow = tuple[Any, ...]

Place = tuple[int, int]
"""Where a row is: position of its event and hash of its sequence."""

_MOST_ASKED = 400  # hashes in a statement that is one part for each


class InboxStatements:
    """Statements about as many rows as their caller names, on any database."""

    finds_pairs = False  # whether a list of pairs of values is looked up in an index, pair by pair

    def __init__(self, database: Database) -> None:
        self._mark, self._table = database.dialect.mark, f"{database.prefix}{INBOX.name}"
        self._names = ", ".join(COLUMNS)
        self._insert = f"INSERT INTO {self._table} ({self._names}) VALUES ({', '.join([self._mark] * len(COLUMNS))})"  # noqa: S608 our own text, as below
        # By position in the index only: a database may else look for each hash at each position.
        pairs = f"(position, sequence_hash + 0) IN {database.dialect.pairs}"
        self._those = f"FROM {self._table} WHERE group_name = {self._mark} AND position IN ({{}}) AND {pairs}"
        self._free = f" AND status <> {self._mark}"
        ours = f"group_name = {self._mark} AND sequence_hash = asked.hash"
        self._first_id = f"SELECT sequence_id FROM {self._table} WHERE {ours} LIMIT 1"  # noqa: S608

    def insert(self, connection: Connection, rows: Sequence[InboxRow]) -> None:
        """Add rows as they are."""
        connection.exec_driver_sql(self._insert, list(rows))

    def count(self, connection: Connection, group: str, places: Sequence[Place]) -> int:
        """Return how many of the rows at some places are there, without those that a person has paused."""
        text, values = self._about("SELECT count(*)", group, places)
        found: int = connection.exec_driver_sql(text, values).scalar_one()
        return found

    def delete(self, connection: Connection, group: str, places: Sequence[Place]) -> int:
        """Delete the rows at some places, except those that a person has paused; return how many there were."""
        text, values = self._about("DELETE", group, places)
        return connection.exec_driver_sql(text, values).rowcount

    def _about(self, verb: str, group: str, places: Sequence[Place]) -> tuple[str, tuple[str, ...]]:
        positions = ", ".join([str(int(position)) for position, _ in places])
        pairs = ", ".join([f"({int(position)}, {int(hash_)})" for position, hash_ in places])
        text = f"{verb} {self._those.format(positions, pairs)}{self._free}"
        return text, (group, InboxStatus.PAUSED.value)

    def first_ids(self, connection: Connection, group: str, hashes: Collection[int]) -> dict[int, str]:
        """Return of each hash of which an event waits the id of a sequence. One row of each is read."""
        ordered, found = sorted(hashes), dict[int, str]()
        for start in range(0, len(ordered), _MOST_ASKED):
            asked = " UNION ALL ".join(f"SELECT {int(hash_)} AS hash" for hash_ in ordered[start : start + _MOST_ASKED])
            rows = _raw(connection, f"SELECT hash, ({self._first_id}) FROM ({asked}) AS asked", (group,))  # noqa: S608
            found.update(_ids_of(rows))
        return found

    def sizes(self, connection: Connection, group: str, hashes: Iterable[int], due_ms: int | None) -> FetchedRows:
        """Return of each hash how many events wait; of those that are due until a time, if one is given."""
        grouped = " GROUP BY sequence_hash"
        return self._of_hashes(connection, "sequence_hash, count(*)", group, hashes, due_ms, grouped)

    def sizes_by_id(self, connection: Connection, group: str, hashes: Iterable[int]) -> FetchedRows:
        """Return hash, id and number of events of each sequence of which events wait and that has one of the hashes."""
        key = "sequence_hash, sequence_id"
        return self._of_hashes(connection, f"{key}, count(*)", group, hashes, None, f" GROUP BY {key}")

    def rows(self, connection: Connection, group: str, hashes: Iterable[int], due_ms: int | None) -> FetchedRows:
        """Return the rows of hashes in any order; those that are due until a time, if one is given."""
        return self._of_hashes(connection, self._names, group, hashes, due_ms)

    def _of_hashes(
        self, connection: Connection, what: str, group: str, hashes: Iterable[int], due_ms: int | None, end: str = ""
    ) -> FetchedRows:
        those = f"sequence_hash IN ({', '.join([str(int(hash_)) for hash_ in hashes])})"
        until = "" if due_ms is None else f" AND due_ms <= {int(due_ms)}"
        text = f"SELECT {what} FROM {self._table} WHERE group_name = {self._mark} AND {those}{until}{end}"  # noqa: S608
        return _raw(connection, text, (group,))


class JsonInboxStatements(InboxStatements):
    """The same where a statement unpacks JSON: one that names a thousand rows is parsed as quickly as any."""

    finds_pairs = True

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        table, mark = self._table, self._mark
        at = f"{table}.position = CAST(asked.key AS INTEGER) AND {table}.sequence_hash = asked.value"
        asked = f"json_each({mark}) AS asked CROSS JOIN {table}"  # in this order: each is looked up
        self._found = f"FROM {asked} WHERE group_name = {mark} AND {at} AND status <> {mark}"
        self._first_ids = f"SELECT hash, ({self._first_id}) FROM (SELECT value AS hash FROM json_each({mark})) AS asked"  # noqa: S608

    @override
    def _about(self, verb: str, group: str, places: Sequence[Place]) -> tuple[str, tuple[str, ...]]:
        # In the order in which the table has the rows; a key may occur twice.
        asked = ",".join([f'"{position}":{hash_}' for position, hash_ in sorted(places)])
        text = f"{verb} {self._found}"
        if verb == "DELETE":
            text = f"DELETE FROM {self._table} WHERE rowid IN (SELECT {self._table}.rowid {self._found})"  # noqa: S608
        return text, (f"{{{asked}}}", group, InboxStatus.PAUSED.value)

    @override
    def first_ids(self, connection: Connection, group: str, hashes: Collection[int]) -> dict[int, str]:
        return _ids_of(_raw(connection, self._first_ids, (group, str(sorted(hashes)))))


class ArrayInboxStatements(InboxStatements):
    """The same on PostgreSQL, where a statement unpacks arrays, and JSON by the names and types of its fields.

    What a statement names is looked up row by row, whatever the server estimates for the table's size: a limit prevents
    a join.
    """

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        here = "there.position = asked.position AND there.sequence_hash = asked.hash AND there.status <> %s"
        row = f"SELECT there.ctid FROM {self._table} AS there WHERE there.group_name = %s AND {here} LIMIT 1"  # noqa: S608
        found = f"SELECT ({row}) AS at FROM unnest(%s::bigint[], %s::bigint[]) AS asked (position, hash)"  # noqa: S608
        self._count = f"SELECT count(at) FROM ({found}) AS found"  # noqa: S608
        self._delete = f"DELETE FROM {self._table} WHERE ctid = ANY (ARRAY({found}))"  # noqa: S608
        self._first_ids = f"SELECT hash, ({self._first_id}) FROM unnest(%s::bigint[]) AS asked (hash)"  # noqa: S608
        fields = ", ".join(f"{column.name} {_type_of(column.type)}" for column in INBOX.columns)
        added = f"json_to_recordset(%s::json) AS added ({fields})"
        self._insert = f"INSERT INTO {self._table} ({self._names}) SELECT * FROM {added}"  # noqa: S608

    @override
    def insert(self, connection: Connection, rows: Sequence[InboxRow]) -> None:
        text = orjson.dumps([dict(zip(COLUMNS, row, strict=True)) for row in rows]).decode()
        connection.exec_driver_sql(self._insert, (text,))

    @override
    def count(self, connection: Connection, group: str, places: Sequence[Place]) -> int:
        found: int = connection.exec_driver_sql(self._count, _looked_up(group, places)).scalar_one()
        return found

    @override
    def delete(self, connection: Connection, group: str, places: Sequence[Place]) -> int:
        return connection.exec_driver_sql(self._delete, _looked_up(group, places)).rowcount

    @override
    def first_ids(self, connection: Connection, group: str, hashes: Collection[int]) -> dict[int, str]:
        return _ids_of(_raw(connection, self._first_ids, (group, sorted(hashes))))


def statements_of(database: Database) -> InboxStatements:
    """Return the statements for a database."""
    dialect = database.dialect
    if dialect.unpacks_arrays:
        return ArrayInboxStatements(database)
    return (JsonInboxStatements if dialect.unpacks_json else InboxStatements)(database)


def _looked_up(group: str, places: Sequence[Place]) -> tuple[Any, ...]:
    return group, InboxStatus.PAUSED.value, [position for position, _ in places], [hash_ for _, hash_ in places]


def _ids_of(rows: FetchedRows) -> dict[int, str]:
    """Return the ids of sequences by hash, without the hashes of which no event waits."""
    return {row[0]: row[1] for row in rows if row[1] is not None}


def _type_of(column: TypeEngine[Any]) -> str:
    return "bigint" if isinstance(column, BigInteger) else "integer" if isinstance(column, Integer) else "text"


def _raw(connection: Connection, text: str, values: tuple[Any, ...]) -> FetchedRows:
    """Return the driver's rows: there are so many that SQLAlchemy's overhead would matter."""
    cursor = connection.exec_driver_sql(text, values).cursor
    return () if cursor is None else cursor.fetchall()

"""The control tables on a SQL database."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection
from typing_extensions import override

from opencqrs_py.adapters.sql.database import Database
from opencqrs_py.adapters.sql.tables import LEASES, NODES, TableMissingError, prepare
from opencqrs_py.control.ports import ControlStore, Notices
from opencqrs_py.control.records import (
    ControlView,
    GroupPartition,
    Lease,
    Node,
    NodeRecord,
    ProcessIdentity,
    Runnable,
    TaskLoad,
    Wanted,
)
from opencqrs_py.errors import DatabaseFileGoneError
from opencqrs_py.model.partition import Partition, layout
from opencqrs_py.model.times import in_milliseconds

_PATIENCE = 2.0  # seconds to wait for a lock
_GONE = (TableMissingError, DatabaseFileGoneError)  # and all leases with it: a rebuild was ended by another process
_KEPT_MS = 24 * 3_600 * 1_000  # how long a crashed node is shown

_VIEW = """
SELECT 'node' AS record, '' AS group_name, 0 AS modulus, 0 AS residue, node_id, 0 AS term, '' AS since, '' AS wanted,
       '' AS avoids, until_ms - {now} AS left_ms, CASE WHEN {alive} THEN 1 ELSE 0 END AS alive, {clock} AS clock_ms,
       details
FROM {nodes}
UNION ALL
SELECT 'lease', group_name, modulus, residue, node_id, term, since, wanted,
       CASE WHEN avoided_until_ms > {now} THEN avoided_node ELSE '' END, 0, 0, 0, ''
FROM {leases}
"""
_ALIVE = "buried = 0 AND era = {era} AND until_ms > {now}"
_EXTEND = "UPDATE {{nodes}} SET until_ms = {{now}} + {{mark}}{also} WHERE node_id = {{mark}} AND {{alive}}"
_THIS = "group_name = {mark} AND modulus = {mark} AND residue = {mark}"


class SqlControlStore(ControlStore):
    """Nodes, leases and wanted states, in the tables ``opencqrs_nodes`` and ``opencqrs_leases``.

    All times are those of the database's clock. A lease has no separate end: it ends with its node's, which one
    statement extends, however many partitions the node holds.

    Args:
        database: The result of ``Database.for_control``.
        shared: Whether others also use it, so that ``close`` leaves its connections alone.
    """

    def __init__(self, database: Database, *, shared: bool = False) -> None:
        self._database = database
        self._shared = shared
        dialect, prefix = database.dialect, database.prefix
        known = {"mark": dialect.mark, "now": dialect.now_ms, "era": dialect.era}
        known["clock"] = dialect.wall_ms if dialect.remote else "0"
        tables = {"nodes": prefix + NODES.name, "leases": prefix + LEASES.name}
        self._words = {**known, **tables, "alive": _ALIVE.format(**known), "this": _THIS.format(**known)}
        self._view = self._text(_VIEW)
        self._extend = self._text(_EXTEND.format(also=""))
        self._extend_as = self._text(_EXTEND.format(also=", details = {mark}"))
        self._ready = False

    @override
    def join(self, node: Node, seconds: float) -> None:
        self._prepare()
        columns, values = "node_id, era, until_ms, buried, details", "{mark}, {era}, {now} + {mark}, 0, {mark}"
        insert = f"INSERT INTO {{nodes}} ({columns}) VALUES ({values})"  # noqa: S608 our own names
        forget = "DELETE FROM {nodes} WHERE era <> {era} OR (buried = 1 AND until_ms < {now} - {mark})"
        with self._in_turn() as connection:
            self._send(connection, forget, _KEPT_MS)
            self._insert_leases(connection, self._keys_of_new_groups(connection, node))
            self._send(connection, insert, node.id, _ms(seconds), _written(node))
            self._notify(connection)

    @override
    def beat(self, node: str, seconds: float) -> ControlView | None:
        return self._extended(self._extend, (_ms(seconds), node))

    @override
    def beat_as(self, node: Node, seconds: float) -> ControlView | None:
        return self._extended(self._extend_as, (_ms(seconds), _written(node), node.id))

    @override
    def take(self, node: str, keys: Sequence[GroupPartition], dead: Collection[str] = ()) -> tuple[GroupPartition, ...]:
        self._prepare()
        # Based on the earlier read: after the wait for a row, a condition on another table is not evaluated again.
        take = "UPDATE {leases} SET node_id = {mark}, term = term + 1, since = {mark} WHERE {this} AND term = {mark}"
        with self._database.briefly(_PATIENCE) as connection:
            self._bury(connection, set(dead) - {node})
            seen, since = self._seen(connection), _now()
            free = [lease for lease in seen.leases if lease.key in set(keys) and seen.owner_of(lease) is None]
            return tuple(
                lease.key
                for lease in free
                if node in seen.alive and self._send(connection, take, node, since, *_place(lease.key), lease.term)
            )

    @override
    def give_back(self, node: str, keys: Collection[GroupPartition]) -> None:
        self._prepare()
        give = "UPDATE {leases} SET node_id = '', since = '' WHERE {this} AND node_id = {mark}"
        with self._database.briefly(_PATIENCE) as connection:
            for key in sorted(keys):
                self._send(connection, give, *_place(key), node)
            self._notify(connection)

    @override
    def leave(self, node: str) -> None:
        self._prepare()
        with suppress(*_GONE), self._database.briefly(_PATIENCE) as connection:
            self._send(connection, "UPDATE {leases} SET node_id = '', since = '' WHERE node_id = {mark}", node)
            self._send(connection, "DELETE FROM {nodes} WHERE node_id = {mark}", node)
            self._notify(connection)

    @override
    def view(self) -> ControlView:
        self._prepare()
        with self._database.reading() as connection:
            return self._seen(connection)

    @override
    def want(self, group: str, wanted: Wanted | None, partitions: Sequence[GroupPartition] = ()) -> None:
        self._prepare()
        with self._in_turn() as connection:
            places = [_place(key) for key in partitions] or [(group, 0, 0)]
            self._insert_leases(connection, places)
            if not partitions:
                forget = "UPDATE {leases} SET wanted = '' WHERE group_name = {mark}"
                self._send(connection, forget, group)
            for place in places:
                self._set_wanted(connection, wanted, place)
            self._notify(connection)

    @override
    def lay_out(self, group: str, partitions: Collection[Partition]) -> None:
        self._prepare()
        with self._in_turn() as connection:
            there = {place for place in self._known_places(connection) if place[0] == group and place[1]}
            places = {_place(GroupPartition(group, each)) for each in partitions}
            stopped = self._stopped_partitions(connection, group) - set(partitions)
            for place in sorted(there - places):
                self._send(connection, "DELETE FROM {leases} WHERE {this}", *place)
            self._insert_leases(connection, sorted(places))
            for place in sorted(places - there):
                if any(map(Partition(*place[1:]).overlaps, stopped)):
                    self._set_wanted(connection, Wanted.STOPPED, place)
            self._notify(connection)

    @override
    def avoid(self, key: GroupPartition, node: str, seconds: float) -> None:
        self._prepare()
        avoid = "UPDATE {leases} SET avoided_node = {mark}, avoided_until_ms = {now} + {mark} WHERE {this}"
        with self._database.briefly(_PATIENCE) as connection:
            self._send(connection, avoid, node, _ms(seconds), *_place(key))
            self._notify(connection)

    @override
    def notices(self) -> AbstractContextManager[Notices] | None:
        return self._database.dialect.notices(self._database)

    @override
    def is_outage(self, error: BaseException) -> bool:
        return self._database.is_outage(error)

    @override
    def close(self) -> None:
        if not self._shared:
            self._database.close()
        self._ready = False

    def _prepare(self) -> None:
        if not self._ready:
            prepare(self._database, NODES)
            prepare(self._database, LEASES)
            self._ready = True

    @contextmanager
    def _in_turn(self) -> Iterator[Connection]:
        """Open a transaction that adds or removes rows, of which there is one at a time."""
        with self._database.explained(), self._database.dialect.change_lock(self._database) as connection:
            self._database.make_brief(connection, _PATIENCE)
            yield connection

    def _extended(self, statement: str, values: tuple[str | int, ...]) -> ControlView | None:
        self._prepare()
        with self._database.explained(), self._database.writing(patience=_PATIENCE) as connection:
            if connection.exec_driver_sql(statement, values).rowcount != 1:
                return None
            return self._seen(connection)

    def _bury(self, connection: Connection, dead: Collection[str]) -> None:
        """Mark nodes as dead whose leases have ended, so that a clock that is set back cannot revive them.

        A node that is frozen in a heartbeat holds its own row; its leases end anyway, and it is marked later.
        """
        ended = self._text("SELECT node_id FROM {nodes} WHERE buried = 0 AND NOT ({alive})")
        skip_locked = self._database.dialect.skip_locked
        one = self._text("SELECT 1 FROM {nodes} WHERE node_id = {mark} AND buried = 0") + skip_locked
        for node in sorted({*dead, *connection.exec_driver_sql(ended).scalars()}):
            if connection.exec_driver_sql(one, (node,)).first() is not None:
                self._send(connection, "UPDATE {nodes} SET buried = 1 WHERE node_id = {mark}", node)

    def _text(self, statement: str) -> str:
        return statement.format(**self._words)

    def _send(self, connection: Connection, statement: str, *values: str | int) -> int:
        return connection.exec_driver_sql(self._text(statement), values).rowcount

    def _notify(self, connection: Connection) -> None:
        """Notify the other nodes when this is committed, where possible."""
        if self._database.dialect.notify_nodes:
            connection.exec_driver_sql(self._database.dialect.notify_nodes)

    def _set_wanted(self, connection: Connection, wanted: Wanted | None, place: tuple[str, int, int]) -> None:
        value = "" if wanted is None else wanted.value
        self._send(connection, "UPDATE {leases} SET wanted = {mark} WHERE {this}", value, *place)

    def _stopped_partitions(self, connection: Connection, group: str) -> set[Partition]:
        those = "SELECT modulus, residue FROM {leases} WHERE group_name = {mark} AND wanted = {mark} AND modulus > 0"
        found = connection.exec_driver_sql(self._text(those), (group, Wanted.STOPPED.value))
        return {Partition(row[0], row[1]) for row in found}

    def _known_places(self, connection: Connection) -> set[tuple[str, int, int]]:
        there = connection.exec_driver_sql(self._text("SELECT group_name, modulus, residue FROM {leases}"))
        return {(row[0], row[1], row[2]) for row in there}

    def _keys_of_new_groups(self, connection: Connection, node: Node) -> list[tuple[str, int, int]]:
        """Return the partitions of those groups of a node that have none: others may have other ones by now."""
        known = {group for group, modulus, _ in self._known_places(connection) if modulus}
        return [place for place in _keys_of(node) if place[0] not in known]

    def _insert_leases(self, connection: Connection, places: Iterable[tuple[str, int, int]]) -> None:
        known = self._known_places(connection)
        columns = "group_name, modulus, residue, node_id, term, since, wanted, avoided_node, avoided_until_ms"
        insert = f"INSERT INTO {{leases}} ({columns}) VALUES ({{mark}}, {{mark}}, {{mark}}, '', 0, '', '', '', 0)"  # noqa: S608
        for place in places:
            if place not in known:
                self._send(connection, insert, *place)

    def _seen(self, connection: Connection) -> ControlView:
        rows = connection.exec_driver_sql(self._view).all()
        nodes = sorted(
            (
                NodeRecord(_read(r.node_id, r.details), r.left_ms / 1000, bool(r.alive))
                for r in rows
                if r.record == "node"
            ),
            key=lambda record: (record.node.started_at, record.node.id),
        )
        leases = {_key(row): row for row in rows if row.record == "lease" and row.modulus}
        return ControlView(
            tuple(nodes),
            tuple(Lease(key, row.node_id, row.term, row.since, row.avoids) for key, row in sorted(leases.items())),
            {
                row.group_name: Wanted(row.wanted)
                for row in rows
                if row.record == "lease" and not row.modulus and row.wanted
            },
            {key: Wanted(row.wanted) for key, row in leases.items() if row.wanted},
            next((datetime.fromtimestamp(row.clock_ms / 1000, UTC) for row in rows if row.clock_ms), None),
        )


def _keys_of(node: Node) -> list[tuple[str, int, int]]:
    return [
        (group, each.modulus, each.residue)
        for group, runnable in sorted(node.groups.items())
        for each in layout(runnable.modulus)
    ]


def _key(row: Any) -> GroupPartition:
    return GroupPartition(row.group_name, Partition(row.modulus, row.residue))


def _place(key: GroupPartition) -> tuple[str, int, int]:
    return key.group, key.partition.modulus, key.partition.residue


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _now() -> str:
    return in_milliseconds(datetime.now(UTC))


def _written(node: Node) -> str:
    details = asdict(node)
    del details["id"]
    return json.dumps(details)


def _read(id_: str, details: str) -> Node:
    """Return a node as it was written, perhaps by a newer package with more fields."""
    found: Mapping[str, Any] = json.loads(details)
    groups = {name: Runnable(**_known(Runnable, each)) for name, each in found["groups"].items()}
    process = ProcessIdentity(**_known(ProcessIdentity, found["process"]))
    lasts, load = found.get("lease_seconds", 0.0), found.get("load")
    seen = None if load is None else TaskLoad(**_known(TaskLoad, load))
    jobs = found.get("jobs", {})
    return Node(id_, found["name"], process, groups, found["most"], found["started_at"], lasts, seen, jobs)


def _known(cls: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in cls.__dataclass_fields__}

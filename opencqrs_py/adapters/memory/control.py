"""The control tables in memory."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from threading import Lock
from typing import Any

from typing_extensions import override

from opencqrs_py.control.ports import ControlStore
from opencqrs_py.control.records import ControlView, GroupPartition, Lease, Node, NodeRecord, Wanted
from opencqrs_py.model.partition import Partition, layout
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.ports import Clock, SystemClock


@dataclass
class _Row:
    node: Node
    until: float
    buried: bool = False


class InMemoryControlStore(ControlStore):
    """Nodes, leases and wanted states, for nodes of one process: for tests.

    Args:
        clock: Time; ``None`` for the machine's.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = SystemClock() if clock is None else clock
        self._nodes: dict[str, _Row] = {}
        self._leases: dict[GroupPartition, Lease] = {}
        self._avoided: dict[GroupPartition, tuple[str, float]] = {}
        self._wanted: dict[str, Wanted] = {}
        self._wanted_partitions: dict[GroupPartition, Wanted] = {}
        self._lock = Lock()

    @override
    def join(self, node: Node, seconds: float) -> None:
        with self._lock:
            self._nodes[node.id] = _Row(node, self._clock.monotonic() + seconds)
            known = {key.group for key in self._leases}
            for group, runnable in node.groups.items():
                for partition in layout(runnable.modulus) if group not in known else ():
                    key = GroupPartition(group, partition)
                    self._leases[key] = Lease(key)

    @override
    def beat(self, node: str, seconds: float) -> ControlView | None:
        with self._lock:
            if not self._is_alive(node):
                return None
            self._nodes[node].until = self._clock.monotonic() + seconds
            return self._seen()

    @override
    def beat_as(self, node: Node, seconds: float) -> ControlView | None:
        with self._lock:
            if self._is_alive(node.id):
                self._nodes[node.id].node = node
        return self.beat(node.id, seconds)

    @override
    def take(self, node: str, keys: Sequence[GroupPartition], dead: Collection[str] = ()) -> tuple[GroupPartition, ...]:
        with self._lock:
            for id_, row in self._nodes.items():
                row.buried = row.buried or (id_ in dead and id_ != node) or not self._is_alive(id_)
            known = [key for key in sorted(keys) if key in self._leases and self._is_alive(node)]
            taken = [key for key in known if not self._is_alive(self._leases[key].node)]
            for key in taken:
                since = in_milliseconds(self._clock.now())
                self._leases[key] = replace(self._leases[key], node=node, term=self._leases[key].term + 1, since=since)
            return tuple(taken)

    @override
    def give_back(self, node: str, keys: Collection[GroupPartition]) -> None:
        with self._lock:
            self._give_back(node, keys)

    @override
    def leave(self, node: str) -> None:
        with self._lock:
            self._give_back(node, self._leases)
            self._nodes.pop(node, None)

    @override
    def view(self) -> ControlView:
        with self._lock:
            return self._seen()

    @override
    def want(self, group: str, wanted: Wanted | None, partitions: Sequence[GroupPartition] = ()) -> None:
        with self._lock:
            for key in partitions:
                self._leases.setdefault(key, Lease(key))
                _put(self._wanted_partitions, key, wanted)
            if not partitions:
                _put(self._wanted, group, wanted)
                self._wanted_partitions = {k: v for k, v in self._wanted_partitions.items() if k.group != group}

    @override
    def lay_out(self, group: str, partitions: Collection[Partition]) -> None:
        keys = {GroupPartition(group, each) for each in partitions}
        with self._lock:
            stopped = set[Partition]()
            for key in [each for each in self._leases if each.group == group and each not in keys]:
                del self._leases[key]
                if self._wanted_partitions.pop(key, None) is Wanted.STOPPED:
                    stopped.add(key.partition)
            for key in keys - self._leases.keys():
                self._leases[key] = Lease(key)
                if any(map(key.partition.overlaps, stopped)):
                    self._wanted_partitions[key] = Wanted.STOPPED

    @override
    def avoid(self, key: GroupPartition, node: str, seconds: float) -> None:
        with self._lock:
            self._avoided[key] = (node, self._clock.monotonic() + seconds)

    @override
    def is_outage(self, error: BaseException) -> bool:
        return False

    @override
    def close(self) -> None:
        """Do nothing."""

    def _is_alive(self, node: str) -> bool:
        row = self._nodes.get(node)
        return row is not None and not row.buried and row.until > self._clock.monotonic()

    def _give_back(self, node: str, keys: Collection[GroupPartition]) -> None:
        for key in keys:
            if key in self._leases and self._leases[key].node == node:
                self._leases[key] = replace(self._leases[key], node="", since="")

    def _seen(self) -> ControlView:
        now = self._clock.monotonic()
        rows = sorted(self._nodes.values(), key=lambda row: (row.node.started_at, row.node.id))
        nodes = tuple(NodeRecord(row.node, row.until - now, self._is_alive(row.node.id)) for row in rows)
        avoided = {key: node for key, (node, until) in self._avoided.items() if until > now}
        leases = (replace(lease, avoids=avoided.get(key, "")) for key, lease in sorted(self._leases.items()))
        return ControlView(nodes, tuple(leases), dict(self._wanted), dict(self._wanted_partitions))


def _put(known: dict[Any, Wanted], key: object, wanted: Wanted | None) -> None:
    if wanted is None:
        known.pop(key, None)
    else:
        known[key] = wanted

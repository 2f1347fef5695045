"""How partitions are shared out among nodes: evenly, with few moves, and the same whichever node works it out.

The counts of a group's partitions differ by at most one from node to node, and so do those of all groups together, as
far as the limits of the nodes and the groups that they can run allow.

Source:
    Axon shares segments by who comes first; fair shares are what its users ask for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from opencqrs_py.control.records import ControlView, GroupPartition, Node, Wanted

_Layout: TypeAlias = tuple[str, int]  # a group and the modulus of its partitions


@dataclass(frozen=True, slots=True)
class Plan:
    """What a node has to do to get its share, and no more than that.

    Attributes:
        share: The partitions that it is to have; some of them may still be another node's.
        take: Those of them that nobody has.
        release: Those that it has and is not to have any more.
    """

    share: frozenset[GroupPartition]
    take: tuple[GroupPartition, ...]
    release: tuple[GroupPartition, ...]


def plan_of(node: str, view: ControlView) -> Plan:
    """Return what the node with this id has to do."""
    share = frozenset(key for key, owner in shares(view).items() if owner == node)
    held = {lease.key: owner.id for lease in view.leases if (owner := view.owner_of(lease)) is not None}
    release = (key for key, owner in held.items() if owner == node and key not in share)
    return Plan(share, tuple(sorted(share - held.keys())), tuple(sorted(release)))


def shares(view: ControlView) -> dict[GroupPartition, str]:
    """Return which node is to have each partition that is wanted; those that no node may have are left out."""
    sharing = _Sharing(view)
    sharing.count_out()
    sharing.even_out()
    return sharing.assigned()


class _Sharing:
    """Counts first how many partitions of each layout a node is to have, then says which ones those are."""

    def __init__(self, view: ControlView) -> None:
        self._nodes = view.alive
        wanted = [lease for lease in view.leases if view.wanted_of(lease.key) is Wanted.STARTED]
        self._leases = {lease.key: lease for lease in sorted(wanted, key=lambda lease: lease.key)}
        self._held = {key: lease.node for key, lease in self._leases.items() if lease.node in self._nodes}
        self._held_counts = Counter((_layout_of(key), node) for key, node in self._held.items())
        self._able = {layout: self._nodes_for(layout) for layout in dict.fromkeys(map(_layout_of, self._leases))}
        self._counts: Counter[tuple[_Layout, str]] = Counter()
        self._totals: Counter[str] = Counter()
        self._moved: dict[GroupPartition, str] = {}  # away from the node that is to avoid them

    def count_out(self) -> None:
        """Give each partition to a node that has few of its group, if possible to one that has it already."""
        for key, lease in self._leases.items():
            if lease.avoids in self._able[_layout_of(key)] and (taker := self._next(key, lease.avoids)) is not None:
                self._moved[key] = taker
        for key, lease in self._leases.items():
            if lease.avoids not in self._able[_layout_of(key)]:
                self._next(key)

    def even_out(self) -> None:
        """Let the odd partitions of groups go to nodes that have few of others."""
        while move := min(self._improvements(), default=None):
            _, layout, giver, taker = move
            self._add(layout, giver, -1)
            self._add(layout, taker)

    def assigned(self) -> dict[GroupPartition, str]:
        """Return whose each partition is. A node keeps what it has, up to its count."""
        left = self._counts - Counter((_layout_of(key), node) for key, node in self._moved.items())
        assigned = dict(self._moved)
        rest = [key for key, lease in self._leases.items() if lease.avoids not in self._able[_layout_of(key)]]
        for key in rest:
            if left[_layout_of(key), holder := self._held.get(key, "")] > 0:
                assigned[key] = holder
                left[_layout_of(key), holder] -= 1
        for key in rest:
            layout = _layout_of(key)
            taker = next((node for node in self._able[layout] if left[layout, node] > 0), None)
            if key not in assigned and taker is not None:
                assigned[key] = taker
                left[layout, taker] -= 1
        return assigned

    def _nodes_for(self, layout: _Layout) -> tuple[str, ...]:
        """Return the nodes that may have partitions of a layout: only one, if that one has all of them or none."""
        group, modulus = layout
        able = [each for each, node in sorted(self._nodes.items()) if _modulus(node, group) == modulus]
        exclusive = [each for each in able if self._nodes[each].groups[group].exclusive]
        alone = [each for each in exclusive if self._held_counts[layout, each]]
        return tuple(alone[:1] or [each for each in able if each not in exclusive])

    def _next(self, key: GroupPartition, avoids: str = "") -> str | None:
        """Count one partition more for the node that is to have it, and return that node."""
        layout = _layout_of(key)

        def rank(node: str) -> tuple[int, bool, int, str]:
            count = self._counts[layout, node]
            return count, self._held_counts[layout, node] <= count, self._totals[node], node

        free = (node for node in self._able[layout] if node != avoids and self._has_room(layout, node))
        chosen = min(free, key=rank, default=None)
        if chosen is not None:
            self._add(layout, chosen)
        return chosen

    def _improvements(self) -> Iterator[tuple[bool, _Layout, str, str]]:
        """Yield what could go from one node to another one that has fewer; first what the one does not have yet."""
        for layout, able in self._able.items():
            for giver in able:
                count = self._counts[layout, giver]
                for taker in able:
                    is_odd = count == self._counts[layout, taker] + 1
                    if is_odd and self._totals[giver] > self._totals[taker] + 1 and self._has_room(layout, taker):
                        yield self._held_counts[layout, giver] >= count, layout, giver, taker

    def _has_room(self, layout: _Layout, node: str) -> bool:
        of_group, of_all = self._nodes[node].groups[layout[0]].most, self._nodes[node].most
        has_room = of_group is None or self._counts[layout, node] < of_group
        return has_room and (of_all is None or self._totals[node] < of_all)

    def _add(self, layout: _Layout, node: str, number: int = 1) -> None:
        self._counts[layout, node] += number
        self._totals[node] += number


def _layout_of(key: GroupPartition) -> _Layout:
    return key.group, key.partition.modulus


def _modulus(node: Node, group: str) -> int | None:
    runnable = node.groups.get(group)
    return runnable.modulus if runnable is not None else None

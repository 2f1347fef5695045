"""How partitions are shared out among nodes: evenly, with few moves, and the same whichever node computes it.

The counts of a group's partitions differ by at most one from node to node, and so do those of all groups together, as
far as the limits of the nodes and the groups that they can run allow.

Source:
    Axon assigns segments first come, first served; its users ask for fair shares.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import partial

from opencqrs_py.control.records import ControlView, GroupPartition, Node, Wanted


@dataclass(frozen=True, slots=True)
class Plan:
    """What a node has to do to get exactly its share.

    Attributes:
        share: The partitions that it is to have; some of them may still be another node's.
        take: Those of them without a holder.
        release: Those that it has and should no longer have.
        waiting: Those that it can run, but that no node has or is to have.
        limits: The settings, with their values, that keep it from those that wait.
    """

    share: frozenset[GroupPartition]
    take: tuple[GroupPartition, ...]
    release: tuple[GroupPartition, ...]
    waiting: tuple[GroupPartition, ...] = ()
    limits: tuple[str, ...] = ()


def plan_of(node: str, view: ControlView) -> Plan:
    """Return what the node with this id has to do."""
    assigned, me = shares(view), view.alive.get(node)
    share = frozenset(key for key, owner in assigned.items() if owner == node)
    held = {lease.key: owner.id for lease in view.leases if (owner := view.owner_of(lease)) is not None}
    take = tuple(sorted(share - held.keys()))
    release = tuple(sorted(key for key, owner in held.items() if owner == node and key not in share))
    if me is None:
        return Plan(share, take, release)
    waiting = _waiting(me, view, assigned.keys() | held.keys())
    return Plan(share, take, release, waiting, tuple(_limits_reached(me, share, waiting)))


def _waiting(node: Node, view: ControlView, placed: Collection[GroupPartition]) -> tuple[GroupPartition, ...]:
    """Return the partitions that are wanted but not placed, except those that a command has moved from a node."""
    free = (lease.key for lease in view.leases if lease.key not in placed and not lease.avoids)
    return tuple(sorted(key for key in free if node.can_run(key) and view.wanted_of(key) is Wanted.STARTED))


def _limits_reached(
    node: Node, share: Collection[GroupPartition], waiting: Collection[GroupPartition]
) -> Iterator[str]:
    counts = Counter(key.group for key in share)
    for group in sorted({key.group for key in waiting}):
        most = node.groups[group].most
        if most is not None and counts[group] >= most:
            yield f"life-cycle.max-partitions-per-node is {most} for {group}"
    if waiting and node.most is not None and len(share) >= node.most:
        yield f"node.max-partitions is {node.most}"


def shares(view: ControlView) -> dict[GroupPartition, str]:
    """Return which node is to have each partition that is wanted; those that no node may have are left out."""
    sharing = _Sharing(view)
    sharing.count_out()
    sharing.even_out()
    return sharing.assigned()


class _Sharing:
    """Counts first how many partitions of each group a node is to have, then says which ones those are."""

    def __init__(self, view: ControlView) -> None:
        self._nodes = view.alive
        wanted = [lease for lease in view.leases if view.wanted_of(lease.key) is Wanted.STARTED]
        self._leases = {lease.key: lease for lease in sorted(wanted, key=lambda lease: lease.key)}
        self._held = {key: lease.node for key, lease in self._leases.items() if lease.node in self._nodes}
        self._held_counts = Counter((key.group, node) for key, node in self._held.items())
        self._able = {group: self._nodes_for(group) for group in dict.fromkeys(key.group for key in self._leases)}
        self._counts: Counter[tuple[str, str]] = Counter()
        self._totals: Counter[str] = Counter()
        self._moved: dict[GroupPartition, str] = {}  # away from the node that is to avoid them

    def count_out(self) -> None:
        """Give each partition to a node that has few of its group, if possible to one that has it already.

        Those that find no room come last, so that without limits nothing is moved for others.
        """
        for key, lease in self._leases.items():
            if lease.avoids in self._able[key.group] and (taker := self._next(key, lease.avoids)) is not None:
                self._moved[key] = taker
        left = Counter(key.group for key in self._rest() if self._next(key) is None)
        for group, number in left.items():
            for _ in range(number):
                if not self._make_room(group):
                    break  # nor is there room for the others

    def even_out(self) -> None:
        """Let the odd partitions of groups go to nodes that have few of others."""
        while move := min(self._improvements(), default=None):
            _, group, giver, taker = move
            self._add(group, giver, -1)
            self._add(group, taker)

    def assigned(self) -> dict[GroupPartition, str]:
        """Return whose each partition is. A node keeps what it has, up to its count."""
        left = self._counts - Counter((key.group, node) for key, node in self._moved.items())
        assigned = dict(self._moved)
        rest = self._rest()
        for key in rest:
            if left[key.group, holder := self._held.get(key, "")] > 0:
                assigned[key] = holder
                left[key.group, holder] -= 1
        for key in rest:
            group = key.group
            taker = next((node for node in self._able[group] if left[group, node] > 0), None)
            if key not in assigned and taker is not None:
                assigned[key] = taker
                left[group, taker] -= 1
        return assigned

    def _rest(self) -> list[GroupPartition]:
        """Return the partitions that no node is to avoid."""
        return [key for key, lease in self._leases.items() if lease.avoids not in self._able[key.group]]

    def _nodes_for(self, group: str) -> tuple[str, ...]:
        """Return the nodes that may have partitions of a group: only one, if that one has all of them or none."""
        able = [each for each, node in sorted(self._nodes.items()) if group in node.groups]
        exclusive = [each for each in able if self._nodes[each].groups[group].exclusive]
        alone = [each for each in exclusive if self._held_counts[group, each]]
        return tuple(alone[:1] or [each for each in able if each not in exclusive])

    def _next(self, key: GroupPartition, avoids: str = "") -> str | None:
        """Count one partition more for the node that is to have it, and return that node."""
        group = key.group
        free = (node for node in self._able[group] if node != avoids and self._has_room(group, node))
        chosen = min(free, key=partial(self._rank, group), default=None)
        if chosen is not None:
            self._add(group, chosen)
        return chosen

    def _rank(self, group: str, node: str) -> tuple[int, bool, int, str]:
        """Return what nodes are sorted by: the first is to have the next partition of a group."""
        count = self._counts[group, node]
        return count, self._held_counts[group, node] <= count, self._totals[node], node

    def _make_room(self, group: str) -> bool:
        """Count one partition more for a group whose nodes are full; return whether it was possible.

        The node that gets it gives one of another group to another node, which may have to do the same: the chain is
        as short as possible. This finds room whenever there is some.
        """
        chains: deque[tuple[str, tuple[tuple[str, str, str], ...]]] = deque([(group, ())])
        seen = {group}
        while chains:
            taking, chain = chains.popleft()
            for node in sorted(self._able[taking], key=partial(self._rank, taking)):
                if self._has_room(taking, node):
                    for taker, full, giver in chain:
                        self._add(giver, full, -1)
                        self._add(taker, full)
                    self._add(taking, node)
                    return True
                if self._has_room_of_group(taking, node):
                    others = [other for other in self._movable(node) if other not in seen]
                    seen.update(others)
                    chains.extend((other, (*chain, (taking, node, other))) for other in others)
        return False

    def _movable(self, node: str) -> list[str]:
        """Return the groups of which a node may give a partition to another one; first those it does not have yet."""
        moved = Counter((key.group, owner) for key, owner in self._moved.items())
        groups = [group for group in self._able if self._counts[group, node] > moved[group, node]]
        return sorted(groups, key=lambda group: self._counts[group, node] <= self._held_counts[group, node])

    def _improvements(self) -> Iterator[tuple[bool, str, str, str]]:
        """Yield what could go from one node to another one that has fewer; first what the one does not have yet."""
        for group, able in self._able.items():
            for giver in able:
                count = self._counts[group, giver]
                for taker in able:
                    is_odd = count == self._counts[group, taker] + 1
                    if is_odd and self._totals[giver] > self._totals[taker] + 1 and self._has_room(group, taker):
                        yield self._held_counts[group, giver] >= count, group, giver, taker

    def _has_room(self, group: str, node: str) -> bool:
        most = self._nodes[node].most
        return self._has_room_of_group(group, node) and (most is None or self._totals[node] < most)

    def _has_room_of_group(self, group: str, node: str) -> bool:
        most = self._nodes[node].groups[group].most
        return most is None or self._counts[group, node] < most

    def _add(self, group: str, node: str, number: int = 1) -> None:
        self._counts[group, node] += number
        self._totals[node] += number

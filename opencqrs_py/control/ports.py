"""What the control plane needs from outside."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from opencqrs_py.control.records import ControlView, GroupPartition, Node, Wanted
from opencqrs_py.model.partition import Partition


class Notices(Protocol):
    """Notified of changes that nodes and commands make."""

    def wait(self, seconds: float) -> bool:
        """Wait for a change, at most that long; return whether there was one."""
        ...

    def awaited(self) -> frozenset[str]:
        """Return the groups for whose progress callers have begun to wait since the last call.

        A wait for changes ends early when there is such a group.
        """
        ...

    def wake(self) -> None:
        """End the wait that another thread is in, or the next one if there is none."""
        ...


class ControlStore(Protocol):
    """The control tables: nodes, leases, and requests. Every method is one short transaction.

    Times are those of the store's own clock, never a node's. Safe for several threads.
    """

    def join(self, node: Node, seconds: float) -> None:
        """Record a node that begins, with leases that last ``seconds``; and the partitions of groups that have none."""
        ...

    def beat(self, node: str, seconds: float) -> ControlView | None:
        """Extend all leases of a node to last ``seconds`` from now; return the state of the tables.

        Returns:
            ``None`` if the node's leases have ended, which cannot be undone: it has to join as another node.
        """
        ...

    def beat_as(self, node: Node, seconds: float) -> ControlView | None:
        """Extend all leases of a node like ``beat``, and record its current description in the same change.

        A store that records nodes only when they join may leave this out.
        """
        return self.beat(node.id, seconds)

    def take(self, node: str, keys: Sequence[GroupPartition], dead: Collection[str] = ()) -> tuple[GroupPartition, ...]:
        """Take the leases of partitions without a holder; return those that the node has received.

        Args:
            node: Id of the node, which must hold its own leases still.
            keys: The partitions.
            dead: Ids of nodes that are known to have ended, whose leases therefore end at once.
        """
        ...

    def give_back(self, node: str, keys: Collection[GroupPartition]) -> None:
        """End leases of a node; those that it does not hold are not changed."""
        ...

    def leave(self, node: str) -> None:
        """End all leases of a node, and forget it."""
        ...

    def view(self) -> ControlView:
        """Return the state of the control tables."""
        ...

    def want(self, group: str, wanted: Wanted | None, partitions: Sequence[GroupPartition] = ()) -> None:
        """Record a request for some partitions; without any, for the whole group, dropping those for single ones.

        ``None`` withdraws the request: then a partition follows that of its group, a group that of its nodes.
        """
        ...

    def lay_out(self, group: str, partitions: Collection[Partition]) -> None:
        """Let a group have these partitions and no others.

        The leases of others end, and so do the requests for them. But the parts of a partition that is to be stopped
        are to be stopped, too, and so is the partition that it is merged into.
        """
        ...

    def avoid(self, key: GroupPartition, node: str, seconds: float) -> None:
        """Bar a node from a partition for some seconds, so that another node takes it."""
        ...

    def notices(self) -> AbstractContextManager[Notices] | None:
        """Open what is notified at once when a node joins or leaves, releases leases, or a request is recorded.

        Returns:
            ``None`` if the store cannot notify: then changes are seen at the next heartbeat.
        """
        return None

    def is_outage(self, error: BaseException) -> bool:
        """Return whether ``error`` means that the store is temporarily unavailable."""
        ...

    def close(self) -> None:
        """Close connections; the next use opens new ones."""
        ...

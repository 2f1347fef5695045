"""What the contract of control stores is about: nodes that list two groups, and the leases of their partitions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opencqrs_py.control.ports import ControlStore
from opencqrs_py.control.records import ControlView, GroupPartition, Lease, Node, ProcessIdentity, Runnable
from opencqrs_py.model.partition import Partition, layout

SECONDS = 1000.0
PROCESS = ProcessIdentity("boot", "pid:[1]", 17, "4711")
BOOKS = [GroupPartition("größe %s :x", partition) for partition in layout(4)]
FILM = GroupPartition("Größe %s :x", Partition(1, 0))
GROUPS = {
    BOOKS[0].group: Runnable(4, "code", starts=False, exclusive=True, most=3),
    FILM.group: Runnable(1, "other code"),
}
JOBS = {"größe 😀 %s :x": "cron '0 0 * * *' Europe/Berlin", "Größe 😀 %s :x": "fixed-delay 5 s"}
NODES = [
    Node(f"id-{name}", f"{name}:1", PROCESS, GROUPS, 7, f"2026-01-01T00:00:0{number}.000+00:00", SECONDS, jobs=JOBS)
    for number, name in enumerate("abc")
]
A, B, C = NODES


def joined(store: ControlStore, *nodes: Node) -> None:
    """Have nodes join with leases of 1,000 seconds."""
    for node in nodes:
        store.join(node, SECONDS)


def leases(view: ControlView) -> list[Lease]:
    """Return the lease of each partition of ``BOOKS``."""
    found = {lease.key: lease for lease in view.leases}
    return [found[key] for key in BOOKS]


def owner(view: ControlView, key: GroupPartition) -> str:
    """Return the id of a partition's owner; empty for none."""
    node = view.owner_of({lease.key: lease for lease in view.leases}[key])
    return "" if node is None else node.id


def owners(view: ControlView) -> list[str]:
    """Return the id of the owner of each partition of ``BOOKS``; empty for none."""
    return [owner(view, key) for key in BOOKS]


def partitions(view: ControlView, group: str = BOOKS[0].group) -> list[Partition]:
    """Return the partitions of a group that have a lease."""
    return sorted(lease.key.partition for lease in view.leases if lease.key.group == group)


class ControlStores:
    """The stores that a test is about.

    Give ``store``, which is empty; ``another``, which sees the same as a second process would; and ``let_pass``, which
    advances the store's clock by a number of seconds.
    """

    @pytest.fixture
    def store(self) -> ControlStore:
        """Return an empty store."""
        raise NotImplementedError

    @pytest.fixture
    def another(self, store: ControlStore) -> ControlStore:
        """Return another store of the same tables."""
        return store

    @pytest.fixture
    def let_pass(self) -> Callable[[float], None]:
        """Return a function that advances the store's clock by seconds."""
        raise NotImplementedError

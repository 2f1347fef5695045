"""The application as a node: which of its groups use leases, and its place among other nodes."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING

from opencqrs_py.adapters.processes import has_ended, machine_ms, this_process
from opencqrs_py.assembly.conditions import Decision
from opencqrs_py.assembly.container import GroupContainer, GroupRecipe
from opencqrs_py.config import Controller, LeaseSettings, LifeCycleSettings, Tracking
from opencqrs_py.control.ports import ControlStore
from opencqrs_py.control.records import ControlView, Node, Runnable
from opencqrs_py.engines.coordination import Coordinator, LeaseTiming
from opencqrs_py.engines.locking import LockCoordinator, LockedGroup
from opencqrs_py.engines.runs import Engine, GroupRun
from opencqrs_py.errors import AssemblyError
from opencqrs_py.model.naming import listed
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.ports import Clock

if TYPE_CHECKING:
    from opencqrs_py.config.settings import NodeSettings

_FINGERPRINT = 16  # hexadecimal digits of it that are kept


def is_led(group: GroupContainer) -> bool:
    """Return whether a group uses leases: the application's database has its progress, and no provider controls it."""
    controller: Decision = group.controller()
    return _has_progress_in_sql(group) and not controller.provider


def _has_progress_in_sql(group: GroupContainer) -> bool:
    """Return whether the progress of a group is in the application's database."""
    tracking: Decision = group.tracking()
    return tracking.choice == Tracking.SQL.value and not tracking.provider


def node_name() -> str:
    """Return how people know this process unless settings name it: ``host:pid``."""
    return f"{socket.gethostname()}:{os.getpid()}"


def timing_of(leases: Iterable[LeaseSettings]) -> LeaseTiming:
    """Return how long the leases of a node last: as all of its groups agree to, since they are extended together.

    Raises:
        AssemblyError: OCQ-537, if heartbeats are too far apart.
    """
    wanted = tuple(leases)
    timing = LeaseTiming(min(each.duration for each in wanted), min(each.heartbeat for each in wanted))
    if 2 * timing.heartbeat > timing.duration:
        what = f"a lease of {timing.duration:g} s is too short for a heartbeat every {timing.heartbeat:g} s"
        fix = "set life-cycle.lease.heartbeat to at most half of life-cycle.lease.duration"
        raise AssemblyError("OCQ-537", what, "life-cycle.lease", fix)
    return timing


def runnable_of(run: GroupRun, life_cycle: LifeCycleSettings, *, starts: bool) -> Runnable:
    """Return how the node shows a group that it can run."""
    handlers = run.recipe.handlers if isinstance(run.recipe, GroupRecipe) else ()
    return Runnable(
        modulus=life_cycle.partitions,
        fingerprint=sha256("\n".join(handlers).encode()).hexdigest()[:_FINGERPRINT],
        starts=starts,
        exclusive=life_cycle.controller is Controller.APPLICATION_CONTEXT,
        most=life_cycle.max_partitions_per_node,
    )


def coordinator_for(
    store: ControlStore,
    settings: NodeSettings,
    timing: LeaseTiming,
    groups: Mapping[str, Runnable],
    engines: Mapping[str, Engine],
    barred: Callable[[], Collection[str]] = frozenset,
    jobs: Mapping[str, str] | None = None,
    clock: Clock | None = None,
) -> Coordinator:
    """Return what keeps the leases of this process, and has its engines drive what it holds.

    Args:
        store: The control tables.
        settings: The settings of the node.
        timing: How long leases last.
        groups: The groups that this process can run and that use leases.
        engines: The engine of each of them.
        barred: Returns those of them that this process must not run for now.
        jobs: The jobs that it runs, each with what identifies its schedule; ``None``: none.
        clock: The clock by which this process handles events; ``None``: it handles none.
    """
    name = settings.name or node_name()
    started_at = in_milliseconds(datetime.now(UTC))
    return Coordinator(
        store,
        Node(uuid.uuid4().hex, name, this_process(), groups, settings.max_partitions, started_at, jobs=jobs or {}),
        engines,
        timing,
        lambda: machine_ms() / 1000,
        has_ended,
        lambda: uuid.uuid4().hex,
        barred,
        clock,
    )


def has_company(view: ControlView, groups: Iterable[str]) -> bool:
    """Return whether a live node can run one of the groups."""
    names = set(groups)
    return any(names & node.groups.keys() and not has_ended(node.process) for node in view.alive.values())


def require_exclusive(coordinator: Coordinator) -> None:
    """Raise if a group that this node is to run alone is held by another one.

    Raises:
        AssemblyError: OCQ-534, naming the holder.
    """
    view, node = coordinator.view or ControlView(), coordinator.node
    for group, runnable in node.groups.items():
        holders = _holders(view, group, node)
        if runnable.exclusive and holders:
            what = f"group '{group}' is to run in this process alone, but {listed(holders)} has partitions of it"
            fix = "stop that process, or leave life-cycle.controller out so that processes share the partitions"
            raise AssemblyError("OCQ-534", what, f"group {group}", fix)


def _holders(view: ControlView, group: str, node: Node) -> list[str]:
    found = {
        f"node {owner.name}"
        for lease in view.leases
        if lease.key.group == group
        if (owner := view.owner_of(lease)) is not None and owner.id != node.id
    }
    return sorted(found)


def lock_coordinator_for(
    settings: NodeSettings,
    timing: LeaseTiming,
    groups: Mapping[str, LockedGroup],
    is_outage: Callable[[BaseException], bool],
) -> LockCoordinator:
    """Return what takes and renews the locks of this process, and has its engines drive what it holds.

    Args:
        settings: The settings of the node.
        timing: How long locks count as held after a renewal.
        groups: The groups that use locks.
        is_outage: Returns whether an error means that a database is unavailable.
    """
    name = settings.name or node_name()
    return LockCoordinator(name, groups, timing, lambda: machine_ms() / 1000, is_outage, settings.max_partitions)


def require_all_locks(coordinator: LockCoordinator) -> None:
    """Raise if a group that this node is to run alone cannot have all of its locks.

    Raises:
        AssemblyError: OCQ-534, naming the first partition whose lock was not available.
    """
    for key, failure in coordinator.missing():
        why, fix = f"its lock registry fails: {failure}", "check that the registry is reachable"
        if not failure:
            why = f"another process has the lock of partition {key.partition}"
            fix = "stop that process, or leave life-cycle.controller out so that processes share the partitions"
        what = f"group '{key.group}' is to run in this process alone, but {why}"
        raise AssemblyError("OCQ-534", what, f"group {key.group}", fix)

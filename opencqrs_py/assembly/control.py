"""Control at run time: requests for groups are recorded, and nodes carry them out. Works from any process."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from opencqrs_py.adapters.processes import has_ended
from opencqrs_py.assembly.group_names import unknown_group
from opencqrs_py.assembly.layouts import partitions_of
from opencqrs_py.assembly.nodes import is_led
from opencqrs_py.config import EffectiveGroup
from opencqrs_py.control.ports import ControlStore
from opencqrs_py.control.records import ControlView, GroupPartition, Lease, Node, Wanted
from opencqrs_py.errors import AssemblyError, WaitTimedOutError
from opencqrs_py.model.naming import canonical
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import ProcessorState
from opencqrs_py.processing.ports import ProgressTracker, statuses_of

if TYPE_CHECKING:
    from opencqrs_py.assembly.container import ApplicationContainer, GroupContainer

_log = logging.getLogger("opencqrs.control")
_POLL_SECONDS = 0.1  # between two polls of the control tables while a command waits
DEFAULT_TIMEOUT = 60.0
DEFAULT_AVOIDANCE = 60.0
_RECORDED = "the request is recorded and will be carried out; see opencqrs status and opencqrs nodes"
_UNCHANGED = "nothing was changed; see opencqrs status and opencqrs nodes, and run the command again"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node as ``opencqrs nodes`` shows it.

    Attributes:
        node: The node.
        alive: Whether it holds its leases and its process has not provably ended.
        seconds_left: Until its leases end without another heartbeat; 0 or less: they have ended.
        partitions: How many partitions it has of each group that it can run; empty if it is not alive.
        whole: How many partitions these groups have in all.
    """

    node: Node
    alive: bool
    seconds_left: float
    partitions: Mapping[str, int]
    whole: Mapping[str, int]


class Control:
    """Starts, stops and moves groups that use leases, and their partitions, whichever process runs them.

    Every call records its request, which outlives all processes, and may be repeated. Then it waits until it is carried
    out.

    Args:
        groups: The groups, by name.
        led: Names of those that use leases.
        store: The control tables; ``None`` if there are none.
        tracker_of: Returns where the progress of a group is.
    """

    def __init__(
        self,
        groups: Mapping[str, EffectiveGroup],
        led: frozenset[str],
        store: ControlStore | None,
        tracker_of: Callable[[str], ProgressTracker],
    ) -> None:
        self._groups = groups
        self._led = led
        self._store = store
        self._tracker_of = tracker_of

    def view(self) -> ControlView:
        """Return the state of the control tables; nodes whose processes have provably ended are marked dead."""
        return self._store.view().without(has_ended) if self._store is not None else ControlView()

    def nodes(self) -> list[NodeStatus]:
        """Return the known nodes, including crashed ones for a day."""
        view = self.view()
        held = Counter((lease.node, lease.key.group) for lease in view.leases)
        whole = Counter(lease.key.group for lease in view.leases)
        return [
            NodeStatus(
                record.node,
                record.alive,
                record.seconds_left,
                {group: held[record.node.id, group] for group in record.node.groups if record.alive},
                {group: whole[group] for group in record.node.groups},
            )
            for record in view.nodes
        ]

    def start(self, *names: str, timeout: float | None = DEFAULT_TIMEOUT) -> bool:
        """Request that groups or partitions run, and wait until a node has each of them.

        Args:
            names: ``books`` or ``books:0/2``, in any spelling.
            timeout: Longest wait in seconds; ``None``: do not wait.

        Returns:
            Whether a live node can run them; without one, the next that starts will.

        Raises:
            AssemblyError: OCQ-509 for a name that is not a group, OCQ-535 for a partition that does not exist, and for
                a group that does not use leases.
            WaitTimedOutError: OCQ-536, naming what was waited for.
        """
        wanted = self._want(names, Wanted.STARTED)
        return self._wait(wanted, timeout, "to be started", lambda view, lease: view.owner_of(lease) is not None)

    def stop(self, *names: str, timeout: float | None = DEFAULT_TIMEOUT) -> bool:
        """Request that groups or partitions stop, and wait until no node has them. They stay stopped until ``start``.

        Args, returns and errors are those of ``start``.
        """
        wanted = self._want(names, Wanted.STOPPED)
        return self._wait_until_stopped(wanted, timeout)

    def restart(self, *names: str, timeout: float | None = DEFAULT_TIMEOUT) -> bool:
        """Stop and start groups or partitions. An event that has ended processes is tried as if it had ended none.

        Args, returns and errors are those of ``start``. It waits for the stop in any case.
        """
        pausing = self._want(names, Wanted.PAUSED)  # a run until all is caught up does not wait for what is stopped
        try:
            self._wait_until_stopped(pausing, DEFAULT_TIMEOUT if timeout is None else timeout)
            self._forget_crashes({key for keys in self._keys(names).values() for key in keys})
        finally:
            self._want(names, Wanted.STARTED)
        return self.start(*names, timeout=timeout)

    def release(
        self, name: str, seconds: float = DEFAULT_AVOIDANCE, *, timeout: float | None = DEFAULT_TIMEOUT
    ) -> bool:
        """Have the node that has a partition release it and avoid it for a while; wait until another node has it.

        Args:
            name: ``books:0/2``, in any spelling.
            seconds: How long that node avoids it.
            timeout: Longest wait in seconds; ``None``: do not wait.

        Returns:
            Whether a node had it.

        Raises:
            AssemblyError: As ``start``; OCQ-540, if no other live node can run the partition.
            WaitTimedOutError: As ``start``.
        """
        ((key, *_),) = self._keys([name]).values()
        if ":" not in name:
            known = partitions_of(self._tracker_of(key.group), self._groups[key.group])
            raise _no_partition(name, f"name one partition: {_listed(self._groups[key.group], known)}")
        store, view = self._required(), self.view()
        owner = next((view.owner_of(lease) for lease in view.leases if lease.key == key), None)
        if owner is None:
            return False
        before = owner.id
        if not any(node.can_run(key) for node in view.alive.values() if node.id != before):
            what = f"no other live node can run {name}, so no node would run it"
            raise AssemblyError("OCQ-540", what, f"node {owner.name}", "start another process; look at opencqrs nodes")
        store.avoid(key, before, seconds)

        def has_moved(view: ControlView, lease: Lease) -> bool:
            return (now := view.owner_of(lease)) is not None and now.id != before

        return self._wait([key], timeout, f"to leave node {owner.name} for another one", has_moved)

    def can_run(self, group: str) -> bool:
        """Return whether a live node can run a group now."""
        return any(group in node.groups for node in self.view().alive.values())

    def is_stopped(self, group: str, partitions: Collection[Partition] = ()) -> bool:
        """Return whether a group, or these partitions of it, stay stopped until a command starts them."""
        view = self.view()
        keys = [GroupPartition(group, each) for each in partitions] or _keys(view, group)
        starts = self._groups[group].life_cycle.auto_start
        is_known = group in self._led and bool(keys)
        return is_known and all(view.wanted_of(key, starts=starts) is Wanted.STOPPED for key in keys)

    def renew(self, group: str) -> None:
        """Have nodes claim their partitions of a group again, as its progress was replaced.

        Otherwise they would notice only with the next event. They do so at their next heartbeat.
        """
        view = self.view()
        held: dict[str, list[GroupPartition]] = {}
        for lease in view.leases:
            if lease.key.group == group and (owner := view.owner_of(lease)) is not None:
                held.setdefault(owner.id, []).append(lease.key)
        for node, keys in held.items():
            self._required().give_back(node, keys)

    @contextmanager
    def paused(self, group: str, timeout: float) -> Iterator[bool]:
        """Have nodes release a group until the end of the block. What a person has stopped meanwhile stays stopped.

        Nothing is paused if it does not use leases, or no node has a partition of it. Yields whether a live node can
        run it and should.

        Raises:
            WaitTimedOutError: OCQ-536, if a node has not released it in time.
        """
        view = self.view()
        keys = _keys(view, group)
        with self._released(view, group, keys, timeout):
            yield _runs(view, keys)

    def runs(self, group: str) -> bool:
        """Return whether a live node can run a group and should; nothing is paused."""
        view = self.view()
        return _runs(view, _keys(view, group))

    @contextmanager
    def let_go(self, group: str, partitions: Collection[Partition], timeout: float) -> Iterator[bool]:
        """Have nodes finish the events in hand of partitions, and release them. If the block fails, they continue.

        Nothing is paused if the group does not use leases. Yields whether a live node can run them and they should run.

        Raises:
            WaitTimedOutError: OCQ-536, if a node has not released them in time.
        """
        view, keys = self.view(), [GroupPartition(group, each) for each in partitions]
        wanted = [key for key in keys if view.wanted_of(key) is not Wanted.STOPPED]
        runs = any(node.can_run(key) for node in view.alive.values() for key in wanted)
        with self._released(view, group, keys, timeout):
            yield runs

    @contextmanager
    def _released(
        self, view: ControlView, group: str, keys: Sequence[GroupPartition], timeout: float
    ) -> Iterator[None]:
        """Pause partitions until the end of the block, including those that a killed command has left paused.

        Then the earlier requests apply again: a partition that was started individually, or that a killed command has
        left, runs; the others have no request of their own, so that settings and commands decide as before.
        """
        owned = [lease.key for lease in view.leases if lease.key in keys and view.owner_of(lease) is not None]
        pausing = [key for key in keys if view.wanted_of(key) is not Wanted.STOPPED]
        withdrawn = {key for key in pausing if key not in view.wanted_partitions}
        try:
            if owned and pausing:
                self._required().want(group, Wanted.PAUSED, pausing)
            self._wait(owned, timeout, "to be released", lambda view, lease: view.owner_of(lease) is None, _UNCHANGED)
            yield
        finally:
            said = self.view().wanted_partitions
            paused = [key for key, one in said.items() if key.group == group and one is Wanted.PAUSED]
            for wanted in (None, Wanted.STARTED):
                if again := [key for key in paused if (key in withdrawn) is (wanted is None)]:
                    self._required().want(group, wanted, again)

    def _wait_until_stopped(self, keys: Sequence[GroupPartition], timeout: float | None) -> bool:
        return self._wait(keys, timeout, "to be stopped", lambda view, lease: view.owner_of(lease) is None)

    def _forget_crashes(self, keys: Collection[GroupPartition]) -> None:
        """Record that events have ended no process, by claiming their partitions, which no node has now."""
        for group in sorted({key.group for key in keys}):
            tracker = self._tracker_of(group)
            whole = partitions_of(tracker, self._groups[group])
            for status in statuses_of(tracker, group):
                key, failure = GroupPartition(group, status.partition), status.failure
                if key not in keys or failure is None or not (failure.crashes or failure.in_hand):
                    continue
                (cursor,) = tracker.claim(group, [status.partition], status.position, "opencqrs groups", layout=whole)
                forgotten = replace(failure, crashes=0, in_hand=False)
                kept = forgotten if forgotten.has_failed else None
                tracker.report(replace(status, state=ProcessorState.STOPPED, failure=kept), cursor.epoch)

    def _want(self, names: Sequence[str], wanted: Wanted) -> list[GroupPartition]:
        found = self._keys(names)
        store = self._required()
        for name, keys in found.items():
            store.want(keys[0].group, wanted, keys if ":" in name else ())
        return [key for keys in found.values() for key in keys]

    def _keys(self, names: Sequence[str]) -> dict[str, list[GroupPartition]]:
        groups = {canonical(name): group for name, group in self._groups.items()}
        found = {}
        for name in names:
            group = groups.get(canonical(name.partition(":")[0]))
            if group is None:
                raise unknown_group(name.partition(":")[0], self._groups)
            if group.name not in self._led:
                what = f"group '{group.name}' does not use leases"
                fix = "start and stop the processes that run it"
                raise AssemblyError("OCQ-535", what, f"group {group.name}", fix)
            known = partitions_of(self._tracker_of(group.name), group)
            found[name] = [GroupPartition(group.name, each) for each in _named(name, group, known)]
        return found

    def _required(self) -> ControlStore:
        if self._store is None:
            raise AssemblyError("OCQ-535", "no group uses leases", fix="keep progress in a database")
        return self._store

    def _wait(
        self,
        keys: Sequence[GroupPartition],
        timeout: float | None,
        what: str,
        is_so: Callable[[ControlView, Lease], bool],
        fix: str = _RECORDED,
    ) -> bool:
        """Wait until all partitions are as requested; return whether a node can run any of them."""
        view = self.view()
        if not any(key.group in node.groups for key in keys for node in view.alive.values()):
            return False
        until = time.monotonic() + (timeout or 0.0)
        while timeout is not None:
            missing = [lease.key for lease in view.leases if lease.key in keys and not is_so(view, lease)]
            if not missing:
                break
            if time.monotonic() >= until:
                shown = ", ".join(map(str, missing))
                raise WaitTimedOutError("OCQ-536", f"still waiting for {shown} {what}, after {timeout:g} s", fix=fix)
            time.sleep(_POLL_SECONDS)
            view = self.view()
        return True


def control_of(
    groups: Sequence[EffectiveGroup], containers: Mapping[str, GroupContainer], container: ApplicationContainer
) -> Control:
    """Return the control of an application's groups."""
    led = frozenset(name for name, group in containers.items() if is_led(group))
    store = container.control_store() if led else None
    return Control({group.name: group for group in groups}, led, store, lambda name: containers[name].tracker())


def _named(name: str, group: EffectiveGroup, known: tuple[Partition, ...]) -> tuple[Partition, ...]:
    _, colon, partition = name.partition(":")
    if not colon:
        return known
    found = tuple(each for each in known if str(each) == partition.strip())
    if not found:
        raise _no_partition(name, f"use one of {_listed(group, known)}")
    return found


def _listed(group: EffectiveGroup, known: Sequence[Partition]) -> str:
    return ", ".join(f"{group.name}:{each}" for each in known[:20])


def _no_partition(name: str, fix: str) -> AssemblyError:
    return AssemblyError("OCQ-535", f"'{name}' is not a partition", fix=fix)


def _keys(view: ControlView, group: str) -> list[GroupPartition]:
    return [lease.key for lease in view.leases if lease.key.group == group]


def _runs(view: ControlView, keys: Sequence[GroupPartition]) -> bool:
    runnable = any(node.can_run(key) for node in view.alive.values() for key in keys)
    return runnable and any(view.wanted_of(key) is not Wanted.STOPPED for key in keys)

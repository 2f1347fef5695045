"""Changes of the partitions of groups, by commands and by the setting, whichever processes run them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from opencqrs_py.adapters.memory import InMemoryProgressTracker
from opencqrs_py.assembly.actor import actor
from opencqrs_py.assembly.group_names import group_named
from opencqrs_py.assembly.nodes import is_led
from opencqrs_py.config import EffectiveGroup
from opencqrs_py.control.layouts import Cursors, Known, Log, at_start, carried_over, even, merge_of, split_of
from opencqrs_py.control.ports import ControlStore
from opencqrs_py.control.records import ControlView
from opencqrs_py.errors import AssemblyError, LayoutError
from opencqrs_py.model.group_record import GroupRecord, RecordedLayout
from opencqrs_py.model.naming import counted, listed
from opencqrs_py.model.partition import Partition, are_all, layout
from opencqrs_py.model.progress import Cursor, PartitionStatus
from opencqrs_py.processing.feed import UnsequencedError
from opencqrs_py.processing.frames import FrameProcessing
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.ports import GroupRecords, ProgressTracker, RepartitioningTracker, statuses_of

if TYPE_CHECKING:
    from opencqrs_py.assembly.container import ApplicationContainer, GroupContainer

_log = logging.getLogger("opencqrs.control")
_MOST_SHOWN = 20


@dataclass(frozen=True, slots=True)
class LayoutResult:
    """The result of a change of partitions, or of a dry run.

    Attributes:
        group: Processing group.
        before: Its partitions before.
        after: Its partitions now.
        positions: The position after which each new partition continues; empty if none is new.
        ahead: Of new partitions whose sequences come from several: the position up to which some are handled already.
        running: Whether a live node runs the group.
        dry_run: Whether nothing was changed.
    """

    group: str
    before: tuple[Partition, ...]
    after: tuple[Partition, ...]
    positions: Mapping[Partition, int] = field(default_factory=dict)
    ahead: Mapping[Partition, int] = field(default_factory=dict)
    running: bool = False
    dry_run: bool = False


class LettingGo(Protocol):
    """Makes the nodes release partitions."""

    def let_go(self, group: str, partitions: Collection[Partition], timeout: float) -> AbstractContextManager[bool]:
        """Have partitions be released for the block; if it fails, they continue. Gives whether a node can run them."""
        ...

    def runs(self, group: str) -> bool:
        """Return whether a live node can run a group and should."""
        ...

    def view(self) -> ControlView:
        """Return the state of the control tables."""
        ...


class Layouts:
    """Changes the partitions of groups, from any process. Each change is logged by the logger ``opencqrs.control``.

    Every partition continues where its sequences were: no event is handled twice, and none is left out.

    Args:
        groups: The groups.
        parts: Their parts, by name.
        container: The parts that they share.
        nodes: Makes nodes release partitions.
        rebuilds: Whether they are those of a rebuild, which gets the partitions of the live group.
    """

    def __init__(
        self,
        groups: Sequence[EffectiveGroup],
        parts: Mapping[str, GroupContainer],
        container: ApplicationContainer,
        nodes: LettingGo,
        *,
        rebuilds: bool = False,
    ) -> None:
        self._groups = groups
        self._parts = parts
        self._led = frozenset(name for name, group in parts.items() if is_led(group))
        self._store: ControlStore | None = container.control_store() if self._led else None
        self._nodes = nodes
        self._rebuilds = rebuilds

    def split(self, name: str, *, timeout: float = 60.0, dry_run: bool = False) -> LayoutResult:
        """Make two partitions of one.

        Args:
            name: ``books:0/2``, in any spelling.
            timeout: Longest wait in seconds for a node to release it.
            dry_run: Whether only to return what would happen.

        Raises:
            AssemblyError: OCQ-509 for a name that is not a group, OCQ-535 for one without a partition.
            LayoutError: OCQ-615, if that cannot be, or another process has changed the partitions meanwhile, or the
                progress of some is lost.
            ResetError: OCQ-612, if too much would have to be remembered of a replay.
            WaitTimedOutError: OCQ-536, if a node has not released them in time.
        """
        group, partition = self._partition(name)
        return self._change(group, split_of(self._known(group), partition), timeout, dry_run=dry_run)

    def merge(self, name: str, *, timeout: float = 60.0, dry_run: bool = False) -> LayoutResult:
        """Merge a partition with the other half of what it was split from.

        Args, returns and errors are those of ``split``.
        """
        group, partition = self._partition(name)
        return self._change(group, merge_of(self._known(group), partition), timeout, dry_run=dry_run)

    def repartition(self, name: str, count: int, *, timeout: float = 60.0, dry_run: bool = False) -> LayoutResult:
        """Give a group a number of partitions of the same size.

        Args:
            name: The group, in any spelling.
            count: How many partitions, 1 to 1,024.
            timeout: Longest wait in seconds for nodes to release it.
            dry_run: Whether only to return what would happen.

        Returns and errors are those of ``split``.
        """
        return self._change(group_named(name, self._groups), even(count), timeout, dry_run=dry_run)

    def started(self, names: Collection[str]) -> dict[str, tuple[Partition, ...]]:
        """Return the partitions of groups that this process is about to start, changed if their setting has changed.

        Raises:
            LayoutError: OCQ-615, if a group cannot have that many partitions.
            WaitTimedOutError: OCQ-536, if a node has not released them in time.
        """
        view = self._nodes.view()
        return {group.name: self._started(group, look, view) for group, look in self._looks(names)}

    def _started(self, group: EffectiveGroup, look: _Look, view: ControlView) -> tuple[Partition, ...]:
        setting, name = group.life_cycle.partitions, group.name
        if look.records is None:
            return layout(setting)
        living = [each.groups[name].modulus for each in view.alive.values() if name in each.groups]
        known = [status.partition for status in look.statuses if status.group == name]
        recorded = next((record.layout for record in look.records if record.group == name), None)
        found = at_start(setting, Known(known, recorded, living))
        if found.outdated and recorded is not None:
            text = "life-cycle.partitions of group %s is %d here; another process has set %d since, which applies"
            _log.warning(text, name, setting, recorded.setting)
        if found.changes:
            stays = set(known) == set(found.partitions)  # by a command that has come before the setting
            was = recorded.setting if recorded is not None else len(known)
            if not stays and not self._rebuilds:  # whose number is not that of the setting
                _log.warning(
                    "life-cycle.partitions of group %s was %d and is %d now: the partitions are changed",
                    name,
                    was,
                    setting,
                )
            try:
                return self._change(group, found.partitions, 60.0, setting=setting).after
            except LayoutError:
                if set(self._known(group)) != set(found.partitions):  # else another process has done the same
                    raise
                return found.partitions
        leased = {lease.key.partition for lease in view.leases if lease.key.group == name}
        if self._store is not None and group.name in self._led and known and leased != set(found.partitions):
            self._store.lay_out(name, found.partitions)  # a change was broken off, or the file of the leases is new
        return found.partitions

    def _change(
        self,
        group: EffectiveGroup,
        target: Sequence[Partition],
        timeout: float,
        *,
        setting: int | None = None,
        dry_run: bool = False,
    ) -> LayoutResult:
        name, tracker = group.name, self._tracker(group)
        known = self._known(group)
        leaving = sorted(set(known) - set(target))
        carry = self._carrying(group, target)
        statuses = statuses_of(tracker, name)
        if not statuses:
            fix = "set life-cycle.partitions, or start it first"
            raise LayoutError("OCQ-615", f"group '{name}' has no progress yet", f"group {name}", fix)
        carried = carry({status.partition: _standing(status) for status in statuses})  # refused before any release
        if dry_run:
            return _result(name, known, target, carried, running=self._nodes.runs(name), dry_run=True)
        if not leaving:
            if setting is not None:
                tracker.repartition(name, target, carry, setting=setting)
            if self._store is not None and group.name in self._led:
                self._store.lay_out(name, target)  # a change was broken off, or there is nothing to do
            return _result(name, known, target, {}, running=self._nodes.runs(name))
        is_recorded = any(record.group == name and record.layout is not None for record in tracker.records())
        if setting is None and not is_recorded:
            setting = group.life_cycle.partitions  # which these override
        with self._nodes.let_go(name, leaving, timeout) as running:
            carried = tracker.repartition(name, target, carry, setting=setting)
            if self._store is not None and group.name in self._led:
                self._store.lay_out(name, target)
        self._report(name, counted(len(target), "partition"), len(known))
        return _result(name, known, target, carried, running=running)

    def _report(self, name: str, count: str, before: int) -> None:
        if self._rebuilds:
            text = "the rebuild of group %s continues with %s, as the group has now, instead of %d"
            _log.info(text, name, count, before)
        else:
            _log.info("group %s has %s now, and had %d; changed by %s", name, count, before, actor())

    def _carrying(self, group: EffectiveGroup, target: Sequence[Partition]) -> Callable[[Cursors], Cursors]:
        processing: GroupProcessing = self._parts[group.name].processing()
        if not processing.repartitions:
            what = f"group '{group.name}' cannot have other partitions: its own resolver assigns sequences"
            raise LayoutError("OCQ-615", what, fix="leave partition_resolver out")
        in_frames = isinstance(processing, FrameProcessing)
        if in_frames and len(target) > 1:
            what = f"group '{group.name}' has a @dataframe_handler: its only partition is split by Spark"
            raise LayoutError("OCQ-615", what, fix="leave it at one partition")

        def carry(known: Cursors) -> Cursors:
            if not are_all(known):
                raise _lost(group.name, known)
            carried = carried_over(known, target, Log(processing.hashes_at, processing.positions_of))
            if in_frames and any(cursor.ahead is not None for cursor in carried.values()):
                what = f"partitions of group '{group.name}' are at different positions"
                fix = "let all of them reach the same event with the old handlers, then start the @dataframe_handler"
                raise LayoutError("OCQ-615", what, fix=fix)
            return carried

        def carry_named(known: Cursors) -> Cursors:
            try:
                return carry(known)
            except UnsequencedError as failed:
                what = f"the sequence of {failed.event.label} cannot be determined: {failed.error}"
                raise LayoutError("OCQ-615", what, f"group {group.name}", "fix its resolver") from failed

        return carry_named

    def _tracker(self, group: EffectiveGroup) -> RepartitioningTracker:
        tracker, name = self._parts[group.name].tracker(), group.name
        if isinstance(tracker, RepartitioningTracker) and not isinstance(tracker, InMemoryProgressTracker):
            return tracker
        why = "its progress tracker does not support it"
        if isinstance(tracker, InMemoryProgressTracker):
            why = "its progress is in memory; set life-cycle.partitions, and start again"
        what = f"the partitions of group '{name}' cannot be changed: {why}"
        raise LayoutError("OCQ-615", what, f"group {name}", "keep progress in a database")

    def _known(self, group: EffectiveGroup) -> tuple[Partition, ...]:
        return partitions_of(self._tracker(group), group)

    def _partition(self, name: str) -> tuple[EffectiveGroup, Partition]:
        group = group_named(name.partition(":")[0], self._groups)
        known, wanted = self._known(group), name.partition(":")[2].strip()
        found = next((each for each in known if str(each) == wanted), None)
        if found is None:
            shown = ", ".join(f"{group.name}:{each}" for each in known[:_MOST_SHOWN])
            raise AssemblyError("OCQ-535", f"'{name}' is not a partition", fix=f"use one of {shown}")
        return group, found

    def _looks(self, names: Collection[str]) -> Iterator[tuple[EffectiveGroup, _Look]]:
        """Yield for each group what its tracker has recorded; those of one database are asked once."""
        looks: dict[int, _Look] = {}
        for group in sorted((each for each in self._groups if each.name in names), key=lambda each: each.name):
            parts = self._parts[group.name]
            tracker: ProgressTracker = parts.tracker()
            if not isinstance(tracker, RepartitioningTracker) or isinstance(tracker, InMemoryProgressTracker):
                yield group, _Look([], None)
                continue
            if id(tracker) not in looks:
                looks[id(tracker)] = _Look(tracker.statuses(), tracker.records())
            yield group, looks[id(tracker)]


@dataclass(frozen=True, slots=True)
class _Look:
    """What trackers have recorded of groups; no records: they keep none, and partitions cannot be changed."""

    statuses: Sequence[PartitionStatus]
    records: Sequence[GroupRecord] | None


def partitions_of(tracker: ProgressTracker, settings: EffectiveGroup) -> tuple[Partition, ...]:
    """Return the partitions that a group has, or had if its progress is lost; before its first start, will have."""
    known = tuple(sorted(each.partition for each in statuses_of(tracker, settings.name)))
    records = tracker.records() if isinstance(tracker, GroupRecords) else []
    recorded: RecordedLayout | None = next((one.layout for one in records if one.group == settings.name), None)
    if recorded is not None:
        return recorded.partitions
    return known or layout(settings.life_cycle.partitions)


def _standing(status: PartitionStatus) -> Cursor:
    known = {"failure": status.failure, "replay": status.replay, "ahead": status.ahead}
    return Cursor(status.partition, 0, status.position, status.position, **known)  # type: ignore[arg-type]


def _lost(group: str, known: Collection[Partition]) -> LayoutError:
    what = f"of group '{group}' only the progress of partition {listed(map(str, sorted(known)))} is left"
    fix = f"restore the other rows from a backup; or opencqrs groups reset {group}, and name where it continues"
    return LayoutError("OCQ-615", what, "table opencqrs_progress", fix)


def _result(
    group: str,
    before: Sequence[Partition],
    after: Sequence[Partition],
    carried: Cursors,
    *,
    running: bool = False,
    dry_run: bool = False,
) -> LayoutResult:
    positions = {one: cursor.stored for one, cursor in sorted(carried.items())}
    ahead = {one: cursor.ahead.until for one, cursor in sorted(carried.items()) if cursor.ahead is not None}
    return LayoutResult(group, tuple(before), tuple(sorted(after)), positions, ahead, running, dry_run)

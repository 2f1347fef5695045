"""What any process can see of an application's groups: progress, owners, skipped events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from opencqrs_py.assembly.control import Control, control_of
from opencqrs_py.assembly.nodes import is_led
from opencqrs_py.assembly.status import GroupStatus, known_statuses
from opencqrs_py.config import EffectiveGroup
from opencqrs_py.control.records import ControlView, GroupPartition, Lease, Wanted
from opencqrs_py.errors import ExplainedError
from opencqrs_py.model.partition import Partition, layout
from opencqrs_py.model.progress import PartitionStatus, ProcessorState, Skip
from opencqrs_py.model.selection import Selection
from opencqrs_py.processing.ports import EventSource

if TYPE_CHECKING:
    from opencqrs_py.assembly.container import ApplicationContainer, GroupContainer

Running = Mapping[GroupPartition, PartitionStatus]
"""The partitions that this process has, which answer for themselves."""


@dataclass(frozen=True, slots=True)
class Overview:
    """A look at groups from outside of their processors.

    Attributes:
        groups: Their effective settings.
        parts: Their parts, by name.
        container: The parts that they share.
    """

    groups: Sequence[EffectiveGroup]
    parts: Mapping[str, GroupContainer]
    container: ApplicationContainer

    def statuses(self, chosen: Sequence[EffectiveGroup], source: EventSource, running: Running) -> list[GroupStatus]:
        """Return how far groups are.

        While the event store is unavailable, its head is the newest position that a running partition has reached.

        Args:
            chosen: The groups.
            source: The event store.
            running: The partitions that this process has.
        """
        head = _head(source, running)
        view = self._view(chosen, running)
        now = datetime.now(UTC)
        return [self._status(settings, source, head, running, view, now) for settings in chosen]

    def skipped(self) -> list[Skip]:
        """Return the events that were given up, by group and position."""
        names = {group.name for group in self.groups}
        skips = {skip for name in names for skip in self.parts[name].tracker().skipped() if skip.group in names}
        return sorted(skips, key=lambda skip: (skip.group, skip.position, skip.partition))

    def control(self) -> Control:
        """Return what starts, stops and moves the groups."""
        return control_of(self.groups, self.parts, self.container)

    def _view(self, chosen: Sequence[EffectiveGroup], running: Running) -> ControlView:
        try:
            return self.control().view() if any(is_led(self.parts[each.name]) for each in chosen) else ControlView()
        except Exception as error:
            if running and any(self.parts[each.name].tracker().is_outage(error) for each in chosen):
                return ControlView()
            raise

    def _status(
        self,
        settings: EffectiveGroup,
        source: EventSource,
        head: int,
        running: Running,
        view: ControlView,
        now: datetime,
    ) -> GroupStatus:
        group, partitions = settings.name, layout(settings.life_cycle.partitions)
        own = {key.partition: status for key, status in running.items() if key.group == group}
        known: dict[Partition, PartitionStatus] = {}
        if not own.keys() >= set(partitions):
            known = {each.partition: each for each in known_statuses(self.parts[group].tracker(), group, head)}
        leases = {lease.key.partition: lease for lease in view.leases if lease.key.group == group}
        statuses = [
            _with_owner(status, view, leases[partition], now) if partition in leases else status
            for partition, status in sorted((known | own).items())
        ]
        behind = {status.position for status in statuses if status.position < head}
        ages = {position: _age_after(position, source, settings, now) for position in behind}
        lag_seconds = {status.partition: ages.get(status.position, 0.0) for status in statuses}
        return GroupStatus(group, head, tuple(statuses), lag_seconds)


def _head(source: EventSource, running: Running) -> int:
    try:
        return source.head()
    except Exception as error:
        if not running or not source.is_outage(error):
            raise
        return max(status.position for status in running.values())


def _age_after(position: int, source: EventSource, settings: EffectiveGroup, now: datetime) -> float | None:
    """Return the age in seconds of the first event of a group after a position, ``None`` if that is not known."""
    selection = Selection(settings.fetch.subject, settings.fetch.recursive, attributes=frozenset({"time"}))
    try:
        events = source.read(position, 1, selection).events
        moment = events[0].timestamp if events else None
    except Exception as error:
        if not (source.is_outage(error) or isinstance(error, ExplainedError)):
            raise
        return None
    return None if moment is None else max(0.0, (now - moment).total_seconds())


def _with_owner(status: PartitionStatus, view: ControlView, lease: Lease, now: datetime) -> PartitionStatus:
    """Return the status of a partition with what the control tables show of it."""
    wanted, record = view.wanted_of(lease.key), view.record_of(lease.node)
    status = replace(status, wanted=wanted.value)
    if record is not None and record.alive:
        until = (now + timedelta(seconds=record.seconds_left)).isoformat(timespec="milliseconds")
        return replace(status, owner=record.node.name, owned_since=lease.since, lease_until=until)
    if lease.node:
        return replace(status, state=ProcessorState.UNOWNED)
    able = any(lease.key.group in node.groups for node in view.alive.values())
    if able and wanted is Wanted.STARTED and status.state is ProcessorState.STOPPED:
        return replace(status, state=ProcessorState.STANDBY)
    return status

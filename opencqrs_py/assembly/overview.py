"""What any process can see of an application's groups: progress, owners, skipped events, and whether all is well."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from math import inf
from typing import TYPE_CHECKING

from opencqrs_py.adapters.processes import has_ended
from opencqrs_py.adapters.sql.dialects.dialect import is_outage
from opencqrs_py.assembly.control import Control, control_of
from opencqrs_py.assembly.health import GroupHealth, Health, HealthRule, Standing, judged, seconds_since
from opencqrs_py.assembly.inbox import InboxControl
from opencqrs_py.assembly.nodes import is_led
from opencqrs_py.assembly.status import GroupStatus, NodeLoad
from opencqrs_py.config import EffectiveGroup
from opencqrs_py.control.records import ControlView, GroupPartition, Lease, Wanted
from opencqrs_py.errors import EventStoreError, ExplainedError
from opencqrs_py.model.group_record import GroupRecord
from opencqrs_py.model.masking import scrubbed
from opencqrs_py.model.partition import layout
from opencqrs_py.model.progress import OF_OWNERS, PartitionStatus, ProcessorState, Skip
from opencqrs_py.model.selection import Selection
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.exceptions import one_line
from opencqrs_py.processing.ports import EventSource, GroupRecords, ProgressTracker, RebuildRecords
from opencqrs_py.processing.positions import newest_in

if TYPE_CHECKING:
    from opencqrs_py.assembly.container import ApplicationContainer, GroupContainer

Running = Mapping[GroupPartition, PartitionStatus]
"""The partitions that this process has, which know their own status."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What was read of groups at one moment.

    Attributes:
        head: Position of the newest event; ``None`` if the event store has not answered.
        running: The partitions that this process has.
        known: What progress trackers have of partitions.
        view: The control tables.
        own: What this process has in hand on Spark; ``None`` if it runs nothing there.
        outage: Why some of it could not be read, in one line; empty if all was.
        progress_outage: Whether progress and the control tables could not be read.
        now: When this was.
    """

    head: int | None
    running: Running
    known: Mapping[GroupPartition, PartitionStatus] = field(default_factory=dict)
    view: ControlView = field(default_factory=ControlView)
    own: NodeLoad | None = None
    outage: str = ""
    progress_outage: bool = False
    now: datetime = field(default_factory=lambda: datetime.now(UTC))

    def statuses_of(self, settings: EffectiveGroup) -> dict[GroupPartition, PartitionStatus]:
        """Return what is known of each partition of a group, with its owner, by partition."""
        leases = {lease.key: lease for lease in self.leases_of(settings.name)}
        keys = sorted(key for key in self.known.keys() | self.running.keys() if key.group == settings.name)
        found = {}
        for key in keys:
            status = self._own_or_known(key)
            found[key] = _with_owner(status, settings, self, leases[key]) if key in leases else status
        return found

    def leases_of(self, group: str) -> list[Lease]:
        """Return the leases of a group's partitions."""
        return [lease for lease in self.view.leases if lease.key.group == group]

    def wanted_of(self, key: GroupPartition, settings: EffectiveGroup) -> Wanted:
        """Return what is requested for a partition: by command, else by a live node, this process, or the settings."""
        return self.view.wanted_of(key, starts=key in self.running or settings.life_cycle.auto_start)

    def able(self, group: str) -> list[str]:
        """Return the names of the live nodes that can run a group."""
        return [node.name for node in self.view.alive.values() if group in node.groups]

    def lapsed(self, lease: Lease) -> float | None:
        """Return the seconds since a lease ended by time, while its process may be alive; ``None`` if it did not."""
        record = self.view.record_of(lease.node)
        if record is None or record.alive or record.seconds_left > 0 or has_ended(record.node.process):
            return None
        return -record.seconds_left

    def on_spark(self, group: str) -> tuple[NodeLoad, ...]:
        """Return the live nodes that can run a group on Spark, with what they have in hand."""
        alive = self.view.alive.values()
        others = [NodeLoad(each.name, each.load, each.id) for each in alive if each.load is not None]
        found = [each for each in others if self.own is None or each.id != self.own.id]
        if self.own is not None:
            found.append(self.own)
        return tuple(sorted((each for each in found if group in each.load.tasks), key=lambda each: each.node))

    def _own_or_known(self, key: GroupPartition) -> PartitionStatus:
        own, known = self.running.get(key), self.known.get(key)
        if own is None:
            return self.known[key] if self.head is None else _beyond(self.known[key], self.head)
        if known is None:
            return own
        found = replace(own, updated_at=known.updated_at, skipped=known.skipped, parked=known.parked)
        return found if own.checkpoint is not None else replace(found, checkpoint=known.checkpoint)


@dataclass(frozen=True, slots=True)
class Overview:
    """An overview of groups from outside of their processors.

    Attributes:
        groups: Their effective settings.
        parts: Their parts, by name.
        container: The parts that they share.
    """

    groups: Sequence[EffectiveGroup]
    parts: Mapping[str, GroupContainer]
    container: ApplicationContainer

    def look(
        self,
        chosen: Sequence[EffectiveGroup],
        source: EventSource,
        running: Running,
        *,
        own: NodeLoad | None = None,
    ) -> Snapshot:
        """Read what is known of groups, by a number of statements that does not grow with groups and partitions.

        What cannot be read while a database is unavailable, or the event store refuses, is left out if this process has
        partitions of the groups, which then know their own status.

        Args:
            chosen: The groups.
            source: The event store.
            running: The partitions that this process has.
            own: What this process has in hand on Spark.
        """
        names = {each.name for each in chosen}
        running = {key: status for key, status in running.items() if key.group in names}
        outages: list[str] = []
        head: int | None = None
        try:
            head = newest_in(source)
        except Exception as error:
            if not running or not (source.is_outage(error) or isinstance(error, ExplainedError)):
                raise
            outages.append(_line_of(error))
        view, known, progress_outage = ControlView(), {}, False
        try:
            view = self._view(chosen)
            known = {GroupPartition(each.group, each.partition): each for each in self._known(chosen)}
        except Exception as error:
            if not running or not any(self.parts[each.name].tracker().is_outage(error) for each in chosen):
                raise
            progress_outage = True
            outages.append(_line_of(error))
        if head is not None and not outages and any(status.position > head for status in known.values()):
            head = newest_in(source)  # events were added and handled since the first call
        return Snapshot(head, running, known, view, own, "; ".join(outages), progress_outage)

    def statuses(
        self, chosen: Sequence[EffectiveGroup], look: Snapshot, source: EventSource | None = None
    ) -> list[GroupStatus]:
        """Return how far groups are.

        Args:
            chosen: The groups.
            look: What was read of them.
            source: The event store, which returns the age of the first event after each position before its head;
                ``None`` to leave the ages out.
        """
        return [self._status(settings, look, source) for settings in chosen]

    def recorded(self, statuses: Sequence[GroupStatus]) -> list[GroupStatus]:
        """Return the statuses with the records of groups and rebuilds; without while a database is unavailable."""
        names = {status.group for status in statuses}
        found: dict[str, GroupRecord] = {}
        for tracker in self._trackers(names):
            try:
                records = tracker.records() if isinstance(tracker, GroupRecords) else []
                rebuilt = tracker.rebuilt(names) if records and isinstance(tracker, RebuildRecords) else []
            except Exception as error:
                if not (tracker.is_outage(error) or isinstance(error, ExplainedError)):
                    raise
                continue
            found |= {record.group: record for record in (*records, *rebuilt)}
        return [replace(status, record=found.get(status.group)) for status in statuses]

    def health(self, chosen: Sequence[EffectiveGroup], look: Snapshot, source: EventSource, rule: HealthRule) -> Health:
        """Return whether all is well with groups."""
        if look.outage:
            return Health(unavailable=look.outage)
        return Health(tuple(self._health(settings, look, source, rule) for settings in chosen))

    def skipped(self) -> list[Skip]:
        """Return the events that were skipped, by group and position."""
        names = {group.name for group in self.groups}
        skips = {skip for tracker in self._trackers(names) for skip in tracker.skipped() if skip.group in names}
        return sorted(skips, key=lambda skip: (skip.group, skip.position, skip.partition))

    def control(self) -> Control:
        """Return what starts, stops and moves the groups."""
        return control_of(self.groups, self.parts, self.container)

    def inbox(self, source: Callable[[], EventSource]) -> InboxControl:
        """Return what shows and changes the inboxes of the groups, whose events are in the store that is returned."""
        groups = {group.name: group for group in self.groups}
        return InboxControl(groups, lambda name: self.parts[name].tracker(), source, self.container.clock)

    def _view(self, chosen: Sequence[EffectiveGroup]) -> ControlView:
        """Return the control tables' view of groups that use leases; for other groups it may be outdated."""
        led = {each.name for each in chosen if is_led(self.parts[each.name])}
        if not led:
            return ControlView()
        view = self.control().view()
        return replace(
            view,
            leases=tuple(lease for lease in view.leases if lease.key.group in led),
            wanted={group: wanted for group, wanted in view.wanted.items() if group in led},
            wanted_partitions={key: wanted for key, wanted in view.wanted_partitions.items() if key.group in led},
        )

    def _known(self, chosen: Sequence[EffectiveGroup]) -> Iterator[PartitionStatus]:
        """Return what trackers have of groups."""
        names = {each.name for each in chosen}
        for tracker in self._trackers(names):
            yield from (_without_mark(each) for each in tracker.statuses() if each.group in names)

    def _trackers(self, names: Collection[str]) -> Iterable[ProgressTracker]:
        """Return the trackers of groups, each once: those of one database share it."""
        return {id(each): each for each in (self.parts[name].tracker() for name in names)}.values()

    def _status(self, settings: EffectiveGroup, look: Snapshot, source: EventSource | None) -> GroupStatus:
        statuses = look.statuses_of(settings)
        head = inf if look.head is None else look.head
        behind = {each.position for each in statuses.values() if each.position < head}
        ages: dict[int, float | None] = {}
        if source is not None and look.head is not None:
            known = {position: _age_after(position, source, settings, look.now) for position in behind}
            ages = {position: None if age is None else max(0.0, age) for position, age in known.items()}
        lag_seconds = {
            key.partition: ages.get(each.position) if each.position in behind else 0.0 for key, each in statuses.items()
        }
        return GroupStatus(
            settings.name,
            look.head,
            tuple(statuses.values()),
            lag_seconds,
            nodes_on_spark=look.on_spark(settings.name),
        )

    def _health(self, settings: EffectiveGroup, look: Snapshot, source: EventSource, rule: HealthRule) -> GroupHealth:
        return judged(settings.name, self.standings(settings, look, source, rule.stalled_after), rule)

    def standings(
        self, settings: EffectiveGroup, look: Snapshot, source: EventSource, stalled_after: float = inf
    ) -> list[Standing]:
        """Return the status of each partition of a group, also of one that has a lease and no progress yet.

        The event store is used only for how long one waits.
        """
        statuses, led = look.statuses_of(settings), is_led(self.parts[settings.name])
        leases = {lease.key: lease for lease in look.leases_of(settings.name)} if led else {}
        owned = {key: owner for key, lease in leases.items() if (owner := look.view.owner_of(lease)) is not None}
        begun = {key.partition for key in statuses}
        new = (key for key in leases if key not in statuses and not any(map(key.partition.overlaps, begun)))
        configured = (GroupPartition(settings.name, each) for each in layout(settings.life_cycle.partitions))
        return [
            Standing(
                group=settings.name,
                partition=key.partition,
                wanted=look.wanted_of(key, settings) is Wanted.STARTED or (not led and _was_started(statuses.get(key))),
                led=led,
                status=statuses.get(key),
                head=look.head,
                owner=owned[key].name if key in owned else "",
                able=look.able(settings.name),
                lapsed=look.lapsed(leases[key]) if key in leases else None,
                waited=Waiting(
                    statuses.get(key),
                    settings,
                    source,
                    look.now,
                    stalled_after,
                    leases[key].since if key in owned else "",
                ),
            )
            for key in sorted([*statuses, *new]) or configured
        ]


@dataclass(frozen=True, slots=True)
class Waiting:
    """How long a partition has had events to handle without any progress; uses the event store only if necessary.

    Attributes:
        status: What is known of the partition.
        settings: Those of its group.
        source: The event store.
        now: The time.
        enough: Seconds from which on the answer matters; below that, the event store is not queried.
        owned_since: ISO 8601 time at which a node took the partition; empty if none has it.
    """

    status: PartitionStatus | None
    settings: EffectiveGroup
    source: EventSource
    now: datetime
    enough: float
    owned_since: str = ""

    def __call__(self) -> float:
        """Return it in seconds; before the first run, those since a node took the partition."""
        status = self.status
        if status is None:
            return seconds_since(self.owned_since or None, self.now) or 0.0
        if status.state is ProcessorState.BACKING_OFF and status.failure is not None:
            return seconds_since(status.failure.first_failed_at, self.now) or 0.0
        ages = [seconds_since(each, self.now) for each in (status.updated_at, status.owned_since)]
        known = [age for age in ages if age is not None]
        waited = min(known, default=0.0)
        if waited < self.enough:
            return waited
        handled = _handled_beyond(status)  # participants have yet to say that it is durable
        after, without = (status.position, None) if handled is None else (handled, 0.0)
        unhandled = _age_after(after, self.source, self.settings, self.now, without)
        # A time that lies further ahead than clocks differ says nothing about when the event arrived.
        return waited if unhandled is None or unhandled <= -self.enough else min(waited, max(0.0, unhandled))


def line_of_outage(error: BaseException) -> str | None:
    """Return in one line why databases cannot be read, ``None`` for any other error."""
    return _line_of(error) if isinstance(error, EventStoreError) or is_outage(error) else None


def _line_of(error: BaseException) -> str:
    if isinstance(error, ExplainedError):
        return scrubbed(", ".join(filter(None, (f"[{error.code}] {error.what}", error.where, error.fix))))
    return scrubbed(one_line(error))


def _without_mark(status: PartitionStatus) -> PartitionStatus:
    """Return a status without the failed event if that is only being handled."""
    blocked = status.failure is None or status.failure.blocks
    return status if blocked else replace(status, failure=None)


def _beyond(status: PartitionStatus, head: int) -> PartitionStatus:
    """Mark progress, or what counts as handled, beyond the newest event as of another log; a start would refuse it."""
    if status.farthest <= head or status.error:
        return status
    before = (
        "this progress" if status.position > head else f"position {status.farthest}, up to which events were handled"
    )
    error = f"[OCQ-316] the event store ends at position {head}, before {before}: it is not the one that was read"
    return replace(status, error=error)


def _was_started(status: PartitionStatus | None) -> bool:
    """Return whether a process has started a partition and not stopped it since, or has left it failed."""
    return status is not None and status.state in (*OF_OWNERS, ProcessorState.FAILED)


def _handled_beyond(status: PartitionStatus) -> int | None:
    """Return up to where participants have handled events beyond the stored progress; ``None`` if they have not."""
    if status.checkpoint is None or status.state is not ProcessorState.RUNNING:
        return None
    return status.checkpoint.handled if status.checkpoint.handled > status.position else None


def _age_after(
    position: int, source: EventSource, settings: EffectiveGroup, now: datetime, without: float | None = None
) -> float | None:
    """Return the age in seconds of the first event of a group after a position, ``None`` if that is not known.

    It is below zero if the time of the event is in the future, and ``without`` if there is no such event.
    """
    selection = Selection(settings.fetch.subject, settings.fetch.recursive, attributes=frozenset({"time"}))
    try:
        events = source.read(position, 1, selection).events
        if not events:
            return without
        moment = events[0].timestamp
    except Exception as error:
        if not (source.is_outage(error) or isinstance(error, ExplainedError)):
            raise
        return None
    return None if moment is None else (now - moment).total_seconds()


def _with_owner(status: PartitionStatus, settings: EffectiveGroup, look: Snapshot, lease: Lease) -> PartitionStatus:
    """Return the status of a partition with what the control tables show of it."""
    wanted, record = look.wanted_of(lease.key, settings), look.view.record_of(lease.node)
    status = replace(status, wanted=wanted.value)
    if record is not None and record.alive:
        until = in_milliseconds(look.now + timedelta(seconds=record.seconds_left))
        if status.state is ProcessorState.STOPPED and wanted is Wanted.STARTED and lease.key not in look.running:
            status = replace(status, state=ProcessorState.STARTING)  # its last owner has stopped it, not this one
        return replace(status, owner=record.node.name, owned_since=lease.since, lease_until=until)
    if lease.node:
        return replace(status, state=ProcessorState.UNOWNED)
    if status.state in OF_OWNERS and lease.key not in look.running:  # its process has ended, with a call in hand
        status = replace(status, state=ProcessorState.STOPPED, next_attempt_at=None)
    if look.able(settings.name) and wanted is Wanted.STARTED and status.state is ProcessorState.STOPPED:
        return replace(status, state=ProcessorState.STANDBY)
    return status

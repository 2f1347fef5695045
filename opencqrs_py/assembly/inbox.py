"""Views and changes of the inbox, whichever process runs the groups."""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import groupby
from typing import Any

from opencqrs_py.adapters.memory import InMemoryProgressTracker
from opencqrs_py.assembly.actor import actor
from opencqrs_py.assembly.group_names import unknown_group
from opencqrs_py.assembly.layouts import partitions_of
from opencqrs_py.config import EffectiveGroup
from opencqrs_py.config.choices import Mode
from opencqrs_py.errors import InboxError
from opencqrs_py.model.choices import BatchMode
from opencqrs_py.model.event import Event
from opencqrs_py.model.inbox import (
    EVERYTHING,
    MOST_ATTEMPTS,
    STUCK,
    InboxChange,
    InboxEntry,
    InboxSelection,
    InboxStatus,
    Remainder,
)
from opencqrs_py.model.naming import canonical, counted, listed
from opencqrs_py.model.partition import Partition, layout
from opencqrs_py.model.progress import Skip
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.inbox.parking import events_of
from opencqrs_py.processing.ports import Clock, EventSource, ParkingTracker, ProgressTracker, statuses_of

_log = logging.getLogger("opencqrs.inbox")
_FEW = 100  # sequences that are read one by one
_TRIES = 5  # of a change, while processors change the same events


@dataclass(frozen=True, slots=True)
class InboxFilter:
    """A filter for events of the inbox: those that meet all given conditions.

    Attributes:
        groups: Names of groups, in any spelling; empty for all.
        status: What they wait for, such as ``paused``, in any spelling.
        sequence: Their sequence.
        event: Their CloudEvents ``id``.
        position: Their position.

    Raises:
        ValueError: For an unknown status, or a value of another type: no event would ever match.
    """

    groups: tuple[str, ...] = ()
    status: str | None = None
    sequence: str | None = None
    event: str | None = None
    position: int | None = None

    def __post_init__(self) -> None:
        """Accept a string as the name of one group, any other collection of names, and every spelling of a status."""
        given: object = self.groups
        object.__setattr__(self, "groups", (given,) if isinstance(given, str) else tuple(self.groups))
        if self.status is not None:
            object.__setattr__(self, "status", _status(self.status))
        for name, type_, wanted in (("sequence", str, "a str"), ("event", str, "a str"), ("position", int, "an int")):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, type_) or isinstance(value, bool)):
                raise ValueError(f"{name} must be {wanted}, got {value!r}")

    @property
    def selection(self) -> InboxSelection:
        """What a tracker can look for."""
        return InboxSelection(self.sequence, self.event, None if self.status is None else InboxStatus(self.status))

    def matches(self, entry: InboxEntry) -> bool:
        """Return whether all but the group applies to an event."""
        pairs = (
            (self.status, entry.status),
            (self.sequence, entry.sequence_id),
            (self.event, entry.event_id),
            (self.position, entry.position),
        )
        return all(wanted is None or wanted == found for wanted, found in pairs)

    def __str__(self) -> str:
        parts = (
            ("group", ", ".join(self.groups) or None),
            ("status", self.status),
            ("sequence", self.sequence),
            ("event", self.event),
            ("position", self.position),
        )
        return ", ".join(f"{name} {value}" for name, value in parts if value is not None)


@dataclass(frozen=True, slots=True)
class InboxStep:
    """What is done with an event of the inbox.

    Attributes:
        before: The event as it was.
        after: As it is now; ``None``: it has left.
        meant: The event that matches the filter, if it is another one: a later one of its sequence.
        held_up_by: An event of its sequence that waits for a person, and keeps this one from being tried, if it was to
            be.
    """

    before: InboxEntry
    after: InboxEntry | None
    meant: InboxEntry | None = None
    held_up_by: InboxEntry | None = None


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """An event of the inbox, with what is known of it.

    Attributes:
        entry: The event as it waits.
        first: The first event of its sequence, which is tried before all others.
        event: The stored event; ``None`` if it no longer exists.
        shares_id: Whether other events of the group that wait have the same id, as of other sources.
    """

    entry: InboxEntry
    first: InboxEntry
    event: Event | None
    shares_id: bool = False


@dataclass(frozen=True, slots=True)
class _Command:
    """A way to change the inbox.

    Attributes:
        done: What is logged of it.
        plan: Returns what is to be done with the events of a sequence, all that wait, in their order.
        fits: Which status events must have to be changed; empty if any will do.
        reason: What is recorded of events that leave; empty if none do.
        frees: Whether what is left of a sequence may be tried at once.
        partitions: Those of each group from which an event has left, read once; others follow, as rows may be lost.
    """

    done: str
    plan: Callable[[Sequence[InboxEntry]], list[InboxStep]]
    fits: str = ""
    reason: str = ""
    frees: bool = False
    partitions: dict[str, tuple[Partition, ...]] = field(default_factory=dict)


class InboxControl:
    """Shows and changes what waits in the inboxes of groups, from any process.

    A running processor notices changes within seconds, one that backs off after its pause. Each change is logged, with
    the person who made it, by the logger ``opencqrs.inbox``. With ``dry_run`` nothing is changed.

    Args:
        groups: The groups, by name.
        tracker_of: Returns where the progress of a group is, and its inbox.
        source: Returns the event store.
        clock: Returns the time.
    """

    def __init__(
        self,
        groups: Mapping[str, EffectiveGroup],
        tracker_of: Callable[[str], ProgressTracker],
        source: Callable[[], EventSource],
        clock: Callable[[], Clock],
    ) -> None:
        self._groups = groups
        self._tracker_of = tracker_of
        self._source = source
        self._clock = clock

    def entries(self, which: InboxFilter) -> list[InboxEntry]:
        """Return the events that wait, by group, sequence and position.

        Raises:
            AssemblyError: OCQ-509 for a name that is not a group.
            InboxError: OCQ-606, if a named group has no inbox that can be read from here.
        """
        return [entry for name, tracker in self._trackers(which) for entry in self._matching(name, tracker, which)]

    def _matching(self, group: str, tracker: ParkingTracker, which: InboxFilter) -> list[InboxEntry]:
        """Return the events of a group that match, by sequence and position, with what they wait for now."""
        found = tracker.entries(group, position=which.position, selection=which.selection)
        now = self._now()
        matching = (entry for entry in (_as_of(one, now) for one in found) if which.matches(entry))
        return sorted(matching, key=lambda entry: (entry.sequence_id, entry.position))

    def holders(self, entries: Iterable[InboxEntry]) -> dict[InboxEntry, InboxEntry]:
        """Return the event that holds up each of these events, if one of its sequence does that waits for a person.

        In a scheduled group with ``batch.mode: fail-first`` any such event does, elsewhere an earlier one.
        """
        moving = [one for one in entries if one.status.moves and not self._is_each(one.group)]
        stuck = self._stuck({one.group for one in moving})
        found = ((one, self._holder(one, stuck[one.group, one.sequence_id])) for one in moving)
        return {one: holder for one, holder in found if holder is not None}

    def _stuck(self, groups: Iterable[str]) -> Mapping[tuple[str, str], list[InboxEntry]]:
        """Return the events that wait for a person, by group and sequence, in their order; expired ones come last."""
        found = defaultdict[tuple[str, str], list[InboxEntry]](list)
        for name, tracker in (pair for group in groups for pair in self._trackers(InboxFilter((group,)))):
            for status in STUCK:
                for one in tracker.entries(name, selection=InboxSelection(status=status)):
                    found[name, one.sequence_id].append(_as_of(one, self._now()))
        for those in found.values():
            those.sort(key=lambda one: (one.status is InboxStatus.EXPIRED, one.position))
        return found

    def _holder(self, entry: InboxEntry, stuck: Iterable[InboxEntry]) -> InboxEntry | None:
        """Return the first of the events of its sequence that wait for a person that holds an event up."""
        whole = self._is_scheduled(entry.group)  # a batch waits for all of its events, a sequence for earlier ones
        holding = (one for one in stuck if whole or one.position < entry.position)
        # an expired one is removed before an attempt that is due
        return next((one for one in holding if entry.due_at is None or one.status is not InboxStatus.EXPIRED), None)

    def skips(self, which: InboxFilter) -> list[Skip]:
        """Return the events that have left unhandled, by group and position; their sequences are not recorded.

        Raises:
            AssemblyError: OCQ-509 for a name that is not a group.
        """
        names = self._names(which.groups)
        trackers = {id(tracker): tracker for tracker in map(self._tracker_of, names)}
        found = {skip for tracker in trackers.values() for skip in tracker.skipped() if skip.group in names}
        wanted = [
            skip for skip in found if which.event in (None, skip.event_id) and which.position in (None, skip.position)
        ]
        return sorted(wanted, key=lambda skip: (skip.group, skip.position, skip.partition))

    def unseen(self) -> list[str]:
        """Return the groups whose progress, with its inbox, another process has in memory."""
        return [name for name in self._groups if _is_elsewhere(self._tracker_of(name), name)]

    def without_handlers(self) -> dict[str, int]:
        """Return how many events wait of groups without a handler here, which were removed or renamed, by name."""
        trackers = {id(tracker): tracker for tracker in map(self._tracker_of, self._groups)}
        statuses = (status for tracker in trackers.values() for status in tracker.statuses())
        others = {(each.group, each.partition): each for each in statuses if each.group not in self._groups}
        found = Counter[str]()  # trackers of one database have the same
        for status in others.values():
            found[status.group] += sum(count for _, count in status.parked)
        return {name: count for name, count in sorted(found.items()) if count}

    def show(self, which: InboxFilter) -> ShownEntry:
        """Return one event with all that is known of it.

        Raises:
            AssemblyError: OCQ-509 for a name that is not a group.
            InboxError: OCQ-605, if none matches; OCQ-608, if several do; OCQ-606 as ``entries``.
        """
        found = [
            (entry, tracker)
            for name, tracker in self._trackers(which)
            for entry in self._matching(name, tracker, which)
        ]
        if not found:
            raise self._nothing(which)
        if len(found) > 1:
            places = listed(f"position {entry.position} of group {entry.group}" for entry, _ in found)
            fix = "name one of them: opencqrs inbox show POSITION --group NAME"
            raise InboxError("OCQ-608", f"{len(found)} events match {which}", places, fix)
        entry, tracker = found[0]
        those = tracker.entries(entry.group, most=1, selection=InboxSelection(entry.sequence_id))
        first = _as_of(those[0], self._now()) if those else entry  # which may have left meanwhile
        events = events_of(self._source(), (entry,))
        alike = [one for one in self._matching(entry.group, tracker, InboxFilter(event=entry.event_id)) if one != entry]
        return ShownEntry(entry, first, events[0] if events else None, shares_id=bool(alike))

    def retry(self, which: InboxFilter, *, dry_run: bool = False) -> list[InboxStep]:
        """Have the first event of each sequence with an event that matches tried at once, whatever it waits for.

        It has one attempt, and as many more as are left of those of ``park.retry``. In a scheduled group the events
        that match are due at the next tick, each with one attempt and what is left of ``schedule.retry``.

        Raises:
            AssemblyError: OCQ-509 for a name that is not a group.
            InboxError: OCQ-605, if nothing matches; OCQ-606 as ``entries``; OCQ-607, if processors keep changing the
                same events.
        """

        def plan(entries: Sequence[InboxEntry]) -> list[InboxStep]:
            meant = [one for one in entries if self._matches(which, one) and not self._is_over(one)]
            if not meant:
                return []
            first = entries[0]
            if self._is_scheduled(first.group):
                return self._freed(entries, meant)
            return [InboxStep(first, self._due(first, first=True), None if first in meant else meant[0])]

        return self._change(which, _Command("made due at once", plan, frees=True), dry_run=dry_run)

    def pause(self, which: InboxFilter, *, dry_run: bool = False) -> list[InboxStep]:
        """Have pending and retrying events wait for a person, with those after them.

        Events with a time of expiry keep it, and still expire.

        Raises:
            AssemblyError, InboxError: As ``retry``; OCQ-605 also if none of those that match is pending or retrying.
        """

        def plan(entries: Sequence[InboxEntry]) -> list[InboxStep]:
            meant = (one for one in entries if self._matches(which, one) and not self._is_over(one))
            return [InboxStep(one, one.paused()) for one in meant if one.status.moves]

        return self._change(which, _Command("paused", plan, "pending or retrying"), dry_run=dry_run)

    def resume(self, which: InboxFilter, *, dry_run: bool = False) -> list[InboxStep]:
        """Let paused events continue; one that is the first of its sequence is tried at once.

        Raises:
            AssemblyError, InboxError: As ``retry``; OCQ-605 also if none of those that match is paused.
        """

        def plan(entries: Sequence[InboxEntry]) -> list[InboxStep]:
            meant = (one for one in entries if self._matches(which, one) and not self._is_over(one))
            return self._freed(entries, [one for one in meant if one.status is InboxStatus.PAUSED])

        return self._change(which, _Command("resumed", plan, "paused", frees=True), dry_run=dry_run)

    def skip(self, which: InboxFilter, reason: str, *, dry_run: bool = False) -> list[InboxStep]:
        """Remove events unhandled, and record that; the next event of each sequence may be tried at once.

        Args:
            which: Which events.
            reason: Why. Recorded with the person who has skipped the event, and with its last error.
            dry_run: Whether nothing is changed.

        Raises:
            AssemblyError, InboxError: As ``retry``.
            ValueError: If there is no reason.
        """
        reason = " ".join(reason.split())
        if not reason:
            raise ValueError("a reason is required")

        def plan(entries: Sequence[InboxEntry]) -> list[InboxStep]:
            return [InboxStep(one, None) for one in entries if self._matches(which, one)]

        return self._change(which, _Command(f"skipped ({reason})", plan, reason=reason, frees=True), dry_run=dry_run)

    def set_attempts(self, which: InboxFilter, attempts: int, *, dry_run: bool = False) -> list[InboxStep]:
        """Set how many attempts of ``park.retry`` events have used; 0 restores all of them.

        An event whose attempts were exhausted still waits for ``retry``.

        Raises:
            AssemblyError, InboxError: As ``retry``.
            ValueError: If the number is not 0 to 100,000.
        """
        if not 0 <= attempts <= MOST_ATTEMPTS:
            raise ValueError(f"attempts must be 0 to {MOST_ATTEMPTS:,}, got {attempts}")

        def plan(entries: Sequence[InboxEntry]) -> list[InboxStep]:
            return [InboxStep(one, one.with_retries(attempts)) for one in entries if self._matches(which, one)]

        return self._change(which, _Command(f"set to {counted(attempts, 'attempt')} used up", plan), dry_run=dry_run)

    def purge(self, which: InboxFilter, *, dry_run: bool = False) -> list[InboxStep]:
        """Remove events of scheduled groups that have expired, without a record of each.

        Nodes that run the groups do so at each tick.

        Raises:
            AssemblyError, InboxError: As ``retry``; OCQ-605 also if none of those that match has expired.
        """

        def plan(entries: Sequence[InboxEntry]) -> list[InboxStep]:
            return [InboxStep(one, None) for one in entries if self._matches(which, one) and self._is_over(one)]

        return self._change(which, _Command("removed, as it had expired", plan, "expired", frees=True), dry_run=dry_run)

    def _matches(self, which: InboxFilter, entry: InboxEntry) -> bool:
        return which.matches(_as_of(entry, self._now()))

    def _seen(self, step: InboxStep) -> InboxStep:
        """Return a step with what its event waits for now, before and after it; a change needs the stored status."""
        now = self._now()
        return replace(step, before=_as_of(step.before, now), after=step.after and _as_of(step.after, now))

    def _is_over(self, entry: InboxEntry) -> bool:
        return entry.status_at(self._now()) is InboxStatus.EXPIRED

    def _due(self, entry: InboxEntry, *, first: bool) -> InboxEntry:
        """Return an event as one that may be tried, if nothing comes before it; the first of its sequence at once."""
        due = entry.due(self._at_once(entry))
        return due if first or self._is_each(entry.group) else due._replace(due_at=None)

    def _freed(self, entries: Sequence[InboxEntry], those: Sequence[InboxEntry]) -> list[InboxStep]:
        """Return some events of a sequence as such that may be tried, each with what still holds it up."""
        holding = [one for one in entries if not (one.status.moves or one in those or self._is_over(one))]
        if not holding or self._is_each(entries[0].group):
            return [InboxStep(one, self._due(one, first=one is entries[0])) for one in those]
        return [
            InboxStep(one, self._due(one, first=one is entries[0]), held_up_by=self._holder(one, holding))
            for one in those
        ]

    def _at_once(self, *entries: InboxEntry) -> datetime:
        """Return a time that is past for the nodes that run the group, whose clocks may be behind this one."""
        return min(self._now(), *(datetime.fromisoformat(entry.parked_at) for entry in entries))

    def _is_scheduled(self, group: str) -> bool:
        return self._groups[group].processing.mode is Mode.SCHEDULED

    def _is_each(self, group: str) -> bool:
        """Return whether each event of a group is tried on its own."""
        return self._is_scheduled(group) and self._groups[group].batch.mode is BatchMode.ALL

    def _change(self, which: InboxFilter, command: _Command, *, dry_run: bool) -> list[InboxStep]:
        steps: list[InboxStep] = []
        for name, tracker, entries in self._sequences(which):
            done = self._change_sequence(name, tracker, entries, command, dry_run=dry_run)
            if done is None:
                raise _contested(name, entries[0].sequence_id, len(steps))
            steps += map(self._seen, done)
        if not steps:  # which may be so since processors or other people have changed them just now
            found = Counter(entry.status.value for entry in self.entries(which))
            fits = command.fits or ("still to be tried" if found.keys() == {InboxStatus.EXPIRED.value} else "")
            raise self._unfit(which, found, fits) if found and fits else self._nothing(which)
        return steps

    def _change_sequence(
        self, group: str, tracker: ParkingTracker, entries: Sequence[InboxEntry], command: _Command, *, dry_run: bool
    ) -> list[InboxStep] | None:
        """Do what is planned with a sequence, and return it; ``None`` if processors keep changing it."""
        id_ = entries[0].sequence_id
        for _ in range(_TRIES):
            steps = command.plan(entries) if entries else []
            if not steps or dry_run or self._apply(group, tracker, steps, command):
                return steps
            entries = tracker.entries(group, selection=InboxSelection(id_))
        return None

    def _apply(self, group: str, tracker: ParkingTracker, steps: Sequence[InboxStep], command: _Command) -> bool:
        changed = tuple((step.before, step.after) for step in steps if step.after is not None)
        removed = tuple(step.before for step in steps if step.after is None)
        by = actor()
        skips = self._skips(tracker, removed, command, by) if command.reason else []
        at_once, each = in_milliseconds(self._at_once(*(step.before for step in steps))), self._is_each(group)
        change = InboxChange(at_once, changed=changed, removed=removed, each=each)
        if command.frees and self._is_scheduled(group) and not each:  # whichever of its events comes first there
            change = replace(change, remainders=(Remainder(steps[0].before.sequence_id, at_once),))
        if not tracker.change(group, change, skips):
            return False
        for entry in (self._seen(step).before for step in steps):
            place = f"position {entry.position}, sequence {entry.sequence_id!r}, group {group}"
            _log.info("event %s at %s, was %s: %s by %s", entry.event_id, place, entry.status, command.done, by)
        return True

    def _skips(self, tracker: ParkingTracker, removed: Sequence[InboxEntry], command: _Command, by: str) -> list[Skip]:
        """Return the records of events of one sequence that leave, with the reason and the last error."""
        group, sequence_id, now = removed[0].group, removed[0].sequence_id, in_milliseconds(self._now())
        if group not in command.partitions:
            settings = self._groups[group]
            command.partitions[group] = (*partitions_of(tracker, settings), *layout(settings.life_cycle.partitions))
        partition = next(each for each in command.partitions[group] if each.owns(sequence_id))
        return [_skip(entry, partition, f"{command.reason} (skipped by {by}", now) for entry in removed]

    def _sequences(self, which: InboxFilter) -> Iterator[tuple[str, ParkingTracker, list[InboxEntry]]]:
        """Yield sequences of the selected groups: group, tracker, and all their events in their order.

        All those with an event that matches are among them. A few are read one by one, else the whole inbox is.
        """
        for name, tracker in self._trackers(which):
            few = self._few_sequences(name, tracker, which)
            if few is not None:
                read = (tracker.entries(name, selection=InboxSelection(id_)) for id_ in few)
                yield from ((name, tracker, entries) for entries in read if entries)
                continue
            ordered = sorted(tracker.entries(name), key=lambda entry: (entry.sequence_id, entry.position))
            for _, entries in groupby(ordered, key=lambda entry: entry.sequence_id):
                yield name, tracker, list(entries)

    def _few_sequences(self, group: str, tracker: ParkingTracker, which: InboxFilter) -> list[str] | None:
        """Return the sequences with an event that matches, in their order; ``None`` if they are many."""
        if which.sequence is not None:
            return [which.sequence]
        if which.position is None and which.selection == EVERYTHING:
            return None
        found = dict.fromkeys(entry.sequence_id for entry in self._matching(group, tracker, which))
        return list(found) if len(found) <= _FEW else None

    def _trackers(self, which: InboxFilter) -> Iterator[tuple[str, ParkingTracker]]:
        """Yield the selected groups with an inbox, each with its tracker."""
        for name in sorted(self._names(which.groups)):
            tracker = self._tracker_of(name)
            if which.groups and (reason := _why_not_seen(tracker, name)):
                raise InboxError("OCQ-606", reason, fix=f"set event-handling.groups[{name}].progress.tracking: sql")
            if isinstance(tracker, ParkingTracker):
                yield name, tracker

    def _names(self, wanted: Sequence[str]) -> list[str]:
        known = {canonical(name): name for name in self._groups}
        for name in wanted:
            if canonical(name) not in known:
                raise unknown_group(name, self._groups)
        return [known[key] for key in dict.fromkeys(map(canonical, wanted))] if wanted else list(self._groups)

    def _nothing(self, which: InboxFilter) -> InboxError:
        where = self._not_searched(which)
        if not str(which):
            return InboxError("OCQ-605", f"nothing{' else' if where else ''} waits in the inbox", where)
        return InboxError("OCQ-605", f"nothing in the inbox matches {which}", where, "look at opencqrs inbox list")

    def _unfit(self, which: InboxFilter, found: Counter[str], fits: str) -> InboxError:
        said = f" {which}" if str(which) else ""
        statuses = ", ".join(f"{count} {status}" for status, count in sorted(found.items()))
        what = f"none of the events that match{said} is {fits}: {statuses}"
        return InboxError("OCQ-605", what, self._not_searched(which), "look at opencqrs inbox list")

    def _not_searched(self, which: InboxFilter) -> str:
        """Return which groups a filter that names none leaves out; empty if there are none."""
        if which.groups:
            return ""
        left_out = [f"group {name}, whose progress is in the memory of its own process" for name in self.unseen()]
        for name, count in self.without_handlers().items():
            waiting = counted(count, "event waits", "events wait")
            left_out.append(f"group {name}, which has no handler here ({waiting})")
        return f"not searched: {'; '.join(left_out)}" if left_out else ""

    def _now(self) -> datetime:
        return self._clock().now()


def _status(given: Any) -> InboxStatus:
    try:
        return InboxStatus(given)
    except ValueError:
        *others, last = [status.value for status in InboxStatus]
        skipped = isinstance(given, str) and canonical(given.strip()) == "skipped"
        instead = "; inbox.skips() returns events that have left unhandled" if skipped else ""
        raise ValueError(f"status must be {', '.join(others)} or {last}, got {given!r}{instead}") from None


def _as_of(entry: InboxEntry, now: datetime) -> InboxEntry:
    """Return an event with what it waits for at a time."""
    return entry._replace(status=entry.status_at(now))


def _skip(entry: InboxEntry, partition: Partition, reason: str, now: str) -> Skip:
    known = (entry.position, entry.event_id, entry.event_source, entry.subject, entry.event_type)
    error = f"; last error: {entry.reason}" if entry.reason else ""
    return Skip(entry.group, partition, *known, entry.attempts, f"{reason}{error})", now)


def _why_not_seen(tracker: ProgressTracker, group: str) -> str:
    """Return why a group's inbox cannot be read; empty if it can."""
    if not isinstance(tracker, ParkingTracker):
        return f"group '{group}' has no inbox: its progress tracker keeps none"
    if _is_elsewhere(tracker, group):
        return f"the inbox of group '{group}' is in the memory of the process that runs it, and not visible here"
    return ""


def _is_elsewhere(tracker: ProgressTracker, group: str) -> bool:
    return isinstance(tracker, InMemoryProgressTracker) and not statuses_of(tracker, group)


def _contested(group: str, sequence_id: str, done: int) -> InboxError:
    what = f"processors have changed the events of sequence {sequence_id!r} {_TRIES} times meanwhile"
    where = f"group {group}; events changed before: {done}"
    return InboxError("OCQ-607", f"{what}, so they were not changed", where, "run the command again")

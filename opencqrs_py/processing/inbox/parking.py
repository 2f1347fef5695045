"""Parking: failed events wait in the inbox, and so do the later events of their sequences."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import takewhile

from typing_extensions import override

from opencqrs_py.errors import InboxError
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.event import Event
from opencqrs_py.model.inbox import (
    NOTHING_PARKED,
    GivenUp,
    InboxEntry,
    InboxStatus,
    ParkedSequences,
    Remainder,
    first_lost,
    unwanted_in,
)
from opencqrs_py.model.outcome import Failure, Origin, Outcome, Parked
from opencqrs_py.model.progress import Cursor, FailureRecord
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.feed import Page, UnsequencedError
from opencqrs_py.processing.inbox.parked_entries import (
    ParkingRule,
    after_failure,
    crash_in_attempt,
    given_up,
    lost,
    parked_entry,
    report_lost,
    unwanted,
    waiting_entry,
)
from opencqrs_py.processing.inbox.waiting_events import WaitingEvents, only_sequence
from opencqrs_py.processing.isolation import OF_PROCESS, one_less_isolated
from opencqrs_py.processing.portions import Portion
from opencqrs_py.processing.ports import EventSource, ParkingTracker
from opencqrs_py.processing.positions import events_at

logger = logging.getLogger("opencqrs.processing")
LOOK_SECONDS = 1.0  # between two checks of a non-empty inbox, since people may have changed it


@dataclass(frozen=True, slots=True)
class Parking:
    """The inbox of a group, and how the group parks events there."""

    inbox: ParkingTracker
    rule: ParkingRule

    def look(self, group: str, cursors: Sequence[Cursor], now: datetime) -> list[Cursor]:
        """Return cursors of partitions of the group with what waits there."""
        found = self.inbox.parked(group, [cursor.partition for cursor in cursors])
        seen_at = in_milliseconds(now)

        def seen(cursor: Cursor) -> ParkedSequences:
            log_first = cursor.parked is not None and cursor.parked.log_first
            return replace(found[cursor.partition], seen_at=seen_at, log_first=log_first)

        return [replace(one, parked=seen(one)) for one in cursors]

    def look_ahead(self, group: str, cursors: Sequence[Cursor], now: datetime, *, expiring: bool) -> list[Cursor]:
        """Return cursors of partitions of a scheduled group with the time at which the first event of each is due."""
        due = self.inbox.next_due(group, [cursor.partition for cursor in cursors], expiring=expiring)
        seen_at = in_milliseconds(now)
        known = {each: ParkedSequences(due_at=due_at, seen_at=seen_at) for each, due_at in due.items()}
        return [replace(one, parked=known[one.partition]) for one in cursors]


def is_due(parked: ParkedSequences, now: datetime) -> bool:
    """Return whether a sequence in the inbox may be tried."""
    return parked.due_at is not None and parked.due_at <= in_milliseconds(now)


def is_stale(parked: ParkedSequences, now: datetime) -> bool:
    """Return whether a person may have changed the inbox since it was read."""
    if not parked.ids:
        return False
    return parked.seen_at <= in_milliseconds(now - timedelta(seconds=LOOK_SECONDS)) or parked.seen_at > in_milliseconds(
        now
    )


def events_of(source: EventSource, entries: Sequence[InboxEntry], wants: Callable[[str], bool] | None = None) -> Chunk:
    """Return the events of entries, up to the first that is no longer in the log, or that no handler wants."""
    found = events_at(source, [entry.position for entry in entries])
    unfit = first_lost(entries, found)
    there = list(takewhile(lambda entry: entry is not unfit, entries))
    if wants is not None and (odd := unwanted_in(there, found, wants)):
        there = there[: there.index(odd[0])]
    return Chunk([found[entry.position] for entry in there])


@dataclass(eq=False)
class PartitionInbox(WaitingEvents):
    """The inbox of a partition: what enters it from the log, and the attempts of what waits.

    Attributes:
        parking: The inbox of the group.
        batch_size: Returns how many events a transaction has at most.
    """

    parking: Parking
    batch_size: Callable[[], int]

    def __post_init__(self) -> None:
        self._limits = (self.parking.rule.most_sequences, self.parking.rule.most_of_sequence)

    def look(self, cursor: Cursor) -> Cursor:
        """Return the cursor with what waits, if that is unknown, or a person may have changed it."""
        now = self.clock.now()
        if cursor.parked is not None and not is_stale(cursor.parked, now):
            return cursor
        return self.parking.look(self.group, [cursor], now)[0]

    def parted(self, page: Page, events: Chunk, upto: int, cursor: Cursor) -> tuple[Chunk, int, tuple[InboxEntry, ...]]:
        """Return the events without those of parked sequences, their last position, and the others as entries.

        Raises:
            UnsequencedError: If the sequence of the first event cannot be determined, or it has several (OCQ-602);
                those before it come first.
        """
        parked = frozenset[str]() if cursor.parked is None else cursor.parked.ids
        try:
            others, waiting = self._parted(page, events, parked, cursor)
        except UnsequencedError as failed:
            index = events.index_of(failed.event.position)
            if not index:
                raise
            return self.parted(page, events[:index], failed.event.position - 1, cursor)
        return others, upto, waiting

    def followers(
        self, portion: Portion, index: int, first: InboxEntry, cursor: Cursor
    ) -> tuple[Chunk, tuple[InboxEntry, ...]]:
        """Return the events after a parked one without those of its sequence, and those as entries of the inbox.

        Raises:
            UnsequencedError: If the sequence of one cannot be determined, or it has several (OCQ-602).
        """
        if portion.page is None:
            raise LookupError(f"the event at position {first.position} is on no page")
        return self._parted(portion.page, portion.chunk[index + 1 :], frozenset({first.sequence_id}), cursor)

    def _parted(
        self, page: Page, events: Chunk, parked: frozenset[str], cursor: Cursor
    ) -> tuple[Chunk, tuple[InboxEntry, ...]]:
        def sequence_of(event: Event) -> str | None:
            return only_sequence(page, event, cursor, parked.__contains__)

        subjects = page.subjects_of(parked, events)
        if subjects is not None:
            others, those = events.parted_by(subjects)
        else:
            others, those = events.parted(lambda event: sequence_of(event) is not None)
        since = in_milliseconds(self.clock.now())
        waiting = [waiting_entry(self.group, sequence_of(one) or "", one, since, cursor.replay) for one in those]
        return others, tuple(waiting)

    def entry(self, page: Page, event: Event, how: GivenUp, cursor: Cursor, record: FailureRecord | None) -> InboxEntry:
        """Return the entry of an event that is parked after recorded failures.

        Raises:
            UnsequencedError: If its sequence cannot be determined, or it has several (OCQ-602).
        """
        sequence_id = only_sequence(page, event, cursor, lambda _: True) or ""
        return parked_entry(
            self.group, sequence_id, event, how, record, self.parking.rule, self.clock.now(), cursor.replay
        )

    def entry_at_once(self, cursor: Cursor, portion: Portion, index: int, failure: Failure) -> InboxEntry | None:
        """Return the entry of an event that has failed in a chunk, if it is parked at once; else ``None``.

        One that has failed before is not, since its failure is recorded; nor is one whose sequence is unknown, which
        blocks the partition.
        """
        known = cursor.failing is not None and cursor.failing == failure.position
        if known or cursor.isolate or portion.page is None or not self.parking.rule.parks_at_once(failure):
            return None
        try:
            how = given_up(failure, self.clock.now())
            return self.entry(portion.page, portion.chunk[index], how, cursor, None)
        except Exception:  # the next step reports it
            return None

    def step(self, cursor: Cursor) -> Outcome | None:
        """Handle the first events of a sequence that is due; ``None`` if there is none."""
        if self._remove_mark_left(cursor):
            return Outcome(unseen(cursor))
        now = self.clock.now()
        if cursor.parked is None or not is_due(cursor.parked, now):
            return None
        found = self.inbox.due(self.group, self.partition, now, 1 if cursor.isolate else self.batch_size())
        entries = _alike(found[0]) if found else ()
        chunk = events_of(self.source, entries, self.wants)
        if not chunk:
            if entries:
                self._without_event(cursor, entries[0], now)
            elif found:
                self._put_off(cursor, found[0][0])
            return Outcome(unseen(cursor))
        due_at = entries[0].due_at
        rest = Remainder(entries[0].sequence_id, due_at)
        portion = Portion(chunk, cursor.stored, (), entries[: len(chunk)], remainders=(rest,), due_at=due_at)
        if not cursor.isolate:
            return self._recorded(cursor, portion, self.handle(cursor, portion))
        with OF_PROCESS.taken():
            (entry,) = entries
            marked = after_failure(entry, crash_in_attempt(now), self.parking.rule.back_off, now)
            if not self._apply(cursor, changed=((entry, marked),)):
                return Outcome(unseen(cursor))
            return one_less_isolated(cursor, self._recorded(cursor, portion, self.handle(cursor, portion), marked))

    def _put_off(self, cursor: Cursor, first: InboxEntry) -> None:
        """Make a sequence wait for a person if its first event does, even if another event has a due time."""
        self._apply(cursor, changed=((first, first),), remainders=(Remainder(first.sequence_id, None),))

    def _without_event(self, cursor: Cursor, entry: InboxEntry, now: datetime) -> None:
        """Make an entry wait for a person if its event is no longer in the log, or no handler wants it."""
        after = unwanted(entry, now) if events_of(self.source, (entry,)) else lost(entry, now)
        if self._apply(cursor, changed=((entry, after),)):
            report_lost(self.partition, [after])

    @override
    def _recorded(self, cursor: Cursor, portion: Portion, done: Outcome, marked: InboxEntry | None = None) -> Outcome:
        failure = done.failure
        if failure is None:
            return done
        if failure.origin not in (Origin.HANDLER, Origin.EVENT):
            self._uncounted(cursor, portion, failure, marked)
            return replace(done, failure=replace(failure, position=None))
        entry = next((one for one in portion.waiting if one.position == failure.position), None)
        if entry is None:
            return replace(done, cursor=unseen(done.cursor), failure=None)
        now = self.clock.now()
        after = after_failure(entry, given_up(failure, now), self.parking.rule.back_off, now)
        if not self._apply(cursor, changed=((marked or entry, after),)):
            return replace(done, cursor=unseen(done.cursor), failure=None)
        wait = self.parking.rule.wait_after(entry, entry.retries) if after.status is InboxStatus.RETRYING else None
        parked = Parked(failure, entry.sequence_id, after.attempts, wait)
        return replace(done, cursor=unseen(done.cursor, log_first=True), failure=None, parked=(parked,))

    def _uncounted(self, cursor: Cursor, portion: Portion, failure: Failure, marked: InboxEntry | None) -> None:
        """Remove the mark of an attempt in which no event failed; what participants do not confirm waits longer.

        Otherwise it would be due at once, and the log would starve.
        """
        if failure.origin is Origin.FENCED or not portion.waiting:
            return
        after = first = portion.waiting[0]
        if failure.origin is Origin.CHECKPOINT:
            wait = self.parking.rule.wait_after(first, 0) or LOOK_SECONDS
            after = first._replace(due_at=in_milliseconds(self.clock.now() + timedelta(seconds=wait)))
        if marked is not None:
            self._unmark(cursor, marked, after)
        elif after is not first:
            with suppress(Exception):  # an outage: the next step reports it
                self._apply(cursor, changed=((first, after),))


def _alike(entries: Sequence[InboxEntry]) -> tuple[InboxEntry, ...]:
    """Return the first events of a sequence, up to one that waits for a person, or differs in being replayed."""
    first = entries[0].replaying
    return tuple(takewhile(lambda entry: entry.status.moves and entry.replaying is first, entries))


def unseen(cursor: Cursor, *, log_first: bool = False) -> Cursor:
    """Return the cursor, set to check the inbox before its next step, or to take the next step with the log."""
    known = cursor.parked
    return cursor if known is None else replace(cursor, parked=replace(known, seen_at="", log_first=log_first))


def with_sequence(cursor: Cursor, sequence_id: str) -> Cursor:
    """Return the cursor with another sequence in the inbox; the next step finds out when it is due."""
    known = cursor.parked or NOTHING_PARKED
    return replace(cursor, parked=replace(known, ids=known.ids | {sequence_id}, seen_at=""))


def with_entry(cursor: Cursor, entry: InboxEntry) -> Cursor:
    """Return the cursor with another sequence in the inbox, whose first event is known; no check is needed."""
    known = cursor.parked
    if known is None:
        return cursor
    due = min(filter(None, (known.due_at, entry.due_at)), default=None)
    return replace(cursor, parked=replace(known, ids=known.ids | {entry.sequence_id}, due_at=due))


def freed(before: Cursor, after: Cursor) -> frozenset[str]:
    """Return the sequences that have left the inbox between two checks."""
    if before.parked is None or after.parked is None:
        return frozenset()
    return before.parked.ids - after.parked.ids


def no_inbox(group: str, event: Event) -> InboxError:
    """Return the error that an event cannot be parked."""
    what = f"group '{group}' has no inbox: its tracker does not provide one"
    return InboxError("OCQ-603", what, event.label, "set retry.on-exhausted: stop or skip")

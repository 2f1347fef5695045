"""The inbox of a scheduled group: events enter it as they are read, and are handled in batches at a tick."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from typing_extensions import override

from opencqrs_py.errors import HandlerCrashError, InboxChangedError
from opencqrs_py.model.choices import OnBatchExhausted
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.event import Event
from opencqrs_py.model.inbox import (
    Fetching,
    InboxEntry,
    InboxStatus,
    Remainder,
    lost_from,
    unwanted_in,
)
from opencqrs_py.model.naming import MOST_LISTED, in_one_line
from opencqrs_py.model.outcome import Failure, Origin, Outcome, Parked, Uncounted
from opencqrs_py.model.progress import Cursor, Skip
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.exceptions import raise_interrupt
from opencqrs_py.processing.feed import Page, UnsequencedError
from opencqrs_py.processing.inbox.batch_portions import BatchPortions
from opencqrs_py.processing.inbox.batches import (
    ScheduleRule,
    TickTimes,
    UnorderedError,
    chosen_before,
    eligible,
)
from opencqrs_py.processing.inbox.parked_entries import (
    after_failure,
    crash_in_attempt,
    given_up,
    is_used_up_by_crashes,
    lost,
    report_lost,
    unwanted,
    waiting_entry,
)
from opencqrs_py.processing.inbox.waiting_events import WaitingEvents, only_sequence
from opencqrs_py.processing.isolation import OF_PROCESS, one_less_isolated
from opencqrs_py.processing.portions import Portion, without_handling
from opencqrs_py.processing.ports import UnitOfWork
from opencqrs_py.processing.positions import events_at

logger = logging.getLogger("opencqrs.processing")

_MOST_SET_ASIDE = 100  # in one transaction, which takes several statements for each


@dataclass(eq=False)
class _Tick:
    """What a partition knows about a tick while it handles it under one claim.

    Attributes:
        epoch: Epoch of the claim.
        time: Time of the tick.
        ready: Portions that are read but not handled yet.
        nameable: How many more events that wait for a person are named in the log.
        is_searched: Whether all events that had expired before are removed.
    """

    epoch: int
    time: str | None
    ready: list[Portion] = field(default_factory=list)
    nameable: int = MOST_LISTED
    is_searched: bool = False


@dataclass(eq=False)
class PartitionBatches(WaitingEvents):
    """The inbox of a partition of a scheduled group: what enters it from the log, and the batches of a tick.

    It keeps portions that are read but not handled yet. Changes by others in the meantime are detected when they
    are handled.

    Attributes:
        rule: How the group handles its events.
        batch_size: Most events in one transaction.
        failure_of: Returns the failure for an error that was raised for an event.
    """

    rule: ScheduleRule
    batch_size: int
    failure_of: Callable[[BaseException, Event], Failure]
    _tick: _Tick = field(default_factory=lambda: _Tick(0, None), init=False)

    def __post_init__(self) -> None:
        self._each = self.rule.each
        self._grace = timedelta(seconds=self.rule.grace_seconds)

    def stored(self, page: Page, events: Chunk, upto: int, cursor: Cursor) -> Portion:
        """Return the portion that moves events of the log into the inbox.

        Raises:
            UnsequencedError: If the sequence of the first event cannot be determined, as it has several (OCQ-602), or
                whether it is accepted; those before it come first.
        """
        now, entries = self.clock.now(), list[InboxEntry]()
        since, expires = in_milliseconds(now), None
        if self.rule.expiring:
            expires = in_milliseconds(now + timedelta(seconds=self.rule.expires_seconds))
        for index, event in enumerate(events):
            try:
                sequence_id = self._sequence_of(page, event, cursor)
            except UnsequencedError:
                if not index:
                    raise
                upto = event.position - 1
                break
            if sequence_id is not None:
                entry = waiting_entry(self.group, sequence_id, event, since, cursor.replay)
                entries.append(entry if expires is None else entry._replace(expires_at=expires))
        return without_handling(upto, tuple(entries))

    def _sequence_of(self, page: Page, event: Event, cursor: Cursor) -> str | None:
        try:
            if self.rule.filters and not all(takes_in(event) for takes_in in self.rule.filters):
                return None
        except BaseException as error:
            raise_interrupt(error)
            raise UnsequencedError(event, error) from error
        return only_sequence(page, event, cursor, _any)

    @override
    @contextmanager
    def unit(
        self, cursor: Cursor, to: int, portion: Portion, fingerprint: str, skip: Skip | None = None
    ) -> Iterator[UnitOfWork]:
        try:
            with super().unit(cursor, to, portion, fingerprint, skip) as unit:
                yield unit
        except InboxChangedError:
            self._forget()
            raise

    def step(self, cursor: Cursor) -> Outcome | None:
        """Handle the next events that are due at the tick; ``None`` if there are none."""
        self._remove_mark_left(cursor)
        now = self.clock.now()
        if (self._tick.epoch, self._tick.time) != (cursor.epoch, cursor.tick):
            self._tick = _Tick(cursor.epoch, cursor.tick)
        ready = self._tick.ready
        if cursor.isolate or self._is_expired(now):
            ready.clear()
        if not ready:
            if self.rule.expiring and (removed := self._without_expired(cursor, now)) is not None:
                return removed
            fetched = self._fetched(cursor)
            if fetched is not None:
                return fetched
            if not ready:
                return None
        portion = ready.pop(0)
        if cursor.isolate:
            return self._isolated(cursor, portion.first(1))
        return self._recorded(cursor, portion, self.handle(cursor, portion))

    @override
    def _forget(self) -> None:
        self._tick.ready.clear()

    def _fetched(self, cursor: Cursor) -> Outcome | None:
        """Read the batches that are due; return an outcome if only their state was recorded."""
        tick = datetime.fromisoformat(cursor.tick or "")
        times = TickTimes.of(tick, self.clock.now())
        most = max(1 if cursor.isolate else self.rule.fetch_size, self.rule.size or 1)
        found = self.inbox.due(self.group, self.partition, tick, most, self.rule.fetching)
        if self.rule.expiring and (expired := _expired(found, self.clock.now())):
            return self._removed(cursor, expired)
        chosen: dict[str, tuple[InboxEntry, ...]] = {}
        if self.rule.size is not None and not self._each:
            chosen = {those[0].sequence_id: those for those in (chosen_before(each, times) for each in found) if those}
        tried = [self._tried(each, chosen.get(each[0].sequence_id, ()), tick, most) for each in found]
        postponed = [one for one in tried if isinstance(one, Remainder)]
        batches = [one for one in tried if not isinstance(one, Remainder)]
        entered = [entry for batch in batches for entry in batch]
        events = events_at(self.source, [entry.position for entry in entered])
        if gone := [*lost_from(entered, events)]:
            return self._set_aside(cursor, gone, lost)
        if odd := unwanted_in(entered, events, self.wants):
            return self._set_aside(cursor, odd, unwanted)
        if postponed and not self._put_off(cursor, postponed):
            return Outcome(cursor)
        cut = len(batches) == 1 and len(batches[0]) >= most
        try:
            portions = BatchPortions(cursor, self.rule, self.batch_size, times)
            self._tick.ready += portions.of(batches, events, chosen, cut=cut)
        except UnorderedError as failed:
            return self._unordered(cursor, batches, failed)
        return Outcome(cursor) if postponed and not self._tick.ready else None

    def _tried(
        self, entries: tuple[InboxEntry, ...], chosen: tuple[InboxEntry, ...], tick: datetime, most: int
    ) -> tuple[InboxEntry, ...] | Remainder:
        """Return the events of a sequence that are tried at a tick; if none is, when the sequence is tried.

        Args:
            entries: Its first events in the inbox.
            chosen: Those that the tick has chosen before.
            tick: Time of the tick.
            most: Number of events that were asked for; with so many, there may be others.
        """
        sequence_id, batch = entries[0].sequence_id, chosen or eligible(entries, tick, self.rule.mode)
        is_free = all(one.status.moves for one in entries)
        if (batch or is_free) and len(entries) >= most and self.rule.fetching is Fetching.FIRST:
            is_stuck = self.inbox.is_stuck(self.group, sequence_id)
            batch, is_free = () if is_stuck else batch, is_free and not is_stuck
        if batch:
            return batch
        waits = [one.due_at for one in entries if one.status.moves and one.due_at is not None]
        return Remainder(sequence_id, max(waits, default=None) if is_free else None)

    def _unordered(self, cursor: Cursor, batches: Sequence[tuple[InboxEntry, ...]], failed: UnorderedError) -> Outcome:
        """Record a failed attempt of an event whose place in its batch cannot be determined; no handler was called."""
        failure = self.failure_of(failed.error, failed.event)
        entries = tuple(entry for batch in batches for entry in batch)
        return self._recorded(cursor, Portion(Chunk([]), cursor.stored, (), entries), Outcome(cursor, failure=failure))

    def _isolated(self, cursor: Cursor, portion: Portion) -> Outcome:
        """Handle one event after a mark, which shows the next owner that this process did not survive it."""
        self._tick.ready.clear()
        with OF_PROCESS.taken():
            (entry,), now = portion.waiting, self.clock.now()
            if self.rule.on_exhausted is OnBatchExhausted.SKIP and is_used_up_by_crashes(entry, self.rule.back_off):
                return one_less_isolated(cursor, self._given_up_after_crash(cursor, portion, entry, now))
            marked = self._marked(entry, now)
            if not self._apply(cursor, changed=((entry, self._kept(marked)),), remainders=self._rest_after(marked)):
                return Outcome(cursor)
            done = self._recorded(cursor, portion, self.handle(cursor, portion), marked)
            return one_less_isolated(cursor, done)

    def _marked(self, entry: InboxEntry, now: datetime) -> InboxEntry:
        """Return an entry as it remains if this process does not survive the attempt, which then counts.

        It does not count in the event's grace period. If it is the last one and the event is to be skipped, the process
        that finds the mark does that.
        """
        marked = after_failure(entry, crash_in_attempt(now), self.rule.back_off, now)
        free = self._in_grace(entry, now)
        if marked.status is InboxStatus.EXHAUSTED and (free or self.rule.on_exhausted is OnBatchExhausted.SKIP):
            again = in_milliseconds(now)
            marked = marked._replace(status=InboxStatus.RETRYING, due_at=again, retries=entry.retries + 1)
        return marked._replace(retries=entry.retries) if free else marked

    @override
    def _recorded(self, cursor: Cursor, portion: Portion, done: Outcome, marked: InboxEntry | None = None) -> Outcome:
        failure = done.failure
        of_event = failure is not None and failure.origin in (Origin.HANDLER, Origin.EVENT)
        if marked is not None and not of_event and (failure is not None or done.changed):
            before = portion.waiting[0]
            self._unmark(cursor, self._kept(marked), self._kept(before), self._rest_of(cursor, portion, before))
        if failure is None:
            return done
        self._tick.ready.clear()
        if not of_event:
            return replace(done, failure=replace(failure, position=None))
        entry = next((one for one in portion.waiting if one.position == failure.position), None)
        well = replace(done, failure=None)
        if entry is None:
            return well
        now = self.clock.now()
        if failure.origin is Origin.HANDLER and not failure.permanent and self._in_grace(entry, now):
            again = TickTimes.of(datetime.fromisoformat(cursor.tick or in_milliseconds(now)), now).next
            free = entry._replace(due_at=again)
            rest = self._rest_after_failure(cursor, free)
            self._apply(cursor, changed=((marked or entry, self._kept(free)),), remainders=rest)
            return replace(well, uncounted=(Uncounted(failure, in_milliseconds(self._grace_end(entry))),))
        after = after_failure(entry, given_up(failure, now), self.rule.back_off, now)
        if after.status is InboxStatus.EXHAUSTED and self.rule.on_exhausted is OnBatchExhausted.SKIP:
            skip = self._skip(after, now)
            is_marked = marked is not None and marked.attempts > entry.attempts
            if self._skipped(cursor, portion, marked or entry, skip, is_marked=is_marked):
                parked = Parked(failure, entry.sequence_id, after.attempts, None, skipped=True)
                well = replace(well, skips=(skip,), parked=(parked,))
            return well
        rest = self._rest_after_failure(cursor, after)
        if self._apply(cursor, changed=((marked or entry, self._kept(after)),), remainders=rest):
            wait = None
            if after.due_at is not None:
                wait = (datetime.fromisoformat(after.due_at) - now).total_seconds()
            well = replace(well, parked=(Parked(failure, entry.sequence_id, after.attempts, wait),))
        return well

    def _given_up_after_crash(self, cursor: Cursor, portion: Portion, entry: InboxEntry, now: datetime) -> Outcome:
        """Skip an event whose last attempt ended the process."""
        error = HandlerCrashError(
            "OCQ-236", f"the process ended in attempt {entry.attempts} of this event, its last one"
        )
        failure, skip = self.failure_of(error, portion.chunk[0]), self._skip(entry, now)
        if not self._skipped(cursor, portion, entry, skip, is_marked=True):
            return Outcome(cursor)
        parked = Parked(failure, entry.sequence_id, entry.attempts, None, skipped=True)
        return Outcome(cursor, skips=(skip,), parked=(parked,))

    def _rest_of(self, cursor: Cursor, portion: Portion, before: InboxEntry) -> tuple[Remainder, ...]:
        """Return what becomes of a sequence whose attempt did not fail because of its event: it is due at this tick."""
        if self._each:
            return ()
        choice = portion.choice_of(before.sequence_id)
        return (Remainder(before.sequence_id, cursor.tick) if choice is None else choice.rest_with(before.position),)

    def _kept(self, after: InboxEntry) -> InboxEntry:
        """Return an entry as stored: in a sequence that is tried as a whole, the first event has the due time."""
        return after if self._each else after._replace(due_at=None)

    def _rest_after(self, after: InboxEntry) -> tuple[Remainder, ...]:
        return () if self._each else (Remainder(after.sequence_id, after.due_at),)

    def _rest_after_failure(self, cursor: Cursor, after: InboxEntry) -> tuple[Remainder, ...]:
        """Return what becomes of a sequence after an attempt has failed.

        Where each event is tried on its own, as many others as the size of a batch are tried: an event that fails at
        each tick must not prevent that.
        """
        if not self._each:
            return self._rest_after(after)
        if self.rule.size is None or cursor.tick is None:
            return ()
        times = TickTimes.of(datetime.fromisoformat(cursor.tick), self.clock.now())
        return (Remainder(after.sequence_id, times.tick, until=times.later),)

    def _rest_after_skip(
        self, cursor: Cursor, portion: Portion, entry: InboxEntry, *, is_marked: bool
    ) -> tuple[Remainder, ...]:
        """Return what becomes of a sequence after an event was skipped: the tick continues with it."""
        if self._each:
            return self._rest_after_failure(cursor, entry)
        if (choice := portion.choice_of(entry.sequence_id)) is not None:
            rest = choice.rest_after(entry.position)
            return () if rest is None else (rest,)
        if self.rule.size is not None and not is_marked:  # the inbox may have a choice, which stays
            return ()
        return (Remainder(entry.sequence_id, cursor.tick),)

    def _skip(self, entry: InboxEntry, now: datetime) -> Skip:
        known = (entry.position, entry.event_id, entry.event_source, entry.subject, entry.event_type)
        return Skip(self.group, self.partition, *known, entry.attempts, entry.reason, in_milliseconds(now))

    def _skipped(self, cursor: Cursor, portion: Portion, entry: InboxEntry, skip: Skip, *, is_marked: bool) -> bool:
        rest = self._rest_after_skip(cursor, portion, entry, is_marked=is_marked)
        return self._apply(cursor, removed=(entry,), remainders=rest, next_due=cursor.tick, skip=skip)

    def _without_expired(self, cursor: Cursor, now: datetime) -> Outcome | None:
        """Remove events that have expired, some at a time; ``None`` if there are none.

        They are searched once per tick, among all waiting events; those that expire during it are noticed when they are
        fetched.
        """
        if self._tick.is_searched:
            return None
        if entries := self.inbox.expired(self.group, self.partition, now, self.rule.fetch_size):
            return self._removed(cursor, entries)
        self._tick.is_searched = True
        return None

    def _removed(self, cursor: Cursor, expired: tuple[InboxEntry, ...]) -> Outcome:
        if not self._apply(cursor, removed=expired, next_due=cursor.tick):
            return Outcome(cursor)
        return Outcome(cursor, expired=len(expired), expired_events=tuple(map(_named, expired[:MOST_LISTED])))

    def _is_expired(self, now: datetime) -> bool:
        return bool(_expired((portion.waiting for portion in self._tick.ready[:1]), now))

    def _in_grace(self, entry: InboxEntry, now: datetime) -> bool:
        """Return whether an event has just arrived: not long before, nor by a clock that was ahead by more."""
        return abs(self._grace_end(entry) - self._grace - now) < self._grace

    def _grace_end(self, entry: InboxEntry) -> datetime:
        return datetime.fromisoformat(entry.parked_at) + self._grace

    def _set_aside(
        self, cursor: Cursor, entries: Sequence[InboxEntry], without: Callable[[InboxEntry, datetime], InboxEntry]
    ) -> Outcome:
        """Make entries wait for a person whose events no handler can get; only the first ones, where others follow."""
        now = self.clock.now()
        if not self._each:
            entries = list({entry.sequence_id: entry for entry in reversed(entries)}.values())[::-1]
        entries = entries[:_MOST_SET_ASIDE]
        after = [without(entry, now) for entry in entries]
        rest = tuple(one for each in after for one in self._rest_after(each))
        if self._apply(cursor, changed=tuple(zip(entries, map(self._kept, after), strict=True)), remainders=rest):
            self._report_lost(after)
        return Outcome(cursor)

    def _report_lost(self, entries: Sequence[InboxEntry]) -> None:
        """Log that entries wait for a person; those of a tick after the first ones are not named."""
        named = self._tick.nameable
        self._tick.nameable = max(0, named - len(entries))
        report_lost(self.partition, entries[:named])
        if named and len(entries) > named:
            text = "[%s %s] more events wait for a person: opencqrs inbox list --group %s --status undecodable"
            logger.error(text, self.group, self.partition, shlex.quote(self.group))

    def _put_off(self, cursor: Cursor, remainders: Sequence[Remainder]) -> bool:
        return self._apply(cursor, remainders=tuple(remainders))


def _expired(batches: Iterable[tuple[InboxEntry, ...]], now: datetime) -> tuple[InboxEntry, ...]:
    return tuple(one for batch in batches for one in batch if one.status_at(now) is InboxStatus.EXPIRED)


def _named(entry: InboxEntry) -> str:
    return f"event {in_one_line(entry.event_id)} at position {entry.position}"


def _any(_sequence_id: str) -> bool:
    return True

"""The processors of a group: each takes the next events of its partition, has them handled, and moves the progress."""

from __future__ import annotations

import shlex
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from opencqrs_py.errors import (
    HandlerCrashError,
    InboxError,
)
from opencqrs_py.model.checkpoint import CheckpointStatus
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.model.chunk import NOTHING, Chunk
from opencqrs_py.model.event import Event
from opencqrs_py.model.inbox import GivenUp, InboxEntry
from opencqrs_py.model.outcome import Failure, Origin, Outcome
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor, FailureRecord, PartitionStatus, ProcessorState, Skip
from opencqrs_py.model.replay import Replay
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.binding import Work
from opencqrs_py.processing.calls import NO_LIMITS, CallLimits
from opencqrs_py.processing.caution import Caution
from opencqrs_py.processing.checkpoints.checkpoints import CheckpointTrigger
from opencqrs_py.processing.claims import Claim
from opencqrs_py.processing.diagnosis import Diagnosis, NotOpenedError
from opencqrs_py.processing.dispatch import ChunkFailedError, Dispatcher
from opencqrs_py.processing.exceptions import raise_interrupt
from opencqrs_py.processing.feed import Feed, Page, UnsequencedError
from opencqrs_py.processing.handler_calls import HandlerCalls, note_circumstances
from opencqrs_py.processing.inbox.batches import ScheduleRule
from opencqrs_py.processing.inbox.parking import (
    Parking,
    PartitionInbox,
    freed,
    no_inbox,
    unseen,
    with_sequence,
)
from opencqrs_py.processing.inbox.scheduled import PartitionBatches
from opencqrs_py.processing.isolation import OF_PROCESS, one_less_isolated
from opencqrs_py.processing.narrowing import Narrowing
from opencqrs_py.processing.pieces import NotUndoneError, Pieces
from opencqrs_py.processing.pipelining import PipelineFailedError, Pipelining
from opencqrs_py.processing.portions import Portion, without_handling
from opencqrs_py.processing.ports import (
    Clock,
    ProgressTracker,
    ResettableTracker,
    SavingTracker,
    SystemClock,
)
from opencqrs_py.processing.replays import ReplayRule

MOST_CRASHES = 3  # processes that may end while they handle an event


class Stopping(Protocol):
    """What may end the pause of a partition early, such as a ``threading.Event``."""

    def is_set(self) -> bool:
        """Return whether it ends the pause."""
        ...


@dataclass(frozen=True, slots=True)
class ProcessorParts:
    """What the processors of a group's partitions are made from.

    Attributes:
        group: Processing group.
        feed: Where events come from.
        tracker: Where progress goes.
        dispatcher: Calls the handlers.
        batch_size: Most events in one transaction, at least 1.
        clock: Time, for what is recorded.
        limits: How long a call of a handler may take; the driver of the processor watches that.
        pipelining: Decides whether statements of a chunk wait for their answers; ``None``: they do.
        parking: The inbox, and how events are parked; ``None`` if the tracker has none.
        caution: Decides how large chunks are while events fail.
        schedule: How a scheduled group handles its events; ``None`` for any other.
        replays: How events are handled again after a reset; ``None``: as others.
    """

    group: str
    feed: Feed
    tracker: ProgressTracker
    dispatcher: Dispatcher
    batch_size: int
    clock: Clock = field(default_factory=SystemClock)
    limits: CallLimits = NO_LIMITS
    pipelining: Pipelining | None = None
    parking: Parking | None = None
    caution: Caution = field(default_factory=Caution)
    schedule: ScheduleRule | None = None
    replays: ReplayRule | None = None


class PartitionProcessor:
    """Moves one partition of a group forward, a chunk at a time.

    It keeps nothing between two steps: where it resumes is in the cursor, so any process can do the next step.

    Args:
        partition: The partition that it handles.
        parts: What it is made from.
    """

    def __init__(self, partition: Partition, parts: ProcessorParts) -> None:
        self.group = group = parts.group
        self.partition = partition
        self.limits = parts.limits
        self._feed = feed = parts.feed
        self._tracker = tracker = parts.tracker
        dispatcher = parts.dispatcher
        self._replays = parts.replays or ReplayRule(dispatcher)
        self._batch_size = parts.batch_size
        self._clock = parts.clock
        self._diagnosis = Diagnosis(tracker, feed.source, dispatcher.places)
        self.claim = Claim(group, partition, tracker, feed.source)
        self.calls = HandlerCalls(group, partition, dispatcher, self._replays, self._diagnosis)
        self._pipelining = parts.pipelining
        self._caution = parts.caution
        self._inbox: PartitionInbox | None = None
        self._batches: PartitionBatches | None = None
        if (parking := parts.parking) is not None:
            shared = (parking.inbox, group, partition, feed.source, self._clock, self._handle, dispatcher.wants)
            if (schedule := parts.schedule) is None:
                self._inbox = PartitionInbox(*shared, parking, lambda: self._batch_size)
            else:
                find = self._diagnosis.failure_of_handler
                self._batches = PartitionBatches(*shared, schedule, parts.batch_size, find)
        self._narrowing = Narrowing(self._handle, self._without_handling, self._diagnosis, self._inbox, self._caution)
        single = not (dispatcher.takes_several or dispatcher.uses_session)
        # How chunks are handled while events are parked now and then; ``None``: as always.
        self._pieces: Pieces | None = None
        if self._inbox is not None and single and parts.pipelining is None and isinstance(tracker, SavingTracker):
            self._pieces = Pieces(group, tracker, self._inbox, feed.source, self._diagnosis, self.calls)

    def step(self, cursor: Cursor) -> Outcome:
        """Handle the next chunk of events and store the progress with what the handlers wrote.

        When event k of a chunk fails, the chunk is rolled back, the events before k are committed, and the outcome
        names k. Errors come back in the outcome, whatever their class; only a real interrupt passes through.

        After an outage, the step first checks that the progress and the log are unchanged. Progress that another task
        has moved under the same claim is taken over only where the cursor is shared.

        Source:
            PRODUCT section 4, "Exactly once"; OpenCQRS event handling loop.
        """
        try:
            sure = self._confirmed(cursor) if cursor.doubtful else cursor
        except BaseException as error:
            raise_interrupt(error)
            return _doubtful(Outcome(cursor, failure=self._diagnosis.failure_to_read(error)))
        if sure.replay is not None and self.is_replayed(sure) and self._batches is None:
            outcome = self._replay_ended(Outcome(sure))
        elif self._batches is not None:
            outcome = self._from_batches(sure, self._batches)
        elif self._inbox is None or (sure.parked is not None and not sure.parked.ids):
            outcome = self._from_log(sure)
        else:
            outcome = self._from_inbox(sure, self._inbox)
        if outcome.failure is None and outcome.cursor.replay is not None and self._batches is None:
            outcome = self._replay_ended(outcome)
        if outcome.failure is None:
            return outcome
        fenced = outcome.failure.origin is Origin.FENCED
        return _doubtful(self._taken_over(sure, outcome) if fenced and cursor.shared else outcome)

    def succeed(self, cursor: Cursor) -> Outcome:
        """Take the partition over from another run of the same task, see ``Claim.succeeded``."""
        try:
            return Outcome(self.claim.succeeded(cursor))
        except BaseException as error:
            raise_interrupt(error)
            return _doubtful(Outcome(cursor, failure=self._diagnosis.failure(error, Origin.FRAMEWORK)))

    def failed_in_inbox(self, cursor: Cursor, failure: Failure, sequence_id: str) -> Outcome:
        """Record the failed attempt of an event of the inbox whose call was abandoned.

        Args:
            cursor: Where the partition stands.
            failure: The failure, with the position of the event.
            sequence_id: The sequence as part of which it was tried.
        """
        try:
            inbox = self._inbox or self._batches
            return Outcome(cursor) if inbox is None else inbox.failed(cursor, failure, sequence_id)
        except BaseException as error:
            raise_interrupt(error)
            return Outcome(cursor, failure=self._diagnosis.failure(error, Origin.FRAMEWORK))

    def flush(self, cursor: Cursor) -> Outcome:
        """Store progress over events that were not this partition's."""
        if cursor.position == cursor.stored:
            return Outcome(cursor, idle=True)
        try:
            return replace(self._commit(cursor, without_handling(cursor.position)), idle=True)
        except BaseException as error:
            raise_interrupt(error)
            return _doubtful(Outcome(cursor, failure=self._diagnosis.failure(error, Origin.FRAMEWORK)))

    def release(self, cursor: Cursor) -> Outcome | None:
        """Store the progress that is not stored yet, before the partition is released; ``None`` if there is none."""
        return None if cursor.doubtful or cursor.position <= cursor.stored else self.flush(cursor)

    def close(self) -> None:
        """Discard what is kept for the partition, after it was released."""

    def abandon(self) -> None:
        """Prevent a thread that hangs in a call from handling further events, should it return; from another thread."""

    def resting(self, stopping: Stopping, wake: Callable[[], None]) -> Stopping:
        """Return what ends the pause of the partition early: its stop, and anything else it has to do.

        Args:
            stopping: Set when it is to stop.
            wake: Wakes the threads that wait for events or pause, so that they check it.
        """
        del wake
        return stopping

    def has_checkpoint(self) -> bool:
        """Return whether there is a checkpoint to be made, whatever the partition waits for."""
        return False

    def withholds(self) -> bool:
        """Return whether progress must not be stored yet, although events are handled."""
        return False

    @property
    def trigger(self) -> CheckpointTrigger | None:
        """Requests checkpoints of the participants that have the partition; ``None`` without any."""
        return None

    def checkpoint_status(self) -> CheckpointStatus | None:
        """Return how far participants are; ``None`` without any."""
        return None

    def is_replayed(self, cursor: Cursor) -> bool:
        """Return whether everything is done that is handled again since a reset."""
        return cursor.replayed

    def _from_inbox(self, cursor: Cursor, inbox: PartitionInbox) -> Outcome:
        """Take the next step with events that are due in the inbox; with those of the log if none are.

        After an attempt in the inbox that has failed, events of the log come first: attempts may take so long that
        others are due all the time.
        """
        try:
            seen = inbox.look(cursor)
            if seen.parked is not None and seen.parked.log_first:
                outcome = self._from_log(replace(seen, parked=replace(seen.parked, log_first=False)))
                if outcome.idle:
                    outcome = inbox.step(outcome.cursor) or outcome
            else:
                outcome = _without_log(inbox.step(seen)) or self._from_log(seen)
        except BaseException as error:
            raise_interrupt(error)
            return Outcome(cursor, failure=self._diagnosis.failure(error, Origin.FRAMEWORK), without_log=True)
        return replace(outcome, freed=(*freed(cursor, seen), *outcome.freed))

    def _from_batches(self, cursor: Cursor, batches: PartitionBatches) -> Outcome:
        """Take the next step with events that are due at the tick; with those of the log if none are."""
        if cursor.tick is None:
            return self._from_log(cursor)
        try:
            outcome = _without_log(batches.step(cursor))
        except BaseException as error:
            raise_interrupt(error)
            return Outcome(cursor, failure=self._diagnosis.failure(error, Origin.FRAMEWORK), without_log=True)
        if outcome is not None:
            return outcome
        done = Outcome(replace(cursor, tick=None))
        if cursor.replay is not None:
            done = self._replay_ended(done, after_inbox=True)
        return self._from_log(done.cursor) if done.failure is None else done

    def _replay_ended(self, done: Outcome, *, after_inbox: bool = False) -> Outcome:
        """End the replay of the partition, if everything is handled again; the group's last one then calls functions.

        Source:
            Axon: the replay is over after the event at the position of the reset, not with the next event.
        """
        cursor = done.cursor
        if not self.is_replayed(cursor) or not isinstance(self._tracker, ResettableTracker):
            return done
        try:
            if not self._replays.end(self._tracker, self.group, cursor, after_inbox=after_inbox):
                return done
        except BaseException as error:
            raise_interrupt(error)
            return replace(done, failure=self._diagnosis.failure(error, Origin.FRAMEWORK))
        return replace(done, cursor=replace(cursor, replay=None))

    def _from_log(self, cursor: Cursor) -> Outcome:
        """Take the next step with events of the log; those of sequences in the inbox go there, too."""
        behind: tuple[InboxEntry, ...] = ()
        try:
            ahead = cursor.ahead if cursor.ahead is not None and cursor.position < cursor.ahead.until else None
            waits = cursor.parked is not None and bool(cursor.parked.ids)
            feed = self._feed.sequenced if waits or ahead is not None else self._feed
            page = feed.read(cursor.position, self.partition)
            if page is None:
                return self.flush(cursor)
            events, upto = page.events_of(self.partition, cursor.position)
            if ahead is not None:
                events, upto = page.unhandled(self.partition, events, upto, ahead)
            if self._batches is not None:
                return self._moved(cursor, self._batches.stored(page, events, upto, cursor))
            if self._inbox is not None and waits:
                events, upto, behind = self._inbox.parted(page, events, upto, cursor)
        except UnsequencedError as failed:
            return Outcome(cursor, failure=self._diagnosis.failure_before(failed.error, failed.event))
        except BaseException as error:  # whatever a store raises is an outcome
            raise_interrupt(error)
            return Outcome(cursor, failure=self._diagnosis.failure_to_read(error))
        return self._next(cursor, page, Portion(events, upto, behind, page=page))

    def _next(self, cursor: Cursor, page: Page, portion: Portion) -> Outcome:
        """Handle the first chunk of events, or only the first event if it has failed before."""
        events = portion.chunk
        if not (found := len(events)):
            return self._moved(cursor, portion)
        again = cursor.failing is not None and cursor.failing == events.position(0)
        size = 1 if again or cursor.isolate else self._batch_size
        if self._caution.left > 0:
            size = self._caution.size(size, in_pieces=self._pieces is not None)
        if cursor.failing is not None and not again:
            size = min(size, self._before_failing(cursor.failing, events))
        if cursor.replay is not None:
            size = min(size, _alike(cursor.replay, events))
        if found > size:
            portion = portion.first(size)
        if again and (given_up := self._given_up(cursor, page, portion)) is not None:
            return given_up
        if cursor.isolate:
            return self._isolated(cursor, portion)
        if self._pieces is None or self._caution.left <= 0:
            return self._handle(cursor, portion)
        return self._handle_pieces(cursor, portion, self._pieces) or self._handle(cursor, portion)

    def _given_up(self, cursor: Cursor, page: Page, portion: Portion) -> Outcome | None:
        """Skip, park or hold an event that has failed before; ``None`` if it is to be tried again."""
        if cursor.park is not None:
            return self._park(cursor, page, portion, cursor.park)
        if cursor.failure is not None and cursor.failure.crashes >= MOST_CRASHES:
            return self._hold(cursor, cursor.failure, portion.chunk[0])
        if cursor.skip:
            return self._without_handling(cursor, portion, self._skip(cursor, portion.chunk[0]))
        return None

    def _before_failing(self, failing: int, events: Chunk) -> int:
        """Return how many events come before the one that has failed, which is tried alone."""
        most = min(self._batch_size, len(events))
        return next((index for index in range(1, most) if events.position(index) >= failing), most)

    def _hold(self, cursor: Cursor, record: FailureRecord, event: Event) -> Outcome:
        what = f"{record.crashes} processes have ended while they handled this event"
        place = shlex.quote(f"{self.group}:{self.partition}")
        fix = f"fix its handler, then: opencqrs groups restart {place}; without leases, release the event as described "
        fix += "under OCQ-236"
        if self._inbox is not None and self._inbox.parking.rule.on_exhausted is OnExhausted.PARK:
            which = f"--group {shlex.quote(self.group)} --event {shlex.quote(event.id)}"
            fix = f"fix its handler, then: opencqrs inbox retry {which}"
        error = HandlerCrashError("OCQ-236", what, fix=fix)
        failure = self._diagnosis.failure(error, Origin.HANDLER, event)
        return Outcome(cursor, failure=replace(failure, permanent=True, held=True))

    def _isolated(self, cursor: Cursor, portion: Portion) -> Outcome:
        """Handle one event after a mark, which shows the next owner that this process did not survive it."""
        with OF_PROCESS.taken():
            try:
                self._mark(cursor, portion.chunk[0])
            except BaseException as error:
                raise_interrupt(error)
                return Outcome(cursor, failure=self._diagnosis.failure(error, Origin.FRAMEWORK))
            return one_less_isolated(cursor, self._handle(cursor, portion))

    def _mark(self, cursor: Cursor, event: Event) -> None:
        record = cursor.failure if cursor.failing == event.position else None
        if record is None:
            now = in_milliseconds(self._clock.now())
            record = FailureRecord(event.position, event.id, event.type, 0, 0, "", "", now)
        status = PartitionStatus(
            self.group,
            self.partition,
            cursor.stored,
            ProcessorState.RUNNING,
            attempt=record.attempts,
            error=record.last_error,
            failure=replace(record, in_hand=True),
        )
        self._tracker.report(status, cursor.epoch)

    def _moved(self, cursor: Cursor, portion: Portion) -> Outcome:
        """Move the progress over events that no handler gets; what goes into the inbox is stored with it."""
        if portion.behind:
            return self._without_handling(cursor, portion)
        return Outcome(cursor.moved_to(portion.upto, stored=False))

    def _without_handling(self, cursor: Cursor, portion: Portion, skip: Skip | None = None) -> Outcome:
        """Move the progress over events that no handler gets."""
        try:
            return self._commit(cursor, without_handling(portion.upto, portion.behind), skip)
        except BaseException as error:
            raise_interrupt(error)
            return self._narrowing.unopened(cursor, replace(portion, chunk=NOTHING), error)

    def _handle(self, cursor: Cursor, portion: Portion, *, pipelined: bool = True) -> Outcome:
        pipelining = self._pipelining if pipelined else None
        try:
            return self._commit(cursor, portion, pipelining=pipelining)
        except PipelineFailedError:  # waiting for each answer shows which event and which line caused it
            return self._handle(cursor, portion, pipelined=False)
        except ChunkFailedError as failed:
            return self._narrowing.after_call(cursor, portion, failed)
        except BaseException as error:  # the commit: an outage, a lost claim, or a constraint checked at its end
            raise_interrupt(error)
            return self._not_committed(cursor, portion, error)

    def _handle_pieces(self, cursor: Cursor, portion: Portion, pieces: Pieces) -> Outcome | None:
        """Handle events, some of which are parked, in one transaction; ``None``: nothing is done.

        Anything exceptional is left to the usual way, which begins again.
        """
        try:
            done = pieces.handle(cursor, portion)
        except (NotUndoneError, ChunkFailedError, InboxError):
            return None
        except BaseException as error:
            raise_interrupt(error)
            return self._not_committed(cursor, portion, error)
        if done.parked:
            self._caution.failed()
        return done

    def _not_committed(self, cursor: Cursor, portion: Portion, error: BaseException) -> Outcome:
        """Return the outcome of an error that no handler raised."""
        return self._narrowing.after_commit(cursor, portion, error)

    def _commit(
        self,
        cursor: Cursor,
        portion: Portion,
        skip: Skip | None = None,
        *,
        pipelining: Pipelining | None = None,
    ) -> Outcome:
        """Handle events in one transaction with the progress; then make the calls that waited for its commit.

        The log is queried before the transaction is opened: an unavailable log must not keep it open.
        ``HandlerCalls.begin`` is inlined, because each step passes here, and each call has a cost.
        """
        opened, handled, chunk = False, 0, portion.chunk
        handles = chunk is not NOTHING  # a comparison is quicker than reading the length
        to, fingerprint = cursor.stored, cursor.fingerprint
        try:
            if not portion.waiting:
                newest, to = chunk.read_whole(-1) if handles else None, portion.upto
                at_end = newest if newest is not None and newest.position == to else None
                fingerprint = self._feed.source.fingerprint(to, at_end)
            inbox = self._inbox or self._batches
            if inbox is not None and (portion.behind or portion.waiting):
                opening = inbox.unit(cursor, to, portion, fingerprint, skip)
            else:
                opening = self._tracker.unit(self.group, cursor, to, fingerprint=fingerprint, skip=skip)
            with opening as unit:
                opened = True
                rebuilding = self._replays.rebuilding
                work = Work(self.group, self.partition, unit, cursor.failing, cursor.attempt, rebuilding=rebuilding)
                if portion.waiting or cursor.replay is not None or cursor.ahead is not None:
                    note_circumstances(work, cursor, portion)
                if pipelining is not None and len(chunk) > 1:
                    work.pipelining = pipelining
                if handles:
                    handled = self.calls.handle(portion, work)
        except BaseException as error:
            if opened:
                raise
            raise_interrupt(error)
            raise NotOpenedError(error) from error
        missed = self.calls.after_commit(work, chunk) if work.calls_wait else ()
        moved = unseen(cursor) if portion.waiting else cursor.moved_to(to, stored=True, fingerprint=fingerprint)
        return Outcome(moved, handled=handled, skips=() if skip is None else (skip,), missed=missed)

    def _park(self, cursor: Cursor, page: Page, portion: Portion, how: GivenUp) -> Outcome:
        """Move the progress past an event, which goes into the inbox."""
        if self._inbox is None:
            return Outcome(
                cursor, failure=self._diagnosis.failure(no_inbox(self.group, portion.chunk[0]), Origin.FRAMEWORK)
            )
        try:
            entry = self._inbox.entry(page, portion.chunk[0], how, cursor, cursor.failure)
        except UnsequencedError as failed:  # it cannot be parked, so it is tried again
            failure = self._diagnosis.failure_before(failed.error, failed.event)
            return Outcome(replace(cursor, park=None), failure=failure)
        except BaseException as error:
            raise_interrupt(error)
            return Outcome(cursor, failure=self._diagnosis.failure(error, Origin.FRAMEWORK))
        moved = self._without_handling(cursor, without_handling(portion.upto, (*portion.behind, entry)))
        if moved.failure is not None:
            return moved
        return replace(moved, cursor=with_sequence(moved.cursor, entry.sequence_id))

    def _skip(self, cursor: Cursor, event: Event) -> Skip:
        known, now = (event.position, event.id, event.source, event.subject, event.type), self._clock.now()
        attempts, reason = max(1, cursor.attempt - 1), ""
        if (record := cursor.failure) is not None:
            attempts, reason = record.attempts, record.last_error
        return Skip(self.group, self.partition, *known, attempts, reason, in_milliseconds(now))

    def _confirmed(self, cursor: Cursor) -> Cursor:
        """Return the cursor as it is stored, see ``Claim.confirmed``; events that were read before are read again.

        The log may have been restored in the meantime, to a place between the progress and what was read.
        """
        found = self.claim.confirmed(cursor)
        self._feed.forget()
        return found

    def _taken_over(self, cursor: Cursor, outcome: Outcome) -> Outcome:
        """Continue from where another run of the same task has moved the progress."""
        try:
            found = self.claim.moved_by_others(cursor)
        except BaseException as error:
            raise_interrupt(error)
            return Outcome(cursor, failure=self._diagnosis.failure(error, Origin.FRAMEWORK))
        return outcome if found is None else Outcome(found, handled=outcome.handled, missed=outcome.missed)


def _alike(replay: Replay, events: Chunk) -> int:
    """Return how many of the first events were all handled before a reset, or were all not."""
    boundary = replay.boundary(events.position(0))
    return len(events) if boundary is None else bisect_left(range(len(events)), boundary, key=events.position)


def _without_log(outcome: Outcome | None) -> Outcome | None:
    return None if outcome is None else replace(outcome, without_log=True)


def _doubtful(outcome: Outcome) -> Outcome:
    if outcome.failure is None or outcome.failure.origin is not Origin.OUTAGE:
        return outcome
    return replace(outcome, cursor=replace(outcome.cursor, doubtful=True))

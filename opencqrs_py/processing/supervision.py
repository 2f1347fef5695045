"""Supervision of one partition: its state, its failures, when it continues, and notices about it.

Both engines act on its decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import islice
from math import inf

from opencqrs_py.model.checkpoint import CheckpointStatus
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.model.inbox import ParkedSequences
from opencqrs_py.model.outcome import Failure, Origin, Outcome
from opencqrs_py.model.progress import Cursor, FailureRecord, PartitionStatus, ProcessorState
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.inbox.parked_entries import given_up
from opencqrs_py.processing.inbox.parking import is_due
from opencqrs_py.processing.inbox.schedules import Schedule
from opencqrs_py.processing.inbox.ticks import TickState
from opencqrs_py.processing.notices import Notice
from opencqrs_py.processing.ports import BackOff, Clock
from opencqrs_py.processing.recovery import Action, ExponentialBackOff, action_for, waits_of

# Internal back-offs, in seconds: while the store or database is unavailable, and after a partition failed (K8).
OUTAGE_BACK_OFF = ExponentialBackOff(initial=0.5, multiplier=2, maximum=30)
FAILURE_BACK_OFF = ExponentialBackOff(initial=30, multiplier=2, maximum=600)
CHECKPOINT_BACK_OFF = ExponentialBackOff(initial=1, multiplier=2, maximum=60)  # after a checkpoint has failed
_MOST_MISSES = 5  # checkpoints in a row that fail before the partition counts as failed
_REMINDER = 3_600.0  # seconds after which a held partition is reported again


class SupervisedPartition:
    """The state of one partition between its steps.

    Args:
        group: Processing group.
        cursor: Where the claim found the partition.
        back_off: Waits between an event's attempts.
        on_exhausted: What happens to an event whose attempts are exhausted.
        clock: Time.
        on_undecodable: What happens to an event that cannot be decoded.
        schedule: Computes the ticks of a scheduled group; ``None`` for any other.

    Attributes:
        scheduled: Whether the partition is one of a scheduled group.
        withholds: Returns whether progress over handled events waits for a checkpoint.
        checkpoint_status: Returns how far participants are; ``None`` without any.
    """

    def __init__(
        self,
        group: str,
        cursor: Cursor,
        back_off: BackOff,
        on_exhausted: OnExhausted,
        clock: Clock,
        on_undecodable: OnExhausted = OnExhausted.STOP,
        schedule: Schedule | None = None,
    ) -> None:
        self.group = group
        self.partition = cursor.partition
        self.cursor = cursor
        self.state = ProcessorState.STARTING
        self.failure: Failure | None = None
        self.handled = 0
        self.skipped = 0
        self.expired = 0
        self._back_off = back_off
        self._on_exhausted = on_exhausted
        self._on_undecodable = on_undecodable
        self._clock = clock
        self._since = clock.now()
        self.scheduled = schedule is not None
        self._ticking = None if schedule is None else TickState(schedule, clock)
        self._due = 0.0
        self._attempt = 0
        self._retries = 0  # waits of the event's back-off so far
        self._event_waits: Iterator[float] | None = None
        self._outage_waits: Iterator[float] | None = None
        self._failure_waits: Iterator[float] | None = None
        self.withholds: Callable[[], bool] = lambda: False
        self.checkpoint_status: Callable[[], CheckpointStatus | None] = lambda: None
        self._misses = 0  # checkpoints that failed since progress was stored
        self._failed_in_inbox = False
        self._record = cursor.failure
        if self._record is not None:
            self._resume(self._record)

    @property
    def record(self) -> FailureRecord | None:
        """The recorded failure that blocks the partition."""
        return self._record

    @property
    def over(self) -> bool:
        """Whether this process must no longer touch the partition."""
        return self.state is ProcessorState.STOPPED

    def failed_at_end(self) -> PartitionStatus | None:
        """Return the status after the end of a run, if it has failed, or its participants did not flush."""
        unflushed = self.failure is not None and self.failure.origin in {Origin.CHECKPOINT, Origin.OUTAGE}
        if self.state is ProcessorState.FAILED or (self.over and unflushed):
            return self.status()
        if not self.over:
            late = "its participants did not flush handled events in time"
            return replace(self.status(), error=late) if self.withholds() else None
        participants = self.checkpoint_status()
        if self.failure is not None or participants is None or participants.handled <= self.cursor.stored:
            return None
        done, handled = self.cursor.stored, participants.handled
        what = f"its participants confirmed position {done} on release, of {handled} handled: the rest is repeated"
        return replace(self.status(), error=what)

    def done(self, head: int) -> bool:
        """Return whether everything up to ``head`` is handled and stored, and what was first due in the inbox, too."""
        if self.failure is not None or self.cursor.position < head:
            return False
        if self.withholds():
            return True
        if self.cursor.stored != self.cursor.position:
            return False
        if self._ticking is not None:
            return self.cursor.tick is None and self._ticking.done(head)
        if self.cursor.replay is not None and self.cursor.replayed:
            return False
        parked = self.cursor.parked
        return parked is None or parked.due_at is None or not is_due(parked, self._since)

    @property
    def is_due_in_inbox(self) -> bool:
        """Whether a sequence in the inbox may be tried; for a scheduled group, whether it is time to check."""
        if self._ticking is not None:
            return self.cursor.tick is not None or self._ticking.is_due(self.cursor.position)
        return self.cursor.parked is not None and is_due(self.cursor.parked, self._clock.now())

    def begin(self) -> Cursor:
        """Return the cursor for the next step, which belongs to a tick if one is due."""
        if self._ticking is not None and self.cursor.tick is None and self._ticking.is_due(self.cursor.position):
            self.cursor = replace(self.cursor, tick=self._ticking.begin(self.cursor.position))
        return self.cursor

    def saw(self, parked: ParkedSequences) -> None:
        """Note what waits in the inbox; a tick without work is over, unless it may end a replay."""
        self.cursor = replace(self.cursor, parked=parked)
        if self._ticking is None or self.cursor.tick is not None or is_due(parked, self._clock.now()):
            return
        if self.cursor.replay is not None:
            return
        if self._ticking.is_due(self.cursor.position):
            self._ticking.begin(self.cursor.position)
            self._ticking.end()

    def handle_at_once(self, upto: int) -> None:
        """Begin a tick of a scheduled group as soon as everything up to a position is read, whatever its schedule."""
        if self._ticking is not None:
            self._ticking.wanted = upto

    def count_on(self, before: SupervisedPartition) -> None:
        """Count what this process has handled, skipped and removed under an earlier claim of the partition, too."""
        self.handled += before.handled
        self.skipped += before.skipped
        self.expired += before.expired

    def keep_ticks_of(self, other: SupervisedPartition) -> None:
        """Continue the ticks of another state of the partition, which this one replaces."""
        self._ticking = other._ticking
        self.cursor = replace(self.cursor, tick=other.cursor.tick)

    def until_tick(self) -> float:
        """Return the seconds until the next tick of a scheduled group; infinity for any other."""
        return inf if self._ticking is None else self._ticking.seconds_left()

    def wait(self) -> float:
        """Return the seconds until the partition may continue, 0 if it may now."""
        return max(0.0, self._due - self._clock.monotonic())

    def take(self, outcome: Outcome) -> Notice | None:
        """Process the outcome of a step and decide how to continue; return the notice for people, if any."""
        if outcome.cursor.stored > self.cursor.stored or outcome.freed:
            self._misses = 0
        if outcome.checkpoint and outcome.failure is None:  # an event that backs off continues to
            self.cursor = outcome.cursor
            return None
        moved = outcome.cursor.position > self.cursor.position
        given_up = bool(outcome.skips) or self.cursor.park is not None  # which was reported when it was decided
        if self._ticking is not None and self.cursor.tick is not None and outcome.cursor.tick is None:
            self._ticking.end()
        self.cursor = outcome.cursor
        self.handled += outcome.handled
        self.skipped += len(outcome.skips)
        self.expired += outcome.expired
        if outcome.failure is None:
            if outcome.without_log and self.failure is not None and not self._is_over_by(outcome, self.failure):
                self._due = 0.0  # the log comes next
                return None
            return self._well(reported=given_up)
        self._failed_in_inbox = outcome.without_log
        if moved and not self.cursor.holds_back(self.cursor.position):
            self._forget()
        if outcome.failure.origin is not Origin.OUTAGE:
            self._outage_waits = None
        return self._act(outcome.failure)

    def claimed_again(self, cursor: Cursor) -> None:
        """Continue from a new claim; what is known about a failed event is kept unless the progress has passed it."""
        known, moved = self._record, cursor.stored != self.cursor.stored
        if moved and (known is None or known.position <= cursor.stored):
            self.cursor = cursor
            self._forget()
        elif cursor.isolate and cursor.failure is not None and cursor.failure != known:
            self.cursor, self._record = cursor, cursor.failure  # the event in hand ended its process
        else:
            isolate = max(cursor.isolate, self.cursor.isolate)
            mine = self.cursor
            if moved:  # what was decided about the event still holds
                tried = replace(cursor, attempt=mine.attempt, failing=mine.failing, failure=mine.failure)
                mine = replace(tried, skip=mine.skip, park=mine.park)
            self.cursor = replace(mine, epoch=cursor.epoch, isolate=isolate, parked=None)

    def isolate(self, events: int) -> None:
        """Have at least this many of the next events handled alone, since a call with all of them hung."""
        self.cursor = replace(self.cursor, isolate=max(events, self.cursor.isolate))

    def doubt(self) -> None:
        """Have the next step check, after an outage, that progress and log are unchanged."""
        self.cursor = replace(self.cursor, doubtful=True)

    def stop(self) -> None:
        """Record that the partition was stopped on request."""
        if self.state is not ProcessorState.FAILED:
            self.state = ProcessorState.STOPPED

    def remain_failed(self, failure: Failure) -> None:
        """Keep the failure with which the partition had failed before its release, whatever the release's outcome."""
        self.state, self.failure = ProcessorState.FAILED, failure

    def status(self) -> PartitionStatus:
        """Return the status of the partition."""
        held = self.failure is not None and self.failure.held
        rests = self.wait() and not held and not self.over
        due = self._clock.now() + timedelta(seconds=self.wait()) if rests else None
        return PartitionStatus(
            group=self.group,
            partition=self.partition,
            position=self.cursor.stored,
            state=self.state,
            attempt=self._attempt,
            replay=self.cursor.replay,
            error=self.failure.summary if self.failure else self._record.last_error if self._record else "",
            next_attempt_at=in_milliseconds(due) if due else None,
            failure=self._record,
            checkpoint=self.checkpoint_status(),
        )

    def _resume(self, record: FailureRecord) -> None:
        """Continue an event's attempts where an earlier claim has left them."""
        self._attempt = record.attempts
        self._retries = record.retries
        self._event_waits = islice(self._waits_of(record.position), record.retries, None)
        if record.next_attempt_at is not None:
            left = (datetime.fromisoformat(record.next_attempt_at) - self._clock.now()).total_seconds()
            begun = next(islice(self._waits_of(record.position), max(0, record.retries - 1), None), left)
            left = min(left, begun)  # the process that wrote it may have had another clock, or it was set since
            if left > 0:
                self.state = ProcessorState.BACKING_OFF
                self._due = self._clock.monotonic() + left

    def _forget(self) -> None:
        """Forget the failed event: it is handled or skipped."""
        self._event_waits = self._outage_waits = self._failure_waits = None
        self._record = None
        self._retries = 0

    def _is_over_by(self, outcome: Outcome, failure: Failure) -> bool:
        """Return whether a failure ended since events of the inbox were tried: an outage, or one of the inbox."""
        return outcome.tried and (self._failed_in_inbox or failure.origin is Origin.OUTAGE)

    def _well(self, *, reported: bool) -> Notice | None:
        over = not self.cursor.holds_back(self.cursor.position)
        recovered = over and not reported and (self.failure is not None or self._record is not None)
        self.state = ProcessorState.RUNNING
        self.failure = None
        self._due = 0.0
        if over:
            self._attempt = 0
            self._forget()
        return Notice(self.group, self.partition, None) if recovered else None

    def _act(self, failure: Failure) -> Notice:
        advises = self.state is ProcessorState.STARTING or (failure.event != "" and self._outage_waits is None)
        self.failure = failure
        wait = self._next_wait(failure)
        action = self._action_for(failure, exhausted=wait is None)
        again = failure.position is not None and self.cursor.failing == failure.position
        self._attempt = (self.cursor.attempt if again else 1) if failure.position is not None else 0
        notice_wait = self._enter(action, failure, wait or 0.0)
        if action is Action.HOLD or failure.untried:
            self._attempt = 0  # no handler was called
        self._due = self._clock.monotonic() + notice_wait
        advises = advises and action is Action.WAIT
        return Notice(self.group, self.partition, action, failure, self._attempt, notice_wait, advises=advises)

    def _new_record(self, failure: Failure, wait: float | None) -> FailureRecord | None:
        """Return the record of an error, ``None`` if no event was in hand."""
        if failure.position is None:
            return self._record
        now = self._clock.now()
        before = self._known(failure)
        if failure.untried:
            return self._untried_record(failure, failure.position, now)
        if before is not None and failure.held:
            return replace(before, first_error=before.first_error or str(failure), last_error=str(failure))
        return FailureRecord(
            position=failure.position,
            event_id=failure.event_id,
            event_type=failure.event_type,
            attempts=before.attempts + 1 if before else 1,
            retries=self._retries,
            first_error=before.first_error or str(failure) if before else str(failure),
            last_error=str(failure),
            first_failed_at=before.first_failed_at if before else in_milliseconds(now),
            next_attempt_at=None if wait is None else in_milliseconds(now + timedelta(seconds=wait)),
        )

    def _untried_record(self, failure: Failure, position: int, now: datetime) -> FailureRecord:
        """Return the record of an event that was not tried: its attempts stay, as does another that has failed."""
        known = self._record
        if known is not None and known.position != position and known.has_failed:
            return known
        if known is None or known.position != position:
            since = in_milliseconds(now)
            known = FailureRecord(position, failure.event_id, failure.event_type, 0, 0, "", "", since)
        return replace(known, last_error=str(failure))

    def _known(self, failure: Failure) -> FailureRecord | None:
        """Return the record of earlier failures of the same event, ``None`` if there is none."""
        return self._record if self._record is not None and self._record.position == failure.position else None

    def _action_for(self, failure: Failure, *, exhausted: bool) -> Action:
        wanted = {"on_exhausted": self._on_exhausted, "on_undecodable": self._on_undecodable}
        return action_for(failure, exhausted=exhausted, **wanted)

    def _next_wait(self, failure: Failure) -> float | None:
        if self._action_for(failure, exhausted=False) is not Action.RETRY:
            return None
        if self._event_waits is None or self._known(failure) is None:  # an earlier one has its own waits, too
            self._event_waits, self._retries = self._waits_of(_position(failure)), 0
        wait = next(self._event_waits, None)
        self._retries += wait is not None
        return wait

    def _waits_of(self, position: int) -> Iterator[float]:
        return waits_of(self._back_off, f"{self.group}:{position}")

    def _enter(self, action: Action, failure: Failure, wait: float) -> float:
        """Change the state according to ``action``; return the seconds to wait."""
        match action:
            case Action.RETRY:
                self.state = ProcessorState.BACKING_OFF
                self._record = self._new_record(failure, wait)
                self.cursor = self.cursor.retrying(_position(failure), failure=self._record)
                return wait
            case Action.SKIP | Action.PARK:
                self.state = ProcessorState.RUNNING
                self._record = self._new_record(failure, None)
                park = given_up(failure, self._clock.now()) if action is Action.PARK else None
                skip = action is Action.SKIP
                self.cursor = self.cursor.retrying(_position(failure), skip=skip, park=park, failure=self._record)
                return 0.0
            case Action.WAIT | Action.CLAIM:
                return self._pause(action)
            case Action.STOP:
                self.state = ProcessorState.FAILED
                self._record = self._new_record(failure, None)
                if self._record is not None and self._record.position == failure.position:
                    attempt, position = max(1, self._attempt), self._record.position
                    self.cursor = replace(self.cursor, failing=position, attempt=attempt, failure=self._record)
                self._failure_waits = self._failure_waits or FAILURE_BACK_OFF.waits()
                return next(self._failure_waits)
            case Action.HOLD:
                self.state = ProcessorState.FAILED
                self._record = self._new_record(failure, None)
                self.cursor = replace(self.cursor, failure=self._record)
                return _REMINDER
            case Action.LEAVE | Action.ISOLATE:  # pragma: no branch a failure never leads to the latter
                self.state = ProcessorState.STOPPED
                return 0.0

    def _pause(self, action: Action) -> float:
        """Enter a wait in which no event is tried; return its seconds."""
        if action is Action.WAIT:
            self.state = ProcessorState.WAITING
            self._outage_waits = self._outage_waits or OUTAGE_BACK_OFF.waits()
            return next(self._outage_waits)
        self._misses += 1
        self.state = ProcessorState.FAILED if self._misses >= _MOST_MISSES else ProcessorState.BACKING_OFF
        return next(islice(CHECKPOINT_BACK_OFF.waits(), min(self._misses, 10) - 1, None))


def _position(failure: Failure) -> int:
    if failure.position is None:
        msg = f"{failure.origin} errors name the event in hand"
        raise ValueError(msg)
    return failure.position

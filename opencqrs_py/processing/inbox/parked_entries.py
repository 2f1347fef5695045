"""Entries of the inbox: an event's state before and after its attempts."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.model.event import Event
from opencqrs_py.model.inbox import FailedAttempt, GivenUp, InboxEntry, InboxStatus, as_entry
from opencqrs_py.model.naming import in_one_line
from opencqrs_py.model.outcome import Failure, Origin
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor, FailureRecord
from opencqrs_py.model.replay import Replay
from opencqrs_py.model.times import in_milliseconds
from opencqrs_py.processing.ports import BackOff
from opencqrs_py.processing.recovery import Action, ExponentialBackOff, action_for, wait_after

logger = logging.getLogger("opencqrs.processing")

_CRASH = "the process ended in this attempt"


def named(entry: InboxEntry) -> str:
    """Return the seed of an entry's jitter: the waits of one event are the same in each process."""
    return f"{entry.group}:{entry.position}"


def given_up(failure: Failure, now: datetime) -> GivenUp:
    """Return how an event that has failed finally is parked.

    An event that cannot be decoded, or whose error is permanent, waits for a person.
    """
    status = InboxStatus.RETRYING
    if failure.origin is Origin.EVENT:
        status = InboxStatus.UNDECODABLE
    elif failure.permanent:
        status = InboxStatus.EXHAUSTED
    return GivenUp(FailedAttempt(in_milliseconds(now), str(failure), failure.traceback), status)


def parked_entry(
    group: str,
    sequence_id: str,
    event: Event,
    how: GivenUp,
    record: FailureRecord | None,
    rule: ParkingRule,
    now: datetime,
    replay: Replay | None = None,
) -> InboxEntry:
    """Return the entry of an event that is parked after its recorded attempts have failed."""
    errors: tuple[FailedAttempt, ...] = (how.error,)
    if record is not None and record.attempts > 1:
        errors = (FailedAttempt(record.first_failed_at, record.first_error), how.error)
    attempts = record.attempts if record is not None else 1
    fresh = waiting_entry(group, sequence_id, event, in_milliseconds(now), replay)
    entry = fresh._replace(attempts=attempts - 1, errors=errors[:-1])
    return after_failure(entry, how, rule.back_off, now)


def waiting_entry(group: str, sequence_id: str, event: Event, since: str, replay: Replay | None = None) -> InboxEntry:
    """Return the entry of an event that waits unhandled since an ISO 8601 time, possibly in a replay."""
    known = (event.position, event.id, event.source, event.subject, event.type)
    replaying = replay is not None and replay.covers(event.position)
    return as_entry((group, sequence_id, *known, InboxStatus.PENDING, since, 0, 0, None, (), None, replaying))


def after_failure(entry: InboxEntry, how: GivenUp, back_off: BackOff, now: datetime) -> InboxEntry:
    """Return an entry after its attempt has failed: due again after a wait, or waiting for a person."""
    wait = wait_after(back_off, entry.retries, named(entry)) if how.status is InboxStatus.RETRYING else None
    if wait is not None:
        return entry.failed(how.error, InboxStatus.RETRYING, now + timedelta(seconds=wait))
    status = InboxStatus.EXHAUSTED if how.status is InboxStatus.RETRYING else how.status
    return entry.failed(how.error, status, None)


def crash_in_attempt(now: datetime) -> GivenUp:
    """Return the failure that is recorded before an attempt that may end the process; it remains if that happens."""
    return GivenUp(FailedAttempt(in_milliseconds(now), _CRASH), InboxStatus.RETRYING)


def before_mark(entry: InboxEntry, cursor: Cursor) -> InboxEntry:
    """Return an entry whose call was abandoned, without the mark of that attempt if it was isolated."""
    if not (cursor.isolate and entry.errors and entry.errors[-1].error == _CRASH):
        return entry
    retries = entry.retries - (entry.status is InboxStatus.RETRYING)
    return entry._replace(attempts=entry.attempts - 1, retries=max(0, retries), errors=entry.errors[:-1])


def is_used_up_by_crashes(entry: InboxEntry, back_off: BackOff) -> bool:
    """Return whether an event's last allowed attempt was one in which the process ended."""
    crashed = bool(entry.errors) and entry.errors[-1].error == _CRASH
    return crashed and entry.retries > 0 and wait_after(back_off, entry.retries - 1, named(entry)) is None


def lost(entry: InboxEntry, now: datetime) -> InboxEntry:
    """Return the entry of an event that is no longer in the log."""
    event = in_one_line(f"event {entry.event_id} of {entry.event_source} at position {entry.position}")
    what = f"the log no longer has {event}"
    return entry.failed(FailedAttempt(in_milliseconds(now), what), InboxStatus.UNDECODABLE, None)


def unwanted(entry: InboxEntry, now: datetime) -> InboxEntry:
    """Return the entry of an event that no handler takes any more."""
    what = f"no handler of the group takes events of type {in_one_line(entry.event_type)} any longer"
    return entry.failed(FailedAttempt(in_milliseconds(now), what), InboxStatus.UNDECODABLE, None)


def report_lost(partition: Partition, entries: Iterable[InboxEntry]) -> None:
    """Log that entries wait for a person, since their events are no longer in the log, or no handler takes them."""
    for entry in entries:
        what = f"event {in_one_line(entry.event_id)} of sequence {entry.sequence_id!r} waits for a person"
        logger.error("[%s %s] %s: %s", entry.group, partition, what, entry.reason)


@dataclass(frozen=True, slots=True)
class ParkingRule:
    """How a group parks events.

    Attributes:
        back_off: Waits before the attempts of a parked event.
        most_sequences: Sequences of the group that may wait in the inbox.
        most_of_sequence: Events of a sequence that may wait there.
        retry: Waits between the attempts of an event before it is parked; ``None``: the supervision of the partition
            decides, in a separate step.
        on_exhausted: What happens to an event whose attempts are exhausted.
        on_undecodable: What happens to an event that cannot be decoded.
    """

    back_off: BackOff = field(default_factory=lambda: ExponentialBackOff(30.0, 2.0, 3_600.0, max_attempts=5))
    most_sequences: int = 1_024
    most_of_sequence: int = 1_024
    retry: BackOff | None = None
    on_exhausted: OnExhausted = OnExhausted.STOP
    on_undecodable: OnExhausted = OnExhausted.STOP

    @property
    def parks(self) -> bool:
        """Whether events may be parked; if not, only what waits already is handled."""
        return OnExhausted.PARK in (self.on_exhausted, self.on_undecodable)

    def parks_at_once(self, failure: Failure) -> bool:
        """Return whether an event is parked after such a failure of its first attempt."""
        if not self.parks or self.retry is None or failure.position is None:
            return False
        wanted = {"on_exhausted": self.on_exhausted, "on_undecodable": self.on_undecodable}
        exhausted = next(self.retry.waits(), None) is None
        return action_for(failure, exhausted=exhausted, **wanted) is Action.PARK

    def wait_after(self, entry: InboxEntry, retries: int) -> float | None:
        """Return the seconds to wait after ``retries`` waits of an event; ``None``: its attempts are exhausted."""
        return wait_after(self.back_off, retries, named(entry))

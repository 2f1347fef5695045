"""The progress of a partition, the log that it belongs to, and what is known about its next event."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from opencqrs_py.errors import OtherLogError
from opencqrs_py.model.ahead import Ahead
from opencqrs_py.model.checkpoint import CheckpointStatus
from opencqrs_py.model.event import Event
from opencqrs_py.model.inbox import GivenUp, InboxStatus, ParkedSequences
from opencqrs_py.model.naming import in_one_line, storable
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.replay import Replay

ERROR_LENGTH = 1_000
"""How many characters of an error's text are kept."""

_LONGEST = 1_000  # characters that the progress table of every database can hold
_WAYS_OUT = (
    "restore the event store that the progress belongs to; or rebuild the group: delete its read model and its rows "
    "in opencqrs_progress and opencqrs_groups; or, to continue from here anyway, set log_fingerprint to NULL in "
    "its rows of opencqrs_progress, and position to the newest event's if it is beyond it"
)


class ProcessorState(StrEnum):
    """What the processor of a partition is doing."""

    STARTING = "starting"
    RUNNING = "running"
    BACKING_OFF = "backing-off"  # an event failed and is tried again at a known time
    WAITING = "waiting"  # the store or the database is unavailable; no event's attempt is used
    FAILED = "failed"  # stopped by an error; retried after a growing pause
    STOPPED = "stopped"
    STANDBY = "standby"  # no node has the partition, and a live node can run it
    UNOWNED = "unowned"  # the owner has not released the partition, but has ended or lost its lease


OF_OWNERS = (
    ProcessorState.STARTING,
    ProcessorState.RUNNING,
    ProcessorState.BACKING_OFF,
    ProcessorState.WAITING,
)
"""States of partitions that a process has, and has not given up."""


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """The failure that blocks a partition, as it is stored beside the progress.

    It outlives the process, so that a service that restarts often still exhausts an event's attempts.

    Attributes:
        position: Position of the event that failed.
        event_id: CloudEvents ``id`` of the event.
        event_type: CloudEvents ``type`` of the event.
        attempts: Attempts that ended with an error; 0 if the event is only being handled, only processes have ended,
            or the partition stops before the event.
        retries: Waits of the back-off so far, at least 0; fewer than the attempts after errors that are not retried.
        first_error: The first attempt's error, one line.
        last_error: The last attempt's error, or why the partition stops before the event; one line.
        first_failed_at: ISO 8601 time of the first failure.
        next_attempt_at: ISO 8601 time before which the event is not tried again; ``None``: at the next start.
        crashes: How many processes have crashed while they handled the event.
        in_hand: Whether a marked attempt has begun. If a claim finds the mark, a process did not survive that attempt.
    """

    position: int
    event_id: str
    event_type: str
    attempts: int
    retries: int
    first_error: str
    last_error: str
    first_failed_at: str
    next_attempt_at: str | None = None
    crashes: int = 0
    in_hand: bool = False

    @property
    def has_failed(self) -> bool:
        """Whether the event has failed or ended a process, and is not merely marked as being handled."""
        return self.attempts > 0 or self.crashes > 0

    @property
    def blocks(self) -> bool:
        """Whether the event keeps its partition from moving on: it has failed, or cannot be tried."""
        return self.has_failed or (self.last_error != "" and not self.in_hand)


@dataclass(frozen=True, slots=True)
class Skip:
    """A skipped event, recorded in the transaction that moves the progress past it.

    Attributes:
        group: Processing group.
        partition: Partition of the group.
        position: Position of the event.
        event_id: CloudEvents ``id``.
        event_source: CloudEvents ``source``.
        subject: CloudEvents ``subject``.
        event_type: CloudEvents ``type``.
        attempts: Attempts made; 0 if a person has skipped it before the first one.
        reason: The last attempt's error, one line; or why a person has skipped it.
        skipped_at: ISO 8601 time.
    """

    group: str
    partition: Partition
    position: int
    event_id: str
    event_source: str
    subject: str
    event_type: str
    attempts: int
    reason: str
    skipped_at: str


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a partition continues. Cursors are equal if they are at the same place of the same claim.

    Attributes:
        partition: Partition that it belongs to.
        epoch: Fencing number of the claim under which progress may be written.
        stored: Position that the progress tracker holds.
        position: Position up to which nothing is left to do; ahead of ``stored`` if only events of others have passed.
        attempt: Number of the coming attempt of the next event, from 1.
        failing: Position of the event that failed before, or ``None``.
        skip: Whether the failing event is to be skipped instead of being tried.
        park: How the failing event is to be parked instead of being tried, or ``None``.
        shared: Whether another task may move the progress under the same claim, as when Spark runs a task twice.
        doubtful: Whether there was an outage: a commit whose answer was lost may have moved the progress, and the
            log may have been replaced.
        confirmed: How often that was checked under this claim.
        fingerprint: Identifies the log up to ``stored``; empty if unknown.
        failure: Record of the failing event.
        file: Identifies the file of the database with the claim, if it is a file; otherwise empty. A
            process that starts later detects by it that the file was replaced.
        unreleased: Whether the previous owner ended, or was fenced off, without releasing the partition.
        isolate: How many of the next events are handled alone, each after a mark, so that an event that ends processes
            is found.
        parked: The partition's sequences in the inbox; ``None``: unknown, so the next step reads them.
        tick: ISO 8601 time of the current tick of a scheduled group; ``None`` between two ticks.
        replay: What is handled again since the group was reset; ``None`` if nothing is.
        ahead: What is handled beyond the position since the partitions of the group have changed; ``None`` if nothing
            is.
    """

    partition: Partition
    epoch: int
    stored: int
    position: int
    attempt: int = 1
    failing: int | None = None
    skip: bool = False
    park: GivenUp | None = None
    shared: bool = field(default=False, compare=False)
    doubtful: bool = field(default=False, compare=False)
    confirmed: int = field(default=0, compare=False)
    fingerprint: str = field(default="", compare=False)
    failure: FailureRecord | None = field(default=None, compare=False)
    file: str = field(default="", compare=False)
    unreleased: bool = field(default=False, compare=False)
    isolate: int = field(default=0, compare=False)
    parked: ParkedSequences | None = field(default=None, compare=False)
    tick: str | None = field(default=None, compare=False)
    replay: Replay | None = field(default=None, compare=False)
    ahead: Ahead | None = field(default=None, compare=False)

    @property
    def replayed(self) -> bool:
        """Whether everything that is handled again since a reset is done, so that the replay can end."""
        return self.replay is not None and self.position >= self.replay.until

    @property
    def farthest(self) -> int:
        """Up to which position events count as handled: in a replay, and while some are ahead, beyond the progress."""
        return _farthest(self.stored, self.replay, self.ahead)

    def check_forward(self, to: int) -> None:
        """Refuse to store a position before the stored one.

        Raises:
            ValueError: If ``to`` is before ``stored``.
        """
        if to < self.stored:
            raise ValueError(f"progress of partition {self.partition} must not go back from {self.stored} to {to}")

    def moved_to(self, position: int, *, stored: bool, fingerprint: str = "") -> Cursor:
        """Return the cursor after everything up to ``position`` is done; a failure up to there is cleared."""
        changes: dict[str, Any] = {"position": position}
        if stored:
            changes |= {"stored": position, "fingerprint": fingerprint}
        if self.failing is None or self.failing <= position:
            changes |= {"attempt": 1, "failing": None, "skip": False, "park": None, "failure": None}
        return replace(self, **changes)

    def holds_back(self, position: int) -> bool:
        """Return whether the event that failed comes after ``position``."""
        return self.failing is not None and self.failing > position

    def retrying(
        self,
        failing: int,
        *,
        skip: bool = False,
        park: GivenUp | None = None,
        failure: FailureRecord | None = None,
    ) -> Cursor:
        """Return the cursor for the next attempt of the event at ``failing``, or for skipping or parking it."""
        again = self.attempt + 1 if self.failing == failing else 2
        return replace(self, attempt=again, failing=failing, skip=skip, park=park, failure=failure)

    def resuming(self, failure: FailureRecord) -> Cursor:
        """Return the cursor of a new claim that finds ``failure`` recorded; an event in hand ended its process."""
        found = replace(failure, crashes=failure.crashes + failure.in_hand, in_hand=False)
        return replace(self, attempt=failure.retries + 1, failing=failure.position, failure=found)


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """The status of one partition.

    Attributes:
        group: Processing group.
        partition: Partition of the group.
        position: Stored progress.
        state: State of its processor.
        attempt: Attempts made of the failing event; 0 when there is none.
        error: Last error, one line; empty when there is none.
        next_attempt_at: ISO 8601 time of the next attempt, or ``None``.
        updated_at: ISO 8601 time at which its progress was last stored, or its participants last handled events, or it
            was claimed or reset; ``None`` if that is not known.
        failure: That of the last event that failed, until it is handled, or ``None``; ``error`` may be another's.
        skipped: Events that were skipped since the group began.
        parked: How many events wait in the inbox, by what they wait for.
        wanted: Whether the partition is to be ``started``, ``stopped``, or ``paused`` by a command.
        owner: Name of the node that has it; empty if none has, or its group does not use leases.
        owned_since: ISO 8601 time at which that node took it, or ``None``.
        lease_until: ISO 8601 time at which its lease ends if that node is not heard of again, or ``None``.
        replay: What is handled again since the group was reset; ``None`` if nothing is.
        ahead: What is handled beyond the position since the partitions of the group have changed; ``None`` if nothing
            is.
        checkpoint: Last published state of the group's participants; ``None`` without any.
    """

    group: str
    partition: Partition
    position: int
    state: ProcessorState
    attempt: int = 0
    error: str = ""
    next_attempt_at: str | None = None
    updated_at: str | None = None
    failure: FailureRecord | None = None
    skipped: int = 0
    parked: tuple[tuple[InboxStatus, int], ...] = ()
    wanted: str = "started"
    owner: str = ""
    owned_since: str | None = None
    lease_until: str | None = None
    replay: Replay | None = None
    ahead: Ahead | None = None
    checkpoint: CheckpointStatus | None = None

    @property
    def farthest(self) -> int:
        """Up to which position events count as handled, as of a ``Cursor``."""
        return _farthest(self.position, self.replay, self.ahead)

    @property
    def failed_event(self) -> FailureRecord | None:
        """The failure, if the last error is that of its event: not an outage, say, or an earlier event's."""
        if self.failure is None or not self.error:
            return self.failure
        known, error = (storable(text, ERROR_LENGTH) for text in (self.failure.last_error, self.error))
        if error == known:
            return self.failure
        rest = error.removeprefix(known)
        event = storable(in_one_line(f" - event {self.failure.event_id} at position {self.failure.position} "))
        named = rest.startswith(event) or (len(error) == ERROR_LENGTH and event.startswith(rest))
        return self.failure if known and rest != error and named else None


def _farthest(position: int, *beyond: Replay | Ahead | None) -> int:
    return max(position, *(0 if one is None else one.until for one in beyond))


@dataclass(frozen=True, slots=True)
class LogMark:
    """The newest event at or below a position.

    Attributes:
        position: Its position; 0 when there is none.
        source: CloudEvents ``source``.
        event_id: CloudEvents ``id``.
    """

    position: int = 0
    source: str = ""
    event_id: str = ""

    @classmethod
    def of(cls, event: Event | None) -> LogMark:
        """Return the mark of an event, or of an empty log."""
        return cls() if event is None else cls(event.position, event.source, event.id)

    @property
    def text(self) -> str:
        """The mark as ASCII, 1 to 1,000 characters; a long identity as its SHA-256."""
        if not self.position:
            return "[0]"
        text = json.dumps([self.position, self.source, self.event_id])
        if len(text) <= _LONGEST:
            return text
        identity = json.dumps([self.source, self.event_id]).encode()
        return json.dumps([self.position, hashlib.sha256(identity).hexdigest()])

    def __str__(self) -> str:
        if not self.position:
            return "nothing"
        return f"event {self.event_id[:100]} of {self.source[:100]} at position {self.position}"


def check_mark(
    position: int, fingerprint: str, head: Callable[[], int], find: Callable[[int], LogMark | None], where: str
) -> None:
    """Compare a log with the fingerprint of a ``LogMark``.

    Args:
        position: The stored progress.
        fingerprint: The text stored with it; empty if an older version stored none.
        head: Returns the position of the newest event.
        find: Returns the mark of the event at a position, ``None`` if there is no event.
        where: How messages name the log.

    Raises:
        EventStoreError: OCQ-316, if the log does not hold the event.
    """
    marked = _position_in(fingerprint)
    if marked is None:
        if position > (newest := head()):
            raise another_log(f"the progress is at position {position}, but the log ends at {newest}", where)
        return
    if marked == 0:
        return
    found = find(marked)
    if found is not None and found.text == fingerprint:
        return
    expected = _described(fingerprint)
    there = f"the log has {found}" if found is not None else "there is none"
    if found is None and (newest := head()) < marked:
        there += f": the log ends at position {newest}"
    raise another_log(f"expected {expected}, but {there}", where)


def another_log(what: str, where: str) -> OtherLogError:
    """Return the error for a log that is not the one that the progress belongs to."""
    return OtherLogError(
        "OCQ-316", f"the event store is not the one that the progress belongs to: {what}", where, _WAYS_OUT
    )


def _position_in(fingerprint: str) -> int | None:
    try:
        found = json.loads(fingerprint)
    except ValueError:
        return None if not fingerprint else -1  # of another kind of store: no event matches
    return found[0] if isinstance(found, list) and found and isinstance(found[0], int) else -1


def _described(fingerprint: str) -> str:
    try:
        position, source, event_id = json.loads(fingerprint)
    except ValueError:
        return "another event" if fingerprint.startswith("[") else "an event of another kind of event store"
    return str(LogMark(position, source, event_id))

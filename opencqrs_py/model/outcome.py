"""Outcomes of a processor's steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from opencqrs_py.model.naming import MOST_LISTED
from opencqrs_py.model.progress import Cursor, Skip


class Origin(StrEnum):
    """Where an error arose, which decides what is done about it."""

    HANDLER = "handler"  # raised by the user's code, or by committing what it wrote
    EVENT = "event"  # the event cannot be decoded for a handler that wants it
    FRAMEWORK = "framework"  # a resolver, the container, this package
    OUTAGE = "outage"  # the event store or the database is unavailable
    FENCED = "fenced"  # another processor owns the partition now
    CHECKPOINT = "checkpoint"  # a participant does not confirm; the partition restarts after the stored position


@dataclass(frozen=True, slots=True)
class Failure:
    """An error and the event in hand, as plain text that can be sent between processes.

    Attributes:
        origin: Where the error arose.
        permanent: Whether the error itself excludes a retry (``NonTransientError``).
        error: Type name of the exception.
        message: Its text.
        code: Its code, ``OCQ-`` and three digits; empty when it has none.
        traceback: The user's own frames, formatted; empty when there are none.
        position: Position of the event in hand, or ``None`` when no event was in hand.
        event: The event's label; empty when no event was in hand.
        event_id: CloudEvents ``id`` of the event in hand.
        event_type: CloudEvents ``type`` of the event in hand.
        advice: Place and fix of an explained error, as lines; empty for others.
        held: Whether nothing is tried again until the partition is restarted.
        untried: Whether the partition stops before the event, which no handler got: it uses no attempt.
    """

    origin: Origin
    permanent: bool
    error: str
    message: str
    code: str = ""
    traceback: str = ""
    position: int | None = None
    event: str = ""
    event_id: str = ""
    event_type: str = ""
    advice: str = ""
    held: bool = False
    untried: bool = False

    @property
    def summary(self) -> str:
        """The error and the event in hand, in one line."""
        return f"{self} - {self.event}" if self.event else str(self)

    def __str__(self) -> str:
        first_line = self.message.strip().splitlines()[0] if self.message.strip() else ""
        text = f"{self.error}: {first_line}" if first_line else self.error
        return f"[{self.code}] {text}" if self.code else text


@dataclass(frozen=True, slots=True)
class Parked:
    """A failed attempt of an event in the inbox.

    Attributes:
        failure: The failure of that attempt.
        sequence_id: The event's sequence, which waits with it.
        attempt: Attempts made.
        wait: Seconds until the next one; ``None``: a person comes first.
        new: Whether this failure moved the event into the inbox.
        skipped: Whether it was the last attempt, and the event is skipped.
    """

    failure: Failure
    sequence_id: str
    attempt: int
    wait: float | None
    new: bool = False
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class Uncounted:
    """A failure of an event within its grace period, which is not recorded and uses no attempt.

    Attributes:
        failure: The failure.
        until: ISO 8601 time from which on failures count.
    """

    failure: Failure
    until: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a step.

    Attributes:
        cursor: Where to continue.
        handled: Events that were handed to at least one handler and are done.
        skips: Events that were skipped, as recorded.
        idle: Whether nothing was left to read.
        failure: Why the step ended early, or ``None``.
        missed: Failures of calls after the commit; nothing is repeated.
        parked: Failed attempts of events in the inbox.
        freed: Sequences that have left the inbox.
        expired: Events that were removed from the inbox because they had expired.
        expired_events: The first of them, as messages name them.
        uncounted: Failures of events within their grace period.
        checkpoint: Whether it was a checkpoint of participants, in which nothing was handled.
        changed: Whether a person has changed the entries being handled, so that they are not done: later events of
            their sequence must not overtake them.
        without_log: Whether at most the inbox was read, and not the log: a known failure still applies.
    """

    cursor: Cursor
    handled: int = 0
    skips: tuple[Skip, ...] = ()
    idle: bool = False
    failure: Failure | None = None
    missed: tuple[Failure, ...] = ()
    parked: tuple[Parked, ...] = ()
    freed: tuple[str, ...] = ()
    expired: int = 0
    expired_events: tuple[str, ...] = ()
    uncounted: tuple[Uncounted, ...] = ()
    checkpoint: bool = False
    changed: bool = False
    without_log: bool = False

    @property
    def skipped(self) -> int:
        """How many events were skipped."""
        return len(self.skips)

    @property
    def tried(self) -> bool:
        """Whether an event was tried, in the log or in the inbox, and its outcome recorded."""
        return bool(self.handled or self.skips or self.parked or self.expired or self.uncounted)

    @property
    def is_fenced(self) -> bool:
        """Whether the step ended because another claim has the partition."""
        return self.failure is not None and self.failure.origin is Origin.FENCED

    def followed_by(self, then: Outcome) -> Outcome:
        """Return the combined outcome of this step and the following one."""
        return replace(
            then,
            handled=self.handled + then.handled,
            skips=self.skips + then.skips,
            missed=self.missed + then.missed,
            parked=self.parked + then.parked,
            freed=self.freed + then.freed,
            expired=self.expired + then.expired,
            expired_events=(*self.expired_events, *then.expired_events)[:MOST_LISTED],
            uncounted=self.uncounted + then.uncounted,
            without_log=self.without_log and then.without_log,
        )

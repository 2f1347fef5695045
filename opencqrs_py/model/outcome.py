"""What one step of a processor came to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from opencqrs_py.model.progress import Cursor, Skip


class Origin(StrEnum):
    """Where an error arose; decides what is done about it."""

    HANDLER = "handler"  # raised by the user's code, or by committing what it wrote
    EVENT = "event"  # the event cannot be decoded for a handler that wants it
    FRAMEWORK = "framework"  # a resolver, the container, this package
    OUTAGE = "outage"  # the event store or the database does not answer
    FENCED = "fenced"  # another processor owns the partition now
    CHECKPOINT = "checkpoint"  # a participant does not say what is durable; the partition begins again where it is


@dataclass(frozen=True, slots=True)
class Failure:
    """An error and the event in hand, as plain text: it crosses process borders.

    Attributes:
        origin: Where the error arose.
        permanent: Whether the error itself says that no retry helps (``NonTransientError``).
        error: Type name of the exception.
        message: Its text.
        code: Its code, ``OCQ-`` and three digits; empty when it has none.
        traceback: The user's own frames, formatted; empty when there are none.
        position: Position of the event in hand, or ``None`` when no event was in hand.
        event: The event's label; empty when no event was in hand.
        event_id: CloudEvents ``id`` of the event in hand.
        event_type: CloudEvents ``type`` of the event in hand.
        advice: Of an explained error, where it is and how to fix it, as lines; empty for others.
        held: Whether nothing is tried again before somebody restarts the partition.
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
    """An event in the inbox of which an attempt has failed.

    Attributes:
        failure: How that attempt has ended.
        sequence_id: The event's sequence, which waits with it.
        attempt: Attempts made.
        wait: Seconds until the next one; ``None``: a person comes first.
        new: Whether the event has come into the inbox by that.
        skipped: Whether it was the last one, and the event is skipped.
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
    """What a step did.

    Attributes:
        cursor: Where to continue.
        handled: Events that were handed to at least one handler and are done.
        skips: Events that were given up, as they were recorded.
        idle: Nothing was left to read.
        failure: Why the step ended early, or ``None``.
        missed: What calls after the commit raised; nothing is repeated.
        parked: Events in the inbox of which an attempt has failed.
        freed: Sequences that are not in the inbox any more.
        expired: Events that were removed from the inbox, since their time was over.
        uncounted: Failures of events within their grace period.
        checkpoint: Whether it was a checkpoint of participants, by which nothing was handled.
        changed: Whether a person has changed in the inbox what was in hand, so that it is not done: what follows in its
            sequence must not overtake it.
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
    uncounted: tuple[Uncounted, ...] = ()
    checkpoint: bool = False
    changed: bool = False

    @property
    def skipped(self) -> int:
        """How many events were given up."""
        return len(self.skips)

    def followed_by(self, then: Outcome) -> Outcome:
        """Return what this step and the one after it came to together."""
        return replace(
            then,
            handled=self.handled + then.handled,
            skips=self.skips + then.skips,
            missed=self.missed + then.missed,
            parked=self.parked + then.parked,
            freed=self.freed + then.freed,
            expired=self.expired + then.expired,
            uncounted=self.uncounted + then.uncounted,
        )

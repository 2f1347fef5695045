"""The inbox: events of a sequence that wait in the database for their next attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from opencqrs_py.errors import InboxFullError
from opencqrs_py.model.choices import Choice
from opencqrs_py.model.event import Event
from opencqrs_py.model.naming import counted, event_label, in_one_line, storable
from opencqrs_py.model.partition import hash_of
from opencqrs_py.model.times import in_milliseconds

MOST_ATTEMPTS = 100_000
"""Most attempts that a person may set: an endless back-off computes that many waits after each failed attempt."""

_ERRORS_KEPT = 10  # the first one, and the newest


class InboxStatus(Choice):
    """What an event of the inbox waits for: exactly one of these."""

    PENDING = "pending"  # its first attempt: an earlier event of its sequence waits
    RETRYING = "retrying"  # its next attempt, at a known time
    PAUSED = "paused"  # a person has paused it
    EXHAUSTED = "exhausted"  # a person: all its attempts have failed
    EXPIRED = "expired"  # nothing: it has expired, and is removed
    UNDECODABLE = (
        "undecodable"  # a person: the stored event cannot be decoded, no longer exists, or no handler takes it
    )

    @property
    def moves(self) -> bool:
        """Whether the event is tried without action by a person."""
        return self is InboxStatus.PENDING or self is InboxStatus.RETRYING


MOVING = frozenset(status for status in InboxStatus if status.moves)
"""The statuses of events that are tried without action by a person: looking them up here costs a quarter."""

STUCK = (InboxStatus.PAUSED, InboxStatus.EXHAUSTED, InboxStatus.UNDECODABLE)
"""The statuses of events that wait for a person."""


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """A failed attempt, and its error.

    Attributes:
        at: ISO 8601 time.
        error: The error in one line.
        lines: The lines of the user's code that raised it; empty if there are none.
    """

    at: str
    error: str
    lines: str = ""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """How an event is parked: its last error, and what it waits for."""

    error: FailedAttempt
    status: InboxStatus


class InboxEntry(NamedTuple):
    """A waiting event. It stays in its store, and is read again by its position.

    A named tuple, like events: one is made for each event that enters the inbox, and again when it leaves.

    Attributes:
        group: Processing group.
        sequence_id: Its sequence, whose events are handled in the order of their positions.
        position: Position of the event.
        event_id: CloudEvents ``id``.
        event_source: CloudEvents ``source``.
        subject: CloudEvents ``subject``.
        event_type: CloudEvents ``type``.
        status: What it waits for.
        parked_at: ISO 8601 time at which it entered the inbox.
        attempts: Attempts that have failed, here and before.
        retries: Number of waits of the back-off of parked events so far.
        due_at: ISO 8601 time from which it may be tried; ``None``: another event or a person comes first.
        errors: Errors of attempts: the first one, and the newest.
        expires_at: ISO 8601 time from which it is no longer tried; ``None``: never.
        replaying: Whether it was handled before a reset, and is handled again.
    """

    group: str
    sequence_id: str
    position: int
    event_id: str
    event_source: str
    subject: str
    event_type: str
    status: InboxStatus
    parked_at: str
    attempts: int = 0
    retries: int = 0
    due_at: str | None = None
    errors: tuple[FailedAttempt, ...] = ()
    expires_at: str | None = None
    replaying: bool = False

    def status_at(self, now: datetime) -> InboxStatus:
        """Return what the event waits for at a time: its status, or that it has expired by then."""
        expired = self.expires_at is not None and self.expires_at <= in_milliseconds(now)
        return InboxStatus.EXPIRED if expired else self.status

    def is_of(self, event: Event) -> bool:
        """Return whether an event is this one, by id and source as databases store them."""
        return (storable(event.id), storable(event.source)) == (storable(self.event_id), storable(self.event_source))

    @property
    def label(self) -> str:
        """How messages name the event."""
        return event_label(self.event_id, self.position, self.event_type, self.subject)

    @property
    def reason(self) -> str:
        """The last error, one line; empty if it was not tried yet."""
        return self.errors[-1].error if self.errors else ""

    def failed(self, error: FailedAttempt, status: InboxStatus, due_at: datetime | None) -> InboxEntry:
        """Return the entry after an attempt has failed, with what it waits for now."""
        errors = (*self.errors, error)
        if len(errors) > _ERRORS_KEPT:
            errors = (errors[0], *errors[-_ERRORS_KEPT + 1 :])
        attempts, retries = self.attempts + 1, self.retries + (due_at is not None)
        return self._replace(status=status, due_at=_text(due_at), errors=errors, attempts=attempts, retries=retries)

    def due(self, now: datetime) -> InboxEntry:
        """Return the entry as one that may be tried at once, if no event of its sequence comes first."""
        status = InboxStatus.RETRYING if self.attempts else InboxStatus.PENDING
        return self._replace(status=status, due_at=_text(now))

    def paused(self) -> InboxEntry:
        """Return the entry as one that waits for a person."""
        return self._replace(status=InboxStatus.PAUSED, due_at=None)

    def with_retries(self, retries: int) -> InboxEntry:
        """Return the entry with another number of used attempts."""
        return self._replace(retries=retries)


as_entry = partial(tuple.__new__, InboxEntry)
"""Make an entry from a tuple of all attributes: what ``InboxEntry`` does, in half the time."""


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else in_milliseconds(moment)


@dataclass(frozen=True, slots=True)
class InboxSelection:
    """A selection of a group's events in the inbox: those that meet all given conditions.

    Attributes:
        sequence_id: Their sequence.
        event_id: Their CloudEvents ``id``.
        status: What they wait for, as stored; ``EXPIRED`` selects those with a time of expiry.
        due_after: ISO 8601 time in UTC, in milliseconds, after which they are due.
        after: Hash of the sequence, and position, of the event after which they come in the order of ``entries``.
    """

    sequence_id: str | None = None
    event_id: str | None = None
    status: InboxStatus | None = None
    due_after: str | None = None
    after: tuple[int, int] | None = None

    def matches(self, entry: InboxEntry) -> bool:
        """Return whether an entry is selected."""
        pairs = ((self.sequence_id, entry.sequence_id), (self.event_id, entry.event_id))
        if any(wanted not in (None, found) for wanted, found in pairs):
            return False
        if self.due_after is not None and (entry.due_at is None or entry.due_at <= self.due_after):
            return False
        if self.after is not None and (hash_of(entry.sequence_id), entry.position) <= self.after:
            return False
        if self.status is InboxStatus.EXPIRED:
            return entry.expires_at is not None
        return self.status in (None, entry.status)


EVERYTHING = InboxSelection()


class Fetching(StrEnum):
    """Which events of a sequence that is due are fetched."""

    FIRST = "first"  # its first ones, as many as requested
    WHOLE = "whole"  # all
    DUE = "due"  # those that are due themselves, since each is tried on its own


@dataclass(frozen=True, slots=True)
class Remainder:
    """The rest of a sequence after some of its events were tried.

    Attributes:
        sequence_id: Its id.
        due_at: ISO 8601 time from which its first event may be tried, unless that waits for a person, and the
            others after it; ``None``: a person comes first. If none of its events waits for one any more, since a
            person has just acted, the times that they have stay.
        until: If given, all events that are due by that time get ``due_at`` instead, but for the chosen ones.
        chosen: Positions of events that are still tried before ``due_at``, unless they wait for a person.
        chosen_at: ISO 8601 time from which they may be tried; every other event of the sequence gets ``due_at`` then,
            not only the first. ``None`` if ``until`` is given: they keep their times.
    """

    sequence_id: str
    due_at: str | None
    until: str | None = None
    chosen: tuple[int, ...] = ()
    chosen_at: str | None = None


@dataclass(frozen=True, slots=True)
class InboxChange:
    """What a unit of work changes in the inbox.

    Attributes:
        next_due: ISO 8601 time in UTC from which on an event may be tried that is the first of its sequence by what is
            changed or removed.
        added: New events, in the order of their positions. One whose sequence has none in the inbox may be tried
            from ``due_at`` on; others wait after it, unless each is tried on its own.
        done: Events that are handled now.
        changed: Events before and after the change. It is refused if the status, attempts, retries or due time of one
            differ from what was read; but a due time may be given or taken away as earlier events come and go. One that
            is the first of its sequence, and is to have no due time though it does not wait for a person, may be tried
            from ``next_due`` on.
        most_sequences: Sequences of the group that may wait; ``None``: any number.
        most_of_sequence: Events of a sequence that may wait; ``None``: any number.
        removed: Events that leave unhandled, wherever in their sequences they are; refused likewise, but for due times.
        remainders: The rests of sequences, and when they are tried.
        each: Whether each event is tried on its own, and does not wait for earlier ones.
    """

    next_due: str
    added: tuple[InboxEntry, ...] = ()
    done: tuple[InboxEntry, ...] = ()
    changed: tuple[tuple[InboxEntry, InboxEntry], ...] = ()
    most_sequences: int | None = 1_024
    most_of_sequence: int | None = 1_024
    removed: tuple[InboxEntry, ...] = ()
    remainders: tuple[Remainder, ...] = ()
    each: bool = False


@dataclass(frozen=True, slots=True)
class ParkedSequences:
    """What a partition knows about its sequences in the inbox.

    Attributes:
        ids: Their ids; empty for a scheduled group, since all of its events wait there.
        due_at: ISO 8601 time, in UTC, from which the first of them may be tried; ``None``: all wait for a person.
        seen_at: When that was read, also in UTC.
        log_first: Whether the next step belongs to the log, since the last one was a failed attempt here.
    """

    ids: frozenset[str] = frozenset()
    due_at: str | None = None
    seen_at: str = ""
    log_first: bool = False


NOTHING_PARKED = ParkedSequences()


def first_lost(entries: Iterable[InboxEntry], events: Mapping[int, Event]) -> InboxEntry | None:
    """Return the first entry whose event is no longer in the log, see ``lost_from``."""
    return next(lost_from(entries, events), None)


def lost_from(entries: Iterable[InboxEntry], events: Mapping[int, Event]) -> Iterator[InboxEntry]:
    """Yield the entries whose events are no longer in the log: their positions have no event, or a different one.

    Args:
        entries: The entries.
        events: The events of the log at their positions.
    """
    for entry in entries:
        event = events.get(entry.position)
        same = event is not None and event.id == entry.event_id and event.source == entry.event_source
        if event is None or not (same or entry.is_of(event)):
            yield entry


def unwanted_in(
    entries: Sequence[InboxEntry], events: Mapping[int, Event], wants: Callable[[str], bool]
) -> list[InboxEntry]:
    """Return the entries whose events no handler takes.

    Args:
        entries: The entries.
        events: The events of the log at their positions.
        wants: Returns whether events of a type may lead to a handler.
    """
    if all(map(wants, {event.type for event in events.values()})):  # as nearly always
        return []
    return [each for each in entries if not wants(events[each.position].type)]


def too_long(entry: InboxEntry, most: int) -> InboxFullError:
    """Return the error for too many waiting events of a sequence."""
    return _full(
        entry,
        f"sequence {entry.sequence_id!r} has {counted(most, 'event')} waiting",
        "park.max-sequence-size",
    )


def too_many(entry: InboxEntry, most: int) -> InboxFullError:
    """Return the error for too many waiting sequences of a group."""
    return _full(entry, f"the group has {counted(most, 'sequence')} waiting", "park.max-sequences")


def _full(entry: InboxEntry, what: str, setting: str) -> InboxFullError:
    where = f"group '{entry.group}', event {in_one_line(entry.event_id)} at position {entry.position}"
    fix = f"see opencqrs inbox list --group {entry.group}; retry or skip these events, or increase {setting}"
    return InboxFullError("OCQ-601", f"the inbox is full: {what}", where, fix, entry.position)

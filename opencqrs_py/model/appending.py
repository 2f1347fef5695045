"""Appending to an event store: preconditions and results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

from opencqrs_py.errors import EventFormatError, PreconditionFailedError
from opencqrs_py.model.event import Event
from opencqrs_py.model.json_text import read_json
from opencqrs_py.model.naming import in_one_line, listed


@dataclass(frozen=True, slots=True)
class SubjectIsPristine:
    """There is no event of exactly this subject yet; events of its children do not count."""

    subject: str


@dataclass(frozen=True, slots=True)
class SubjectIsPopulated:
    """There is at least one event of exactly this subject; events of its children do not count."""

    subject: str


@dataclass(frozen=True, slots=True)
class SubjectIsOnEventId:
    """The newest event of exactly this subject has this id."""

    subject: str
    event_id: str


Precondition = SubjectIsPristine | SubjectIsPopulated | SubjectIsOnEventId
"""Conditions for appending events, checked in the transaction that adds them.

Source:
    EventSourcingDB's preconditions ``isSubjectPristine``, ``isSubjectPopulated`` and ``isSubjectOnEventId``.
"""


class _Counts(NamedTuple):
    given: int
    added: int


class Appended(_Counts):
    """The result of an append: a tuple of two numbers, and the ids.

    Attributes:
        given: Number of events given.
        added: How many of them were added; the others were known, by source and id.
        ids: The ids that the store gave the events, in their order, shape ``(given,)``; ``None`` when each event keeps
            its own.
    """

    ids: tuple[str, ...] | None

    def __new__(cls, given: int, added: int, ids: tuple[str, ...] | None = None) -> Self:
        """Make the tuple; ``ids`` is not part of it."""
        made = super().__new__(cls, given, added)
        made.ids = ids
        return made


def identified(event: Event) -> Event:
    """Return an event that has an id and a source, by which a store identifies it.

    Raises:
        EventFormatError: OCQ-212, naming what it lacks.
    """
    if event.id and event.source:
        return event
    name, value = ("source", event.source) if event.id else ("id", event.id)
    what = f"attribute '{name}' is {value!r}; it must be a text with at least one character"
    fix = "nothing was added; give each event a source, and an id that no other event of its source has"
    raise EventFormatError("OCQ-212", what, event.label, fix)


class Clashes:
    """The events of one append that were skipped although they differ from the stored ones of the same source and id.

    An event differs if its subject, type or data differ. Time and extension attributes may differ, as when a
    producer sends an event again.
    """

    def __init__(self) -> None:
        self._count = 0
        self._first = ""

    def look(self, given: Iterable[Event], stored: Iterable[Event]) -> None:
        """Compare events with the stored ones of the same source and id; events without one are ignored."""
        known = {(event.source, event.id): event for event in stored}
        for event in given:
            found = known.get((event.source, event.id))
            parts = [] if found is None else _differing(event, found)
            if parts:
                self._count += 1
                named = in_one_line(f"event {event.id} of source {event.source}")
                self._first = self._first or f"{named}, with other {listed(parts)}"

    @property
    def message(self) -> str:
        """What happened and how to fix it; empty when no event clashes."""
        if not self._count:
            return ""
        few = self._count == 1
        what = f"{self._count:,} event{'' if few else 's'} skipped as already stored {'is' if few else 'are'} not"
        return (
            f"{what} what is stored with the same source and id: {self._first}{'' if few else ' (the first)'}\n"
            "  fix:   give each event an id that no other event of its source has, and add it again"
        )


def _differing(event: Event, stored: Event) -> list[str]:
    same = {
        "subject": event.subject == stored.subject,
        "type": event.type == stored.type,
        "data": event.payload == stored.payload or _alike(_read(event.payload), _read(stored.payload)),
    }
    return [name for name, is_same in same.items() if not is_same]


def _alike(one: object, other: object) -> bool:
    """Return whether JSON values are the same; in Python, true also equals 1."""
    pairs = [(one, other)]
    while pairs:
        given, known = pairs.pop()
        if isinstance(given, dict) and isinstance(known, dict):
            if given.keys() != known.keys():
                return False
            pairs += [(value, known[name]) for name, value in given.items()]
        elif isinstance(given, list | tuple) and isinstance(known, list | tuple):
            if len(given) != len(known):
                return False
            pairs += zip(given, known, strict=True)
        elif given != known or isinstance(given, bool) != isinstance(known, bool):
            return False
    return True


def _read(payload: str | None) -> object:
    """Return the value of data; text that is not JSON, which another program may have stored, equals only itself."""
    if payload is None:
        return None
    try:
        return (read_json(payload),)
    except (AttributeError, ValueError):  # SQLite keeps anything in any column
        return payload


def check(preconditions: Iterable[Precondition], newest: Callable[[str], str | None], where: str = "") -> None:
    """Check preconditions one after the other.

    Args:
        preconditions: Any number.
        newest: Returns the id of the newest event of exactly this subject, ``None`` when it has none.
        where: The store, for the message.

    Raises:
        PreconditionFailedError: OCQ-320, naming the first that does not hold.
    """
    for precondition in preconditions:
        found = newest(precondition.subject)
        fault = _fault(precondition, found)
        if fault:
            has = "it has no event" if found is None else f"the id of its newest event is '{found}'"
            what = in_one_line(f"the subject '{precondition.subject}' {fault}: {has}")
            fix = "read the subject's events, decide again and append again"
            raise PreconditionFailedError("OCQ-320", what, where, fix)


def _fault(precondition: Precondition, found: str | None) -> str:
    """Return what is wrong with a subject whose newest event has the id ``found``; empty if nothing is."""
    match precondition:
        case SubjectIsPristine():
            return "" if found is None else "is not pristine"
        case SubjectIsPopulated():
            return "is not populated" if found is None else ""
        case SubjectIsOnEventId(event_id=expected):  # pragma: no branch there is no other precondition
            return "" if found == expected else f"is not on event '{expected}'"

"""Appending to an event store: what must hold for it, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple, Self

from opencqrs_py.errors import PreconditionFailedError


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
"""What must hold when events are appended, looked at in the transaction that adds them.

Source:
    EventSourcingDB's preconditions ``isSubjectPristine``, ``isSubjectPopulated`` and ``isSubjectOnEventId``.
"""


class _Counts(NamedTuple):
    given: int
    added: int


class Appended(_Counts):
    """What came of an append: a tuple of two numbers, with the ids besides.

    Attributes:
        given: Number of events given.
        added: How many of them were added; the others were known by source and id.
        ids: The ids that the store gave the events, in their order, shape ``(given,)``; ``None`` when each event has
            kept its own.
    """

    ids: tuple[str, ...] | None

    def __new__(cls, given: int, added: int, ids: tuple[str, ...] | None = None) -> Self:
        """Make the tuple; ``ids`` is no part of it."""
        made = super().__new__(cls, given, added)
        made.ids = ids
        return made


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
            what = f"the subject '{precondition.subject}' {fault}: {has}"
            fix = "read the subject's events, decide again and append again"
            raise PreconditionFailedError("OCQ-320", what, where, fix)


def _fault(precondition: Precondition, found: str | None) -> str:
    """Say what is wrong with a subject whose newest event has the id ``found``; empty when nothing is."""
    match precondition:
        case SubjectIsPristine():
            return "" if found is None else "is not pristine"
        case SubjectIsPopulated():
            return "is not populated" if found is None else ""
        case SubjectIsOnEventId(event_id=expected):  # pragma: no branch there is no other precondition
            return "" if found == expected else f"is not on event '{expected}'"

"""Preconditions of an append, checked against what is known of subjects."""

from __future__ import annotations

import pickle

import pytest

from opencqrs_py.errors import PreconditionFailedError, TransientError
from opencqrs_py.model.appending import (
    Appended,
    Precondition,
    SubjectIsOnEventId,
    SubjectIsPopulated,
    SubjectIsPristine,
    check,
)

NEWEST = {"/full": "42"}


@pytest.mark.parametrize(
    "precondition",
    [SubjectIsPristine("/empty"), SubjectIsPopulated("/full"), SubjectIsOnEventId("/full", "42")],
    ids=str,
)
def test_what_holds_is_passed_over(precondition: Precondition) -> None:
    check([precondition, precondition], NEWEST.get)


@pytest.mark.parametrize(
    ("precondition", "what"),
    [
        (SubjectIsPristine("/full"), "the subject '/full' is not pristine: the id of its newest event is '42'"),
        (SubjectIsPopulated("/empty"), "the subject '/empty' is not populated: it has no event"),
        (
            SubjectIsOnEventId("/full", "41"),
            "the subject '/full' is not on event '41': the id of its newest event is '42'",
        ),
        (SubjectIsOnEventId("/empty", "41"), "the subject '/empty' is not on event '41': it has no event"),
    ],
    ids=str,
)
def test_what_does_not_hold_is_named(precondition: Precondition, what: str) -> None:
    with pytest.raises(PreconditionFailedError) as caught:
        check([SubjectIsPopulated("/full"), precondition, SubjectIsPristine("/full")], NEWEST.get, "events.db")
    assert str(caught.value) == (
        f"[OCQ-320] {what}\n  where: events.db\n  fix:   read the subject's events, decide again and append again"
    )
    assert isinstance(caught.value, TransientError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_without_preconditions_nothing_is_looked_up() -> None:
    check([], {}.__getitem__)


def test_what_came_of_an_append_can_be_unpacked() -> None:
    given, added = Appended(3, 2)
    assert (given, added) == (3, 2)


def test_what_came_of_an_append_is_equal_whoever_gives_the_ids() -> None:
    told = Appended(2, 2, ("17", "18"))
    assert told == Appended(2, 2) != Appended(2, 1)
    assert pickle.loads(pickle.dumps(told)).ids == ("17", "18")
    assert Appended(2, 2).ids is None

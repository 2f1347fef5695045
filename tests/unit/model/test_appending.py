"""Preconditions of an append, checked against the known state of subjects."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from opencqrs_py.errors import PreconditionFailedError, TransientError
from opencqrs_py.model import Event
from opencqrs_py.model.appending import (
    Appended,
    Clashes,
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
def test_a_precondition_that_holds_does_not_raise(precondition: Precondition) -> None:
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
def test_a_failed_precondition_is_named_in_the_error(precondition: Precondition, what: str) -> None:
    with pytest.raises(PreconditionFailedError) as caught:
        check([SubjectIsPopulated("/full"), precondition, SubjectIsPristine("/full")], NEWEST.get, "events.db")
    assert str(caught.value) == (
        f"[OCQ-320] {what}\n  where: events.db\n  fix:   read the subject's events, decide again and append again"
    )
    assert isinstance(caught.value, TransientError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_no_preconditions_require_no_lookup() -> None:
    check([], {}.__getitem__)


def test_the_result_of_an_append_can_be_unpacked() -> None:
    given, added = Appended(3, 2)
    assert (given, added) == (3, 2)


def test_results_of_an_append_are_equal_with_or_without_ids() -> None:
    told = Appended(2, 2, ("17", "18"))
    assert told == Appended(2, 2) != Appended(2, 1)
    assert pickle.loads(pickle.dumps(told)).ids == ("17", "18")
    assert Appended(2, 2).ids is None


STORED = Event(1, "1", "s", "/b", "t", "2026-01-01T00:00:00Z", "application/json", '{"a": 1, "b": 2}', None)


@pytest.mark.parametrize(
    ("given", "other"),
    [
        (STORED._replace(position=0), ""),
        (STORED._replace(payload='{"b":2,"a":1}'), ""),  # another notation
        (STORED._replace(time="2026-02-02T00:00:00Z", extensions='{"traceparent": "1"}'), ""),  # sent again
        (STORED._replace(id="2", payload="{}"), ""),  # new
        (STORED._replace(payload='{"a": 1}'), "data"),
        (STORED._replace(payload=None), "data"),
        (STORED._replace(payload="null", subject="/c"), "subject, data"),
        (STORED._replace(type="u"), "type"),
    ],
)
def test_an_event_clashes_with_a_stored_event_of_different_content(given: Event, other: str) -> None:
    clashes = Clashes()
    clashes.look([given], [STORED])
    assert clashes.message.partition(", with other ")[2].partition("\n")[0] == other


@pytest.mark.parametrize("form", ['{"paid":%s}', "[%s]", "%s", '{"of":[{"paid":%s}]}'])
@pytest.mark.parametrize(("given", "stored"), [("true", "1"), ("0", "false"), ("1.0", "true")])
def test_a_boolean_differs_from_a_number(form: str, given: str, stored: str) -> None:
    clashes = Clashes()
    clashes.look([STORED._replace(payload=form % given)], [STORED._replace(payload=form % stored)])
    assert "event 1 of source s, with other data" in clashes.message


@pytest.mark.parametrize("same", ["1.0", "true", '{"a":[true,1.5,null,{"b":[]}]}', "[" * 1_000 + "1" + "]" * 1_000])
def test_equal_data_in_another_notation_do_not_clash(same: str) -> None:
    clashes = Clashes()
    clashes.look([STORED._replace(payload=f" {same}")], [STORED._replace(payload=same)])
    assert clashes.message == ""


@pytest.mark.parametrize("stored", ["{bad", "9" * 4_301, b'{"a":12345678901234567890.5}'])
def test_unreadable_stored_data_count_as_different(stored: Any) -> None:
    """Another program wrote them; importing other events must not fail because of them."""
    clashes = Clashes()
    clashes.look([STORED], [STORED._replace(payload=stored)])
    assert "event 1 of source s, with other data" in clashes.message


def test_unreadable_data_are_equal_if_their_texts_are_equal() -> None:
    clashes = Clashes()
    clashes.look([STORED._replace(payload="{bad")], [STORED._replace(payload="{bad")])
    assert clashes.message == ""


def test_clashes_are_counted_and_the_first_is_named() -> None:
    clashes = Clashes()
    for event_id in "123":
        clashes.look([STORED._replace(id=event_id, type="u")], [STORED._replace(id=event_id)])
    assert clashes.message.startswith(
        "3 events skipped as already stored are not what is stored with the same source and id: "
        "event 1 of source s, with other type (the first)\n"
    )

"""Failures as people read them, one line each."""

from __future__ import annotations

import pytest

from opencqrs_py.model import Cursor, Failure, Origin, Outcome, Partition


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("no such book", "ValueError: no such book"),
        ("no such book\nDETAIL: key (isbn)", "ValueError: no such book"),
        ("\n  no such book", "ValueError: no such book"),
        ("", "ValueError"),
        (" \n ", "ValueError"),
    ],
)
def test_a_failure_is_shown_by_its_first_line(message: str, shown: str) -> None:
    assert str(Failure(Origin.HANDLER, permanent=False, error="ValueError", message=message)) == shown


@pytest.mark.parametrize(
    ("event", "shown"),
    [("", "ValueError: no such book"), ("event 1 at position 7", "ValueError: no such book - event 1 at position 7")],
)
def test_the_summary_of_a_failure_names_the_event_in_hand_if_any(event: str, shown: str) -> None:
    failure = Failure(Origin.HANDLER, permanent=False, error="ValueError", message="no such book", event=event)
    assert failure.summary == shown


def test_an_outcome_is_quiet_unless_something_happened() -> None:
    cursor = Cursor(Partition(1, 0), epoch=1, stored=0, position=0)
    outcome = Outcome(cursor)
    assert (outcome.handled, outcome.skipped, outcome.idle, outcome.failure) == (0, 0, False, None)

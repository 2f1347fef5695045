from __future__ import annotations

from dataclasses import replace

import pytest

from opencqrs_py.model import Failure, Origin, Partition
from opencqrs_py.processing.notices import Notice, in_words, line_of, text_of, when
from opencqrs_py.processing.recovery import Action

FAILED = Failure(Origin.HANDLER, permanent=False, error="ValueError", message="no", position=7, event="event 7")
UNSEQUENCED = Failure(Origin.FRAMEWORK, permanent=False, error="ValueError", message="no", event="event 7")
AWAY = Failure(Origin.OUTAGE, permanent=False, error="AwayError", message="gone")


@pytest.mark.parametrize(
    ("action", "failure", "attempt", "line"),
    [
        (None, None, 0, "recovered"),
        (None, FAILED, 0, "a call after the commit raised ValueError: no; nothing is repeated"),
        (Action.RETRY, FAILED, 2, "event 7 failed on attempt 2 (ValueError: no); retry in 4.5 s"),
        (
            Action.SKIP,
            FAILED,
            3,
            "event 7 failed on attempt 3 (ValueError: no); attempts exhausted: the event is skipped",
        ),
        (
            Action.STOP,
            UNSEQUENCED,
            0,
            "could not continue at event 7 (ValueError: no); the partition has failed; next attempt in 4.5 s, or at "
            "the next start",
        ),
        (Action.WAIT, AWAY, 0, "could not continue (AwayError: gone); no attempt is used; retry in 4.5 s"),
        (
            Action.LEAVE,
            AWAY,
            0,
            "was taken over by another process, or its tables were swapped; it stops here until it is assigned again",
        ),
    ],
)
def test_a_line_names_group_partition_what_happened_and_what_happens_next(
    action: Action | None, failure: Failure | None, attempt: int, line: str
) -> None:
    assert line_of(Notice("books", Partition(2, 1), action, failure, attempt, 4.5)) == f"[books 1/2] {line}"


def test_an_error_after_the_commit_includes_its_traceback() -> None:
    failure = replace(FAILED, traceback="Traceback: bell.py:7")
    assert text_of(Notice("books", Partition(2, 1), None, failure, 0, 0.0)).endswith("repeated\nTraceback: bell.py:7")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0.0 s"), (4.5, "4.5 s"), (12.4, "12 s"), (125, "2 min 5 s"), (4_800, "1 h 20 min")],
)
def test_durations_are_written_with_units(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "at once"), (0.04, "at once"), (0.06, "in 0.1 s"), (4.5, "in 4.5 s"), (125, "in 2 min 5 s")],
)
def test_a_negligible_wait_is_shown_as_at_once(seconds: float, words: str) -> None:
    assert when(seconds) == words
    assert line_of(Notice("books", Partition(2, 1), Action.RETRY, FAILED, 2, seconds)).endswith(f"; retry {words}")

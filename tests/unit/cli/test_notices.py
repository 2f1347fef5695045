from __future__ import annotations

import pytest

from opencqrs_py.model.outcome import Failure, Origin
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.notices import Notice, in_words, text_of
from opencqrs_py.processing.recovery import Action

PARTITION = Partition(2, 1)
FAILED = Failure(
    Origin.HANDLER,
    permanent=False,
    error="ValueError",
    message="no\nmore",
    traceback="Traceback …",
    position=7,
    event="event 7",
)
OUTAGE = Failure(Origin.OUTAGE, permanent=False, error="DatabaseOutageError", message="gone")


@pytest.mark.parametrize(
    ("action", "failure", "attempt", "wait", "expected"),
    [
        (Action.RETRY, FAILED, 2, 4.5, "event 7 failed on attempt 2 (ValueError: no); retry in 4.5 s"),
        (
            Action.SKIP,
            FAILED,
            3,
            0,
            "event 7 failed on attempt 3 (ValueError: no); attempts exhausted: the event is skipped",
        ),
        (
            Action.STOP,
            FAILED,
            4,
            30,
            "event 7 failed on attempt 4 (ValueError: no); the partition has failed; next attempt in 30 s, "
            "or at the next start",
        ),
        (
            Action.WAIT,
            OUTAGE,
            0,
            0.5,
            "could not continue (DatabaseOutageError: gone); no attempt is used; retry in 0.5 s",
        ),
        (
            Action.LEAVE,
            OUTAGE,
            0,
            0,
            "was taken over by another process, or its tables were swapped; it stops here until it is assigned again",
        ),
    ],
)
def test_a_line_has_group_partition_event_error_and_next_action(action, failure, attempt, wait, expected):
    line, *_ = text_of(Notice("books", PARTITION, action, failure, attempt, wait)).splitlines()
    assert line == f"[books 1/2] {expected}"


def test_the_handlers_traceback_is_shown_only_with_the_first_attempt():
    lines = text_of(Notice("books", PARTITION, Action.RETRY, FAILED, 1, 2.0)).splitlines()
    assert lines[1:] == ["Traceback …"]


def test_the_fix_is_shown_with_an_error_but_not_repeated_during_an_outage():
    stopped = Failure(Origin.FRAMEWORK, permanent=False, error="E", message="gone", advice="  where: x\n  fix:   y")
    lines = text_of(Notice("books", PARTITION, Action.STOP, stopped, 0, 30.0)).splitlines()
    assert lines[1:] == ["  where: x", "  fix:   y"]
    assert len(text_of(Notice("books", PARTITION, Action.WAIT, stopped, 0, 30.0)).splitlines()) == 1


def test_recovery_is_reported():
    assert text_of(Notice("books", PARTITION, None)) == "[books 1/2] recovered"


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.04, "0.0 s"), (4.5, "4.5 s"), (9.96, "10.0 s"), (30, "30 s"), (125, "2 min 5 s"), (4_800, "1 h 20 min")],
)
def test_durations_are_shown_in_readable_units(seconds, words):
    assert in_words(seconds) == words

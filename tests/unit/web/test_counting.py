from __future__ import annotations

import pytest

from opencqrs_py.model.outcome import Failure, Origin, Outcome
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor, Skip
from opencqrs_py.processing.notices import Notice
from opencqrs_py.processing.recovery import Action
from opencqrs_py.web.counting import Counting

HALF = Partition(2, 1)
SKIP = Skip("books", HALF, 3, "e3", "s", "/", "t", 2, "no", "2026-01-05T09:00:00+00:00")
FAILURE = Failure(Origin.HANDLER, permanent=False, error="ValueError", message="no")
NONE = dict.fromkeys(("claims", "handled", "skipped", "failed_attempts", "failures", "outages"), 0)


def counted(counting):
    (counts,) = counting.counts().values()
    return {name: count for name, count in counts.items() if count}


@pytest.mark.parametrize(
    ("action", "attempt", "counts"),
    [
        (Action.RETRY, 1, {"failed_attempts": 1}),
        (Action.SKIP, 3, {"failed_attempts": 1}),
        (Action.PARK, 3, {"failed_attempts": 1}),
        (Action.STOP, 3, {"failed_attempts": 1, "failures": 1}),
        (Action.STOP, 0, {"failures": 1}),
        (Action.HOLD, 0, {"failures": 1}),
        (Action.WAIT, 0, {"outages": 1}),
        (Action.LEAVE, 0, {}),
        (None, 2, {}),
    ],
)
def test_a_notice_is_counted_by_its_action(action, attempt, counts):
    counting = Counting()
    counting.noticed(Notice("books", HALF, action, FAILURE, attempt))
    assert counted(counting) == counts


def test_a_held_partition_is_counted_once_per_claim_and_not_per_reminder():
    counting, held = Counting(), Notice("books", HALF, Action.HOLD, FAILURE)
    for _ in range(2):
        counting.claimed("books", HALF, 0)
        for _ in range(3):
            counting.noticed(held)
    assert counted(counting) == {"claims": 2, "failures": 2}


def test_events_and_claims_are_added_up_by_partition():
    counting = Counting()
    counting.claimed("books", HALF, 0)
    for _ in range(2):
        counting.advanced("books", HALF, Outcome(Cursor(HALF, 1, 0, 0), handled=5, skips=(SKIP,)))
    counting.claimed("loans", HALF, 0)
    counts = counting.counts()
    assert counts["books", "1/2"] == NONE | {"claims": 1, "handled": 10, "skipped": 2}
    assert counts["loans", "1/2"] == NONE | {"claims": 1}


def test_a_step_without_events_counts_nothing():
    counting = Counting()
    counting.advanced("books", HALF, Outcome(Cursor(HALF, 1, 0, 0), idle=True))
    assert counting.counts() == {}

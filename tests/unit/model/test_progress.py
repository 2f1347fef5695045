"""Cursors: what is known about a partition's next event, and how a step changes it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from opencqrs_py.errors import OtherLogError
from opencqrs_py.model import Cursor, Partition
from opencqrs_py.model.progress import FailureRecord, LogMark, PartitionStatus, ProcessorState, check_mark

CURSOR = Cursor(Partition(2, 1), epoch=7, stored=10, position=15)


def test_moving_the_cursor_clears_its_failure() -> None:
    failing = CURSOR.retrying(16).retrying(16, skip=True)
    moved = failing.moved_to(20, stored=True)
    assert moved == Cursor(Partition(2, 1), epoch=7, stored=20, position=20)


def test_a_move_that_is_not_stored_changes_only_the_position() -> None:
    moved = CURSOR.moved_to(20, stored=False)
    assert (moved.position, moved.stored) == (20, 10)


def test_attempts_of_one_event_are_counted_from_one() -> None:
    second = CURSOR.retrying(16)
    third = second.retrying(16)
    assert [CURSOR.attempt, second.attempt, third.attempt] == [1, 2, 3]
    assert (third.failing, third.skip, third.position) == (16, False, 15)


def test_another_event_has_its_own_attempts() -> None:
    assert CURSOR.retrying(16).retrying(16).retrying(17).attempt == 2


def test_abandoning_is_recorded_for_the_failing_event() -> None:
    given_up = CURSOR.retrying(16, skip=True)
    assert (given_up.failing, given_up.skip) == (16, True)


def test_progress_may_be_stored_again_but_must_not_go_back() -> None:
    for to in (10, 11, 99):
        CURSOR.check_forward(to)
    with pytest.raises(ValueError, match="progress of partition 1/2 must not go back from 10 to 9"):
        CURSOR.check_forward(9)


@pytest.mark.parametrize(
    ("head", "found"),
    [(3, "there is none: the log ends at position 3"), (5, "there is none"), (9, "there is none")],
)
def test_the_message_on_a_missing_event_names_the_end_of_a_log_that_is_too_short(head: int, found: str) -> None:
    mark = LogMark(5, "s", "5")
    with pytest.raises(OtherLogError) as caught:
        check_mark(7, mark.text, lambda: head, lambda _position: None, "here")
    assert caught.value.what.endswith(f"expected {mark}, but {found}")


FAILURE = FailureRecord(8, "e8", "lent", 3, 2, "first", "ValueError: no", "2026-01-05T09:00:00+00:00")


LONG = "x" * 1_100
EVENT = "event e8 at position 8 (lent, /a)"


@pytest.mark.parametrize(
    ("known", "error"),
    [
        ("ValueError: no", ""),
        ("ValueError: no", "ValueError: no"),
        ("ValueError: no", f"ValueError: no - {EVENT}"),
        ("AssertionError", f"AssertionError - {EVENT}"),
        (LONG, LONG[:1_000]),
        (LONG[:1_000], f"{LONG} - {EVENT}"),
        (LONG[:990], f"{LONG[:990]} - {EVENT}"[:1_000]),
        ("ValueError: a\0\ud800", f"ValueError: a?? - {EVENT}"),  # as a database stores it
    ],
)
def test_the_last_error_is_that_of_the_failed_event_even_if_it_names_it_or_is_stored_differently(
    known: str, error: str
) -> None:
    failure = replace(FAILURE, last_error=known)
    status = PartitionStatus("loans", Partition(2, 1), 7, ProcessorState.FAILED, error=error, failure=failure)
    assert status.failed_event == failure


@pytest.mark.parametrize(
    ("known", "error"),
    [
        ("ValueError: no", "[OCQ-601] the inbox is full - event e7 at position 7 (lent, /a)"),
        ("ValueError: no", "OperationalError: gone"),
        ("ValueError: no", "ValueError: not any more"),
        ("TimeoutError", "TimeoutError: no answer - event e7 at position 7 (lent, /a)"),
        ("AssertionError", "AssertionError - event e7 at position 7 (lent, /a)"),
        ("AssertionError", "AssertionError - event e8 at position 88 (lent, /a)"),
        ("OperationalError: gone", "OperationalError"),
        ("", "OperationalError"),
        ("", f" - {EVENT}"),
    ],
)
def test_another_error_is_not_that_of_the_event_that_had_failed_before(known: str, error: str) -> None:
    failure = replace(FAILURE, last_error=known)
    status = PartitionStatus("loans", Partition(2, 1), 6, ProcessorState.FAILED, error=error, failure=failure)
    assert (status.failed_event, status.failure) == (None, failure)

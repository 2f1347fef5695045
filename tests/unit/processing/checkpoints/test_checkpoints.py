"""Decisions about checkpoints: requests, answers, and the position on which participants agree."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random
from threading import Barrier
from typing import Any

import pytest

from opencqrs_py.errors import CheckpointError
from opencqrs_py.model.checkpoint import LATEST, CheckpointStatus
from opencqrs_py.processing.checkpoints.checkpoints import (
    Agreement,
    Answers,
    Asked,
    CheckpointPositions,
    CheckpointTrigger,
    agree,
    agree_at_release,
    clamped,
)


def positions(polled: int, handled: int, stored: int = 0) -> CheckpointPositions:
    made = CheckpointPositions(stored)
    made.poll(polled)
    made.handle(handled)
    return made


@pytest.mark.parametrize(
    ("answer", "confirmed"),
    [
        (5, 5),
        (0, 0),
        (7, 7),
        (8, 7),  # H4: never more than what was handled
        (LATEST, 7),
        (None, None),
        (True, None),
        (-1, None),
        ("7", None),
        (7.0, None),
    ],
)
def test_an_answer_confirms_at_most_the_handled_position(answer: object, confirmed: int | None) -> None:
    assert clamped(answer, 7) == confirmed


# ------------------------------------------------------------------------------------------------------- requests


@pytest.mark.parametrize(
    ("polled", "handled", "stored", "requests", "taken"),
    [
        pytest.param(0, 0, 0, [LATEST], None, id="12b_latest_before_any_event"),
        pytest.param(9, 3, 0, [LATEST], 3, id="12c_latest_with_backlog"),
        pytest.param(5, 5, 5, [3], None, id="7_running_regression_ignored"),
        pytest.param(9, 9, 5, [8, 3], 8, id="8a_concurrent_requests_collapse"),
        pytest.param(9, 9, 5, [3, 8, 6], 8, id="the_highest_applies"),
        pytest.param(9, 9, 5, [7, LATEST], 9, id="latest_covers_a_position"),
        pytest.param(9, 6, 5, [8], None, id="a_request_for_an_event_in_hand_waits_for_it"),
        pytest.param(9, 6, 5, [8, LATEST], 6, id="latest_does_not_wait"),
        pytest.param(5, 5, 5, [LATEST], None, id="nothing_new"),
    ],
)
def test_pending_requests_are_merged(
    polled: int, handled: int, stored: int, requests: list[Any], taken: int | None
) -> None:
    made = positions(polled, handled, stored)
    for request in requests:
        made.request(request)
    assert made.due() is (taken is not None)
    assert made.take() == taken


def test_a_request_for_the_event_in_hand_is_served_once_it_is_handled() -> None:
    made = positions(9, 6, 5)
    made.request(8)
    made.request(LATEST)
    assert made.take() == 6
    assert made.take() is None
    made.handle(9)
    assert made.take() == 8


def test_request_during_run_not_lost() -> None:
    made = positions(6, 6)
    made.request(5)
    assert made.take() == 5
    made.request(6)
    made.store(5)
    assert made.take() == 6


@pytest.mark.parametrize("position", [5, 1, True, "1", 1.0, None])
def test_request_beyond_handled_rejected(position: Any) -> None:  # H3
    made = positions(0, 0)
    with pytest.raises(CheckpointError, match="OCQ-647"):
        CheckpointTrigger(made).request(position)
    assert made.take() is None


def test_request_after_release_ignored() -> None:
    made = positions(6, 6)
    woken: list[None] = []
    made.wake = lambda: woken.append(None)
    made.request(5)
    made.close()
    CheckpointTrigger(made).request()
    CheckpointTrigger(made).request(100)
    assert made.take() is None
    assert len(woken) == 1


def test_the_highest_request_from_100_threads_wins() -> None:  # 8b, of the decisions
    made, together = positions(100, 100), Barrier(101)
    stored: list[int] = []

    def request(position: int) -> None:
        together.wait(60)
        made.request(position)

    order = list(range(1, 101))
    Random(1).shuffle(order)
    with ThreadPoolExecutor(100) as pool:
        done = [pool.submit(request, position) for position in order]
        together.wait(60)
        while not all(each.done() for each in done) or made.due():
            if (position := made.take()) is not None:
                stored.append(position)
                made.store(position)
    assert stored == sorted(set(stored))
    assert stored[-1] == 100
    assert len(stored) <= 100


# ------------------------------------------------------------------------------------------------------ agreement


class Scripted:
    """Participants whose answers are functions, clamped to the handled position; records the requests to each."""

    def __init__(self, handled: int, *answers: Any) -> None:
        self.asked: list[list[int]] = [[] for _ in answers]
        self._handled = handled
        self._answers = answers

    def __call__(self, asked: Asked) -> Answers:
        for number, position in asked.items():
            self.asked[number].append(position)
        return {n: clamped(self._answers[n](position), self._handled) for n, position in asked.items()}


def up_to(position: int) -> Any:
    return lambda asked: max(asked, position)


def stuck(position: int) -> Any:
    return lambda _asked: position


@pytest.mark.parametrize(
    ("requested", "handled", "answers", "agreed", "asked"),
    [
        pytest.param(5, 20, [up_to(0)], 5, [[5]], id="one"),
        pytest.param(5, 20, [up_to(9)], 9, [[5]], id="one_that_is_farther"),
        pytest.param(5, 20, [up_to(9), up_to(0)], 9, [[5], [5, 9]], id="one_catches_up"),
        pytest.param(1, 1, [up_to(3), up_to(5)], 1, [[1], [1]], id="5_auto_two_participants_reconcile"),
        pytest.param(5, 20, [up_to(9), stuck(6)], 6, [[5], [5, 9]], id="one_is_stuck_and_covers_the_request"),  # H6
        pytest.param(5, 20, [up_to(9), stuck(4)], None, [[5], [5]], id="one_is_stuck_below_the_request"),
        pytest.param(5, 20, [stuck(0)], None, [[5]], id="2a_participant_cannot_cover"),
        pytest.param(5, 20, [lambda _: None], None, [[5]], id="no_answer"),
        pytest.param(
            5,
            20,
            [lambda asked: {5: 7, 10: 15}[asked], up_to(10)],
            15,
            [[5, 10], [5, 15]],
            id="leapfrog",
        ),
        pytest.param(
            5, 12, [lambda asked: {5: 7, 10: 15}[asked], up_to(10)], 12, [[5, 10], [5, 12]], id="leapfrog_clamped"
        ),
    ],
)
def test_a_checkpoint_ends_at_the_position_that_all_participants_confirm(
    requested: int, handled: int, answers: list[Any], agreed: int | None, asked: list[list[int]]
) -> None:
    ask = Scripted(handled, *answers)
    assert agree(len(answers), requested, ask).position == agreed
    assert ask.asked == asked


def test_participants_that_keep_outdoing_each_other_are_asked_a_bounded_number_of_times() -> None:
    ask = Scripted(10_000, lambda asked: asked + 1, lambda asked: asked + 1)
    agreed = agree(2, 1, ask).position
    assert agreed is not None
    assert agreed >= 1
    assert sum(map(len, ask.asked)) < 30


def test_an_agreement_names_the_participants_that_limit_it() -> None:
    assert agree(3, 5, Scripted(20, up_to(9), stuck(6), up_to(0))) == Agreement(6, (1,))
    assert agree(3, 5, Scripted(20, up_to(9), stuck(4), lambda _: None)) == Agreement(None, (1, 2))


@pytest.mark.parametrize(
    ("stored", "answers", "later", "agreed", "asked"),
    [
        pytest.param(0, [10, 7], [up_to(10), up_to(7)], 10, [[], [10]], id="1a_two_participants_catch_up"),
        pytest.param(0, [10, 6], [up_to(10), stuck(6)], 6, [[], [10]], id="1b_stuck_participant_falls_back"),
        pytest.param(3, [10, None], [up_to(10), stuck(6)], 3, [[], []], id="1c_failing_participant"),
        pytest.param(
            0, [10, 8, 6], [up_to(10), up_to(8), stuck(6)], 6, [[], [10], [10]], id="1d_three_participants_lowest"
        ),
        pytest.param(5, [3], [stuck(3)], 3, [[]], id="release_behind_stored"),
        pytest.param(0, [7, 5], [lambda _: 15, lambda asked: asked + 5], 7, [[], [7]], id="at_most_one_catch_up_round"),
    ],
)
def test_a_release_stores_the_highest_position_that_all_participants_confirm(
    stored: int, answers: list[int | None], later: list[Any], agreed: int, asked: list[list[int]]
) -> None:
    ask = Scripted(20, *later)
    assert agree_at_release(stored, dict(enumerate(answers)), ask).position == agreed
    assert ask.asked == asked


def test_a_status_survives_serialization() -> None:
    status = CheckpointStatus("deferred", 9, 7, "2026-01-01T00:00:00.000+00:00")
    assert CheckpointStatus.of(status.text) == status
    assert status.text.isascii()

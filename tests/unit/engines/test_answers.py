"""Answers of participants: calls that cannot be begun do not stand in the way of later ones."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest

from opencqrs_py.engines.answers import AnswersInTime
from opencqrs_py.processing.checkpoints.participation import CallOutcome

SECONDS = 60.0


async def _awaited() -> str:
    return "awaited"


CALLS: dict[str, Any] = {"one": lambda: "first", "two": lambda: "second", "three": _awaited}
OUTCOMES = {"one": CallOutcome("first"), "two": CallOutcome("second"), "three": CallOutcome("awaited")}


@pytest.mark.parametrize("started", [0, 1])
def test_calls_for_which_no_thread_can_be_started_fail_and_are_made_the_next_time(
    started: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, error, starts = AnswersInTime(), RuntimeError("can't start new thread"), list[Thread]()

    class LimitedThread(Thread):
        def start(self) -> None:
            if len(starts) == started:
                raise error
            starts.append(self)
            super().start()

    with monkeypatch.context() as limited:
        limited.setattr("opencqrs_py.engines.threads.Thread", LimitedThread)
        failed = answers.ask(CALLS, SECONDS)
    assert list(failed.values()).count(CallOutcome(error=error)) == 2 - started
    assert failed["three"] == OUTCOMES["three"]
    assert [answers.still(key) for key in CALLS] == [None] * 3
    assert answers.ask(CALLS, SECONDS) == OUTCOMES

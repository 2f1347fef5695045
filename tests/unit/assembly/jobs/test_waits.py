"""Waiting for the end of a run that another process has."""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from opencqrs_py.adapters.memory.jobs import InMemoryJobStore
from opencqrs_py.assembly.jobs.jobs import Jobs, KnownJobs
from opencqrs_py.control.records import ControlView
from opencqrs_py.errors import JobError, WaitTimedOutError
from opencqrs_py.jobs.runs import JobRun, RunStatus
from opencqrs_py.model.job import Trigger
from opencqrs_py.testing import FakeClock

QUEUED = JobRun("r", "report", Trigger.MANUAL, datetime(2026, 1, 5, tzinfo=UTC))
RUNNING, DONE = replace(QUEUED, status=RunStatus.RUNNING), replace(QUEUED, status=RunStatus.SUCCEEDED)
MERGED = replace(QUEUED, status=RunStatus.COALESCED, into="s")
LOST = ConnectionError("connection lost")
UNAVAILABLE = "the database is unavailable: ConnectionError: connection lost"


class Seen(InMemoryJobStore):
    """A store whose answers are given; the last one is repeated."""

    def __init__(self, *answers: JobRun | Exception | None) -> None:
        super().__init__()
        self.answers = list(answers)

    def find(self, run: str) -> JobRun | None:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionError)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    clock = FakeClock()
    monkeypatch.setattr(time, "monotonic", clock.monotonic)
    monkeypatch.setattr(time, "sleep", clock.advance)
    return clock


def jobs(*answers: JobRun | Exception | None) -> Jobs:
    return Jobs(KnownJobs([], {}, Seen(*answers), ControlView, lambda: None, {}))


@pytest.mark.parametrize(
    ("answers", "seconds", "runs"),
    [
        ([DONE], 0, ""),
        ([QUEUED, RUNNING, DONE], 0.2, ""),
        ([LOST, DONE], 0.5, "r"),
        ([RUNNING, LOST, LOST, LOST, DONE], 0.1 + 0.5 + 1 + 2, "r"),
        ([LOST, RUNNING, LOST, DONE], 0.5 + 0.1 + 0.5, "rr"),
        ([MERGED, LOST, DONE], 0.5, "s"),
        ([LOST, MERGED, LOST, DONE], 0.5 + 0.5, "rs"),
        ([MERGED, RUNNING, DONE], 0.1, ""),
    ],
    ids=["ended", "ends", "at first", "for long", "twice", "after it was merged", "before and after", "merged"],
)
def test_a_wait_for_a_run_continues_through_outages(clock, caplog, answers, seconds, runs) -> None:
    began = clock.monotonic()
    assert jobs(*answers).wait("r") is DONE
    assert clock.monotonic() - began == pytest.approx(seconds)
    text = f"continues; {UNAVAILABLE}"
    assert caplog.messages == [f"the wait for run {run} {text}" for run in runs]


@pytest.mark.parametrize(
    ("answers", "run", "state"),
    [
        ([RUNNING], "r", "it is running"),
        ([LOST], "r", UNAVAILABLE),
        ([MERGED, replace(RUNNING, id="s")], "s", "it is running"),
        ([MERGED, LOST], "s", UNAVAILABLE),
    ],
    ids=["running", "unavailable", "merged into one that is running", "unavailable after it was merged"],
)
def test_a_wait_that_times_out_names_the_run_that_has_to_end_and_how_to_look_at_it(clock, answers, run, state) -> None:
    began = clock.monotonic()
    with pytest.raises(WaitTimedOutError) as raised:
        jobs(*answers).wait("r", 5)
    assert clock.monotonic() - began == pytest.approx(5)
    assert (raised.value.code, raised.value.what) == ("OCQ-664", f"run {run} has not ended within 5 s: {state}")
    assert raised.value.fix == f"it is not cancelled: opencqrs jobs show {run} shows how it ends"


@pytest.mark.parametrize(("answer", "error"), [(PermissionError("no"), PermissionError), (None, JobError)])
def test_any_other_error_ends_the_wait_for_a_run(clock, answer, error) -> None:
    with pytest.raises(error):
        jobs(RUNNING, answer).wait("r", 5)

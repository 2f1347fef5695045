"""Runs in the JSON output."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from opencqrs_py.assembly.jobs.jobs import JobStatus
from opencqrs_py.assembly.jobs.rows import iso, job_row, run_row, run_rows
from opencqrs_py.jobs.rules import JobRule
from opencqrs_py.jobs.runs import JobRun, RunStatus
from opencqrs_py.model.job import Job, JobMark, Trigger

NOW = datetime(2042, 1, 5, 12, tzinfo=UTC)  # of a database whose clock differs from that of this machine
PAST, SOON, LATER = NOW - timedelta(hours=1), NOW + timedelta(hours=1), NOW + timedelta(hours=2)


@pytest.mark.parametrize(
    ("status", "due", "waits", "shown"),
    [
        (RunStatus.QUEUED, None, None, None),
        (RunStatus.QUEUED, PAST, None, PAST),
        (RunStatus.RETRYING, SOON, LATER, SOON),
        (RunStatus.RUNNING, PAST, None, None),
        (RunStatus.RUNNING, PAST, PAST, None),
        (RunStatus.RUNNING, PAST, LATER, LATER),
        (RunStatus.RUNNING, None, LATER, LATER),
        (RunStatus.CANCELLED, SOON, LATER, None),
    ],
)
def test_a_run_is_due_when_it_may_begin_or_ends_its_wait_for_a_database(status, due, waits, shown):
    run = JobRun("run", "job", Trigger.MANUAL, PAST, status=status, due_at=due, waits_until=waits)
    assert run_row(run, lambda: NOW)["due_at"] == iso(shown)


def test_the_time_is_queried_only_for_a_run_that_may_wait_for_a_database():
    for status in RunStatus:
        run = JobRun("run", "job", Trigger.MANUAL, PAST, status=status, waits_until=None)
        assert run_row(run, pytest.fail)["due_at"] is None


def test_the_time_is_queried_once_for_all_runs_that_may_wait_for_a_database():
    """Otherwise each would cost a query, and would be compared with another time."""
    run = JobRun("run", "job", Trigger.MANUAL, PAST, status=RunStatus.RUNNING, waits_until=SOON)
    times = iter([NOW, LATER])
    rows = run_rows([run, run], lambda: next(times))
    assert [row["due_at"] for row in rows] == [iso(SOON), iso(SOON)]


def test_the_open_runs_of_a_job_are_compared_with_the_time_of_their_view():
    run = JobRun("run", "job", Trigger.MANUAL, PAST, status=RunStatus.RUNNING, waits_until=PAST)
    job = Job(JobMark("job"), print, "jobs.py:1")
    row = job_row(JobStatus(job, JobRule("job"), None, (run,), None, None, (), (), NOW))
    assert [each["due_at"] for each in row["open"]] == [None]

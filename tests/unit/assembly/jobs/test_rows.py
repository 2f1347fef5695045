"""Runs in the JSON output."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from opencqrs_py.assembly.jobs.rows import iso, run_row
from opencqrs_py.jobs.runs import JobRun, RunStatus
from opencqrs_py.model.job import Trigger

NOW = datetime.now(UTC)
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
    assert run_row(run)["due_at"] == iso(shown)

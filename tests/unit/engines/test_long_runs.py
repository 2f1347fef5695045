"""Warnings about runs that exceed their time budgets."""

from __future__ import annotations

import math
from datetime import UTC, datetime

import pytest

from opencqrs_py.engines.long_runs import warned_of
from opencqrs_py.jobs.runs import JobRun
from opencqrs_py.model.job import Trigger

RUN = JobRun("remind:1", "remind", Trigger.MANUAL, datetime(2026, 1, 5, tzinfo=UTC), attempt=2)


@pytest.mark.parametrize(
    ("budget", "looks", "warned"),
    [
        (60.0, [0, 59, 89.9], []),
        (60.0, [89, 90, 91, 179], [90]),
        (60.0, [90, 180, 181, 270, 10_000], [90, 180]),
        (60.0, [500, 501], [500]),
        (math.inf, [1e9], []),
    ],
)
def test_a_long_run_causes_warnings_after_its_budget_plus_a_grace_period_and_at_twice_that(
    budget, looks, warned, caplog
):
    found, count = [], 0
    for seconds in looks:
        before = len(caplog.records)
        count = warned_of(RUN, seconds, budget, count)
        found += [seconds] * (len(caplog.records) - before)
    assert found == warned


def test_the_warning_names_the_run_its_duration_and_the_fix(caplog):
    warned_of(RUN, 95.0, 60.0, 0)
    (record,) = caplog.records
    assert record.getMessage() == (
        "[job remind] run remind:1 has taken 1 min 35 s so far, and its time budget is 1 min 0 s: what is in hand does "
        "not end; opencqrs jobs cancel remind requests its end"
    )
    assert (record.levelname, record.action, record.job, record.attempt) == ("WARNING", "long", "remind", 2)

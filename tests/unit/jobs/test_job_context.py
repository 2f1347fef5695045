"""What a job can find out about its run."""

from __future__ import annotations

import pytest

from opencqrs_py.errors import JobCancelledError
from opencqrs_py.model.job import Job, JobContext, JobMark, RunSignals


def test_only_a_call_for_one_id_has_an_id():
    assert JobContext("job", "run", ids=(7,)).id == 7
    for ids in ((), (1, 2)):
        with pytest.raises(ValueError, match=f"the call is for {len(ids)} ids"):
            _ = JobContext("job", "run", ids=ids).id


def test_j12_a_job_can_see_that_it_is_cancelled():
    signals = RunSignals()
    context = JobContext("job", "run", _signals=signals)
    assert not context.cancelled
    context.raise_if_cancelled()
    signals.cancelled = "not needed"
    assert context.cancelled
    with pytest.raises(JobCancelledError, match="not needed"):
        context.raise_if_cancelled()


def test_progress_must_not_be_negative():
    signals = RunSignals()
    context = JobContext("job", "run", _signals=signals)
    context.progress(3)
    assert (signals.done, signals.total) == (3, None)
    context.progress(0, 9)
    assert (signals.done, signals.total) == (0, 9)
    for done, total in ((-1, None), (0, -1)):
        with pytest.raises(ValueError, match="progress must be 0 or more"):
            context.progress(done, total)


def test_a_job_has_the_name_of_its_mark():
    assert Job(JobMark("reconcile"), print, "jobs.py:1 (reconcile)").name == "reconcile"

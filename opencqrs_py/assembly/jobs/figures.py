"""The figures of jobs, as metrics show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from opencqrs_py.assembly.jobs.jobs import JobStatus
from opencqrs_py.jobs.runs import OPEN, WAITING, JobRecord
from opencqrs_py.web.job_metrics import JobFigures


def figures_of(statuses: Iterable[JobStatus]) -> list[JobFigures]:
    """Return the figures of jobs."""
    return [_figures(status) for status in statuses]


def _figures(status: JobStatus) -> JobFigures:
    record = status.record or JobRecord(status.job.name)
    counts = Counter(status.state_of(run) for run in status.open)
    return JobFigures(
        job=status.job.name,
        open={each: counts[each] for each in (*map(str, OPEN), WAITING)},
        paused=record.is_paused,
        next_tick=_seconds(record.next_tick),
        last_success=_seconds(record.succeeded_at),
        lag=status.lag_seconds,
    )


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()

"""Metrics of jobs for Prometheus: counters of this process, and the status of all jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily

from opencqrs_py.jobs.runs import RunStatus
from opencqrs_py.web.counting import RunCounts

ENDS = (RunStatus.SUCCEEDED, RunStatus.FAILED, RunStatus.CANCELLED)
"""How a run can end that a process has begun."""


@dataclass(frozen=True, slots=True)
class JobFigures:
    """A job, as last read. Times are in seconds since 1970; ``None`` if there is none.

    Attributes:
        job: Its name.
        open: Its runs that have not ended, by status.
        paused: Whether triggers start no run of it.
        next_tick: When it runs next by its schedule.
        last_success: When a run of it has succeeded last.
        lag: Seconds by which its last tick was late, or its next one is overdue.
    """

    job: str
    open: Mapping[str, int] = field(default_factory=dict)
    paused: bool = False
    next_tick: float | None = None
    last_success: float | None = None
    lag: float | None = None


def job_metrics(seen: Sequence[JobFigures], counts: Mapping[str, RunCounts]) -> Iterator[Metric]:
    """Return the metrics of jobs; none if there are no jobs.

    Args:
        seen: The jobs, as last read.
        counts: What this process has counted, by job.
    """
    if not (seen or counts):
        return
    yield from _gauges(seen)
    yield from _counters({**{each.job: RunCounts() for each in seen}, **counts})


def _gauges(seen: Sequence[JobFigures]) -> Iterator[Metric]:
    text = "Runs of the job that have not ended, by status."
    open_runs = GaugeMetricFamily("opencqrs_job_open_runs", text, labels=("job", "status"))
    for each in seen:
        for status, count in each.open.items():
            open_runs.add_metric((each.job, status), count)
    yield open_runs
    for name, text, values in (
        ("paused", "Whether triggers start no run of the job: 1 or 0.", [each.paused for each in seen]),
        ("next_tick_timestamp_seconds", "When the job runs next, since 1970.", [each.next_tick for each in seen]),
        (
            "last_success_timestamp_seconds",
            "When a run of the job has succeeded last, since 1970.",
            [each.last_success for each in seen],
        ),
        ("lag_seconds", "How late the last tick was, or the next one is.", [each.lag for each in seen]),
    ):
        family = GaugeMetricFamily(f"opencqrs_job_{name}", text, labels=("job",))
        for each, value in zip(seen, values, strict=True):
            if value is not None:
                family.add_metric((each.job,), value)
        yield family


def _counters(counts: Mapping[str, RunCounts]) -> Iterator[Metric]:
    runs = CounterMetricFamily(
        "opencqrs_job_runs", "Runs that this process has ended, by outcome.", labels=("job", "status")
    )
    took = SummaryMetricFamily(
        "opencqrs_job_run_seconds", "How long these runs have taken, from the first attempt.", labels=("job",)
    )
    items = CounterMetricFamily("opencqrs_job_items", "Ids that these runs have handled.", labels=("job",))
    for job, each in sorted(counts.items()):
        for status in ENDS:
            runs.add_metric((job, status.value), each.statuses.get(status, 0))
        took.add_metric((job,), count_value=each.runs, sum_value=each.seconds)
        items.add_metric((job,), each.items)
    yield from (runs, took, items)

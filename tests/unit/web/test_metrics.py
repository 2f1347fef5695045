"""Prometheus metrics of Spark, the inbox and jobs."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from opencqrs_py.control.records import TaskLoad
from opencqrs_py.jobs.runs import JobRun, RunPosition, RunStatus
from opencqrs_py.model.job import Trigger
from opencqrs_py.web.counting import Counting, RunCounting
from opencqrs_py.web.job_metrics import JobFigures
from opencqrs_py.web.metrics import Figures, PartitionFigures, exposition


def samples(load: TaskLoad | None) -> dict[tuple[str, str], float]:
    """Return the values of all metrics of Spark, by name and group."""
    content, _ = exposition(Figures("host:1", "1", 0.0, on_spark=load), Counting(), "")
    families = text_string_to_metric_families(content.decode())
    found = [sample for family in families for sample in family.samples if sample.name.startswith("opencqrs_spark")]
    return {(each.name.removeprefix("opencqrs_spark_"), each.labels.get("group", "")): each.value for each in found}


def test_tasks_slots_executors_and_events_handled_by_the_driver_are_metrics():
    assert samples(TaskLoad({"loans": 2, "audit": 0}, 8, 3, 60)) == {
        ("tasks", "loans"): 2,
        ("tasks", "audit"): 0,
        ("slots", ""): 8,
        ("executors", ""): 3,
        ("events_handled_by_driver_total", ""): 60,
    }


def test_every_metric_of_spark_is_documented_and_nothing_else():
    page = Path(__file__).parents[3] / "docs" / "how-to" / "watch-in-production.md"
    documented = re.findall(r"^\| `opencqrs_spark_(\w+)` \|", page.read_text("utf-8"), re.MULTILINE)
    assert sorted(documented) == sorted({name for name, _ in samples(TaskLoad({"loans": 2}, 8, 3, 60))})


def test_a_local_master_has_no_metric_of_executors():
    assert ("executors", "") not in samples(TaskLoad({}, 2))


def test_a_process_without_spark_has_no_metrics_of_spark():
    assert samples(None) == {}


def test_events_that_wait_in_the_inbox_are_counted_by_group_and_status():
    waiting = [{"pending": 2, "exhausted": 0}, {"pending": 1, "exhausted": 1}, None]
    seen = [PartitionFigures("loans", f"{n}/3", 9, 0, "running", parked=parked) for n, parked in enumerate(waiting)]
    content, _ = exposition(Figures("host:1", "1", 0.0, partitions=seen), Counting(), "")
    families = text_string_to_metric_families(content.decode())
    found = [sample for family in families for sample in family.samples if sample.name == "opencqrs_parked_events"]
    assert [(each.labels, each.value) for each in found] == [
        ({"group": "loans", "status": "exhausted"}, 1),
        ({"group": "loans", "status": "pending"}, 3),
    ]


NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)


def ended(job: str, status: RunStatus, seconds: float, items: int) -> JobRun:
    end = NOON + timedelta(seconds=seconds)
    run = JobRun("1", job, Trigger.SCHEDULE, NOON, status=status, started_at=NOON, ended_at=end)
    return replace(run, position=RunPosition(items=items))


def job_samples(jobs: list[JobFigures], runs: RunCounting) -> dict[tuple[str, ...], float]:
    """Return the values of all metrics of jobs, by name and labels."""
    content, _ = exposition(Figures("host:1", "1", 0.0, jobs=jobs), Counting(), "", runs)
    families = text_string_to_metric_families(content.decode())
    found = [sample for family in families for sample in family.samples if sample.name.startswith("opencqrs_job_")]
    return {(each.name.removeprefix("opencqrs_job_"), *each.labels.values()): each.value for each in found}


def test_runs_ended_here_are_counted_by_status_with_their_time_and_items():
    runs = RunCounting()
    for run in (
        ended("remind", RunStatus.SUCCEEDED, 2.5, 10),
        ended("remind", RunStatus.SUCCEEDED, 0.5, 0),
        ended("remind", RunStatus.FAILED, 1.0, 5),
        replace(ended("other", RunStatus.CANCELLED, 1.0, 0), started_at=None),
    ):
        runs.ended(run)
    found = job_samples([], runs)
    assert {key: value for key, value in found.items() if "remind" in key} == {
        ("runs_total", "remind", "succeeded"): 2,
        ("runs_total", "remind", "failed"): 1,
        ("runs_total", "remind", "cancelled"): 0,
        ("run_seconds_count", "remind"): 3,
        ("run_seconds_sum", "remind"): 4.0,
        ("items_total", "remind"): 15,
    }
    assert (found["runs_total", "other", "cancelled"], found["run_seconds_sum", "other"]) == (1, 0.0)


SEEN = JobFigures(
    "remind", {"queued": 2, "running": 1, "retrying": 0}, paused=False, next_tick=1_000.5, last_success=900.25, lag=1.5
)


def test_a_job_has_metrics_of_its_state_and_counters_that_begin_at_zero():
    found = job_samples([SEEN, JobFigures("new", paused=True)], RunCounting())
    assert {key: value for key, value in found.items() if "remind" in key and value} == {
        ("open_runs", "remind", "queued"): 2,
        ("open_runs", "remind", "running"): 1,
        ("next_tick_timestamp_seconds", "remind"): 1_000.5,
        ("last_success_timestamp_seconds", "remind"): 900.25,
        ("lag_seconds", "remind"): 1.5,
    }
    assert found["paused", "remind"] == found["runs_total", "remind", "failed"] == 0
    assert {key[0] for key in found if "new" in key} == {
        "paused",
        "runs_total",
        "run_seconds_count",
        "run_seconds_sum",
        "items_total",
    }
    assert found["paused", "new"] == 1


def test_every_metric_of_jobs_is_documented_and_nothing_else():
    page = Path(__file__).parents[3] / "docs" / "how-to" / "watch-in-production.md"
    documented = re.findall(r"^\| `opencqrs_job_(\w+)` \|", page.read_text("utf-8"), re.MULTILINE)
    exposed = {name for name, *_ in job_samples([SEEN], RunCounting())}
    assert sorted(documented) == sorted({re.sub("^run_seconds_.*", "run_seconds", name) for name in exposed})


def test_a_project_without_jobs_has_no_metrics_of_jobs():
    assert job_samples([], RunCounting()) == {}

"""Jobs and runs as JSON, in the one shape that all interfaces return."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from opencqrs_py.jobs.runs import JobRecord, JobRun, RunStatus
from opencqrs_py.model.masking import scrubbed
from opencqrs_py.model.times import in_milliseconds

if TYPE_CHECKING:
    from opencqrs_py.assembly.jobs.jobs import JobStatus


def job_row(status: JobStatus) -> dict[str, Any]:
    """Return a job in the shape of the JSON output."""
    record, lag = status.record, status.lag_seconds
    return {
        "job": status.job.name,
        "place": status.job.place,
        "schedule": status.rule.ticking.text or None,
        "events": list(status.events),
        "next_tick": iso(record.next_tick) if record is not None else None,
        "paused": paused_row(record) if record is not None else None,
        "lag_seconds": None if lag is None else round(lag, 3),
        "open": [run_row(run, lambda: status.now) for run in status.open],
        "last": run_row(status.last, lambda: status.now) if status.last is not None else None,
        "nodes": list(status.nodes),
    }


def paused_row(record: JobRecord) -> dict[str, Any] | None:
    """Return since when a job is paused, by whom and why, in the shape of the JSON output; ``None`` if it is not."""
    if not record.is_paused:
        return None
    return {"at": iso(record.paused_at), "by": record.paused_by or None, "reason": record.reason or None}


def run_rows(runs: Iterable[JobRun], now: Callable[[], datetime]) -> list[dict[str, Any]]:
    """Return runs in the shape of the JSON output, all as of one time; ``now`` is called at most once."""
    one_time = cache(now)
    return [run_row(run, one_time) for run in runs]


def run_row(run: JobRun, now: Callable[[], datetime]) -> dict[str, Any]:
    """Return a run in the shape of the JSON output; ``now`` is called only if it may wait for a database."""
    due = run.due_at if run.is_open else None
    if run.status is RunStatus.RUNNING:  # its due_at is that of the attempt in hand
        due = run.waits_until if run.waits_until is not None and run.awaits_database(now()) else None
    return {
        "run": run.id,
        "job": run.job,
        "trigger": run.trigger.value,
        "status": run.status.value,
        "ids": None if run.ids is None else list(run.ids),
        "scheduled_at": iso(run.scheduled_at),
        "requested_at": iso(run.requested_at),
        "due_at": iso(due),
        "started_at": iso(run.started_at),
        "ended_at": iso(run.ended_at),
        "seconds": seconds_of(run),
        "attempt": run.attempt,
        "items": run.position.items,
        "failed_items": len(run.position.failed),
        "done": run.done,
        "total": run.total,
        "error": scrubbed(run.error) or None,
        "reason": run.reason or None,
        "into": run.into or None,
        "ticks": run.ticks,
        "actor": run.actor or None,
        "node": run.node or None,
    }


def seconds_of(run: JobRun) -> float | None:
    """Return how long a run took that has begun and ended."""
    if run.started_at is None or run.ended_at is None:
        return None
    return round((run.ended_at - run.started_at).total_seconds(), 3)


def iso(moment: datetime | None) -> str | None:
    """Return a time in UTC as ISO 8601 with milliseconds, as JSON has it."""
    return None if moment is None else in_milliseconds(moment).replace("+00:00", "Z")

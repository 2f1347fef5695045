"""The rows of jobs and of their runs: how they are stored and read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Any

from opencqrs_py.adapters.sql.inbox_rows import milliseconds
from opencqrs_py.adapters.sql.tables import JOB_RUNS, JOBS
from opencqrs_py.jobs.runs import JobRecord, JobRun, RunPosition, RunStatus
from opencqrs_py.model.job import JobId, Trigger

RUN_COLUMNS = tuple(str(column.name) for column in JOB_RUNS.columns)
"""The columns of a run, in their order."""

RECORD_COLUMNS = tuple(str(column.name) for column in JOBS.columns)
"""The columns of a job, in their order."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DETAILS = ("attempt", "deaths", "node", "error", "reason", "actor", "into", "reserved", "queued", "ticks")
_TIMES = ("requested", "scheduled", "due", "started", "ended", "cancelled")


def run_row(run: JobRun) -> dict[str, Any]:
    """Return what is stored of a run, by column."""
    ids = None if run.ids is None else list(run.ids)
    details = {"trigger": run.trigger.value, "ids": ids, **{name: getattr(run, name) for name in _DETAILS}}
    details["waits_until_ms"] = _ms_of(run.waits_until)
    times = {f"{name}_ms": _ms_of(getattr(run, f"{name}_at")) for name in _TIMES}
    return {
        "run_id": run.id,
        "job": run.job,
        "status": run.status.value,
        **times,
        "ran_ms": times["ended_ms"] if run.started_at is not None else None,
        "owner": run.owner,
        "token": run.token,
        "position": position_text(run.position),
        "done": run.done,
        "total": run.total,
        "parent": run.parent,
        "details": json.dumps(details),
    }


def run_of(row: Sequence[Any]) -> JobRun:
    """Return the run of a row with all columns."""
    found = dict(zip(RUN_COLUMNS, row, strict=True))
    details = json.loads(found["details"])
    times: dict[str, Any] = {f"{name}_at": _moment_of(found[f"{name}_ms"]) for name in _TIMES}
    return JobRun(
        id=found["run_id"],
        job=found["job"],
        trigger=Trigger(details["trigger"]),
        ids=_ids_of(details["ids"]),
        status=RunStatus(found["status"]),
        owner=found["owner"],
        token=found["token"],
        position=position_of(found["position"]),
        done=found["done"],
        total=found["total"],
        parent=found["parent"],
        waits_until=_moment_of(details.get("waits_until_ms")),
        **times,
        **_known(details, _DETAILS),
    )


def position_text(position: RunPosition) -> str:
    """Return a position as JSON in ASCII, in which an id keeps its type."""
    return json.dumps(asdict(position))


def position_of(text: str) -> RunPosition:
    """Return the position of a text."""
    found = json.loads(text)
    lists = {"failed": tuple(found["failed"]), "only": _ids_of(found["only"])}
    return RunPosition(**{**_known(found, RunPosition.__dataclass_fields__), **lists})


def record_row(record: JobRecord) -> dict[str, Any]:
    """Return what is stored of a job, by column."""
    details = {
        "schedule": record.schedule,
        "paused_by": record.paused_by,
        "reason": record.reason,
        "succeeded_ms": _ms_of(record.succeeded_at),
    }
    return {
        "job": record.name,
        "next_ms": _ms_of(record.next_tick),
        "paused_ms": _ms_of(record.paused_at),
        "details": json.dumps(details),
    }


def record_of(row: Sequence[Any]) -> JobRecord:
    """Return the record of a row with all columns."""
    name, next_ms, paused_ms, text = row
    details = json.loads(text)
    return JobRecord(
        name,
        next_tick=_moment_of(next_ms),
        paused_at=_moment_of(paused_ms),
        succeeded_at=_moment_of(details.get("succeeded_ms")),
        **_known(details, ("schedule", "paused_by", "reason")),
    )


def moment_of(ms: int) -> datetime:
    """Return the moment that is a number of milliseconds after the beginning of 1970."""
    return _EPOCH + timedelta(milliseconds=ms)


def _moment_of(ms: int | None) -> datetime | None:
    return None if ms is None else moment_of(ms)


def _ms_of(moment: datetime | None) -> int | None:
    return None if moment is None else milliseconds(moment)


def _ids_of(ids: list[JobId] | None) -> tuple[JobId, ...] | None:
    return None if ids is None else tuple(ids)


def _known(values: Mapping[str, Any], names: Any) -> dict[str, Any]:
    """Return the fields that this package knows, of a row that a newer one may have written."""
    return {name: values[name] for name in names if name in values}

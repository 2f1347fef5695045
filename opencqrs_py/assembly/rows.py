"""The status of groups as JSON, in the one shape that all interfaces return."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from opencqrs_py.assembly.status import GroupStatus, NodeLoad, ReplayProgress
from opencqrs_py.control.records import TaskLoad
from opencqrs_py.model.group_record import GroupRecord
from opencqrs_py.model.progress import PartitionStatus
from opencqrs_py.model.rebuild import RebuildPhase


def group_rows(statuses: Sequence[GroupStatus]) -> list[dict[str, Any]]:
    """Return the statuses in the shape of the JSON output."""
    return [
        {
            "group": status.group,
            "head": status.head,
            "lag": status.lag,
            "began": _began(status.record),
            "handlers_changed": _changed(status.record),
            "rebuild": _rebuild(status.record),
            "spark": [_of_node(status.group, each) for each in status.nodes_on_spark],
            "partitions": [_row(status, each) for each in status.partitions],
        }
        for status in statuses
    ]


def _began(record: GroupRecord | None) -> dict[str, Any] | None:
    """Return where a group began; a position of ``None`` is not known."""
    if record is None:
        return None
    return {"setting": record.setting or None, "position": record.position, "at": record.began_at}


def _changed(record: GroupRecord | None) -> dict[str, Any] | None:
    changed = record.changed if record is not None else None
    return None if changed is None else {"position": changed.position, "at": changed.at}


def _rebuild(record: GroupRecord | None) -> dict[str, Any] | None:
    """Return the rebuild that is unfinished, or of which the old tables are kept."""
    found = record.rebuild if record is not None else None
    if found is None or found.phase is RebuildPhase.ENDED:
        return None
    return {"phase": found.phase.value, "began": found.started_at}


def load_row(load: TaskLoad) -> dict[str, Any]:
    """Return how much Spark runs at once for a node, in the shape of the JSON output."""
    return {"slots": load.slots, "executors": load.executors, "handled_by_driver": load.handled_by_driver}


def _of_node(group: str, node: NodeLoad) -> dict[str, Any]:
    return {"node": node.node, "tasks": node.load.tasks.get(group, 0), **load_row(node.load)}


def _row(status: GroupStatus, partition: PartitionStatus) -> dict[str, Any]:
    lag = status.lag_at(partition.position)
    return {
        "partition": str(partition.partition),
        "position": partition.position,
        "lag": lag,
        "lag_events": lag,
        "lag_seconds": status.lag_seconds.get(partition.partition),
        "events_per_second": status.events_per_second.get(partition.partition),
        "wanted": partition.wanted,
        "state": partition.state.value,
        "attempt": partition.attempt,
        "error": partition.error,
        "next_attempt_at": partition.next_attempt_at,
        "updated_at": partition.updated_at,
        "progress_age_seconds": _age(partition.updated_at),
        "owner": partition.owner or None,
        "owned_since": partition.owned_since,
        "lease_until": partition.lease_until,
        "last_error": _last_error(partition),
        "skipped": partition.skipped,
        "parked": {status.value: count for status, count in partition.parked},
        "failure": None if partition.failure is None else asdict(partition.failure),
        "replay": _replay(status, partition),
        "checkpoint": _checkpoint(partition),
    }


def _replay(status: GroupStatus, partition: PartitionStatus) -> dict[str, Any] | None:
    rate = status.events_per_second.get(partition.partition)
    progress = ReplayProgress.of(partition, rate, datetime.now(UTC))
    if progress is None or partition.replay is None:
        return None
    reset = partition.replay.reset
    return {**asdict(progress), "reset_at": reset.reset_at, "reason": reset.reason}


def _checkpoint(partition: PartitionStatus) -> dict[str, Any] | None:
    known = partition.checkpoint
    if known is None:
        return None
    polled, handled = max(known.polled, partition.position), max(known.handled, partition.position)
    positions = {"polled": polled, "handled": handled, "stored": partition.position}
    return {"mode": known.mode, **positions, "at": known.at, "age_seconds": _age(known.at)}


def _age(moment: str | None) -> float | None:
    """Return the seconds since an ISO 8601 time, at least 0: clocks differ, and are set back."""
    if moment is None:
        return None
    return round(max(0.0, (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()), 3)


def _last_error(status: PartitionStatus) -> dict[str, str | None] | None:
    failure = status.failed_event
    if failure is not None:
        return {"event_id": failure.event_id, "event_type": failure.event_type, "message": failure.last_error}
    return {"event_id": None, "event_type": None, "message": status.error} if status.error else None

"""The rows of the table ``opencqrs_progress``: what cursors and statuses are read from."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import ColumnElement, Connection, Table, select

from opencqrs_py.adapters.sql.tables import PROGRESS
from opencqrs_py.errors import EventStoreError, FencedError
from opencqrs_py.model.ahead import Ahead
from opencqrs_py.model.checkpoint import CheckpointStatus
from opencqrs_py.model.inbox import InboxStatus
from opencqrs_py.model.naming import counted, storable
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import ERROR_LENGTH, Cursor, FailureRecord, PartitionStatus, ProcessorState, Skip
from opencqrs_py.model.replay import Replay

_LATER = ("crashes", "in_hand")  # of a failure; versions that do not know them read rows without them


def held(connection: Connection, progress: Table, group: str) -> dict[Partition, Cursor]:
    """Return the positions of the partitions of a group."""
    rows = connection.execute(select(progress).where(progress.c.group_name == group)).mappings()
    return {(cursor := cursor_of(row)).partition: cursor for row in rows}


def row_of(progress: Table, group: str, partition: Partition) -> ColumnElement[bool]:
    """Return the condition for the row of a partition."""
    columns = progress.c
    place = (columns.modulus == partition.modulus) & (columns.residue == partition.residue)
    return (columns.group_name == group) & place


def cursor_of(row: Any) -> Cursor:
    """Return the state of a partition, as a claim finds it."""
    partition, position = Partition(row["modulus"], row["residue"]), row["position"]
    known: dict[str, Any] = {
        "fingerprint": row["log_fingerprint"] or "",
        "unreleased": row["state"] != ProcessorState.STOPPED.value,
        "replay": replay_of(row["group_name"], row["replay"]),
        "ahead": ahead_in(row["ahead"], position),
    }
    cursor = Cursor(partition, row["epoch"], position, position, **known)
    failure = _failure_of(row["failure"])
    return cursor if failure is None else cursor.resuming(failure)


def replay_of(group: str, text: str | None) -> Replay | None:
    """Return what a partition handles again."""
    return None if text is None else Replay.of(group, text)


def ahead_in(text: str | None, position: int) -> Ahead | None:
    """Return what is handled ahead of a position; ``None`` if nothing is."""
    return None if text is None else Ahead.of(text).after(position)


def fenced(group: str, partition: Partition) -> FencedError:
    """Return the error for a partition that has another owner now."""
    return FencedError(f"progress of group '{group}' partition {partition} was taken over by another processor")


def failure_text(failure: FailureRecord | None) -> str | None:
    """Return a failure as JSON in ASCII, which every database takes, whatever an error or an id contains."""
    if failure is None:
        return None
    known = {k: v for k, v in asdict(failure).items() if v or k not in _LATER}
    return json.dumps({k: v[:ERROR_LENGTH] if isinstance(v, str) else v for k, v in known.items()})


def _failure_of(text: str | None) -> FailureRecord | None:
    return None if text is None else FailureRecord(**json.loads(text))


def skip_row(skip: Skip) -> dict[str, Any]:
    """Return the row of a skipped event."""
    texts = {name: storable(getattr(skip, name)) for name in ("event_id", "event_source", "subject", "event_type")}
    return {
        "group_name": skip.group,
        "position": skip.position,
        "modulus": skip.partition.modulus,
        "residue": skip.partition.residue,
        **texts,
        "attempts": skip.attempts,
        "reason": storable(skip.reason, ERROR_LENGTH),
        "skipped_at": skip.skipped_at,
    }


def skip_of(row: Any) -> Skip:
    """Return the skipped event of a row."""
    names = ("position", "event_id", "event_source", "subject", "event_type", "attempts", "reason", "skipped_at")
    return Skip(row["group_name"], Partition(row["modulus"], row["residue"]), *(row[name] for name in names))


class EventCounts:
    """How many events were skipped, and how many wait in the inbox: rows of group, modulus, residue, status, count.

    Those of the inbox have the modulus 0 and the hash of a sequence, since partitions may change.
    """

    def __init__(self, rows: Iterable[Any]) -> None:
        self._skipped: Counter[tuple[str, int, int]] = Counter()
        self._parked: dict[str, list[tuple[int, InboxStatus, int]]] = defaultdict(list)
        for group, modulus, residue, status, count in rows:
            if modulus:
                self._skipped[group, modulus, residue] = count
            else:
                self._parked[group].append((residue, InboxStatus(status), count))

    def skipped(self, group: str, modulus: int, residue: int) -> int:
        """Return how many events of a partition were skipped."""
        return self._skipped[group, modulus, residue]

    def parked(self, group: str, modulus: int, residue: int) -> tuple[tuple[InboxStatus, int], ...]:
        """Return how many events of a partition wait, by what they wait for."""
        counts: Counter[InboxStatus] = Counter()
        for hash_, status, count in self._parked.get(group, ()):
            counts[status] += count if hash_ % modulus == residue else 0
        return tuple((status, counts[status]) for status in InboxStatus if counts[status])


def status_of(row: Any, counts: EventCounts) -> PartitionStatus:
    """Return the status of a partition."""
    key = (row["group_name"], row["modulus"], row["residue"])
    return PartitionStatus(
        group=row["group_name"],
        partition=Partition(row["modulus"], row["residue"]),
        position=row["position"],
        state=ProcessorState(row["state"]),
        attempt=row["attempt"],
        error=row["error"],
        next_attempt_at=row["next_attempt_at"],
        updated_at=row["updated_at"],
        failure=_failure_of(row["failure"]),
        skipped=counts.skipped(*key),
        parked=counts.parked(*key),
        replay=replay_of(row["group_name"], row["replay"]),
        ahead=ahead_in(row["ahead"], row["position"]),
        checkpoint=None if row["checkpoint"] is None else CheckpointStatus.of(row["checkpoint"]),
    )


class OtherLayoutError(EventStoreError):
    """A group has progress for other partitions (OCQ-310)."""


def check_layout(group: str, known: dict[Partition, Any], partitions: Sequence[Partition]) -> None:
    """Refuse with OCQ-310 a layout of partitions other than the one of the stored progress."""
    if not known or set(known) == set(partitions):
        return
    has = counted(len(known), "partition")
    what = f"group '{group}' has progress for {has}, but is configured with {len(partitions)}"
    fix = f"use the existing number; or opencqrs groups partitions {group} {len(partitions)}"
    raise OtherLayoutError("OCQ-310", what, f"table {PROGRESS.name}", fix)

"""``opencqrs status``: how far every partition is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from opencqrs_py.cli.options import ProjectOptions, format_option, project_options
from opencqrs_py.cli.output import clean, print_json, stdout

if TYPE_CHECKING:
    from opencqrs_py.assembly.status import GroupStatus
    from opencqrs_py.model.progress import PartitionStatus

__all__ = ["group_rows", "print_groups", "status_command"]

_STYLES = {
    "failed": "red",
    "backing-off": "yellow",
    "waiting": "yellow",
    "running": "green",
    "unowned": "red",
    "standby": "yellow",
}


@click.command("status")
@project_options
@format_option
def status_command(options: ProjectOptions, *, as_json: bool) -> None:
    """Show how far every partition is, from any process."""
    statuses = options.application().status()
    if as_json:
        print_json(group_rows(statuses))
    else:
        print_groups(statuses, {})


def group_rows(statuses: Sequence[GroupStatus]) -> list[dict[str, Any]]:
    """Return the statuses in the shape of the JSON output."""
    return [
        {
            "group": status.group,
            "head": status.head,
            "lag": status.lag,
            "partitions": [
                {
                    "partition": str(p.partition),
                    "position": p.position,
                    "lag": max(0, status.head - p.position),
                    "lag_events": max(0, status.head - p.position),
                    "lag_seconds": status.lag_seconds.get(p.partition),
                    "wanted": p.wanted,
                    "state": p.state.value,
                    "attempt": p.attempt,
                    "error": p.error,
                    "next_attempt_at": p.next_attempt_at,
                    "updated_at": p.updated_at,
                    "progress_age_seconds": _age(p.updated_at),
                    "owner": p.owner or None,
                    "owned_since": p.owned_since,
                    "lease_until": p.lease_until,
                    "last_error": _last_error(p),
                    "skipped": p.skipped,
                    "failure": None if p.failure is None else asdict(p.failure),
                }
                for p in status.partitions
            ],
        }
        for status in statuses
    ]


def _age(moment: str | None) -> float | None:
    """Return the seconds since an ISO 8601 time."""
    if moment is None:
        return None
    return round((datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds(), 3)


def _last_error(status: PartitionStatus) -> dict[str, str | None] | None:
    failure = status.failure
    if failure is not None:
        return {"event_id": failure.event_id, "event_type": failure.event_type, "message": failure.last_error}
    return {"event_id": None, "event_type": None, "message": status.error} if status.error else None


def print_groups(statuses: Sequence[GroupStatus], handled: Mapping[tuple[str, str], int]) -> None:
    """Print a table of all partitions, and below it the errors that hold some of them up."""
    from rich.table import Table  # noqa: PLC0415 only when a table is printed

    table = Table(box=None, pad_edge=False)
    for title, side in (("group", "left"), ("partition", "left"), ("position", "right"), ("lag", "right")):
        table.add_column(title, justify="right" if side == "right" else "left")
    table.add_column("state")
    owners = any(p.owner for status in statuses for p in status.partitions)
    if owners:
        table.add_column("node")
    if handled:
        table.add_column("handled", justify="right")
    skips = any(p.skipped for status in statuses for p in status.partitions)
    if skips:
        table.add_column("skipped", justify="right")
    for status in statuses:
        for cells in _rows(status, handled, owners=owners, skips=skips):
            table.add_row(*cells)
    console = stdout()
    console.print(table)
    for status in statuses:
        for p in status.partitions:
            if p.error:
                notes = [f"attempt {p.attempt}"] if p.attempt else []
                notes += [f"next attempt {p.next_attempt_at}"] if p.next_attempt_at else []
                note = f" ({', '.join(notes)})" if notes else ""
                line = f"[{status.group} {p.partition}] {clean(p.error)}{note}"
                console.print(line, style="red", markup=False, soft_wrap=True)


def _rows(status: GroupStatus, handled: Mapping[tuple[str, str], int], *, owners: bool, skips: bool) -> list[list[str]]:
    if not status.partitions:
        return [[clean(status.group), "-", "-", f"{status.head:,}", "never run"]]
    return [
        [
            clean(status.group),
            str(p.partition),
            str(p.position),
            f"{max(0, status.head - p.position):,}",
            f"[{_STYLES.get(p.state.value, 'default')}]{p.state.value}[/]",
            *([clean(p.owner) or "-"] if owners else []),
            *([f"{handled.get((status.group, str(p.partition)), 0):,}"] if handled else []),
            *([f"{p.skipped:,}"] if skips else []),
        ]
        for p in status.partitions
    ]

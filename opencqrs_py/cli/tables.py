"""The table of partitions, as ``opencqrs status`` and the end of ``opencqrs run`` show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from opencqrs_py.cli.output import amount, cell, clean, stdout
from opencqrs_py.model.naming import counted
from opencqrs_py.model.rebuild import RebuildPhase

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from opencqrs_py.assembly.status import GroupStatus, NodeLoad
    from opencqrs_py.control.records import TaskLoad
    from opencqrs_py.model.progress import PartitionStatus

Handled = Mapping[tuple[str, str], int]

_STYLES = {
    "failed": "red",
    "backing-off": "yellow",
    "waiting": "yellow",
    "running": "green",
    "unowned": "red",
    "standby": "yellow",
}

_TITLES = (
    "group",
    "partition",
    "position",
    "lag",
    "events/s",
    "state",
    "node",
    "handled",
    "skipped",
    "parked",
    "replay",
    "checkpoint",
)
_NUMBERS = {"position", "lag", "events/s", "handled", "skipped", "parked"}


@dataclass(frozen=True, slots=True)
class _Columns:
    """The optional columns, which are shown only if they have a value."""

    rates: bool
    owners: bool
    handled: bool
    skips: bool
    parked: bool
    replays: bool
    checkpoints: bool

    def titles(self) -> list[str]:
        """Return the titles of the present columns."""
        shown = {
            "events/s": self.rates,
            "node": self.owners,
            "handled": self.handled,
            "skipped": self.skips,
            "parked": self.parked,
            "replay": self.replays,
            "checkpoint": self.checkpoints,
        }
        return [title for title in _TITLES if shown.get(title, True)]


def print_groups(statuses: Sequence[GroupStatus], handled: Handled, *, details: bool = False) -> None:
    """Print a table of all partitions, and below it the errors that hold some of them up.

    With details, also where each group began, and since when its handlers are the current ones.
    """
    console = stdout()
    console.print(_table(statuses, handled))
    for line in (line for status in statuses for line in _record_lines(status) if details):
        console.print(clean(line), markup=False, soft_wrap=True)
    for node in _on_spark(statuses):
        console.print(clean(_spark_line(node, [status.group for status in statuses])), markup=False, soft_wrap=True)
    for each in (each for status in statuses for each in status.partitions if each.error):
        console.print(_error_line(each), style="red", markup=False, soft_wrap=True)


def _table(statuses: Sequence[GroupStatus], handled: Handled) -> Table:
    from rich.table import Table  # noqa: PLC0415 only when a table is printed

    partitions = [each for status in statuses for each in status.partitions]
    columns = _Columns(
        rates=any(rate is not None for status in statuses for rate in status.events_per_second.values()),
        owners=any(each.owner for each in partitions),
        handled=bool(handled),
        skips=any(each.skipped for each in partitions),
        parked=any(each.parked for each in partitions),
        replays=any(each.replay is not None for each in partitions),
        checkpoints=any(each.checkpoint is not None for each in partitions),
    )
    table = Table(box=None, pad_edge=False)
    for title in columns.titles():
        table.add_column(title, justify="right" if title in _NUMBERS else "left")
    for status in statuses:
        if not status.partitions:
            rate = ["-"] if columns.rates else []
            table.add_row(cell(status.group), "-", "-", amount(status.head), *rate, "never run")
        for each in status.partitions:
            table.add_row(*_cells(status, each, handled, columns))
    return table


def spark_size(load: TaskLoad) -> str:
    """Return in words how much Spark runs at once."""
    if not load.slots:
        return "starting"
    executors = "" if load.executors is None else f" on {counted(load.executors, 'executor')}"
    return f"{counted(load.slots, 'slot')}{executors}"


_REBUILDS = {
    RebuildPhase.BUILDING: "is being rebuilt since {began}; opencqrs groups rebuild continues it if it was interrupted",
    RebuildPhase.SWAPPING: "is being swapped; opencqrs groups rebuild completes it if it was interrupted",
    RebuildPhase.SWAPPED: "was rebuilt (begun at {began}); the old tables are kept until --drop-old or --undo",
}


def _record_lines(status: GroupStatus) -> Iterator[str]:
    record = status.record
    if record is None:
        return
    if record.position is None:
        yield f"[{status.group}] began under an earlier version: where is not known"
    else:
        at = f"{record.setting} (position {record.position})" if record.setting else f"position {record.position}"
        yield f"[{status.group}] began at {at} at {record.began_at}"
    if (changed := record.changed) is not None:
        left = f"; not yet taken over: {', '.join(map(str, changed.others))}" if changed.others else ""
        yield f"[{status.group}] handlers changed since position {changed.position}, first seen at {changed.at}{left}"
    if record.rebuild is not None and (said := _REBUILDS.get(record.rebuild.phase)) is not None:
        yield f"[{status.group}] {said.format(began=record.rebuild.started_at)}"


def _on_spark(statuses: Sequence[GroupStatus]) -> list[NodeLoad]:
    found = {(node.id, node.node): node for status in statuses for node in status.nodes_on_spark}
    return [found[key] for key in sorted(found, key=lambda key: key[1])]


def _spark_line(node: NodeLoad, groups: Sequence[str]) -> str:
    tasks = [f"{group} {count}" for group in groups if (count := node.load.tasks.get(group))]
    said = f"Spark of node {node.node}: {spark_size(node.load)}; tasks: {', '.join(tasks) or 'none'}"
    handled = node.load.handled_by_driver
    return said + (f"; the driver has handled {counted(handled, 'event')} itself" if handled else "")


def _error_line(status: PartitionStatus) -> str:
    notes = [f"attempt {status.attempt}"] if status.attempt else []
    notes += [f"next attempt {status.next_attempt_at}"] if status.next_attempt_at else []
    note = f" ({', '.join(notes)})" if notes else ""
    return f"[{status.group} {status.partition}] {clean(status.error)}{note}"


def _cells(status: GroupStatus, p: PartitionStatus, handled: Handled, columns: _Columns) -> list[str | Text]:
    rate = status.events_per_second.get(p.partition)
    return [
        cell(status.group),
        str(p.partition),
        str(p.position),
        amount(status.lag_at(p.position)),
        *(["-" if rate is None else f"{rate:,.0f}"] if columns.rates else []),
        f"[{_STYLES.get(p.state.value, 'default')}]{p.state.value}[/]",
        *([cell(p.owner or "-")] if columns.owners else []),
        *([f"{handled.get((status.group, str(p.partition)), 0):,}"] if columns.handled else []),
        *([f"{p.skipped:,}"] if columns.skips else []),
        *([f"{sum(count for _, count in p.parked):,}"] if columns.parked else []),
        *([_replay(status, p)] if columns.replays else []),
        *([_checkpoint(p)] if columns.checkpoints else []),
    ]


def _replay(status: GroupStatus, p: PartitionStatus) -> str:
    from opencqrs_py.assembly.status import ReplayProgress  # noqa: PLC0415 only while events are handled again

    progress = ReplayProgress.of(p, status.events_per_second.get(p.partition), datetime.now(UTC))
    if progress is None:
        return "-"
    left = "" if progress.seconds_left is None else f", {_duration(progress.seconds_left)} left"
    rate = "" if progress.events_per_second is None else f", {progress.events_per_second:,.0f}/s"
    return f"{progress.percent:g} % of {progress.start:,} to {progress.until:,}{rate}{left}"


def _checkpoint(p: PartitionStatus) -> str:
    """Return how far participants are, and how long ago the last checkpoint was."""
    if p.checkpoint is None:
        return "-"
    handled, at = max(p.position, p.checkpoint.handled), p.checkpoint.at
    last = "none yet" if at is None else f"{_duration(_seconds_since(at))} ago"
    return f"{p.checkpoint.mode}, handled {handled:,}, {last}"


def _seconds_since(moment: str) -> float:
    """Return the seconds since an ISO 8601 time."""
    return max(0.0, (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds())


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))

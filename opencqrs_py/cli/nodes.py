"""``opencqrs nodes``: which processes run processors, and what each of them has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from opencqrs_py.assembly.rows import load_row
from opencqrs_py.cli.options import ProjectOptions, format_option, project_options
from opencqrs_py.cli.output import cell, print_json, print_line, stdout
from opencqrs_py.cli.tables import spark_size

if TYPE_CHECKING:
    from opencqrs_py.assembly.control import NodeStatus


@click.command("nodes")
@project_options
@format_option
def nodes_command(options: ProjectOptions, *, as_json: bool) -> None:
    """Show the nodes that run processors or jobs, and what each has.

    A crashed node is shown for a day.
    """
    nodes = options.opened().control.nodes()
    if as_json:
        print_json([_as_json(node) for node in nodes])
    elif nodes:
        _print_table(nodes)
    else:
        print_line(f"no node runs processors: opencqrs run{options.typed}", "default")


def _as_json(status: NodeStatus) -> dict[str, Any]:
    node = status.node
    return {
        "node": node.name,
        "id": node.id,
        "state": "alive" if status.alive else "dead",
        "started_at": node.started_at,
        "spark": load_row(node.load) if node.load is not None and status.alive else None,
        "lease_seconds_left": round(max(0.0, status.seconds_left), 3) if status.alive else 0.0,
        "groups": {
            group: {
                "partitions": status.partitions.get(group, 0),
                "of": status.whole[group],
                "fingerprint": runnable.fingerprint,
            }
            for group, runnable in node.groups.items()
        },
        "jobs": sorted(node.jobs),
    }


def _print_table(nodes: list[NodeStatus]) -> None:
    from rich.table import Table  # noqa: PLC0415 only when a table is printed

    table = Table(box=None, pad_edge=False)
    on_spark = any(status.alive and status.node.load is not None for status in nodes)
    has_jobs = any(status.node.jobs for status in nodes)
    titles = (
        "node",
        "state",
        "started",
        *(["Spark"] if on_spark else []),
        *(["jobs"] if has_jobs else []),
        "partitions",
    )
    for title in titles:
        table.add_column(title)
    for status in nodes:
        shares = (
            f"{group} {status.partitions[group]} of {status.whole[group]}"
            for group in status.node.groups
            if group in status.partitions
        )
        state = "[green]alive[/]" if status.alive else "[red]dead[/]"
        load = status.node.load if status.alive else None
        size = [spark_size(load) if load is not None else "-"] if on_spark else []
        jobs = [str(len(status.node.jobs)) if status.alive else "-"] if has_jobs else []
        table.add_row(cell(status.node.name), state, status.node.started_at, *size, *jobs, cell(", ".join(shares)))
    stdout().print(table)

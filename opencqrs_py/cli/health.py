"""``opencqrs health``: whether all is well, as an exit code and a line for each thing that is not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from opencqrs_py.cli.options import ProjectOptions, format_option, project_options
from opencqrs_py.cli.output import cell, clean, print_json, print_line, stdout

if TYPE_CHECKING:
    from opencqrs_py.assembly.application import Application
    from opencqrs_py.assembly.health import Health
    from opencqrs_py.assembly.status import GroupStatus


_WELL = {"running": "green", "stopped": "default", "unknown": "default", "idle": "green", "paused": "default"}


@click.command("health")
@click.argument("names", metavar="[GROUP]...", nargs=-1)
@project_options
@format_option
def health_command(options: ProjectOptions, names: tuple[str, ...], *, as_json: bool) -> int:
    """Show whether all is well with groups and jobs, from any process.

    The exit code is 0 if it is and 1 if it is not. A group that is stopped on purpose is healthy, and so is one with
    events in its inbox.
    """
    health = health_of(options.opened(), names)
    if as_json:
        print_json(health.as_json())
    else:
        _print_groups(health)
        _print_jobs(health)
        print_unhealthy(health)
    return 0 if health.healthy else 1


def health_of(application: Application, names: Sequence[str] = ()) -> Health:
    """Return whether all is well with groups and jobs.

    Raises:
        AssemblyError: OCQ-508, if the project has neither: the folder is probably wrong.
    """
    health = application.health(names)
    if not (health.groups or health.jobs or health.unavailable):
        fix = 'name the folder of the project with --project, or decorate a function with @event_handling("…") there'
        raise application.without_handlers("there is nothing to check: no handlers were found", fix)
    return health


def mention_no_handlers(application: Application, statuses: Sequence[GroupStatus]) -> None:
    """Print a line if the project has neither groups nor jobs: the folder is probably wrong."""
    if not statuses and not application.job_health():
        print_line(f"no handlers were found in {application.project}", "yellow")


def print_unhealthy(health: Health) -> None:
    """Print a line for each unhealthy thing."""
    for line in health.lines():
        stdout().print(clean(line), style="red", markup=False, soft_wrap=True)


def _print_groups(health: Health) -> None:
    from rich.table import Table  # noqa: PLC0415 only when a table is printed

    if not health.groups:
        return
    table = Table(box=None, pad_edge=False)
    for title in ("group", "state", "partitions", "lag"):
        table.add_column(title, justify="right" if title in {"partitions", "lag"} else "left")
    for group in health.groups:
        state = f"[{_WELL.get(group.state, 'red')}]{group.state}[/]"
        table.add_row(cell(group.group), state, f"{group.partitions:,}", f"{group.lag:,}")
    stdout().print(table)


def _print_jobs(health: Health) -> None:
    from rich.table import Table  # noqa: PLC0415 only when a table is printed

    if not health.jobs:
        return
    table = Table(box=None, pad_edge=False)
    for title in ("job", "state"):
        table.add_column(title)
    for job in health.jobs:
        table.add_row(cell(job.job), f"[{_WELL.get(job.state, 'red')}]{job.state}[/]")
    stdout().print(table)

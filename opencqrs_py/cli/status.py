"""``opencqrs status``: how far every partition is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from opencqrs_py.assembly.rows import group_rows
from opencqrs_py.cli.health import health_of, mention_no_handlers
from opencqrs_py.cli.options import ProjectOptions, format_option, project_options
from opencqrs_py.cli.output import clean, print_json, print_line, stdout
from opencqrs_py.cli.tables import print_groups
from opencqrs_py.cli.watching import DEFAULT_SECONDS, watch
from opencqrs_py.model.masking import scrubbed

if TYPE_CHECKING:
    from opencqrs_py.assembly.application import Application


_SHOWN = ("failed", "overdue")  # of jobs: opencqrs health says more


@click.command("status")
@project_options
@format_option
@click.option(
    "--watch",
    "every",
    type=click.FloatRange(min=0.1),
    is_flag=False,
    flag_value=DEFAULT_SECONDS,
    metavar="[SECONDS]",
    help="Refresh it until Ctrl-C, by default every 2 seconds.",
)
@click.option(
    "--details", is_flag=True, help="Also show where groups began, since when handlers have changed, and rebuilds."
)
@click.option("--check", is_flag=True, help="Exit with 1 unless all is well, as opencqrs health does.")
def status_command(options: ProjectOptions, every: float | None, *, details: bool, check: bool, as_json: bool) -> int:
    """Show how far every partition is, from any process."""
    if every is not None and check:
        raise click.UsageError("--watch and --check exclude each other: one never ends, the other is its exit code")
    application = options.opened()
    if every is not None and details:
        raise click.UsageError("--watch shows no details: run opencqrs status --details once")
    if every is not None:
        watch(application, every, as_json=as_json)
    if check:
        return _checked(application, details=details, as_json=as_json)
    statuses = application.status()
    mention_no_handlers(application, statuses)
    if as_json:
        print_json(group_rows(statuses))
    else:
        print_groups(statuses, {}, details=details)
        _print_jobs(application)
    return 0


def _print_jobs(application: Application) -> None:
    """Print a line for each job that has failed or is overdue."""
    for job in application.job_health():
        for finding in job.findings:
            if finding.problem in _SHOWN:
                stdout().print(clean(scrubbed(finding.line)), style="red", markup=False, soft_wrap=True)


def _checked(application: Application, *, details: bool, as_json: bool) -> int:
    """Show how far the partitions are and what is unhealthy, where it does not disturb a program that reads JSON."""
    health = health_of(application)
    statuses = [] if health.unavailable else application.status()
    if as_json:
        print_json(group_rows(statuses))
    elif statuses:
        print_groups(statuses, {}, details=details)
    for line in health.lines():
        print_line(line, "red")
    return 0 if health.healthy else 1

"""``opencqrs run``: starts the processors and stays with them."""

from __future__ import annotations

import sys

import click

from opencqrs_py.cli.beginning import used
from opencqrs_py.cli.monitor import monitor_for
from opencqrs_py.cli.options import ProjectOptions, format_option, project_options
from opencqrs_py.cli.output import print_json, print_line, stderr
from opencqrs_py.cli.status import group_rows, print_groups

__all__ = ["CAUGHT_UP_WITH_SKIPS", "run_command"]

CAUGHT_UP_WITH_SKIPS = 3  # exit code: done, but not every event was handled


@click.command("run")
@project_options
@format_option
@click.option("--group", "groups", multiple=True, metavar="G", help="Run this group only; may be repeated.")
@click.option("--until-caught-up", is_flag=True, help="End when every partition has reached the newest event.")
@click.option("--verbose", is_flag=True, help="Show Spark's own log.")
def run_command(
    options: ProjectOptions, groups: tuple[str, ...], *, until_caught_up: bool, verbose: bool, as_json: bool
) -> int:
    """Run the processors of a project.

    Handlers are found in the project's modules, settings in its application.yaml. Without --until-caught-up it goes on
    until Ctrl-C, which stops cleanly.
    """
    application = options.application()
    monitor = monitor_for(application, terminal=stderr().is_terminal and not as_json)
    if not as_json:
        print_line(used(application.configuration, application.project))
        monitor.announce(application.missing_files())
    interrupted = False
    failed = False
    skipped = 0
    try:
        with monitor:
            result = application.run(groups, monitor, until_caught_up=until_caught_up, verbose=verbose)
            failed, skipped = result.failed, result.skipped
    except KeyboardInterrupt:
        interrupted = True
    statuses = application.status(groups)
    if as_json:
        print_json({"interrupted": interrupted, "failed": failed, "skipped": skipped, "groups": group_rows(statuses)})
    else:
        if interrupted:
            stderr().print("stopped; each partition goes on from here:")
        print_groups(statuses, {} if interrupted else monitor.handled)  # what was cut off is not counted
        if skipped:
            what = f"{skipped} event{'s' if skipped > 1 else ''} skipped in this run: opencqrs events skipped"
            stderr().print(what, style="yellow", markup=False, soft_wrap=True)
    sys.stdout.flush()
    if interrupted:
        return 130
    return 1 if failed else CAUGHT_UP_WITH_SKIPS if until_caught_up and skipped else 0

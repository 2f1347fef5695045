"""``opencqrs run``: starts the processors and runs until they end."""

from __future__ import annotations

import gc
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from opencqrs_py.assembly.rows import group_rows
from opencqrs_py.assembly.status import GroupStatus, RunResult
from opencqrs_py.cli.monitor import how_far, monitor_for
from opencqrs_py.cli.options import ProjectOptions, format_option, project_options
from opencqrs_py.cli.output import messages, print_json, print_line, stderr
from opencqrs_py.cli.records import print_only_warnings
from opencqrs_py.cli.signals import INTERRUPTED, signals
from opencqrs_py.cli.streams import results
from opencqrs_py.cli.tables import print_groups
from opencqrs_py.errors import ExplainedError
from opencqrs_py.model.naming import counted, listed
from opencqrs_py.processing.exceptions import one_line

if TYPE_CHECKING:
    from opencqrs_py.assembly.application import Application

_log = logging.getLogger("opencqrs.command")
CAUGHT_UP_WITH_SKIPS = 3  # exit code: done, but not every event was handled


@click.command("run")
@project_options
@format_option
@click.option("--group", "groups", multiple=True, metavar="G", help="Run this group only; may be repeated.")
@click.option("--until-caught-up", is_flag=True, help="End when every partition has reached the newest event.")
@click.option(
    "--jobs/--no-jobs",
    default=None,
    help="Whether jobs are run; by default they are, unless --group or --until-caught-up is given.",
)
@click.option("--verbose", is_flag=True, help="Show Spark's own log.")
def run_command(
    options: ProjectOptions,
    groups: tuple[str, ...],
    *,
    until_caught_up: bool,
    jobs: bool | None,
    verbose: bool,
    as_json: bool,
) -> int:
    """Run the processors of a project, and its jobs.

    Handlers are found in the project's modules, settings in its application.yaml. Without --until-caught-up it
    continues until Ctrl-C, which stops cleanly.
    """
    application = options.application(logs=True)
    people = not as_json and messages.line_of is None
    monitor = monitor_for(application, terminal=stderr().is_terminal and people, ends=until_caught_up)
    if as_json:
        print_only_warnings()
    else:
        application.report_new_databases()
    signals.held = monitor.held
    gc.freeze()  # this process does nothing else: the collector need not scan what is loaded
    with application.keeping_resources():  # what is shown at the end needs the project's parts again
        try:
            with monitor:
                result = application.run(groups, monitor, until_caught_up=until_caught_up, verbose=verbose, jobs=jobs)
        except KeyboardInterrupt:
            if not monitor.started:
                raise
            return _interrupted(application, groups, cut_off=sorted(monitor.held), as_json=as_json, typed=options.typed)
        statuses = [_with_errors(status, result) for status in application.status(groups)]
    if as_json:
        print_json(_as_json(statuses, result))
    else:
        _show(statuses, monitor.handled)
        _tell_unhandled(result, options.typed)
    results().flush()
    unhandled = result.skipped or result.expired or result.parked
    return 1 if result.failed else CAUGHT_UP_WITH_SKIPS if until_caught_up and unhandled else 0


def _with_errors(status: GroupStatus, result: RunResult) -> GroupStatus:
    """Return a status with the errors that this run has ended with, and that are not stored."""
    errors = {each.partition: each.error for each in result.partitions if each.group == status.group}
    partitions = (replace(each, error=each.error or errors.get(each.partition, "")) for each in status.partitions)
    return replace(status, partitions=tuple(partitions))


def _tell_unhandled(result: RunResult, project: str) -> None:
    """Print how many events this run has skipped, have expired in it and wait, and how many runs of jobs have failed.

    Each with the command that lists them, except expired events, which are not recorded.
    """
    if result.skipped:
        events = counted(result.skipped, "event")
        print_line(f"{events} skipped in this run: opencqrs events skipped{project}", "yellow")
    if result.expired:
        events = counted(result.expired, "event expired in this run, and was", "events expired in this run, and were")
        print_line(f"{events} removed from the inbox unhandled (schedule.expires-after)", "yellow")
    if result.parked:
        events = counted(result.parked, "event waits", "events wait")
        print_line(f"{events} in the inbox: opencqrs inbox list{project}", "yellow")
    if result.failed_runs:
        runs = counted(result.failed_runs, "run of a job", "runs of jobs")
        print_line(f"{runs} failed: opencqrs jobs runs{project}", "red")


def _interrupted(
    application: Application,
    groups: tuple[str, ...],
    *,
    cut_off: Sequence[str] = (),
    as_json: bool,
    typed: str = "",
) -> int:
    """Print where each partition continues, or why that is unknown.

    Then what was skipped or failed, and which partitions had not stopped.
    """
    result = application.last_result or RunResult((), {}, stopped=True)
    statuses: list[GroupStatus] = []
    said = "stopped; each partition continues from here:"
    try:
        statuses = application.status(groups)
    except Exception as error:
        reason = f"[{error.code}] {error.what}, {error.where}" if isinstance(error, ExplainedError) else one_line(error)
        said = f"stopped; where each partition continues cannot be shown: {reason}"
    result = replace(
        result, parked=sum(count for one in statuses for each in one.partitions for _, count in each.parked)
    )
    if as_json:
        print_json(_as_json(statuses, result, interrupted=True))
        results().flush()
    if not statuses or not as_json:
        print_line(said, "default")
    signals.said = True  # this line is the only one, also if the time runs out while the table is printed
    if statuses and not as_json:
        _show(statuses, {})  # what was cut off is not counted
    if not as_json:
        _tell_unhandled(result, typed)
    if cut_off:
        print_line(f"{listed(cut_off)} had not stopped; events that were not committed are handled again", "yellow")
    results().flush()
    return INTERRUPTED


def _show(statuses: list[GroupStatus], handled: Mapping[tuple[str, str], int]) -> None:
    """Show where the partitions are: as a table; or as a record each, if messages are records."""
    if not statuses:  # the project has jobs only
        return
    if messages.line_of is None:
        print_groups(statuses, handled)
        return
    for status in statuses:
        for each in status.partitions:
            lag = status.lag_at(each.position)
            what = f"{how_far(each.position, status.head)}, {each.state.value}"
            where = {"group": status.group, "partition": str(each.partition), "position": each.position, "lag": lag}
            _log.info("[%s %s] %s", status.group, each.partition, what, extra=where)


def _as_json(statuses: list[GroupStatus], result: RunResult, *, interrupted: bool = False) -> dict[str, Any]:
    head = {"interrupted": interrupted, "failed": result.failed, "skipped": result.skipped, "expired": result.expired}
    return {**head, "parked": result.parked, "failed_runs": result.failed_runs, "groups": group_rows(statuses)}

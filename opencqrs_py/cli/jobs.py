"""``opencqrs jobs``: lists jobs and their runs, and runs, pauses and cancels them."""

from __future__ import annotations

import shlex
from datetime import datetime
from textwrap import indent
from typing import TYPE_CHECKING, Any

import click

from opencqrs_py.assembly.jobs.rows import iso, job_row, paused_row, run_row, run_rows, seconds_of
from opencqrs_py.cli.options import Integer, ProjectOptions, Seconds, format_option, project_options
from opencqrs_py.cli.output import cell, clean, print_json, print_line, print_result, stdout
from opencqrs_py.cli.records import print_only_warnings
from opencqrs_py.model.masking import scrubbed
from opencqrs_py.model.naming import counted, listed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

    from opencqrs_py.assembly.jobs.jobs import JobStatus
    from opencqrs_py.jobs.runs import JobRun
    from opencqrs_py.jobs.upcoming import Upcoming


FAILED, SKIPPED = 1, 3  # exit codes: the run failed or was cancelled; it did not take place
_COLOURS = {"failed": "red", "retrying": "yellow", "cancelled": "yellow", "skipped": "yellow", "succeeded": "green"}


@click.group("jobs")
def jobs_command() -> None:
    """Show jobs and their runs, and run, pause or cancel them.

    Jobs run in the processes of opencqrs run, whichever begins a run first.
    """


@jobs_command.command("list")
@project_options
@format_option
def list_command(options: ProjectOptions, *, as_json: bool) -> None:
    """List the jobs: when each runs next, and how its last run has ended."""
    statuses = options.opened().jobs.statuses()
    if as_json:
        print_json([job_row(status) for status in statuses])
    elif statuses:
        _print_statuses(statuses, options.typed)
    else:
        print_line('the project has no jobs: put @job("…") above a function', "default")


@jobs_command.command("runs")
@click.argument("name", required=False)
@project_options
@click.option("--limit", type=Integer(min=1), default=20, show_default=True, help="Most runs listed.")
@format_option
def runs_command(options: ProjectOptions, name: str | None, limit: int, *, as_json: bool) -> None:
    """List the runs of the job NAME, or of all jobs, the newest first."""
    jobs = options.recorded().jobs
    runs = jobs.runs(name, limit)
    if as_json:
        print_json(run_rows(runs, jobs.now))
    elif runs:
        _print_runs(runs)
    else:
        print_line("there are no runs", "default")


@jobs_command.command("show")
@click.argument("run")
@project_options
@format_option
def show_command(options: ProjectOptions, run: str, *, as_json: bool) -> None:
    """Show one RUN: what it was for, what is done, and why it failed."""
    jobs = options.opened().jobs
    row = run_row(found := jobs.find(run), jobs.now)
    if as_json:
        print_json(row)
    else:
        _print_run(found, row, options.typed)


@jobs_command.command("run")
@click.argument("name")
@project_options
@click.option("--id", "ids", multiple=True, metavar="ID", help="Run it for this id only; may be repeated.")
@click.option("--here", is_flag=True, help="Run it in this process, for cron or a Kubernetes CronJob.")
@click.option("--wait", is_flag=True, help="Wait until the run has ended.")
@click.option("--timeout", type=Seconds(), default=None, help="With --wait or --here: longest wait.")
@format_option
def run_command(options: ProjectOptions, name: str, ids: tuple[str, ...], timeout: float | None, **flags: bool) -> int:
    """Request a run of the job NAME, for everything or for some ids.

    A process of opencqrs run begins it, unless --here is given. With --wait or --here the exit code is 0 if it has
    succeeded, 1 if it has failed or was cancelled, 3 if it was skipped as another run has not ended, 4 on a timeout.
    """
    if timeout is not None and not (flags["wait"] or flags["here"]):
        raise click.UsageError("--timeout belongs to --wait or --here")
    if "" in ids:
        raise click.UsageError("an --id is empty: is its variable set?")
    application = options.opened()
    if flags["as_json"] or not (flags["here"] or flags["wait"]):  # the request is printed as the result
        print_only_warnings()
    jobs = application.jobs
    if flags["here"]:
        ended = application.run_job(name, ids or None, timeout)
    else:
        asked = jobs.request(name, ids or None)
        if jobs.has_no_runner(name):
            text = (
                f"no process runs jobs now: the run begins when one does (opencqrs run{options.typed}), or use --here"
            )
            print_line(text, "yellow")
        if not flags["wait"]:
            if flags["as_json"]:
                print_json(run_row(asked, jobs.now))
            else:
                _print(f"run {asked.id} was requested: opencqrs jobs show {asked.id}{options.typed}")
            return 0
        ended = jobs.wait(asked.id, timeout)
    row = run_row(ended, jobs.now)
    if flags["as_json"]:
        print_json(row)
    else:
        _print_run(ended, row, options.typed, logged=flags["here"])
    return _exit_code(ended)


@jobs_command.command("pause")
@click.argument("name")
@project_options
@click.option("--reason", default="", metavar="TEXT", help="Why; it is shown until the job is resumed.")
@format_option
def pause_command(options: ProjectOptions, name: str, reason: str, *, as_json: bool) -> None:
    """Keep triggers from starting the job NAME until it is resumed. Ticks that come meanwhile are skipped."""
    record = options.opened().jobs.pause(name, reason)
    if as_json:
        print_json({"job": record.name, "paused": paused_row(record)})


@jobs_command.command("resume")
@click.argument("name")
@project_options
@format_option
def resume_command(options: ProjectOptions, name: str, *, as_json: bool) -> None:
    """Let triggers start runs of the job NAME again."""
    record = options.opened().jobs.resume(name)
    if as_json:
        print_json({"job": record.name, "paused": paused_row(record)})


@jobs_command.command("cancel")
@click.argument("name")
@project_options
@click.option("--run", "run", metavar="RUN", help="Only this run.")
@click.option("--reason", default="", metavar="TEXT", help="Why; it is recorded with your user name.")
@format_option
def cancel_command(options: ProjectOptions, name: str, run: str | None, reason: str, *, as_json: bool) -> None:
    """Ask the runs of the job NAME to end. One that has begun ends after the page or item in hand."""
    jobs = options.opened().jobs
    ended = jobs.cancel(name, run, reason)
    if as_json:
        print_json(run_rows(ended, jobs.now))
        return
    for each in ended:
        _print(f"{each.id}: {'asked to end' if each.is_open else 'cancelled'}")
    if not ended:
        print_line(f"job {name} has no run that has not ended", "default")


@jobs_command.command("explain")
@click.argument("name")
@project_options
@click.option("--count", type=Integer(min=1, max=1_000), default=10, show_default=True, help="Number of instants.")
@format_option
def explain_command(options: ProjectOptions, name: str, count: int, *, as_json: bool) -> None:
    """Print when the job NAME runs next by its schedule.

    The times are in UTC and in its time zone.
    """
    instants = options.opened().jobs.explain(name, count)
    if as_json:
        print_json([{"at": iso(each.at), "local": each.local, "note": each.note or None} for each in instants])
        return
    for each in instants:
        _print(_instant_line(each))


def _exit_code(run: JobRun) -> int:
    match run.status.value:
        case "succeeded":
            return 0
        case "skipped" | "coalesced":
            return SKIPPED
        case _:
            return FAILED


def _print_statuses(statuses: Sequence[JobStatus], typed: str) -> None:
    from rich.table import Table  # noqa: PLC0415 only when a table is printed

    table = Table(box=None, pad_edge=False)
    for title in ("job", "schedule", "next", "state", "last run", "ended", "lag"):
        table.add_column(title)
    for status in statuses:
        record, last = status.record, status.last
        said = [status.rule.ticking.text, *(f"events {each}" for each in status.events[:1])]
        ended = "-" if last is None else _short(last.ended_at)
        lag = "-" if status.lag_seconds is None else f"{status.lag_seconds:.1f} s"
        outcome = "-" if last is None else f"[{_COLOURS.get(last.status.value, 'default')}]{last.status.value}[/]"
        following = _short(record.next_tick) if record is not None else "-"
        schedule = ", ".join(filter(None, said)) or "on demand"
        table.add_row(cell(status.job.name), cell(schedule), following, _state(status), outcome, ended, lag)
    stdout().print(table)
    for status in statuses:
        waiting = [run for run in status.open if run.awaits_database(status.now)]
        for run in [*waiting, *filter(None, [status.outcome])]:
            if run.error:
                line = f"{status.job.name}: {run.error.partition(chr(10))[0]}"
                stdout().print(clean(scrubbed(line)), style="red", markup=False, soft_wrap=True)
    if not any(status.nodes for status in statuses):
        print_line(f"no process runs jobs: opencqrs run{typed}", "yellow")


def _state(status: JobStatus) -> str | Text:
    if status.record is not None and status.record.is_paused:
        return cell(scrubbed(status.record.pause_text))
    active = [run for run in status.open if run.is_active]
    if not active:
        return f"{counted(len(status.open), 'run waits', 'runs wait')}" if status.open else "idle"
    run = active[0]
    how_far = f" {run.done:,}" if run.done is not None else f" {run.position.items:,}" if run.position.items else ""
    of = f" of {run.total:,}" if how_far and run.total is not None else ""
    return f"{status.state_of(run)}{how_far}{of}"


def _print_runs(runs: Sequence[JobRun]) -> None:
    from rich.table import Table  # noqa: PLC0415 as above

    table = Table(box=None, pad_edge=False)
    for title in ("run", "trigger", "status", "began", "seconds", "items", "attempt", "why"):
        table.add_column(title, justify="right" if title in ("seconds", "items", "attempt") else "left")
    for run in runs:
        seconds = "-" if (took := seconds_of(run)) is None else f"{took:.1f}"
        why = run.reason or run.error.partition("\n")[0] or (f"see {run.into}" if run.into else "")
        status = f"[{_COLOURS.get(run.status.value, 'default')}]{run.status.value}[/]"
        items = f"{run.position.items:,}" if run.position.items else "-"
        began, attempt = _short(run.started_at), str(run.attempt or "-")
        table.add_row(
            cell(run.id),
            run.trigger.value,
            status,
            began,
            seconds,
            items,
            attempt,
            cell(scrubbed(why)),
        )
    stdout().print(table)


def _print_run(run: JobRun, row: dict[str, Any], typed: str, *, logged: bool = False) -> None:
    """Print a run; of an error that this process has logged, with the lines of the job, only the first line."""
    status = run.status.value + (f" on attempt {run.attempt}" if run.attempt > 1 else "")
    print_result(f"run {run.id} of job {run.job}: {status}", _COLOURS.get(run.status.value, "default"))
    ids = None if run.ids is None else listed(list(map(str, run.ids)))
    lines = [
        ("started by", run.trigger.value + (f", {run.actor}" if run.actor else "")),
        ("for", ids),
        ("tick", row["scheduled_at"]),
        ("began", row["started_at"]),
        ("ended", row["ended_at"]),
        ("due", row["due_at"]),
        ("items", _items(run)),
        ("failed", f"{len(run.position.failed):,} items" if run.position.failed else None),
        ("node", run.node or None),
        ("ticks", f"{run.ticks:,}" if run.ticks > 1 else None),
        ("reason", run.reason or None),
        ("in place", f"run {run.into}" if run.into else None),
    ]
    for name, value in lines:
        if value:
            _print(f"  {name + ':':<12}{value}")
    if run.error:
        first, _, lines_of_job = run.error.partition("\n")
        _print(f"  error:      {first}")
        if lines_of_job and not logged:
            _print(indent(lines_of_job, "    "))
    if run.status.value == "failed":
        ids_typed = "".join(f" --id {shlex.quote(str(each))}" for each in run.ids or ())
        _print(f"next: opencqrs jobs run {shlex.quote(run.job)}{ids_typed}{typed}")


def _items(run: JobRun) -> str | None:
    """Return how many items a run has handled; and whether named ids are not the job's."""
    done = run.position.items
    if run.ids is None or run.status.value != "succeeded" or done == len(run.ids):
        return f"{done:,}" if done else None
    return f"{done:,} of {len(run.ids):,}; the job does not apply to the others"


def _instant_line(instant: Upcoming) -> str:
    note = f"  {instant.note}" if instant.note else ""
    return f"{iso(instant.at)}  {instant.local}{note}"


def _print(text: str) -> None:
    print_result(scrubbed(text))


def _short(moment: datetime | None) -> str:
    return "-" if moment is None else moment.isoformat(sep=" ", timespec="seconds").replace("+00:00", "Z")

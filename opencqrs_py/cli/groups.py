"""``opencqrs groups``: controls groups, whichever process runs them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from opencqrs_py.cli.health import mention_no_handlers
from opencqrs_py.cli.options import Integer, ProjectOptions, Seconds, Text, format_option, project_options
from opencqrs_py.cli.output import amount, cell, continuation, print_json, print_line, stdout
from opencqrs_py.cli.rebuilds import rebuild_command
from opencqrs_py.cli.records import print_only_warnings

if TYPE_CHECKING:
    from opencqrs_py.assembly.application import Application
    from opencqrs_py.assembly.layouts import LayoutResult
    from opencqrs_py.assembly.resets import ResetResult
    from opencqrs_py.assembly.status import GroupStatus
    from opencqrs_py.model.partition import Partition


F = TypeVar("F", bound=Callable[..., Any])

_NO_PROCESS = "recorded; no process runs {}: it takes effect at the next opencqrs run"


def _waiting(command: F) -> F:
    """Add ``--no-wait`` and ``--timeout`` to a command."""
    no_wait = click.option("--no-wait", is_flag=True, help="Record the request, and do not wait until it is done.")
    timeout = click.option("--timeout", type=Seconds(), default="1m", show_default=True, help="Longest wait.")
    return no_wait(timeout(command))


@click.group("groups")
def groups_command() -> None:
    """Start, stop, reset and rebuild groups; change their partitions.

    It does not matter which process runs them. Requests are recorded in the progress database, and outlive all
    processes.
    """


groups_command.add_command(rebuild_command)


@groups_command.command("list")
@project_options
@format_option
def list_command(options: ProjectOptions, *, as_json: bool) -> None:
    """Show each group: whether it should run, and how far it is.

    Also, how many of its partitions have a process.
    """
    application = options.opened()
    statuses = application.status()
    mention_no_handlers(application, statuses)
    if as_json:
        print_json([_as_json(status) for status in statuses])
    else:
        _print_table(statuses)


@groups_command.command("start")
@click.argument("names", metavar="NAME[:RESIDUE/MODULUS]...", nargs=-1, required=True)
@project_options
@format_option
@_waiting
def start_command(
    options: ProjectOptions, names: tuple[str, ...], timeout: float, *, no_wait: bool, as_json: bool
) -> None:
    """Start groups, or single partitions."""
    running = options.opened().control.start(*names, timeout=None if no_wait else timeout)
    _tell(names, "started", running=running, no_wait=no_wait, as_json=as_json)


@groups_command.command("stop")
@click.argument("names", metavar="NAME[:RESIDUE/MODULUS]...", nargs=-1, required=True)
@project_options
@format_option
@_waiting
def stop_command(
    options: ProjectOptions, names: tuple[str, ...], timeout: float, *, no_wait: bool, as_json: bool
) -> None:
    """Stop groups, or single partitions.

    They stay so until they are started again.
    """
    running = options.opened().control.stop(*names, timeout=None if no_wait else timeout)
    _tell(names, "stopped", running=running, no_wait=no_wait, as_json=as_json)


@groups_command.command("restart")
@click.argument("names", metavar="NAME[:RESIDUE/MODULUS]...", nargs=-1, required=True)
@project_options
@format_option
@_waiting
def restart_command(
    options: ProjectOptions, names: tuple[str, ...], timeout: float, *, no_wait: bool, as_json: bool
) -> None:
    """Stop groups, or single partitions, and start them again."""
    running = options.opened().control.restart(*names, timeout=None if no_wait else timeout)
    _tell(names, "restarted", running=running, no_wait=no_wait, as_json=as_json)


@groups_command.command("release")
@click.argument("name", metavar="NAME:RESIDUE/MODULUS")
@click.option("--for", "seconds", type=Seconds(), default="1m", show_default=True, help="How long that node waits.")
@project_options
@format_option
@_waiting
def release_command(
    options: ProjectOptions, name: str, seconds: float, timeout: float, *, no_wait: bool, as_json: bool
) -> None:
    """Move a partition from its node to another one.

    The old node does not get it back for a while.
    """
    had = options.opened().control.release(name, seconds, timeout=None if no_wait else timeout)
    if as_json:
        print_json({"names": [name], "wanted": "released", "running": had, "done": had and not no_wait})
    elif had:
        print_line(f"{name}: {'to be taken' if no_wait else 'taken'} over by another node", "default")
    else:
        print_line(f"{name} is not taken by any node: there is nothing to release", "default")


@groups_command.command("reset")
@click.argument("name", metavar="NAME")
@click.option("--to", type=click.Choice(["tail", "head"]), help="Before the oldest event, or after the newest.")
@click.option("--to-position", "position", type=Integer(min=0), help="After this position.")
@click.option("--to-time", "time", metavar="TIME", help="With the first event of this ISO 8601 time or a later one.")
@click.option("--to-event", "event", type=Text(), metavar="ID", help="With the event of this id.")
@click.option("--source", type=Text(), default="", help="The source of that event, if several have one of the id.")
@click.option("--reason", default="", help="Why, for opencqrs status and @on_reset functions.")
@click.option("--context", metavar="JSON", help="JSON for @on_reset functions.")
@click.option(
    "--timeout", type=Seconds(), default="1m", show_default=True, help="Longest wait for nodes to release partitions."
)
@click.option("--dry-run", is_flag=True, help="Print what would happen, and change nothing.")
@project_options
@format_option
def reset_command(  # noqa: PLR0913 an argument an option
    options: ProjectOptions,
    name: str,
    *,
    to: str | None,
    position: int | None,
    time: str | None,
    event: str | None,
    source: str,
    reason: str,
    context: str | None,
    timeout: float,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Move a group to another position.

    It then handles events again, or leaves some out. Its @on_reset functions run in the same transaction: the place to
    empty the read model. Nodes that run the group release it first, and continue from the new position.
    """
    from opencqrs_py.assembly.resets import ResetTarget  # noqa: PLC0415 only for this command

    target = ResetTarget(to, position, None if time is None else _time(time), event, source)
    given = None if context is None else _parsed(context)
    application = _open_quietly(options)
    result = application.resets.reset(name, target, reason=reason, context=given, timeout=timeout, dry_run=dry_run)
    if as_json:
        print_json(_reset_as_json(result))
    else:
        _print_reset(result, stopped=application.control.is_stopped(result.reset.group))


def _open_quietly(options: ProjectOptions) -> Application:
    print_only_warnings()  # what is logged of a change is printed as the result
    return options.opened()


def _changing(command: F) -> F:
    """Add ``--timeout`` and ``--dry-run`` to a command that changes partitions."""
    dry_run = click.option("--dry-run", is_flag=True, help="Print what would happen, and change nothing.")
    what = "Longest wait for nodes to release partitions."
    return dry_run(click.option("--timeout", type=Seconds(), default="1m", show_default=True, help=what)(command))


@groups_command.command("split")
@click.argument("name", metavar="NAME:RESIDUE/MODULUS")
@_changing
@project_options
@format_option
def split_command(options: ProjectOptions, name: str, *, timeout: float, dry_run: bool, as_json: bool) -> None:
    """Make two partitions of one.

    Two processors then share its sequences.
    """
    application = _open_quietly(options)
    _tell_layout(application, application.layouts.split(name, timeout=timeout, dry_run=dry_run), as_json=as_json)


@groups_command.command("merge")
@click.argument("name", metavar="NAME:RESIDUE/MODULUS")
@_changing
@project_options
@format_option
def merge_command(options: ProjectOptions, name: str, *, timeout: float, dry_run: bool, as_json: bool) -> None:
    """Merge a partition with the other half of what it was split from."""
    application = _open_quietly(options)
    _tell_layout(application, application.layouts.merge(name, timeout=timeout, dry_run=dry_run), as_json=as_json)


@groups_command.command("partitions")
@click.argument("name", metavar="NAME")
@click.argument("count", metavar="N", type=Integer(min=1))
@_changing
@project_options
@format_option
def partitions_command(
    options: ProjectOptions, name: str, *, count: int, timeout: float, dry_run: bool, as_json: bool
) -> None:
    """Give a group N partitions of the same size.

    It does not matter how many it had before. Each continues where its sequences were: no event is handled twice, and
    none is left out. That applies until life-cycle.partitions is changed.
    """
    application = _open_quietly(options)
    result = application.layouts.repartition(name, count, timeout=timeout, dry_run=dry_run)
    _tell_layout(application, result, as_json=as_json)


def _tell_layout(application: Application, result: LayoutResult, *, as_json: bool) -> None:
    if as_json:
        print_json(_layout_as_json(result))
    else:
        control = application.control
        stopped = control.is_stopped(result.group)
        partitions = () if stopped or not control.is_stopped(result.group, result.positions) else (*result.positions,)
        _print_layout(result, stopped=stopped, partitions=partitions)


def _layout_as_json(result: LayoutResult) -> dict[str, Any]:
    return {
        "group": result.group,
        "before": [str(partition) for partition in result.before],
        "partitions": [str(partition) for partition in result.after],
        "new": {
            str(partition): {"position": position, "ahead_until": result.ahead.get(partition)}
            for partition, position in result.positions.items()
        },
        "running": result.running,
        "done": not result.dry_run,
    }


def _print_layout(result: LayoutResult, *, stopped: bool, partitions: Sequence[Partition]) -> None:
    from opencqrs_py.model.naming import counted  # noqa: PLC0415 only for these commands

    name = result.group
    if not result.positions:
        print_line(f"{name} has {counted(len(result.after), 'partition')} already: nothing was changed", "default")
        return
    would = "would have" if result.dry_run else "has"
    now = f"{name} {would} {counted(len(result.after), 'partition')}"
    print_line(f"{now} ({len(result.before)} before), {len(result.positions)} of them new:", "default")
    for partition, position in result.positions.items():
        until = result.ahead.get(partition)
        more = f"; up to {until:,} without what its sequences have handled before" if until is not None else ""
        print_line(f"  {name}:{partition} continues after {position:,}{more}", "default")
    if not result.dry_run:
        stopped = stopped or bool(partitions)
        for line in continuation(name, stopped=stopped, running=result.running, partitions=partitions):
            print_line(line, "default")


def _time(text: str) -> datetime:
    from opencqrs_py.model.times import check_time, moment_of  # noqa: PLC0415 only for this command

    try:
        check_time(text)
        return moment_of(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--to-time'") from None


def _parsed(text: str) -> object:
    try:
        found: object = json.loads(text)
    except ValueError as error:
        what = f"it is not JSON ({error}); a text needs its quotes, too: --context '\"2024\"'"
        raise click.BadParameter(what, param_hint="'--context'") from None
    return found


def _reset_as_json(result: ResetResult) -> dict[str, Any]:
    reset = result.reset
    return {
        "group": reset.group,
        "position": reset.position,
        "head": result.head,
        "until": {str(partition): replay and replay.until for partition, replay in sorted(result.replays.items())},
        "omitted_after": result.omitted_after,
        "reason": reset.reason,
        "context": reset.context,
        "running": result.running,
        "done": not result.dry_run,
    }


def _print_reset(result: ResetResult, *, stopped: bool) -> None:
    reset, until = result.reset, result.until
    done = "would be reset" if result.dry_run else "was reset"
    again = f"events up to position {until:,} are handled again" if until else "no event is handled again"
    ahead = "" if until else f"; it continues with the events after {reset.position:,}"
    print_line(f"{reset.group} {done} to position {reset.position:,} of {result.head:,}: {again}{ahead}", "default")
    if result.omitted_after is not None:
        which = f"events after {result.omitted_after:,}, up to {reset.position:,}, that it still had to handle"
        print_line(f"{reset.group}: {which} {'would be' if result.dry_run else 'are'} left out", "default")
    if not result.dry_run:
        for line in continuation(reset.group, stopped=stopped, running=result.running):
            print_line(line, "default")


def _tell(names: Sequence[str], done: str, *, running: bool, no_wait: bool, as_json: bool) -> None:
    shown = ", ".join(names)
    if as_json:
        print_json({"names": names, "wanted": done, "running": running, "done": running and not no_wait})
    elif not running:
        print_line(f"{shown}: {_NO_PROCESS.format('it' if len(names) == 1 else 'them')}", "default")
    else:
        print_line(f"{shown}: to be {done}" if no_wait else f"{shown}: {done}", "default")


def _as_json(status: GroupStatus) -> dict[str, Any]:
    return {
        "group": status.group,
        "wanted": _wanted(status),
        "partitions": len(status.partitions),
        "owners": dict(sorted(Counter(p.owner for p in status.partitions if p.owner).items())),
        "states": dict(sorted(Counter(p.state.value for p in status.partitions).items())),
        "head": status.head,
        "lag": status.lag,
    }


def _wanted(status: GroupStatus) -> str:
    """Return what is requested for a group; ``partly`` if partitions differ."""
    found = {p.wanted for p in status.partitions} or {"started"}
    return found.pop() if len(found) == 1 else "partly"


def _print_table(statuses: Sequence[GroupStatus]) -> None:
    from rich.table import Table  # noqa: PLC0415 only when a table is printed

    table = Table(box=None, pad_edge=False)
    for title in ("group", "wanted", "partitions", "nodes", "states", "lag"):
        table.add_column(title, justify="right" if title == "lag" else "left")
    for status in statuses:
        row = _as_json(status)
        nodes = ", ".join(f"{name} ({count})" for name, count in row["owners"].items())
        states = ", ".join(f"{count} {state}" for state, count in row["states"].items())
        table.add_row(
            cell(status.group),
            row["wanted"],
            str(row["partitions"]),
            cell(nodes or "-"),
            states or "never run",
            amount(status.lag),
        )
    stdout().print(table)

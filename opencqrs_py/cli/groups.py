"""``opencqrs groups``: what is wanted of groups, whichever process runs them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from opencqrs_py.cli.options import ProjectOptions, format_option, project_options
from opencqrs_py.cli.output import clean, print_json, print_line, stdout

if TYPE_CHECKING:
    from opencqrs_py.assembly.status import GroupStatus

__all__ = ["groups_command"]

F = TypeVar("F", bound=Callable[..., Any])

_NOBODY = "recorded; no process runs {}: it takes effect at the next opencqrs run"


class Seconds(click.ParamType[Any]):
    """A duration as in settings: ``30s``, ``1m30s``, ``PT10S``."""

    name = "duration"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds."""
        from opencqrs_py.config.value_types import parse_duration  # noqa: PLC0415 only for these options

        try:
            return value if isinstance(value, float) else parse_duration(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _waiting(command: F) -> F:
    """Add ``--no-wait`` and ``--timeout`` to a command."""
    no_wait = click.option("--no-wait", is_flag=True, help="Record what is wanted, and do not wait until it is so.")
    timeout = click.option("--timeout", type=Seconds(), default="1m", show_default=True, help="Longest wait.")
    return no_wait(timeout(command))


@click.group("groups")
def groups_command() -> None:
    """Start, stop and move groups, whichever process runs them.

    What is wanted is recorded in the database of the progress, and outlives all processes.
    """


@groups_command.command("list")
@project_options
@format_option
def list_command(options: ProjectOptions, *, as_json: bool) -> None:
    """Show each group: whether it is wanted, how many of its partitions a process has, and how far it is."""
    statuses = options.application().status()
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
    """Want groups, or single partitions, started."""
    running = options.application().control.start(*names, timeout=None if no_wait else timeout)
    _tell(names, "started", running=running, no_wait=no_wait, as_json=as_json)


@groups_command.command("stop")
@click.argument("names", metavar="NAME[:RESIDUE/MODULUS]...", nargs=-1, required=True)
@project_options
@format_option
@_waiting
def stop_command(
    options: ProjectOptions, names: tuple[str, ...], timeout: float, *, no_wait: bool, as_json: bool
) -> None:
    """Want groups, or single partitions, stopped, until they are started again."""
    running = options.application().control.stop(*names, timeout=None if no_wait else timeout)
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
    running = options.application().control.restart(*names, timeout=None if no_wait else timeout)
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
    """Have the node that has a partition give it to another one, and not get it back for a while."""
    had = options.application().control.release(name, seconds, timeout=None if no_wait else timeout)
    if as_json:
        print_json({"names": [name], "wanted": "released", "running": had, "done": had and not no_wait})
    elif had:
        print_line(f"{name}: {'to be taken' if no_wait else 'taken'} over by another node", "default")
    else:
        print_line(f"{name} is with no node: there is nothing to release", "default")


def _tell(names: Sequence[str], done: str, *, running: bool, no_wait: bool, as_json: bool) -> None:
    shown = ", ".join(names)
    if as_json:
        print_json({"names": names, "wanted": done, "running": running, "done": running and not no_wait})
    elif not running:
        print_line(f"{shown}: {_NOBODY.format('it' if len(names) == 1 else 'them')}", "default")
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
    """Return what is wanted of a group; ``partly`` if partitions differ."""
    found = {p.wanted for p in status.partitions} or {"started"}
    return found.pop() if len(found) == 1 else "partly"


def _print_table(statuses: Sequence[GroupStatus]) -> None:
    from rich.table import Table  # noqa: PLC0415 only when a table is printed

    table = Table(box=None, pad_edge=False)
    for title in ("group", "wanted", "partitions", "nodes", "states", "lag"):
        table.add_column(title, justify="right" if title == "lag" else "left")
    for status in statuses:
        row = _as_json(status)
        nodes = ", ".join(f"{clean(name)} ({count})" for name, count in row["owners"].items())
        states = ", ".join(f"{count} {state}" for state, count in row["states"].items())
        table.add_row(
            clean(status.group),
            row["wanted"],
            str(row["partitions"]),
            nodes or "-",
            states or "never run",
            f"{status.lag:,}",
        )
    stdout().print(table)

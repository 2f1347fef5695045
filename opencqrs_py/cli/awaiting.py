"""``opencqrs await``: waits until the read models of groups contain an event."""

from __future__ import annotations

import time

import click

from opencqrs_py.cli.options import Integer, ProjectOptions, Seconds, Text, format_option, project_options
from opencqrs_py.cli.output import print_json, print_line


@click.command("await")
@click.argument("names", metavar="GROUP...", nargs=-1, required=True)
@project_options
@click.option("--position", type=Integer(min=0), help="Wait for the event at this position, which may not exist yet.")
@click.option("--event", "event_id", type=Text(), metavar="ID", help="Wait for the event with this id.")
@click.option(
    "--source", type=Text(), default="", help="Source of the event, if events of several sources have its id."
)
@click.option("--head", is_flag=True, help="Wait for the event that is the newest one now. The default.")
@click.option("--timeout", type=Seconds(), default="1m", show_default=True, help="Longest wait.")
@format_option
def await_command(
    options: ProjectOptions,
    names: tuple[str, ...],
    position: int | None,
    event_id: str | None,
    source: str,
    timeout: float,
    *,
    head: bool,
    as_json: bool,
) -> None:
    """Wait until groups have stored their progress up to an event.

    It does not matter which process runs them. The exit code is 0 then, 4 when the time is over, and 1 at once if a
    group cannot reach it: a partition has failed or is stopped, or no process runs it.
    """
    if (position is not None) + (event_id is not None) + head > 1:
        raise click.UsageError("--position, --event and --head exclude each other")
    if source and event_id is None:
        raise click.UsageError("--source belongs to --event")
    began = time.monotonic()
    reached = options.opened().await_position(
        names, event_id if event_id is not None else position, timeout, source=source
    )
    if as_json:
        print_json({"groups": list(names), "position": reached, "seconds": round(time.monotonic() - began, 3)})
    else:
        print_line(f"{', '.join(names)}: done up to position {reached:,}", "default")

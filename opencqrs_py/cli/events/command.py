"""The group of commands ``opencqrs events``."""

from __future__ import annotations

import click

from opencqrs_py.cli.events.appending import append_command
from opencqrs_py.cli.events.exporting import export_command
from opencqrs_py.cli.events.importing import import_command
from opencqrs_py.cli.events.listing import list_command
from opencqrs_py.cli.events.skipped import skipped_command
from opencqrs_py.cli.events.statistics import stats_command
from opencqrs_py.cli.events.tailing import tail_command

__all__ = ["events_command"]


@click.group("events")
def events_command() -> None:
    """Append, import, export, list, follow and count events, and list those that were skipped."""


_COMMANDS = (
    append_command,
    export_command,
    import_command,
    list_command,
    skipped_command,
    stats_command,
    tail_command,
)
for _command in _COMMANDS:
    events_command.add_command(_command)

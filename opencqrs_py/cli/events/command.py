"""The group of commands ``opencqrs events``."""

from __future__ import annotations

import click

from opencqrs_py.cli.events.appending import append_command
from opencqrs_py.cli.events.exporting import export_command
from opencqrs_py.cli.events.importing import import_command
from opencqrs_py.cli.events.listing import list_command
from opencqrs_py.cli.events.statistics import stats_command
from opencqrs_py.cli.events.tailing import tail_command

__all__ = ["events_command"]


@click.group("events")
def events_command() -> None:
    """Append, import, export, list, follow and count events."""


for _command in (append_command, export_command, import_command, list_command, stats_command, tail_command):
    events_command.add_command(_command)

"""``opencqrs events``: shows, adds, imports and exports events."""

from __future__ import annotations

import click

from opencqrs_py.cli.events.appends import append_command
from opencqrs_py.cli.events.exports import export_command
from opencqrs_py.cli.events.imports import import_command
from opencqrs_py.cli.events.listings import list_command, skipped_command, tail_command
from opencqrs_py.cli.events.statistics import stats_command

__all__ = ["events_command"]


_COMMANDS = (
    append_command,
    export_command,
    import_command,
    list_command,
    skipped_command,
    stats_command,
    tail_command,
)


@click.group("events", commands=_COMMANDS)
def events_command() -> None:
    """Append, import, export, list, follow and count events."""

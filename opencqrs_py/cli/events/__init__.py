"""``opencqrs events``: looks into the event store, fills it and empties it into files."""

from opencqrs_py.cli.events.command import events_command

__all__ = ["events_command"]

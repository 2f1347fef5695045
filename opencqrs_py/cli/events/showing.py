"""What the commands show of an event."""

from __future__ import annotations

from typing import Any

from opencqrs_py.cli.output import clean
from opencqrs_py.model.cloudevents import write_event
from opencqrs_py.model.event import Event

__all__ = ["DATA_SHOWN", "on_one_line", "positioned"]

DATA_SHOWN = 60
"""Characters of an event's data that people see."""


def positioned(event: Event) -> dict[str, Any]:
    """Return an event as the object of CloudEvents' JSON format behind its position.

    An extension attribute of that name, which CloudEvents allow, is left out: programs page by the position.
    """
    return {"position": 0, **write_event(event)} | {"position": event.position}


def on_one_line(text: str) -> str:
    """Make text from outside safe to print where each thing has one line."""
    return clean(text).replace("\n", "\\n")

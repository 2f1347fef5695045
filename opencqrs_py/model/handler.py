"""Handler definitions: which function is called for which events of which group."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

__all__ = [
    "EVENT_TYPE_ATTRIBUTE",
    "HANDLER_ATTRIBUTE",
    "ON_START_ATTRIBUTE",
    "Handler",
    "HandlerMark",
    "event_type_of",
]

HANDLER_ATTRIBUTE = "__opencqrs_handlers__"
ON_START_ATTRIBUTE = "__opencqrs_on_start__"
EVENT_TYPE_ATTRIBUTE = "__opencqrs_event_type__"


@dataclass(frozen=True, slots=True)
class HandlerMark:
    """What ``@event_handling`` leaves on a function or class.

    Attributes:
        group: Processing group; empty on a method whose class names it.
        types: Patterns of event types (``*`` and ``?``); empty when the event class decides.
        order: Handlers of a group run in ascending order; ``None`` comes last.
    """

    group: str
    types: tuple[str, ...] = ()
    order: int | None = None


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler definition.

    Attributes:
        mark: Group, types and order.
        call: The function or bound method.
        place: ``file:line (name)`` for messages.
    """

    mark: HandlerMark
    call: Callable[..., Any]
    place: str


def event_type_of(event_class: type) -> str | None:
    """Return the event type that ``@event_type`` gave to this very class (not to a parent), or ``None``."""
    name = event_class.__dict__.get(EVENT_TYPE_ATTRIBUTE)
    return name if isinstance(name, str) else None

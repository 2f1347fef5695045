"""Handler definitions: which function is called for which events of which group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from opencqrs_py.model.checkpoint import Participant
from opencqrs_py.model.context import ProcessingContext
from opencqrs_py.model.declarations import Declaration
from opencqrs_py.model.event import Event


@dataclass(frozen=True, slots=True)
class HandlerMark:
    """The mark of ``@event_handling`` or ``@dataframe_handler`` on a function or class.

    Attributes:
        group: Processing group; empty on a method whose class names it.
        types: Patterns of event types (``*`` and ``?``); empty if the event class decides.
        order: Handlers of a group run in ascending order; ``None``: as its class says, else it comes last.
        events: The class whose fields are the columns that a handler takes; ``None`` if it takes no columns, or those
            that every event has.
        in_frames: Whether it is a mark of ``@dataframe_handler``: the handler gets data frames of Spark.
        replay: Whether the handler is called for events that were handled before a reset; ``None``: as its class says,
            else it is.
        class_types: The patterns of its class, for a method that has none and takes no event class.
        home: Module whose import made the decoration; empty if no import was running.
    """

    group: str
    types: tuple[str, ...] = ()
    order: int | None = None
    events: type | None = None
    in_frames: bool = False
    replay: bool | None = None
    class_types: tuple[str, ...] = ()
    home: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler definition.

    Attributes:
        mark: Group, types and order.
        call: The function or bound method.
        place: ``file:line (name)`` for messages.
        reference: Identifies it in every process that imports the same modules; empty if made by hand.
        participant: The participant whose method it is; else ``None``.
    """

    mark: HandlerMark
    call: Callable[..., Any]
    place: str
    reference: str = field(default="", compare=False)
    participant: Participant | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class GroupMark:
    """The mark of ``@on_start``, ``@on_reset``, ``@checkpointing`` and others on a function or class.

    Attributes:
        group: Its processing group.
        home: As of a handler's mark.
    """

    group: str
    home: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Upcaster:
    """A function that turns events of old types into events as they are written today.

    Attributes:
        types: The event types that it takes.
        call: The function.
        place: ``file:line (name)`` for messages.
    """

    types: tuple[str, ...]
    call: Callable[..., Any]
    place: str


class Surrounded(Enum):
    """What an interceptor surrounds."""

    EVENT = "event"  # all handlers of one event
    HANDLER = "handler"  # one call of one handler


@dataclass(frozen=True, slots=True)
class AroundMark:
    """The mark of ``@around_event`` or ``@around_handler`` on a function.

    Attributes:
        surrounded: What it surrounds.
        group: Processing group; empty for all groups.
        order: Interceptors with a lower order surround those with a higher one; ``None`` is innermost.
        home: As of a handler's mark.
    """

    surrounded: Surrounded
    group: str = ""
    order: int | None = None
    home: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Interceptor:
    """A generator function that yields once, where the surrounded call runs."""

    mark: AroundMark
    call: Callable[..., Any]
    place: str


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of a handler, as an interceptor sees it.

    Attributes:
        handler: ``file:line (name)`` of the handler.
        events: The raw event; for a handler that takes lists, those of the chunk.
        context: Group, partition, position and attempt; for a list, those of its first event.
    """

    handler: str
    events: Sequence[Event]
    context: ProcessingContext


def event_type_of(event_class: type) -> str | None:
    """Return the event type that ``@event_type`` gave to this class itself (not to a parent), or ``None``."""
    name = event_class.__dict__.get(Declaration.EVENT_TYPE.attribute)
    return name if isinstance(name, str) else None

"""Handler definitions: which function is called for which events of which group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from opencqrs_py.model.checkpoint import Participant
from opencqrs_py.model.context import ProcessingContext
from opencqrs_py.model.event import Event

HANDLER_ATTRIBUTE = "__opencqrs_handlers__"
ON_START_ATTRIBUTE = "__opencqrs_on_start__"
BATCH_KEY_ATTRIBUTE = "__opencqrs_batch_key__"
INBOX_FILTER_ATTRIBUTE = "__opencqrs_inbox_filter__"
ON_RESET_ATTRIBUTE = "__opencqrs_on_reset__"
ON_REPLAY_FINISHED_ATTRIBUTE = "__opencqrs_on_replay_finished__"
UPCASTER_ATTRIBUTE = "__opencqrs_upcasts__"
AROUND_ATTRIBUTE = "__opencqrs_around__"
CHECKPOINTING_ATTRIBUTE = "__opencqrs_checkpointing__"
EVENT_TYPE_ATTRIBUTE = "__opencqrs_event_type__"


@dataclass(frozen=True, slots=True)
class HandlerMark:
    """What ``@event_handling`` or ``@dataframe_handler`` leaves on a function or class.

    Attributes:
        group: Processing group; empty on a method whose class names it.
        types: Patterns of event types (``*`` and ``?``); empty when the event class decides.
        order: Handlers of a group run in ascending order; ``None`` comes last.
        events: The class whose fields are the columns that a handler takes; ``None`` when it takes no columns, or those
            that every event has.
        in_frames: Whether ``@dataframe_handler`` has left it: the handler gets data frames of Spark.
        replay: Whether the handler is called for events that were handled before a reset; ``None``: as its class says,
            else it is.
        home: Module whose import made the decoration; empty when none was under way.
    """

    group: str
    types: tuple[str, ...] = ()
    order: int | None = None
    events: type | None = None
    in_frames: bool = False
    replay: bool | None = None
    home: str = field(default="", compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Handler:
    """A handler definition.

    Attributes:
        mark: Group, types and order.
        call: The function or bound method.
        place: ``file:line (name)`` for messages.
        reference: The same in every process that imports the same modules; empty when made by hand.
        participant: Whose method it is, if that says itself what is durable; else ``None``.
    """

    mark: HandlerMark
    call: Callable[..., Any]
    place: str
    reference: str = field(default="", compare=False)
    participant: Participant | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class GroupMark:
    """What ``@on_start``, ``@on_reset``, ``@checkpointing`` and others leave on a function or class: its group."""

    group: str


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
    """What ``@around_event`` and ``@around_handler`` leave on a function.

    Attributes:
        surrounded: What it surrounds.
        group: Processing group; empty for all groups.
        order: Interceptors with a lower order surround those with a higher one; ``None`` is innermost.
    """

    surrounded: Surrounded
    group: str = ""
    order: int | None = None


@dataclass(frozen=True, slots=True)
class Interceptor:
    """A generator function that yields once, where what it surrounds is to run."""

    mark: AroundMark
    call: Callable[..., Any]
    place: str


@dataclass(frozen=True, slots=True)
class Invocation:
    """One call of a handler, as an interceptor sees it.

    Attributes:
        handler: ``file:line (name)`` of the handler.
        events: The raw event; of a handler that takes lists, those of the chunk.
        context: Group, partition, position and attempt; of a list, those of its first event.
    """

    handler: str
    events: Sequence[Event]
    context: ProcessingContext


def event_type_of(event_class: type) -> str | None:
    """Return the event type that ``@event_type`` gave to this very class (not to a parent), or ``None``."""
    name = event_class.__dict__.get(EVENT_TYPE_ATTRIBUTE)
    return name if isinstance(name, str) else None

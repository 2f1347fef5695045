"""The decorators that mark event classes and handlers. They leave a note on what they decorate and change nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, overload

from opencqrs_py.errors import HandlerSignatureError
from opencqrs_py.model.handler import (
    EVENT_TYPE_ATTRIBUTE,
    HANDLER_ATTRIBUTE,
    ON_START_ATTRIBUTE,
    HandlerMark,
)

__all__ = ["event_handling", "event_type", "on_start"]

T = TypeVar("T", bound=Callable[..., Any])
C = TypeVar("C", bound=type)


def event_type(name: str) -> Callable[[C], C]:
    """Give an event class the CloudEvents type that it stands for.

    Args:
        name: CloudEvents ``type``, such as ``library.book-lent.v1``.

    Raises:
        HandlerSignatureError: OCQ-200, if ``name`` is not a text with at least one character.
    """
    if not isinstance(name, str) or not name.strip():
        fix = 'write @event_type("library.book-lent.v1") above the class'
        raise HandlerSignatureError("OCQ-200", f"@event_type needs the type's name, got {name!r}", fix=fix)

    def mark(event_class: C) -> C:
        setattr(event_class, EVENT_TYPE_ATTRIBUTE, name)
        return event_class

    return mark


@overload
def event_handling(group: T) -> T: ...
@overload
def event_handling(group: str = "", *, types: Sequence[str] = (), order: int | None = None) -> Callable[[T], T]: ...
def event_handling(group: str | Callable[..., Any] = "", *, types: Sequence[str] = (), order: int | None = None) -> Any:
    """Mark a function, method or class as handler of a processing group.

    A decorator made once carries its group to every use: ``statistics = event_handling("statistics")``.

    Args:
        group: Name of the processing group. On a method it may be left out: the class names it.
        types: Patterns of event types (``*`` any text, ``?`` any character), when no event class decides.
        order: Handlers of a group run in ascending order, those without one last, in the order of definition.

    Raises:
        HandlerSignatureError: OCQ-200, if ``group`` or ``types`` are not what they should be.

    Source:
        OpenCQRS ``@EventHandling`` and Spring's order annotation.
    """
    if callable(group):
        return _marked(group, HandlerMark(""))
    fix = """write @event_handling("catalog"), with types=["library.*"] if need be"""
    if not isinstance(group, str):
        raise HandlerSignatureError("OCQ-200", f"a processing group's name is a text, got {group!r}", fix=fix)
    if isinstance(types, str) or not all(isinstance(pattern, str) and pattern for pattern in types):
        raise HandlerSignatureError("OCQ-200", f"types is a list of patterns, got {types!r}", fix=fix)
    mark = HandlerMark(group.strip(), tuple(types), order)
    return lambda handler: _marked(handler, mark)


def on_start(group: str) -> Callable[[T], T]:
    """Mark a function that runs once at each start of a group, in one transaction, before its first event.

    The place to create a read model's tables. Arguments are found by annotation, without an event.

    Args:
        group: Name of the processing group.
    """
    if not isinstance(group, str) or not group.strip():
        fix = 'write @on_start("catalog")'
        raise HandlerSignatureError("OCQ-200", "@on_start needs the name of a processing group", fix=fix)

    def mark(function: T) -> T:
        earlier = function.__dict__.get(ON_START_ATTRIBUTE, ())
        setattr(function, ON_START_ATTRIBUTE, (*earlier, group.strip()))
        return function

    return mark


def _marked(handler: T, mark: HandlerMark) -> T:
    earlier = handler.__dict__.get(HANDLER_ATTRIBUTE, ())
    setattr(handler, HANDLER_ATTRIBUTE, (*earlier, mark))
    return handler

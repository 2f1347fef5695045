"""Handler definitions made by hand, and the marks of decorators on functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, partialmethod, singledispatchmethod
from typing import Any, Protocol

from opencqrs_py.errors import HandlerSignatureError
from opencqrs_py.model.checkpoint import Participant
from opencqrs_py.model.collector import collector_waits
from opencqrs_py.model.declarations import Declaration
from opencqrs_py.model.handler import AroundMark, Handler, HandlerMark, Interceptor, Upcaster
from opencqrs_py.model.naming import canonical
from opencqrs_py.processing.checkpoints.participants import checkpointed_groups, participant_of

_LAST = float("inf")
_HOLDERS = (partial, partialmethod, singledispatchmethod)  # of a function


@dataclass(frozen=True, slots=True)
class EventHandlerDefinition:
    """A handler and the group that it belongs to, without a decorator.

    Attributes:
        group: Processing group.
        handler: Function or bound method; its arguments are found by annotation.
        types: Patterns of event types, for handlers without an event class.
        order: Handlers of a group run in ascending order, those without one last.
        events: Event class whose fields are columns, for a handler that takes a ``pyarrow.Table``.
        replay: Whether the handler is called again for events that were handled before the group was reset.

    Source:
        OpenCQRS ``EventHandlerDefinition``.
    """

    group: str
    handler: Callable[..., Any]
    types: Sequence[str] = ()
    order: int | None = None
    events: type | None = None
    replay: bool = True

    @property
    def handlers(self) -> tuple[Handler, ...]:
        """The handler that the definition describes.

        Raises:
            HandlerSignatureError: OCQ-640, if it is a method of an invalid participant.
        """
        mark = HandlerMark(
            self.group, tuple(self.types), self.order, self.events, replay=None if self.replay else False
        )
        participant = _participant_of(self.handler, self.group)
        return (Handler(mark, self.handler, place_of(self.handler), participant=participant),)


Definition = EventHandlerDefinition | Handler | Callable[..., Any]
"""Ways to pass a handler: a decorated function, or a definition."""


def in_order(definitions: Iterable[Definition]) -> list[Handler]:
    """Return the handlers of definitions and of decorated functions, in the order in which they run.

    Raises OCQ-207 if something is not a handler, or names no group.
    """
    return sorted((handler for definition in definitions for handler in _handlers(definition)), key=order_of)


def upcasters_of(functions: Iterable[Upcaster | Callable[..., Any]]) -> list[Upcaster]:
    """Return the upcasters that ``@upcaster`` marks; raise OCQ-207 if a function is not decorated."""
    return [one if isinstance(one, Upcaster) else _upcaster(one) for one in functions]


def interceptors_in_order(functions: Iterable[Interceptor | Callable[..., Any]], group: str) -> list[Interceptor]:
    """Return the interceptors of a group that ``@around_event`` and ``@around_handler`` mark, outermost first.

    Raises OCQ-207 if a function is not decorated.
    """
    found = [one for given in functions for one in _interceptors(given)]
    here = {"", canonical(group)}
    return sorted((one for one in found if canonical(one.mark.group) in here), key=order_of)


def place_of(member: Any) -> str:
    """Return ``file:line (name)`` of a function or class.

    For a ``partial``, a cache or another wrapper it is the place of the wrapped function, for any other object the
    place of its class.
    """
    written = _as_written(member)
    try:
        file = inspect.getsourcefile(written) or "?"
        with collector_waits():
            line = inspect.getsourcelines(written)[1]
    except (OSError, TypeError, ValueError):
        return str(written.__qualname__)
    return f"{file}:{line} ({written.__qualname__})"


def _as_written(member: Any) -> Any:
    """Return the function below its wrappers, or the class of any other object."""
    while isinstance(member, _HOLDERS):
        member = member.func
    with suppress(ValueError):  # wrappers in a circle
        member = inspect.unwrap(member)
    if isinstance(member, _HOLDERS):
        return _as_written(member)
    return member if hasattr(member, "__qualname__") else type(member)


class Ordered(Protocol):
    """A handler or interceptor, or the declaration of one."""

    @property
    def mark(self) -> HandlerMark | AroundMark:
        """Its mark, which has the order."""
        ...


def order_of(ordered: Ordered) -> float:
    """Return the sort key of a handler or interceptor; those without an order come last."""
    return _LAST if ordered.mark.order is None else ordered.mark.order


def _handlers(definition: Definition) -> Iterable[Handler]:
    if isinstance(definition, Handler):
        return (definition,)
    if isinstance(definition, EventHandlerDefinition):
        return definition.handlers
    if not inspect.isroutine(definition):
        what = f"{getattr(definition, '__qualname__', type(definition).__qualname__)} is not a function"
        fix = "give functions, or methods bound to an instance, such as Reminders(mailer).remind"
        raise HandlerSignatureError("OCQ-207", what, place_of(definition), fix)
    marks: tuple[HandlerMark, ...] = getattr(definition, Declaration.HANDLER.attribute, ())
    if not marks:
        raise _undecorated(definition, "@event_handling", "EventHandlerDefinition")
    owner = getattr(definition, "__self__", None)
    cls, place = owner if isinstance(owner, type) else type(owner), place_of(definition)
    groups = [] if all(mark.group for mark in marks) else _groups_of_class(cls, place)
    return [
        Handler(mark, definition, place, participant=_participant_of(definition, mark.group))
        for mark in completed_marks(marks, groups, cls, place)
    ]


def _groups_of_class(cls: type, place: str) -> list[str]:
    """Return the groups to which a method belongs through its class."""
    check_groups(_marks_on(cls), place_of(cls))
    groups = [mark.group for mark in _marks_on(cls) if mark.group] or checkpointed_groups(cls)
    if not groups:
        raise without_group(cls, place, 'write @event_handling("catalog")')
    return groups


def check_groups(marks: Sequence[HandlerMark], place: str) -> None:
    """Refuse two decorations of a class for one group: its methods would be called twice."""
    check_twice([replace(mark, types=()) for mark in marks], place)


def check_twice(marks: Iterable[HandlerMark], place: str) -> None:
    """Refuse two equal decorations: each event would be handled twice."""
    seen: set[tuple[str, tuple[str, ...]]] = set()
    for mark in marks:
        if (said := (canonical(mark.group), mark.types or mark.class_types)) in seen:
            group = f" for group '{mark.group}'" if mark.group else ""
            what = f"the handler is decorated twice{group}: it would handle each event twice"
            raise HandlerSignatureError("OCQ-209", what, place, "remove one @event_handling")
        seen.add(said)


def completed_marks(marks: Iterable[HandlerMark], groups: Sequence[str], cls: type, place: str) -> list[HandlerMark]:
    """Return the marks of a method, one for each group, completed by its class.

    Raises:
        HandlerSignatureError: OCQ-209, if two of them are equal.
    """
    found = [_completed(mark, group, cls) for mark in marks for group in ([mark.group] if mark.group else groups)]
    check_twice(found, place)
    return found


def _completed(mark: HandlerMark, group: str, cls: type) -> HandlerMark:
    """Return the mark of a method for a group, with what its class says where the method says nothing.

    What is above a class applies to the group that it names, or to all groups if it names none. What is above its
    parents applies too, if nothing nearer says otherwise.
    """
    above = [each for parent in cls.__mro__ for each in _marks_on(parent)]
    said = [mark, *(each for each in above if canonical(each.group) in {"", canonical(group)})]
    order = next((each.order for each in said if each.order is not None), None)
    replay = next((each.replay for each in said if each.replay is not None), None)
    types = next((each.types for each in said[1:] if each.types), ())
    return replace(mark, group=group, order=order, replay=replay, class_types=types)


def _marks_on(cls: type) -> tuple[HandlerMark, ...]:
    """Return the marks on a class itself, not on its parents."""
    marks: tuple[HandlerMark, ...] = vars(cls).get(Declaration.HANDLER.attribute, ())
    return marks


def without_group(cls: type, place: str, fix: str) -> HandlerSignatureError:
    """Return the error of a handler without a group, with the class if that has a parent that names one."""
    for parent in cls.__mro__[1:]:
        named = [mark.group for mark in _marks_on(parent) if mark.group]
        if named or checkpointed_groups(parent):
            what = f"class {cls.__name__} names no processing group, and does not inherit that of {parent.__name__}"
            decorator = (
                f'@event_handling("{named[0]}")' if named else f'@checkpointing("{checkpointed_groups(parent)[0]}")'
            )
            return HandlerSignatureError("OCQ-207", what, place_of(cls), f"write {decorator} above {cls.__name__}, too")
    return HandlerSignatureError("OCQ-207", "the handler names no processing group", place, fix)


def _participant_of(method: Any, group: str) -> Participant | None:
    instance = getattr(method, "__self__", None)
    if instance is None or isinstance(instance, type):
        return None
    return participant_of(instance, group, place_of(type(instance)))


def upcaster_on(function: Any) -> Upcaster | None:
    """Return the upcaster that a function is marked as, ``None`` if it is not decorated."""
    types = getattr(function, "__dict__", {}).get(Declaration.UPCASTER.attribute, ())  # a proxy may invent attributes
    return Upcaster(types, function, place_of(function)) if types else None


def interceptors_on(function: Any) -> list[Interceptor]:
    """Return the interceptors that a function is marked as; none if it is not decorated."""
    marks = getattr(function, "__dict__", {}).get(Declaration.AROUND.attribute, ())
    return [Interceptor(mark, function, place_of(function)) for mark in marks]


def _upcaster(function: Callable[..., Any]) -> Upcaster:
    if (upcaster := upcaster_on(function)) is None:
        raise _undecorated(function, "@upcaster", "Upcaster")
    return upcaster


def _interceptors(given: Interceptor | Callable[..., Any]) -> list[Interceptor]:
    if isinstance(given, Interceptor):
        return [given]
    if not (found := interceptors_on(given)):
        raise _undecorated(given, "@around_event or @around_handler", "Interceptor")
    return found


def _undecorated(function: Any, decorator: str, otherwise: str) -> HandlerSignatureError:
    fix = f"decorate it with {decorator}, or give an {otherwise}"
    return HandlerSignatureError("OCQ-207", "the function is not decorated", place_of(function), fix)

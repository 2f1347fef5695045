"""The handler methods of a class: its own, several of one name among them, and those that it inherits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from opencqrs_py.assembly.members import inner_function, marks_of, standing_for
from opencqrs_py.errors import HandlerSignatureError
from opencqrs_py.model.handler import HANDLER_ATTRIBUTE, HandlerMark
from opencqrs_py.processing.decorators import register_of
from opencqrs_py.processing.definitions import place_of

__all__ = ["Method", "decorated_in", "methods_of"]


@dataclass(frozen=True, slots=True)
class Method:
    """A method that is marked as handler.

    Attributes:
        name: By which the class knows it.
        held: As the class holds it: a function, or a static or class method.
        marked: What carries the marks; an override that is not decorated itself is called by those of its parent.
    """

    name: str
    held: Any
    marked: Any

    @property
    def marks(self) -> tuple[HandlerMark, ...]:
        """What ``@event_handling`` has left on it."""
        return marks_of(self.marked, HANDLER_ATTRIBUTE)

    @property
    def place(self) -> str:
        """Where it is written."""
        return place_of(inner_function(self.marked))

    def of(self, instance: object) -> Any:
        """Return the method bound to ``instance``."""
        return self.held.__get__(instance, type(instance)) if hasattr(self.held, "__get__") else self.held


def methods_of(cls: type) -> list[Method]:
    """Return the handler methods of a class, those of its parents first, each class's in the order of decoration.

    A method of a child takes the place of its parent's, as in Python. One that is not decorated itself is called for
    the same events; ``None`` in its place removes the handler.

    Raises:
        HandlerSignatureError: OCQ-209, if a child overrides a name by which a parent has several handlers.
    """
    found: dict[str, list[Method]] = {}
    for each in reversed(cls.__mro__):
        own = _own_methods(each)
        for name in found.keys() & vars(each).keys():
            found[name] = _overridden(found[name], each, own.get(name))
        found.update({name: methods for name, methods in own.items() if name not in found or methods})
    return [method for methods in found.values() for method in methods]


def decorated_in(cls: type) -> list[Any]:
    """Return everything that was decorated in the body of this very class, and what it holds besides."""
    body = register_of(cls)
    return [inner_function(each) for each in (*(body.members if body else ()), *vars(cls).values())]


def _own_methods(cls: type) -> dict[str, list[Method]]:
    """Return the methods that are marked in the body of this very class, by name."""
    body = register_of(cls)
    registered = body.members if body else []
    methods = [_method(each, cls, registered) for each in registered if marks_of(each, HANDLER_ATTRIBUTE)]
    seen = {id(mark) for method in methods for mark in method.marks}
    for name, held in vars(cls).items():
        marks = () if isinstance(held, type) else marks_of(held, HANDLER_ATTRIBUTE)
        if marks and not {id(mark) for mark in marks} <= seen:
            methods.append(Method(name, held, held))
            seen.update(id(mark) for mark in marks)
    result: dict[str, list[Method]] = {}
    for method in methods:
        result.setdefault(method.name, []).append(method)
    return result


def _method(function: Any, cls: type, registered: list[Any]) -> Method:
    held = standing_for(function, vars(cls), registered)
    name = next((name for name, value in vars(cls).items() if value is held), function.__name__)
    holder = vars(cls).get(name)
    if held is function and isinstance(holder, staticmethod | classmethod) and not hasattr(function, "__func__"):
        held = type(holder)(function)  # another one of that name shows how this one was meant
    return Method(name, held, held)


def _overridden(inherited: list[Method], cls: type, own: list[Method] | None) -> list[Method]:
    if not inherited:
        return own or []
    held = vars(cls)[inherited[0].name]
    if not callable(inner_function(held)):
        return own or []
    if len(inherited) > 1:
        what = f"{cls.__name__}.{inherited[0].name} overrides {len(inherited)} handlers of one name"
        fix = "give the handlers of the parent names of their own"
        raise HandlerSignatureError("OCQ-209", what, inherited[0].place, fix)
    return own or [replace(inherited[0], held=held)]

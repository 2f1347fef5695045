"""Discovery: from modules to the handlers, event classes and containers in them."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from dependency_injector.containers import Container, DeclarativeContainer

from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.errors import AssemblyError, HandlerSignatureError
from opencqrs_py.model.handler import (
    AROUND_ATTRIBUTE,
    HANDLER_ATTRIBUTE,
    ON_START_ATTRIBUTE,
    UPCASTER_ATTRIBUTE,
    Handler,
    HandlerMark,
    Interceptor,
    Upcaster,
    event_type_of,
)
from opencqrs_py.processing.definitions import interceptors_on, order_of, place_of, upcaster_on

__all__ = ["Discovered", "StartFunction", "discover", "import_modules"]

_FUNCTIONS_ONLY = {
    UPCASTER_ATTRIBUTE: "@upcaster",
    AROUND_ATTRIBUTE: "@around_event or @around_handler",
    ON_START_ATTRIBUTE: "@on_start",
}


@dataclass(frozen=True, slots=True)
class StartFunction:
    """A function marked with ``@on_start``."""

    group: str
    call: Any
    place: str


@dataclass(frozen=True)
class Discovered:
    """What was found in the user's modules.

    Attributes:
        handlers: All handlers in the order in which they run within their group.
        starts: All ``@on_start`` functions.
        event_classes: All classes with an event type.
        injector: Provides what the user's containers hold.
        upcasters: All upcasters.
        interceptors: All interceptors, outermost first.
    """

    handlers: tuple[Handler, ...]
    starts: tuple[StartFunction, ...]
    event_classes: tuple[type, ...]
    injector: ContainerInjector
    upcasters: tuple[Upcaster, ...] = ()
    interceptors: tuple[Interceptor, ...] = ()

    @property
    def groups(self) -> tuple[str, ...]:
        """The processing groups, in the order of their first handler in the source."""
        return tuple(dict.fromkeys(handler.mark.group for handler in self.handlers))


def import_modules(names: Sequence[str], roots: Iterable[Path]) -> list[ModuleType]:
    """Import the user's modules.

    Raises:
        AssemblyError: OCQ-501, if one cannot be imported; names the file and line that raised. OCQ-512, if another
            module of the same name stands in its way.
    """
    unique = list(dict.fromkeys(str(root) for root in roots))
    for root in unique:
        if root not in sys.path:
            sys.path.insert(0, root)
    modules = [_imported(name) for name in names]
    for module in modules:
        _check_place(module, unique)
    return modules


def discover(
    modules: Sequence[ModuleType],
    only: frozenset[str] | None = None,
    provided: Mapping[type, object] | None = None,
) -> Discovered:
    """Find what decorators have marked.

    Args:
        modules: Where to look; what they import from elsewhere does not count.
        only: ``module:name`` of the handlers to take, ``None`` for all.
        provided: Objects that stand in for what containers provide, by the type that is asked for.

    Raises:
        HandlerSignatureError: OCQ-207, if a marked class or method cannot serve.
    """
    members = [member for module in modules for member in _members(module)]
    containers = [m for m in members if isinstance(m, type) and issubclass(m, DeclarativeContainer)]
    for cls in (member for member in members if isinstance(member, type)):
        _check_methods(cls)
    injector = ContainerInjector([cast("Container", container()) for container in containers], provided)
    chosen = [m for m in members if only is None or _reference(m) in only]
    handlers = [handler for member in chosen for handler in _handlers(member, injector)]
    return Discovered(
        handlers=tuple(sorted(handlers, key=order_of)),
        starts=tuple(start for member in members for start in _starts(member)),
        event_classes=tuple(m for m in members if isinstance(m, type) and event_type_of(m)),
        injector=injector,
        upcasters=tuple(filter(None, map(upcaster_on, members))),
        interceptors=tuple(sorted((one for member in members for one in interceptors_on(member)), key=order_of)),
    )


def _check_place(module: ModuleType, roots: Sequence[str]) -> None:
    """Refuse a module that another of the same name hides, such as ``calendar``."""
    file = getattr(module, "__file__", None)
    if roots and not any(Path(file or "/").resolve().is_relative_to(Path(root).resolve()) for root in roots):
        what = f"module '{module.__name__}' of the project is hidden by another one of that name"
        raise AssemblyError("OCQ-512", what, file or "built in", "give the project's file another name")


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except Exception as error:
        what = f"module '{name}' cannot be imported ({type(error).__name__}: {error})"
        fix = "mend the line named, or install what it imports"
        raise AssemblyError("OCQ-501", what, _raised_at(error), fix) from error


def _raised_at(error: Exception) -> str:
    if isinstance(error, SyntaxError):
        return f"{error.filename}:{error.lineno}"
    trace = error.__traceback__
    frames = [frame for frame in inspect.getinnerframes(trace) if "importlib" not in frame.filename] if trace else []
    return f"{frames[-1].filename}:{frames[-1].lineno}" if len(frames) > 1 else ""


def _members(module: ModuleType) -> Iterator[Any]:
    seen: set[int] = set()
    for member in vars(module).values():
        if getattr(member, "__module__", None) == module.__name__ and id(member) not in seen:
            seen.add(id(member))
            yield member


def _reference(member: Any) -> str:
    return f"{member.__module__}:{getattr(member, '__qualname__', '')}"


def _marks(member: Any) -> tuple[HandlerMark, ...]:
    return tuple(getattr(member, "__dict__", {}).get(HANDLER_ATTRIBUTE, ()))


def _handlers(member: Any, injector: ContainerInjector) -> Iterator[Handler]:
    if isinstance(member, type):
        yield from _methods(member, injector)
    elif callable(member):
        for mark in _marks(member):
            if not mark.group:
                what = "the handler names no processing group"
                fix = 'write @event_handling("catalog")'
                raise HandlerSignatureError("OCQ-207", what, place_of(member), fix)
            yield Handler(mark, member, place_of(member))


def _methods(cls: type, injector: ContainerInjector) -> Iterator[Handler]:
    own_marks = _marks(cls)
    functions = [f for c in reversed(cls.__mro__) for f in vars(c).values() if inspect.isfunction(f)]
    methods = [(function, mark) for function in functions for mark in _marks(function)]
    if not methods:
        if own_marks:
            fix = "put @event_handling above each method that handles events"
            raise HandlerSignatureError("OCQ-207", f"class {cls.__name__} has no handler method", place_of(cls), fix)
        return
    groups = [mark.group for mark in own_marks] or [""]
    instance = injector.create(cls, place_of(cls))
    for function, mark in methods:
        for group in [mark.group] if mark.group else groups:
            if not group:
                fix = 'write @event_handling("catalog") above the class or the method'
                what = "the handler names no processing group"
                raise HandlerSignatureError("OCQ-207", what, place_of(function), fix)
            bound = getattr(instance, function.__name__)
            yield Handler(HandlerMark(group, mark.types, mark.order), bound, place_of(function))


def _check_methods(cls: type) -> None:
    """Refuse on methods, and on a class, what would silently do nothing there."""
    for member in (cls, *vars(cls).values()):
        marked = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        for attribute, decorator in _FUNCTIONS_ONLY.items():
            if attribute in getattr(marked, "__dict__", {}):
                what = f"{decorator} marks a {'class' if marked is cls else 'method'}"
                fix = f"put {decorator} above a function of the module; it gets what containers provide by annotation"
                raise HandlerSignatureError("OCQ-207", what, place_of(marked), fix)


def _starts(member: Any) -> Iterator[StartFunction]:
    for group in getattr(member, "__dict__", {}).get(ON_START_ATTRIBUTE, ()):
        yield StartFunction(group, member, place_of(member))

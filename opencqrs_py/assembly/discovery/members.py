"""What decorators have registered in a module or class, each once, in the order of decoration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partialmethod, singledispatchmethod
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

from dependency_injector.containers import DeclarativeContainer

from opencqrs_py.errors import AssemblyError, HandlerSignatureError
from opencqrs_py.model.declarations import Declaration
from opencqrs_py.model.handler import event_type_of
from opencqrs_py.processing.definitions import place_of
from opencqrs_py.processing.register import Register, register_of

EVERYTHING = "*"
"""Stands in a reference for all members of a module."""

_WITH_MARKS = [each for each in Declaration if each.value.noun and each is not Declaration.UPCASTER]  # which has types
_METHODS = (FunctionType, staticmethod, classmethod, partialmethod, singledispatchmethod, type)
_DEEPEST = 100  # wrappers around a function; more are a circle
_FIX = "put @{decorator} above the decorators that replace the function, or give each function its own name"


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """A function or class, and what it is called by in every process.

    Attributes:
        value: The function or class.
        module: Name of the module whose import has decorated it.
        reference: ``module:name``; from the second of that name on followed by its number, such as ``#2``.
    """

    value: Any
    module: str
    reference: str


def members_of(module: ModuleType) -> list[Member]:
    """Return what was decorated while ``module`` was imported, and the classes in it that decorated methods have.

    What the module has imported from elsewhere does not count: it belongs to the module that decorated it. A copy made
    by ``functools.wraps`` counts as the function that it wraps, and takes its place if it has taken its name.

    Raises:
        HandlerSignatureError: OCQ-209, if something was decorated and can no longer be found.
    """
    visible = list(_visible(module))
    registered = register_of(module)
    entries = registered.members if registered else []
    values = _in_written_order(_resolved(entries, module, visible), visible, _unregistered(visible, entries))
    numbers: Counter[str] = Counter()
    members = []
    for value in values:
        name = f"{module.__name__}:{getattr(value, '__qualname__', type(value).__qualname__)}"
        numbers[name] += 1
        members.append(Member(value, module.__name__, name if numbers[name] == 1 else f"{name}#{numbers[name]}"))
    return members


def home_of(member: Any) -> str:
    """Return the name of the module whose import has decorated a function or class, else of the one that defines it."""
    marks = (mark for each in _WITH_MARKS for mark in marks_of(member, each))
    return next((mark.home for mark in marks if mark.home), "") or str(member.__module__)


def reference_of(member: Any, module: ModuleType) -> str:
    """Return how every process can find a decorated function or class of ``module``.

    Raises:
        AssemblyError: OCQ-513, if an import of the module does not decorate it.
    """
    ids = mark_ids(member)
    for each in members_of(module):
        if each.value is member or (ids and ids <= mark_ids(each.value)):
            return each.reference
    name = getattr(member, "__qualname__", type(member).__qualname__)
    what = f"{name} is not decorated by an import of module {module.__name__}, so other processes cannot find it"
    fix = "decorate it with @event_handling where the module is imported, not in a call at run time"
    raise AssemblyError("OCQ-513", what, place_of(member), fix)


def marks_of(member: Any, declaration: Declaration) -> tuple[Any, ...]:
    """Return the marks that a decorator has left on ``member`` itself, or on the function of a static or class method.

    Those that a class inherits do not count.
    """
    own: tuple[Any, ...] = _namespace_of(member).get(declaration.attribute, ())
    return own if own or not isinstance(member, staticmethod | classmethod) else marks_of(member.__func__, declaration)


def _namespace_of(member: Any) -> Mapping[str, Any]:
    """Return the attributes of a function or class itself, not what a proxy makes up."""
    try:
        found = object.__getattribute__(member, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict | MappingProxyType) else {}


def inner_function(member: Any) -> Any:
    """Return the function in a static or class method, anything else as it is."""
    return member.__func__ if isinstance(member, staticmethod | classmethod) else member


def standing_for(function: Any, namespace: Mapping[str, Any], registered: Sequence[Any]) -> Any:
    """Return what is to be called for a registered function: itself, or the copy that has taken its place.

    The namespace is that of the module or class in which it was decorated, and ``registered`` all that was there.

    Raises:
        HandlerSignatureError: OCQ-209, if something that wraps the function has taken its name and does not show it.
    """
    values = list(namespace.values())
    for value in values:
        if value is function or (isinstance(value, staticmethod | classmethod) and value.__func__ is function):
            return value
    ids = mark_ids(function)
    copies = [each for each in (*values, *registered) if each is not function and ids and ids <= mark_ids(each)]
    if copies:
        return max(copies, key=_depth)
    in_its_place = namespace.get(getattr(function, "__name__", ""))
    if _wraps(in_its_place, function) or _is_copy_of_another(in_its_place, function, registered):
        what = f"{function.__name__} is wrapped by a decorator above @event_handling, which would be bypassed"
        raise HandlerSignatureError("OCQ-209", what, place_of(function), _FIX.format(decorator="event_handling"))
    return function


def _visible(module: ModuleType) -> Iterator[Any]:
    """Yield what is defined in the module, and the classes nested in its classes."""
    for value in tuple(vars(module).values()):
        if _module_of(value) == module.__name__:
            yield value
            if isinstance(value, type):
                yield from _nested(value)


def _module_of(value: Any) -> Any:
    try:
        return getattr(value, "__module__", None)
    except Exception:  # a proxy of something that is not there yet
        return None


def _nested(cls: type) -> Iterator[type]:
    for value in vars(cls).values():
        if isinstance(value, type) and value.__qualname__.startswith(f"{cls.__qualname__}."):
            yield value
            yield from _nested(value)


def _resolved(entries: Sequence[Any], module: ModuleType, visible: Sequence[Any]) -> Iterator[Any]:
    classes = [value for value in (*visible, *entries) if isinstance(value, type)]
    for entry in entries:
        if isinstance(entry, Register):
            yield from _class_of(entry, classes)
        elif isinstance(entry, type):
            yield _latest(entry, classes)
        else:
            yield standing_for(entry, vars(module), entries)


def _class_of(body: Register, classes: Sequence[type]) -> Iterator[type]:
    """Yield the class whose body it is; nothing if a child of it exists and so has its methods."""
    for cls in classes:
        if register_of(cls) is body:
            yield cls
            return
    if not any(register_of(parent) is body for cls in classes for parent in cls.__mro__):
        name = body.owner.partition(":")[2]
        what = f"class {name} has handlers, but no name in the module refers to it: they would never be called"
        fix = "put @event_handling above the class too, or keep it under its own name in the module"
        raise HandlerSignatureError("OCQ-209", what, place_of(inner_function(body.members[0])), fix)


def _latest(cls: type, classes: Sequence[type]) -> type:
    """Return the class that a decorator has made of ``cls``, such as ``@dataclass(slots=True)``; else ``cls``."""
    body = register_of(cls)
    for other in classes:
        same_name = other.__qualname__ == cls.__qualname__ and other.__module__ == cls.__module__
        same = body is not None and register_of(other) is body
        if same_name and (same or (event_type_of(cls) is not None and event_type_of(other) == event_type_of(cls))):
            return other
    return cls


def _unregistered(visible: Sequence[Any], entries: Sequence[Any]) -> Iterator[Any]:
    """Yield what counts without being registered.

    Containers, classes that inherit handlers, and what was marked while no import could be seen: in a compiled module.
    """
    known = {each for entry in entries for each in mark_ids(entry)}
    for value in visible:
        if isinstance(value, type):
            if issubclass(value, DeclarativeContainer) or event_type_of(value) or _has_marks(value):
                yield value
        elif (ids := mark_ids(value)) and not ids <= known:
            yield value


def _in_written_order(resolved: Iterable[Any], visible: Sequence[Any], more: Iterable[Any]) -> list[Any]:
    """Return what was registered, each once, and ``more`` after what precedes it in the module."""
    result = list({id(value): value for value in resolved}.values())
    added = {id(value) for value in more} - {id(value) for value in result}
    at = 0
    for value in visible:
        if id(value) in added:
            added.discard(id(value))
            result.insert(at, value)
        at = next((index + 1 for index, each in enumerate(result) if each is value), at)
    return result


def _has_marks(cls: type) -> bool:
    parents = [each for each in cls.__mro__ if each.__module__ != "builtins"]
    own = (value for each in parents for value in (each, *vars(each).values()))
    decorated = (v for v in own if isinstance(v, _METHODS) and mark_ids(v))
    return any(register_of(each) for each in parents) or any(True for _ in decorated)


def mark_ids(member: Any) -> set[int]:
    """Return what identifies the decorations of ``member``: a copy by ``functools.wraps`` has the same ones."""
    ids = {id(mark) for each in _WITH_MARKS for mark in marks_of(member, each)}
    types = marks_of(member, Declaration.UPCASTER)
    return ids | {id(types)} if types else ids


def _depth(function: Any) -> int:
    depth = 0
    while (wrapped := getattr(function, "__wrapped__", None)) is not None and depth < _DEEPEST:
        function, depth = wrapped, depth + 1
    return depth


def _wraps(outer: Any, function: Any, deep: int = 5) -> bool:
    """Return whether ``outer`` calls ``function`` and has no marks itself, as far as that is visible from outside."""
    if outer is None or not callable(inner_function(outer)) or isinstance(outer, type) or mark_ids(outer):
        return False
    cells = getattr(inner_function(outer), "__closure__", None) or ()
    held = [*map(_content, cells), getattr(outer, "func", None), *_namespace_of(outer).values()]
    return _holds(held, function) or (deep > 0 and any(_wraps(each, function, deep - 1) for each in held))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _is_copy_of_another(value: Any, function: Any, registered: Sequence[Any]) -> bool:
    """Return whether a wrapper of another function of the same name has replaced ``function``."""
    if value is None or _holds(registered, inner_function(value)) or not (ids := mark_ids(value)):
        return False
    name = getattr(function, "__qualname__", "")
    return any(getattr(each, "__qualname__", "") == name and mark_ids(each) & ids for each in registered)


def _holds(members: Iterable[Any], member: Any) -> bool:
    return any(each is member for each in members)


@dataclass(frozen=True, slots=True)
class Method:
    """A method that is marked as handler or job.

    Attributes:
        name: By which the class knows it.
        held: As the class holds it: a function, or a static or class method.
        marked: What carries the marks; an override that is not decorated itself is called by those of its parent.
        declaration: What its marks declare.
    """

    name: str
    held: Any
    marked: Any
    declaration: Declaration = Declaration.HANDLER

    @property
    def marks(self) -> tuple[Any, ...]:
        """What ``@event_handling``, or ``@job``, has left on it."""
        return marks_of(self.marked, self.declaration)

    @property
    def place(self) -> str:
        """Where it is written."""
        return place_of(inner_function(self.marked))

    def of(self, instance: object) -> Any:
        """Return the method bound to ``instance``."""
        return self.held.__get__(instance, type(instance)) if hasattr(self.held, "__get__") else self.held


def methods_of(cls: type, declaration: Declaration = Declaration.HANDLER) -> list[Method]:
    """Return the handler methods of a class, those of its parents first, each class's in the order of decoration.

    With another declaration these are the methods that its decorators have marked, such as jobs. A method of a child
    replaces its parent's, as in Python. One that is not decorated itself is called for the same events; ``None``
    instead of it removes the handler.

    Raises:
        HandlerSignatureError: OCQ-209, if a child overrides a name by which a parent has several handlers.
    """
    found: dict[str, list[Method]] = {}
    for each in reversed(cls.__mro__):
        own = _own_methods(each, declaration)
        for name in found.keys() & vars(each).keys():
            found[name] = _overridden(found[name], each, own.get(name))
        found.update({name: methods for name, methods in own.items() if name not in found or methods})
    return [method for methods in found.values() for method in methods]


def decorated_in(cls: type) -> list[Any]:
    """Return everything that was decorated in the body of this class itself, and what else it holds."""
    body = register_of(cls)
    return [inner_function(each) for each in (*(body.members if body else ()), *vars(cls).values())]


def _own_methods(cls: type, declaration: Declaration) -> dict[str, list[Method]]:
    """Return the methods that are marked in the body of this class itself, by name."""
    body = register_of(cls)
    registered = body.members if body else []
    methods = [_method(each, cls, registered, declaration) for each in registered if marks_of(each, declaration)]
    seen = {id(mark) for method in methods for mark in method.marks}
    for name, held in vars(cls).items():
        marks = () if isinstance(held, type) else marks_of(held, declaration)
        if marks and not {id(mark) for mark in marks} <= seen:
            methods.append(Method(name, held, held, declaration))
            seen.update(id(mark) for mark in marks)
    result: dict[str, list[Method]] = {}
    for method in methods:
        result.setdefault(method.name, []).append(method)
    return result


def _method(function: Any, cls: type, registered: list[Any], declaration: Declaration) -> Method:
    held = standing_for(function, vars(cls), registered)
    name = next((name for name, value in vars(cls).items() if value is held), function.__name__)
    holder = vars(cls).get(name)
    if held is function and isinstance(holder, staticmethod | classmethod) and not hasattr(function, "__func__"):
        held = type(holder)(function)  # another one of that name shows how this one was meant
    return Method(name, held, held, declaration)


def _overridden(inherited: list[Method], cls: type, own: list[Method] | None) -> list[Method]:
    if not inherited:
        return own or []
    held = vars(cls)[inherited[0].name]
    if not callable(inner_function(held)):
        return own or []
    if len(inherited) > 1:
        what = f"{cls.__name__}.{inherited[0].name} overrides {len(inherited)} handlers of one name"
        fix = "give each handler of the parent its own name"
        raise HandlerSignatureError("OCQ-209", what, inherited[0].place, fix)
    return own or [replace(inherited[0], held=held)]

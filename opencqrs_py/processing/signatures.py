"""Signatures: which arguments a handler asks for, found by annotation."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any, Union, get_args, get_origin, get_type_hints

from opencqrs_py.errors import HandlerSignatureError
from opencqrs_py.model.context import ProcessingContext
from opencqrs_py.model.event import Event, Metadata
from opencqrs_py.processing.decoding import decodable
from opencqrs_py.processing.ports import Injector

__all__ = ["Argument", "Kind", "Signature", "read_signature"]

_RIGHT_FORM = (
    "annotate each parameter: an event class, dict, Event (raw), Metadata, ProcessingContext, sqlalchemy.Connection, "
    "sqlalchemy.orm.Session, or a type that the container provides; for example "
    "def lend(event: BookLent, connection: Connection) -> None"
)


class Kind(Enum):
    """Where an argument comes from."""

    EVENT = auto()
    RAW = auto()
    METADATA = auto()
    CONTEXT = auto()
    CONNECTION = auto()
    SESSION = auto()
    INJECTED = auto()


# SQLAlchemy's classes are known by name, so that this room needs no SQLAlchemy.
_BY_NAME = {
    "sqlalchemy.engine.base.Connection": Kind.CONNECTION,
    "sqlalchemy.orm.session.Session": Kind.SESSION,
}
_BY_CLASS = {Event: Kind.RAW, Metadata: Kind.METADATA, ProcessingContext: Kind.CONTEXT}


def _named(path: str) -> type:
    module, _, name = path.rpartition(".")
    return type(name, (), {"__module__": module, "__qualname__": name})


# What annotations mean that were imported for type checkers only.
_USUAL_NAMES: dict[str, Any] = {
    **{cls.__name__: cls for cls in _BY_CLASS},
    **{path.rpartition(".")[2]: _named(path) for path in _BY_NAME},
}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a handler.

    Attributes:
        name: Parameter name.
        kind: Where it comes from.
        annotation: The annotated type.
        by_keyword: Whether it must be passed by name.
    """

    name: str
    kind: Kind
    annotation: Any
    by_keyword: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    """A handler's arguments.

    Attributes:
        arguments: In the order of the parameters.
        event_classes: What its event parameter accepts; empty when it has none.
    """

    arguments: tuple[Argument, ...]
    event_classes: tuple[type, ...]

    @property
    def transactional(self) -> bool:
        """Whether the handler asks for the progress transaction."""
        return any(argument.kind in (Kind.CONNECTION, Kind.SESSION) for argument in self.arguments)


def read_signature(call: Callable[..., Any], place: str, injector: Injector, *, event: bool = True) -> Signature:
    """Read which arguments a handler (or, with ``event=False``, an ``@on_start`` function) asks for.

    Args:
        call: The function or bound method.
        place: How messages name it.
        injector: Knows what else can be provided.
        event: Whether arguments that belong to an event are allowed.

    Raises:
        HandlerSignatureError: OCQ-201 to OCQ-205, naming the place, the parameter and the right form.
    """
    hints = _hints(call, place)
    arguments = _arguments(call, hints, place, injector)
    events = [argument for argument in arguments if argument.kind is Kind.EVENT]
    _check(call, place, events)
    if not event and (wrong := [a.name for a in arguments if a.kind in _OF_AN_EVENT]):
        what = f"an @on_start function runs before any event and cannot have {', '.join(wrong)}"
        raise HandlerSignatureError("OCQ-205", what, place, "def prepare(connection: Connection) -> None")
    classes = _members(events[0].annotation) if events else ()
    return Signature(arguments, classes)


_OF_AN_EVENT = (Kind.EVENT, Kind.RAW, Kind.METADATA, Kind.CONTEXT)


def _check(call: Callable[..., Any], place: str, events: Sequence[Argument]) -> None:
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        what = "a handler must not yield: nobody would run it"
        raise HandlerSignatureError("OCQ-204", what, place, "return nothing; use a plain or an async function")
    if len(events) > 1:
        names = " and ".join(argument.name for argument in events)
        what = f"a handler takes one event, but {names} both ask for one"
        fix = "use one parameter; A | B accepts events of either class"
        raise HandlerSignatureError("OCQ-203", what, place, fix)


def _hints(call: Callable[..., Any], place: str) -> dict[str, Any]:
    function = inspect.unwrap(call)
    try:
        return get_type_hints(function)
    except NameError:
        names = {**_USUAL_NAMES, **getattr(function, "__globals__", {})}
    except Exception as error:  # an annotation is any expression: whatever it raises is the user's to mend
        raise _unreadable(error, place) from error
    try:
        return get_type_hints(function, globalns=names)
    except Exception as error:
        raise _unreadable(error, place) from error


def _unreadable(error: Exception, place: str) -> HandlerSignatureError:
    what = f"the annotations cannot be read ({error})"
    fix = "import the annotated types at run time, not only under TYPE_CHECKING"
    return HandlerSignatureError("OCQ-202", what, place, fix)


def _arguments(call: Callable[..., Any], hints: dict[str, Any], place: str, injector: Injector) -> tuple[Argument, ...]:
    found: list[Argument] = []
    by_keyword = False  # behind a parameter that keeps its default, no position fits any more
    for parameter in inspect.signature(call).parameters.values():
        argument = _argument(parameter, hints, place, injector)
        if argument is None or (by_keyword and parameter.kind is parameter.POSITIONAL_ONLY):
            by_keyword = True
        else:
            found.append(replace(argument, by_keyword=by_keyword or argument.by_keyword))
    return tuple(found)


def _argument(parameter: inspect.Parameter, hints: dict[str, Any], place: str, injector: Injector) -> Argument | None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        what = f"parameter '{stars}{parameter.name}' cannot be filled"
        raise HandlerSignatureError("OCQ-201", what, place, _RIGHT_FORM)
    optional = parameter.default is not parameter.empty
    if parameter.name not in hints:
        if optional:
            return None
        what = f"parameter '{parameter.name}' has no annotation"
        raise HandlerSignatureError("OCQ-201", what, place, _RIGHT_FORM)
    annotation = hints[parameter.name]
    kind = _kind(annotation, injector)
    if kind is None and not optional:
        raise _unfillable(parameter.name, annotation, place)
    if kind is None:
        return None
    return Argument(parameter.name, kind, annotation, parameter.kind is parameter.KEYWORD_ONLY)


def _kind(annotation: Any, injector: Injector) -> Kind | None:
    if isinstance(annotation, type):
        known = _BY_CLASS.get(annotation) or _BY_NAME.get(f"{annotation.__module__}.{annotation.__qualname__}")
        if known is not None:
            return known
    if injector.provides(annotation):
        return Kind.INJECTED
    members = _members(annotation)
    return Kind.EVENT if members and all(decodable(member) for member in members) else None


def _members(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def _unfillable(name: str, annotation: Any, place: str) -> HandlerSignatureError:
    shown = _shown(annotation)
    what = f"parameter '{name}: {shown}' cannot be filled"
    if get_origin(annotation) is list:
        fix = "handlers that take a list of events are not there yet: take one event"
    elif isinstance(annotation, type) and annotation.__module__ not in ("builtins", "typing"):
        fix = f"make {shown} a dataclass or a pydantic model if it is an event, or let the container provide it"
    else:
        fix = _RIGHT_FORM
    return HandlerSignatureError("OCQ-201", what, place, fix)


def _shown(annotation: Any) -> str:
    """Write an annotation as in the source: without modules."""
    if annotation is type(None):
        return "None"
    members, origin = get_args(annotation), get_origin(annotation)
    if origin in (Union, types.UnionType):
        return " | ".join(map(_shown, members))
    if members:
        return f"{_shown(origin)}[{', '.join(map(_shown, members))}]"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)

"""Signatures: which arguments a function of the project takes, by annotation."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Union, get_args, get_origin, get_type_hints

from typing_extensions import is_protocol

from opencqrs_py.errors import AssemblyError, HandlerSignatureError
from opencqrs_py.model.context import ProcessingContext
from opencqrs_py.model.event import Event, Metadata
from opencqrs_py.model.frames import EventFrames
from opencqrs_py.model.handler import Invocation
from opencqrs_py.model.job import JobContext, JobPage
from opencqrs_py.model.replay import Reset
from opencqrs_py.processing.after_commit import AfterCommit
from opencqrs_py.processing.annotations import signature_of, written_annotations
from opencqrs_py.processing.checkpoints.checkpoints import CheckpointTrigger
from opencqrs_py.processing.decoding import decodable
from opencqrs_py.processing.ports import Injector
from opencqrs_py.processing.roles import HANDLER, IN_TRANSACTION, JOB, OF_AN_EVENT, Kind, Role
from opencqrs_py.processing.wiring import MARKER_FIX, marker_in, wired_parameters

_RIGHT_FORM = (
    "annotate each parameter: an event class, dict, Event (raw), Metadata, ProcessingContext, sqlalchemy.Connection, "
    "sqlalchemy.orm.Session, or a type that the container provides; for example "
    "def lend(event: BookLent, connection: Connection) -> None"
)


# Classes of SQLAlchemy, drivers, pyarrow and PySpark are known by name, so that nothing here imports them.
_BY_NAME = {
    "pyarrow.lib.Table": Kind.TABLE,
    "pyspark.sql.dataframe.DataFrame": Kind.FRAME,
    "pyspark.sql.classic.dataframe.DataFrame": Kind.FRAME,
    "sqlalchemy.engine.base.Connection": Kind.CONNECTION,
    "sqlalchemy.orm.session.Session": Kind.SESSION,
    "sqlite3.Connection": Kind.DRIVER,
    "psycopg.Connection": Kind.DRIVER,
    "pymysql.connections.Connection": Kind.DRIVER,
}
_BY_CLASS = {
    Event: Kind.RAW,
    Metadata: Kind.METADATA,
    ProcessingContext: Kind.CONTEXT,
    AfterCommit: Kind.AFTER_COMMIT,
    Invocation: Kind.INVOCATION,
    EventFrames: Kind.FRAME,
    Reset: Kind.RESET,
    JobContext: Kind.JOB,
    JobPage: Kind.PAGE,
    CheckpointTrigger: Kind.TRIGGER,
}


def _named(path: str) -> type:
    module, _, name = path.rpartition(".")
    return type(name, (), {"__module__": module, "__qualname__": name})


# The functions by which ``@contextmanager`` and ``@asynccontextmanager`` replace a generator function.
_MAKES_MANAGERS = {contextmanager(iter).__code__, asynccontextmanager(aiter).__code__}


# What annotations mean whose names are imported for type checkers only.
_USUAL_NAMES: dict[str, Any] = {
    **{cls.__name__: cls for cls in _BY_CLASS},
    **{path.rpartition(".")[2]: _named(path) for path, kind in _BY_NAME.items() if kind is not Kind.DRIVER},
}


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a handler.

    Attributes:
        name: Parameter name.
        kind: Where it comes from.
        annotation: The annotated type; of a list, the type of its members.
        by_keyword: Whether it must be passed by keyword.
        many: Whether it is a list: one member for each event of a chunk.
    """

    name: str
    kind: Kind
    annotation: Any
    by_keyword: bool = False
    many: bool = False


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
        """Whether the function takes part of the progress transaction."""
        return any(argument.kind in IN_TRANSACTION for argument in self.arguments)

    @property
    def sees_attributes(self) -> bool:
        """Whether the function can use an event's attributes, such as its time."""
        return any(argument.kind in (Kind.RAW, Kind.METADATA, Kind.INVOCATION) for argument in self.arguments)

    def asks_for(self, kind: Kind) -> bool:
        """Return whether the function has an argument of a kind."""
        return any(argument.kind is kind for argument in self.arguments)

    @property
    def many(self) -> bool:
        """Whether it takes the events of a chunk together, as lists or in columns."""
        return any(argument.many for argument in self.arguments) or self.in_columns

    @property
    def in_frames(self) -> bool:
        """Whether it takes the events of a range as data frames of Spark."""
        return self.asks_for(Kind.FRAME)

    @property
    def in_columns(self) -> bool:
        """Whether it takes the events of a chunk as a table."""
        return self.asks_for(Kind.TABLE)


def read_signature(call: Callable[..., Any], place: str, injector: Injector, role: Role = HANDLER) -> Signature:
    """Read which arguments a handler, or a function of another role, takes.

    Args:
        call: The function or bound method.
        place: How messages name it.
        injector: Knows what else can be provided.
        role: Purpose of the function.

    Raises:
        HandlerSignatureError: OCQ-201 to OCQ-205, naming the place, the parameter and the correct form.
        AssemblyError: OCQ-503, if several providers make a requested type.
    """
    hints = _hints(call, place)
    _check_instance(call, hints, place)
    try:
        arguments = _arguments(call, hints, place, injector, role)
    except AssemblyError as error:  # of the container, which does not know the caller
        raise AssemblyError(error.code, error.what, error.where or place, error.fix) from None
    _check_form(call, place, role)
    if wrong := [a.name for a in arguments if a.kind not in role.kinds]:
        what = f"{role.name} {role.because} and cannot have {', '.join(wrong)}"
        raise HandlerSignatureError("OCQ-205", what, place, role.example)
    events = [argument for argument in arguments if argument.kind is Kind.EVENT]
    _check_events(events, arguments, place, role)
    classes = _members(events[0].annotation) if events else ()
    return Signature(arguments, classes)


def _function(call: Callable[..., Any]) -> Any:
    """Return the function behind a callable, below decorators and partial arguments."""
    return inspect.unwrap(_decorated(call))


def _decorated(call: Callable[..., Any]) -> Any:
    """Return the function behind a callable with its decorators, below partial arguments."""
    while isinstance(call, partial):
        call = call.func
    return call if inspect.isroutine(call) else getattr(call, "__call__", call)  # noqa: B004 for what it returns


def _check_instance(call: Callable[..., Any], hints: dict[str, Any], place: str) -> None:
    """Refuse a method whose first parameter is meant for something other than the instance."""
    if inspect.ismethod(call):
        function = inspect.unwrap(call.__func__)
        first = next(iter(inspect.signature(function).parameters), "self")
        if first.strip("_") not in ("self", "cls") and first in hints:
            what = f"'{first}' would be the instance, as the first parameter of the method {function.__name__}"
            raise HandlerSignatureError("OCQ-201", what, place, f"write def {function.__name__}(self, {first}: …)")


def _layers(call: Any) -> Iterator[Any]:
    """Yield a function and what it wraps, from the outermost decorator inwards."""
    while call is not None:
        yield call
        call = getattr(call, "__wrapped__", None)


def _check_form(call: Callable[..., Any], place: str, role: Role) -> None:
    function = _function(call)
    if role.yields and any(getattr(layer, "__code__", None) in _MAKES_MANAGERS for layer in _layers(call)):
        what = f"{role.name} must be the generator function itself, not a context manager made of it"
        raise HandlerSignatureError("OCQ-204", what, place, "remove @contextmanager")
    generator = inspect.isgeneratorfunction(function)
    if role.yields and not generator:
        what = f"{role.name} must be a plain function that yields once, where the surrounded call is to run"
        raise HandlerSignatureError("OCQ-204", what, place, role.example)
    if inspect.isasyncgenfunction(function) or (generator and not role.may_yield):
        what = f"{role.name} must not yield: its code would never run"
        fix = "return nothing; use a plain or an async function" if role is HANDLER else role.example
        raise HandlerSignatureError("OCQ-204", what, place, fix)
    called = call.func if isinstance(call, partial) else call
    if role in (HANDLER, JOB) and any(hasattr(layer, "cache_info") for layer in _layers(called)):
        not_run = "an event equal to an earlier one would not be handled" if role is HANDLER else "it would run once"
        what = f"{role.name} must not be cached: {not_run}"
        fix = "remove the cache, such as @functools.lru_cache; cache a function that it calls"
        raise HandlerSignatureError("OCQ-204", what, place, fix)


def _check_events(events: Sequence[Argument], arguments: Sequence[Argument], place: str, role: Role) -> None:
    if len(events) > 1:
        names = " and ".join(argument.name for argument in events)
        what = f"{role.name} takes one event, but {names} both ask for one"
        fix = "use one parameter; A | B accepts events of either class"
        raise HandlerSignatureError("OCQ-203", what, place, fix)
    tables = [a.name for a in arguments if a.kind is Kind.TABLE]
    others = [a.name for a in arguments if a.kind in OF_AN_EVENT]
    if len(tables) > 1 or (tables and others):
        second = (*tables[1:], *others)[0]
        what = f"{tables[0]} asks for the events of a chunk as columns, and {second} asks for the same events again"
        fix = "take one pyarrow.Table, which has position, subject and time of each event, or take lists"
        raise HandlerSignatureError("OCQ-203", what, place, fix)
    frames = [a.name for a in arguments if a.kind is Kind.FRAME]
    if len(frames) > 1 or (frames and (tables or others)):
        second = (*frames[1:], *tables, *others)[0]
        what = f"{frames[0]} asks for the events of a range as data frames, and {second} asks for the same events again"
        fix = "take one EventFrames, which has a DataFrame for each class: events.of(BookLent)"
        raise HandlerSignatureError("OCQ-203", what, place, fix)
    many = [a.name for a in arguments if a.many]
    single = [a.name for a in arguments if a.kind in OF_AN_EVENT and not a.many]
    if many and not role.lists:
        what = f"{role.name} sees one event at a time, but {many[0]} asks for a list"
        raise HandlerSignatureError("OCQ-205", what, place, role.example)
    if many and single:
        what = f"{many[0]} asks for the events of a chunk, {single[0]} for one event"
        fix = "take lists of both, such as events: list[BookLent], raws: list[Event], or take one event"
        raise HandlerSignatureError("OCQ-203", what, place, fix)


def _hints(call: Callable[..., Any], place: str) -> dict[str, Any]:
    function = _function(call)
    try:
        return get_type_hints(function)
    except NameError:
        names = {**_USUAL_NAMES, **getattr(function, "__globals__", {})}
    except Exception as error:  # an annotation is any expression: the user has to fix whatever it raises
        raise _unreadable(error, place) from error
    try:
        return get_type_hints(types.SimpleNamespace(__annotations__=written_annotations(function)), globalns=names)
    except Exception as error:
        raise _unreadable(error, place) from error


def _unreadable(error: Exception, place: str) -> HandlerSignatureError:
    what = f"the annotations cannot be read ({error})"
    fix = "import the annotated types at run time, not only under TYPE_CHECKING"
    return HandlerSignatureError("OCQ-202", what, place, fix)


def _arguments(
    call: Callable[..., Any], hints: dict[str, Any], place: str, injector: Injector, role: Role
) -> tuple[Argument, ...]:
    found: list[Argument] = []
    wired = wired_parameters(_layers(_decorated(call)))
    by_keyword = False  # parameters after one that keeps its default must be passed by keyword
    for parameter in signature_of(call).parameters.values():
        marked = parameter.name in wired or bool(marker_in(parameter.default))
        if marked and not injector.stands_in(hints.get(parameter.name)):
            _check_wired(parameter, wired, place)
            argument = None
        else:
            argument = _argument(parameter, hints, place, injector, role)
        by_keyword = by_keyword or marked  # wiring adds it by keyword, unless it was passed so
        if argument is None or (by_keyword and parameter.kind is parameter.POSITIONAL_ONLY):
            by_keyword = True
        else:
            found.append(replace(argument, by_keyword=by_keyword or argument.by_keyword))
    return tuple(found)


def _check_wired(parameter: inspect.Parameter, wired: Collection[str], place: str) -> None:
    """Refuse a parameter that wiring should fill but does not: the function would get the marker instead of a value."""
    if parameter.name not in wired or parameter.kind is parameter.POSITIONAL_ONLY:
        marker = marker_in(parameter.default) or "its marker"
        what = f"parameter '{parameter.name}' would get {marker} itself: dependency-injector does not fill it"
        raise HandlerSignatureError("OCQ-201", what, place, MARKER_FIX.format(marker=marker))


def _argument(
    parameter: inspect.Parameter, hints: dict[str, Any], place: str, injector: Injector, role: Role
) -> Argument | None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
        what = f"parameter '{stars}{parameter.name}' cannot be filled"
        raise HandlerSignatureError("OCQ-201", what, place, _right_form(role))
    optional = parameter.default is not parameter.empty
    if parameter.name not in hints:
        if optional:
            return None
        what = f"parameter '{parameter.name}' has no annotation"
        raise HandlerSignatureError("OCQ-201", what, place, _right_form(role))
    annotation, many = hints[parameter.name], False
    kind = _kind(annotation, injector)
    if kind is None and (offered := _offered(annotation, injector, role)) is not None:
        kind, annotation = offered
    if kind is None and (member := _member(annotation)) is not None:
        kind, annotation, many = _kind(member, injector), member, True
    if kind is not None and many and kind not in OF_AN_EVENT:
        kind = None
    if kind is None and not optional:
        raise _unfillable(parameter.name, hints[parameter.name], place, role)
    if kind is None:
        return None
    return Argument(parameter.name, kind, annotation, parameter.kind is parameter.KEYWORD_ONLY, many)


def _offered(annotation: Any, injector: Injector, role: Role) -> tuple[Kind, Any] | None:
    """Return the kind of argument for ``X | None``, and ``X``; ``None`` if the function keeps its default.

    It is never an event, since there always is one; and another dataclass may be an option of the function itself.
    """
    wanted = without_none(annotation)
    kind = None if wanted is annotation else _kind(wanted, injector)
    return None if kind in (None, Kind.EVENT) or kind not in role.kinds else (kind, wanted)


def without_none(annotation: Any) -> Any:
    """Return the class ``X`` of ``X | None``, and any other annotation as it is.

    So is ``int | None``: a number in a container need not be the intended one.
    """
    others = [member for member in _members(annotation) if member is not type(None)]
    found = others[0] if len(others) == 1 else None
    return annotation if found is None or getattr(found, "__module__", "") == "builtins" else found


def _member(annotation: Any) -> Any:
    """Return the type of a list's members, ``None`` if ``annotation`` is not a list type."""
    return get_args(annotation)[0] if get_origin(annotation) in (list, Sequence) else None


def _kind(annotation: Any, injector: Injector) -> Kind | None:
    plain = get_origin(annotation) or annotation  # a driver's class may be generic: psycopg.Connection[TupleRow]
    if isinstance(plain, type):
        known = _BY_CLASS.get(plain) or _BY_NAME.get(f"{plain.__module__}.{plain.__qualname__}")
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


def _unfillable(name: str, annotation: Any, place: str, role: Role) -> HandlerSignatureError:
    shown = _shown(annotation)
    what = f"parameter '{name}: {shown}' cannot be filled"
    wanted = without_none(annotation)
    if isinstance(wanted, type) and is_protocol(wanted):
        what = f"{what}: {_shown(wanted)} is a protocol, but providers are found by class"
        fix = f"annotate it with the class that a provider makes, or make {_shown(wanted)} an abstract class (abc.ABC)"
    elif isinstance(annotation, type) and annotation.__module__ not in ("builtins", "typing"):
        fix = f"make {shown} a dataclass or a pydantic model if it is an event, or have the container provide it"
    else:
        fix = _right_form(role)
    return HandlerSignatureError("OCQ-201", what, place, fix)


def _right_form(role: Role) -> str:
    return _RIGHT_FORM if role is HANDLER else f"annotate each parameter with what {role.name} can take: {role.example}"


def _shown(annotation: Any) -> str:
    """Return an annotation as in the source, without modules."""
    if annotation is type(None):
        return "None"
    members, origin = get_args(annotation), get_origin(annotation)
    if origin in (Union, types.UnionType):
        return " | ".join(map(_shown, members))
    if members:
        return f"{_shown(origin)}[{', '.join(map(_shown, members))}]"
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)

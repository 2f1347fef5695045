"""The decorators that mark event classes and handlers. They attach a mark and change nothing else.

A name can only hold one function, and a loop, an overload or a factory makes several. So a decorator also registers
what it decorates with the body (of a module or a class) that an import is running. The register lives in that body's
namespace: a module that is imported again begins with an empty one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from functools import partialmethod, singledispatchmethod
from typing import Any, TypeAlias, TypeVar, overload
from unicodedata import category

from opencqrs_py.errors import HandlerSignatureError
from opencqrs_py.model.declarations import Declaration
from opencqrs_py.model.handler import AroundMark, GroupMark, HandlerMark, Surrounded, event_type_of
from opencqrs_py.model.job import JobMark
from opencqrs_py.processing.register import register

_NOT_IN_NAMES = {"Cc", "Cs"}  # categories of Unicode: control characters, lone surrogates
_METHODS = (classmethod, partialmethod, property, singledispatchmethod)  # besides functions, in the body of a class
T = TypeVar("T", bound=Callable[..., Any])
C = TypeVar("C", bound=type)
_Mark: TypeAlias = AroundMark | GroupMark | HandlerMark | JobMark


def event_type(name: str) -> Callable[[C], C]:
    """Give an event class the CloudEvents type that it represents.

    Args:
        name: CloudEvents ``type``, such as ``library.book-lent.v1``.

    Raises:
        HandlerSignatureError: OCQ-200, if ``name`` is not a text with at least one character, or is a pattern; or if it
            decorates a function, which would never be used, or a class that already represents another type.
    """
    if not isinstance(name, str) or not name.strip():
        fix = 'write @event_type("library.book-lent.v1") above the class'
        raise HandlerSignatureError("OCQ-200", f"@event_type needs the type's name, got {name!r}", fix=fix)
    _refuse_patterns("@event_type", [name])

    def mark(event_class: C) -> C:
        if not inspect.isclass(event_class):
            fix = f'write @event_handling("loans", types=["{name}"]) above a function that is to be called for events'
            raise HandlerSignatureError("OCQ-200", f"@event_type is for classes, got {event_class!r}", fix=fix)
        if (known := event_type_of(event_class)) not in (None, name):
            what = f"class {event_class.__name__} has two event types, '{known}' and '{name}'"
            fix = (
                f'keep one @event_type; name both at the handler: @event_handling("loans", types=["{known}", "{name}"])'
            )
            raise HandlerSignatureError("OCQ-200", what, fix=fix)
        setattr(event_class, Declaration.EVENT_TYPE.attribute, name)
        register(event_class)
        return event_class

    return mark


@overload
def event_handling(group: T) -> T: ...
@overload
def event_handling(
    group: str | Enum = "",
    *,
    types: Sequence[str] = (),
    order: int | None = None,
    events: type | None = None,
    replay: bool | None = None,
) -> Callable[[T], T]: ...
def event_handling(
    group: str | Enum | Callable[..., Any] = "",
    *,
    types: Sequence[str] = (),
    order: int | None = None,
    events: type | None = None,
    replay: bool | None = None,
) -> Any:
    """Mark a function, method or class as handler of a processing group.

    A decorator made once carries its group to every use: ``statistics = event_handling("statistics")``.

    Args:
        group: Name of the processing group, or a member of an enum whose value is the name. It may be omitted on a
            method: the class names it.
        types: Patterns of event types (``*`` any text, ``?`` any character), for handlers without an event class. On a
            class they apply, for its group, to methods that have neither.
        order: Handlers of a group run in ascending order, those without one last, in the order of definition.
            ``None``: as its class or a parent says for the group.
        events: The event class whose fields are the columns of the ``pyarrow.Table`` that the handler takes, since the
            annotation cannot name it; not on a class.
        replay: ``False``: the handler is not called again for events that were handled before a reset, such as one
            that sends mail. ``None``: as its class or a parent says for the group, else it is called.

    Raises:
        HandlerSignatureError: OCQ-200, if ``group``, ``types``, ``order``, ``events`` or ``replay`` has a wrong type or
            value, or if ``events`` decorates a class.

    Source:
        OpenCQRS ``@EventHandling`` and Spring's order annotation.
    """
    given: Any = group
    if callable(given) or isinstance(given, _METHODS):
        return _noted(given, Declaration.HANDLER, HandlerMark(""))
    mark = _checked(group, types, order, events, replay=replay)
    return lambda handler: _handler(handler, mark)


def _refuse_patterns(decorator: str, types: Sequence[str]) -> None:
    """Refuse patterns where types are compared exactly: no event would ever have such a type."""
    for name in types:
        if "*" in name or "?" in name:
            what = f"{decorator} takes types, and {name!r} is a pattern, which no event has as its type"
            fix = 'write each type in full; patterns are for handlers: @event_handling("catalog", types=["library.*"])'
            raise HandlerSignatureError("OCQ-200", what, fix=fix)


def _checked(
    group: object, types: Sequence[str], order: int | None, events: type | None, *, replay: bool | None
) -> HandlerMark:
    group = _text(group)
    fix = """write @event_handling("catalog"), with types=["library.*"] if needed"""
    if not isinstance(group, str):
        raise HandlerSignatureError("OCQ-200", f"a processing group's name is a text, got {group!r}", fix=fix)
    if isinstance(types, str) or not all(isinstance(pattern, str) and pattern for pattern in types):
        raise HandlerSignatureError("OCQ-200", f"types is a list of patterns, got {types!r}", fix=fix)
    if order is not None and (isinstance(order, bool) or not isinstance(order, int)):
        raise HandlerSignatureError("OCQ-200", f"order is a whole number, got {order!r}", fix="write order=10")
    if replay is not None and not isinstance(replay, bool):
        raise HandlerSignatureError("OCQ-200", f"replay is True or False, got {replay!r}", fix="write replay=False")
    given: object = events
    if given is not None and not isinstance(given, type):
        what = f"events is an event class, got {events!r}"
        fix = """write @event_handling("loans", events=BookLent), or types=["library.*"] for events of any class"""
        raise HandlerSignatureError("OCQ-200", what, fix=fix)
    return HandlerMark(group.strip(), tuple(types), order, events, replay=replay)


def dataframe_handler(
    group: str | Enum, *, types: Sequence[str] = (), events: type | None = None, replay: bool | None = None
) -> Callable[[T], T]:
    """Mark a function or method as the handler of a group that gets its events as data frames of Spark.

    It runs in the driver, and Spark does the work. It takes a ``pyspark.sql.DataFrame`` of the events of one class, or
    ``EventFrames``, which has a data frame for each class. It is the only handler of its group.

    Args:
        group: Name of the processing group, or a member of an enum whose value is the name.
        types: Patterns of event types; ``EventFrames`` without patterns means all events.
        events: The event class whose fields are the columns of the ``DataFrame`` that the handler takes.
        replay: As of ``@event_handling``.

    Raises:
        HandlerSignatureError: OCQ-200, if ``group``, ``types``, ``events`` or ``replay`` have a wrong type or value, or
            if ``events`` decorates a class.
    """
    if not isinstance(_text(group), str) or not _text(group).strip():
        fix = """write @dataframe_handler("loans", events=BookLent)"""
        raise HandlerSignatureError("OCQ-200", "@dataframe_handler needs the name of a processing group", fix=fix)
    mark = _checked(group, types, None, events, replay=replay)
    return lambda handler: _handler(handler, replace(mark, in_frames=True))


def _handler(member: T, mark: HandlerMark) -> T:
    """Add the mark of a handler; refuse to name columns above a class, which takes none."""
    if mark.events is not None and isinstance(member, type):
        given, decorator = f"events={mark.events.__name__}", "dataframe_handler" if mark.in_frames else "event_handling"
        what = f"{given} above class {member.__name__} would have no effect: it describes what one method takes"
        fix = f"put @{decorator}({given}) above that method instead"
        raise HandlerSignatureError("OCQ-200", what, fix=fix)
    return _noted(member, Declaration.HANDLER, mark)


def on_start(group: str | Enum) -> Callable[[T], T]:
    """Mark a function that runs once at each start of a group, in one transaction, before its first event.

    The place to create a read model's tables. Arguments are found by annotation, without an event.

    Args:
        group: Name of the processing group, or a member of an enum whose value is the name.
    """
    return _of_group(group, Declaration.ON_START)


def on_reset(group: str | Enum) -> Callable[[T], T]:
    """Mark a function that runs when a group is reset, in the transaction that moves its progress.

    The place to empty the read model. By annotation it gets ``Reset``, ``Connection``, ``Session``, and what the
    container provides. If it raises, nothing is reset.

    Args:
        group: Name of the processing group, or a member of an enum whose value is the name.

    Raises:
        HandlerSignatureError: OCQ-200, if ``group`` is not a name.
    """
    return _of_group(group, Declaration.ON_RESET)


def on_replay_finished(group: str | Enum) -> Callable[[T], T]:
    """Mark a function that runs once when all partitions of a group have finished the replay after a reset.

    It runs in its own transaction, before the first new event of the partition that finished last. Its arguments are
    those of an ``@on_reset`` function. If it raises, that partition fails and retries it.

    Args:
        group: Name of the processing group, or a member of an enum whose value is the name.

    Raises:
        HandlerSignatureError: OCQ-200, if ``group`` is not a name.
    """
    return _of_group(group, Declaration.ON_REPLAY_FINISHED)


def batch_key(group: str | Enum) -> Callable[[T], T]:
    """Mark the function that returns the batch of a scheduled group to which an event belongs.

    It is the group's sequence resolver: the events of a batch have one owner and an order, and wait for each other. By
    annotation it takes ``Event``, an event class or ``dict``, and ``Metadata``, and returns a text.

    Args:
        group: Name of the processing group, or a member of an enum whose value is the name.

    Raises:
        HandlerSignatureError: OCQ-200, if ``group`` is not a name.
    """
    return _of_group(group, Declaration.BATCH_KEY)


def inbox_filter(group: str | Enum) -> Callable[[T], T]:
    """Mark a function that returns whether an event enters the inbox of a scheduled group.

    Events for which one of them returns a false value are ignored permanently. By annotation it takes ``Event``, an
    event class or ``dict``, and ``Metadata``; it does not affect events of other classes.

    Args:
        group: Name of the processing group, or a member of an enum whose value is the name.

    Raises:
        HandlerSignatureError: OCQ-200, if ``group`` is not a name.
    """
    return _of_group(group, Declaration.INBOX_FILTER)


def checkpointing(group: str | Enum) -> Callable[[C], C]:
    """Mark a class whose methods handle events of a group, and which reports which of them are durable.

    Its ``@event_handling`` methods need not name the group. It has a method ``on_checkpoint``, and may have those of
    ``CheckpointParticipant``, from which it can derive. Progress is stored up to the position that it confirms.

    Args:
        group: Name of the processing group, or a member of an enum whose value is the name.

    Raises:
        HandlerSignatureError: OCQ-640, if ``group`` is not a name, or the marked object is not a class.

    Source:
        Axon's self-checkpointing, which is not part of its open source.
    """
    name, fix = _text(group), """write @checkpointing("leaderboard") above a class with @event_handling methods"""
    if not isinstance(name, str) or not name.strip():
        raise HandlerSignatureError("OCQ-640", "@checkpointing needs the name of a processing group", fix=fix)

    def mark(cls: C) -> C:
        given: object = cls
        if not isinstance(given, type):
            shown = getattr(given, "__qualname__", repr(given))
            raise HandlerSignatureError("OCQ-640", f"@checkpointing marks {shown}, which is not a class", fix=fix)
        attribute = Declaration.CHECKPOINTING.attribute
        setattr(cls, attribute, (*vars(cls).get(attribute, ()), GroupMark(name.strip())))
        register(cls)
        return cls

    return mark


def _of_group(group: object, declaration: Declaration) -> Callable[[T], T]:
    name, decorator = _text(group), declaration.value
    if not isinstance(name, str) or not name.strip():
        fix = f'write {decorator}("catalog")'
        raise HandlerSignatureError("OCQ-200", f"{decorator} needs the name of a processing group", fix=fix)
    return lambda function: _noted(function, declaration, GroupMark(name.strip()))


def upcaster(*types: str) -> Callable[[T], T]:
    """Mark a function that turns events of old types into events as they are written today.

    It takes the data (an event class or ``dict``), ``Event`` or ``Metadata`` by annotation, and returns an ``Upcast``,
    several of them, or ``None`` to drop the event. Each result is passed on to the upcaster of its new type, if any.

    Args:
        types: The event types that it takes, at least one; no other upcaster may take them.

    Raises:
        HandlerSignatureError: OCQ-200, if a type is not a text with at least one character, or is a pattern.

    Source:
        OpenCQRS upcasters.
    """
    if not types or not all(isinstance(name, str) and name.strip() for name in types):
        fix = 'write @upcaster("library.book-lent.v1") above the function'
        raise HandlerSignatureError("OCQ-200", f"@upcaster needs the types that it takes, got {types!r}", fix=fix)
    _refuse_patterns("@upcaster", types)

    def mark(function: T) -> T:
        earlier = _marks_on(function, Declaration.UPCASTER)
        setattr(function, Declaration.UPCASTER.attribute, tuple(dict.fromkeys((*types, *earlier))))
        register(function)
        return function

    return mark


_RESERVED_JOB = "standard"  # which names the settings of all jobs


def job(name: str | Enum, *, input: Callable[..., Any] | None = None) -> Callable[[T], T]:  # noqa: A002 its own word
    """Mark a function or method as a job: it runs at set times, on an event, or on demand.

    Arguments are found by annotation: ``JobContext``, ``Connection`` or ``Session`` (their transaction also records
    the progress of the run), ``AfterCommit``, and what containers provide. The settings say when it runs:
    ``opencqrs.jobs.<name>.triggers``.

    Args:
        name: Name of the job, or a member of an enum whose value is the name.
        input: Function that returns the ids that the job applies to: a ``select()`` of one column, which is read page
            by page; or ids (whole numbers or texts); with an argument ``JobPage`` those of a page, in ascending order.
            The job then runs for all of them, or for those that are requested.

    Raises:
        HandlerSignatureError: OCQ-200, if ``name`` or ``input`` has a wrong type or value.
    """
    text = _text(name)
    fix = 'write @job("clean-up") above the function'
    if not isinstance(text, str) or not text.strip():
        got = "got none" if callable(text) else f"got {name!r}"
        raise HandlerSignatureError("OCQ-200", f"@job needs the name of the job, {got}", fix=fix)
    if text.strip().casefold() == _RESERVED_JOB:
        what = f"a job cannot be called '{text.strip()}': jobs.standard holds the settings of all jobs"
        raise HandlerSignatureError("OCQ-200", what, fix=fix)
    given: object = input
    if given is not None and not callable(given):
        what = f"input is a function that returns ids, got {input!r}"
        raise HandlerSignatureError("OCQ-200", what, fix='write @job("remind", input=due_invoices)')
    mark = JobMark(text.strip(), input)
    return lambda function: _noted(function, Declaration.JOB, mark)


@overload
def around_event(group: T) -> T: ...
@overload
def around_event(group: str | Enum = "", *, order: int | None = None) -> Callable[[T], T]: ...
def around_event(group: str | Enum | Callable[..., Any] = "", *, order: int | None = None) -> Any:
    """Mark a generator function that surrounds all handlers of one event.

    It yields once; the handlers run there, and their errors are raised there. Arguments are found by annotation:
    ``Event``, ``Metadata``, ``ProcessingContext``, the connection or session, and what containers provide. Handlers
    that take lists run later, outside of it.

    Args:
        group: Name of the processing group, or a member of an enum whose value is the name; by default, every group.
        order: Lower ones surround higher ones; those without an order are innermost.
    """
    return _around(Surrounded.EVENT, group, order)


@overload
def around_handler(group: T) -> T: ...
@overload
def around_handler(group: str | Enum = "", *, order: int | None = None) -> Callable[[T], T]: ...
def around_handler(group: str | Enum | Callable[..., Any] = "", *, order: int | None = None) -> Any:
    """Mark a generator function that surrounds each call of a handler.

    It yields once; the handler runs there, and its error is raised there. Arguments are found by annotation:
    ``Invocation``, the connection or session, and what containers provide.

    Args:
        group: Name of the processing group, or a member of an enum whose value is the name; by default, every group.
        order: Lower ones surround higher ones; those without an order are innermost.
    """
    return _around(Surrounded.HANDLER, group, order)


def _around(surrounded: Surrounded, group: Any, order: int | None) -> Any:
    if callable(group):
        return _around(surrounded, "", order)(group)
    group = _text(group)
    if not isinstance(group, str) or group.isspace():
        fix = f'write @around_{surrounded.value}("catalog"), or @around_{surrounded.value} for every group'
        raise HandlerSignatureError("OCQ-200", f"a processing group's name is a text, got {group!r}", fix=fix)
    name = group.strip()
    return lambda function: _noted(function, Declaration.AROUND, AroundMark(surrounded, name, order))


def _text(name: Any) -> Any:
    """Return the value of an enum member, and anything else as it is.

    Raises:
        HandlerSignatureError: OCQ-200, if it is a text that databases or terminals cannot take as a name.
    """
    text = name.value if isinstance(name, Enum) else name
    if isinstance(text, str) and any(category(character) in _NOT_IN_NAMES for character in text.strip()):
        what = f"the name {text!r} contains a line end or another control character"
        raise HandlerSignatureError("OCQ-200", what, fix="write the name in letters, digits, - and _")
    return text


def _noted(member: T, declaration: Declaration, mark: _Mark) -> T:
    """Add a mark. Each decoration creates its own mark, which copies of the member share."""
    earlier = _marks_on(member, declaration)
    setattr(member, declaration.attribute, (*earlier, replace(mark, home=register(member))))
    return member


def _marks_on(member: Any, declaration: Declaration) -> tuple[Any, ...]:
    """Return the marks that ``member`` has already; refuse objects that cannot have one."""
    if inspect.ismethod(member) or not hasattr(member, "__dict__"):
        what = f"a {type(member).__name__} cannot be decorated"
        fix = "decorate a function, a method where it is written, or a class"
        written = member.fget if isinstance(member, property) else member
        raise HandlerSignatureError("OCQ-200", what, getattr(written, "__qualname__", repr(member)), fix)
    marks: tuple[Any, ...] = member.__dict__.get(declaration.attribute, ())
    return marks

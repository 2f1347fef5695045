"""Dispatch: from an event to the calls of the handlers that want it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from inspect import isawaitable
from typing import Any, get_origin, is_typeddict

from opencqrs_py.errors import HandlerSignatureError
from opencqrs_py.model.context import ProcessingContext
from opencqrs_py.model.event import Event
from opencqrs_py.model.handler import Handler, event_type_of
from opencqrs_py.processing.decoding import Decoder, decoder_for
from opencqrs_py.processing.ports import Injector, UnitOfWork
from opencqrs_py.processing.signatures import Argument, Kind, Signature, read_signature

__all__ = ["BoundHandler", "Dispatcher", "bind", "run_on_start"]

Getter = Callable[[Any, Event, UnitOfWork, ProcessingContext], Any]

_GETTERS: dict[Kind, Getter] = {
    Kind.EVENT: lambda decoded, _event, _unit, _context: decoded,
    Kind.RAW: lambda _decoded, event, _unit, _context: event,
    Kind.METADATA: lambda _decoded, event, _unit, _context: event.metadata,
    Kind.CONTEXT: lambda _decoded, _event, _unit, context: context,
    Kind.CONNECTION: lambda _decoded, _event, unit, _context: unit.connection,
    Kind.SESSION: lambda _decoded, _event, unit, _context: unit.session,
}
_ANYTHING = (object, dict, Mapping)
_MUTABLE = (dict, Mapping)  # decoded for each handler anew, so that none sees what another one changed


@dataclass(frozen=True, slots=True)
class BoundHandler:
    """A handler definition whose arguments are known."""

    handler: Handler
    signature: Signature
    call: Callable[[Any, Event, UnitOfWork, ProcessingContext], None]


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of the plan for an event type: to which class the data are decoded, how, and whom to call."""

    decoded_as: type | None
    decode: Decoder | None
    call: Callable[[Any, Event, UnitOfWork, ProcessingContext], None]


def bind(handler: Handler, injector: Injector) -> BoundHandler:
    """Check a handler's signature and prepare its call.

    Raises:
        HandlerSignatureError: OCQ-201 to OCQ-206.
    """
    signature = read_signature(handler.call, handler.place, injector)
    return BoundHandler(handler, signature, _prepared(handler.call, signature, injector))


def run_on_start(call: Callable[..., Any], place: str, injector: Injector, unit: UnitOfWork) -> None:
    """Call an ``@on_start`` function inside a transaction."""
    signature = read_signature(call, place, injector, event=False)
    nothing: Any = None
    _prepared(call, signature, injector)(nothing, nothing, unit, nothing)


class Dispatcher:
    """Calls the handlers of one group.

    Args:
        handlers: The group's handlers, in the order in which they run.
        event_classes: All event classes known, so that a handler of a parent class sees its children's types.

    Raises:
        HandlerSignatureError: OCQ-206, if no event type leads to a handler's event class; OCQ-208, if JSON cannot
            become it.
    """

    def __init__(self, handlers: Sequence[BoundHandler], event_classes: Sequence[type]) -> None:
        self._handlers = tuple(handlers)
        asked_for = (c for bound in handlers for c in bound.signature.event_classes)
        self._classes: dict[str, list[type]] = {}  # several classes may stand for one type, each in its own module
        for cls in dict.fromkeys((*event_classes, *asked_for)):
            if isinstance(cls, type) and (name := event_type_of(cls)):
                self._classes.setdefault(name, []).append(cls)
        for bound in self._handlers:
            self._check(bound)
        self._plans: dict[str, tuple[_Call, ...]] = {}

    @cached_property
    def wanted_types(self) -> frozenset[str] | None:
        """The event types that lead to a handler, or ``None`` when only a look at each type can tell."""
        if any(self._open(bound) for bound in self._handlers):
            return None
        exact = {name for bound in self._handlers for name in bound.handler.mark.types}
        return frozenset(exact | {name for name in self._classes if self._plan(name)})

    @property
    def transactional(self) -> bool:
        """Whether every handler asks for the progress transaction."""
        return all(bound.signature.transactional for bound in self._handlers)

    def dispatch(self, event: Event, unit: UnitOfWork, context: ProcessingContext) -> bool:
        """Call each handler that wants the event, in order; say whether there was one.

        Raises:
            EventFormatError: If the event cannot be decoded for a handler that wants it.
            Exception: Whatever a handler raises.
        """
        plan = self._plans.get(event.type)
        if plan is None:
            plan = self._plans[event.type] = self._plan(event.type)
        decoded: dict[type | None, Any] = {None: None}
        for step in plan:
            if step.decode is not None and (step.decoded_as not in decoded or step.decoded_as in _MUTABLE):
                decoded[step.decoded_as] = step.decode(event)
            step.call(decoded[step.decoded_as], event, unit, context)
        return bool(plan)

    def _open(self, bound: BoundHandler) -> bool:
        if bound.handler.mark.types:
            return any("*" in pattern or "?" in pattern or "[" in pattern for pattern in bound.handler.mark.types)
        return not bound.signature.event_classes or any(_plain(c) in _ANYTHING for c in bound.signature.event_classes)

    def _plan(self, event_type: str) -> tuple[_Call, ...]:
        calls = (self._call_for(bound, event_type) for bound in self._handlers)
        return tuple(call for call in calls if call is not None)

    def _call_for(self, bound: BoundHandler, event_type: str) -> _Call | None:
        patterns, wanted = bound.handler.mark.types, bound.signature.event_classes
        if patterns and not any(fnmatchcase(event_type, pattern) for pattern in patterns):
            return None
        if not wanted:
            return _Call(None, None, bound.call)
        stand_ins = self._classes.get(event_type, ())
        fitting = (cls for asked in map(_plain, wanted) if (cls := _fitting(asked, stand_ins)) is not None)
        decoded_as = next(fitting, _plain(wanted[0]) if patterns else None)
        return None if decoded_as is None else _Call(decoded_as, decoder_for(decoded_as), bound.call)

    def _check(self, bound: BoundHandler) -> None:
        known = [cls for stand_ins in self._classes.values() for cls in stand_ins]
        for plain in map(_plain, bound.signature.event_classes):
            needed = [plain] if plain in _ANYTHING else [cls for cls in known if _is_a(cls, plain)]
            if bound.handler.mark.types:
                needed.append(plain)
            if not needed:
                what = f"no event type leads to {plain.__name__}"
                fix = f'write @event_type("…") above class {plain.__name__}, or give the handler types=["…"]'
                raise HandlerSignatureError("OCQ-206", what, bound.handler.place, fix)
            for cls in needed:
                decoder_for(cls)  # what cannot be decoded to is found at the start, not with the first event


def _fitting(asked: Any, stand_ins: Sequence[type]) -> Any:
    """Return the class to decode to for a handler that asks for ``asked``: itself before its children (K7)."""
    if asked in _ANYTHING or asked in stand_ins:
        return asked
    return next((cls for cls in stand_ins if _is_a(cls, asked)), None)


def _plain(cls: Any) -> Any:
    return get_origin(cls) or cls


def _is_a(cls: Any, parent: Any) -> bool:
    if is_typeddict(parent) or is_typeddict(cls):
        return cls is parent
    return issubclass(cls, parent)


def _prepared(
    call: Callable[..., Any], signature: Signature, injector: Injector
) -> Callable[[Any, Event, UnitOfWork, ProcessingContext], None]:
    positional = [_getter(argument, injector) for argument in signature.arguments if not argument.by_keyword]
    named = {a.name: _getter(a, injector) for a in signature.arguments if a.by_keyword}

    def invoke(decoded: Any, event: Event, unit: UnitOfWork, context: ProcessingContext) -> None:
        _finish(call(*[get(decoded, event, unit, context) for get in positional]))

    def invoke_with_names(decoded: Any, event: Event, unit: UnitOfWork, context: ProcessingContext) -> None:
        keywords = {name: get(decoded, event, unit, context) for name, get in named.items()}
        _finish(call(*[get(decoded, event, unit, context) for get in positional], **keywords))

    return invoke_with_names if named else invoke


def _getter(argument: Argument, injector: Injector) -> Getter:
    if argument.kind is Kind.INJECTED:
        wanted = argument.annotation
        return lambda _decoded, _event, _unit, _context: injector.provide(wanted)
    return _GETTERS[argument.kind]


def _finish(result: Any) -> None:
    """Run what an ``async`` handler has only begun, also if a plain decorator hides that it is one."""
    if result is not None and isawaitable(result):
        asyncio.run(_awaited(result))


async def _awaited(result: Awaitable[Any]) -> None:
    await result

"""Plans: what is done with the events of one type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import repeat
from typing import Any

from opencqrs_py.errors import HandlerSignatureError
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.event import Event
from opencqrs_py.processing.awaiting import finish
from opencqrs_py.processing.binding import BoundHandler, Call, CallOfWork
from opencqrs_py.processing.decoding import (
    NO_OBJECTS,
    Decoder,
    QuickDecoder,
    decoder_for,
    quick_decoder_for,
)
from opencqrs_py.processing.event_types import ANYTHING, EventTypes, immutable, is_a, may_yield, plain
from opencqrs_py.processing.exceptions import raise_interrupt
from opencqrs_py.processing.interception import Interceptors
from opencqrs_py.processing.signatures import Kind
from opencqrs_py.processing.work import Work


@dataclass(slots=True)
class Gathered:
    """What a handler that takes lists gets of a chunk: one member for each event that it wants.

    ``events`` and ``raws`` stay empty when neither the handler nor what surrounds it looks at them.
    """

    decoded: list[Any] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    raws: list[Event] = field(default_factory=list)


Run = Callable[[Event, Event, Work, Sequence[Gathered]], bool]
"""Does what is to be done with an event, given as read and as stored; returns whether a handler wants it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is done with the events of one type.

    Attributes:
        calls: Calls the handlers that take one event; ``None`` if there are none.
        gathers: Keeps the event for those that take lists; ``None`` if there are none.
    """

    calls: Run | None
    gathers: Run | None

    @property
    def empty(self) -> bool:
        """Whether no handler wants the events."""
        return self.calls is None and self.gathers is None


def _undecoded(_event: Event) -> None:
    return None


@dataclass(frozen=True, slots=True)
class _Step:
    """One handler of a plan: to which class data are decoded, how, whether the object may be shared, and the call.

    ``only`` are the classes of which the object must be, where decoding may yield one of another class (K7).
    """

    call: Call
    decoded_as: Any = None
    decode: Decoder = _undecoded
    shares: bool = False
    only: tuple[type, ...] = ()

    @property
    def quick(self) -> QuickDecoder | None:
        """The decoder for the usual case, if there is one."""
        return None if self.decoded_as is None or self.only else quick_decoder_for(self.decoded_as)


@dataclass(frozen=True, slots=True)
class _Fill:
    """A handler that takes lists: its number, how its objects are decoded, and whether it sees the events too."""

    number: int
    decode: Decoder
    whole: bool
    only: tuple[type, ...]


class Planner:
    """Makes the plans of a group's handlers.

    Args:
        handlers: In the order in which they run.
        types: The event classes known; those that handlers ask for are added.
        interceptors: What surrounds handlers.

    Raises:
        HandlerSignatureError: OCQ-206, if no event type leads to a handler's event class; OCQ-208, if JSON cannot
            become it.
    """

    def __init__(self, handlers: Sequence[BoundHandler], types: EventTypes, interceptors: Interceptors) -> None:
        types.add(cls for bound in handlers for cls in bound.signature.event_classes)
        self._types = types
        self._handlers = [(bound, interceptors.around_handler(bound, bound.call)) for bound in handlers]
        self._singles = [(bound, call) for bound, call in self._handlers if not bound.signature.many]
        self._lists = [(bound, call) for bound, call in self._handlers if bound.signature.many]
        self._surrounded = interceptors.of_handlers
        self._intercepted = interceptors.of_events or interceptors.of_handlers
        self._together = True  # until an event shows that it is not so
        self._quick: dict[str, QuickDecoder] = {}
        self._calls_of_work: dict[str, CallOfWork] = {}
        self._plans: dict[str, Plan] = {}
        for bound in handlers:
            self._check(bound)

    @property
    def list_calls(self) -> Sequence[Call]:
        """The calls of the handlers that take lists, in the order of what is gathered for them."""
        return [call for _, call in self._lists]

    def plan(self, event_type: str) -> Plan:
        """Return the plan for a type; made once."""
        plan = self._plans.get(event_type)
        if plan is None:
            steps = list(filter(None, (self._step(bound, call, event_type) for bound, call in self._singles)))
            kept = enumerate((bound, self._step(bound, call, event_type)) for bound, call in self._lists)
            fills = [_Fill(n, step.decode, self._whole(bound), step.only) for n, (bound, step) in kept if step]
            plan = Plan(_calling(steps) if steps else None, _gathering(fills) if fills else None)
            self._plans[event_type] = plan
        return plan

    def decoded_together(self, chunk: Chunk) -> list[Any] | None:
        """Return the objects of a chunk, if each of its events is as usual and wanted by one handler that sees no more.

        Returns:
            ``None`` if that is not so: then each event has to be looked at.
        """
        if not self._together:
            return None
        try:
            decoded = chunk.decoded(self._quick)
        except KeyError as missing:
            return self.decoded_together(chunk) if self._learned(missing.args[0]) else None
        except BaseException as error:  # looking at each explains it
            raise_interrupt(error)
            return None
        return decoded if decoded and NO_OBJECTS.isdisjoint(map(type, decoded)) else None

    def calls_of_work(self, chunk: Chunk, work: Work) -> Iterable[Callable[[Any], Any]]:
        """Return, for each event of a chunk that was decoded together, the call of its handler."""
        known = list(self._calls_of_work.items())  # at once: another partition's thread may be adding a type
        calls = {event_type: call_of_work(work) for event_type, call_of_work in known}
        if len(calls) == 1:
            return repeat(*calls.values())
        return map(calls.__getitem__, chunk.types)

    def _learned(self, event_type: str) -> bool:
        """Note how events of a type are decoded; return whether that is new and they can be decoded together."""
        wanting = [(bound, step) for bound, call in self._handlers if (step := self._step(bound, call, event_type))]
        if event_type in self._quick or not wanting:
            return False
        bound, step = wanting[0]
        self._together = len(wanting) == 1 and step.quick is not None and self._sees_objects_only(bound)
        if self._together and step.quick is not None:
            if bound.call_of_work is not None:
                self._calls_of_work[event_type] = bound.call_of_work
            self._quick[event_type] = step.quick  # last: from here on other threads take the type for known
        return self._together

    def _sees_objects_only(self, bound: BoundHandler) -> bool:
        """Return whether a handler can be given the objects of a chunk without a look at their events, or at others."""
        if bound.signature.many:
            return len(self._handlers) == 1 and not self._whole(bound)
        return not self._lists and not self._intercepted and bound.call_of_work is not None

    @property
    def all_places(self) -> list[str]:
        """``file:line (name)`` of each handler."""
        return [bound.handler.place for bound, _ in self._handlers]

    def places(self, event_type: str) -> list[str]:
        """Return ``file:line (name)`` of the handlers that take events of a type."""
        return [bound.handler.place for bound, call in self._handlers if self._step(bound, call, event_type)]

    def known_types(self) -> frozenset[str] | None:
        """Return the types that lead to a handler, or ``None`` when each type has to be looked at."""
        handlers = [bound for bound, _ in self._handlers]
        if self._types.open or any(map(_open, handlers)):
            return None
        exact = {name for bound in handlers for name in bound.handler.mark.types}
        return frozenset(exact | {name for name in self._types.names if not self.plan(name).empty})

    def _whole(self, bound: BoundHandler) -> bool:
        """Return whether a handler, or what surrounds it, sees more of its events than the decoded objects."""
        kinds = {argument.kind for argument in bound.signature.arguments}
        return self._surrounded or bool(kinds & {Kind.RAW, Kind.METADATA, Kind.CONTEXT})

    def _step(self, bound: BoundHandler, call: Call, event_type: str) -> _Step | None:
        patterns, wanted = bound.handler.mark.types, bound.signature.event_classes
        if patterns and not any(fnmatchcase(event_type, pattern) for pattern in patterns):
            return None
        if not wanted:
            return _Step(call)
        decoded_as = self._types.class_for(wanted, event_type) or (plain(wanted[0]) if patterns else None)
        if decoded_as is not None:
            return _Step(call, decoded_as, decoder_for(decoded_as), immutable(decoded_as))
        parent = self._types.parent_for(wanted, event_type)
        return None if parent is None else _Step(call, parent, decoder_for(parent), only=tuple(map(plain, wanted)))

    def _check(self, bound: BoundHandler) -> None:
        known = self._types.all_classes()
        for wanted in map(plain, bound.signature.event_classes):
            leading = (cls for cls in known if is_a(cls, wanted) or may_yield(cls, wanted))
            needed = [wanted] if wanted in ANYTHING else list(leading)
            if bound.handler.mark.types or self._types.open:
                needed.append(wanted)
            if not needed:
                what = f"no event type leads to {wanted.__name__}"
                fix = f'write @event_type("…") above class {wanted.__name__}, or give the handler types=["…"]'
                raise HandlerSignatureError("OCQ-206", what, bound.handler.place, fix)
            for cls in needed:
                decoder_for(cls)  # what cannot be decoded to is found at the start, not with the first event


def _open(bound: BoundHandler) -> bool:
    """Return whether a handler takes types that are not known by name."""
    if bound.handler.mark.types:
        return any("*" in pattern or "?" in pattern or "[" in pattern for pattern in bound.handler.mark.types)
    return not bound.signature.event_classes or any(plain(cls) in ANYTHING for cls in bound.signature.event_classes)


def _calling(steps: Sequence[_Step]) -> Run:
    """Return what calls handlers in turn, each with an object of its own.

    What no handler can change is decoded once for all of them. Where only the object shows which handlers want it, one
    that a handler does not want goes to the next.
    """
    if len(steps) == 1 and not steps[0].only:
        return _calling_one(steps[0])
    shared = set() if any(step.only for step in steps) else {step.decoded_as for step in steps if step.shares}

    def run(event: Event, raw: Event, work: Work, _gathered: Sequence[Gathered]) -> bool:
        ready: dict[Any, Any] = {}
        called = False
        for step in steps:
            decoded = ready.pop(step.decoded_as) if step.decoded_as in ready else step.decode(event)
            wanted = not step.only or issubclass(type(decoded), step.only)
            if not wanted or step.decoded_as in shared:
                ready[step.decoded_as] = decoded
            if wanted:
                finish(step.call(decoded, event, raw, work))
                called = True
        return called

    return run


def _calling_one(step: _Step) -> Run:
    """Return what calls a single handler, which is what most groups have for a type: in a third of the time."""
    call, decode = step.call, step.decode if step.quick is None else _quickly(step.quick, step.decode)

    def run(event: Event, raw: Event, work: Work, _gathered: Sequence[Gathered]) -> bool:
        result = call(decode(event), event, raw, work)
        if result is not None:
            finish(result)
        return True

    return run


def _quickly(quick: QuickDecoder, decode: Decoder) -> Decoder:
    """Return a decoder that tries the one for the usual case first; the other one explains what is wrong."""

    def decoded(event: Event) -> Any:
        try:
            found = quick(event.payload)
            if type(found) not in NO_OBJECTS:
                return found
        except BaseException as error:
            raise_interrupt(error)
        return decode(event)

    return decoded


def _gathering(fills: Sequence[_Fill]) -> Run:
    """Return what keeps an event for the handlers that take lists."""

    def run(event: Event, raw: Event, _work: Work, gathered: Sequence[Gathered]) -> bool:
        kept = False
        for fill in fills:
            decoded = fill.decode(event)
            if fill.only and not issubclass(type(decoded), fill.only):
                continue
            kept = True
            of_chunk = gathered[fill.number]
            of_chunk.decoded.append(decoded)
            if fill.whole:
                of_chunk.events.append(event)
                of_chunk.raws.append(raw)
        return kept

    return run

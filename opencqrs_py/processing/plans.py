"""Plans: which handlers get the events of a type, in which order, and decoded to what."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from opencqrs_py.errors import HandlerSignatureError
from opencqrs_py.model.event import Event
from opencqrs_py.model.naming import listed
from opencqrs_py.processing.awaiting import complete
from opencqrs_py.processing.binding import BoundHandler, Call, Work
from opencqrs_py.processing.decoding import Decoder, decoder_for
from opencqrs_py.processing.event_types import ANYTHING, EventTypes, decoded_as, immutable, is_a, may_yield, plain
from opencqrs_py.processing.forks import FORKED
from opencqrs_py.processing.reading import Reading
from opencqrs_py.processing.tables import TableMaker

_log = logging.getLogger("opencqrs.processing")

Gathered = list[tuple[Any, Event, Event]]
"""The input of a handler that takes lists: each event of a chunk that it wants, decoded, as read and as stored."""

Run = Callable[[Event, Event, Work, Sequence[Gathered]], bool]
"""Handles an event, given as read and as stored; returns whether a handler wants it."""


@dataclass(frozen=True, slots=True)
class Target:
    """A handler of the group, its call with its interceptors, and its number among those that take lists or tables.

    ``tables`` makes the tables of a handler that takes them.
    """

    bound: BoundHandler
    call: Call
    number: int | None
    tables: TableMaker | None


def _undecoded(_event: Event) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Step:
    """How one handler gets events of a type: the class to which their data are decoded, if any, and the decoder.

    For a table, its maker decodes them, unless they become objects of another class first. ``only``
    are the classes of which the object must be an instance, where decoding may yield another class (K7).
    """

    target: Target
    decoded_as: Any = None
    decode: Decoder = _undecoded
    only: tuple[type, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """The handlers of the events of a type: those that take one event, and those that take lists."""

    steps: Sequence[Step]
    calls: Run | None
    gathers: Run | None


class Plans:
    """The plans of a group for each type of event; one is made when the first event of its type arrives.

    Args:
        targets: The group's handlers, in the order in which they run.
        types: The event classes known.
        reading: How stored events are read.

    Raises:
        HandlerSignatureError: OCQ-206, if no event type leads to a handler's event class, or upcasters take all events
            of its types; OCQ-208, if JSON cannot be decoded to it.
    """

    def __init__(self, targets: Sequence[Target], types: EventTypes, reading: Reading) -> None:
        self._targets = targets
        self._types = types
        self._reading = reading
        self._made: dict[str, Plan] = {}
        for target in targets:
            self._check(target.bound)
            self._check_reached(target)

    def of(self, event_type: str) -> Plan:
        """Return the plan for events of a type, as read; made once."""
        plan = self._made.get(event_type)
        if plan is None:
            steps = list(filter(None, (self._step(target, event_type) for target in self._targets)))
            calls = [step for step in steps if step.target.number is None]
            gathers = [step for step in steps if step.target.number is not None]
            plan = Plan(steps, _giving(calls) if calls else None, _giving(gathers) if gathers else None)
            self._made[event_type] = plan
        return plan

    def compare(self, event_type: str, made: Sequence[Event]) -> None:
        """Warn once if an upcaster takes a type that a handler names, and makes nothing of it that the handler takes.

        What an upcaster makes is only known when it is called.
        """
        if event_type not in self._reading.upcast_types:
            return
        types = dict.fromkeys(one.type for one in made)
        for target in self._targets:
            if is_open(target.bound) or self._step(target, event_type) is None:
                continue
            if not any(self._step(target, each) is not None for each in types):
                _log.warning(
                    "handler %s does not get events of type '%s': the upcaster %s takes them, and makes events of type "
                    "%s\n  fix:   have the handler take that type, or remove '%s' from its types",
                    *(target.bound.handler.place, event_type, self._reading.upcaster_of(event_type)),
                    *(listed(map(repr, types)), event_type),
                )

    def _step(self, target: Target, event_type: str) -> Step | None:
        patterns, wanted = target.bound.handler.mark.types, target.bound.signature.event_classes
        if patterns and not any(fnmatchcase(event_type, pattern) for pattern in patterns):
            return None
        if not wanted:
            return Step(target)
        found = self._types.class_for(wanted, event_type) or (decoded_as(wanted[0]) if patterns else None)
        if target.tables is not None and plain(found) is plain(wanted[0]):
            return Step(target)
        if found is not None:
            return Step(target, found, decoder_for(found))
        parent = self._types.parent_for(wanted, event_type)
        return None if parent is None else Step(target, parent, decoder_for(parent), tuple(map(plain, wanted)))

    def _check(self, bound: BoundHandler) -> None:
        known = self._types.all_classes()
        for annotation in bound.signature.event_classes:
            wanted = plain(annotation)
            leading = (cls for cls in known if is_a(cls, wanted) or may_yield(cls, wanted))
            needed = [wanted] if wanted in ANYTHING else list(leading)
            if bound.handler.mark.types or self._types.open:
                needed.append(wanted)
            if not needed:
                what = f"no event type leads to {wanted.__name__}"
                fix = f'write @event_type("…") above class {wanted.__name__}, or give the handler types=["…"]'
                raise HandlerSignatureError("OCQ-206", what, bound.handler.place, fix)
            for cls in needed:  # an impossible class is found at the start, not with the first event
                decoder_for(decoded_as(annotation) if cls is wanted else cls)

    def _check_reached(self, target: Target) -> None:
        """Refuse a handler all of whose types upcasters take: no event of such a type is left when handlers get it."""
        if self._types.open or is_open(target.bound):
            return
        known = dict.fromkeys((*self._types.names, *target.bound.handler.mark.types))
        named = [name for name in known if self._step(target, name) is not None]
        if named and self._reading.upcast_types.issuperset(named):
            places = ", ".join(dict.fromkeys(self._reading.upcaster_of(name) for name in named))
            what = f"no event of type {listed(map(repr, named))} reaches the handler: the upcaster {places} takes them"
            fix = "have it take what the upcaster makes, or remove the upcaster"
            raise HandlerSignatureError("OCQ-206", what, target.bound.handler.place, fix)


def is_open(bound: BoundHandler) -> bool:
    """Return whether a handler takes types that are not known by name."""
    if bound.handler.mark.types:
        return any("*" in pattern or "?" in pattern or "[" in pattern for pattern in bound.handler.mark.types)
    return not bound.signature.event_classes or any(plain(cls) in ANYTHING for cls in bound.signature.event_classes)


def nothing(_event: Event, _raw: Event, _work: Work, _gathered: Sequence[Gathered]) -> bool:
    """Handle an event of a type that no handler wants."""
    return False


def _giving(steps: Sequence[Step]) -> Run:
    """Return a function that gives an event to handlers in turn, with a separate object for each."""
    times = Counter(step.decoded_as for step in steps)
    shared = {cls for cls in times if cls is not None and times[cls] > 1 and immutable(cls)}
    if shared or any(step.only for step in steps):
        return _sharing(steps, shared)
    table = [(step.target.call, step.target.number, step.decode) for step in steps]

    def run(event: Event, raw: Event, work: Work, gathered: Sequence[Gathered]) -> bool:
        for call, number, decode in table:
            work.calls += 1
            if number is not None:
                gathered[number].append((decode(event), event, raw))
            elif (result := call(decode(event), event, raw, work)) is not None or FORKED:
                complete(result)
        return True

    return run


def _sharing(steps: Sequence[Step], shared: set[Any]) -> Run:
    """Return a function that gives an event to handlers in turn, some of which may share an object.

    Immutable objects are decoded once for all handlers. Where only the object shows which handlers want it, one
    that a handler does not want is passed to the next.
    """
    shared = set() if any(step.only for step in steps) else shared

    def run(event: Event, raw: Event, work: Work, gathered: Sequence[Gathered]) -> bool:
        ready: dict[Any, Any] = {}
        given = False
        for step in steps:
            decoded = ready.pop(step.decoded_as) if step.decoded_as in ready else step.decode(event)
            wanted = not step.only or issubclass(type(decoded), step.only)
            if not wanted or step.decoded_as in shared:
                ready[step.decoded_as] = decoded
            if not wanted:
                continue
            given, target = True, step.target
            if target.number is not None:
                gathered[target.number].append((decoded, event, raw))
            else:
                work.calls += 1
                complete(target.call(decoded, event, raw, work))
        return given

    return run


def table_maker_for(bound: BoundHandler) -> TableMaker | None:
    """Return the maker of a handler's tables, ``None`` if it takes none; raises OCQ-238 like ``TableReader``."""
    if not bound.signature.in_columns:
        return None
    from opencqrs_py.processing.columns.columns import TableReader  # noqa: PLC0415 loads pyarrow, only where it is asked for

    classes = bound.signature.event_classes
    return TableReader(classes[0] if classes else None, bound.handler.place)

"""Dispatch: from the events of a chunk to calls of the handlers that take them.

How the events of a type are handled is planned when the first of them arrives. There are four ways: if all handlers
take tables, the chunk becomes a table for each; a chunk with usual events only is decoded at once, and its objects are
passed on; an event that needs no reading is given to its handlers in turn; an event that is upcast, in an envelope or
surrounded by interceptors is read first.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import count, islice, repeat
from operator import length_hint
from typing import Any

from opencqrs_py.errors import HandlerSignatureError
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.event import Event
from opencqrs_py.model.naming import listed
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.selection import ATTRIBUTES
from opencqrs_py.processing.awaiting import complete
from opencqrs_py.processing.binding import BoundHandler, Call, CallOfWork, IsMeant, Work
from opencqrs_py.processing.decoding import NO_OBJECTS, Decoder, QuickDecoder, decoder_for, quick_decoder_for
from opencqrs_py.processing.event_types import ANYTHING, EventTypes, decoded_as, immutable, is_a, may_yield, plain
from opencqrs_py.processing.exceptions import raise_interrupt
from opencqrs_py.processing.field_names import spelling_of
from opencqrs_py.processing.forks import FORKED
from opencqrs_py.processing.interception import Interceptors
from opencqrs_py.processing.reading import Reading
from opencqrs_py.processing.roles import Kind
from opencqrs_py.processing.tables import RowFailedError, TableMaker

_log = logging.getLogger("opencqrs.processing")


class ChunkFailedError(Exception):
    """The handlers of a chunk raised ``error`` at the event with ``index``; ``None``: while it handled several events.

    Attributes:
        tries_alone: Whether that event, if it is the first one, is tried alone before it counts as failed: then
            whatever this attempt leaves outside the transaction comes from this event only.
    """

    def __init__(self, index: int | None, error: BaseException, *, tries_alone: bool = False) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error
        self.tries_alone = tries_alone


_Gathered = list[tuple[Any, Event, Event]]
"""The input of a handler that takes lists: each event of a chunk that it wants, decoded, as read and as stored."""

_Run = Callable[[Event, Event, Work, Sequence[_Gathered]], bool]
"""Handles an event, given as read and as stored; returns whether a handler wants it."""


@dataclass(frozen=True, slots=True)
class _Target:
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
class _Step:
    """How one handler gets events of a type: the class to which their data are decoded, if any, and the decoder.

    For a table, its maker decodes them, unless they become objects of another class first. ``only``
    are the classes of which the object must be an instance, where decoding may yield another class (K7).
    """

    target: _Target
    decoded_as: Any = None
    decode: Decoder = _undecoded
    only: tuple[type, ...] = ()


@dataclass(frozen=True, slots=True)
class _Plan:
    """The handlers of the events of a type: those that take one event, and those that take lists."""

    steps: Sequence[_Step]
    calls: _Run | None
    gathers: _Run | None


class Dispatcher:
    """Calls the handlers of one group for the events of a chunk.

    Handlers that take one event are called event by event, in their order. Then those that take lists or a table are
    called once each, in their order, with what the chunk has for them.

    Args:
        handlers: The group's handlers, in the order in which they run.
        types: The event classes known, so that a handler of a parent class sees its children's types; those that
            handlers ask for are added.
        reading: How stored events are read: envelope and upcasters.
        interceptors: What surrounds events and handlers.
        belongs: Returns whether one of several upcast events is for a partition. Only a sequence
            resolver that sees decoded objects sends them to different partitions.

    Raises:
        HandlerSignatureError: OCQ-206, if no event type leads to a handler's event class, or upcasters take all events
            of its types; OCQ-208, if JSON cannot be decoded to it; OCQ-238, if a handler takes a table and a field of
            the class has no column type.
    """

    def __init__(
        self,
        handlers: Sequence[BoundHandler],
        types: EventTypes | Iterable[type] = (),
        reading: Reading | None = None,
        interceptors: Interceptors | None = None,
        belongs: Callable[[Event, Partition, IsMeant | None], bool] | None = None,
    ) -> None:
        self._signatures = [bound.signature for bound in handlers]
        self._types = types if isinstance(types, EventTypes) else EventTypes(types)
        self._types.add(plain(cls) for signature in self._signatures for cls in signature.event_classes)
        self._reading = reading or Reading()
        self._interceptors = interceptors or Interceptors()
        self._belongs = belongs
        self._surrounded = self._interceptors.of_events or self._interceptors.of_handlers
        # Interceptors of a handler may take the session, too.
        self._flushes = self._surrounded or any(signature.asks_for(Kind.SESSION) for signature in self._signatures)
        numbers = count()
        self._targets = [
            _Target(
                bound,
                self._interceptors.around_handler(bound),
                next(numbers) if bound.signature.many else None,
                _table_maker_for(bound),
            )
            for bound in handlers
        ]
        self._only_tables = (  # until an event type shows otherwise
            self._reading.plain
            and not self._interceptors.of_handlers
            and all(bound.signature.in_columns for bound in handlers)
        )
        self._in_columns: dict[str, Sequence[int]] = {}
        self._lists = [target for target in self._targets if target.number is not None]
        self._plans: dict[str, _Plan] = {}
        self._runs: dict[str, _Run] = {}
        self._together = self._reading.plain and not self._only_tables  # likewise, until an event shows otherwise
        self._quick: dict[str, QuickDecoder] = {}
        self._calls_of_work: dict[str, CallOfWork] = {}
        self._compared: set[str] = set()
        for target in self._targets:
            self._check(target.bound)
            self._check_reached(target)

    @cached_property
    def wanted_types(self) -> frozenset[str] | None:
        """The stored types that may lead to a handler, or ``None`` if each type has to be checked."""
        handlers = [target.bound for target in self._targets]
        if self._types.open or any(map(_open, handlers)):
            return None
        exact = {name for bound in handlers for name in bound.handler.mark.types}
        return frozenset(exact | set(filter(self.handles, self._types.names)) | self._reading.upcast_types)

    @property
    def type_names(self) -> tuple[str, ...]:
        """The types and patterns that handlers name, and the types of their event classes; none: some take any type."""
        handlers = [target.bound for target in self._targets]
        if any(not bound.handler.mark.types and _open(bound) for bound in handlers):
            return ()
        named = {name for bound in handlers for name in bound.handler.mark.types}
        return tuple(sorted((named | set(filter(self.handles, self._types.names))) - self._reading.upcast_types))

    @property
    def transactional(self) -> bool:
        """Whether every handler asks for the progress transaction."""
        return all(signature.transactional for signature in self._signatures)

    @property
    def takes_chunks(self) -> bool:
        """Whether every handler asks for the progress transaction or takes lists."""
        return all(signature.transactional or signature.many for signature in self._signatures)

    @property
    def takes_several(self) -> bool:
        """Whether a handler takes a list or a table of events."""
        return any(signature.many for signature in self._signatures)

    @property
    def uses_session(self) -> bool:
        """Whether anything may ask for the session, whose state a savepoint does not undo."""
        return self._flushes

    @property
    def takes_single(self) -> bool:
        """Whether a handler takes one event."""
        return not all(signature.many for signature in self._signatures)

    @property
    def has_several_handlers(self) -> bool:
        """Whether there is more than one handler."""
        return len(self._signatures) > 1

    @property
    def takes_tables(self) -> bool:
        """Whether every handler takes a table."""
        return all(signature.in_columns for signature in self._signatures)

    @property
    def attributes(self) -> frozenset[str]:
        """The attributes that are used of each event besides position, type and data."""
        if self.sees_attributes:
            return ATTRIBUTES
        in_columns = any(signature.in_columns for signature in self._signatures)
        return frozenset({"subject", "time"}) if in_columns else frozenset()

    @property
    def pipelines(self) -> bool:
        """Whether all handlers ask for the driver's connection, take one event, and get nothing that acts elsewhere.

        A provided object may act outside of the transaction. That must not happen before a statement's error is
        known, if it would not have happened after it.
        """
        others = (Kind.INJECTED, Kind.CONNECTION, Kind.SESSION)
        if any(signature.asks_for(kind) for signature in self._signatures for kind in others):
            return False
        if self._surrounded or self._lists:
            return False
        return all(signature.asks_for(Kind.DRIVER) for signature in self._signatures)

    @property
    def sees_attributes(self) -> bool:
        """Whether anything can use more of an event than its type and data."""
        others = not self._reading.plain or self._interceptors.sees_attributes
        return others or any(signature.sees_attributes for signature in self._signatures)

    def wants(self, event_type: str) -> bool:
        """Return whether stored events of a type may lead to a handler."""
        return event_type in self._reading.upcast_types or self.handles(event_type)

    def handles(self, event_type: str) -> bool:
        """Return whether a handler wants events of a type, as read."""
        return bool(self._plan(event_type).steps)

    def takes(self, event_type: str, cls: type) -> bool:
        """Return whether a handler that wants events of a type takes objects of a class, or what it may yield."""
        steps = self._plan(event_type).steps
        asked = {plain(each) for step in steps for each in step.target.bound.signature.event_classes}
        return any(is_a(cls, each) or may_yield(cls, each) for each in asked - {*ANYTHING})

    def places(self, event: Event) -> list[str]:
        """Return ``file:line (name)`` of the handlers to which a stored event may lead."""
        if self._reading.plain_for(event.type):
            return [step.target.bound.handler.place for step in self._plan(event.type).steps]
        return [target.bound.handler.place for target in self._targets]

    def handle(self, chunk: Chunk, work: Work) -> int:
        """Call the handlers for the events of a chunk; return how many events at least one handler got.

        Raises ``ChunkFailedError`` with what a handler raised, or why an event cannot be read or decoded.
        """
        if self._only_tables and (shares := self._shares_of_tables(chunk)) is not None:
            return self._handle_tables(chunk, shares, work)
        if self._together and (decoded := self._decoded_together(chunk)) is not None:
            return self._handle_decoded(chunk, decoded, work)
        work.ahead = None  # else the current one would be looked up among those of an earlier piece
        gathered: list[_Gathered] = [[] for _ in self._lists]
        handled = index = 0
        runs, flushes = self._runs, self._flushes
        try:
            for index, event in enumerate(chunk):
                work.index = index
                run = runs.get(event.type) or self._run_for(event.type)
                handled += run(event, event, work, gathered)
                if flushes:
                    work.unit.flush()
        except BaseException as error:  # only a real interrupt ends the process (K6)
            raise_interrupt(error)
            raise ChunkFailedError(index, error) from error
        lists = [[list(each) for each in zip(*of_chunk, strict=True)] for of_chunk in gathered]
        for target, own in zip(self._lists, lists, strict=True):
            if own and target.tables is not None:
                objects, events, raws = own
                with _rows_in(chunk, raws):
                    own[0] = target.tables.of_events(events, objects)
        self._call_lists(lists, work, len(chunk))
        return handled

    def _shares_of_tables(self, chunk: Chunk) -> list[Chunk] | None:
        """Return the events of a chunk for each handler, if all take tables; ``None`` if each has to be checked."""
        types = set(chunk.types)
        for event_type in types - self._in_columns.keys():
            steps = self._plan(event_type).steps
            if any(step.decoded_as is not None for step in steps):
                self._only_tables = False
                return None
            numbers = [step.target.number for step in steps if step.target.number is not None]
            self._in_columns = {**self._in_columns, event_type: numbers}  # as below
        known = {event_type: self._in_columns[event_type] for event_type in types}
        wanted = [{name for name, numbers in known.items() if target.number in numbers} for target in self._lists]
        return [chunk if len(own) == len(known) else chunk.of_types(own.__contains__) for own in wanted]

    def _handle_tables(self, chunk: Chunk, shares: Sequence[Chunk], work: Work) -> int:
        """Call the handlers with a table each; no event becomes an object on the way."""
        tables: list[Sequence[Any]] = []
        for target, share in zip(self._lists, shares, strict=True):
            with _rows_in(chunk, share):
                tables.append((target.tables.of_chunk(share), share, share) if share and target.tables else ())
        self._call_lists(tables, work, len(chunk))
        return sum(bool(self._in_columns[event_type]) for event_type in chunk.types)

    def _decoded_together(self, chunk: Chunk) -> list[Any] | None:
        """Return the decoded objects of a chunk, if each event is usual and wanted by one handler that needs no more.

        ``None`` otherwise: then the events are handled one by one.
        """
        try:
            decoded = chunk.decoded(self._quick)
        except KeyError:  # of a type that is new, or raised by a validator of the project
            new = next((event_type for event_type in chunk.types if event_type not in self._quick), None)
            return self._decoded_together(chunk) if new is not None and self._learned(new, chunk) else None
        except BaseException as error:  # handling them one by one explains it
            raise_interrupt(error)
            return None
        return decoded if decoded and NO_OBJECTS.isdisjoint(map(type, decoded)) else None

    def _learned(self, event_type: str, chunk: Chunk) -> bool:
        """Record how events of a type are decoded; return whether that is new and they can be decoded together.

        ``chunk`` has the first of them.
        """
        steps = self._plan(event_type).steps
        if event_type in self._quick or not steps:
            return False
        step, target = steps[0], steps[0].target
        quick = None if step.decoded_as is None or step.only else quick_decoder_for(step.decoded_as)
        if len(steps) > 1 or quick is None or not self._sees_objects_only(target):
            self._together = False
            return False
        if target.bound.call_of_work is not None:  # a new dictionary, as other threads may be iterating over this one
            self._calls_of_work = {**self._calls_of_work, event_type: target.bound.call_of_work}
        if (spelling := spelling_of(step.decoded_as)).left:
            for event in islice((event for event in chunk if event.type == event_type), spelling.left):
                spelling.look(event)
        self._quick[event_type] = quick  # last: from here on other threads consider the type known
        return True

    def _sees_objects_only(self, target: _Target) -> bool:
        """Return whether a handler can be given the objects of a chunk without their events, and without others."""
        if target.number is not None:
            sees_more = any(map(target.bound.signature.asks_for, (Kind.RAW, Kind.METADATA)))
            return len(self._targets) == 1 and not self._interceptors.of_handlers and not sees_more
        return not self._lists and not self._surrounded and target.bound.call_of_work is not None

    def _handle_decoded(self, chunk: Chunk, decoded: list[Any], work: Work) -> int:
        """Call the handlers with objects that were decoded together: most of the work is done by then."""
        if self._lists:
            count = len(decoded)  # the list is the handler's, to keep and to empty
            self._call_lists([(decoded, (), chunk)], work, count)  # the context is that of the chunk's first event
            return count
        work.ahead = objects = iter(decoded)
        flushes = self._flushes
        try:
            calls = {event_type: call_of_work(work) for event_type, call_of_work in self._calls_of_work.items()}
            calls_in_turn = repeat(*calls.values()) if len(calls) == 1 else map(calls.__getitem__, chunk.types)
            for call, one in zip(calls_in_turn, objects, strict=False):
                result = call(one)
                if result is not None or FORKED:
                    complete(result)
                if flushes:
                    work.unit.flush()
        except BaseException as error:  # only a real interrupt ends the process (K6)
            raise_interrupt(error)
            in_hand = max(0, len(decoded) - length_hint(objects) - 1)
            raise ChunkFailedError(in_hand, error) from error
        return len(decoded)

    def _call_lists(self, lists: Iterable[Sequence[Any]], work: Work, size: int) -> None:
        """Call the handlers that take lists or tables, each with its own; those without events are not called."""
        work.index = work.ahead = None
        try:
            for target, own in zip(self._lists, lists, strict=True):
                if own:
                    work.calls += 1
                    complete(target.call(*own, work))
                    if self._flushes:
                        work.unit.flush()
        except BaseException as error:  # only a real interrupt ends the process (K6)
            raise_interrupt(error)
            raise ChunkFailedError(0 if size == 1 else None, error) from error

    def _run_for(self, event_type: str) -> _Run:
        """Return the function that handles stored events of a type; made once."""
        plan = self._plan(event_type)
        if not self.wants(event_type):
            run: _Run = _nothing  # undecoded, and not even taken out of its envelope (K5)
        elif not self._reading.plain_for(event_type) or (plan.calls and plan.gathers) or self._interceptors.of_events:
            run = self._read_and_run
        else:
            run = plan.calls or plan.gathers or _nothing
        self._runs[event_type] = run
        return run

    def _read_and_run(self, event: Event, raw: Event, work: Work, gathered: Sequence[_Gathered]) -> bool:
        """Read a stored event and handle its results by their types."""
        read = [(one, self._plan(one.type)) for one in self._read(event, work)]
        called = [(one, plan.calls) for one, plan in read if plan.calls is not None]
        unmatched = 0  # by the class of the decoded object

        def call() -> None:
            nonlocal unmatched
            for one, run in called:
                unmatched += not run(one, raw, work, gathered)

        if called and self._interceptors.of_events:
            self._interceptors.around_event(called[0][0], raw, work, call)
        else:
            call()
        kept = [(one, plan.gathers) for one, plan in read if plan.gathers is not None]
        for one, gathers in kept:
            unmatched += not gathers(one, raw, work, gathered)
        return len(called) + len(kept) > unmatched

    def _read(self, event: Event, work: Work) -> Sequence[Event]:
        found, partition, is_meant = self._reading.read(event), work.partition, work.is_meant
        if found and event.type not in self._compared:
            self._compare(event.type, found)
        if self._belongs is None or len(found) == 1:  # it has one sequence, which is this partition's
            return found
        if partition.modulus == 1 and is_meant is None:
            return found
        return [one for one in found if self.handles(one.type) and self._belongs(one, partition, is_meant)]

    def _plan(self, event_type: str) -> _Plan:
        """Return the function that handles events of a type, as read; made once."""
        plan = self._plans.get(event_type)
        if plan is None:
            steps = list(filter(None, (self._step(target, event_type) for target in self._targets)))
            calls = [step for step in steps if step.target.number is None]
            gathers = [step for step in steps if step.target.number is not None]
            plan = _Plan(steps, _giving(calls) if calls else None, _giving(gathers) if gathers else None)
            self._plans[event_type] = plan
        return plan

    def _step(self, target: _Target, event_type: str) -> _Step | None:
        patterns, wanted = target.bound.handler.mark.types, target.bound.signature.event_classes
        if patterns and not any(fnmatchcase(event_type, pattern) for pattern in patterns):
            return None
        if not wanted:
            return _Step(target)
        found = self._types.class_for(wanted, event_type) or (decoded_as(wanted[0]) if patterns else None)
        if target.tables is not None and plain(found) is plain(wanted[0]):
            return _Step(target)
        if found is not None:
            return _Step(target, found, decoder_for(found))
        parent = self._types.parent_for(wanted, event_type)
        return None if parent is None else _Step(target, parent, decoder_for(parent), tuple(map(plain, wanted)))

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
            for cls in needed:
                decoder_for(
                    decoded_as(annotation) if cls is wanted else cls
                )  # an impossible class is found at the start, not with the first event

    def _check_reached(self, target: _Target) -> None:
        """Refuse a handler all of whose types upcasters take: no event of such a type is left when handlers get it."""
        if self._types.open or _open(target.bound):
            return
        known = dict.fromkeys((*self._types.names, *target.bound.handler.mark.types))
        named = [name for name in known if self._step(target, name) is not None]
        if named and self._reading.upcast_types.issuperset(named):
            places = ", ".join(dict.fromkeys(self._reading.upcaster_of(name) for name in named))
            what = f"no event of type {listed(map(repr, named))} reaches the handler: the upcaster {places} takes them"
            fix = "have it take what the upcaster makes, or remove the upcaster"
            raise HandlerSignatureError("OCQ-206", what, target.bound.handler.place, fix)

    def _compare(self, event_type: str, made: Sequence[Event]) -> None:
        """Warn once if an upcaster takes a type that a handler names, and makes nothing of it that the handler takes.

        What an upcaster makes is only known when it is called.
        """
        self._compared.add(event_type)
        if event_type not in self._reading.upcast_types:
            return
        types = dict.fromkeys(one.type for one in made)
        for target in self._targets:
            if _open(target.bound) or self._step(target, event_type) is None:
                continue
            if not any(self._step(target, each) is not None for each in types):
                _log.warning(
                    "handler %s does not get events of type '%s': the upcaster %s takes them, and makes events of type "
                    "%s\n  fix:   have the handler take that type, or remove '%s' from its types",
                    *(target.bound.handler.place, event_type, self._reading.upcaster_of(event_type)),
                    *(listed(map(repr, types)), event_type),
                )


@contextmanager
def _rows_in(chunk: Chunk, events: Sequence[Event]) -> Iterator[None]:
    """Raise ``ChunkFailedError`` for the event of a chunk that cannot become a row."""
    try:
        yield
    except RowFailedError as failed:
        index = chunk.index_of(events[failed.index].position)
        raise ChunkFailedError(index, failed.error) from failed.error


def _open(bound: BoundHandler) -> bool:
    """Return whether a handler takes types that are not known by name."""
    if bound.handler.mark.types:
        return any("*" in pattern or "?" in pattern or "[" in pattern for pattern in bound.handler.mark.types)
    return not bound.signature.event_classes or any(plain(cls) in ANYTHING for cls in bound.signature.event_classes)


def _nothing(_event: Event, _raw: Event, _work: Work, _gathered: Sequence[_Gathered]) -> bool:
    return False


def _giving(steps: Sequence[_Step]) -> _Run:
    """Return a function that gives an event to handlers in turn, with a separate object for each."""
    times = Counter(step.decoded_as for step in steps)
    shared = {cls for cls in times if cls is not None and times[cls] > 1 and immutable(cls)}
    if shared or any(step.only for step in steps):
        return _sharing(steps, shared)
    table = [(step.target.call, step.target.number, step.decode) for step in steps]

    def run(event: Event, raw: Event, work: Work, gathered: Sequence[_Gathered]) -> bool:
        for call, number, decode in table:
            work.calls += 1
            if number is not None:
                gathered[number].append((decode(event), event, raw))
            elif (result := call(decode(event), event, raw, work)) is not None or FORKED:
                complete(result)
        return True

    return run


def _sharing(steps: Sequence[_Step], shared: set[Any]) -> _Run:
    """Return a function that gives an event to handlers in turn, some of which may share an object.

    Immutable objects are decoded once for all handlers. Where only the object shows which handlers want it, one
    that a handler does not want is passed to the next.
    """
    shared = set() if any(step.only for step in steps) else shared

    def run(event: Event, raw: Event, work: Work, gathered: Sequence[_Gathered]) -> bool:
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


def _table_maker_for(bound: BoundHandler) -> TableMaker | None:
    """Return the maker of a handler's tables, ``None`` if it takes none; raises OCQ-238 like ``TableReader``."""
    if not bound.signature.in_columns:
        return None
    from opencqrs_py.processing.columns.columns import TableReader  # noqa: PLC0415 loads pyarrow, only where it is asked for

    classes = bound.signature.event_classes
    return TableReader(classes[0] if classes else None, bound.handler.place)

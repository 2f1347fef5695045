"""Dispatch: from the events of a chunk to calls of the handlers that take them.

How the events of a type are handled is planned when the first of them arrives. There are four ways: if all handlers
take tables, the chunk becomes a table for each; a chunk with usual events only is decoded at once, and its objects are
passed on; an event that needs no reading is given to its handlers in turn; an event that is upcast, in an envelope or
surrounded by interceptors is read first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import count, islice, repeat
from operator import length_hint
from typing import Any

from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.event import Event
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.selection import ATTRIBUTES
from opencqrs_py.processing.awaiting import complete
from opencqrs_py.processing.binding import BoundHandler, CallOfWork, IsMeant, Work
from opencqrs_py.processing.decoding import NO_OBJECTS, TypeDecoders, quick_decoders_for
from opencqrs_py.processing.event_types import ANYTHING, EventTypes, is_a, may_yield, plain
from opencqrs_py.processing.exceptions import raise_interrupt
from opencqrs_py.processing.field_names import spelling_of
from opencqrs_py.processing.forks import FORKED
from opencqrs_py.processing.interception import Interceptors
from opencqrs_py.processing.plans import Gathered, Plans, Run, Target, is_open, nothing, table_maker_for
from opencqrs_py.processing.reading import Reading
from opencqrs_py.processing.roles import Kind
from opencqrs_py.processing.tables import RowFailedError


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
            Target(
                bound,
                self._interceptors.around_handler(bound),
                next(numbers) if bound.signature.many else None,
                table_maker_for(bound),
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
        self._plans = Plans(self._targets, self._types, self._reading)
        self._runs: dict[str, Run] = {}
        self._together = self._reading.plain and not self._only_tables  # likewise, until an event shows otherwise
        self._quick = TypeDecoders()
        self._calls_of_work: dict[str, CallOfWork] = {}
        self._compared: set[str] = set()

    @cached_property
    def wanted_types(self) -> frozenset[str] | None:
        """The stored types that may lead to a handler, or ``None`` if each type has to be checked."""
        handlers = [target.bound for target in self._targets]
        if self._types.open or any(map(is_open, handlers)):
            return None
        exact = {name for bound in handlers for name in bound.handler.mark.types}
        return frozenset(exact | set(filter(self.handles, self._types.names)) | self._reading.upcast_types)

    @property
    def type_names(self) -> tuple[str, ...]:
        """The types and patterns that handlers name, and the types of their event classes; none: some take any type."""
        handlers = [target.bound for target in self._targets]
        if any(not bound.handler.mark.types and is_open(bound) for bound in handlers):
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
        return bool(self._plans.of(event_type).steps)

    def takes(self, event_type: str, cls: type) -> bool:
        """Return whether a handler that wants events of a type takes objects of a class, or what it may yield."""
        steps = self._plans.of(event_type).steps
        asked = {plain(each) for step in steps for each in step.target.bound.signature.event_classes}
        return any(is_a(cls, each) or may_yield(cls, each) for each in asked - {*ANYTHING})

    def places(self, event: Event) -> list[str]:
        """Return ``file:line (name)`` of the handlers to which a stored event may lead."""
        if self._reading.plain_for(event.type):
            return [step.target.bound.handler.place for step in self._plans.of(event.type).steps]
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
        gathered: list[Gathered] = [[] for _ in self._lists]
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
            steps = self._plans.of(event_type).steps
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
            decoded = chunk.decoded(*self._quick)
        except KeyError:  # of a type that is new, or raised by a validator of the project
            new = next((event_type for event_type in chunk.types if event_type not in self._quick.exact), None)
            return self._decoded_together(chunk) if new is not None and self._learned(new, chunk) else None
        except BaseException as error:  # handling them one by one explains it
            raise_interrupt(error)
            return None
        return decoded if decoded and NO_OBJECTS.isdisjoint(map(type, decoded)) else None

    def _learned(self, event_type: str, chunk: Chunk) -> bool:
        """Record how events of a type are decoded; return whether that is new and they can be decoded together.

        ``chunk`` has the first of them.
        """
        steps = self._plans.of(event_type).steps
        if event_type in self._quick.exact or not steps:
            return False
        step, target = steps[0], steps[0].target
        quick = None if step.decoded_as is None or step.only else quick_decoders_for(step.decoded_as)
        if len(steps) > 1 or quick is None or not self._sees_objects_only(target):
            self._together = False
            return False
        if target.bound.call_of_work is not None:  # a new dictionary, as other threads may be iterating over this one
            self._calls_of_work = {**self._calls_of_work, event_type: target.bound.call_of_work}
        if (spelling := spelling_of(step.decoded_as)).left:
            for event in islice((event for event in chunk if event.type == event_type), spelling.left):
                spelling.look(event)
        self._quick = self._quick.with_type(event_type, quick)  # last: from here on other threads know the type
        return True

    def _sees_objects_only(self, target: Target) -> bool:
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

    def _run_for(self, event_type: str) -> Run:
        """Return the function that handles stored events of a type; made once."""
        plan = self._plans.of(event_type)
        if not self.wants(event_type):
            run: Run = nothing  # undecoded, and not even taken out of its envelope (K5)
        elif not self._reading.plain_for(event_type) or (plan.calls and plan.gathers) or self._interceptors.of_events:
            run = self._read_and_run
        else:
            run = plan.calls or plan.gathers or nothing
        self._runs[event_type] = run
        return run

    def _read_and_run(self, event: Event, raw: Event, work: Work, gathered: Sequence[Gathered]) -> bool:
        """Read a stored event and handle its results by their types."""
        read = [(one, self._plans.of(one.type)) for one in self._read(event, work)]
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
            self._compared.add(event.type)
            self._plans.compare(event.type, found)
        if self._belongs is None or len(found) == 1:  # it has one sequence, which is this partition's
            return found
        if partition.modulus == 1 and is_meant is None:
            return found
        return [one for one in found if self.handles(one.type) and self._belongs(one, partition, is_meant)]


@contextmanager
def _rows_in(chunk: Chunk, events: Sequence[Event]) -> Iterator[None]:
    """Raise ``ChunkFailedError`` for the event of a chunk that cannot become a row."""
    try:
        yield
    except RowFailedError as failed:
        index = chunk.index_of(events[failed.index].position)
        raise ChunkFailedError(index, failed.error) from failed.error

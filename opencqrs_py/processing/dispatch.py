"""Dispatch: from the events of a chunk to the calls of the handlers that want them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from operator import length_hint
from typing import Any

from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.event import Event
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.awaiting import finish
from opencqrs_py.processing.binding import BoundHandler
from opencqrs_py.processing.event_types import EventTypes
from opencqrs_py.processing.exceptions import raise_interrupt
from opencqrs_py.processing.interception import Interceptors
from opencqrs_py.processing.planning import Gathered, Plan, Planner, Run
from opencqrs_py.processing.reading import Reading
from opencqrs_py.processing.signatures import Kind
from opencqrs_py.processing.work import Work


class ChunkFailedError(Exception):
    """The handlers of a chunk raised ``error``.

    Attributes:
        index: Which event of the chunk was in hand; ``None`` if a handler had several.
        error: What was raised.
    """

    def __init__(self, index: int | None, error: BaseException) -> None:
        super().__init__(index, error)
        self.index = index
        self.error = error


class Dispatcher:
    """Calls the handlers of one group for the events of a chunk.

    Handlers that take one event are called event by event, in their order. Then those that take lists are called once
    each, in their order, with what the chunk has for them.

    Args:
        handlers: The group's handlers, in the order in which they run.
        types: The event classes known, so that a handler of a parent class sees its children's types.
        reading: How stored events are read: envelope and upcasters.
        interceptors: What surrounds events and handlers.
        belongs: Returns whether one of several events that a stored event becomes is for a partition. Only a sequence
            resolver that sees decoded objects sends them to different ones.

    Raises:
        HandlerSignatureError: OCQ-206, if no event type leads to a handler's event class; OCQ-208, if JSON cannot
            become it.
    """

    def __init__(
        self,
        handlers: Sequence[BoundHandler],
        types: EventTypes | Iterable[type] = (),
        reading: Reading | None = None,
        interceptors: Interceptors | None = None,
        belongs: Callable[[Event, Partition], bool] | None = None,
    ) -> None:
        self._signatures = [bound.signature for bound in handlers]
        self._reading = reading or Reading()
        self._interceptors = interceptors or Interceptors()
        self._belongs = belongs
        known = types if isinstance(types, EventTypes) else EventTypes(types)
        self._planner = Planner(handlers, known, self._interceptors)
        self._lists = self._planner.list_calls
        surrounded = self._interceptors.of_events or self._interceptors.of_handlers  # which may ask for the session
        self._flushes = surrounded or any(signature.asks_for(Kind.SESSION) for signature in self._signatures)
        self._runs: dict[str, Run] = {}

    @cached_property
    def wanted_types(self) -> frozenset[str] | None:
        """The stored types that may lead to a handler, or ``None`` when each type has to be looked at."""
        known = self._planner.known_types()
        return None if known is None else known | self._reading.upcast_types

    @property
    def transactional(self) -> bool:
        """Whether every handler asks for the progress transaction."""
        return all(signature.transactional for signature in self._signatures)

    @property
    def takes_chunks(self) -> bool:
        """Whether every handler asks for the progress transaction or takes lists."""
        return all(signature.transactional or signature.many for signature in self._signatures)

    @property
    def sees_attributes(self) -> bool:
        """Whether anything can look at more of an event than its type and data."""
        others = not self._reading.plain or self._interceptors.sees_attributes
        return others or any(signature.sees_attributes for signature in self._signatures)

    def wants(self, event_type: str) -> bool:
        """Return whether stored events of the type may lead to a handler."""
        return event_type in self._reading.upcast_types or self.handles(event_type)

    def handles(self, event_type: str) -> bool:
        """Return whether a handler wants events of the type, as they are read."""
        return not self._planner.plan(event_type).empty

    def places(self, event: Event) -> list[str]:
        """Return ``file:line (name)`` of the handlers that a stored event may lead to."""
        if self._reading.plain_for(event.type):
            return self._planner.places(event.type)
        return self._planner.all_places

    def handle(self, chunk: Chunk, work: Work) -> int:
        """Call the handlers for the events of a chunk; return how many of the events at least one handler got.

        Raises:
            ChunkFailedError: With what a handler raised, or why an event cannot be read or decoded.
        """
        if self._reading.plain and (decoded := self._planner.decoded_together(chunk)) is not None:
            return self._handle_decoded(chunk, decoded, work)
        gathered = [Gathered() for _ in self._lists]
        handled = index = 0
        runs, flushes = self._runs, self._flushes
        try:
            for index, event in enumerate(chunk):  # noqa: B007 reported when it fails
                run = runs.get(event.type) or self._run_for(event.type)
                handled += run(event, event, work, gathered)
                if flushes:
                    work.flush()
        except BaseException as error:  # only a real interrupt ends the process (K6)
            raise_interrupt(error)
            raise ChunkFailedError(index, error) from error
        self._call_lists(gathered, work, len(chunk))
        return handled

    def _handle_decoded(self, chunk: Chunk, decoded: list[Any], work: Work) -> int:
        """Call the handlers with objects that were decoded together: most of what costs time is done by then."""
        if self._lists:
            self._call_lists([Gathered(decoded)], work, len(chunk))
            return len(chunk)
        objects, flushes = iter(decoded), self._flushes
        try:
            for call, one in zip(self._planner.calls_of_work(chunk, work), objects, strict=False):
                result = call(one)
                if result is not None:
                    finish(result)
                if flushes:
                    work.flush()
        except BaseException as error:  # only a real interrupt ends the process (K6)
            raise_interrupt(error)
            in_hand = max(0, len(decoded) - length_hint(objects) - 1)
            raise ChunkFailedError(in_hand, error) from error
        return len(chunk)

    def _call_lists(self, gathered: Sequence[Gathered], work: Work, size: int) -> None:
        try:
            for call, of_chunk in zip(self._lists, gathered, strict=True):
                if of_chunk.decoded:
                    finish(call(of_chunk.decoded, of_chunk.events, of_chunk.raws, work))
                    if self._flushes:
                        work.flush()
        except BaseException as error:  # only a real interrupt ends the process (K6)
            raise_interrupt(error)
            raise ChunkFailedError(0 if size == 1 else None, error) from error

    def _run_for(self, event_type: str) -> Run:
        """Return what is done with stored events of a type; made once."""
        plan = self._planner.plan(event_type)
        if not self.wants(event_type):
            run: Run = _nothing  # undecoded, and not even taken out of its envelope (K5)
        elif not self._reading.plain_for(event_type) or (plan.calls and plan.gathers) or self._interceptors.of_events:
            run = self._read_and_run
        else:
            run = plan.calls or plan.gathers or _nothing
        self._runs[event_type] = run
        return run

    def _read_and_run(self, event: Event, raw: Event, work: Work, gathered: Sequence[Gathered]) -> bool:
        """Read a stored event and do what the types of its results ask for."""
        wanted = [(one, plan) for one in self._read(event, work.partition) if not (plan := self._plan(one)).empty]
        called = [(one, plan.calls) for one, plan in wanted if plan.calls is not None]
        unmatched = 0  # by the classes of what was decoded

        def call() -> None:
            nonlocal unmatched
            for one, run in called:
                unmatched += not run(one, raw, work, gathered)

        if called and self._interceptors.of_events:
            self._interceptors.around_event(called[0][0], raw, work, call)
        else:
            call()
        kept = [(one, plan.gathers) for one, plan in wanted if plan.gathers is not None]
        for one, gathers in kept:
            unmatched += not gathers(one, raw, work, gathered)
        return len(called) + len(kept) > unmatched

    def _plan(self, event: Event) -> Plan:
        return self._planner.plan(event.type)

    def _read(self, event: Event, partition: Partition) -> Sequence[Event]:
        found = self._reading.read(event)
        if self._belongs is None or partition.modulus == 1 or len(found) == 1:  # it was assigned to its only partition
            return found
        return [one for one in found if self.handles(one.type) and self._belongs(one, partition)]


def _nothing(_event: Event, _raw: Event, _work: Work, _gathered: Sequence[Gathered]) -> bool:
    return False

"""Ranges of data frames without Spark: events tried alone, what a rebuild refuses, and which classes are available."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
from support.frames import NoFrameMaker

from opencqrs_py import EventFrames, InMemoryEventStore, InMemoryProgressTracker, ProcessingContext, event_type
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.engines.parts import group_processing
from opencqrs_py.errors import EventFormatError, HandlerSignatureError
from opencqrs_py.model.event import Event
from opencqrs_py.model.handler import Handler, HandlerMark
from opencqrs_py.model.outcome import Origin, Outcome
from opencqrs_py.model.partition import layout
from opencqrs_py.processing.binding import bind
from opencqrs_py.processing.event_types import EventTypes
from opencqrs_py.processing.frames import EventOfRangeError, FrameDispatcher, FrameProcessing
from opencqrs_py.processing.reading import Reading
from opencqrs_py.processing.replays import ReplayRule
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent

EVENTS = 12


@event_type("lent.v1")
@dataclass
class Lent:
    isbn: str


@event_type("returned.v1")
@dataclass
class Returned:
    isbn: str


@dataclass
class Unmarked:
    isbn: str


def made(n: int, kind: str = "lent.v1") -> Event:
    return Event(0, str(n), "s", "/x", kind, None, "application/json", '{"isbn": "1"}', None)


class Group:
    """A group of data frames with the given handler."""

    def __init__(
        self, handle: Callable[..., None], types: EventTypes | None = None, *, rebuilding: bool = False
    ) -> None:
        self.tracker = InMemoryProgressTracker()
        store = InMemoryEventStore(made(n) for n in range(EVENTS))
        bound = bind(Handler(HandlerMark("g", ("lent.*",), in_frames=True), handle, "here"), ContainerInjector())
        self.processing: FrameProcessing = group_processing(
            "g",
            store,
            self.tracker,
            FrameDispatcher(bound, types or EventTypes(), Reading()),
            subject="/",
            recursive=True,
            sequencing=SequencingByEvent(PerSubject()),
            partitions=1,
            batch_size=EVENTS,
            replays=ReplayRule(None, (), rebuilding, False),  # noqa: FBT003
        )
        self.processing.use(NoFrameMaker())

    def step(self, position: int = 0) -> Outcome:
        """Take the next step, as if everything up to a position was handled or skipped."""
        (cursor,) = self.tracker.claim("g", layout(1), 0, "me")
        return self.processing.processor(*layout(1)).step(replace(cursor, position=position))


def test_an_undecodable_first_event_is_tried_alone_and_its_files_replace_those_of_the_range() -> None:
    files: dict[str, range] = {}

    def handle(events: EventFrames) -> None:
        files[events.batch] = range(events.first, events.last + 1)
        if events.first == 1:
            raise EventOfRangeError(1, EventFormatError("OCQ-211", "no"))

    group = Group(handle)
    failure = group.step().failure
    assert failure is not None
    assert (failure.origin, failure.position) == (Origin.EVENT, 1)
    assert group.step(1).failure is None  # it was skipped
    assert sorted(position for each in files.values() for position in each) == [*range(1, EVENTS + 1)]


def test_an_undecodable_event_in_the_middle_is_tried_alone_at_the_start_of_its_range() -> None:
    ranges: list[tuple[int, int]] = []

    def handle(events: EventFrames) -> None:
        ranges.append((events.first, events.last))
        if events.first <= 5 <= events.last:
            raise EventOfRangeError(5, EventFormatError("OCQ-211", "no"))

    group = Group(handle)
    outcome = group.step()
    assert outcome.failure is not None
    assert (outcome.cursor.stored, outcome.failure.position) == (4, 5)
    again = group.processing.processor(*layout(1)).step(outcome.cursor)
    assert again.failure is not None
    assert ranges[:2] == [(1, 12), (1, 4)]
    assert ranges[-1] == (5, 5)


@pytest.mark.parametrize("rebuilding", [False, True])
def test_a_rebuild_refuses_names_for_files(rebuilding: bool) -> None:  # noqa: FBT001
    named: list[str] = []

    def handle(events: EventFrames, context: ProcessingContext) -> None:
        assert context.rebuilding is rebuilding
        named.append(events.batch)

    failure = Group(handle, rebuilding=rebuilding).step().failure
    if not rebuilding:
        assert (failure, named) == (None, [f"{1:019d}"])
        return
    assert failure is not None
    assert (failure.origin, named) == (Origin.FRAMEWORK, [])
    assert failure.code == "OCQ-245"


def ask(events: EventFrames) -> None: ...


def asked_for(event_class: type, types: EventTypes, kind: str) -> HandlerSignatureError | None:
    """Return why a handler of lent.* cannot get the events of a class."""
    group = Group(ask, types)
    group.processing.source.append([made(99, kind)])
    try:
        list(group.processing.tables(event_class, 0, EVENTS + 1))
    except HandlerSignatureError as error:
        return error
    return None


RESOLVED = {"lent.v2": Unmarked, "returned.v2": Unmarked}


@pytest.mark.parametrize("resolver", [None, lambda _: None, RESOLVED.get])
def test_classes_of_types_that_the_handler_does_not_name_are_refused_even_with_a_resolver(resolver) -> None:
    types = EventTypes((Lent, Returned), {}, resolver)
    assert asked_for(Lent, types, "lent.v1") is None
    refused = asked_for(Returned, types, "returned.v1")
    assert refused is not None
    assert (refused.code, refused.fix) == ("OCQ-241", "add to its types: returned.v1")


def test_a_class_known_only_to_a_resolver_is_refused_when_an_event_of_another_type_arrives() -> None:
    types = EventTypes((Lent, Returned), {}, RESOLVED.get)
    assert asked_for(Unmarked, types, "lent.v2") is None
    refused = asked_for(Unmarked, types, "returned.v2")
    assert refused is not None
    assert (refused.code, refused.fix) == ("OCQ-241", "add to its types: returned.v2")

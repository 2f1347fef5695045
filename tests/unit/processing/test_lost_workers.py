"""An event that is alone when its worker is lost: only after several losses is it a failure of the event."""

from __future__ import annotations

import pytest
from support.frames import NoFrameMaker

from opencqrs_py import EventFrames, InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.assembly.injection import ContainerInjector
from opencqrs_py.engines.parts import group_processing
from opencqrs_py.model.event import Event
from opencqrs_py.model.handler import Handler, HandlerMark
from opencqrs_py.model.outcome import Origin, Outcome
from opencqrs_py.model.partition import layout
from opencqrs_py.processing.binding import bind
from opencqrs_py.processing.event_types import EventTypes
from opencqrs_py.processing.frames import MOST_LOST, FrameDispatcher, WorkerLostError
from opencqrs_py.processing.reading import Reading
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent

EVENTS, POISON = 12, 6


class Group:
    """A group of data frames whose worker is lost ``losses`` times at one event."""

    def __init__(self, losses: int) -> None:
        self.losses = losses
        self.ranges: list[tuple[int, int]] = []
        self.handled: list[int] = []
        store, tracker = InMemoryEventStore(), InMemoryProgressTracker()
        store.append(Event(0, str(n), "s", "/x", "t", None, "application/json", "{}", None) for n in range(EVENTS))
        bound = bind(Handler(HandlerMark("g", ("t",), in_frames=True), self.handle, "here"), ContainerInjector())
        processing = group_processing(
            "g",
            store,
            tracker,
            FrameDispatcher(bound, EventTypes(), Reading()),
            subject="/",
            recursive=True,
            sequencing=SequencingByEvent(PerSubject()),
            partitions=1,
            batch_size=EVENTS,
        )
        processing.use(NoFrameMaker())
        self.processor = processing.processor(*layout(1))
        (cursor,) = tracker.claim("g", layout(1), 0, "me")
        self.outcome = Outcome(cursor)

    def handle(self, events: EventFrames) -> None:
        self.ranges.append((events.first, events.last))
        if events.first <= POISON <= events.last and self.losses:
            self.losses -= events.first == events.last
            raise WorkerLostError("Python worker exited unexpectedly")
        self.handled += range(events.first, events.last + 1)

    def step(self) -> Outcome:
        self.outcome = self.processor.step(self.outcome.cursor)
        return self.outcome


@pytest.mark.parametrize("losses", range(MOST_LOST))
def test_workers_lost_for_another_reason_use_no_attempt_and_repeat_nothing(losses: int) -> None:
    group = Group(losses)
    for time in range(1, losses + 1):
        failure = group.step().failure
        assert failure is not None
        assert (failure.origin, failure.position) == (Origin.OUTAGE, None)
        assert f"time {time} of {MOST_LOST}" in failure.message
        assert group.outcome.cursor.stored == POISON - 1
    while group.outcome.cursor.stored < EVENTS:
        assert group.step().failure is None
    assert group.handled == [*range(1, EVENTS + 1)]


def test_an_event_that_always_kills_its_worker_is_found() -> None:
    group = Group(losses=99)
    for _ in range(MOST_LOST - 1):
        failure = group.step().failure
        assert failure is not None
        assert failure.origin is Origin.OUTAGE
    for _ in range(2):
        failure = group.step().failure
        assert failure is not None
        assert (failure.origin, failure.position) == (Origin.HANDLER, POISON)
        assert "Python worker exited unexpectedly" in failure.message
    assert group.handled == [*range(1, POISON)]


def test_an_event_that_kills_its_worker_is_retried_alone() -> None:
    group = Group(losses=99)
    group.step()
    before = len(group.ranges)
    group.step()
    assert group.ranges[before:] == [(POISON, POISON)]

"""Calls in hand: which event a handler has, seen from outside, and when a call is slow or times out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from types import SimpleNamespace
from typing import Any

import pytest

from opencqrs_py import Event, event_type
from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.model import Handler, HandlerMark, Partition, Selection
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.processing.binding import NothingProvided, Work, bind
from opencqrs_py.processing.calls import NO_LIMITS, CallInHand, CallLimits, CallTimer
from opencqrs_py.processing.dispatch import ChunkFailedError, Dispatcher
from opencqrs_py.processing.feed import Feed
from opencqrs_py.processing.handler_calls import HandlerCalls
from opencqrs_py.processing.processor import PartitionProcessor, ProcessorParts
from opencqrs_py.processing.replays import ReplayRule
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent

ONE = Partition(1, 0)


@event_type("lent")
@dataclass(frozen=True)
class Lent:
    n: int


class Watched:
    """A processor of three events, whose handlers record the call in hand."""

    def __init__(self) -> None:
        self.seen: list[tuple[int | None, int, int]] = []
        self.processor: PartitionProcessor | None = None

    def look(self, *_: object) -> None:
        assert self.processor is not None
        call = self.processor.calls.in_hand()
        assert call is not None
        self.seen.append((call.index, call.event.position, call.number))

    def runs(self, *functions: Any) -> list[tuple[int | None, int, int]]:
        store, tracker = InMemoryEventStore(), InMemoryProgressTracker()
        store.append(
            Event(0, str(n), "s", f"/{n}", "lent", None, "application/json", f'{{"n": {n}}}', None) for n in range(3)
        )
        bound = [bind(Handler(HandlerMark("group"), each, "here:1"), NothingProvided()) for each in functions]
        feed = Feed(store, Selection("/"), SequencingByEvent(PerSubject()), 100)
        self.processor = PartitionProcessor(ONE, ProcessorParts("group", feed, tracker, Dispatcher(bound, []), 10))
        (cursor,) = tracker.claim("group", [ONE], 0, "me")
        assert self.processor.step(cursor).handled == 3
        assert self.processor.calls.in_hand() is None
        return self.seen


def test_the_event_in_hand_is_known_when_events_are_decoded_together() -> None:
    watched = Watched()

    def handle(event: Lent) -> None:
        watched.look(event)

    assert watched.runs(handle) == [(0, 1, 0), (1, 2, 0), (2, 3, 0)]


def test_the_event_in_hand_is_known_in_a_piece_after_one_that_was_decoded_together() -> None:
    seen: list[tuple[int, int | None]] = []

    def handle(event: Lent) -> None:
        call = calls.in_hand()
        assert call is not None
        seen.append((event.n, call.index))

    dispatcher = Dispatcher([bind(Handler(HandlerMark("group"), handle, "here:1"), NothingProvided())], [])
    calls = HandlerCalls("group", ONE, dispatcher, ReplayRule(dispatcher), None)
    payloads = [f'{{"n": {n}}}' for n in range(7)] + ['{"n": "odd"}']
    events = [
        Event(n, str(n), "s", f"/{n}", "lent", None, "application/json", payload, None)
        for n, payload in enumerate(payloads)
    ]
    work = Work("group", ONE, SimpleNamespace(flush=lambda: None))  # type: ignore[arg-type]
    calls.call(work, Chunk(events[:4]))
    with pytest.raises(ChunkFailedError):
        calls.call(work, Chunk(events[4:]))
    assert seen == [(0, 0), (1, 1), (2, 2), (3, 3), (4, 0), (5, 1), (6, 2)]


def test_the_first_calls_of_two_pieces_are_distinct() -> None:
    seen: list[CallInHand | None] = []

    def handle(event: Lent) -> None:
        seen.extend([calls.in_hand(), calls.in_hand()])

    dispatcher = Dispatcher([bind(Handler(HandlerMark("group"), handle, "here:1"), NothingProvided())], [])
    calls = HandlerCalls("group", ONE, dispatcher, ReplayRule(dispatcher), None)
    work = Work("group", ONE, SimpleNamespace(flush=lambda: None))  # type: ignore[arg-type]
    for n in range(2):
        event = Event(n, str(n), "s", f"/{n}", "lent", None, "application/json", f'{{"n": {n}}}', None)
        calls.call(work, Chunk([event]))
    first, first_again, second, second_again = (call for call in seen if call is not None)
    assert first.is_same(first_again)
    assert second.is_same(second_again)
    assert not first.is_same(second)
    timer = CallTimer(CallLimits(timeout=10))
    assert [timer.look(call, now) for call, now in ((first, 0.0), (second, 6.0), (second_again, 12.0))] == [None] * 3


def test_each_of_several_handlers_makes_a_distinct_call() -> None:
    watched = Watched()

    def first(event: Lent, raw: Event) -> None:
        watched.look(event, raw)

    def second(raw: Event) -> None:
        watched.look(raw)

    looks = watched.runs(first, second)
    assert [(index, position) for index, position, _ in looks] == [(0, 1), (0, 1), (1, 2), (1, 2), (2, 3), (2, 3)]
    assert len({number for _, _, number in looks}) == 6


def test_a_list_has_no_single_event_in_hand() -> None:
    watched = Watched()

    def handle(events: list[Lent]) -> None:
        watched.look(events)

    def gather(events: list[Lent], raw: list[Event]) -> None:
        watched.look(events, raw)

    looks = watched.runs(handle, gather)
    assert [(index, position) for index, position, _ in looks] == [(None, 1), (None, 1)]
    assert len({number for _, _, number in looks}) == 2


# The duration of a call


def call_of(index: int | None, number: int = 0, work: Work | None = None) -> CallInHand:
    return CallInHand(work or WORK, Chunk(()), index, number, 1)


WORK = Work("group", ONE, object())  # type: ignore[arg-type]
A, B = call_of(0), call_of(1)


@pytest.mark.parametrize(
    ("limits", "looks", "expected"),
    [
        (NO_LIMITS, [(A, 0.0), (A, 1e9)], []),
        (CallLimits(10), [(A, 0.0), (A, 9.9), (A, 10.0)], [(10.0, False)]),
        (CallLimits(10), [(A, 5.0), (A, 14.9)], []),  # first seen at 5
        (
            CallLimits(10),
            [(A, 0.0), (A, 10.0), (A, 15.0), (A, 20.0), (A, 39.0), (A, 40.0)],
            [(10, 0), (20, 0), (40, 0)],
        ),
        (CallLimits(10), [(A, 0.0), (A, 35.0), (A, 60.0), (A, 70.0)], [(35, 0), (70, 0)]),
        (CallLimits(10), [(A, 0.0), (B, 9.0), (A, 18.0)], []),
        (CallLimits(10), [(A, 0.0), (None, 9.0), (A, 10.0), (A, 19.0)], []),
        (CallLimits(10), [(A, 0.0), (call_of(0, 1), 11.0)], []),
        (CallLimits(10), [(A, 0.0), (call_of(0, 0, Work("group", ONE, object())), 11.0)], []),  # type: ignore[arg-type]
        (CallLimits(timeout=10), [(A, 0.0), (A, 9.9), (A, 10.5)], [(10.5, True)]),
        (CallLimits(timeout=10), [(A, 0.0), (A, 10.0), (A, 11.0)], [(10, True)]),
        (CallLimits(4, 10), [(A, 0.0), (A, 4.0), (A, 8.0), (A, 10.0)], [(4, 0), (8, 0), (10, True)]),
        (CallLimits(10, 4), [(A, 0.0), (A, 12.0)], [(12, True)]),
    ],
)
def test_a_slow_call_is_reported_and_times_out_at_its_limits(
    limits: CallLimits, looks: Sequence[tuple[CallInHand | None, float]], expected: Sequence[tuple[float, bool]]
) -> None:
    timer = CallTimer(limits)
    found = [timer.look(call, now) for call, now in looks]
    assert [(each.seconds, each.timed_out) for each in found if each is not None] == list(expected)


@pytest.mark.parametrize(
    ("limits", "interval"),
    [
        (NO_LIMITS, inf),
        (CallLimits(30), 1),
        (CallLimits(5), 0.5),
        (CallLimits(inf, 0.1), 0.05),
        (CallLimits(60, 2), 0.2),
    ],
)
def test_the_check_interval_follows_from_the_limits(limits: CallLimits, interval: float) -> None:
    assert limits.interval == pytest.approx(interval)

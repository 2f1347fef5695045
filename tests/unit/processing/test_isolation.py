"""Marked events are handled one at a time, beside at most one slow one more for each patience."""

from __future__ import annotations

from contextlib import ExitStack, suppress
from queue import SimpleQueue
from threading import Event as Signal
from threading import Thread
from time import monotonic

import pytest
from support.isolation import PatientMarkedEvents

SECONDS = 30  # longest wait for another thread


class Marked:
    """A thread that handles a marked event, which ends on request."""

    def __init__(self, events: PatientMarkedEvents, begun: SimpleQueue[Marked]) -> None:
        self.end = Signal()
        self.thread = Thread(target=self._handle, args=(events, begun))
        self.thread.start()

    def _handle(self, events: PatientMarkedEvents, begun: SimpleQueue[Marked]) -> None:
        with events.taken():
            begun.put(self)
            self.end.wait(SECONDS)

    def finish(self) -> None:
        self.end.set()
        self.thread.join(SECONDS)


def await_waiting(events: PatientMarkedEvents, threads: int) -> None:
    until = monotonic() + SECONDS
    while events.waiting != threads:
        assert monotonic() < until


@pytest.fixture
def events() -> PatientMarkedEvents:
    return PatientMarkedEvents()


@pytest.fixture
def begun() -> SimpleQueue[Marked]:
    return SimpleQueue()


def test_the_next_event_begins_when_the_previous_one_has_ended(
    events: PatientMarkedEvents, begun: SimpleQueue[Marked]
) -> None:
    with events.taken():
        second = Marked(events, begun)
        await_waiting(events, 1)
        assert begun.empty()
    assert begun.get(timeout=SECONDS) is second
    second.finish()


def test_an_event_that_raises_ends(events: PatientMarkedEvents, begun: SimpleQueue[Marked]) -> None:
    with suppress(ZeroDivisionError), events.taken():
        _ = 1 / 0
    begun_one = Marked(events, begun)
    assert begun.get(timeout=SECONDS) is begun_one
    begun_one.finish()


def test_a_slow_event_is_not_waited_for_and_only_ends_itself(
    events: PatientMarkedEvents, begun: SimpleQueue[Marked]
) -> None:
    with ExitStack() as slow:
        slow.enter_context(events.taken())
        second = Marked(events, begun)
        await_waiting(events, 1)
        events.lapse()
        assert begun.get(timeout=SECONDS) is second
    third = Marked(events, begun)
    await_waiting(events, 1)
    second.finish()
    assert begun.get(timeout=SECONDS) is third
    third.finish()


def test_of_several_threads_that_wait_for_a_slow_event_one_at_a_time_stops_waiting(
    events: PatientMarkedEvents, begun: SimpleQueue[Marked]
) -> None:
    with events.taken():
        threads = [Marked(events, begun) for _ in range(3)]
        await_waiting(events, 3)
        events.lapse()
        first = begun.get(timeout=SECONDS)
        await_waiting(events, 2)
        first.finish()
        second = begun.get(timeout=SECONDS)
        await_waiting(events, 1)
        assert begun.empty()
        while begun.empty():  # the third thread may not have noticed yet that the second one is slow, too
            events.lapse()
        third = begun.get(timeout=SECONDS)
    assert {first, second, third} == set(threads)
    for each in (second, third):
        each.finish()

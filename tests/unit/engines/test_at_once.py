"""The limit on how many partitions of a group step at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Condition, Lock
from threading import Event as Signal
from typing import Any

import pytest

from opencqrs_py import event_handling
from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.engines.at_once import AtOnce
from opencqrs_py.engines.parts import ProcessorOptions, make_processing
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.engines.thread import ThreadEngine
from opencqrs_py.engines.thread import engine as thread_engine
from opencqrs_py.model import Event, layout
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.processing.definitions import in_order
from opencqrs_py.processing.recovery import NoRetry
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import PartitionKeyResolver

SECONDS = 30  # longest wait for another thread
PARTITIONS = 4


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as made:
        yield made


class WatchedLimit(AtOnce):
    """A limit that lets a test wait for its waiting partitions."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.changed = Condition()
        outer = self

        class Noted(deque[object]):
            def append(self, one: object) -> None:
                super().append(one)
                with outer.changed:
                    outer.changed.notify_all()

        self._waiting = Noted()

    def wait_for(self, count: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self._waiting) == count, SECONDS)


def test_at_most_the_allowed_number_of_partitions_step_at_once_in_order_of_waiting(pool: ThreadPoolExecutor) -> None:
    at_once, never_stopped = WatchedLimit(2), Signal()
    assert at_once.begin("a", never_stopped)
    assert at_once.begin("b", never_stopped)
    waiting: dict[str, Future[bool]] = {}
    for number, name in enumerate("cd", 1):
        waiting[name] = pool.submit(at_once.begin, name, never_stopped)
        at_once.wait_for(number)
    at_once.end("b")
    assert waiting["c"].result(SECONDS)
    assert not waiting["d"].done()
    at_once.end("b")  # as a hung thread does
    assert not waiting["d"].done()
    at_once.end("a")
    assert waiting["d"].result(SECONDS)


def test_a_waiting_partition_that_is_stopped_gives_its_place_to_the_next_one(pool: ThreadPoolExecutor) -> None:
    at_once, never_stopped, stop = WatchedLimit(1), Signal(), Signal()
    assert at_once.begin("a", never_stopped)
    first = pool.submit(at_once.begin, "b", stop)
    at_once.wait_for(1)
    second = pool.submit(at_once.begin, "c", never_stopped)
    at_once.wait_for(2)
    stop.set()
    at_once.wake()
    assert first.result(SECONDS) is False
    at_once.end("a")
    assert second.result(SECONDS)


def stepping(at_once: AtOnce) -> list[Any]:
    """Return the drivers of the partitions that step."""
    return list(at_once._stepping)


class Group:
    """A group of four partitions that records how many of them handle an event at the same time."""

    def __init__(self) -> None:
        self.store, self.tracker = InMemoryEventStore(), InMemoryProgressTracker()
        self.store.append(
            Event(0, str(n), "s", f"/books/{n}", "lent", None, "application/json", None, None) for n in range(200)
        )
        self.handling = self.most = self.calls = 0
        self.lock = Lock()
        self.at_first: Callable[[], None] = lambda: None

        @event_handling("group", types=["lent"])
        def lend(raw: Event) -> None:
            with self.lock:
                self.handling += 1
                self.most = max(self.most, self.handling)
                self.calls += 1
                is_first = self.calls == 1
            if is_first:
                self.at_first()
            with self.lock:
                self.handling -= 1

        self.handler = lend

    def engine(self, most: int) -> ThreadEngine:
        processing = make_processing(
            "group",
            in_order([self.handler]),
            self.store,
            self.tracker,
            PerSubject(),
            PartitionKeyResolver(PARTITIONS),
            ProcessorOptions(),
            subject="/",
            recursive=True,
        )
        run = GroupRun(processing, layout(PARTITIONS), lambda: 0, NoRetry(), OnExhausted.STOP, most_at_once=most)
        engine = ThreadEngine([run], "owner")
        engine.assign("group", layout(PARTITIONS))
        engine.start()
        return engine

    def wait(self, engine: ThreadEngine) -> None:
        head = self.store.head()
        with self.tracker.watched("group") as watch:
            for _ in range(SECONDS * 10):
                engine.hasten("group")
                if watch.wait(head, 0.1) > head:
                    return
        pytest.fail("the group has not reached the head")


@pytest.fixture
def waiting(monkeypatch: pytest.MonkeyPatch) -> list[WatchedLimit]:
    """Return the limits that the engine creates."""
    made: list[WatchedLimit] = []

    def make(most: int) -> WatchedLimit:
        made.append(WatchedLimit(most))
        return made[-1]

    monkeypatch.setattr(thread_engine, "AtOnce", make)
    return made


def test_threads_of_a_group_handle_at_most_the_allowed_number_of_events_at_once(waiting: list[WatchedLimit]) -> None:
    group = Group()
    group.at_first = lambda: waiting[0].wait_for(PARTITIONS - 1)
    engine = group.engine(1)
    group.wait(engine)
    engine.stop(SECONDS)
    assert group.most == 1
    assert {status.position for status in group.tracker.statuses()} == {group.store.head()}


def test_partitions_that_wait_for_others_can_be_released_alone(waiting: list[WatchedLimit]) -> None:
    group = Group()
    begun, over = Signal(), Signal()

    def hold() -> None:
        waiting[0].wait_for(PARTITIONS - 1)
        begun.set()
        assert over.wait(SECONDS)

    group.at_first = hold
    engine = group.engine(1)
    assert begun.wait(SECONDS)
    busy = next(one for one in engine.assigned() if one.partition in {each.partition for each in stepping(waiting[0])})
    engine.release("group", [one for one in layout(PARTITIONS) if one != busy.partition], SECONDS)
    assert list(engine.assigned()) == [busy]
    over.set()
    engine.stop(SECONDS)
    assert group.most == 1

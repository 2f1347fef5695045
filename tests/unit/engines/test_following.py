"""When partitions store progress past events of other partitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from opencqrs_py import event_handling
from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.engines import following
from opencqrs_py.engines.following import Haste
from opencqrs_py.engines.parts import ProcessorOptions, make_processing
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.engines.thread import ThreadEngine
from opencqrs_py.model import Event, layout
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.processing.definitions import in_order
from opencqrs_py.processing.recovery import NoRetry
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import PartitionKeyResolver
from opencqrs_py.testing import FakeClock

SECONDS = 30  # longest wait for another thread
FOREVER = 3_600.0
PARTITIONS = 4


@event_handling("group", types=["lent"])
def lend(raw: Event) -> None:
    """Write nothing."""


class World:
    """An engine that runs a group of four partitions."""

    def __init__(self) -> None:
        self.store, self.tracker = InMemoryEventStore(), InMemoryProgressTracker()
        processing = make_processing(
            "group",
            in_order([lend]),
            self.store,
            self.tracker,
            PerSubject(),
            PartitionKeyResolver(PARTITIONS),
            ProcessorOptions(),
            subject="/",
            recursive=True,
        )
        run = GroupRun(processing, layout(PARTITIONS), lambda: 0, NoRetry(), OnExhausted.STOP)
        self.engine = ThreadEngine([run], "owner")
        self.engine.assign("group", layout(PARTITIONS))
        self.engine.start()

    def append(self, name: str) -> None:
        self.store.append([Event(0, name, "s", "/books/1", "lent", None, "application/json", None, None)])

    def stored(self, seconds: float) -> int:
        """Wait for all partitions to store the head; return the position they have all stored."""
        head = self.store.head()
        with self.tracker.watched("group") as watch:
            return watch.wait(head, seconds) - 1


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """Return a world in which partitions never store progress for being idle."""
    monkeypatch.setattr(following, "_QUIET_SECONDS", FOREVER)
    monkeypatch.setattr(following, "_UNSTORED_SECONDS", FOREVER)
    made = World()
    yield made
    made.engine.stop(SECONDS)


def test_progress_over_events_of_other_partitions_is_stored_at_once_while_a_caller_waits(world: World) -> None:
    world.append("1")
    assert world.stored(0.1) == 0  # one of the partitions has handled the event, and the others wait
    world.engine.hasten("group")
    assert world.stored(SECONDS) == 1
    world.append("2")
    assert world.stored(SECONDS) == 2


def test_an_engine_is_hastened_for_its_own_groups_only(world: World) -> None:
    world.append("1")
    world.engine.hasten("another")
    assert world.stored(0.1) == 0


def test_haste_ends_after_two_seconds() -> None:
    clock = FakeClock()
    haste = Haste(clock.monotonic)
    seen: list[Any] = [haste.is_set()]
    seen.append(haste.begin())
    seen.append(haste.begin())
    seen.append(haste.is_set())
    clock.advance(1.9)
    seen.append(haste.is_set())
    clock.advance(0.2)
    seen.append(haste.is_set())
    assert seen == [False, True, False, True, True, False]

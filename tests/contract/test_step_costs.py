"""What a step costs in calls of this package's functions: every event of a live log goes through each of them."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pytest
from support.library import Lent, Returned

import opencqrs_py
from opencqrs_py import event_handling
from opencqrs_py.adapters.sql import Database, SqlEventStore, SqlProgressTracker
from opencqrs_py.engines.driver import claim
from opencqrs_py.engines.parts import ProcessorOptions, make_processing
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.model import Event, Outcome, layout
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.processing.definitions import in_order
from opencqrs_py.processing.ports import SystemClock
from opencqrs_py.processing.recovery import NoRetry
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import PartitionKeyResolver

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

PACKAGE = str(Path(opencqrs_py.__file__).parent)


class World:
    """A group of two handlers that take a session, and its log, in one SQLite file."""

    def __init__(self, database: Database) -> None:
        @event_handling("group")
        def lend(event: Lent, session: Session) -> None:
            self.handled.append(event)

        @event_handling("group")
        def take_back(event: Returned, session: Session) -> None:
            self.handled.append(event)

        self.handled: list[Any] = []
        self.store = SqlEventStore(database)
        self.processing = make_processing(
            "group",
            in_order([lend, take_back]),
            self.store,
            SqlProgressTracker(database),
            PerSubject(),
            PartitionKeyResolver(1),
            ProcessorOptions(),
            subject="/",
            recursive=True,
        )

    def append(self, event_type: str) -> None:
        isbn = str(self.store.head())
        event = Event(0, isbn, "s", "/books/1", event_type, None, "application/json", f'{{"isbn": "{isbn}"}}', None)
        self.store.append([event])

    def claimed(self) -> Callable[[], Outcome]:
        """Return the step of a processor whose cursor is moved by hand."""
        (partition,) = layout(1)
        (cursor,) = self.processing.tracker.claim("group", [partition], 0, "owner")
        processor = self.processing.processor(partition)

        def step() -> Outcome:
            nonlocal cursor
            outcome = processor.step(cursor)
            cursor = outcome.cursor
            return outcome

        return step

    def driven(self) -> Callable[[], Outcome]:
        """Return the step of a driver, as each engine calls it."""
        run = GroupRun(self.processing, layout(1), lambda: 0, NoRetry(), OnExhausted.STOP)
        (driver,) = claim(run, layout(1), "owner", SystemClock())
        return driver.step


def own_calls_of(action: Callable[[], Any]) -> Counter[str]:
    """Return how many functions of the package ``action`` calls, by module."""
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            calls[frame.f_code.co_filename.removeprefix(PACKAGE)] += 1

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize("kind", ["sqlite"])
@pytest.mark.parametrize(("way", "most_calls", "most_modules"), [(World.claimed, 60, 12), (World.driven, 67, 15)])
def test_a_step_of_two_events_takes_few_calls_in_few_modules(
    database: Database, way: Callable[[World], Callable[[], Outcome]], most_calls: int, most_modules: int
) -> None:
    world = World(database)
    step = way(world)
    for _ in range(4):  # the last one finds everything made that is made once
        world.append("lent")
        world.append("returned")
        calls = own_calls_of(step)
    assert len(world.handled) == 8
    assert calls.total() <= most_calls, calls
    assert len(calls) <= most_modules, calls
    assert not any("checkpoint" in module or "particip" in module for module in calls), calls

"""Resolvers of a project, on SQLite with three partitions: events are handled once, or the partitions wait."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from opencqrs_py import (
    Event,
    EventHandlerDefinition,
    EventHandlingProcessor,
    FixedBackOff,
    PartitionKeyResolver,
    PerDataField,
    PerSubject,
    PerSubjectLevel,
    ProcessorOptions,
    SqlEventStore,
    SqlProgressTracker,
)
from opencqrs_py.adapters.sql import Database
from opencqrs_py.model import PartitionStatus, ProcessorState
from opencqrs_py.testing import FakeClock

EVENTS, PARTITIONS = 150, 3


class PerReader(PerSubjectLevel):
    def __call__(self, event: Event, /) -> str:
        return f"{super().__call__(event)} {event.data['reader']}"


class PerReaderOfSubject(PerSubject):
    looks_at: ClassVar[frozenset[str]] = frozenset({"subject", "data"})

    def __call__(self, event: Event, /) -> str:
        return f"{event.subject} {event.data['reader']}"


class PerTenant(PerDataField):
    def __call__(self, event: Event, /) -> str:
        return str(event.metadata["tenant"])


def spoiling(event: Event) -> str:
    return str(event.data.pop("reader"))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path}/library.db")
    SqlEventStore(opened).append(
        Event(0, str(n), "urn:library", f"/books/{n % 5}", "lent", None, "application/json",
              f'{{"reader": "{n % 7}"}}', f'{{"tenant": "{n % 11}"}}')
        for n in range(1, EVENTS + 1)
    )  # fmt: skip
    yield opened
    opened.close()


class CountingStore(SqlEventStore):
    """Counts the reads."""

    reads = 0

    def read(self, *given: Any, **more: Any) -> Any:
        self.reads += 1
        return super().read(*given, **more)


def run(database: Database, resolver: Any) -> tuple[list[tuple[int, int]], list[PartitionStatus], int]:
    """Handle all with three partitions; return partition and position of each call, the states, and the reads."""
    handled: list[tuple[int, int]] = []
    statuses = []
    store = CountingStore(database)
    for number in range(PARTITIONS):

        def handle(data: dict, raw: Event) -> None:  # type: ignore[type-arg]
            handled.append((number, raw.position))  # noqa: B023 called within this round only

        processor = EventHandlingProcessor(
            number,
            "/",
            True,  # noqa: FBT003 recursive
            store,
            SqlProgressTracker(database),
            resolver,
            PartitionKeyResolver(PARTITIONS),
            [EventHandlerDefinition("group", handle, types=["lent"])],
            FixedBackOff(1, max_attempts=1),
            options=ProcessorOptions(clock=FakeClock()),
        )
        while processor.step() == 0:
            pass
        status = processor.status()
        assert status is not None
        statuses.append(status)
        processor.stop()
    return handled, statuses, store.reads


@pytest.mark.parametrize(
    "resolver", [PerReader(1), PerReaderOfSubject(), PerTenant(("reader",)), PerDataField(("reader",)), spoiling]
)
def test_each_event_is_handled_once_whatever_a_resolver_looks_at(database: Database, resolver: Any) -> None:
    handled, _, reads = run(database, resolver)
    assert sorted(position for _, position in handled) == list(range(1, EVENTS + 1))
    assert len({partition for partition, _ in handled}) > 1
    assert reads <= 3 * PARTITIONS, "events are read together, not one by one"


def nothing(event: Event) -> Any:
    return None if event.position == 20 else event.subject


def number(event: Event) -> Any:
    return event.position if event.position == 20 else event.subject


def surrogate(event: Event) -> str:
    return "\ud800" if event.position == 20 else event.subject


class SaysTooLittle(PerSubject):
    looks_at: ClassVar[frozenset[str]] = frozenset({"subject"})

    def __call__(self, event: Event, /) -> str:
        return f"{event.subject} {event.data['reader']}"


@pytest.mark.parametrize(
    ("resolver", "first", "error"),
    [
        (nothing, 20, "the sequence resolver returned None, which is no text"),
        (number, 20, "the sequence resolver returned 20, which is no text"),
        (surrogate, 20, "surrogates not allowed"),
        (SaysTooLittle(), 1, "says that it looks at the subject alone, but looks at 'data'"),
    ],
)
def test_partitions_wait_before_an_event_whose_sequence_cannot_be_said(
    database: Database, resolver: Any, first: int, error: str
) -> None:
    handled, statuses, _ = run(database, resolver)
    assert sorted(position for _, position in handled) == list(range(1, first))
    for status in statuses:
        assert status.state is ProcessorState.FAILED
        assert error in status.error
        assert f"event {first} at position {first}" in status.error

"""Dispatch to handlers that take the events of a chunk as lists, next to those that take one event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.library import Lent, Returned

from opencqrs_py import Event, Metadata, ProcessingContext, Upcast
from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.errors import EventFormatError
from opencqrs_py.model import Handler, HandlerMark, Origin, Partition, Selection, Upcaster
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.processing.binding import NothingProvided, Work, bind
from opencqrs_py.processing.dispatch import ChunkFailedError, Dispatcher
from opencqrs_py.processing.event_types import EventTypes
from opencqrs_py.processing.feed import Feed
from opencqrs_py.processing.processor import PartitionProcessor, ProcessorParts
from opencqrs_py.processing.reading import Reading, Upcasters
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent

if TYPE_CHECKING:
    from sqlalchemy import Connection


def event(position: int, event_type: str = "lent", payload: str | None = None) -> Event:
    payload = payload or f'{{"isbn": "{position}"}}'
    return Event(position, str(position), "s", "/books/1", event_type, None, "application/json", payload, None)


class World:
    """Handlers that record what they are called with."""

    def __init__(self, injector: Any, unit: Any) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.bound: list[Any] = []
        self.injector = injector
        self.unit = unit

    def add(self, call: Callable[..., Any], types: Sequence[str] = ()) -> None:
        self.bound.append(bind(Handler(HandlerMark("group", tuple(types)), call, "handlers.py:7"), self.injector))

    def handles(self, annotation: Any, name: str, types: Sequence[str] = ()) -> None:
        def handle(given: Any) -> None:
            self.calls.append((name, given))

        handle.__annotations__["given"] = annotation
        self.add(handle, types)

    def run(self, events: Sequence[Event], **parts: Any) -> int:
        work = Work("group", Partition(1, 0), self.unit, failing=events[0].position, attempt=2)
        return Dispatcher(self.bound, [Lent, Returned], **parts).handle(Chunk.of(events), work)


@pytest.fixture
def world(injector: Any, unit: Any) -> World:
    return World(injector, unit)


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (list[Lent], [Lent("1"), Lent("3")]),
        (Sequence[Lent], [Lent("1"), Lent("3")]),
        (list[Lent | Returned], [Lent("1"), Returned("2"), Lent("3")]),
        (list[dict[str, Any]], [{"isbn": "1"}, {"isbn": "2"}, {"isbn": "3"}, {"isbn": "4"}]),
        (list[Event], [event(1), event(2, "returned"), event(3), event(4, "other")]),
        (list[Metadata], [{}, {}, {}, {}]),
    ],
)
def test_a_list_has_one_member_for_each_matching_event(world: World, annotation: Any, expected: list[Any]) -> None:
    world.handles(annotation, "all")
    handled = world.run([event(1), event(2, "returned"), event(3), event(4, "other")])
    assert world.calls == [("all", expected)]
    assert handled == len(expected)


def test_patterns_select_types_for_lists_too(world: World) -> None:
    world.handles(list[Event], "all", types=["ret*"])
    assert world.run([event(1), event(2, "returned")]) == 1
    assert world.calls == [("all", [event(2, "returned")])]


def test_all_lists_of_a_handler_have_matching_members(world: World) -> None:
    seen: dict[str, Any] = {}

    def handle(
        events: list[Lent],
        raws: list[Event],
        connection: Connection,
        metadata: Sequence[Metadata],
        context: ProcessingContext,
    ) -> None:
        seen.update(events=events, raws=raws, connection=connection, metadata=metadata, context=context)

    world.add(handle)
    world.run([event(1), event(2)])
    assert seen == {
        "events": [Lent("1"), Lent("2")],
        "raws": [event(1), event(2)],
        "connection": world.unit.connection,
        "metadata": [{}, {}],
        "context": ProcessingContext("group", Partition(1, 0), 1, attempt=2),  # of the first event
    }


def test_lists_are_handled_after_single_events_both_in_handler_order(world: World) -> None:
    world.handles(list[Lent], "list 1")
    world.handles(Lent, "single 1")
    world.handles(list[Event], "list 2")
    world.handles(Event, "single 2")
    assert world.run([event(1), event(2)]) == 2
    assert [name for name, _ in world.calls] == ["single 1", "single 2"] * 2 + ["list 1", "list 2"]


def test_a_list_handler_is_not_called_for_a_chunk_without_matching_events(world: World) -> None:
    world.handles(list[Returned], "list")
    world.handles(Lent, "single")
    assert world.run([event(1)]) == 1
    assert world.calls == [("single", Lent("1"))]


def test_events_of_one_chunk_do_not_appear_in_the_next(world: World) -> None:
    world.handles(list[Lent], "list")
    dispatcher = Dispatcher(world.bound, [Lent])
    work = Work("group", Partition(1, 0), world.unit)
    for chunk in ([event(1), event(2)], [event(3)]):
        dispatcher.handle(Chunk.of(chunk), work)
    assert world.calls == [("list", [Lent("1"), Lent("2")]), ("list", [Lent("3")])]


def test_each_handler_gets_its_own_list(world: World) -> None:
    def spoil(events: list[dict[str, Any]]) -> None:
        events[0].clear()
        events.clear()

    world.add(spoil)
    world.handles(list[dict[str, Any]], "behind")
    world.run([event(1)])
    assert world.calls == [("behind", [{"isbn": "1"}])]


def test_a_handler_may_clear_its_list(world: World) -> None:
    def handle(lent: list[Lent]) -> None:
        lent.clear()

    world.add(handle)
    assert world.run([event(1), event(2), event(3)]) == 3


def test_an_async_list_handler_runs_to_completion(world: World) -> None:
    async def handle(events: list[Lent]) -> None:
        await asyncio.sleep(0)
        world.calls.append(("async", events))

    world.add(handle)
    world.run([event(1)])
    assert world.calls == [("async", [Lent("1")])]


def test_upcast_results_of_one_event_are_members_that_share_its_raw_event(world: World) -> None:
    def split(data: dict[str, Any]) -> list[Upcast]:
        return [Upcast("lent", data), Upcast("returned", data)]

    seen: list[Any] = []

    def handle(events: list[Lent | Returned], raws: list[Event]) -> None:
        seen.append((events, raws))

    world.add(handle)
    reading = Reading(Upcasters([Upcaster(("both",), split, "here")], NothingProvided()))
    assert world.run([event(1), event(2, "both")], reading=reading) == 2
    both = event(2, "both")
    assert seen == [([Lent("1"), Lent("2"), Returned("2")], [event(1), both, both])]


# Failure


def test_a_failing_list_names_no_event_unless_it_has_only_one(world: World) -> None:
    def handle(events: list[Lent]) -> None:
        raise ValueError("mine")

    world.add(handle)
    for events, index in (([event(1), event(2)], None), ([event(1)], 0)):
        with pytest.raises(ChunkFailedError) as caught:
            world.run(events)
        assert caught.value.index == index
        assert isinstance(caught.value.error, ValueError)


def test_an_undecodable_event_of_a_list_is_named(world: World) -> None:
    world.handles(list[Lent], "list")
    with pytest.raises(ChunkFailedError) as caught:
        world.run([event(1), event(2, payload="{}"), event(3)])
    assert caught.value.index == 1
    assert isinstance(caught.value.error, EventFormatError)
    assert world.calls == []


@pytest.mark.parametrize(
    ("annotations", "transactional", "takes_chunks"),
    [
        ([list[Lent]], False, True),
        ([list[Lent], Lent], False, False),
        ([Lent], False, False),
    ],
)
def test_a_group_takes_chunks_if_all_its_handlers_do(
    world: World, annotations: list[Any], *, transactional: bool, takes_chunks: bool
) -> None:
    for annotation in annotations:
        world.handles(annotation, "any")
    dispatcher = Dispatcher(world.bound, [Lent])
    assert (dispatcher.transactional, dispatcher.takes_chunks) == (transactional, takes_chunks)


def test_lists_request_no_more_types_than_single_events(world: World) -> None:
    world.handles(list[Lent], "list")
    world.handles(Event, "single", types=["other"])
    dispatcher = Dispatcher(world.bound, [Lent, Returned])
    assert dispatcher.wanted_types == {"lent", "other"}
    world.handles(list[Event], "everything")
    assert Dispatcher(world.bound, [Lent]).wanted_types is None


# A type resolver


def test_with_a_resolver_each_type_is_checked_as_it_occurs(world: World) -> None:
    def resolve(name: str) -> type | None:
        return Lent if name.startswith("lent") else None

    world.handles(Lent, "lent")
    dispatcher = Dispatcher(world.bound, EventTypes(resolver=resolve))
    assert dispatcher.wanted_types is None
    assert [dispatcher.handles(name) for name in ("lent.v7", "lent", "other")] == [True, True, False]


def test_a_handler_of_a_class_without_event_type_is_accepted_if_a_resolver_may_know_it(world: World) -> None:
    @dataclass
    class Lost:
        isbn: str

    world.handles(Lost, "lost")
    types = EventTypes(resolver={"lost": Lost}.get)
    dispatcher = Dispatcher(world.bound, types)
    assert (
        dispatcher.handle(Chunk([event(1, "lost"), event(2, "other")]), Work("group", Partition(1, 0), world.unit)) == 1
    )
    assert world.calls == [("lost", Lost("1"))]
    assert [dispatcher.wants(name) for name in ("lost", "other")] == [True, False]


# Laws


class Unit:
    def __init__(self) -> None:
        self.connection: list[tuple[str, int]] = []
        self.session = self.connection

    def flush(self) -> None:
        pass

    def ended_early(self, error: BaseException) -> None:
        return None


@given(
    types=st.lists(st.sampled_from(["lent", "returned", "other", "both"]), max_size=25),
    failing=st.sets(st.integers(1, 25)),
    batch_size=st.integers(1, 12),
    failures=st.integers(1, 3),
    beside=st.booleans(),
)
def test_lists_write_the_same_rows_as_single_events_whatever_fails(
    *, types: list[str], failing: set[int], batch_size: int, failures: int, beside: bool
) -> None:
    """Each failing event fails ``failures`` times; rows and progress match those of a handler of single events."""
    results = []
    for takes_lists in (False, True):
        world = FailingWorld(takes_lists=takes_lists, beside=beside, failures=dict.fromkeys(failing, failures))
        world.run(types, batch_size)
        results.append(world)
    single, listed = results
    assert listed.rows == single.rows
    assert listed.failed == single.failed


class FailingWorld:
    """An in-memory group with one writing handler, of single events or lists, that fails for some events."""

    def __init__(self, *, takes_lists: bool, beside: bool, failures: dict[int, int]) -> None:
        self.rows: list[tuple[str, int]] = []
        self.failed: list[tuple[int | None, Origin]] = []
        self.failures = failures
        calls: list[Callable[..., Any]] = [self.handle_all if takes_lists else self.handle]
        if beside:
            calls.append(self.look)
        bound = [bind(Handler(HandlerMark("group"), call, "here"), NothingProvided()) for call in calls]

        def split(data: dict[str, Any]) -> list[Upcast]:
            return [Upcast("lent", data), Upcast("returned", data)]

        reading = Reading(Upcasters([Upcaster(("both",), split, "here")], NothingProvided()))
        self.dispatcher = Dispatcher(bound, [Lent, Returned], reading)

    def look(self, event: Lent) -> None: ...

    def handle(self, event: Lent | Returned, raw: Event, connection: Connection) -> None:
        connection.append((type(event).__name__, raw.position))  # type: ignore[attr-defined]
        self.fail(raw)

    def handle_all(self, events: list[Lent | Returned], raws: list[Event], connection: Connection) -> None:
        for event, raw in zip(events, raws, strict=True):
            connection.append((type(event).__name__, raw.position))  # type: ignore[attr-defined]
        for raw in raws:
            if self.failures.get(raw.position) and len({each.position for each in raws}) > 1:
                raise ValueError  # together with others, this does not count as an attempt
        self.fail(raws[0])

    def fail(self, raw: Event) -> None:
        if self.failures.get(raw.position):
            raise ValueError

    def run(self, types: list[str], batch_size: int) -> None:
        store = InMemoryEventStore(event(n, name) for n, name in enumerate(types, start=1))
        tracker = InMemoryProgressTracker(self)
        feed = Feed(store, Selection(), SequencingByEvent(PerSubject()), 7, wanted=self.dispatcher.wants)
        processor = PartitionProcessor(
            Partition(1, 0), ProcessorParts("group", feed, tracker, self.dispatcher, batch_size)
        )
        (cursor,) = tracker.claim("group", [Partition(1, 0)], 0, "owner")
        for _ in range(1_000):
            outcome = processor.step(cursor)
            cursor = outcome.cursor
            if outcome.failure is not None:
                position = outcome.failure.position
                assert position is not None
                self.failed.append((position, outcome.failure.origin))
                assert [row for row in self.rows if row[1] >= position] == []
                assert cursor.stored < position
                self.failures[position] -= 1
                cursor = cursor.retrying(position)
            if outcome.idle:
                break
        assert cursor.stored == store.head()

    @contextmanager
    def begin(self) -> Iterator[Unit]:
        unit = Unit()
        yield unit
        self.rows += unit.connection

    def is_outage(self, error: BaseException) -> bool:
        del error
        return False

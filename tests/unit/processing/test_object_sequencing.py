"""Sequences by decoded objects: the resolver gets what handlers get, and each event is in exactly one partition."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py import Event, Metadata, Upcast, event_type
from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.engines.driver import claim
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.errors import AssemblyError, EventFormatError, HandlerSignatureError
from opencqrs_py.model import (
    Handler,
    HandlerMark,
    Partition,
    PartitionStatus,
    ProcessorState,
    Selection,
    Upcaster,
    layout,
    residue_of,
)
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.inbox import InboxChange
from opencqrs_py.processing.binding import NothingProvided, Work, bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.event_types import EventTypes
from opencqrs_py.processing.feed import Feed
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.inbox.batches import ScheduleRule
from opencqrs_py.processing.inbox.parked_entries import waiting_entry
from opencqrs_py.processing.inbox.schedules import FixedDelay
from opencqrs_py.processing.processor import PartitionProcessor, ProcessorParts
from opencqrs_py.processing.reading import Reading, Upcasters
from opencqrs_py.processing.recovery import NoRetry
from opencqrs_py.processing.sequence_resolvers import PerSubjectLevel
from opencqrs_py.processing.sequencing import SequencingByEvent, SequencingByObject, sequencing_for
from opencqrs_py.testing import FakeClock

if TYPE_CHECKING:
    from fractions import Fraction

    from sqlalchemy import Connection


@dataclass
class ReaderEvent:
    reader: str


@event_type("lent")
@dataclass
class Lent(ReaderEvent):
    pass


@event_type("returned")
@dataclass
class Returned(ReaderEvent):
    pass


@event_type("other")
@dataclass
class Other:
    pass


TYPES = EventTypes([Lent, Returned, Other])


def event(position: int = 7, event_type: str = "lent", payload: str = '{"reader": "Ada"}') -> Event:
    return Event(
        position, str(position), "s", "/books/1", event_type, None, "application/json", payload, '{"by": "Bob"}'
    )


def moved(data: dict[str, Any]) -> list[Upcast]:
    """One old event that was about two readers."""
    return [Upcast("returned", {"reader": data["from"]}), Upcast("lent", {"reader": data["to"]})]


MOVED = '{"from": "Ada", "to": "Bob"}'


def upcasting(call: Callable[..., Any] = moved) -> Reading:
    return Reading(Upcasters([Upcaster(("moved",), call, "upcasters.py:3")], NothingProvided()))


def sequencing(resolver: Any, reading: Reading | None = None, types: EventTypes = TYPES) -> Any:
    return sequencing_for(resolver, types, reading or Reading(), "provider by_reader")


# Which resolvers see objects


def by_reader(event: ReaderEvent) -> str:
    return event.reader


def by_data(data: dict[str, Any]) -> str:
    return str(data["reader"])


def by_metadata(metadata: Metadata) -> str:
    return str(metadata["by"])


def by_both(event: Lent | Returned, metadata: Metadata, raw: Event) -> str:
    return f"{event.reader} {metadata['by']} {raw.type}"


class ByReader:
    def __call__(self, event: ReaderEvent) -> str:
        return event.reader

    def by_reader(self, event: ReaderEvent) -> str:
        return event.reader


def by_raw(raw: Event) -> str:
    return raw.subject


def with_result_only(event) -> str:  # type: ignore[no-untyped-def]
    return str(event.subject)


class ByRaw:
    def __call__(self, event: Event, /) -> str:
        return event.subject


@pytest.mark.parametrize(
    ("resolver", "sequence_id"),
    [
        (by_reader, "Ada"),
        (by_data, "Ada"),
        (by_metadata, "Bob"),
        (by_both, "Ada Bob lent"),
        (ByReader(), "Ada"),
        (ByReader().by_reader, "Ada"),
    ],
)
def test_a_resolver_that_takes_objects_or_metadata_gets_the_same_as_handlers(resolver: Any, sequence_id: str) -> None:
    made = sequencing(resolver)
    assert isinstance(made, SequencingByObject)
    assert made.sequence_ids(event()) == (sequence_id,)


@pytest.mark.parametrize(
    "resolver",
    [
        by_raw,
        with_result_only,
        ByRaw(),
        PerSubjectLevel(9),
        functools.partial(by_raw),
        lambda event: event.subject,
    ],
)
def test_any_other_resolver_gets_the_stored_event(resolver: Any) -> None:
    made = sequencing(resolver, upcasting())
    assert isinstance(made, SequencingByEvent)
    assert made.sequence_ids(event(7, "moved", "no JSON")) == ("/books/1",)


def test_a_custom_partition_resolver_determines_the_partition() -> None:
    made = sequencing_for(by_reader, TYPES, Reading(), "here", lambda sequence, modulus: len(sequence) % modulus)
    assert [made.partition_of(one, 2) for one in made.sequence_ids(event())] == [1]


def test_a_resolver_gets_unwrapped_events() -> None:
    made = sequencing(by_both, Reading(enveloped=True))
    wrapped = event(payload='{"payload": {"reader": "Eve"}, "metadata": {"by": "Zoe"}}')
    assert made.sequence_ids(wrapped) == ("Eve Zoe lent",)


# Upcast results of one event may go to several partitions


def test_each_upcast_result_belongs_to_its_own_sequence() -> None:
    made = sequencing(by_reader, upcasting())
    assert made.sequence_ids(event(7, "moved", MOVED)) == ("Ada", "Bob")


def test_a_sequence_shared_by_upcast_results_is_listed_once() -> None:
    made = sequencing(by_reader, upcasting())
    assert made.sequence_ids(event(7, "moved", '{"from": "Ada", "to": "Ada"}')) == ("Ada",)


def test_an_event_dropped_by_an_upcaster_goes_to_no_partition() -> None:
    def nothing(raw: Event) -> None: ...

    assert sequencing(by_reader, upcasting(nothing)).sequence_ids(event(7, "moved", "{}")) == ()


def test_the_resolver_is_not_called_for_upcast_results_that_the_group_does_not_handle() -> None:
    def also_other(data: dict[str, Any]) -> list[Upcast]:
        return [Upcast("other", {}), Upcast("lent", {"reader": data["to"]})]

    made = sequencing(by_reader, upcasting(also_other))
    made.serve(["lent"], lambda name: name == "lent")
    assert made.sequence_ids(event(7, "moved", MOVED)) == ("Bob",)


def test_an_event_belongs_to_the_partition_of_its_sequence_alone() -> None:
    made = sequencing(by_reader)
    assert [p.residue for p in layout(97) if made.belongs(event(), p)] == [residue_of("Ada", 97)]


# Errors


def test_a_resolver_that_does_not_accept_the_classes_of_the_group_is_refused_at_startup() -> None:
    made = sequencing(by_both)
    made.serve(["lent", "returned"], lambda _: True)
    with pytest.raises(AssemblyError) as caught:
        made.serve(["lent", "other"], lambda _: True)
    assert str(caught.value) == (
        "[OCQ-514] the sequence resolver takes Lent | Returned, but the group also handles events of type 'other'\n"
        "  where: provider by_reader\n"
        "  fix:   have it take their class, too, or dict"
    )


def test_an_event_of_a_class_that_the_resolver_does_not_accept_raises_an_error() -> None:
    with pytest.raises(AssemblyError, match="OCQ-514"):
        sequencing(by_reader).sequence_ids(event(7, "other"))


@pytest.mark.parametrize(
    ("reading", "given", "code"),
    [
        (Reading(), event(payload="{}"), "OCQ-211"),
        (Reading(enveloped=True), event(), "OCQ-215"),
        (upcasting(), event(7, "moved", "{}"), "OCQ-223"),
    ],
)
def test_an_unreadable_event_raises_an_error_that_names_it(reading: Reading, given: Event, code: str) -> None:
    with pytest.raises(EventFormatError) as caught:
        sequencing(by_reader, reading).sequence_ids(given)
    assert (caught.value.code, caught.value.where) == (code, given.label)


def with_connection(event: Lent, connection: Connection) -> str: ...  # type: ignore[empty-body]
def with_list(events: list[Lent]) -> str: ...  # type: ignore[empty-body]
def half_annotated(event: Lent, other) -> str: ...  # type: ignore[no-untyped-def, empty-body]
def unknown(event: Fraction) -> str: ...  # type: ignore[empty-body]
def generator(event: Lent) -> str:  # type: ignore[misc]
    yield "a"


@pytest.mark.parametrize(
    ("resolver", "code", "what"),
    [
        (
            with_connection,
            "OCQ-205",
            "a sequence resolver sees an event before it is handled and cannot have connection",
        ),
        (with_list, "OCQ-205", "a sequence resolver sees one event at a time, but events asks for a list"),
        (half_annotated, "OCQ-201", "parameter 'other' has no annotation"),
        (unknown, "OCQ-202", "the annotations cannot be read (name 'Fraction' is not defined)"),
        (generator, "OCQ-204", "a sequence resolver must be a plain function that returns a text"),
    ],
)
def test_a_wrong_signature_is_refused_at_startup(resolver: Any, code: str, what: str) -> None:
    with pytest.raises(HandlerSignatureError) as caught:
        sequencing(resolver)
    assert (caught.value.code, caught.value.what, caught.value.where) == (code, what, "provider by_reader")


# The dispatcher's part


def test_a_group_of_one_partition_calls_no_resolver(unit: Any) -> None:
    def never(event: Lent) -> str:
        raise AssertionError(event)

    def handle(event: Lent | Returned) -> None: ...

    reading = upcasting()
    made = sequencing(never, reading)
    bound = bind(Handler(HandlerMark("group"), handle, "here"), NothingProvided())
    dispatcher = Dispatcher([bound], TYPES, reading, belongs=made.belongs)
    assert dispatcher.handle(Chunk([event(7, "moved", MOVED)]), Work("group", Partition(1, 0), unit)) == 1


class Unit:
    def __init__(self, connection: list[Any]) -> None:
        self.connection = self.session = connection


READERS = st.sampled_from("ABCDE")
EVENTS = st.one_of(
    st.tuples(st.sampled_from(["lent", "returned"]), READERS.map(lambda reader: {"reader": reader})),
    st.tuples(st.just("moved"), st.fixed_dictionaries({"from": READERS, "to": READERS})),
)


@given(st.lists(EVENTS, max_size=20), st.integers(1, 5), st.integers(1, 7))
def test_every_upcast_event_is_handled_by_exactly_one_partition_in_the_order_of_its_sequence(
    given_events: list[tuple[str, dict[str, str]]], partitions: int, batch_size: int
) -> None:
    rows: dict[Partition, list[tuple[int, str, str]]] = {partition: [] for partition in layout(partitions)}

    def handle(event: Lent | Returned, raw: Event, connection: Connection) -> None:
        connection.append((raw.position, type(event).__name__, event.reader))  # type: ignore[attr-defined]

    reading = upcasting()
    made = sequencing(by_reader, reading)
    bound = bind(Handler(HandlerMark("group"), handle, "here"), NothingProvided())
    dispatcher = Dispatcher([bound], TYPES, reading, belongs=made.belongs)
    made.serve(["lent", "returned"], dispatcher.handles)
    store = InMemoryEventStore(event(n, name, json.dumps(data)) for n, (name, data) in enumerate(given_events, 1))
    feed = Feed(store, Selection(), made, 6, wanted=dispatcher.wants)
    for partition in layout(partitions):
        for chunk in followed(feed, partition, batch_size):
            dispatcher.handle(Chunk.of(chunk), Work("group", partition, Unit(rows[partition])))
    read = [(raw, one) for raw in store.read(0, 100, Selection()).events for one in reading.read(raw)]
    for partition, handled in rows.items():
        own = [(raw, one) for raw, one in read if partition.owns(one.data["reader"])]
        assert handled == [(raw.position, one.type.capitalize(), one.data["reader"]) for raw, one in own]
    assert sum(map(len, rows.values())) == len(read)


def followed(feed: Feed, partition: Partition, batch_size: int) -> Iterator[Sequence[Event]]:
    after = 0
    while (page := feed.read(after)) is not None:
        share, after = page.events_of(partition, after)
        for start in range(0, len(share), batch_size):
            yield share[start : start + batch_size]


def test_partitions_keep_separate_progress_for_an_event_of_both(database: Any) -> None:
    def handle(event: Lent | Returned, connection: Connection) -> None:
        connection.append(event.reader)  # type: ignore[attr-defined]

    first, second = (next(name for name in "ABCDE" if partition.owns(name)) for partition in layout(2))
    reading = upcasting()
    made = sequencing(by_reader, reading)
    bound = bind(Handler(HandlerMark("group"), handle, "here"), NothingProvided())
    dispatcher = Dispatcher([bound], TYPES, reading, belongs=made.belongs)
    store = InMemoryEventStore([event(1, "moved", f'{{"from": "{first}", "to": "{second}"}}')])
    tracker = InMemoryProgressTracker(database)
    feed = Feed(store, Selection(), made, 10)
    for cursor in tracker.claim("group", layout(2), 0, "owner"):
        processor = PartitionProcessor(cursor.partition, ProcessorParts("group", feed, tracker, dispatcher, 10))
        outcome = processor.step(cursor)
        assert (outcome.handled, outcome.cursor.stored) == (1, 1)
    assert database.rows == [first, second]


def test_an_event_of_two_sequences_waiting_in_one_partition_is_handled_once_for_each() -> None:
    """Its two results waited in two partitions, which were merged."""
    handled: list[tuple[str, str]] = []

    def handle(event: ReaderEvent) -> None:
        handled.append((type(event).__name__, event.reader))

    reading, tracker, clock = upcasting(), InMemoryProgressTracker(), FakeClock()
    made = sequencing(by_reader, reading)
    store = InMemoryEventStore([event(1, "moved", MOVED)])
    bound = bind(Handler(HandlerMark("group", types=["lent", "returned"]), handle, "handlers.py:7"), NothingProvided())
    processing = GroupProcessing(
        "group",
        store,
        tracker,
        Dispatcher([bound], TYPES, reading, belongs=made.belongs),
        subject="/",
        recursive=True,
        sequencing=made,
        partitions=1,
        batch_size=100,
        clock=clock,
        schedule=ScheduleRule(FixedDelay(10, 6)),
    )
    (cursor,) = tracker.claim("group", layout(1), 0, "owner")
    (moved_event,) = store.read(0, 10, Selection()).events
    entries = tuple(
        waiting_entry("group", reader, moved_event, "2026-01-01T00:00:00.000Z") for reader in ("Ada", "Bob")
    )
    change = InboxChange("2026-01-01T00:00:00.000Z", added=entries, most_sequences=None, most_of_sequence=None)
    with tracker.unit("group", cursor, 1, change=change):
        pass
    tracker.report(PartitionStatus("group", cursor.partition, 1, ProcessorState.STOPPED), cursor.epoch)
    run = GroupRun(processing, layout(1), lambda: 0, NoRetry(), OnExhausted.STOP)
    (driver,) = claim(run, layout(1), "owner", clock)
    for _ in range(20):
        clock.advance(max(0.0, driver.supervised.until_tick()))
        driver.step()
    assert sorted(handled) == [("Lent", "Bob"), ("Returned", "Ada")]
    assert tracker.entries("group") == []

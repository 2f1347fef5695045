"""The parts of a group: how much is committed at once, and how much is read at once."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py import AfterCommit, Event, Metadata
from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.model import Handler, HandlerMark, Partition, Selection, Slice
from opencqrs_py.model.selection import ATTRIBUTES, Share
from opencqrs_py.processing.binding import bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.groups import GroupProcessing, read_size
from opencqrs_py.processing.inbox.batches import ScheduleRule
from opencqrs_py.processing.ports import SequenceResolver
from opencqrs_py.processing.sequence_resolvers import NoSequence, PerDataField, PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent

if TYPE_CHECKING:
    from sqlalchemy import Connection


def with_connection(raw: Event, connection: Connection) -> None: ...
def without(raw: Event) -> None: ...
def with_list(raws: list[Event]) -> None: ...
def with_list_and_connection(raws: list[Event], connection: Connection) -> None: ...
def with_after_commit(raw: Event, after_commit: AfterCommit) -> None: ...


Make = Callable[..., GroupProcessing]


@pytest.fixture
def make(database: Any, injector: Any) -> Make:
    """Create a group of one handler; keyword arguments replace the default ones."""

    def made(handler: Any, store: InMemoryEventStore, **others: Any) -> GroupProcessing:
        dispatcher = Dispatcher([bind(Handler(HandlerMark("group"), handler, "here"), injector)], [])
        usual = {"sequencing": SequencingByEvent(PerSubject()), "partitions": 1, "batch_size": None}
        parts = ("group", store, InMemoryProgressTracker(database), dispatcher)
        return GroupProcessing(*parts, subject="/", recursive=True, **{**usual, **others})

    return made


@pytest.mark.parametrize(
    ("handler", "asked_for", "batch_size"),
    [
        (with_connection, None, 1_000),
        (with_connection, 1, 1),
        (with_connection, 5_000, 5_000),
        (without, None, 1),
        (without, 100, 100),
        (with_list, None, 1_000),
        (with_list, 7, 7),
        (with_list_and_connection, None, 1_000),
        (with_after_commit, None, 1),
    ],
)
def test_events_are_only_committed_together_if_a_repetition_is_harmless(
    handler: Any, asked_for: int | None, batch_size: int, make: Make
) -> None:
    group = make(handler, InMemoryEventStore(), batch_size=asked_for)
    assert group.batch_size == batch_size
    processor = group.processor(Partition(2, 1))
    assert (processor.group, processor.partition) == ("group", Partition(2, 1))


def with_object(event: dict) -> None: ...  # type: ignore[type-arg]
def with_object_and_metadata(event: dict, metadata: Metadata) -> None: ...  # type: ignore[type-arg]


class Asked(InMemoryEventStore):
    """A store that records which attributes are requested, and how many events."""

    def read(self, after: int, limit: int, selection: Selection, upto: int | None = None) -> Slice:
        self.attributes, self.most = selection.attributes, limit
        return super().read(after, limit, selection, upto)


class Sharing(Asked):
    """A store that can filter by partition."""

    def selects(self, _share: Share) -> bool:
        return True


@pytest.mark.parametrize(
    ("handler", "resolver", "partitions", "attributes"),
    [
        (with_object, PerSubject(), 1, set()),
        (with_object, PerSubject(), 2, {"subject"}),
        (with_object, PerDataField(("isbn",)), 2, set()),
        (with_object, NoSequence(), 1, set()),
        (with_object, NoSequence(), 2, {"id"}),
        (with_object, lambda event: event.subject, 2, ATTRIBUTES),
        (with_object_and_metadata, PerSubject(), 1, ATTRIBUTES),
        (without, PerSubject(), 1, ATTRIBUTES),
    ],
)
def test_only_attributes_that_are_used_are_read_from_the_store(
    handler: Any,
    resolver: SequenceResolver,
    partitions: int,
    attributes: AbstractSet[str],
    make: Make,
) -> None:
    store = Asked()
    make(handler, store, sequencing=SequencingByEvent(resolver), partitions=partitions, batch_size=10).feed.read(0)
    assert store.attributes == attributes


def test_events_committed_one_by_one_are_read_in_full_because_each_commit_stores_the_identity(
    make: Make,
) -> None:
    store = Asked()
    make(with_object, store).feed.read(0)
    assert store.attributes == ATTRIBUTES


@pytest.mark.parametrize(
    ("schedule", "characters", "limits"),
    [
        (None, 100, [1_000, 1_000]),
        (ScheduleRule(), 100, [1_000, 5_000]),
        (ScheduleRule(), 0, [1_000, 5_000]),
        (ScheduleRule(), 8_000, [1_000, 2_000]),
        (ScheduleRule(), 100_000, [1_000, 1_000]),
    ],
)
@pytest.mark.parametrize("of_partition", [False, True])
def test_more_small_events_enter_the_inbox_at_once_than_one_chunk_handles(
    schedule: ScheduleRule | None,
    characters: int,
    limits: list[int],
    of_partition: bool,  # noqa: FBT001
    make: Make,
) -> None:
    store = Sharing(Event(0, str(n), "s", "/", "lent", None, "", "x" * characters or None, None) for n in range(3))
    group = make(with_object, store, partitions=2, schedule=schedule)
    feed = group.narrowed([Partition(2, 0)]).feed if of_partition else group.feed
    assert (feed is group.feed) is not of_partition
    feed.read(0)
    first = store.most
    store.append([Event(0, "3", "s", "/", "lent", None, "", None, None)])
    feed.read(3)
    assert [first, store.most] == limits


@pytest.mark.parametrize(
    ("batch_size", "partitions", "expected"),
    [(1, 1, 1_000), (1, 100, 1_000), (1_000, 1, 1_000), (5_000, 1, 5_000), (1_000, 2, 1_752), (10_000, 8, 76_800)],
)
def test_as_much_is_read_as_the_partitions_can_commit(batch_size: int, partitions: int, expected: int) -> None:
    assert read_size(batch_size, partitions) == expected


@given(st.integers(1, 100_000), st.integers(2, 200))
def test_the_events_of_a_partition_in_a_page_usually_fit_its_transaction(batch_size: int, partitions: int) -> None:
    size = read_size(batch_size, partitions)
    assert size >= 1_000
    assert size == 1_000 or size // partitions <= batch_size

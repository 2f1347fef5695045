"""The feed: the log is read once for all partitions that are close together."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.model import Event, Partition, Selection, Slice, layout, residue_of
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.model.selection import Share
from opencqrs_py.processing.feed import Feed, Page, UnsequencedError
from opencqrs_py.processing.ports import SequenceResolver
from opencqrs_py.processing.sequence_resolvers import NoSequence, PerDataField, PerSubject, PerSubjectLevel
from opencqrs_py.processing.sequencing import SequencingByEvent


def event(number: int, subject: str = "/books/1") -> Event:
    return Event(number, str(number), "s", subject, "lent", None, "application/json", None, None)


class CountingSource(InMemoryEventStore):
    """A store that records the reads; it may have gaps."""

    def __init__(self, count: int = 0) -> None:
        super().__init__(event(n, f"/books/{n % 5}") for n in range(1, count + 1))
        self.reads: list[int] = []

    def read(self, after: int, limit: int, selection: Selection, upto: int | None = None) -> Slice:
        self.reads.append(after)
        return super().read(after, limit, selection, upto)


class SharingSource(CountingSource):
    """A store that can filter by partition; it counts the events that it has read."""

    events_read = 0

    def selects(self, share: Share) -> bool:
        return True

    def read(self, after: int, limit: int, selection: Selection, upto: int | None = None) -> Slice:
        share = selection.share
        if share is None:
            found = super().read(after, limit, selection, upto)
        else:
            self.reads.append(after)
            whole = InMemoryEventStore.read(self, after, 1_000, selection, upto)
            own = [one for one in whole.events if residue_of(one.subject, share.modulus) in share.residues]
            found = Slice(after, own[limit - 1].position if len(own) >= limit else whole.upto, tuple(own[:limit]))
        self.events_read += len(found.events)
        return found


def feed_of(source: InMemoryEventStore, limit: int = 10, memory: int = 4, **selection: Any) -> Feed:
    return Feed(source, Selection(**selection), SequencingByEvent(PerSubject()), limit, memory)


def follow(feed: Feed, partition: Partition, after: int = 0) -> list[Event]:
    """Read on to the head as a processor does."""
    seen: list[Event] = []
    while (page := feed.read(after, partition)) is not None:
        seen += page.events_of(partition, after)[0]
        after = page.upto
    return seen


def of(page: Page, partition: Partition, after: int) -> tuple[list[Event], int]:
    events, upto = page.events_of(partition, after)
    return list(events), upto


def test_partitions_at_the_same_position_share_one_read() -> None:
    source = CountingSource(10)
    feed = feed_of(source)
    pages = {id(feed.read(0)) for _ in range(8)}
    assert len(pages) == 1
    assert source.reads == [0]


def test_partitions_that_are_slightly_apart_share_a_page() -> None:
    source = CountingSource(10)
    feed = feed_of(source)
    whole = feed.read(0)
    for after in (3, 9):
        assert feed.read(after) is whole
    assert source.reads == [0]


@pytest.mark.parametrize("partitions", [1, 4, 16])
def test_the_log_is_read_once_for_any_number_of_partitions(partitions: int) -> None:
    source = CountingSource(45)
    feed = feed_of(source)
    after = dict.fromkeys(layout(partitions), 0)
    for _ in range(6):
        for partition in after:
            page = feed.read(after[partition])
            after[partition] = page.upto if page else after[partition]
    assert set(after.values()) == {45}
    assert [read for read in source.reads if read < 45] == [0, 10, 20, 30, 40]


def test_a_lagging_partition_reuses_recent_pages_and_reads_older_ones_itself() -> None:
    source = CountingSource(60)
    feed = feed_of(source, memory=3)
    follow(feed, Partition(1, 0))
    del source.reads[:]
    feed.read(30)
    feed.read(45)
    assert source.reads == []
    feed.read(7)
    assert source.reads == [7]


def test_pages_read_for_a_lagging_partition_evict_no_newer_pages() -> None:
    source = CountingSource(60)
    feed = feed_of(source, memory=2)
    follow(feed, Partition(1, 0))
    for after in (5, 15, 25):
        feed.read(after)
    del source.reads[:]
    feed.read(55)
    feed.read(45)
    feed.read(27)
    assert source.reads == []


def test_a_lagging_partition_catches_up_without_losing_events() -> None:
    source = CountingSource(60)
    feed = feed_of(source, memory=2)
    one, other = layout(2)
    ahead = follow(feed, one)
    behind = follow(feed, other)
    assert sorted(event.position for event in ahead + behind) == list(range(1, 61))


def test_a_lagging_partition_reads_no_events_of_others_if_the_store_can_filter_them() -> None:
    source = SharingSource(60)
    feed = feed_of(source, memory=2)
    one, other = layout(2)
    follow(feed, one)
    assert source.events_read == 60
    behind = follow(feed, other)
    assert source.events_read == 60 + sum(event.position <= 40 for event in behind)
    assert behind == [event for event in follow(feed_of(source), Partition(1, 0)) if event in behind]


def test_a_page_of_a_lagging_partition_ends_where_shared_pages_begin_and_is_read_once() -> None:
    source = SharingSource(60)
    feed = feed_of(source, limit=20, memory=1)
    follow(feed, Partition(1, 0))
    del source.reads[:]
    one, other = layout(2)
    page = feed.read(35, one)
    assert page is not None
    assert page.upto == 40
    assert page is feed.read(37, one)
    assert page is not feed.read(37, other)
    assert source.reads == [35, 37]


@given(
    turns=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=60),
    sharing=st.booleans(),
    memory=st.integers(1, 3),
)
def test_each_partition_gets_all_its_events_once_whichever_lags(
    *, turns: list[tuple[int, int]], sharing: bool, memory: int
) -> None:
    source = (SharingSource if sharing else CountingSource)(60)
    feed = feed_of(source, limit=9, memory=memory)
    after = dict.fromkeys(layout(3), 0)
    found: list[int] = []

    def step(partition: Partition, most: int) -> bool:
        page = feed.read(after[partition], partition)
        if page is None:
            return False
        events, upto = page.events_of(partition, after[partition])
        found.extend(one.position for one in events[:most])
        after[partition] = events[most - 1].position if len(events) > most else upto
        return True

    for residue, most in turns:
        step(Partition(3, residue), most)
    for partition in after:
        while step(partition, 5):
            pass
    assert sorted(found) == list(range(1, 61))


def test_there_is_no_page_at_the_head_of_the_log() -> None:
    source = CountingSource(3)
    feed = feed_of(source)
    assert feed.read(3) is None
    assert feed.read(99) is None
    source.append([event(4)])
    page = feed.read(3)
    assert page is not None
    assert (page.after, page.upto) == (3, 4)


def test_a_cached_page_that_ended_at_the_head_does_not_hide_later_events() -> None:
    source = CountingSource(3)
    feed = feed_of(source)
    assert feed.read(0) is not None
    source.append([event(4)])
    assert [e.id for e in follow(feed, Partition(1, 0))] == ["1", "2", "3", "4"]


def test_unselected_events_are_passed_over_in_one_step() -> None:
    source = CountingSource(50)
    feed = feed_of(source, subject="/elsewhere")
    page = feed.read(0)
    assert page is not None
    assert page.upto == 50
    assert of(page, Partition(1, 0), 0) == ([], 50)


def test_a_source_that_returns_earlier_positions_counts_as_at_its_head() -> None:
    class Backwards(InMemoryEventStore):
        def read(self, after: int, limit: int, selection: Selection, upto: int | None = None) -> Slice:
            return Slice(after, after - 1, (event(after - 1),))

    assert feed_of(Backwards()).read(5) is None


def test_a_failed_read_caches_nothing() -> None:
    class Failing(CountingSource):
        broken = True

        def read(self, after: int, limit: int, selection: Selection, upto: int | None = None) -> Slice:
            if self.broken:
                raise ConnectionError("away")
            return super().read(after, limit, selection, upto)

    source = Failing(3)
    feed = feed_of(source)
    with pytest.raises(ConnectionError):
        feed.read(0)
    source.broken = False
    assert [e.id for e in follow(feed, Partition(1, 0))] == ["1", "2", "3"]


def test_sequence_ids_are_resolved_once_per_event_and_layout_after_the_first_are_checked() -> None:
    asked: list[str] = []

    def sequence_of(event: Event, /) -> str:
        asked.append(event.id)
        return event.subject

    page = Page(Slice(0, 3, tuple(event(n) for n in (1, 2, 3))), SequencingByEvent(sequence_of))
    for _ in range(2):
        for partition in layout(4):
            page.events_of(partition, 0)
    assert asked == ["1", "1", "2", "2", "3", "3"]
    for modulus in (2, 3, 4, 5, 6):
        page.events_of(Partition(modulus, 0), 0)
    assert asked[-3:] == ["1", "2", "3"], "later ones are resolved once"


def test_a_single_partition_calls_no_resolver() -> None:
    def never(event: Event, /) -> str:
        raise AssertionError(event)

    page = Page(Slice(0, 3, (event(1), event(2))), SequencingByEvent(never))
    assert of(page, Partition(1, 0), 0) == ([event(1), event(2)], 3)


def test_events_of_unwanted_types_are_dropped_before_the_resolver_is_called() -> None:
    asked: list[str] = []

    def sequence_of(event: Event, /) -> str:
        asked.append(event.id)
        return event.subject

    kinds = [event(n)._replace(type="lent" if n % 2 else "other") for n in range(1, 6)]
    feed = Feed(
        InMemoryEventStore(kinds), Selection(), SequencingByEvent(sequence_of), 10, wanted=lambda name: name == "lent"
    )
    page = feed.read(0)
    assert page is not None
    assert page.upto == 5
    shares = [page.events_of(partition, 0) for partition in layout(2)]
    assert sorted(e.position for share, _ in shares for e in share) == [1, 3, 5]
    assert set(asked) == {"1", "3", "5"}


class Resolver:
    """Raises for the events listed in ``broken``."""

    def __init__(self, *broken: int) -> None:
        self.broken = set(broken)

    def __call__(self, event: Event, /) -> str:
        if event.position in self.broken:
            raise LookupError(event.id)
        return event.subject


BOTH = layout(2)
OF = ["/order/1", "/order/4"]  # of partitions 0 and 1


def test_events_before_one_without_sequence_are_assigned_first() -> None:
    events = [event(n, OF[n % 2]) for n in range(1, 7)]
    page = Page(Slice(0, 9, events), SequencingByEvent(Resolver(5)))
    shares = [page.events_of(partition, 0) for partition in BOTH]
    assert [([e.position for e in share], upto) for share, upto in shares] == [([2, 4], 4), ([1, 3], 4)]
    for partition in BOTH:
        with pytest.raises(UnsequencedError) as caught:
            page.events_of(partition, 4)
        assert caught.value.event.position == 5
        assert isinstance(caught.value.error, LookupError)


def test_the_first_event_of_a_page_may_be_without_sequence() -> None:
    page = Page(Slice(3, 9, [event(7)]), SequencingByEvent(Resolver(7)))
    assert of(page, BOTH[0], 3) == ([], 6)
    with pytest.raises(UnsequencedError):
        page.events_of(BOTH[0], 6)


def test_the_next_attempt_calls_the_resolver_again() -> None:
    resolver = Resolver(2)
    feed = Feed(CountingSource(5), Selection(), SequencingByEvent(resolver), 10)
    for _ in range(2):
        page = feed.read(1)
        assert page is not None
        with pytest.raises(UnsequencedError):
            page.events_of(BOTH[0], 1)
    resolver.broken.clear()
    page = feed.read(1)
    assert page is not None
    shares = [page.events_of(partition, 1) for partition in BOTH]
    assert sorted(e.position for share, upto in shares for e in share) == [2, 3, 4, 5]
    assert {upto for _, upto in shares} == {5}


@given(st.sets(st.integers(1, 12), min_size=1), st.integers(1, 4), st.integers(1, 12))
def test_all_partitions_get_their_events_before_one_without_sequence(
    positions: set[int], partitions: int, bad: int
) -> None:
    events = [event(n, f"/books/{n % 5}") for n in sorted(positions)]
    page = Page(Slice(0, 12, events), SequencingByEvent(Resolver(bad)))
    asked = partitions > 1 and bad in positions
    found = []
    for partition in layout(partitions):
        share, upto = page.events_of(partition, 0) if bad > 1 or not asked else ((), 0)
        assert upto == (bad - 1 if asked else 12)
        found += [e.position for e in share]
    assert sorted(found) == [n for n in sorted(positions) if not asked or n < bad]


@pytest.mark.parametrize(("resolver", "asked"), [(PerSubject(), 2), (PerSubjectLevel(1), 2), (NoSequence(), 6)])
def test_a_resolver_that_only_reads_subjects_is_called_once_per_subject(resolver: SequenceResolver, asked: int) -> None:
    ids: list[str] = []

    def partition_of(sequence_id: str, modulus: int) -> int:
        ids.append(sequence_id)
        return residue_of(sequence_id, modulus)

    events = tuple(event(n, f"/books{n % 2}/{n % 2}") for n in range(1, 7))
    page = Page(Slice(0, 6, events), SequencingByEvent(resolver, partition_of))
    assigned = [one for partition in layout(3) for one in page.events_of(partition, 0)[0]]
    assert sorted(assigned) == list(events)
    assert len(ids) == asked


@pytest.mark.parametrize("resolver", [PerSubject(), PerSubjectLevel(1)])
def test_rows_are_assigned_without_reading_events_if_only_the_subject_matters(
    resolver: SequenceResolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(event: Event) -> tuple[str, ...]:
        raise AssertionError(event)

    sequencing = SequencingByEvent(resolver)
    monkeypatch.setattr(sequencing, "sequence_ids", never)
    rows = [(n, "lent", None, f"/books{n % 5}") for n in range(1, 11)]
    page = Page(Slice(0, 10, Chunk(rows, never)), sequencing)  # type: ignore[arg-type]
    for partition in layout(3):
        expected = [n for n, *_, subject in rows if residue_of(subject, 3) == partition.residue]
        assert [one.position for one in page.events_of(partition, 0)[0]] == expected


# The sequences of an event, as a page returns them

ADA, BOB = event(1)._replace(payload='{"reader": "Ada"}'), event(2)._replace(payload='{"reader": "Bob"}')


@pytest.mark.parametrize(
    ("resolver", "expected"),
    [
        (PerSubject(), [("/books/1",), ("/books/1",)]),
        (PerSubjectLevel(1), [("/books",), ("/books",)]),
        (NoSequence(), [("1",), ("2",)]),
        (PerDataField(("reader",)), [("Ada",), ("Bob",)]),
    ],
)
@pytest.mark.parametrize("partitions", [1, 2])
def test_a_page_returns_the_sequences_of_its_events(resolver: SequenceResolver, expected: Any, partitions: int) -> None:
    page = Page(Slice(0, 2, (ADA, BOB)), SequencingByEvent(resolver))
    for partition in layout(partitions):
        page.events_of(partition, 0)
    assert [page.sequence_ids(one) for one in (ADA, BOB)] == expected


def test_the_sequences_of_a_subject_are_resolved_once_per_page() -> None:
    asked: list[str] = []

    class BySubject:
        looks_at = frozenset({"subject"})

        def __call__(self, event: Event, /) -> str:
            asked.append(event.subject)
            return event.subject

    page = Page(Slice(0, 2, (ADA, BOB)), SequencingByEvent(BySubject()))
    for modulus in (2, 3):
        page.events_of(Partition(modulus, 0), 0)
    assert [page.sequence_ids(one) for one in (ADA, BOB)] == [("/books/1",)] * 2
    assert asked == ["/books/1"] * 2, "twice, to check the first answers"


def whole(page: Page) -> Chunk:
    """Return all events of a page."""
    return page.events_of(Partition(1, 0), page.after)[0]


@pytest.mark.parametrize(("partitions", "asked"), [(1, 4), (2, 4)])
def test_the_subjects_of_sequences_are_found_without_resolving_again(partitions: int, asked: int) -> None:
    ids: list[str] = []

    class ByLevel:
        looks_at = frozenset({"subject"})

        def __call__(self, event: Event, /) -> str:
            ids.append(event.subject)
            return event.subject[:3]

    sequencing = SequencingByEvent(ByLevel())
    sequencing.sequence_ids(ADA)
    del ids[:]
    page = Page(Slice(0, 4, tuple(event(n, f"/{n % 2}x/{n}") for n in range(1, 5))), sequencing)
    for partition in layout(partitions):
        page.events_of(partition, 0)
    assert page.subjects_of(frozenset({"/0x"}), whole(page)) == {"/0x/2", "/0x/4"}
    assert page.subjects_of(frozenset({"/1x", "/2x"}), whole(page)) == {"/1x/1", "/1x/3"}
    assert len(set(ids)) == asked
    first = len(ids)
    for partition in layout(partitions):
        page.events_of(partition, 0)
        page.subjects_of(frozenset({"/0x"}), whole(page))
    assert len(ids) == first


@pytest.mark.parametrize(
    ("resolver", "sequence_id", "expected"),
    [(PerSubject(), "/books/1", {"/books/1"}), (PerSubjectLevel(1), "/books", {"/books/1", "/books/2"})],
)
def test_the_subjects_of_sequences_are_found_without_reading_events(
    resolver: SequenceResolver, sequence_id: str, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(event: Event) -> tuple[str, ...]:
        raise AssertionError(event)

    sequencing = SequencingByEvent(resolver)
    monkeypatch.setattr(sequencing, "sequence_ids", never)
    subjects = ("/books/1", "/books/2", "/readers/1", "/books/1")
    events = tuple(event(n, subject) for n, subject in enumerate(subjects, 1))
    page = Page(Slice(0, 4, events), sequencing, only=Partition(8, 1))
    assert page.subjects_of(frozenset({sequence_id, "/elsewhere"}), whole(page)) == expected


def test_a_built_in_resolver_is_called_once_per_subject_of_an_assigned_page() -> None:
    sequencing, asked = SequencingByEvent(PerSubjectLevel(1)), list[str]()
    id_of = sequencing.id_of_subject
    assert id_of is not None
    sequencing.id_of_subject = lambda subject: asked.append(subject) or id_of(subject)  # type: ignore[func-returns-value]
    page = Page(Slice(0, 4, tuple(event(n, f"/{n % 2}/{n}") for n in range(1, 5))), sequencing)
    for partition in layout(2):
        page.events_of(partition, 0)
    assert page.subjects_of(frozenset({"/0"}), whole(page)) == {"/0/2", "/0/4"}
    assert sorted(asked) == ["/0/2", "/0/4", "/1/1", "/1/3"]


def test_only_subjects_of_the_given_events_are_considered() -> None:
    page = Page(Slice(0, 4, tuple(event(n, f"/0/{n}") for n in range(1, 5))), SequencingByEvent(PerSubjectLevel(1)))
    assert page.subjects_of(frozenset({"/0"}), whole(page)[2:]) == {"/0/3", "/0/4"}


def test_all_subjects_of_a_sequence_are_found_after_a_partition_resolver_failed() -> None:
    def failing(sequence_id: str, modulus: int) -> int:
        if sequence_id == "/2":
            raise LookupError(sequence_id)
        return 0

    sequencing = SequencingByEvent(PerSubjectLevel(1), failing)
    page = Page(Slice(0, 4, tuple(event(n, f"/{n}/{n}") for n in range(1, 5))), sequencing)
    assert [one.position for one in page.events_of(Partition(2, 0), 0)[0]] == [1]
    assert page.subjects_of(frozenset({"/3"}), whole(page)) == {"/3/3"}


def test_resolving_the_sequences_of_an_event_without_sequence_names_the_event() -> None:
    page = Page(Slice(0, 2, (ADA, BOB)), SequencingByEvent(Resolver(2)))
    assert page.sequence_ids(ADA) == ("/books/1",)
    with pytest.raises(UnsequencedError) as caught:
        page.sequence_ids(BOB)
    assert caught.value.event is BOB
    assert isinstance(caught.value.error, LookupError)


class Sequences:
    """Sequences from a table, by subject or by position."""

    attributes = frozenset({"subject"})
    id_of_subject = None

    def __init__(self, ids: dict[str | int, tuple[str, ...]], *, by_subject: bool) -> None:
        self.ids, self.by_subject = ids, by_subject

    def partition_of(self, sequence_id: str, modulus: int) -> int:
        return len(sequence_id) % modulus  # unlike the built-in rule: custom partition resolvers decide

    def sequence_ids(self, event: Event) -> tuple[str, ...]:
        return self.ids[event.subject if self.by_subject else event.position]


some_ids = st.lists(st.text("ab", max_size=4), max_size=3, unique=True).map(tuple)


@given(
    ids=st.lists(some_ids, max_size=20),
    modulus=st.integers(2, 5),
    by_subject=st.booleans(),
    as_rows=st.booleans(),
    data=st.data(),
)
def test_every_event_is_in_exactly_the_partitions_of_its_sequences(
    *, ids: list[tuple[str, ...]], modulus: int, by_subject: bool, as_rows: bool, data: st.DataObject
) -> None:
    numbers = [data.draw(st.integers(0, len(ids) - 1)) if by_subject else n for n in range(len(ids))]
    events = [event(n, f"/{number}") for n, number in enumerate(numbers)]
    rows = Chunk([(e.position, e.type, None, e.subject) for e in events], lambda position: events[position])
    table: dict[str | int, tuple[str, ...]] = {f"/{n}" if by_subject else n: found for n, found in enumerate(ids)}
    page = Page(Slice(-1, len(ids), rows if as_rows else events), Sequences(table, by_subject=by_subject))
    for partition in layout(modulus):
        expected = [
            one.position
            for one, number in zip(events, numbers, strict=True)
            if partition.residue in {len(sequence_id) % modulus for sequence_id in ids[number]}
        ]
        found, upto = page.events_of(partition, -1)
        assert ([one.position for one in found], upto) == (expected, len(ids))
    assert [page.sequence_ids(one) for one in events] == [ids[number] for number in numbers]


def test_concurrent_threads_read_once() -> None:
    source = CountingSource(100)
    feed = feed_of(source, limit=100)
    partitions = layout(8)
    with ThreadPoolExecutor(8) as threads:
        shares = list(threads.map(lambda partition: follow(feed, partition), partitions))
    assert sorted(e.position for share in shares for e in share) == list(range(1, 101))
    assert [read for read in source.reads if read < 100] == [0]


subjects = st.sampled_from([f"/books/{n}" for n in range(12)])


@given(
    st.lists(subjects, max_size=60),
    st.integers(1, 6),
    st.integers(1, 20),
    st.integers(1, 3),
    st.sampled_from(["/", "/books/3"]),
    st.data(),
)
def test_the_events_of_all_partitions_together_are_the_log_in_order(
    chosen: list[str], partitions: int, limit: int, memory: int, root: str, data: st.DataObject
) -> None:
    source = CountingSource()
    source.append(event(n, subject) for n, subject in enumerate(chosen, start=1))
    feed = feed_of(source, limit, memory, subject=root)
    expected = source.read(0, 1_000, Selection(root)).events
    after = dict.fromkeys(layout(partitions), 0)
    seen: dict[Partition, list[Event]] = {partition: [] for partition in after}
    still_open = sorted(after)
    while still_open:  # in any order, so that each may lag
        partition = data.draw(st.sampled_from(still_open))
        page = feed.read(after[partition])
        if page is None:
            still_open.remove(partition)
        else:
            seen[partition] += page.events_of(partition, after[partition])[0]
            after[partition] = page.upto
    for partition, events in seen.items():
        assert events == [e for e in expected if partition.owns(e.subject)]
    assert sorted((e for events in seen.values() for e in events), key=lambda e: e.position) == list(expected)


@given(st.sets(st.integers(1, 40), min_size=1), st.integers(0, 45))
def test_the_events_of_a_partition_begin_after_the_given_position(positions: set[int], after: int) -> None:
    events = [event(position) for position in sorted(positions)]
    page = Page(Slice(0, 50, events), SequencingByEvent(PerSubject()))
    assert list(page.events_of(Partition(1, 0), after)[0]) == [e for e in events if e.position > after]

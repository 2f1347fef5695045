"""The contract of event sources."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from itertools import islice, pairwise
from threading import Semaphore
from time import monotonic
from typing import ClassVar

import orjson
import pytest

from opencqrs_py.model import Event, Selection, Slice
from opencqrs_py.model.partition import residue_of
from opencqrs_py.model.selection import Share
from opencqrs_py.processing.finding import FoundEvent, find_event
from opencqrs_py.processing.ports import EventSource, SharingSource, Watch
from opencqrs_py.processing.sequence_resolvers import cut_subject
from opencqrs_py.testing.contracts.calls import begun, returned, settle
from opencqrs_py.testing.contracts.concurrent_reads import ConcurrentReadsContract
from opencqrs_py.testing.contracts.log_identity import Append, LogIdentityContract

SECONDS = 30  # longest wait for another thread
LONG = 2 * SECONDS  # longest wait for a call that itself waits for up to SECONDS
ENDLESS = 2 * LONG  # a wait that no test waits out
ENOUGH = 20.0  # seconds after which writers append no more batches while others read

ALL = Selection()
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

BATCH = 100  # events of a long log that are appended together
MANY = 650  # events that are read in pages
EACH = 120  # events that a writer appends while others read
LIMITS = (50, 64, 99, 100, 256, 500, MANY - 1, MANY, MANY + 1)

LONG_WHOLE_NUMBERS = ("18446744073709551617", "-9223372036854775809", "1" + 30 * "0")
LONG_DECIMALS = ("12345678901234567.89", "-0.1234567890123456789")

SUBJECTS = (
    "/",
    "/books",
    "/books/",
    "/books/4711",
    "/books/4711/pages/43",
    "/booksellers",
    "/booksellers/1",
    "/Books/4711",
    "/BOOKS",
    "/books.old/1",
    "/books0",
    "/a_b/1",
    "/axb/1",
    "/100%/1",
    "/1000/1",
    "/o'brien/1",
    '/say "so"/1',
    "/back\\slash/1",
    "/bücher/größe/1",
    "/BÜCHER/1",
    "/bucher/1",
    "/書籍/四七一一",
    "/😀/1",
    "/a//b",
    "no slash",
)
ROOTS = (
    *SUBJECTS,
    "/a_b",
    "/100%",
    "/o'brien",
    '/say "so"',
    "/back\\slash",
    "/bücher",
    "/書籍",
    "/😀",
    "/a",
    "/nothing/here",
)
SELECTIONS = (
    ALL,
    Selection("/books"),
    Selection("/books/4", recursive=False),
    Selection(types=frozenset({"lent", "sold"})),
    Selection("/books", types=frozenset({"lent"})),
    Selection("/elsewhere", types=frozenset()),
)
TYPES = ("book-lent.v1", "Book-Lent.v1", "o'type", "100%", "größe", "a_b", "axb")


def event(number: int, subject: str = "/books/1", event_type: str = "book-lent.v1", time: str | None = None) -> Event:
    """Return the event with that number, as it is before a store has given it a position."""
    return Event(0, str(number), "contract", subject, event_type, time, "application/json", f'{{"n":{number}}}', None)


def page(source: EventSource, after: int, limit: int, selection: Selection = ALL, upto: int | None = None) -> Slice:
    """Return a slice; fail if a reader would go on forever.

    That is so if the slice has events from outside of it, or is empty and ends after the newest event.
    """
    part = source.read(after, limit, selection, upto)
    if part.events:
        first, last = part.events[0].position, part.events[-1].position
        assert after < first <= last <= part.upto, (
            f"read({after}, {limit}) ends at {part.upto}, but has the events {first} to {last}"
        )
    elif part.upto > after:
        head = source.head()
        assert part.upto <= head, f"read({after}, {limit}) ends at {part.upto}, but the newest event is {head}"
    return part


def followed(
    source: EventSource, limit: int, selection: Selection = ALL, after: int = 0, upto: int | None = None
) -> Iterator[Slice]:
    """Read until the source has nothing more, or up to a bound."""
    while True:
        part = page(source, after, limit, selection, upto)
        if part.upto <= after:
            return
        yield part
        after = part.upto


def comparable(part: Slice) -> Slice:
    """Return a slice with its events as a tuple: a source may give them as any sequence."""
    return replace(part, events=tuple(part.events))


def identities(source: EventSource, selection: Selection = ALL, limit: int = 1_000) -> list[str]:
    """Return the ids of all selected events in the order in which they are read."""
    return [event.id for part in followed(source, limit, selection) for event in part.events]


def numbers(source: EventSource, selection: Selection = ALL, limit: int = 1_000) -> list[int]:
    """Return the numbers in the data of all selected events, in the order in which they are read."""
    return [event.data["n"] for part in followed(source, limit, selection) for event in part.events]


def ended(waiting: Future[int]) -> int:
    """Return the result of a wait of a watch; fail if it does not end."""
    return returned(waiting, LONG, "a watch still waits although its time is over, it was woken, or events came")


def waited(watch: Watch, after: int, seconds: float) -> int:
    """Return the result of a wait; fail if it does not end."""
    return ended(begun(watch.wait, after, seconds))


def append_in_batches(append: Append, events: Iterable[Event]) -> None:
    """Append many events: stores may limit how many one append can have."""
    remaining = iter(events)
    while batch := [*islice(remaining, BATCH)]:
        append(batch)


def batches(writer: int) -> Iterator[list[int]]:
    """Yield the numbers of the events that a writer appends together: one to three."""
    for number in range(EACH * writer, EACH * (writer + 1), 6):
        yield [number]
        yield [number + 1, number + 2]
        yield [number + 3, number + 4, number + 5]


class Race:
    """Writers that append events while a reader reads them."""

    def __init__(self, source: EventSource, append: Append) -> None:
        self._source = source
        self._append = append
        self._reads = Semaphore(0)
        self._is_read = False
        self._until = monotonic() + ENOUGH
        self._moved_at = monotonic()

    def append_each(self, writer: int) -> list[int]:
        """Append batches of events, each during a read, and return their numbers. A slow source gets fewer."""
        appended: list[int] = []
        for batch in batches(writer):
            self._reads.acquire(timeout=SECONDS)
            if self._is_read or monotonic() > self._until:
                break
            self._append([event(number) for number in batch])
            self._moved_at = monotonic()
            appended += batch
        return appended

    def numbers_while(self, writing: list[Future[list[int]]]) -> list[int]:
        """Return the numbers in the data of all events, in the order in which a reader gets them."""
        try:
            return [number for part in self._read_while(writing) for number in part]
        finally:
            self._is_read = True
            self._reads.release(len(writing))

    def _read_while(self, writing: list[Future[list[int]]]) -> Iterator[list[int]]:
        after = 0
        while monotonic() < self._moved_at + SECONDS:
            is_over = all(writer.done() for writer in writing)
            self._reads.release(len(writing))
            part = page(self._source, after, 10)
            if part.events:
                self._moved_at = monotonic()
                yield [event.data["n"] for event in part.events]
            if is_over and part.upto <= after:
                return
            after = part.upto
        pytest.fail(f"append does not return while others append and read (within {SECONDS} s)")

    def run(self, writers: int) -> tuple[list[int], list[int]]:
        """Return the numbers that were read and those that were appended, each in order.

        One writer appends on this thread, since the fixture ``append`` may be bound to it.
        """
        if writers > 1:
            writing = [begun(self.append_each, writer) for writer in range(writers)]
            read = self.numbers_while(writing)
        else:
            writing = [Future[list[int]]()]
            reading = begun(self.numbers_while, writing)
            settle(writing[0], self.append_each, 0)
            read = returned(reading, LONG, "a reader does not come to the end although nothing is appended")
        return read, [number for writer in writing for number in writer.result()]  # raises what an append has raised


def check_that_nothing_is_missed(source: EventSource, append: Append, writers: int) -> None:
    """Check that a reader gets each event once and in order, although others append at the same time."""
    read, appended = Race(source, append).run(writers)
    assert read == numbers(source), "events were added at or before the end of a slice that had been read without them"
    assert sorted(read, key=lambda number: number // EACH) == appended, "events are lost or out of order"


def _sorted(value: object) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


class EventSourceContract(LogIdentityContract, ConcurrentReadsContract):
    """What a group relies on when it reads.

    Give ``source``, an empty source, and, unless the source has a method ``append(events)``, the fixture ``append``,
    which puts events after those that are there. To test that progress in a replaced log is refused, also give
    ``other_source``, an empty source that reads another log, and, unless it has that method, ``other_append``. Class
    attributes declare what a source cannot do::

        class TestMyEventSource(EventSourceContract):
            keeps_data_verbatim = False

            @pytest.fixture
            def source(self):
                return MyEventSource(...)

            @pytest.fixture
            def other_source(self):
                return MyEventSource(...)

    Attributes:
        keeps_identity: Whether an event comes out with the id, the time and the extensions that it was given. If not,
            the source gives its own ids, times and extensions.
        keeps_content_type: Whether it comes out with the content type that it was given. If not, only
            ``application/json`` is tried.
        keeps_data_verbatim: Whether its data, and its extensions, come out as the same JSON text. If not, as JSON of
            the same value.
        keeps_decimals: Whether numbers with a decimal point keep more digits than a double has. If not, only whole
            numbers of that length are tried.
        takes_any_data: Whether events may have no data, and their texts may contain the character U+0000.
        subjects: The subjects that are tried; leave out those that a server refuses.
        types: The event types that are tried.
        long_log: How many events a long log has, of which only the first and the last are selected.
    """

    keeps_identity: ClassVar[bool] = True
    keeps_content_type: ClassVar[bool] = True
    keeps_data_verbatim: ClassVar[bool] = True
    keeps_decimals: ClassVar[bool] = True
    takes_any_data: ClassVar[bool] = True
    subjects: ClassVar[tuple[str, ...]] = SUBJECTS
    types: ClassVar[tuple[str, ...]] = TYPES
    long_log: ClassVar[int] = 3_000

    @pytest.fixture
    def source(self) -> EventSource:
        """Return an empty source."""
        raise NotImplementedError

    @pytest.fixture
    def append(self, source: EventSource) -> Append:
        """Return the function that adds events to the source, in order."""
        append: Append = source.append  # type: ignore[attr-defined]
        return append

    def test_an_empty_log_has_no_head_and_nothing_to_read(self, source: EventSource) -> None:
        assert source.head() == 0
        assert comparable(source.read(0, 10, ALL)) == Slice(0, 0)
        assert source.position_before(NOON) == 0

    def test_events_are_read_in_the_order_in_which_they_were_added(self, source: EventSource, append: Append) -> None:
        append(event(n) for n in (3, 1))
        append(event(n) for n in (2, 10, 9))
        part = source.read(0, 100, ALL)
        assert [event.data["n"] for event in part.events] == [3, 1, 2, 10, 9]
        assert all(one.position < other.position for one, other in pairwise(part.events))
        assert part.events[0].position > 0

    def test_the_head_is_the_position_of_the_newest_event(self, source: EventSource, append: Append) -> None:
        append([event(1), event(2)])
        assert source.head() == source.read(0, 10, ALL).events[-1].position
        append([event(3)])
        assert source.head() == source.read(0, 10, ALL).events[-1].position

    def test_events_are_read_as_they_were_added(self, source: EventSource, append: Append) -> None:
        zero = " \\u0000" if self.takes_any_data else ""
        kind = "vnd.library+json" if self.keeps_content_type else "json"
        odd = Event(
            position=0,
            id="größe-'1'-😀",
            source="https://library.example/?a=%20&b='",
            subject="/bücher/1",
            type="library.book-lent.v1",
            time="2026-01-02T03:04:05.123456789+01:00",
            content_type=f"application/{kind}",
            payload=f'{{"title": "O\'Größe \\"%s\\"{zero} :x \\\\", "n": [1.5, null]}}',
            extensions='{"traceparent":"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}',
        )
        rich = odd._replace(id="rich", extensions='{"traceparent":"00-1","x":{"y":"ü"}}')
        bare = Event(0, "bare", "s", "/", "t", None, "application/json", None, None)
        given = [odd, *([rich] if self.keeps_identity else []), *([bare] if self.takes_any_data else [])]
        append(given)
        read = source.read(0, 10, ALL).events
        assert [self._kept(one) for one in read] == [self._kept(one) for one in given]
        assert self.keeps_identity or len({one.id for one in read}) == len(read)

    @pytest.mark.parametrize("selection", [Selection(attributes=frozenset()), ALL], ids=["data", "all"])
    def test_numbers_keep_all_their_digits(self, source: EventSource, append: Append, selection: Selection) -> None:
        numbers = ["0.1", *LONG_WHOLE_NUMBERS, *(LONG_DECIMALS if self.keeps_decimals else ())]
        text = ", ".join(numbers)
        extensions = f'{{"x": [{text}]}}' if self.keeps_identity else None
        append([event(1)._replace(payload=f'{{"n": [{text}]}}', extensions=extensions)])
        (read,) = source.read(0, 10, selection).events
        for found in [read.data["n"], *([read.metadata["x"]] if self.keeps_identity else [])]:
            assert [Decimal(str(number)) for number in found] == [Decimal(number) for number in numbers]

    @pytest.mark.parametrize("attributes", [set(), {"subject"}, {"subject", "time"}], ids=["none", "subject", "two"])
    def test_attributes_left_out_of_the_selection_are_still_readable(
        self, source: EventSource, append: Append, attributes: set[str]
    ) -> None:
        append(event(n, subject=self.subjects[n]) for n in range(4))
        whole = source.read(0, 10, ALL).events
        part = source.read(0, 3, Selection(attributes=frozenset(attributes)))
        assert part.upto == whole[2].position
        seen = [[getattr(one, name) for name in ("label", *Event._fields)] for one in part.events]
        assert (seen, list(part.events)) == ([[one.label, *one] for one in whole[:3]], list(whole[:3]))

    def _kept(self, event: Event) -> Event:
        """Return an event without what the source does not keep, to compare it with another."""
        kept = event._replace(position=0)
        if not self.keeps_identity:
            kept = kept._replace(id="", time=None, extensions=None)
        if not self.keeps_data_verbatim and kept.payload is not None:
            kept = kept._replace(payload=_sorted(kept.data))
        if not self.keeps_data_verbatim and kept.extensions is not None:
            kept = kept._replace(extensions=_sorted(kept.metadata))
        return kept

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
    def test_slices_follow_each_other_without_gap_or_overlap(
        self, source: EventSource, append: Append, limit: int
    ) -> None:
        append(event(n) for n in range(7))
        parts = list(followed(source, limit))
        assert [one.upto for one in parts[:-1]] == [other.after for other in parts[1:]]
        assert all(len(part.events) <= limit for part in parts)
        assert all(part.after < event.position <= part.upto for part in parts for event in part.events)
        assert [event.data["n"] for part in parts for event in part.events] == list(range(7))
        assert parts[-1].upto == source.head()

    def test_an_event_is_found_by_its_id(self, source: EventSource, append: Append) -> None:
        assert find_event(source, "1") == []
        append(event(n) for n in range(4))
        for found in source.read(0, 10, ALL).events:
            there = FoundEvent(found.position, found.source)
            assert find_event(source, found.id) == [there]
            assert find_event(source, found.id, found.source) == [there]
            assert find_event(source, found.id, "urn:of-another") == []
        assert find_event(source, "none") == find_event(source, "4711") == find_event(source, "") == []

    @pytest.mark.parametrize("limit", [1, 2, 5])
    def test_the_limit_counts_selected_events_only(self, source: EventSource, append: Append, limit: int) -> None:
        append(event(n, f"/{'books' if n % 3 == 0 else 'cars'}/{n}") for n in range(20))
        parts = list(followed(source, limit, Selection("/books")))
        assert all(len(part.events) <= limit for part in parts)
        assert any(len(part.events) == limit for part in parts)
        assert [event.data["n"] for part in parts for event in part.events] == list(range(0, 20, 3))
        assert parts[-1].upto == source.head()

    def test_events_that_are_not_selected_are_passed_over(self, source: EventSource, append: Append) -> None:
        append(event(n) for n in range(5))
        for selection in (Selection("/elsewhere"), Selection(types=frozenset())):
            parts = list(followed(source, 2, selection))
            assert parts[-1].upto == source.head()
            assert not [event for part in parts for event in part.events]

    def test_rare_events_are_found_however_far_apart_they_are(self, source: EventSource, append: Append) -> None:
        rare = [0, self.long_log - 1]
        given = (event(n, *(("/rare/1", "rare") if n in rare else ())) for n in range(self.long_log))
        append_in_batches(append, given)
        for selection in (Selection("/rare"), Selection(types=frozenset({"rare"}))):
            assert numbers(source, selection, limit=2) == rare, f"events were not found by {selection}"
        assert [*followed(source, 1_000, Selection("/nothing"))][-1].upto == source.head()

    def test_pages_of_any_size_leave_out_nothing(self, source: EventSource, append: Append) -> None:
        append_in_batches(append, (event(n) for n in range(MANY)))
        for limit in LIMITS:
            assert numbers(source, limit=limit) == [*range(MANY)], (
                f"pages leave out or repeat some events (limit {limit})"
            )

    def test_a_reader_misses_nothing_while_events_are_added(self, source: EventSource, append: Append) -> None:
        check_that_nothing_is_missed(source, append, writers=1)

    @pytest.mark.parametrize("level", [None, 1, 2])
    def test_shares_make_up_the_log_if_the_source_filters_them(
        self, source: EventSource, append: Append, level: int | None
    ) -> None:
        """Each share has the events whose sequence ids belong to its partitions."""
        shares = [Share(3, frozenset(residues), level) for residues in ((0,), (1,), (2,), (0, 2))]
        if not (isinstance(source, SharingSource) and all(map(source.selects, shares))):
            pytest.skip("the source does not filter the events of partitions")
        append(event(n, subject) for n, subject in enumerate(self.subjects))
        ids = [subject if level is None else cut_subject(subject, level) for subject in self.subjects]
        read = {share: numbers(source, Selection(share=share), limit=5) for share in shares}
        assert read == {
            share: [n for n, one in enumerate(ids) if residue_of(one, share.modulus) in share.residues]
            for share in shares
        }

    def test_a_range_reads_the_same_twice(self, source: EventSource, append: Append) -> None:
        append(event(n) for n in range(5))
        first = comparable(source.read(0, 3, ALL))
        append([event(5)])
        assert comparable(source.read(0, 3, ALL)) == first

    def test_a_reader_at_the_head_stays_there_and_sees_new_events(self, source: EventSource, append: Append) -> None:
        append([event(1)])
        head = source.head()
        assert comparable(source.read(head, 10, ALL)) == Slice(head, head)
        append([event(2)])
        assert [event.data["n"] for event in source.read(head, 10, ALL).events] == [2]

    def test_a_reader_beyond_the_head_stays_where_it_is(self, source: EventSource, append: Append) -> None:
        append([event(1), event(2)])
        beyond = source.head() + 100
        assert comparable(source.read(beyond, 10, ALL)) == Slice(beyond, beyond)

    @pytest.mark.parametrize("count", [1, 5, 8, 12])
    @pytest.mark.parametrize("limit", [1, 3, 100])
    def test_nothing_is_read_beyond_a_bound(self, source: EventSource, append: Append, limit: int, count: int) -> None:
        append(event(n, f"/{'cars' if n % 2 else 'books'}/{n}", "bought" if n % 3 else "lent") for n in range(12))
        whole = source.read(0, 100, ALL).events
        bound = whole[count - 1].position
        for selection in SELECTIONS:
            parts = list(followed(source, limit, selection, upto=bound))
            read = [one for part in parts for one in part.events]
            assert read == [one for one in whole[:count] if selection.matches(one)]
            assert all(len(part.events) <= limit for part in parts)
            assert [part.after for part in parts] == [0, *(part.upto for part in parts[:-1])]
            assert parts[-1].upto == bound

    def test_a_reader_at_or_beyond_its_bound_stays_where_it_is(self, source: EventSource, append: Append) -> None:
        append(event(n) for n in range(5))
        second = source.read(0, 2, ALL).upto
        for selection in SELECTIONS:
            for bound in (second, second - 1, 0):
                assert comparable(source.read(second, 10, selection, bound)) == Slice(second, second)

    def test_a_log_that_ends_before_the_bound_ends_the_slice(self, source: EventSource, append: Append) -> None:
        assert comparable(source.read(0, 10, ALL, 100)) == Slice(0, 0)
        append(event(n) for n in range(5))
        head = source.head()
        for selection in SELECTIONS:
            parts = list(followed(source, 3, selection, upto=head + 100))
            read = [one.data["n"] for part in parts for one in part.events]
            assert (read, parts[-1].upto) == (numbers(source, selection), head)
            assert comparable(source.read(head, 3, selection, head + 100)) == Slice(head, head)

    @pytest.mark.parametrize("recursive", [True, False])
    def test_subjects_are_compared_character_by_character(
        self, source: EventSource, append: Append, *, recursive: bool
    ) -> None:
        given = [event(n, subject) for n, subject in enumerate(self.subjects)]
        append(given)
        selections = [Selection(root, recursive) for root in ROOTS if root not in SUBJECTS or root in self.subjects]
        read = {selection.subject: numbers(source, selection) for selection in selections}
        assert read == {s.subject: [event.data["n"] for event in given if s.matches(event)] for s in selections}

    def test_a_subject_does_not_match_others_it_is_merely_a_prefix_of(
        self, source: EventSource, append: Append
    ) -> None:
        append(event(n, subject) for n, subject in enumerate(["/books", "/booksellers/1", "/books/1", "/Books/1"]))
        assert numbers(source, Selection("/books")) == [0, 2]

    def test_types_are_compared_character_by_character(self, source: EventSource, append: Append) -> None:
        given = self.types
        append(event(n, event_type=name) for n, name in enumerate(given))
        asked = [*((name,) for name in TYPES), given[1:4], given, ("unknown",), ("*",), (given[-1], "unknown")]
        read = {types: numbers(source, Selection(types=frozenset(types))) for types in asked}
        assert read == {types: [n for n, name in enumerate(given) if name in types] for types in asked}

    def test_subject_and_types_must_both_fit(self, source: EventSource, append: Append) -> None:
        append([event(1, "/a/1", "x"), event(2, "/a/1", "y"), event(3, "/b/1", "x"), event(4, "/a/2", "x")])
        assert numbers(source, Selection("/a", types=frozenset({"x"})), limit=1) == [1, 4]

    @pytest.mark.parametrize(
        ("moment", "following"),
        [
            (NOON - timedelta(days=1), "early"),
            (NOON, "noon"),
            (NOON.astimezone(timezone(timedelta(hours=5))), "noon"),
            (NOON + timedelta(microseconds=1), "late"),
            (NOON + timedelta(hours=1), "late"),
            (NOON + timedelta(hours=1, microseconds=1), None),
        ],
    )
    def test_a_time_finds_the_first_event_at_or_after_it(
        self, source: EventSource, append: Append, moment: datetime, following: str | None
    ) -> None:
        if not self.keeps_identity:
            pytest.skip("the source gives events its own times")
        times = {
            "timeless": None,
            "early": "2026-01-01T11:00:00Z",
            "noon": "2026-01-01T13:00:00.000000+01:00",
            "again": "2026-01-01T11:30:00Z",
            "late": "2026-01-01T13:00:00Z",
        }
        append(event(n, time=time)._replace(id=name) for n, (name, time) in enumerate(times.items()))
        position = source.position_before(moment)
        found = source.read(position, 1, ALL).events
        assert [event.id for event in found] == ([following] if following else [])
        assert following or position == source.head()

    def test_a_time_before_all_events_finds_the_first_one_and_a_time_after_them_the_head(
        self, source: EventSource, append: Append
    ) -> None:
        append(event(n, time="2026-01-01T11:00:00Z") for n in range(3))
        before = source.position_before(datetime(1980, 1, 1, tzinfo=UTC))
        assert [event.data["n"] for event in source.read(before, 1, ALL).events] == [0]
        assert source.position_before(datetime(2200, 1, 1, tzinfo=UTC)) == source.head()

    def test_a_watch_returns_the_head_of_a_log_with_events(self, source: EventSource, append: Append) -> None:
        append([event(1), event(2)])
        with source.watched() as watch:
            assert waited(watch, 0, SECONDS) == source.head()

    def test_a_watch_that_times_out_returns_the_unchanged_head(self, source: EventSource, append: Append) -> None:
        with source.watched() as watch:
            assert waited(watch, 0, 0.01) == 0
            append([event(1)])
            head = waited(watch, 0, SECONDS)
            assert waited(watch, head, 0) == head
            assert waited(watch, head, 0.01) == head
            assert waited(watch, head + 100, 0.01) == head

    def test_a_watch_notices_events_added_while_it_waits(self, source: EventSource, append: Append) -> None:
        with source.watched() as watch:
            for number in range(3):
                before = waited(watch, 0, 0)
                waiting = begun(watch.wait, before, SECONDS)
                append([event(number)])
                assert ended(waiting) == source.head() > before

    def test_waking_a_wait_returns_the_head_early_and_the_next_wait_waits(
        self, source: EventSource, append: Append
    ) -> None:
        with source.watched() as watch:
            waiting = begun(watch.wait, 0, ENDLESS)
            watch.wake()
            assert ended(waiting) == 0
            assert waited(watch, 0, 0.01) == 0
            waiting = begun(watch.wait, 0, SECONDS)
            append([event(1)])
            assert ended(waiting) == source.head() > 0

    def test_a_wait_woken_before_it_begins_returns_at_once(self, source: EventSource) -> None:
        with source.watched() as watch:
            waited(watch, 0, 0)
            for _ in range(3_000):
                watch.wake()
            assert ended(begun(watch.wait, 0, ENDLESS)) == 0

    def test_a_watch_misses_nothing_between_two_waits(self, source: EventSource, append: Append) -> None:
        with source.watched() as watch:
            head = waited(watch, 0, 0)
            for number in range(5):
                append([event(number)])
                if number % 2:
                    source.read(0, 10, ALL)
                assert waited(watch, head, SECONDS) == source.head() > head
                head = source.head()

    def test_several_watches_notice_the_same_event(self, source: EventSource, append: Append) -> None:
        with source.watched() as one, source.watched() as other:
            append([event(1)])
            assert waited(one, 0, SECONDS) == waited(other, 0, SECONDS) == source.head()

    def test_a_watch_can_be_opened_again_and_again(self, source: EventSource, append: Append) -> None:
        append([event(1)])
        for _ in range(20):
            with source.watched() as watch:
                assert waited(watch, 0, SECONDS) == source.head()

    @pytest.mark.parametrize("error", [ValueError("mine"), KeyError("mine"), OSError("mine"), KeyboardInterrupt()])
    def test_other_errors_are_not_outages(self, source: EventSource, error: BaseException) -> None:
        assert not source.is_outage(error)

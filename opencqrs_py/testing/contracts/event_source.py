"""The contract of event sources, and of the stores among them that take events in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest

from opencqrs_py.errors import PreconditionFailedError
from opencqrs_py.model import Event, Selection, Slice
from opencqrs_py.model.appending import (
    Appended,
    Precondition,
    SubjectIsOnEventId,
    SubjectIsPopulated,
    SubjectIsPristine,
)
from opencqrs_py.processing.ports import EventSource, EventStore

__all__ = ["EventSourceContract", "EventStoreContract"]

Append = Callable[[Iterable[Event]], object]

SECONDS = 30  # longest wait for another thread

ALL = Selection()
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)

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
TYPES = ("book-lent.v1", "Book-Lent.v1", "o'type", "100%", "größe", "a_b", "axb")


def event(number: int, subject: str = "/books/1", event_type: str = "book-lent.v1", time: str | None = None) -> Event:
    """Return the event with that number, as it is before a store has given it a position."""
    return Event(0, str(number), "contract", subject, event_type, time, "application/json", f'{{"n":{number}}}', None)


def followed(source: EventSource, limit: int, selection: Selection = ALL, after: int = 0) -> Iterator[Slice]:
    """Read until the source has nothing more."""
    while True:
        part = source.read(after, limit, selection)
        if part.upto <= after:
            return
        yield part
        after = part.upto


def identities(source: EventSource, selection: Selection = ALL, limit: int = 1_000) -> list[str]:
    """Return the ids of all selected events in the order in which they are read."""
    return [event.id for part in followed(source, limit, selection) for event in part.events]


class EventSourceContract:
    """What a group relies on when it reads.

    Give ``source``, an empty source, and, unless the source has a method ``append(events)``, the fixture ``append``,
    which puts events behind those that are there.
    """

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
        assert source.read(0, 10, ALL) == Slice(0, 0)
        assert source.position_before(NOON) == 0

    def test_events_come_in_the_order_in_which_they_were_added(self, source: EventSource, append: Append) -> None:
        append(event(n) for n in (3, 1))
        append(event(n) for n in (2, 10, 9))
        part = source.read(0, 100, ALL)
        assert [event.id for event in part.events] == ["3", "1", "2", "10", "9"]
        assert all(one.position < other.position for one, other in pairwise(part.events))
        assert part.events[0].position > 0

    def test_the_head_is_the_position_of_the_newest_event(self, source: EventSource, append: Append) -> None:
        append([event(1), event(2)])
        assert source.head() == source.read(0, 10, ALL).events[-1].position
        append([event(3)])
        assert source.head() == source.read(0, 10, ALL).events[-1].position

    def test_events_come_out_as_they_went_in(self, source: EventSource, append: Append) -> None:
        given = [
            Event(
                position=0,
                id="größe-'1'-😀",
                source="https://library.example/?a=%20&b='",
                subject="/bücher/1",
                type="library.book-lent.v1",
                time="2026-01-02T03:04:05.123456789+01:00",
                content_type="application/vnd.library+json",
                payload='{"title": "O\'Größe \\"%s\\" \\u0000 :x", "n": [1.5, null]}',
                extensions='{"traceparent":"00-1","x":{"y":"ü"}}',
            ),
            Event(0, "bare", "s", "/", "t", None, "application/json", None, None),
        ]
        append(given)
        assert [read._replace(position=0) for read in source.read(0, 10, ALL).events] == given

    @pytest.mark.parametrize("limit", [1, 2, 3, 7, 8])
    def test_slices_follow_each_other_without_gap_or_overlap(
        self, source: EventSource, append: Append, limit: int
    ) -> None:
        append(event(n) for n in range(7))
        parts = list(followed(source, limit))
        assert [one.upto for one in parts[:-1]] == [other.after for other in parts[1:]]
        assert all(len(part.events) <= limit for part in parts)
        assert all(part.after < event.position <= part.upto for part in parts for event in part.events)
        assert [event.id for part in parts for event in part.events] == [str(n) for n in range(7)]
        assert parts[-1].upto == source.head()

    @pytest.mark.parametrize("limit", [1, 2, 5])
    def test_the_limit_counts_selected_events_only(self, source: EventSource, append: Append, limit: int) -> None:
        append(event(n, f"/{'books' if n % 3 == 0 else 'cars'}/{n}") for n in range(20))
        parts = list(followed(source, limit, Selection("/books")))
        assert all(len(part.events) <= limit for part in parts)
        assert any(len(part.events) == limit for part in parts)
        assert [event.id for part in parts for event in part.events] == [str(n) for n in range(0, 20, 3)]
        assert parts[-1].upto == source.head()

    def test_what_is_not_selected_is_passed_over(self, source: EventSource, append: Append) -> None:
        append(event(n) for n in range(5))
        for selection in (Selection("/elsewhere"), Selection(types=frozenset())):
            parts = list(followed(source, 2, selection))
            assert parts[-1].upto == source.head()
            assert not [event for part in parts for event in part.events]

    def test_a_stretch_reads_the_same_twice(self, source: EventSource, append: Append) -> None:
        append(event(n) for n in range(5))
        first = source.read(0, 3, ALL)
        append([event(5)])
        assert source.read(0, 3, ALL) == first

    def test_a_reader_at_the_head_stays_and_sees_what_comes(self, source: EventSource, append: Append) -> None:
        append([event(1)])
        head = source.head()
        assert source.read(head, 10, ALL) == Slice(head, head)
        append([event(2)])
        assert [event.id for event in source.read(head, 10, ALL).events] == ["2"]

    def test_a_reader_beyond_the_head_stays_where_it_is(self, source: EventSource, append: Append) -> None:
        append([event(1), event(2)])
        beyond = source.head() + 100
        assert source.read(beyond, 10, ALL) == Slice(beyond, beyond)

    @pytest.mark.parametrize("recursive", [True, False])
    def test_subjects_are_compared_character_by_character(
        self, source: EventSource, append: Append, *, recursive: bool
    ) -> None:
        given = [event(n, subject) for n, subject in enumerate(SUBJECTS)]
        append(given)
        selections = [Selection(root, recursive) for root in ROOTS]
        read = {selection.subject: identities(source, selection) for selection in selections}
        assert read == {s.subject: [event.id for event in given if s.matches(event)] for s in selections}

    def test_books_are_no_booksellers(self, source: EventSource, append: Append) -> None:
        append(event(n, subject) for n, subject in enumerate(["/books", "/booksellers/1", "/books/1", "/Books/1"]))
        assert identities(source, Selection("/books")) == ["0", "2"]

    def test_types_are_compared_character_by_character(self, source: EventSource, append: Append) -> None:
        append(event(n, event_type=name) for n, name in enumerate(TYPES))
        asked = [*((name,) for name in TYPES), TYPES[1:4], TYPES, ("unknown",), ("*",), ("o'type", "unknown")]
        read = {types: identities(source, Selection(types=frozenset(types))) for types in asked}
        assert read == {types: [str(n) for n, name in enumerate(TYPES) if name in types] for types in asked}

    def test_subject_and_types_must_both_fit(self, source: EventSource, append: Append) -> None:
        append([event(1, "/a/1", "x"), event(2, "/a/1", "y"), event(3, "/b/1", "x"), event(4, "/a/2", "x")])
        assert identities(source, Selection("/a", types=frozenset({"x"})), limit=1) == ["1", "4"]

    @pytest.mark.parametrize(
        ("moment", "next_id"),
        [
            (NOON - timedelta(days=1), "early"),
            (NOON, "noon"),
            (NOON.astimezone(timezone(timedelta(hours=5))), "noon"),
            (NOON + timedelta(microseconds=1), "late"),
            (NOON + timedelta(hours=1), "late"),
            (NOON + timedelta(hours=1, microseconds=1), None),
        ],
    )
    def test_a_moment_leads_to_the_first_event_of_that_time_or_a_later_one(
        self, source: EventSource, append: Append, moment: datetime, next_id: str | None
    ) -> None:
        times = {
            "timeless": None,
            "early": "2026-01-01T11:00:00Z",
            "noon": "2026-01-01T13:00:00.000000+01:00",
            "again": "2026-01-01T11:30:00Z",
            "late": "2026-01-01T13:00:00Z",
        }
        append(event(0, time=time)._replace(id=name) for name, time in times.items())
        position = source.position_before(moment)
        following = source.read(position, 1, ALL).events
        assert [event.id for event in following] == ([next_id] if next_id else [])
        assert next_id or position == source.head()

    def test_a_watch_tells_the_head_of_a_log_that_is_there(self, source: EventSource, append: Append) -> None:
        append([event(1), event(2)])
        with source.watched() as watch:
            assert watch.wait(0, SECONDS) == source.head()

    def test_a_watch_tells_the_unchanged_head_when_its_time_is_over(self, source: EventSource, append: Append) -> None:
        with source.watched() as watch:
            assert watch.wait(0, 0.01) == 0
            append([event(1)])
            head = watch.wait(0, SECONDS)
            assert watch.wait(head, 0) == head
            assert watch.wait(head, 0.01) == head
            assert watch.wait(head + 100, 0.01) == head

    def test_a_watch_notices_what_is_added_while_it_waits(self, source: EventSource, append: Append) -> None:
        with ThreadPoolExecutor(1) as threads, source.watched() as watch:
            for number in range(3):
                before = watch.wait(0, 0)
                waiting = threads.submit(watch.wait, before, SECONDS)
                append([event(number)])
                assert waiting.result(SECONDS) == source.head() > before

    def test_a_watch_misses_nothing_between_two_waits(self, source: EventSource, append: Append) -> None:
        with source.watched() as watch:
            head = watch.wait(0, 0)
            for number in range(5):
                append([event(number)])
                if number % 2:
                    source.read(0, 10, ALL)
                assert watch.wait(head, SECONDS) == source.head() > head
                head = source.head()

    def test_several_watches_notice_the_same_event(self, source: EventSource, append: Append) -> None:
        with source.watched() as one, source.watched() as other:
            append([event(1)])
            assert one.wait(0, SECONDS) == other.wait(0, SECONDS) == source.head()

    def test_a_watch_can_be_opened_again_and_again(self, source: EventSource, append: Append) -> None:
        append([event(1)])
        for _ in range(20):
            with source.watched() as watch:
                assert watch.wait(0, SECONDS) == source.head()

    @pytest.mark.parametrize("error", [ValueError("mine"), KeyError("mine"), OSError("mine"), KeyboardInterrupt()])
    def test_errors_of_others_are_no_outage(self, source: EventSource, error: BaseException) -> None:
        assert not source.is_outage(error)


class EventStoreContract(EventSourceContract):
    """What is relied on besides by those who add events."""

    def test_an_event_that_is_known_is_not_added_again(self, source: EventSource, append: Append) -> None:
        append([event(1), event(2)])
        before = source.read(0, 10, ALL)
        append([event(2), event(1)._replace(payload='{"changed":true}')])
        assert source.read(0, 10, ALL) == before

    def test_new_events_among_known_ones_are_added(self, source: EventSource, append: Append) -> None:
        append([event(1), event(2)])
        append([event(2), event(3), event(1), event(4), event(3)])
        assert identities(source) == ["1", "2", "3", "4"]

    def test_an_id_belongs_to_its_source(self, source: EventSource, append: Append) -> None:
        append([event(1), event(1)._replace(source="another"), event(1)._replace(source="Contract")])
        assert identities(source) == ["1", "1", "1"]

    def test_ids_differ_by_case_and_by_accent(self, source: EventSource, append: Append) -> None:
        names = ["a", "A", "ä", "a ", "'a'"]
        append(event(0)._replace(id=name) for name in names)
        assert identities(source) == names

    def test_an_append_that_fails_adds_nothing(self, source: EventSource, append: Append) -> None:
        append([event(1)])

        def breaking_off() -> Iterator[Event]:
            yield event(2)
            yield event(3)
            msg = "line 3 is bad"
            raise ValueError(msg)

        with pytest.raises(ValueError, match="line 3 is bad"):
            append(breaking_off())
        assert identities(source) == ["1"]
        append([event(2)])
        assert identities(source) == ["1", "2"]

    def test_adding_nothing_changes_nothing(self, source: EventSource, append: Append) -> None:
        append([])
        assert source.head() == 0

    def test_it_is_told_how_many_were_given_and_added(self, source: EventStore) -> None:
        assert source.append([]) == Appended(0, 0)
        assert source.append([event(1), event(2), event(1)]) == Appended(3, 2)
        assert source.append(event(n) for n in range(2, 6)) == Appended(4, 3)

    @pytest.mark.parametrize("count", [1, 4_999, 5_000, 5_001, 12_000])
    def test_a_batch_may_have_any_size(self, source: EventStore, count: int) -> None:
        given = [event(n) for n in range(count)]
        assert source.append([*given, given[0], given[-1]]) == Appended(count + 2, count)
        assert identities(source) == [one.id for one in given]

    def test_progress_grows_up_to_what_was_given(self, source: EventStore) -> None:
        told: list[int] = []
        source.append((event(n % 11_000) for n in range(12_000)), progress=told.append)
        assert told == sorted(set(told))
        assert told[-1] == 12_000

    def test_payloads_may_be_large(self, source: EventStore) -> None:
        payloads = [f'{{"text":"{letter * 4_000_000}ü"}}' for letter in "abc"]
        source.append(event(n)._replace(payload=payload) for n, payload in enumerate(payloads))
        assert [one.payload for part in followed(source, 10) for one in part.events] == payloads

    def test_subjects_and_types_may_be_long(self, source: EventStore) -> None:
        long = "/" + "ü1/" * 5_000
        given = [event(1, f"{long}a", f"{long}a"), event(2, f"{long}b", f"{long}b"), event(3, long[:-1], "t")]
        source.append(given)
        assert identities(source, Selection(f"{long}a")) == ["1"]
        assert identities(source, Selection(long[:-1], recursive=False)) == ["3"]
        assert identities(source, Selection(long[:-1])) == ["1", "2", "3"]
        assert identities(source, Selection(types=frozenset({f"{long}b", "t"}))) == ["2", "3"]
        source.append([], [SubjectIsOnEventId(f"{long}a", "1"), SubjectIsPristine(f"{long}c")])

    @pytest.mark.parametrize(
        ("precondition", "holds"),
        [
            (SubjectIsPristine("/books/2"), True),
            (SubjectIsPristine("/books/1"), False),
            (SubjectIsPristine("/books"), True),
            (SubjectIsPristine("/Books/1"), True),
            (SubjectIsPopulated("/books/1"), True),
            (SubjectIsPopulated("/books/2"), False),
            (SubjectIsPopulated("/books"), False),
            (SubjectIsPopulated("/"), False),
            (SubjectIsOnEventId("/books/1", "2"), True),
            (SubjectIsOnEventId("/books/1", "1"), False),
            (SubjectIsOnEventId("/books/1", "3"), False),
            (SubjectIsOnEventId("/books/2", "2"), False),
            (SubjectIsOnEventId("/o'brien/1", "3"), True),
        ],
        ids=str,
    )
    def test_nothing_is_added_unless_the_precondition_holds(
        self, source: EventStore, precondition: Precondition, *, holds: bool
    ) -> None:
        source.append([event(1), event(2), event(3, "/o'brien/1")])
        before = identities(source)
        if holds:
            assert source.append([event(9)], [precondition]) == Appended(1, 1)
            assert identities(source) == [*before, "9"]
            return
        with pytest.raises(PreconditionFailedError, match="OCQ-320") as caught:
            source.append([event(9)], [precondition])
        assert f"'{precondition.subject}'" in caught.value.what
        assert identities(source) == before

    def test_the_first_precondition_that_does_not_hold_is_named(self, source: EventStore) -> None:
        source.append([event(1, "/a")])
        wanted: list[Precondition] = [
            SubjectIsPopulated("/a"),
            SubjectIsPristine("/b"),
            SubjectIsPopulated("/c"),
            SubjectIsPristine("/a"),
        ]
        with pytest.raises(PreconditionFailedError, match="'/c'"):
            source.append([event(2)], wanted)

    def test_a_precondition_is_checked_even_if_there_is_nothing_new(self, source: EventStore) -> None:
        source.append([event(1)])
        with pytest.raises(PreconditionFailedError):
            source.append([event(1)], [SubjectIsPristine("/books/1")])

    def test_of_several_who_begin_a_subject_one_wins(self, source: EventStore) -> None:
        writers, rounds = 4, 10

        def begin(writer: int) -> list[int]:
            won = []
            for number in range(rounds):
                mine = event(number * writers + writer, f"/race/{number}")
                try:
                    source.append([mine], [SubjectIsPristine(mine.subject)])
                except PreconditionFailedError:
                    continue
                won.append(number)
            return won

        with ThreadPoolExecutor(writers) as threads:
            won = [number for result in threads.map(begin, range(writers)) for number in result]
        assert sorted(won) == list(range(rounds))
        assert len(identities(source)) == rounds

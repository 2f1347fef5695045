"""The contract of event stores: event sources to which events can be added."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

import orjson
import pytest

from opencqrs_py.errors import PreconditionFailedError
from opencqrs_py.model import Event, Selection
from opencqrs_py.model.appending import (
    Appended,
    Precondition,
    SubjectIsOnEventId,
    SubjectIsPopulated,
    SubjectIsPristine,
)
from opencqrs_py.processing.ports import EventSource, EventStore, gives_ids
from opencqrs_py.testing.contracts.calls import begun, returned
from opencqrs_py.testing.contracts.event_source import (
    ALL,
    LONG,
    SECONDS,
    EventSourceContract,
    check_that_nothing_is_missed,
    comparable,
    event,
    followed,
    identities,
    numbers,
)
from opencqrs_py.testing.contracts.log_identity import Append

STILL_LOCKED = "append still waits although every earlier one has ended or failed"


class EventStoreContract(EventSourceContract):
    """What callers that add events rely on.

    Attributes:
        idempotent: Whether the store identifies events by source and id, and leaves out those that it already has. If
            not, an event that is appended twice is stored twice.
        longest_payload: The number of characters that the data of an event may have at least.
        longest_subject: The number of characters that a subject or type may have at least.
    """

    idempotent: ClassVar[bool] = True
    longest_payload: ClassVar[int] = 4_000_000
    longest_subject: ClassVar[int] = 15_000

    def test_a_stored_event_is_not_added_again(self, source: EventSource, append: Append) -> None:
        if not self.idempotent:
            pytest.skip("the store is not idempotent")
        append([event(1), event(2)])
        before = comparable(source.read(0, 10, ALL))
        append([event(2), event(1)._replace(payload='{"changed":true}')])
        assert comparable(source.read(0, 10, ALL)) == before

    def test_new_events_among_stored_ones_are_added(self, source: EventSource, append: Append) -> None:
        append([event(1), event(2)])
        append([event(2), event(3), event(1), event(4), event(3)])
        assert numbers(source) == ([1, 2, 3, 4] if self.idempotent else [1, 2, 2, 3, 1, 4, 3])

    def test_an_id_is_unique_within_its_source_only(self, source: EventSource, append: Append) -> None:
        sources = ["contract", "another", "Contract", "contract "]
        append(event(1)._replace(source=name) for name in sources)
        assert [event.source for event in source.read(0, 10, ALL).events] == sources

    def test_ids_differ_by_case_and_by_accent(self, source: EventSource, append: Append) -> None:
        names = ["a", "A", "ä", "a ", "'a'", "a" * 2_000, "a" * 2_001]
        append(event(n)._replace(id=name) for n, name in enumerate(names))
        assert numbers(source) == list(range(len(names)))
        assert not self.keeps_identity or identities(source) == names

    def test_an_append_that_fails_adds_nothing(self, source: EventSource, append: Append) -> None:
        append([event(1)])

        def breaking_off() -> Iterator[Event]:
            yield event(2)
            yield event(3)
            raise ValueError("line 3 is bad")

        with pytest.raises(ValueError, match="line 3 is bad"):
            append(breaking_off())
        assert numbers(source) == [1]
        returned(begun(append, [event(2)]), SECONDS, STILL_LOCKED)
        assert numbers(source) == [1, 2]

    def test_adding_nothing_changes_nothing(self, source: EventSource, append: Append) -> None:
        append([])
        assert source.head() == 0

    def test_an_append_returns_how_many_events_were_given_and_added(self, source: EventStore) -> None:
        assert source.append([]) == Appended(0, 0)
        assert source.append([event(1), event(2), event(1)]) == Appended(3, 2 if self.idempotent else 3)
        assert source.append(event(n) for n in range(2, 6)) == Appended(4, 3 if self.idempotent else 4)

    def test_an_append_returns_the_ids_that_the_store_gives(self, source: EventStore) -> None:
        """The ids that the store gives, else those of the events."""
        given = [event(1), event(2)]
        ids = source.append(given).ids
        assert (ids is not None) is gives_ids(source)
        assert identities(source) == ([one.id for one in given] if ids is None else list(ids))

    @pytest.mark.parametrize("count", [1, 4_999, 5_000, 5_001, 12_000])
    def test_an_append_can_have_any_number_of_events(self, source: EventStore, count: int) -> None:
        given = [event(n) for n in range(count)]
        again = [0, count - 1]
        added = count if self.idempotent else count + 2
        assert source.append([*given, *(given[n] for n in again)]) == Appended(count + 2, added)
        assert numbers(source) == [*range(count), *([] if self.idempotent else again)]

    def test_progress_is_reported_up_to_the_number_of_events_given(self, source: EventStore) -> None:
        told: list[int] = []
        source.append((event(n % 11_000) for n in range(12_000)), progress=told.append)
        assert told == sorted(set(told))
        assert told[-1] == 12_000

    def test_payloads_can_be_large(self, source: EventStore) -> None:
        size = self.longest_payload - len('{"text":"ü"}')
        payloads = [f'{{"text":"{letter * size}ü"}}' for letter in "abc"]
        source.append(event(n)._replace(payload=payload) for n, payload in enumerate(payloads))
        read = [one.data for part in followed(source, 10) for one in part.events]
        assert read == [orjson.loads(payload) for payload in payloads]

    def test_subjects_and_types_can_be_long(self, source: EventStore) -> None:
        long = "/" + "ü1/" * (self.longest_subject // 3)
        given = [event(1, f"{long}a", f"{long}a"), event(2, f"{long}b", f"{long}b"), event(3, long[:-1], "t")]
        source.append(given)
        assert numbers(source, Selection(f"{long}a")) == [1]
        assert numbers(source, Selection(long[:-1], recursive=False)) == [3]
        assert numbers(source, Selection(long[:-1])) == [1, 2, 3]
        assert numbers(source, Selection(types=frozenset({f"{long}b", "t"}))) == [2, 3]
        newest = identities(source, Selection(f"{long}a"))[-1]
        source.append([], [SubjectIsOnEventId(f"{long}a", newest), SubjectIsPristine(f"{long}c")])

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
        given_ids = {str(number): name for number, name in zip(numbers(source), identities(source), strict=True)}
        if isinstance(precondition, SubjectIsOnEventId):
            precondition = replace(precondition, event_id=given_ids[precondition.event_id])
        if holds:
            assert source.append([event(9)], [precondition]) == Appended(1, 1)
            assert numbers(source) == [1, 2, 3, 9]
            return
        with pytest.raises(PreconditionFailedError, match="OCQ-320") as caught:
            source.append([event(9)], [precondition])
        assert f"'{precondition.subject}'" in caught.value.what
        assert numbers(source) == [1, 2, 3]

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
        returned(begun(source.append, [event(2)]), SECONDS, STILL_LOCKED)

    def test_a_precondition_is_checked_even_if_there_is_nothing_new(self, source: EventStore) -> None:
        source.append([event(1)])
        with pytest.raises(PreconditionFailedError):
            source.append([event(1)], [SubjectIsPristine("/books/1")])

    def test_a_reader_misses_nothing_while_several_writers_append(self, source: EventStore) -> None:
        check_that_nothing_is_missed(source, source.append, writers=4)

    def test_of_concurrent_writers_that_begin_a_subject_one_wins(self, source: EventStore) -> None:
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

        beginning = [begun(begin, writer) for writer in range(writers)]
        won = [number for each in beginning for number in returned(each, LONG, STILL_LOCKED)]
        assert sorted(won) == list(range(rounds))
        assert len(numbers(source)) == rounds

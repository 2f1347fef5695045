"""The part of the contract of event sources that is about telling one log from another."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from opencqrs_py.errors import EventStoreError
from opencqrs_py.model import Event, Selection
from opencqrs_py.processing.ports import EventSource

Append = Callable[[Iterable[Event]], object]

LONGEST = 1_000  # characters of a fingerprint


def numbered(*numbers: int) -> list[Event]:
    """Return events as they are before a store has given them positions."""
    attributes = ("book-lent.v1", None, "application/json")
    return [Event(0, f"identity-{n}", "contract", f"/books/{n}", *attributes, f'{{"n":{n}}}', None) for n in numbers]


class LogIdentityContract:
    """Fingerprints of a log. Part of ``EventSourceContract``."""

    @pytest.fixture
    def other_source(self) -> EventSource:
        """Return an empty source of the same kind, which reads another log."""
        pytest.skip("give the fixture other_source, an empty source of another log")

    @pytest.fixture
    def other_append(self, other_source: EventSource) -> Append:
        """Return the function that adds events to the other source, in order."""
        append: Append = other_source.append  # type: ignore[attr-defined]
        return append

    def test_every_fingerprint_of_a_log_verifies_at_its_position(self, source: EventSource, append: Append) -> None:
        found = {0: source.fingerprint(0)}
        for number in range(1, 4):
            append(numbered(number))
            found[source.head()] = source.fingerprint(source.head())
        append(numbered(4))
        for position, fingerprint in found.items():
            assert 0 < len(fingerprint) <= LONGEST
            source.verify(position, fingerprint)
            assert source.fingerprint(position) == fingerprint

    def test_an_empty_log_and_one_with_events_have_different_fingerprints(
        self, source: EventSource, append: Append
    ) -> None:
        append(numbered(1))
        assert source.fingerprint(0) != source.fingerprint(source.head())

    def test_the_fingerprint_of_a_read_event_is_that_of_its_position(self, source: EventSource, append: Append) -> None:
        append(numbered(1, 2, 3))
        for event in source.read(0, 10, Selection()).events:
            assert source.fingerprint(event.position, event) == source.fingerprint(event.position)

    def test_progress_beyond_the_end_of_the_log_is_refused(self, source: EventSource, append: Append) -> None:
        append(numbered(1, 2))
        source.verify(source.head(), "")
        with pytest.raises(EventStoreError) as caught:
            source.verify(source.head() + 1, "")
        assert caught.value.code == "OCQ-316"
        assert caught.value.fix

    def test_the_fingerprint_of_another_kind_of_source_is_refused(self, source: EventSource, append: Append) -> None:
        append(numbered(1, 2))
        with pytest.raises(EventStoreError, match="OCQ-316"):
            source.verify(source.head(), "of-another-kind")

    def test_the_fingerprint_of_another_log_is_refused(
        self, source: EventSource, append: Append, other_source: EventSource, other_append: Append
    ) -> None:
        append(numbered(1, 2))
        other_append(numbered(3, 4, 5))
        for event in source.read(0, 10, Selection()).events:
            fingerprint = source.fingerprint(event.position)
            with pytest.raises(EventStoreError, match="OCQ-316"):
                other_source.verify(event.position, fingerprint)

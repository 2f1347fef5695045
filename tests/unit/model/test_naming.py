"""Names and numbers in messages."""

from __future__ import annotations

import pytest

from opencqrs_py.model.inbox import InboxEntry, InboxStatus, too_long, too_many
from opencqrs_py.model.naming import counted, in_one_line


@pytest.mark.parametrize(
    ("number", "words", "expected"),
    [
        (0, ("event",), "0 events"),
        (1, ("event",), "1 event"),
        (2, ("event",), "2 events"),
        (1_234, ("event",), "1,234 events"),
        (1, ("event waits", "events wait"), "1 event waits"),
        (2, ("event waits", "events wait"), "2 events wait"),
    ],
)
def test_counts_use_the_singular_for_1(number: int, words: tuple[str, ...], expected: str) -> None:
    assert counted(number, *words) == expected


@pytest.mark.parametrize(
    ("most", "events", "sequences"), [(1, "1 event", "1 sequence"), (1_024, "1,024 events", "1,024 sequences")]
)
def test_a_full_inbox_reports_how_many_events_wait(most: int, events: str, sequences: str) -> None:
    entry = InboxEntry("loans", "ada", 7, "id", "s", "/a", "t", InboxStatus.PENDING, "2026-01-01T00:00:00+00:00")
    assert too_long(entry, most).what == f"the inbox is full: sequence 'ada' has {events} waiting"
    assert too_many(entry, most).what == f"the inbox is full: the group has {sequences} waiting"


@pytest.mark.parametrize(("text", "line"), [("a b ü", "a b ü"), ("a\r\nb\x00\u2028", r"a\r\nb\x00\u2028")])
def test_a_text_is_shown_in_one_line(text: str, line: str) -> None:
    assert in_one_line(text) == line

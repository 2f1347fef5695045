"""Ranges of positions: each begins with an event that the group handles, and is cut as a chunk is."""

from __future__ import annotations

import pytest

from opencqrs_py import Event, InMemoryEventStore
from opencqrs_py.model.chunk import NOTHING
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.selection import Selection
from opencqrs_py.processing.ranges import PositionRange, RangeFeed
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent

ALONE = Partition(1, 0)


def store_of(types: str) -> InMemoryEventStore:
    store = InMemoryEventStore()
    store.append(Event(0, str(n), "s", "/x", kind, None, "", "{}", None) for n, kind in enumerate(types, 1))
    return store


def feed_of(types: str, size: int, *, selected: bool = True) -> RangeFeed:
    """Return the feed of a group that handles events of type ``a``; if ``selected``, the store filters by type."""
    selection = Selection(types=frozenset({"a"}) if selected else None)
    wanted = None if selected else "a".__eq__
    return RangeFeed(store_of(types), selection, SequencingByEvent(PerSubject()), size, wanted)


def ranges_of(feed: RangeFeed) -> list[tuple[int, int]]:
    found, after = [], 0
    while (page := feed.read(after)) is not None:
        events, after = page.events_of(ALONE, after)
        if events:
            found.append((events.position(0), after))
    return found


@pytest.mark.parametrize("selected", [True, False])
@pytest.mark.parametrize(
    ("types", "size", "expected"),
    [
        ("", 3, []),
        ("bbbb", 3, []),
        ("aaaaa", 2, [(1, 2), (3, 4), (5, 5)]),
        ("bbabbbba", 3, [(3, 5), (8, 8)]),
        ("abbb", 10, [(1, 4)]),
        ("a" * 7, 100, [(1, 7)]),
    ],
)
def test_ranges_begin_with_an_event_of_the_group_and_cover_the_log(selected, types, size, expected) -> None:
    assert ranges_of(feed_of(types, size, selected=selected)) == expected


@pytest.mark.parametrize("selected", [True, False])
def test_a_slice_of_a_range_knows_its_first_event(selected) -> None:
    events, _ = feed_of("babbaab", 10, selected=selected).read(0).events_of(ALONE, 0)
    assert (len(events), events.position(0), events.position(-1)) == (6, 2, 7)
    assert events[0].position == 2
    later = events[2:]
    assert (later.position(0), later.first_event().position, later[0].position) == (4, 5, 5)
    assert later[1:][:2].first_event().position == 5
    assert events[1:3].first_event() is None
    assert events[5:].first_event() is None
    assert events.index_of(5) == 3
    assert events[3].position == 5
    assert [event.position for event in events] == [2, 3, 4, 5, 6, 7]


def test_an_unreadable_event_still_has_its_position() -> None:
    def unavailable(_after: int, _upto: int) -> Event:
        raise ConnectionError

    events = PositionRange(4, 9, unavailable)
    assert (events[0].position, events[2].position, events[2].type) == (5, 7, "")
    assert events.read_whole(0) is None


def test_a_page_without_events_of_the_group_covers_the_log_that_was_read() -> None:
    page = feed_of("bbb", 2).read(0)
    assert page.events_of(ALONE, 0) == (NOTHING, 3)

"""Events as rows: they behave like events, and read missing attributes on access."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.model import Event
from opencqrs_py.model.chunk import Chunk

EVENTS = [
    Event(
        n, f"id-{n}", "urn:library", f"/books/{n % 3}", kind, "2026-01-01T00:00:00Z", "application/json", f"[{n}]", by
    )
    for n, kind, by in [(1, "lent", '{"by":"ada"}'), (3, "returned", None), (4, "lent", None), (8, "lost", None)]
]


class Store:
    """Reads events in full, and counts the reads; may be unavailable."""

    def __init__(self) -> None:
        self.reads: list[int] = []
        self.away = False

    def whole(self, position: int) -> Event:
        self.reads.append(position)
        if self.away:
            raise ConnectionError
        return next(event for event in EVENTS if event.position == position)


@pytest.fixture
def store() -> Store:
    return Store()


def rows(store: Store, *, subjects: bool = True) -> Chunk:
    return Chunk([(e.position, e.type, e.payload, e.subject)[: 4 if subjects else 3] for e in EVENTS], store.whole)


def seen(event: Event) -> dict[str, Any]:
    """Return all attributes that can be read."""
    names = [*Event._fields, "data", "metadata", "timestamp", "label"]
    return {name: getattr(event, name) for name in names}


@pytest.mark.parametrize("subjects", [True, False])
def test_an_event_read_from_a_row_has_all_its_attributes(store: Store, *, subjects: bool) -> None:
    found = rows(store, subjects=subjects)
    assert [seen(one) for one in found] == [seen(one) for one in EVENTS]
    assert [seen(found[n]) for n in (0, -1)] == [seen(EVENTS[n]) for n in (0, -1)]


@pytest.mark.parametrize(
    "taken",
    [
        tuple,
        hash,
        copy.copy,
        Event._asdict,
        lambda one: pickle.loads(pickle.dumps(one)),
        lambda one: (one[1], one[-1], one[2:5]),
        lambda one: one._replace(payload="2"),
        lambda one: [*one],
        repr,
        lambda one: ("urn:library" in one, "" in one),
        lambda one: ((*one, "more"), one + one, ("more",) + one, one + ("more",)),  # noqa: RUF005
    ],
    ids=["tuple", "hash", "copy", "dict", "pickle", "items", "replace", "unpacked", "repr", "contains", "add"],
)
def test_an_event_read_from_a_row_is_complete_when_used_as_a_tuple(store: Store, taken: Callable[[Event], Any]) -> None:
    assert [taken(one) for one in rows(store)] == [taken(event) for event in EVENTS]
    assert list(rows(store)) == EVENTS
    assert rows(store)[0] != EVENTS[1]


def test_position_type_and_data_need_no_second_read(store: Store) -> None:
    for one, event in zip(rows(store, subjects=False), EVENTS, strict=True):
        assert (one.position, one.type, one.payload, one.data) == (
            event.position,
            event.type,
            event.payload,
            event.data,
        )
    assert store.reads == []


def test_a_subject_that_was_read_needs_no_second_read(store: Store) -> None:
    assert [one.subject for one in rows(store)] == [event.subject for event in EVENTS]
    assert store.reads == []


def test_an_event_is_read_once_however_often_it_is_accessed(store: Store) -> None:
    one = rows(store)[2]
    assert (one.id, one.source, one.time, one.id) == ("id-4", "urn:library", "2026-01-01T00:00:00Z", "id-4")
    assert store.reads == [4]


def test_an_unreadable_event_is_named_by_its_known_attributes(store: Store) -> None:
    store.away = True
    assert rows(store)[1].label == "event at position 3 (returned)"
    with pytest.raises(ConnectionError):
        _ = rows(store)[1].id


def test_chunks_of_events_and_chunks_of_rows_behave_the_same(store: Store) -> None:
    whole, read = Chunk.of(EVENTS), rows(store)
    assert Chunk.of(whole) is whole
    for chunk in (whole, read):
        assert [chunk.position(n) for n in (0, 1, -1)] == [1, 3, 8]
        assert chunk.types == ["lent", "returned", "lent", "lost"]
        assert [one.position for one in chunk.after(1)] == [3, 4, 8]
        assert chunk.after(0) is chunk
        assert len(chunk.after(8)) == 0
        assert [one.position for one in chunk.picked([0, 2])] == [1, 4]
        decoders = dict.fromkeys(chunk.types, len)
        assert chunk.decoded(decoders, decoders) == [3] * 4  # type: ignore[arg-type]
    assert store.reads == []
    assert (whole.read_whole(-1), read.read_whole(-1)) == (EVENTS[-1], None)
    assert list(whole) == EVENTS
    assert repr(whole) == repr(read) == f"Chunk({EVENTS!r})"


@pytest.mark.parametrize("part", [slice(2), slice(1, None), slice(1, 3), slice(9, 10)])
def test_a_slice_of_rows_is_a_chunk_of_rows(store: Store, part: slice) -> None:
    found = rows(store)[part]
    assert isinstance(found, Chunk)
    assert [one.id for one in found] == [event.id for event in EVENTS[part]]
    assert len(found) == len(EVENTS[part])


def test_events_selected_by_type_keep_their_order(store: Store) -> None:
    found = rows(store).of_types({"lent", "lost"}.__contains__)
    assert [one.position for one in found] == [1, 4, 8]


@given(
    subjects=st.lists(st.sampled_from(["/a", "/b", "/c", "/ä"])),
    place=st.functions(like=lambda _subject: None, returns=st.lists(st.integers(0, 3), unique=True), pure=True),
)
def test_grouping_by_residue_calls_the_function_once_per_subject_and_keeps_the_order(
    subjects: list[str], place: Callable[[str], Sequence[int]]
) -> None:
    asked: list[str] = []

    def places(event: Event) -> Sequence[int]:
        asked.append(event.subject)
        return place(event.subject)

    found = Chunk([(n, "t", None, subject) for n, subject in enumerate(subjects)], Store().whole).by_residue(places)
    for number in range(4):
        expected = [n for n, subject in enumerate(subjects) if number in place(subject)]
        assert [one.position for one in found.get(number, ())] == expected
    assert asked == list(dict.fromkeys(subjects))


@given(subjects=st.lists(st.sampled_from(["/a", "/b", "/c", "/ä"])), of_events=st.booleans())
def test_grouping_by_residue_of_subject_calls_once_per_subject_and_reads_no_event(
    subjects: list[str], *, of_events: bool
) -> None:
    asked: list[str] = []

    def residue_of(subject: str) -> int:
        asked.append(subject)
        return len(subject.encode()) % 2

    if of_events:
        chunk = Chunk([EVENTS[0]._replace(position=n, subject=subject) for n, subject in enumerate(subjects)])
    else:
        chunk = Chunk([(n, "t", None, subject) for n, subject in enumerate(subjects)], _no_event)
    found = chunk.by_residue_of_subject(residue_of)
    for residue in range(2):
        expected = [n for n, subject in enumerate(subjects) if len(subject.encode()) % 2 == residue]
        assert [one.position for one in found.get(residue, ())] == expected
    assert asked == list(dict.fromkeys(subjects))


def _no_event(position: int) -> Event:
    raise AssertionError(position)


@pytest.mark.parametrize("name", ["data", "metadata", "subject", "note", "_whole"])
def test_attributes_of_an_event_read_from_a_row_cannot_be_set(store: Store, name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(rows(store)[0], name, "mine")


def test_each_access_to_data_or_metadata_of_a_row_returns_a_fresh_copy(store: Store) -> None:
    (one, *_) = rows(store)
    one.data.clear()
    one.metadata.clear()
    assert (one.data, one.metadata) == ([1], {"by": "ada"})

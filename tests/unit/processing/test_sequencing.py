"""Sequence ids: what must be handled in order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.model import Event
from opencqrs_py.processing.ports import SequenceResolver
from opencqrs_py.processing.sequencing import NoSequence, PerSubject, PerSubjectLevel, cut_subject

SECOND_LEVEL = [
    ("/", "/"),
    ("/books", "/books"),
    ("/books/", "/books/"),
    ("/books/4711", "/books/4711"),
    ("/books/4711/", "/books/4711"),
    ("/books/4711/pages/43", "/books/4711"),
    ("/books/4711/pages/43/lines/7", "/books/4711"),
    ("/book/4711", "/book/4711"),
    ("/readers/ab9c7d71-9a5e-4664-8b75-73f4d04cac5e", "/readers/ab9c7d71-9a5e-4664-8b75-73f4d04cac5e"),
    ("/books/978-0008471286/copies/1", "/books/978-0008471286"),
    ("/books/978-0008471286/copies/2", "/books/978-0008471286"),
    ("/a//b", "/a/"),
    ("//x/y", "//x"),
    ("ignored/book/4711/43", "/book/4711"),
    ("book", ""),
    ("", ""),
    ("/bücher/größe/1", "/bücher/größe"),
    ("/書籍/四七一一", "/書籍/四七一一"),
    ("/order/1", "/order/1"),
]
OTHER_LEVELS = [
    (1, "/books/4711", "/books"),
    (1, "/a//b", "/a"),
    (1, "/", "/"),
    (3, "/books/4711/pages/43", "/books/4711/pages"),
    (3, "/books/4711/", "/books/4711/"),
    (9, "/books/4711/pages/43", "/books/4711/pages/43"),
]


def event(subject: str, event_id: str = "4711") -> Event:
    return Event(1, event_id, "s", subject, "t", None, "application/json", None, None)


@pytest.mark.parametrize(("subject", "sequence_id"), SECOND_LEVEL)
def test_two_levels_of_the_subject_are_kept_by_default(subject: str, sequence_id: str) -> None:
    assert PerSubjectLevel()(event(subject)) == sequence_id


@pytest.mark.parametrize(("level", "subject", "sequence_id"), OTHER_LEVELS)
def test_any_number_of_levels_can_be_kept(level: int, subject: str, sequence_id: str) -> None:
    assert PerSubjectLevel(level)(event(subject)) == sequence_id


segments = st.lists(st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), max_size=3), max_size=6)


@given(segments, st.integers(1, 7))
def test_a_well_formed_subject_is_cut_before_a_slash_as_spark_cuts_it(parts: list[str], level: int) -> None:
    subject = "/" + "/".join(parts)
    cut = cut_subject(subject, level)
    assert subject.startswith(cut)
    assert cut.count("/") == min(subject.count("/"), level)
    assert subject == cut or subject[len(cut)] == "/"


@given(segments, st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"])), st.integers(1, 7))
def test_what_stands_before_the_first_slash_does_not_count(parts: list[str], before: str, level: int) -> None:
    subject = "/" + "/".join(parts)
    assert cut_subject(before + subject, level) == cut_subject(subject, level)


@pytest.mark.parametrize("level", [0, -1])
def test_at_least_one_level_is_kept(level: int) -> None:
    with pytest.raises(ValueError, match=f"level must be at least 1, got {level}"):
        PerSubjectLevel(level)


@pytest.mark.parametrize("subject", ["/books/4711/", "/a//b", "book", "/bücher/größe/1"])
def test_a_whole_subject_is_kept_untouched(subject: str) -> None:
    assert PerSubject()(event(subject)) == subject


def test_without_sequence_each_event_stands_alone() -> None:
    assert NoSequence()(event("/books/1", "12345")) == "12345"


@pytest.mark.parametrize(("one", "other"), [(NoSequence(), NoSequence()), (PerSubjectLevel(3), PerSubjectLevel(3))])
def test_resolvers_are_values(one: SequenceResolver, other: SequenceResolver) -> None:
    assert one == other
    assert hash(one) == hash(other)

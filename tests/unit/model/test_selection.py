"""Which events a selection takes: subjects are compared character by character, and levels end at a slash."""

from __future__ import annotations

import pytest

from opencqrs_py.model import Event, Selection


def event(subject: str, event_type: str = "book-lent") -> Event:
    return Event(1, "1", "source", subject, event_type, None, "application/json", None, None)


@pytest.mark.parametrize(
    ("root", "recursive", "subject", "selected"),
    [
        ("/", True, "/books/1", True),
        ("/", True, "no slash at all", True),
        ("/", False, "/", True),
        ("/", False, "/books", False),
        ("/books", True, "/books", True),
        ("/books", True, "/books/1/pages/2", True),
        ("/books", True, "/booksellers", False),
        ("/books", True, "/Books/1", False),
        ("/books", True, "/", False),
        ("/books", True, "/old/books/1", False),
        ("/books", False, "/books", True),
        ("/books", False, "/books/", False),
        ("/books", False, "/books/1", False),
        ("/books/", True, "/books/1", True),
        ("/books/", True, "/books", False),
        ("/100%", True, "/100%/a", True),
        ("/100%", True, "/1000/a", False),
        ("/a_b", True, "/axb/1", False),
        ("/bücher", True, "/bücher/1", True),
        ("/bücher", True, "/BÜCHER/1", False),
        ("/o'brien", True, "/o'brien/1", True),
    ],
)
def test_a_subject_selects_itself_and_with_recursive_its_children(
    *, root: str, recursive: bool, subject: str, selected: bool
) -> None:
    assert Selection(root, recursive).matches(event(subject)) is selected


@pytest.mark.parametrize(
    ("types", "selected"),
    [(None, True), (frozenset({"book-lent", "other"}), True), (frozenset({"Book-Lent"}), False), (frozenset(), False)],
)
def test_types_select_by_the_exact_name(*, types: frozenset[str] | None, selected: bool) -> None:
    assert Selection(types=types).matches(event("/books/1")) is selected


def test_subject_and_types_must_both_match() -> None:
    selection = Selection("/books", types=frozenset({"book-lent"}))
    assert [selection.matches(event(s, t)) for s in ("/books", "/cars") for t in ("book-lent", "sold")] == [
        True,
        False,
        False,
        False,
    ]


def test_only_a_recursive_root_selects_everything() -> None:
    assert Selection().everything
    assert not Selection("/", recursive=False).everything
    assert not Selection("/books").everything

"""Event types: marked classes, mapped classes, and those that a resolver knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar

import pytest
from pydantic import BaseModel

from opencqrs_py import event_type
from opencqrs_py.processing.event_types import EventTypes, is_a, plain

T = TypeVar("T")


class Book:
    pass


@event_type("lent")
@dataclass
class Lent(Book):
    pass


@event_type("lent")
class LentElsewhere(BaseModel):
    pass


@event_type("returned")
@dataclass
class Returned(Book):
    pass


@dataclass
class Lost(Book):
    pass


class Dictionary(TypedDict):
    pass


class SameAsDictionary(TypedDict):
    pass


@dataclass
class Page(Generic[T]):
    pass


def resolve(name: str) -> type | None:
    return Lost if name.startswith("lost") else None


@pytest.mark.parametrize(
    ("types", "name", "classes"),
    [
        (EventTypes(), "lent", []),
        (EventTypes([Lent, Book, Lost]), "lent", [Lent]),
        (EventTypes([Lent, LentElsewhere, Lent]), "lent", [Lent, LentElsewhere]),
        (EventTypes([Lent], {"lent": Lost}), "lent", [Lent, Lost]),
        (EventTypes([], {"lost": Lost}), "lost", [Lost]),
        (EventTypes([Lent], resolver=resolve), "lost.v7", [Lost]),
        (EventTypes([Lent], resolver=resolve), "never heard of", []),
        (EventTypes([Lent], {"lost.v1": Returned}, resolve), "lost.v1", [Returned]),
    ],
)
def test_types_are_mapped_to_classes(types: EventTypes, name: str, classes: list[type]) -> None:
    assert list(types.classes_of(name)) == classes


def test_a_resolver_is_not_called_for_known_types() -> None:
    asked: list[str] = []

    def note(name: str) -> type | None:
        asked.append(name)
        return None

    types = EventTypes([Lent], {"mapped": Lost}, note)
    for name in ("lent", "mapped", "other"):
        types.classes_of(name)
    assert asked == ["other"]


def test_names_and_classes_exclude_those_of_a_resolver() -> None:
    types = EventTypes([Returned, Lent, Book], {"lent": Lost, "lost": Lost}, resolve)
    assert types.names == ("returned", "lent", "lost")
    assert types.all_classes() == [Returned, Lent, Lost, Lost]
    assert types.open
    assert not EventTypes([Lent]).open


def test_entries_without_class_or_event_type_are_ignored() -> None:
    types = EventTypes()
    types.add([Book, "no class", Page[int]])  # type: ignore[list-item]
    assert types.names == ()


@pytest.mark.parametrize(
    ("wanted", "name", "expected"),
    [
        ([Lent], "lent", Lent),
        ([LentElsewhere], "lent", LentElsewhere),
        ([Book], "lent", Lent),
        ([Book], "returned", Returned),
        ([Returned, Lent], "lent", Lent),
        ([Returned, Book], "lent", Lent),
        ([Lost], "mapped", Lost),
        ([Book], "mapped", Lost),
        ([Book], "lost.v7", Lost),
        ([dict], "anything", dict),
        ([dict[str, Any]], "anything", dict),
        ([Mapping[str, Any]], "anything", Mapping),
        ([object], "anything", object),
        ([Returned], "lent", None),
        ([Book], "other", None),
        ([], "lent", None),
    ],
)
def test_an_event_decodes_to_the_requested_class_or_its_child(wanted: list[Any], name: str, expected: Any) -> None:
    types = EventTypes([Lent, LentElsewhere, Returned], {"mapped": Lost}, resolve)
    assert types.class_for(wanted, name) is expected


def test_a_class_takes_precedence_over_its_children() -> None:
    @event_type("lent")
    @dataclass
    class Child(Lent):
        pass

    types = EventTypes([Child, Lent])
    assert types.class_for([Lent], "lent") is Lent
    assert types.class_for([Book], "lent") is Child


@pytest.mark.parametrize(
    ("cls", "parent", "expected"),
    [
        (Lent, Book, True),
        (Lent, Lent, True),
        (Book, Lent, False),
        (Dictionary, Dictionary, True),
        (Dictionary, SameAsDictionary, False),
        (Dictionary, dict, False),
        (Lent, Dictionary, False),
    ],
)
def test_typed_dicts_have_no_children(cls: Any, parent: Any, *, expected: bool) -> None:
    assert is_a(cls, parent) is expected


@pytest.mark.parametrize(("cls", "expected"), [(Lent, Lent), (Page[int], Page), (dict[str, int], dict)])
def test_type_arguments_are_stripped_from_a_class(cls: Any, expected: Any) -> None:
    assert plain(cls) is expected

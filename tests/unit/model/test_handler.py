"""The marks that decorators leave on classes."""

from __future__ import annotations

from opencqrs_py import event_type
from opencqrs_py.model import event_type_of


class Untyped:
    pass


@event_type("parent.v1")
class Parent:
    pass


class Child(Parent):
    pass


def test_an_event_type_belongs_to_one_class_and_not_to_its_children() -> None:
    assert event_type_of(Parent) == "parent.v1"
    assert event_type_of(Child) is None
    assert event_type_of(Untyped) is None


def test_an_event_type_mark_that_is_not_a_text_is_ignored() -> None:
    class Odd:
        __opencqrs_event_type__ = 42

    assert event_type_of(Odd) is None

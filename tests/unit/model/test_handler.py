"""What the decorators leave on classes."""

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


def test_something_else_in_the_place_of_the_type_is_no_type() -> None:
    class Odd:
        __opencqrs_event_type__ = 42

    assert event_type_of(Odd) is None

"""Decoding: every kind of event class, unknown fields, and data that do not match."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NotRequired, TypedDict, TypeVar

import attrs
import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from opencqrs_py import Metadata
from opencqrs_py.errors import EventFormatError, HandlerSignatureError
from opencqrs_py.model import Event
from opencqrs_py.processing.decoding import decodable, decoder_for

if TYPE_CHECKING:
    from fractions import Fraction

T = TypeVar("T")


class Binding(Enum):
    HARD = "hard"
    SOFT = "soft"


@dataclass
class Plain:
    isbn: str
    pages: int = 0


@dataclass(frozen=True, slots=True)
class Slotted:
    isbn: str
    pages: int = 0


@dataclass(frozen=True, kw_only=True)
class Nested:
    book: Plain
    due: date
    price: Decimal
    bindings: list[Binding] = field(default_factory=list)


class Model(BaseModel):
    isbn: str
    pages: int = 0


class StrictModel(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    isbn: str = Field(alias="ISBN")


class Checked(BaseModel):
    isbn: str

    @field_validator("isbn")
    @classmethod
    def check(cls, value: str) -> str:
        if value == "bad":
            msg = "an isbn has digits"
            raise ValueError(msg)
        return value


@attrs.define
class Defined:
    isbn: str
    pages: int = attrs.field(default=0, validator=attrs.validators.instance_of(int))
    added: str = attrs.field(init=False, default="later")


@attrs.frozen
class Renamed:
    _isbn: str
    title: str = attrs.field(alias="name", default="")


class Typed(TypedDict):
    isbn: str
    pages: NotRequired[int]


class Generic_(BaseModel, Generic[T]):  # noqa: N801 named like the concept it shows
    value: T


def event(payload: str | None) -> Event:
    return Event(7, "4711", "s", "/books/1", "lent.v1", None, "application/json", payload, None)


FULL = '{"isbn": "1", "pages": 3, "unknown": {"x": [1]}}'


@pytest.mark.parametrize(
    ("event_class", "payload", "expected"),
    [
        (Plain, FULL, Plain("1", 3)),
        (Plain, '{"isbn": "1"}', Plain("1")),
        (Slotted, FULL, Slotted("1", 3)),
        (
            Nested,
            '{"book": {"isbn": "1", "x": 0}, "due": "2026-01-02", "price": "9.90", "bindings": ["hard", "soft"]}',
            Nested(book=Plain("1"), due=date(2026, 1, 2), price=Decimal("9.90"), bindings=[Binding.HARD, Binding.SOFT]),
        ),
        (Model, FULL, Model(isbn="1", pages=3)),
        (StrictModel, '{"ISBN": "1"}', StrictModel(ISBN="1")),
        (Defined, FULL, Defined("1", 3)),
        (Defined, '{"isbn": "1", "added": "ignored"}', Defined("1")),
        (Renamed, '{"_isbn": "1", "title": "t"}', Renamed("1", name="t")),
        (Typed, '{"isbn": "1"}', {"isbn": "1"}),
        (dict, FULL, {"isbn": "1", "pages": 3, "unknown": {"x": [1]}}),
        (dict[str, Any], "{}", {}),
        (Mapping, "{}", {}),
        (Mapping[str, object], '{"a": 1}', {"a": 1}),
        (object, "[1, 2]", [1, 2]),
        (object, '"text"', "text"),
    ],
)
def test_data_are_decoded_to_an_object_of_the_class(event_class: type, payload: str, expected: object) -> None:
    decoded = decoder_for(event_class)(event(payload))
    assert decoded == expected
    assert type(decoded) is type(expected)


PLACE = "event 4711 at position 7 (lent.v1, /books/1)"
FIX = "change the event class, or use a handler that takes the raw Event"


@pytest.mark.parametrize(
    ("event_class", "payload", "what"),
    [
        (Plain, "{}", "Plain (isbn: Field required)"),
        (Slotted, "{}", "Slotted (isbn: Field required)"),
        (Model, "{}", "Model (isbn: Field required)"),
        (
            Plain,
            '{"isbn": 1, "pages": "many"}',
            "Plain (isbn: Input should be a valid string; "
            "pages: Input should be a valid integer, unable to parse string as an integer)",
        ),
        (
            Nested,
            '{"book": {}, "due": "2026-01-02", "price": 1, "bindings": ["loose"]}',
            "Nested (book.isbn: Field required; bindings.0: Input should be 'hard' or 'soft')",
        ),
        (Checked, '{"isbn": "bad"}', "Checked (isbn: Value error, an isbn has digits)"),
        (StrictModel, '{"ISBN": "1", "x": 1}', "StrictModel (x: Extra inputs are not permitted)"),
        (Defined, "{}", "Defined (Defined.__init__() missing 1 required positional argument: 'isbn')"),
        (dict, "[]", "a JSON object (the data are list)"),
        (Typed, '"text"', "a JSON object (the data are str)"),
        (Defined, "1", "a JSON object (the data are int)"),
        (dict, "null", "a JSON object (the data are NoneType)"),
    ],
)
def test_data_that_do_not_match_raise_an_error_that_names_event_and_field(
    event_class: type, payload: str, what: str
) -> None:
    with pytest.raises(EventFormatError) as caught:
        decoder_for(event_class)(event(payload))
    error = caught.value
    assert (error.code, error.where, error.fix) == ("OCQ-211", PLACE, FIX)
    assert error.what == f"the event's data do not fit {what}"


def test_only_the_first_five_problems_are_named() -> None:
    wide = type("Wide", (BaseModel,), {"__annotations__": {f"field_{n}": int for n in range(8)}})
    with pytest.raises(EventFormatError) as caught:
        decoder_for(wide)(event("{}"))
    assert [f"field_{n}" in caught.value.what for n in range(8)] == [True] * 5 + [False] * 3


def test_values_of_events_are_not_repeated_in_messages() -> None:
    with pytest.raises(EventFormatError) as caught:
        decoder_for(Plain)(event('{"isbn": {"secret": "s3cr3t"}}'))
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("event_class", [Plain, Slotted, Model, Defined, Typed, dict, Mapping, object])
def test_missing_data_raise_an_error_for_every_kind_of_class(event_class: type) -> None:
    with pytest.raises(EventFormatError) as caught:
        decoder_for(event_class)(event(None))
    assert (caught.value.code, caught.value.what, caught.value.where) == ("OCQ-210", "the event has no data", PLACE)


@pytest.mark.parametrize("event_class", [Plain, Model, Defined, Typed, dict, object])
def test_data_that_are_not_json_raise_an_error_for_every_kind_of_class(event_class: type) -> None:
    with pytest.raises(EventFormatError) as caught:
        decoder_for(event_class)(event("{"))
    assert caught.value.code in ("OCQ-210", "OCQ-211")
    assert "JSON" in caught.value.what
    assert caught.value.where == PLACE


@pytest.mark.parametrize("event_class", [dict, Typed])
def test_each_handler_gets_a_new_mapping_that_it_may_change(event_class: type) -> None:
    given = event('{"isbn": "1"}')
    decoded = decoder_for(event_class)(given)
    decoded["isbn"] = "changed"
    assert given.data == {"isbn": "1"}
    assert decoder_for(event_class)(given) == {"isbn": "1"}


class Money:
    pass


@dataclass
class Unknown:
    price: Money


@dataclass
class ForTypeCheckersOnly:
    share: Fraction


class Undecorated(Plain):
    title: str = ""


@dataclass
class ChildOfUndecorated(Undecorated):
    reader: str = ""


class WithoutFields(Plain):
    kind: ClassVar[str] = "plain"
    _cached: str = ""


@pytest.mark.parametrize("event_class", [Undecorated, ChildOfUndecorated])
def test_an_undecorated_child_of_a_dataclass_with_new_fields_is_refused(event_class: type) -> None:
    with pytest.raises(HandlerSignatureError, match="OCQ-208") as caught:
        decoder_for(event_class)
    what = "its field 'title' is never read: Undecorated inherits from a dataclass but is not one"
    assert caught.value.what == f"{event_class.__name__} cannot be decoded from JSON ({what})"
    assert caught.value.fix == "decorate Undecorated with @dataclass, like its parent"


def test_a_child_of_a_dataclass_without_fields_needs_no_decorator() -> None:
    assert type(decoder_for(WithoutFields)(event('{"isbn": "1"}'))) is WithoutFields


class ModelForTypeCheckersOnly(BaseModel):
    share: Fraction


@pytest.mark.parametrize("event_class", [Unknown, ForTypeCheckersOnly, ModelForTypeCheckersOnly])
def test_a_class_that_cannot_be_decoded_from_json_is_refused_before_any_event(event_class: type) -> None:
    with pytest.raises(HandlerSignatureError) as caught:
        decoder_for(event_class)
    error = caught.value
    assert error.code == "OCQ-208"
    assert error.what.startswith(f"{event_class.__name__} cannot be decoded from JSON (")
    assert "\n" not in error.what
    assert error.where == f"class {event_class.__module__}.{event_class.__qualname__}"
    assert error.fix == (
        "annotate its fields with types that JSON can become, imported at run time, not only under TYPE_CHECKING"
    )


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (Plain, True),
        (Slotted, True),
        (Model, True),
        (Generic_[int], True),
        (Defined, True),
        (Typed, True),
        (dict, True),
        (dict[str, int], True),
        (Mapping, True),
        (Mapping[str, int], True),
        (object, True),
        (int, False),
        (str, False),
        (list, False),
        (list[Plain], False),
        (datetime, False),
        (Money, False),
        (Metadata, False),
        (None, False),
        (type(None), False),
        ("Plain", False),
        (T, False),
    ],
)
def test_only_classes_that_json_objects_decode_to_are_event_classes(annotation: object, *, expected: bool) -> None:
    assert decodable(annotation) is expected

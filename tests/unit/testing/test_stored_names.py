"""Objects given to a test are stored under the names that their class reads."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, TypeVar

import attrs
import pytest
from pydantic import AliasChoices, AliasPath, BaseModel, ConfigDict, Field, RootModel, TypeAdapter, model_validator

from opencqrs_py.testing.given import _plain

T = TypeVar("T")


class Read(BaseModel):
    isbn: str = Field("none", validation_alias="ISBN")


class Written(BaseModel):
    isbn: str = Field(serialization_alias="ISBN")


class Both(BaseModel):
    isbn: str = Field(validation_alias="read", serialization_alias="written")


@dataclass
class Chosen:
    isbn: str = Field("", validation_alias=AliasChoices(AliasPath("isbns", 0), "isbn-13", "isbn"))
    place: int = Field(0, validation_alias=AliasPath("at", "place"))
    shelf: int = Field(0, validation_alias=AliasPath("at", "shelf"))


class After(Read):
    @model_validator(mode="after")
    def _as_it_is(self) -> Any:
        return self


class Generated(BaseModel):
    model_config = ConfigDict(alias_generator=str.upper, validate_by_name=True, extra="allow")
    isbn: str


@dataclass
class Plain:
    isbn: str = Field("none", alias="ISBN")
    copies: Annotated[int, Field(validation_alias="COPIES")] = 1


@dataclass
class Nested(Generic[T]):
    one: T
    many: list[Read] = field(default_factory=list)
    named: dict[str, Read] = field(default_factory=dict)
    pair: tuple[Read, int] | None = None
    child: Nested[T] | None = None


class Items(RootModel[list[Read]]):
    pass


READ = Read(ISBN="1")
NESTED = Nested(READ, [READ], {"isbn": READ}, (READ, 1), Nested(READ))


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (READ, {"ISBN": "1"}),
        (After(ISBN="1"), {"ISBN": "1"}),
        (Written(isbn="1"), {"isbn": "1"}),
        (Both(read="1"), {"read": "1"}),
        (
            Chosen("1", 2, 3),
            {"isbn-13": "1", "at": {"place": 2, "shelf": 3}},
        ),
        (Generated.model_validate({"isbn": "1", "more": 2}), {"ISBN": "1", "more": 2}),
        (Plain("1", 2), {"ISBN": "1", "COPIES": 2}),
        (Items([READ]), [{"ISBN": "1"}]),
        ([READ, {"isbn": 1}], [{"ISBN": "1"}, {"isbn": 1}]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_object_is_stored_under_the_names_its_class_reads(value: Any, stored: Any) -> None:
    assert _plain(value) == stored
    if not isinstance(value, list):
        assert TypeAdapter(type(value)).validate_python(stored) == value


def test_nested_objects_are_stored_under_the_names_their_classes_read() -> None:
    stored = _plain(NESTED)
    assert stored["one"] == stored["many"][0] == stored["named"]["isbn"] == stored["pair"][0] == {"ISBN": "1"}
    assert stored["child"]["one"] == {"ISBN": "1"}
    assert TypeAdapter(Nested[Read]).validate_python(stored) == NESTED


def test_objects_that_pydantic_cannot_read_are_stored_unchanged() -> None:
    @attrs.define
    class Book:
        isbn: str

    class Odd:
        pass

    @dataclass
    class Unknown:
        odd: Odd | None

    assert _plain(Book("1")) == {"isbn": "1"}
    assert _plain(Unknown(None)) == {"odd": None}

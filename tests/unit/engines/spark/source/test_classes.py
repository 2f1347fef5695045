"""Event classes as columns of the data source."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import pytest
from pydantic import AliasChoices, BaseModel, Field

from opencqrs_py import event_type
from opencqrs_py.engines.spark.source.classes import read_class
from opencqrs_py.engines.spark.source.scope import scope_of
from opencqrs_py.errors import EngineError


class Kind(Enum):
    PAPER = "paper"


@dataclass
class Place:
    shelf: str


@event_type("library.book-lent.v1")
@dataclass(frozen=True)
class BookLent:
    isbn: str
    copies: int
    price: Decimal | None
    at: datetime
    kind: Kind
    places: list[Place]


class Renamed(BaseModel):
    isbn: str = Field(validation_alias="ISBN")


@dataclass
class RenamedToo:
    book_id: int = Field(0, alias="bookId")


@dataclass
class Below:
    lines: list[RenamedToo | None]


class EitherName(BaseModel):
    isbn: str = Field(validation_alias=AliasChoices("isbn", "ISBN"))


class Lasting(BaseModel):
    lasts: timedelta


@dataclass
class Loose:
    extra: Any


class Outer:
    Inner = Place


NUMBER = 7


def scope(path, **options):
    return scope_of({"url": "x", "schema": f"{__name__}:{path}", **options}, 1)


def test_the_fields_of_a_class_are_columns_of_their_types():
    assert scope("BookLent").fields.simpleString() == (
        "struct<isbn:string,copies:bigint,price:decimal(38,18),at:timestamp,kind:string,places:array<struct<shelf:string>>>"
    )
    assert scope("Outer.Inner").fields.simpleString() == "struct<shelf:string>"


def test_only_events_of_the_type_of_the_class_are_read_unless_an_option_names_types():
    assert scope("BookLent").selection.types == {"library.book-lent.v1"}
    assert scope("BookLent", types="a, b").selection.types == {"a", "b"}
    assert scope("Place").selection.types is None


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("Nowhere", "it cannot be imported .AttributeError"),
        ("NUMBER", "its annotations cannot be read|it is not a class with fields"),
        ("Loose", "Loose.extra is typing.Any, which has no column"),
        ("Lasting", r"its field 'lasts' is duration\[us\], which is not read from JSON"),
        ("Renamed", "its field 'isbn' has another name in the data"),
        ("RenamedToo", "its field 'book_id' has another name in the data"),
        ("Below", "its field 'lines.book_id' has another name in the data"),
        ("EitherName", "its field 'isbn' has another name in the data"),
    ],
)
def test_a_class_that_cannot_be_mapped_to_columns_is_refused(path, says):
    with pytest.raises(EngineError, match=rf"OCQ-410.* the option 'schema' names the class \S+:{path}: ({says})"):
        scope(path)


def test_modules_that_workers_cannot_import_are_refused():
    with pytest.raises(
        EngineError, match=r"OCQ-410.* names the class nowhere:A: it cannot be imported .ModuleNotFound"
    ):
        read_class("nowhere:A")
    with pytest.raises(EngineError, match=r"OCQ-410.* Spark's Python workers run another main module"):
        read_class("__main__:A")

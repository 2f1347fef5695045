"""Sharing: several handlers get the same object only if it is immutable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import attrs
import pydantic
import pytest
from pydantic import AfterValidator, BaseModel, ConfigDict

from opencqrs_py.processing.event_types import immutable


class Kind(Enum):
    BOOK = "book"


@dataclass(frozen=True)
class Plain:
    isbn: str
    copies: int | None
    kind: Kind | Literal["map", 7]
    lent: datetime
    price: Decimal
    number: UUID
    readers: tuple[str, ...] = ()
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Nested:
    plain: Plain
    others: tuple[Plain | None, ...]


@dataclass(frozen=True)
class Tree:
    children: tuple[Tree, ...] = ()


@dataclass(frozen=True)
class Child(Plain):
    more: bytes = b""


@dataclass
class Mutable:
    isbn: str


@dataclass(frozen=True)
class HoldsList:
    tags: list[str]


@dataclass(frozen=True)
class HoldsListInTuple:
    tags: tuple[list[str], ...]


@dataclass(frozen=True)
class HoldsTupleOfAnything:
    tags: tuple  # type: ignore[type-arg]


@dataclass(frozen=True)
class HoldsAnything:
    what: Any


@dataclass(frozen=True)
class HoldsMutable:
    inner: Mutable


@dataclass(frozen=True)
class MadeByHand:
    isbn: str
    notes: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "notes", [])


@dataclass(frozen=True)
class Remembers:
    isbn: str

    @cached_property
    def letters(self) -> list[str]:
        return list(self.isbn)


@dataclass(frozen=True)
class Validated:
    isbn: Annotated[str, AfterValidator(list)]


@dataclass(frozen=True)
class WithDefault:
    tags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Unreadable:
    what: Nowhere  # type: ignore[name-defined]  # noqa: F821


@pydantic.dataclasses.dataclass(frozen=True)
class OfPydantic:
    isbn: str


class FrozenModel(BaseModel):
    model_config = ConfigDict(frozen=True)
    isbn: str


class Model(BaseModel):
    isbn: str


@attrs.frozen
class FrozenAttrs:
    isbn: str


class Typed(TypedDict):
    isbn: str


@pytest.mark.parametrize("cls", [Plain, Nested, Tree, Child])
def test_frozen_dataclasses_of_immutable_values_are_shared(cls: type) -> None:
    assert immutable(cls)


@pytest.mark.parametrize(
    "cls",
    [
        Mutable,
        HoldsList,
        HoldsListInTuple,
        HoldsTupleOfAnything,
        HoldsAnything,
        HoldsMutable,
        MadeByHand,
        Remembers,
        Validated,
        WithDefault,
        Unreadable,
        OfPydantic,
        FrozenModel,
        Model,
        FrozenAttrs,
        Typed,
        dict,
        Mapping,
        object,
        list[str],
    ],
)
def test_all_other_classes_are_decoded_for_each_handler(cls: Any) -> None:
    assert not immutable(cls)

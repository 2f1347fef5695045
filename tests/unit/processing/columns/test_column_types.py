"""The columns of event classes: one mapping from annotations to Arrow types, whatever kind of class it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NamedTuple, NewType, NotRequired, Optional, TypedDict
from uuid import UUID

import attrs
import pyarrow as pa
import pytest
from pydantic import BaseModel, Field, PositiveInt

from opencqrs_py.processing.columns.column_types import NoColumnError, columns_of


class State(Enum):
    LENT = "lent"
    LOST = "lost"


class Floor(IntEnum):
    GROUND = 0


class Mixed(Enum):
    ONE = 1
    TWO = "two"


@dataclass
class Shelf:
    room: str
    ids: list[UUID]


class Node(BaseModel):
    below: list[Node]


Isbn = NewType("Isbn", str)
ZONED = pa.timestamp("us", "UTC")
SHELF = pa.struct([("room", pa.string()), ("ids", pa.list_(pa.string()))])
ONE_UUID = UUID(int=1)

COLUMNS: list[tuple[Any, Any, Any, Any]] = [
    (str, pa.string(), "é", "é"),
    (int, pa.int64(), -(2**63), -(2**63)),
    (float, pa.float64(), 0.1, 0.1),
    (bool, pa.bool_(), True, True),
    (Decimal, pa.decimal128(38, 18), Decimal("12345678901234567890.10"), Decimal("12345678901234567890.10")),
    (Annotated[Decimal, Field(max_digits=12, decimal_places=2)], pa.decimal128(12, 2), Decimal("1.5"), Decimal("1.50")),
    (
        Annotated[Decimal, Field(max_digits=60, decimal_places=0)],
        pa.decimal256(60, 0),
        Decimal(10**59),
        Decimal(10**59),
    ),
    (Annotated[Decimal, Field(decimal_places=4)], pa.decimal128(38, 4), Decimal(1), Decimal(1)),
    (Annotated[Decimal | None, Field(max_digits=30, decimal_places=2)], pa.decimal128(30, 2), Decimal(1), Decimal(1)),
    (
        Annotated[Optional[Annotated[Decimal, Field(decimal_places=2)]], Field(max_digits=9)],  # noqa: UP045 as above
        pa.decimal128(9, 2),
        Decimal(1),
        Decimal(1),
    ),
    (Annotated[Decimal, Field(max_digits=5)], pa.decimal128(38, 18), Decimal("0.00001"), Decimal("0.00001")),
    (datetime, ZONED, datetime(2026, 1, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 1, tzinfo=UTC)),
    (datetime, ZONED, datetime(2026, 1, 1, 1), datetime(2026, 1, 1, 1, tzinfo=UTC)),  # noqa: DTZ001 taken for UTC
    (date, pa.date32(), date(1, 1, 1), date(1, 1, 1)),
    (time, pa.time64("us"), time(1, 2, 3, 4), time(1, 2, 3, 4)),
    (timedelta, pa.duration("us"), timedelta(-1, 1), timedelta(-1, 1)),
    (UUID, pa.string(), ONE_UUID, str(ONE_UUID)),
    (State, pa.string(), State.LOST, "lost"),
    (Floor, pa.int64(), Floor.GROUND, 0),
    (Literal["a", "b"], pa.string(), "a", "a"),
    (Literal["a"] | None, pa.string(), None, None),
    (Isbn, pa.string(), "1", "1"),
    (PositiveInt, pa.int64(), 1, 1),
    (str | None, pa.string(), None, None),
    (Optional[UUID], pa.string(), ONE_UUID, str(ONE_UUID)),  # noqa: UP045 as people write it
    (list[int], pa.list_(pa.int64()), [1, 2], [1, 2]),
    (Sequence[UUID | None], pa.list_(pa.string()), [ONE_UUID, None], [str(ONE_UUID), None]),
    (tuple[State, ...], pa.list_(pa.string()), (State.LENT,), ["lent"]),
    (frozenset[int], pa.list_(pa.int64()), frozenset({1}), [1]),
    (Shelf, SHELF, Shelf("a", [ONE_UUID]), {"room": "a", "ids": [str(ONE_UUID)]}),
    (list[Shelf], pa.list_(SHELF), [Shelf("a", [])], [{"room": "a", "ids": []}]),
]


@pytest.mark.parametrize(("annotation", "arrow", "value", "stored"), COLUMNS, ids=[str(row[0]) for row in COLUMNS])
def test_each_annotation_has_its_column(annotation: Any, arrow: Any, value: Any, stored: Any) -> None:
    column = columns_of(make_dataclass("Given", [("field", annotation)]))["field"]
    assert column.arrow == arrow
    assert column.array([value, None]).to_pylist() == [stored, None]


class InModel(BaseModel):
    isbn: str
    paid: Decimal = Field(max_digits=10, decimal_places=2)


@attrs.define
class InAttrs:
    isbn: str
    paid: Annotated[Decimal, Field(max_digits=10, decimal_places=2)]


class InTyped(TypedDict):
    isbn: str
    paid: NotRequired[Annotated[Decimal, Field(max_digits=10, decimal_places=2)]]


@dataclass
class InDataclass:
    isbn: str
    paid: Annotated[Decimal, Field(max_digits=10, decimal_places=2)] = field(default=Decimal(0))


@pytest.mark.parametrize("kind", [InModel, InAttrs, InTyped, InDataclass])
def test_every_kind_of_class_has_columns(kind: type) -> None:
    found = {name: column.arrow for name, column in columns_of(kind).items()}
    assert found == {"isbn": pa.string(), "paid": pa.decimal128(10, 2)}


def test_a_nested_class_may_be_of_any_kind() -> None:
    whole = make_dataclass("Whole", [("model", InModel), ("attrs_", InAttrs), ("typed", InTyped)])
    columns = columns_of(whole)
    inner = {"isbn": "1", "paid": Decimal("1.50")}
    values = {"model": InModel(**inner), "attrs_": InAttrs(**inner), "typed": {"isbn": "1"}}
    assert columns["model"].array([values["model"]]).to_pylist() == [inner]
    assert columns["attrs_"].array([values["attrs_"]]).to_pylist() == [inner]
    assert columns["typed"].array([values["typed"]]).to_pylist() == [{"isbn": "1", "paid": None}]


class Pair(NamedTuple):
    left: int
    right: int


@pytest.mark.parametrize(
    "annotation",
    [
        dict,
        dict[str, int],
        Mapping[str, str],
        Any,
        object,
        int | str,
        tuple[int, str],
        Mixed,
        complex,
        Pair,
        list,
        bytes,
        Annotated[Decimal, Field(max_digits=77)],
        Annotated[Decimal, Field(decimal_places=39)],
    ],
)
def test_a_field_without_a_column_type_is_named(annotation: Any) -> None:
    inner = make_dataclass("Inner", [("field", annotation)])
    with pytest.raises(NoColumnError) as caught:
        columns_of(make_dataclass("Outer", [("inner", list[inner])]))  # type: ignore[valid-type]
    assert caught.value.field == "Inner.field"
    assert caught.value.annotation == annotation


def test_a_recursive_class_has_no_columns() -> None:
    with pytest.raises(NoColumnError, match=r"Node.below"):
        columns_of(Node)


@pytest.mark.parametrize("value", [Decimal("0.0000000000000000001"), Decimal("1e20"), Decimal("NaN")])
def test_digits_that_do_not_fit_a_column_raise_an_error(value: Decimal) -> None:
    column = columns_of(make_dataclass("Given", [("field", Decimal)]))["field"]
    make: Callable[[], Any] = lambda: column.array([Decimal(1), value])  # noqa: E731
    with pytest.raises(ValueError, match=r"."):
        make()


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, 1.5),
        (int, Decimal("1.50000000000000000001")),
        (int, Decimal("9007199254740993.5")),
        (int, Decimal("NaN")),
        (int, True),
        (list[int], [1, Decimal("1.50000000000000000001")]),
        (Floor, 0.5),
        (Floor, Decimal("0.5")),
        (Floor, True),
        (Literal[1, 2], 1.5),
        (Literal[1, 2] | None, 1.5),
        (list[Literal[1, 2]], [1, 1.5]),
        (Literal["a"], 1),
        (State, 1),
        (UUID, 5),
        (UUID, {"x": 1}),
        (list[UUID], [[1]]),
    ],
    ids=repr,
)
def test_a_value_of_another_type_is_refused_and_not_truncated(annotation: Any, value: Any) -> None:
    column = columns_of(make_dataclass("Given", [("field", annotation)]))["field"]
    with pytest.raises((ValueError, TypeError, ArithmeticError)):
        column.array([value])


@pytest.mark.parametrize("annotation", [int, Floor, Literal[5]])
@pytest.mark.parametrize("value", [5, 5.0, Decimal("5.0")])
def test_whole_numbers_are_accepted_in_any_notation(annotation: Any, value: Any) -> None:
    assert columns_of(make_dataclass("Given", [("field", annotation)]))["field"].array([value]).to_pylist() == [5]

"""Tables of events: the same rows and the same errors as if each event had been decoded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock_time
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, TypedDict
from uuid import UUID

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, field_validator

from opencqrs_py import Event
from opencqrs_py.errors import EventFormatError, HandlerSignatureError
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.processing.columns.columns import TableReader
from opencqrs_py.processing.decoding import decoder_for
from opencqrs_py.processing.tables import RowFailedError

NOON = "2026-03-01T12:00:00Z"


class State(Enum):
    LENT = "lent"
    LOST = "lost"


@dataclass
class Shelf:
    room: str
    height: Decimal


@dataclass(frozen=True)
class Loan:
    isbn: str
    copies: int
    weight: float
    paid: Decimal
    since: datetime
    due: date
    by: UUID
    state: State
    kind: Literal["a", "b"]
    shelf: Shelf
    parts: list[int]
    shelves: list[Shelf] = field(default_factory=list)
    note: str | None = None
    renewed: int = 0
    returned: datetime | None = None
    fine: Decimal | None = None
    fast: bool = False


GOOD: dict[str, Any] = {
    "isbn": "1",
    "copies": 2,
    "weight": 0.5,
    "paid": "12.50",
    "since": "2026-03-01T12:00:00.5+01:00",
    "due": "2026-04-01",
    "by": "00000000-0000-0000-0000-000000000001",
    "state": "lent",
    "kind": "a",
    "shelf": {"room": "x", "height": 1.1},
    "parts": [1, 2],
    "shelves": [{"room": "y", "height": "2"}],
}


def event(position: int, payload: str | None, time: str | None = NOON, kind: str = "lent") -> Event:
    return Event(position, f"id-{position}", "s", f"/books/{position}", kind, time, "application/json", payload, None)


def events(*payloads: Any) -> Chunk:
    texts = [one if isinstance(one, str) or one is None else json.dumps(one) for one in payloads]
    return Chunk([event(position, text) for position, text in enumerate(texts, 1)])


def reader(event_class: Any) -> TableReader:
    return TableReader(event_class, "handlers.py:7 (lent)")


def decoded_each(event_class: Any, chunk: Sequence[Event]) -> Any:
    """Return the table that the ordinary decoder gives."""
    return reader(event_class).of_events(chunk, [decoder_for(event_class)(one) for one in chunk])


# The contents of a table


def test_a_table_has_the_fields_of_the_class_and_three_event_columns() -> None:
    table = reader(Shelf).of_chunk(
        Chunk([event(7, '{"room":"a","height":1.10}'), event(9, '{"room":"b","height":2}', None)])
    )
    assert table.column_names == ["room", "height", "position", "subject", "time"]
    assert table.to_pydict() == {
        "room": ["a", "b"],
        "height": [Decimal("1.10"), Decimal(2)],
        "position": [7, 9],
        "subject": ["/books/7", "/books/9"],
        "time": [datetime(2026, 3, 1, 12, tzinfo=UTC), None],
    }


def test_without_a_class_the_data_are_a_text_column() -> None:
    table = reader(None).of_chunk(events({"a": 1.10}, None, "no JSON"))
    assert table.column_names == ["position", "type", "subject", "time", "data"]
    assert table.column("data").to_pylist() == ['{"a": 1.1}', None, "no JSON"]
    assert table.column("type").to_pylist() == ["lent"] * 3


def test_events_read_as_rows_become_tables_without_a_full_read() -> None:
    def whole(position: int) -> Event:
        raise AssertionError(position)

    rows = [(n, "lent", '{"room":"a","height":1}', f"/books/{n}", NOON) for n in (1, 2)]
    expected = reader(Shelf).of_chunk(events({"room": "a", "height": 1}, {"room": "a", "height": 1}))
    assert reader(Shelf).of_chunk(Chunk(rows, whole)) == expected
    assert reader(Shelf).of_events(list(Chunk(rows, whole)), [None, None]) == expected


def test_rows_without_times_are_read_in_full() -> None:
    chunk = events({"room": "a", "height": 1}, {"room": "a", "height": 1})
    rows = Chunk([(one.position, one.type, one.payload, one.subject) for one in chunk], lambda n: chunk[n - 1])
    assert reader(Shelf).of_chunk(rows) == reader(Shelf).of_chunk(chunk)


@pytest.mark.parametrize(
    ("time", "moment"),
    [
        ("2026-03-01T12:00:00.123456789Z", datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)),
        ("2026-03-01t12:00:00.1z", datetime(2026, 3, 1, 12, 0, 0, 100000, tzinfo=UTC)),
        ("2026-03-01T23:30:00-01:30", datetime(2026, 3, 2, 1, tzinfo=UTC)),
        ("2016-12-31T23:59:60Z", datetime(2017, 1, 1, tzinfo=UTC)),
        ("", None),
        (None, None),
    ],
)
def test_every_valid_event_time_becomes_a_timestamp(time: str | None, moment: datetime | None) -> None:
    table = reader(None).of_chunk(Chunk([event(1, None, time), event(2, None)]))
    assert table.column("time").to_pylist() == [moment, datetime(2026, 3, 1, 12, tzinfo=UTC)]


@pytest.mark.parametrize(
    ("event_class", "part"), [(None, "data"), (None, "subject"), (None, "type"), (Shelf, "subject")]
)
def test_an_event_whose_text_is_not_unicode_is_named(event_class: Any, part: str) -> None:
    right, data = event(1, '{"room":"a","height":1}'), '{"room":"b","height":1}'
    half = {"data": event(2, '{"room":"\ud83d"}'), "type": event(2, data, kind="\ud83d")}
    wrong = half.get(part) or event(2, data)._replace(subject="/\ud83d")
    with pytest.raises(RowFailedError) as caught:
        reader(event_class).of_chunk(Chunk([right, wrong, wrong]))
    assert isinstance(caught.value.error, EventFormatError)
    assert (caught.value.index, caught.value.error.code) == (1, "OCQ-210")
    assert f"the event's {part} " in caught.value.error.what
    assert "position 2" in caught.value.error.where


@pytest.mark.parametrize("time", ["yesterday", "0000-01-01T00:00:00Z", "2026-02-30T00:00:00Z", "\ud83d"])
def test_an_event_with_an_invalid_time_is_named(time: str) -> None:
    with pytest.raises(RowFailedError) as caught:
        reader(None).of_chunk(Chunk([event(1, None), event(2, None, time)]))
    assert caught.value.index == 1
    assert isinstance(caught.value.error, EventFormatError)
    assert caught.value.error.code == "OCQ-210"
    assert "position 2" in caught.value.error.where


# The fast path and the ordinary decoder

UNUSUAL: list[dict[str, Any]] = [
    {"copies": "3"},
    {"copies": 3.0},
    {"copies": True},
    {"copies": 2**63 - 1},
    {"weight": 1},
    {"weight": "1.5"},
    {"weight": 2**60 + 1},
    {"paid": 12.5},
    {"paid": 12},
    {"paid": " 1.5 "},
    {"paid": "1_0"},
    {"paid": "1e3"},
    {"since": 1_700_000_000},
    {"since": "2026-03-01 12:00Z"},
    {"since": "2026-03-01T12:00:00"},
    {"since": "2026-03-01T12:00:00.123456789Z"},
    {"since": "2026-03-01T12:00:00+0130"},
    {"due": "2026-04-01T00:00:00Z"},
    {"due": 86400 * 20_000},
    {"by": "00000000000000000000000000000001"},
    {"by": "{00000000-0000-0000-0000-000000000001}"},
    {"by": "ABCDEF00-0000-0000-0000-000000000001"},
    {"note": None},
    {"note": "x\u0000\ud83d\ude00"},
    {"renewed": 7},
    {"returned": "2026-03-01T12:00:00Z"},
    {"returned": None},
    {"fine": None},
    {"fine": 0.1},
    {"fast": "yes"},
    {"fast": 1},
    {"shelves": []},
    {"parts": [True]},
    {"parts": []},
    {"shelf": {"room": "x", "height": "0.1", "unknown": [1]}},
    {"unknown": {"a": 1}},
]


@pytest.mark.parametrize("change", UNUSUAL, ids=str)
def test_unusual_values_match_the_ordinary_decoder(change: Mapping[str, Any]) -> None:
    chunk = events(GOOD, GOOD | change)
    assert reader(Loan).of_chunk(chunk) == decoded_each(Loan, chunk)


def test_ordinary_values_are_read_without_creating_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    made = reader(Loan)
    expected = decoded_each(Loan, events(GOOD, GOOD | {"note": "x", "fast": True}))
    monkeypatch.setattr(made, "_decoded", lambda *_: pytest.fail("decoded"))
    assert made.of_chunk(events(GOOD, GOOD | {"note": "x", "fast": True})) == expected


def test_digits_beyond_float_precision_are_kept() -> None:
    texts = [json.dumps(GOOD).replace('"12.50"', number) for number in ("12345678901234567890.123456789", "0.1")]
    table = reader(Loan).of_chunk(events(*texts))
    assert table.column("paid").to_pylist() == [Decimal("12345678901234567890.123456789"), Decimal("0.1")]


WRONG: list[Any] = [
    GOOD | {"copies": "x"},
    GOOD | {"copies": None},
    GOOD | {"copies": 1.5},
    GOOD | {"isbn": 5},
    GOOD | {"state": "gone"},
    GOOD | {"kind": "c"},
    GOOD | {"paid": "NaN"},
    GOOD | {"since": "0000-01-01T00:00:00Z"},
    GOOD | {"since": "2026-03-01T12:00:00+99:00"},
    GOOD | {"due": "2026-02-30"},
    GOOD | {"shelf": None},
    GOOD | {"parts": [1, None]},
    {name: value for name, value in GOOD.items() if name != "isbn"},
    "{",
    '{"isbn": "\\ud800"}',
    "[]",
    "null",
    "",
    '{"a":1}{"a":2}',
    None,
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_a_malformed_row_raises_the_error_of_the_ordinary_decoder(wrong: Any) -> None:
    chunk = events(GOOD, wrong, GOOD)
    with pytest.raises(EventFormatError) as expected:
        decoder_for(Loan)(chunk[1])
    with pytest.raises(RowFailedError) as caught:
        reader(Loan).of_chunk(chunk)
    assert caught.value.index == 1
    assert type(caught.value.error) is EventFormatError
    assert str(caught.value.error) == str(expected.value)


@pytest.mark.parametrize(
    ("change", "column"),
    [
        ({"copies": 2**63}, "copies does not fit its column of int64"),
        ({"paid": "1e20"}, "paid does not fit its column of decimal128(38, 18)"),
        ({"paid": "0.0000000000000000001"}, "paid does not fit its column of decimal128(38, 18)"),
        ({"parts": [2**70]}, "parts does not fit its column of list<item: int64>"),
    ],
)
def test_a_value_that_does_not_fit_its_column_is_refused(change: Mapping[str, Any], column: str) -> None:
    with pytest.raises(RowFailedError) as caught:
        reader(Loan).of_chunk(events(GOOD, GOOD | change))
    error = caught.value.error
    assert isinstance(error, EventFormatError)
    assert (error.code, caught.value.index) == ("OCQ-239", 1)
    assert error.what.startswith(column)
    assert "position 2" in error.where


TEXTS = st.text(max_size=5) | st.sampled_from(["lent", "a", NOON, "2026-03-01", "12.5", "1e400", "true", GOOD["by"]])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["room", "height"]), inner, max_size=2),
    max_leaves=3,
)


@given(
    changes=st.lists(
        st.dictionaries(st.sampled_from([*GOOD, "note", "fine", "fast", "renewed"]), JSON, max_size=2), max_size=3
    )
)
def test_the_fast_path_gives_the_same_table_as_the_decoder(changes: list[dict[str, Any]]) -> None:
    chunk = events(GOOD, *(GOOD | change for change in changes))
    try:
        found = reader(Loan).of_chunk(chunk)
    except RowFailedError as failed:
        with pytest.raises((EventFormatError, RowFailedError)):
            decoded_each(Loan, chunk[failed.index : failed.index + 1])
    else:
        assert found == decoded_each(Loan, chunk)


@dataclass(kw_only=True)
class FirstHalf:
    last: str = "last"


@dataclass
class Whole(FirstHalf):
    first: str
    second: str


class Reordered(BaseModel):
    last: str = "last"
    first: str
    second: str


@pytest.mark.parametrize("event_class", [Whole, Reordered])
def test_each_value_is_in_the_column_of_its_field_in_any_order(event_class: type) -> None:
    data = {"second": "2", "first": "1", "last": "3"}
    outer = make_dataclass("Outer", [("inner", event_class)])
    assert reader(event_class)._quick is not None
    (row,) = reader(event_class).of_chunk(events(data)).to_pylist()
    (with_inner,) = reader(outer).of_chunk(events({"inner": data})).to_pylist()
    for found in (row, with_inner["inner"]):
        assert {name: found[name] for name in data} == data


# Classes with conversions and checks


class Checked(BaseModel):
    isbn: str
    copies: int

    @field_validator("copies")
    @classmethod
    def doubled(cls, value: int) -> int:
        if value < 0:
            raise ValueError("there are none")
        return 2 * value


class Aliased(BaseModel):
    isbn: str = Field(alias="ISBN")
    copies: int = 1


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    isbn: str
    copies: int


@dataclass
class After:
    isbn: str
    copies: int

    def __post_init__(self) -> None:
        self.isbn = self.isbn.upper()


@attrs.define
class WithAttrs:
    isbn: str
    copies: int


class AsTypedDict(TypedDict):
    isbn: str
    copies: int


class Bounded(BaseModel):
    isbn: str = Field(max_length=2)
    copies: int = Field(ge=0)


@dataclass
class Marker:
    pass


@dataclass
class Marked:
    isbn: Marker | None
    copies: int = 0


@pytest.mark.parametrize(
    ("event_class", "data", "row"),
    [
        (Checked, {"isbn": "a", "copies": 2}, ("a", 4)),
        (Aliased, {"ISBN": "a", "copies": 2}, ("a", 2)),
        (Strict, {"isbn": "a", "copies": 2}, ("a", 2)),
        (After, {"isbn": "a", "copies": 2}, ("A", 2)),
        (WithAttrs, {"isbn": "a", "copies": 2}, ("a", 2)),
        (AsTypedDict, {"isbn": "a", "copies": 2}, ("a", 2)),
        (AsTypedDict, {"isbn": "a"}, ("a", None)),
        (Bounded, {"isbn": "a", "copies": 2}, ("a", 2)),
        (Marked, {"isbn": {"x": 1}}, ({}, 0)),
        (Marked, {"isbn": None}, (None, 0)),
    ],
)
def test_classes_that_convert_or_validate_values_are_decoded(event_class: Any, data: Any, row: tuple[Any, ...]) -> None:
    table = reader(event_class).of_chunk(events(data, data))
    assert [(one["isbn"], one["copies"]) for one in table.to_pylist()] == [row, row]


@pytest.mark.parametrize(
    ("event_class", "wrong", "code"),
    [
        (Checked, {"isbn": "a", "copies": -1}, "OCQ-211"),
        (Strict, {"isbn": "a", "copies": 1, "more": 1}, "OCQ-211"),
        (Bounded, {"isbn": "abc", "copies": 1}, "OCQ-211"),
        (WithAttrs, {"isbn": "a"}, "OCQ-211"),
        (WithAttrs, {"isbn": 5, "copies": 1}, "OCQ-239"),
        (AsTypedDict, {"isbn": 5, "copies": 1}, "OCQ-239"),
        (AsTypedDict, [], "OCQ-211"),
        (AsTypedDict, None, "OCQ-210"),
    ],
)
def test_errors_of_decoded_classes_name_the_event(event_class: Any, wrong: Any, code: str) -> None:
    right = {"isbn": "a", "copies": 1}
    with pytest.raises(RowFailedError) as caught:
        reader(event_class).of_chunk(events(right, right, wrong))
    assert isinstance(caught.value.error, EventFormatError)
    assert (caught.value.index, caught.value.error.code) == (2, code)


def typed_dict(annotation: Any) -> Any:
    return TypedDict("Given", {"value": annotation})  # type: ignore[operator] # made by hand


def attrs_class(annotation: Any) -> Any:
    return attrs.make_class("Given", {"value": attrs.field(type=annotation)})


@pytest.mark.parametrize("make", [typed_dict, attrs_class])
@pytest.mark.parametrize("annotation", [int, Literal[1, 2]])
@pytest.mark.parametrize("number", ["1.5", "1.50000000000000000001", "9007199254740993.5"])
def test_a_fraction_with_any_number_of_digits_is_refused_for_an_integer(
    make: Callable[[Any], Any], annotation: Any, number: str
) -> None:
    with pytest.raises(RowFailedError) as caught:
        reader(make(annotation)).of_chunk(events('{"value": 1}', f'{{"value": {number}}}'))
    assert (caught.value.index, "it is not a whole number" in str(caught.value.error)) == (1, True)


@pytest.mark.parametrize("make", [typed_dict, attrs_class])
@pytest.mark.parametrize(
    ("annotation", "wrong", "why"),
    [
        (int, 1.5, "it is not a whole number"),
        (int | None, 1.5, "it is not a whole number"),
        (Literal[1, 2], 1.5, "it is not a whole number"),
        (UUID, {"a": 1}, "dict is not a UUID"),
        (float, True, "bool is not a number"),
        (datetime, 1_700_000_000, "int is not a datetime"),
        (datetime | None, 1_700_000_000, "int is not a datetime"),
        (date, 19_000, "int is not a date"),
        (clock_time, 43_200, "int is not a time"),
        (timedelta, 1.5, "float is not a timedelta"),
        (list[int], [1, 1.5], "it is not a whole number"),
        (list[str], "ab", "str is not a list"),
        (tuple[str, ...], {"a": 1}, "dict is not a list"),
    ],
)
def test_a_value_that_arrow_would_convert_is_refused(make: Any, annotation: Any, wrong: Any, why: str) -> None:
    with pytest.raises(RowFailedError) as caught:
        reader(make(annotation)).of_chunk(events({"value": None}, {"value": wrong}))
    error = caught.value.error
    assert isinstance(error, EventFormatError)
    assert (error.code, caught.value.index, why in error.what) == ("OCQ-239", 1, True)


@pytest.mark.parametrize(("annotation", "right"), [(int, 2.0), (float, 3), (list[str], ["ab"]), (list[float], [1])])
def test_a_value_that_arrow_keeps_unchanged_is_accepted(annotation: Any, right: Any) -> None:
    assert reader(typed_dict(annotation)).of_chunk(events({"value": right}))["value"].to_pylist() == [right]


def test_a_time_whose_offset_does_not_fit_a_column_is_refused() -> None:
    event_class = make_dataclass("Opened", [("value", clock_time)])
    assert reader(event_class).of_chunk(events({"value": "12:00"}))["value"].to_pylist() == [clock_time(12)]
    with pytest.raises(RowFailedError) as caught:
        reader(event_class).of_chunk(events({"value": "12:00:00+02:00"}))
    assert "its offset would be lost" in str(caught.value.error)


# Refused at startup


@dataclass
class WithExtra:
    isbn: str
    extra: dict[str, Any]


@dataclass
class WithTime:
    time: datetime


@pytest.mark.parametrize(
    ("event_class", "what", "fix"),
    [
        (WithExtra, "WithExtra.extra: dict[str, typing.Any] cannot become a column", 'name types=["…"]'),
        (WithTime, "the field time of WithTime has the name of the event's own column", 'validation_alias="time"'),
    ],
)
def test_a_class_whose_fields_cannot_be_columns_is_refused(event_class: type, what: str, fix: str) -> None:
    with pytest.raises(HandlerSignatureError) as caught:
        reader(event_class)
    assert (caught.value.code, caught.value.what) == ("OCQ-238", what)
    assert fix in caught.value.fix
    assert caught.value.where == "handlers.py:7 (lent)"

"""Exact numbers: money and large ids reach handlers with all digits, on every path from the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, make_dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, List, Literal, NewType, NotRequired, Required, TypedDict, TypeVar  # noqa: UP035 as users do
from uuid import UUID

import attrs
import pytest
import typing_extensions
from pydantic import BaseModel, BeforeValidator, ConfigDict
from typing_extensions import ReadOnly, TypeAliasType

from opencqrs_py import Event, Metadata, Upcast
from opencqrs_py.errors import EventFormatError, HandlerSignatureError
from opencqrs_py.model import Upcaster, json_text
from opencqrs_py.model import chunk as chunks
from opencqrs_py.model.chunk import Chunk
from opencqrs_py.processing import decoding
from opencqrs_py.processing.binding import NothingProvided
from opencqrs_py.processing.decoding import (
    QuickDecoders,
    TypeDecoders,
    decodable,
    decoder_for,
    quick_decoders_for,
    yields_others,
)
from opencqrs_py.processing.event_types import EventTypes
from opencqrs_py.processing.reading import Reading, Upcasters
from opencqrs_py.processing.sequence_resolvers import PerDataField, PerMetadataKey

if TYPE_CHECKING:
    from fractions import Fraction


@dataclass
class Line:
    price: Decimal


@dataclass
class Sold:
    price: Decimal
    copies: int = 0
    rate: float = 0.0
    lines: tuple[Line, ...] = ()


class SoldModel(BaseModel):
    price: Decimal
    copies: int = 0
    rate: float = 0.0
    lines: list[Line] = []


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    price: Decimal
    copies: int = 0
    rate: float = 0.0
    lines: tuple[Line, ...] = ()


@attrs.frozen
class SoldAttrs:
    price: Decimal
    copies: int = 0
    rate: float = 0.0
    lines: Any = ()


@attrs.frozen
class Converting:
    price: Decimal = attrs.field(converter=Decimal)
    copies: int = 0
    rate: float = attrs.field(default=0.0, converter=float)
    lines: Any = ()


class LineDict(TypedDict):
    price: Decimal


class SoldDict(TypedDict):
    price: Annotated[Decimal, "EUR"]
    copies: int
    rate: NotRequired[float]
    lines: list[LineDict]


@dataclass
class Counted:
    copies: int


CLASSES: list[Any] = [Sold, SoldModel, Strict, SoldAttrs, Converting, SoldDict]
PRICES = ["0.1", "12.50", "12345678901234567.89", "0.30000000000000000001", "-99999999999999999999.99", "5", "1e2"]
COPIES = [0, 2**63, 2**64, -(2**63) - 1, 10**30]


def event(data: str | None, extensions: str | None = None, event_type: str = "sold") -> Event:
    return Event(7, "4711", "s", "/books/1", event_type, None, "application/json", data, extensions)


def plain(data: str) -> Event:
    return event(data)


def enveloped(data: str) -> Event:
    return Reading(enveloped=True).read(event(f'{{"metadata": {{"by": null}}, "payload": {data}}}'))[0]


def passed_on(data: dict[str, Any]) -> Upcast:
    return Upcast("sold", {**data, "note": None})


def rebuilt(data: dict[str, Any]) -> Upcast:
    lines = [{"price": Decimal(str(line["price"]))} for line in data["lines"]]
    return Upcast("sold", {**data, "price": Decimal(str(data["price"])), "lines": lines})


def upcast_by(call: Callable[..., Any], *, enveloped: bool = False) -> Callable[[str], Event]:
    upcasters = Upcasters([Upcaster(("sold.v1",), call, "upcasters.py:1")], NothingProvided())

    def read(data: str) -> Event:
        stored = f'{{"payload": {data}}}' if enveloped else data
        return Reading(upcasters, enveloped=enveloped).read(event(stored, event_type="sold.v1"))[0]

    return read


WAYS = {
    "plain": plain,
    "envelope": enveloped,
    "upcaster": upcast_by(passed_on),
    "upcaster that rebuilds": upcast_by(rebuilt),
    "envelope and upcaster": upcast_by(passed_on, enveloped=True),
}


def decoders(event_class: type) -> list[Callable[[Event], Any]]:
    quick = quick_decoders_for(event_class)
    if quick is None:
        return [decoder_for(event_class)]
    of_chunks = TypeDecoders().with_type("sold", quick)
    return [
        decoder_for(event_class),
        lambda one: quick.exact(one.payload),
        lambda one: Chunk([one]).decoded(*of_chunks)[0],
    ]


def some(decoders: QuickDecoders | None) -> QuickDecoders:
    assert decoders is not None
    return decoders


def of(decoded: Any, name: str) -> Any:
    return decoded[name] if isinstance(decoded, Mapping) else getattr(decoded, name)


@pytest.mark.parametrize("price", PRICES)
@pytest.mark.parametrize("event_class", CLASSES)
@pytest.mark.parametrize("way", WAYS)
def test_a_decimal_keeps_all_written_digits(way: str, event_class: Any, price: str) -> None:
    read = WAYS[way](f'{{"price": {price}, "copies": 1, "rate": 2.5, "lines": []}}')
    for decode in decoders(event_class):
        found = of(decode(read), "price")
        assert (type(found), found) == (Decimal, Decimal(price))


LONG = "12345678901234567.25"


@pytest.mark.parametrize(("first", "second"), [(LONG, "1.5"), ("1.5", LONG), (LONG, LONG)])
@pytest.mark.parametrize("other", CLASSES)
def test_one_long_number_is_exact_among_the_events_of_a_chunk(other: Any, first: str, second: str) -> None:
    prices = ["1.5"] * 120 + [first, second] + ["1.5"] * 120
    chunk = Chunk(
        [
            event(f'{{"price": {price}, "copies": 1, "rate": 2.5, "lines": []}}', event_type=f"sold.v{number % 2}")
            for number, price in enumerate(prices)
        ]
    )
    as_dict = some(quick_decoders_for(dict))
    decoders = TypeDecoders().with_type("sold.v0", as_dict).with_type("sold.v1", quick_decoders_for(other) or as_dict)
    found = chunk.decoded(*decoders)
    assert [Decimal(str(of(one, "price"))) for one in found] == [*map(Decimal, prices)]


@pytest.mark.parametrize(("event_class", "checks"), [(dict, 3), (Sold, 3), (SoldDict, 3), (Line, 3), (Counted, 0)])
def test_digits_are_checked_for_many_events_at_once(
    monkeypatch: pytest.MonkeyPatch, event_class: Any, checks: int
) -> None:
    checked: list[bytes] = []
    for module in (chunks, decoding, json_text):
        monkeypatch.setattr(module, "loses_digits", lambda text: bool(checked.append(text)))
    decoders = TypeDecoders().with_type("sold", some(quick_decoders_for(event_class)))
    chunk = Chunk([event('{"price": 1.5, "copies": 1, "lines": []}')] * 250)
    assert len(chunk.decoded(*decoders)) == 250
    assert len(checked) == checks


@pytest.mark.parametrize("copies", COPIES)
@pytest.mark.parametrize("event_class", [*CLASSES, dict, object])
@pytest.mark.parametrize("way", WAYS)
def test_a_whole_number_of_any_size_is_exact(way: str, event_class: Any, copies: int) -> None:
    read = WAYS[way](f'{{"price": 1.5, "copies": {copies}, "rate": 2.5, "lines": []}}')
    for decode in decoders(event_class):
        found = of(decode(read), "copies")
        assert (type(found), found) == (int, copies)


@pytest.mark.parametrize("event_class", CLASSES)
@pytest.mark.parametrize("way", WAYS)
def test_a_float_stays_a_float_next_to_long_numbers(way: str, event_class: Any) -> None:
    read = WAYS[way]('{"price": 12345678901234567.89, "copies": 1, "rate": 0.1234567890123456789, "lines": []}')
    for decode in decoders(event_class):
        found = of(decode(read), "rate")
        assert (type(found), found) == (float, 0.12345678901234568)


@pytest.mark.parametrize("event_class", [Sold, SoldModel, Strict, SoldDict])
@pytest.mark.parametrize("way", WAYS)
def test_numbers_within_lists_and_objects_are_exact(way: str, event_class: Any) -> None:
    prices = ["0.1", "12345678901234567.89"]
    lines = ", ".join(f'{{"price": {price}}}' for price in prices)
    read = WAYS[way](f'{{"price": 1, "copies": 1, "lines": [{lines}]}}')
    for decode in decoders(event_class):
        assert [of(line, "price") for line in of(decode(read), "lines")] == list(map(Decimal, prices))


@pytest.mark.parametrize("event_class", [dict, object, Mapping])
@pytest.mark.parametrize("way", [plain, enveloped])
def test_numbers_in_a_dict_become_decimals_only_if_needed_to_keep_their_digits(
    way: Callable[[str], Event], event_class: Any
) -> None:
    read = way('{"few": 0.1, "many": 12345678901234567.89, "zeros": 1.50000000000000000000, "whole": 5}')
    for decode in decoders(event_class):
        found = decode(read)
        assert found == {"few": 0.1, "many": Decimal("12345678901234567.89"), "zeros": 1.5, "whole": 5}
        assert [type(value) for value in found.values()] == [float, Decimal, float, int]


@pytest.mark.parametrize("event_class", [Sold, SoldModel, SoldAttrs, SoldDict])
def test_a_decimal_may_be_written_as_a_text(event_class: Any) -> None:
    read = plain('{"price": "12345678901234567.89", "copies": 1, "lines": []}')
    for decode in decoders(event_class):
        assert of(decode(read), "price") == Decimal("12345678901234567.89")


@pytest.mark.parametrize("event_class", [Sold, SoldModel, Strict, SoldAttrs, SoldDict])
@pytest.mark.parametrize("price", ['"much"', '"NaN"', '"Infinity"'])
def test_a_text_that_is_not_a_number_is_refused_for_a_decimal(event_class: Any, price: str) -> None:
    with pytest.raises(EventFormatError, match="OCQ-211"):
        decoder_for(event_class)(plain(f'{{"price": {price}, "copies": 1, "lines": []}}'))


def test_a_strict_class_stays_strict_about_long_numbers() -> None:
    for long in ("1.5", "12345678901234567.89"):
        with pytest.raises(EventFormatError, match="OCQ-211"):
            decoder_for(Strict)(plain(f'{{"price": {long}, "rate": "2.5"}}'))


IN_UNIONS = [
    (date | datetime, '"2026-01-02T00:00:00"'),
    (UUID | str, '"550e8400-e29b-41d4-a716-446655440000"'),
    (datetime | str, '"2026-01-02T03:04:05Z"'),
    (timedelta | str | None, '"PT1H"'),
    (Decimal | str, '"1.50"'),
    (Decimal | float, "5"),
    (float | Decimal, '"1.5"'),
    (list[date | str], '["2026-01-02", "soon"]'),
    (str | Decimal, '"1.5"'),
    (Sequence[date | str], '["2026-01-02"]'),
]


@pytest.mark.parametrize(("annotation", "value"), IN_UNIONS)
def test_a_long_number_changes_no_other_value_of_its_event(annotation: Any, value: str) -> None:
    event_class = make_dataclass("Paid", [("price", Decimal), ("other", annotation)])
    for decode in decoders(event_class):
        usual = decode(plain(f'{{"price": 1.5, "other": {value}}}'))
        found = decode(plain(f'{{"price": 12345678901234567.89, "other": {value}}}'))
        assert (found.price, repr(found.other)) == (Decimal("12345678901234567.89"), repr(usual.other))


class Noted(BaseModel):
    model_config = ConfigDict(extra="allow")
    price: Decimal


@pytest.mark.parametrize(
    "event_class",
    [
        make_dataclass("Loose", [("price", Decimal), ("other", Any)]),
        make_dataclass("Texts", [("price", Decimal), ("other", str | Decimal)]),
        make_dataclass("Times", [("price", Decimal), ("other", datetime | Decimal)]),
        make_dataclass("Own", [("price", Decimal), ("other", Annotated[Decimal, BeforeValidator(abs)])]),
        Noted,
        make_dataclass("Doubtful", [("price", Decimal), ("other", Decimal | str | None)]),
    ],
)
def test_a_long_number_stays_a_number_in_fields_that_also_accept_text(event_class: Any) -> None:
    for decode in decoders(event_class):
        found = decode(plain('{"price": 1, "other": 12345678901234567.89}'))
        assert found.other == Decimal("12345678901234567.89")


class Cash(TypedDict):
    kind: Literal["cash"]
    amount: Decimal
    drawer: NotRequired[int]


class Card(TypedDict):
    kind: Literal["card"]
    number: int


class Voucher(TypedDict, total=False):
    code: Annotated[Required[str], "upper case"]
    worth: Decimal


class Receipt(TypedDict):
    paid: Cash | Card | Voucher | None
    tip: NotRequired[Decimal | None]
    change: NotRequired[float | Decimal]
    rates: NotRequired[dict[str, Decimal]]
    scores: NotRequired[dict[str, float | None]]
    of: NotRequired[list[Receipt] | None]
    note: NotRequired[Decimal | str]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ('{"paid": {"kind": "cash", "amount": 0.1}}', {"paid": {"kind": "cash", "amount": Decimal("0.1")}}),
        ('{"paid": {"kind": "card", "number": 5}}', {"paid": {"kind": "card", "number": 5}}),
        ('{"paid": {"code": "A", "worth": 0.1}}', {"paid": {"code": "A", "worth": Decimal("0.1")}}),
        ('{"paid": {"worth": 0.1}}', {"paid": {"worth": 0.1}}),
        ('{"paid": {"kind": "gold", "amount": 0.1}}', {"paid": {"kind": "gold", "amount": 0.1}}),
        ('{"paid": null, "tip": 0.5}', {"paid": None, "tip": Decimal("0.5")}),
        ('{"paid": null, "tip": null}', {"paid": None, "tip": None}),
        ('{"paid": null, "change": 0.5}', {"paid": None, "change": 0.5}),
        ('{"paid": null, "rates": {"a": 0.5}}', {"paid": None, "rates": {"a": Decimal("0.5")}}),
        ('{"paid": null, "scores": {"a": 0.12345678901234567}}', {"paid": None, "scores": {"a": 0.12345678901234567}}),
        ('{"paid": null, "of": [{"paid": null, "tip": 1}]}', {"paid": None, "of": [{"paid": None, "tip": Decimal(1)}]}),
        ('{"paid": null, "of": null}', {"paid": None, "of": None}),
        ('{"paid": null, "note": "1.5"}', {"paid": None, "note": "1.5"}),
        ('{"paid": null, "note": 1.5}', {"paid": None, "note": Decimal("1.5")}),
        ('{"paid": null, "rates": 5, "more": 0.5}', {"paid": None, "rates": 5, "more": 0.5}),
    ],
)
def test_numbers_of_a_typed_dict_follow_its_annotations(data: str, expected: Any) -> None:
    for decode in decoders(Receipt):
        found = decode(plain(data))
        assert repr(found) == repr(expected)


Money = NewType("Money", Decimal)
Price = TypeAliasType("Price", Decimal)
MaybePrice = TypeAliasType("MaybePrice", Decimal | None)
Euros = TypeAliasType("Euros", Annotated[Decimal, "EUR"])
PricesByShop = TypeAliasType("PricesByShop", dict[str, list[Euros]])
T = TypeVar("T")
Pair = TypeAliasType("Pair", tuple[T, T], type_params=(T,))


class Coin(typing_extensions.TypedDict):
    value: Decimal


class Named(typing_extensions.TypedDict, total=False):
    money: Money
    tip: Money | None
    price: Price
    maybe: MaybePrice
    euros: Euros
    shops: PricesByShop
    both: Pair[Decimal]
    fixed: ReadOnly[Decimal]
    coin: Coin
    coins: list[Coin]
    all: tuple[Decimal, ...]
    pair: tuple[int, Decimal]
    one_of: set[Decimal]
    of: MutableMapping[str, Money]
    bare: List  # type: ignore[type-arg] # noqa: UP006 as users write it
    nothing: tuple[()]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ('{"money": 1.5}', {"money": Decimal("1.5")}),
        ('{"tip": 1.5}', {"tip": Decimal("1.5")}),
        ('{"tip": null}', {"tip": None}),
        ('{"price": 1.5}', {"price": Decimal("1.5")}),
        ('{"maybe": 1.5}', {"maybe": Decimal("1.5")}),
        ('{"euros": 1.5}', {"euros": Decimal("1.5")}),
        ('{"shops": {"a": [1.5]}}', {"shops": {"a": [Decimal("1.5")]}}),
        ('{"both": [1.5, 2.5]}', {"both": [Decimal("1.5"), Decimal("2.5")]}),
        ('{"fixed": 1.5}', {"fixed": Decimal("1.5")}),
        ('{"coin": {"value": 1.5}}', {"coin": {"value": Decimal("1.5")}}),
        ('{"coins": [{"value": 1.5}]}', {"coins": [{"value": Decimal("1.5")}]}),
        ('{"all": [1.5]}', {"all": [Decimal("1.5")]}),
        ('{"pair": [1, 1.5, 2.5]}', {"pair": [1, Decimal("1.5"), 2.5]}),
        ('{"pair": 1.5}', {"pair": 1.5}),
        ('{"one_of": [1.5]}', {"one_of": [Decimal("1.5")]}),
        ('{"of": {"a": 1.5}}', {"of": {"a": Decimal("1.5")}}),
        ('{"bare": [1.5], "nothing": []}', {"bare": [1.5], "nothing": []}),
    ],
)
def test_a_decimal_is_recognized_under_any_alias_and_in_any_collection(data: str, expected: Any) -> None:
    for decode in decoders(Named):
        assert repr(decode(plain(data))) == repr(expected)


def test_a_typed_dict_of_typing_extensions_is_an_event_class() -> None:
    assert decodable(Named)
    assert not yields_others(Named)
    assert EventTypes(mapped={"t": Named}).class_for([Named], "t") is Named


Nested = TypeAliasType("Nested", "dict[str, Nested]")  # type: ignore[misc] # it holds itself


class Tree(TypedDict):
    root: Nested


def test_a_recursive_alias_is_left_unchanged() -> None:
    for decode in decoders(Tree):
        assert decode(plain('{"root": {"a": {}}}')) == {"root": {"a": {}}}


class OnlyForCheckers(TypedDict):
    price: Fraction


@attrs.frozen
class AttrsOnlyForCheckers:
    price: Fraction


@pytest.mark.parametrize("event_class", [OnlyForCheckers, AttrsOnlyForCheckers])
def test_unreadable_annotations_are_refused_at_startup(event_class: Any) -> None:
    with pytest.raises(HandlerSignatureError, match="name 'Fraction' is not defined") as caught:
        decoder_for(event_class)
    assert caught.value.code == "OCQ-208"


@pytest.mark.parametrize("number", ["18446744073709551616", "18446744073709551617", "12345678901234567.89", "0.1"])
def test_a_sequence_id_keeps_all_digits_of_a_number(number: str) -> None:
    assert PerDataField(("a", "b"))(event(f'{{"a": {{"b": {number}}}}}')) == number
    assert PerMetadataKey("key")(event(None, f'{{"key": {number}}}')) == number
    assert PerDataField(("a",))(event(f'{{"a": {{"z": {number}, "b": 1}}}}')) == f'{{"b":1,"z":{number}}}'


def test_numbers_in_metadata_are_exact_too() -> None:
    found = Reading(enveloped=True).read(event('{"payload": 1, "metadata": {"id": 18446744073709551617}}'))[0]
    assert found.metadata == Metadata(id=18446744073709551617)


def test_an_unparsable_number_raises_an_error_that_names_the_event() -> None:
    for decode in (decoder_for(dict), decoder_for(object)):
        with pytest.raises(EventFormatError, match=r"OCQ-210.* data are not JSON"):
            decode(plain(f'{{"a": {"9" * 5_000}}}'))

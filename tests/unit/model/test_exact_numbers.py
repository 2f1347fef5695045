"""Numbers in events: kept to the last digit, however many digits they have."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opencqrs_py.adapters.files import event_line
from opencqrs_py.model.cloudevents import parse_event, write_event
from opencqrs_py.model.json_text import exact_members, loses_digits

KEPT = [
    "0",
    "-1.5",
    "0.30000000000000004",
    "18446744073709551615",
    "-9223372036854775808",
    '"123456789012345678901234567890"',
    '"price: 1.2.3.4.5.6.7.8.9.10"',
    '"12345678901234567890.5"',
]
LOST = [
    "18446744073709551616",
    "-9223372036854775809",
    "12345678901234567890123",
    "0.1234567890123456789",
    "62.590000000000003",
    "1234567.12345678901e3",
    "1.2345678901234567e-300",
]


def line(data: str, **more: str) -> bytes:
    members = {"id": '"1"', "source": '"s"', "type": '"t"', "data": data, **more}
    return ("{" + ", ".join(f'"{name}": {value}' for name, value in members.items()) + "}").encode()


@pytest.mark.parametrize("number", KEPT)
def test_a_number_that_the_parser_keeps_needs_no_special_handling(number: str) -> None:
    assert not loses_digits(line(number))
    assert orjson.loads(parse_event(line(number)).payload or "") == json.loads(number)


@pytest.mark.parametrize("number", LOST)
def test_a_number_that_the_parser_would_round_keeps_its_digits(number: str) -> None:
    assert parse_event(line(number)).payload == number
    assert (
        parse_event(line(f'{{"a": [1, {number}], "b": " : ,\\" "}}')).payload == f'{{"a":[1,{number}],"b":" : ,\\" "}}'
    )
    assert parse_event(line("1", extra=number, other='"x"')).extensions == f'{{"extra":{number},"other":"x"}}'
    assert parse_event(line(number).decode()) == parse_event(line(number))


@pytest.mark.parametrize("number", LOST)
@pytest.mark.parametrize("space", ["", "\n"])
def test_a_number_that_the_parser_would_round_is_written_as_it_was_read(number: str, space: str) -> None:
    event = parse_event(line(f'{{"a":{number},"b":[" \\n "]}}', extra=f"[{number}]", other="1"))
    kept = event._replace(payload=(event.payload or "").replace(",", f",{space}"))
    assert parse_event(event_line(kept)) == event
    assert event_line(kept).count(b"\n") == 1
    assert parse_event(orjson.dumps(write_event(kept))) == event


@pytest.mark.parametrize("number", LOST)
def test_data_that_are_a_number_are_written_as_they_were_read(number: str) -> None:
    event = parse_event(line(number))
    assert parse_event(orjson.dumps(write_event(event))) == parse_event(event_line(event)) == event


def test_core_attributes_are_not_extensions_and_null_means_no_data() -> None:
    event = parse_event(line("null", specversion='"1.0"', subject='"/a"', x="12345678901234567890123"))
    assert (event.subject, event.payload, event.extensions) == ("/a", None, '{"x":12345678901234567890123}')


NUMBERS = st.decimals(allow_nan=False, allow_infinity=False, places=12) | st.integers().map(Decimal)
VALUES: st.SearchStrategy[Any] = st.recursive(
    NUMBERS.map(lambda number: f"{number:f}") | st.text(max_size=30).map(json.dumps),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda some: "[ " + " ,\t".join(some) + " ]")
        | st.dictionaries(st.text(max_size=3).map(json.dumps), inner, max_size=3).map(
            lambda some: "{" + " , ".join(f"{name} : {value}" for name, value in some.items()) + " }"
        )
    ),
    max_leaves=6,
)


def exactly(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


@given(data=VALUES, extra=VALUES)
@example(data='"\\\\"', extra="0.12345678901234567890")
def test_an_event_has_exactly_the_values_of_its_line(data: str, extra: str) -> None:
    event = parse_event(line(data, extra=extra))
    assert exactly(event.payload or "null") == exactly(data) or not loses_digits(line(data, extra=extra))
    members = exact_members(line(data, extra=extra))
    assert (exactly(members["data"]), exactly(members["extra"])) == (exactly(data), exactly(extra))
    assert members.keys() == {"id", "source", "type", "data", "extra"}

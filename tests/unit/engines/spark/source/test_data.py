"""Events' data as typed columns."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.engines.spark.source.data import MOMENT, DataColumns, moments
from opencqrs_py.engines.spark.source.ddl import parse_ddl
from opencqrs_py.errors import EngineError
from opencqrs_py.model.times import microseconds


def parsed(ddl, *payloads):
    arrays = DataColumns(parse_ddl(ddl).fields).arrays(range(1, len(payloads) + 1), payloads)
    return [array.to_pylist() for array in arrays]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("STRING", '"a\\n\\ud83d\\ude00"', "a\n😀"),
        ("BIGINT", "-9223372036854775808", -(2**63)),
        ("INT", "12", 12),
        ("DOUBLE", "1.5e3", 1500.0),
        ("DOUBLE", "3", 3.0),
        ("BOOLEAN", "true", True),
        (
            "DECIMAL(38,18)",
            "12345678901234567890.123456789012345678",
            Decimal("12345678901234567890.123456789012345678"),
        ),
        ("DECIMAL(10,2)", '"1.50"', Decimal("1.50")),
        ("DECIMAL(10,2)", "1e2", Decimal("100.00")),
        ("DATE", '"2026-01-05"', date(2026, 1, 5)),
        ("TIMESTAMP", '"2026-01-05T01:00:00+01:00"', datetime(2026, 1, 5, tzinfo=UTC)),
        ("TIMESTAMP", '"2026-01-05T00:00:00.1234567Z"', datetime(2026, 1, 5, 0, 0, 0, 123456, tzinfo=UTC)),
        ("TIMESTAMP_NTZ", '"2026-01-05T01:02:03"', datetime(2026, 1, 5, 1, 2, 3)),  # noqa: DTZ001 has none
        (
            "ARRAY<STRUCT<x: BIGINT, d: DATE>>",
            '[{"x": 1, "d": "2026-01-05"}, null]',
            [{"x": 1, "d": date(2026, 1, 5)}, None],
        ),
        ("STRING", "null", None),
    ],
)
def test_a_field_has_the_value_of_its_type(kind, text, value):
    assert parsed(f"a {kind}", f'{{"b": [1], "a": {text}}}', "{}", None) == [[value, None, None]]


def test_a_payload_may_span_several_lines():
    assert parsed("a INT", '{\n "a": 1,\n "b": {"a": 2}\n}', " null ") == [[1, None]]


def test_a_variant_holds_a_field_of_any_type():
    values, ids = parsed("v VARIANT, n INT", '{"v": {"x": [1.50]}, "n": 3}', '{"v": null}', "{}", None)
    assert [value and bytes(value["value"]) for value in values][1:] == [b"\x00", None, None]
    assert values[0]["metadata"] == b"\x01\x01\x00\x01x"
    assert ids == [3, None, None, None]


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ('{"a": 1.5}', "a is 1.5, which BIGINT cannot hold"),
        ('{"a": 9223372036854775808}', "a is 9223372036854775808, which BIGINT cannot hold"),
        ('{"a": "1"}', 'a is "1", which BIGINT cannot hold'),
        ('{"m": 1.555}', r"m is 1.555, which DECIMAL\(10,2\) cannot hold"),
        ('{"m": 123456789}', r"m is 123456789, which DECIMAL\(10,2\) cannot hold"),
        ('{"t": "2026-01-05T00:00:00"}', 't is "2026-01-05T00:00:00", which TIMESTAMP cannot hold'),
        ('{"t": "2026-02-30T00:00:00Z"}', 't is "2026-02-30T00:00:00Z", which TIMESTAMP cannot hold'),
        (f'{{"m": 1{"0" * 70}}}', f"m is 1{'0' * 59}…, which DECIMAL"),
        ('{"d": "yesterday"}', 'd is "yesterday", which DATE cannot hold'),
        ('{"s": {"x": 1}}', 's is {"x":1}, which STRING cannot hold'),
        (f'{{"a": "{"x" * 99}"}}', 'a is "x{59}…, which BIGINT'),
        ('{"v": 1234567890123456789012345678901234567890}', "v is 123456789012.*, which VARIANT cannot hold"),
        ('{"b": 1e400}', r"they are not JSON \(number is infinity"),
        ('{"a": 1, "a": 2}', "the key 'a' appears twice"),
        ("[7]", r"they are not a JSON object, but \[7\]"),
        ("{", "they are not JSON"),
        ("", "they are not JSON"),
        ("{} {}", "they are not JSON"),
        ('{}}\n{"data":{}', "they are not JSON"),
    ],
)
def test_data_that_do_not_fit_are_refused_with_their_event_and_field(payload, says):
    ddl = "a BIGINT, m DECIMAL(10,2), t TIMESTAMP, d DATE, s STRING, v VARIANT"
    what = r"^\[OCQ-419\] the data of the event at position 3 do not fit the option 'schema': "
    with pytest.raises(EngineError, match=what + says):
        parsed(ddl, '{"a": 1}', None, payload, '{"a": 2}', '{"a": false}')


@pytest.mark.parametrize("payload", ["0", '""', "false", "[]", "[1]"])
@pytest.mark.parametrize("ddl", ["v VARIANT", "v BIGINT"])
def test_data_that_are_not_an_object_are_refused_whatever_the_type_of_the_field(ddl, payload):
    with pytest.raises(EngineError, match=r"OCQ-419.*they are not a JSON object"):
        parsed(ddl, "{}", payload)
    assert parsed(ddl, "null", None) == [[None, None]]


def test_a_number_too_large_for_its_column_is_refused_instead_of_becoming_infinite():
    assert parsed("f FLOAT, d DOUBLE", '{"f": 0.5, "d": 1e39}') == [[0.5], [1e39]]
    with pytest.raises(EngineError, match=r"OCQ-419.*f is 1e\+39, which FLOAT cannot hold"):
        parsed("f FLOAT", '{"f": 1e39}')


@pytest.mark.parametrize(
    ("fields", "payload"),
    [
        ("f ARRAY<FLOAT>", '{"f": [0.5, -1e39]}'),
        ("f STRUCT<g: FLOAT>", '{"f": {"g": 1e39}}'),
        ("f ARRAY<STRUCT<g: ARRAY<FLOAT>>>", '{"f": [{"g": []}, {"g": [1e39]}]}'),
    ],
)
def test_a_number_too_large_for_a_float_is_refused_at_any_depth(fields: str, payload: str) -> None:
    assert parsed(fields, payload.replace("e39", "e0"))
    with pytest.raises(EngineError, match=r"OCQ-419.*FLOAT.* cannot hold"):
        parsed(fields, payload)


@given(
    st.datetimes(), st.sampled_from(["Z", "+01:00", "-11:30", "z"]), st.sampled_from(["", ".5", ".1234567", ".000001"])
)
def test_times_are_the_same_moments_as_in_the_model(moment, offset, fraction):
    text = f"{moment:%Y}".rjust(4, "0") + f"{moment:-%m-%dT%H:%M:%S}{fraction}{offset}"
    assert moments(pa.array([text, None])).cast(pa.int64()).to_pylist() == [microseconds(text), None]


@pytest.mark.parametrize(
    "text", ["2016-12-31T23:59:60Z", "20260105T000000Z", "2026-01-05 00:00:00Z", "0000-03-01T00:00:00Z"]
)
def test_unusual_times_are_the_same_moments_as_in_the_model(text):
    found = moments(pa.array([text]))
    assert found.type == MOMENT
    assert found.cast(pa.int64()).to_pylist() == [microseconds(text)]

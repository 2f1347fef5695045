"""VARIANTs: what PySpark reads from the bytes we write."""

from __future__ import annotations

import json
from decimal import Decimal, localcontext

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.types import VariantVal

from opencqrs_py.engines.spark.source.variants import variant_of
from opencqrs_py.model.json_text import read_json

NUMBERS = st.integers(-(10**38) + 1, 10**38 - 1) | st.floats(allow_nan=False, allow_infinity=False)
TEXTS = st.text(max_size=80)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


def value_of(text):
    with localcontext(prec=50):  # PySpark divides, which would round to 28 digits
        return VariantVal(*variant_of(text)).toPython()


@given(VALUES)
def test_pyspark_reads_the_value_of_the_json_text(value):
    text = json.dumps(value)
    assert value_of(text) == as_exact(read_json(text))


def as_exact(value):
    """Return a value whose numbers without an exponent are decimals, as in Spark."""
    if isinstance(value, dict):
        return {name: as_exact(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [as_exact(inner) for inner in value]
    return Decimal(repr(value)) if isinstance(value, float) and "e" not in repr(value) else value


@given(VALUES)
@example(0.001953125)  # whose leading zero needs no digit
def test_a_variant_has_the_same_size_as_one_built_by_pyspark(value):
    text = json.dumps(value)
    built = VariantVal.parseJson(text)
    assert len(variant_of(text)[0]) == len(built.value)
    assert len(variant_of(text)[1]) == len(built.metadata)


@pytest.mark.parametrize(
    "value", [list(range(300)), {f"k{n}": "x" * n for n in range(300)}, ["x" * 70_000] * 2, {"a": ["é" * 40, {}]}]
)
def test_long_values_are_read_back(value):
    assert value_of(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "exact"),
    [
        ("0.1", "0.1"),
        ("12345678901234567890.123456789012345678", "12345678901234567890.123456789012345678"),
        ("-99999999999999999999999999999999999999", "-99999999999999999999999999999999999999"),
        ("123456789012345678901e3", "123456789012345678901000"),
    ],
)
def test_no_digit_is_lost(text, exact):
    assert str(value_of(text)) == exact


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("1234567890123456789012345678901234567890", "more than 38 digits"),
        ("0.1234567890123456789012345678901234567890", "more than 38 digits"),
        ("12345678901234567890e20", "more than 38 digits"),
        ("{", "unexpected end"),
        (f'"{"x" * (16 * 1024 * 1024)}"', "more than the 16 MB of a VARIANT"),
    ],
    ids=["whole", "fraction", "exponent", "no JSON", "large"],
)
def test_a_value_that_a_variant_cannot_hold_is_refused(text, says):
    with pytest.raises(ValueError, match=says):
        variant_of(text)


def test_keys_are_sorted_as_java_sorts_them():
    """Java compares UTF-16 code units, so surrogate pairs sort before U+FFFF."""
    value = {"\uffff": 1, "\U0001f600": 2, "a": 3}
    assert value_of(json.dumps(value)) == value
    assert list(value_of(json.dumps(value))) == ["a", "\U0001f600", "\uffff"]

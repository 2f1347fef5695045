"""Events' data as typed columns: a whole batch is parsed at once, without an object for each event.

Runs on executors. A value that its column cannot hold to the last digit is an error that names the event: it is neither
rounded nor made null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.json import ParseOptions, ReadOptions, read_json
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructField, StructType

from opencqrs_py.engines.spark.source.variants import variant_of
from opencqrs_py.errors import EngineError
from opencqrs_py.model import json_text
from opencqrs_py.model.times import microseconds

VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False, metadata={b"variant": b"true"}),
    ]
)
"""The Arrow type of a VARIANT in Spark."""

MOMENT = pa.timestamp("us", "UTC")
"""The Arrow type of a TIMESTAMP in Spark."""

_PLACE = 'format("opencqrs")'
_MEMBER = "data"  # of an object around each payload, so that two values in one text, or none, are an error
_NOTHING = (b"", b"")  # instead of a VARIANT that is null
_MOST_DIGITS = 76  # of a decimal in Arrow
_SHOWN = 60  # most characters of a value in a message


class DataColumns:
    """The fields of events' data that are read, each as a column.

    Args:
        fields: Name and type of each; VARIANT not inside another type.
    """

    def __init__(self, fields: Sequence[StructField]) -> None:
        self._fields = tuple(fields)
        arrow = to_arrow_schema(StructType(list(fields)), timezone="UTC")
        self._variants = [field.name for field in arrow if field.type == VARIANT]
        self._parsed = [field for field in arrow if field.type != VARIANT]
        read_as = pa.struct([pa.field(field.name, _as_parsed(field.type)) for field in self._parsed])
        self._options = ParseOptions(
            explicit_schema=pa.schema([(_MEMBER, read_as)]),
            newlines_in_values=True,
            unexpected_field_behavior="ignore",
        )

    def arrays(self, positions: Sequence[int], payloads: Sequence[str | None]) -> list[pa.Array]:
        """Return the columns, in the order of the fields; events without data, or without a field, have null there.

        Raises:
            EngineError: OCQ-419, naming the first event and its field that do not fit.
        """
        try:
            return self._arrays(payloads)
        except ValueError as error:
            number = self._first_unfit(payloads)
            raise self._unfit(positions[number], payloads[number]) from error

    def _arrays(self, payloads: Sequence[str | None]) -> list[pa.Array]:
        found = self._parse(payloads) | self._as_variants(payloads)
        return [found[field.name] for field in self._fields]

    def _parse(self, payloads: Sequence[str | None]) -> dict[str, pa.Array]:
        if not self._parsed:
            return {}
        lines = ("{}" if payload is None else payload for payload in payloads)
        text = (f'{{"{_MEMBER}":' + f'}}\n{{"{_MEMBER}":'.join(lines) + "}").encode()
        whole = ReadOptions(use_threads=False, block_size=len(text) + 1)
        table = read_json(pa.py_buffer(text), read_options=whole, parse_options=self._options)
        if table.num_rows != len(payloads):
            raise ValueError("a payload holds more than one JSON value")
        data = table.column(0).combine_chunks()
        return {
            field.name: as_type(column, field.type) for field, column in zip(self._parsed, data.flatten(), strict=True)
        }

    def _as_variants(self, payloads: Sequence[str | None]) -> dict[str, pa.Array]:
        if not self._variants:
            return {}
        data = (None if payload is None else json_text.read_json(payload) for payload in payloads)
        objects = [{} if each is None else each for each in data]
        if any(type(data) is not dict for data in objects):
            raise ValueError("a payload is not a JSON object")
        return {name: variants([_member(data, name) for data in objects]) for name in self._variants}

    def _first_unfit(self, payloads: Sequence[str | None]) -> int:
        """Return the first payload that does not fit, by bisection."""
        first, last = 0, len(payloads)
        while last - first > 1:
            middle = (first + last) // 2
            first, last = (middle, last) if self._fit(payloads[first:middle]) else (first, middle)
        return first

    def _fit(self, payloads: Sequence[str | None]) -> bool:
        try:
            self._arrays(payloads)
        except ValueError:
            return False
        return True

    def _unfit(self, position: int, payload: str | None) -> EngineError:
        """Return the error that names the field of an event that does not fit."""
        what = f"the data of the event at position {position} do not fit the option 'schema'"
        fix = "name a type that can hold it, remove the field, or select other events with the option 'types'"
        return EngineError("OCQ-419", f"{what}: {self._reason(payload or '')}", _PLACE, fix)

    def _reason(self, payload: str) -> str:
        try:
            data = json_text.read_json(payload)
        except ValueError as error:
            return f"they are not JSON ({error})"
        if not isinstance(data, dict):
            return f"they are not a JSON object, but {_clipped(data)}"
        if twice := json_text.duplicate_key(payload):
            return twice
        fields = (field for field in self._fields if not DataColumns([field])._fit([payload]))  # noqa: SLF001 our own class
        field = next(fields, self._fields[0])
        wanted = field.dataType.simpleString().upper()
        return f"{field.name} is {_clipped(data.get(field.name))}, which {wanted} cannot hold"


def as_type(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Return a column of parsed JSON, or of texts, in the type that is wanted.

    Raises:
        ValueError: If it cannot hold a value.
    """
    if _has_infinity(column):
        raise ValueError("a number is too large")  # JSON has no infinity
    if column.type == wanted:
        return column
    if wanted == MOMENT:
        return moments(column)
    return pc.cast(column, wanted)


def _has_infinity(column: pa.Array) -> bool:
    """Return whether a column contains an infinity, at any depth."""
    if pa.types.is_floating(column.type):
        return pc.any(pc.is_inf(column)).as_py() is True
    if pa.types.is_list(column.type):
        return _has_infinity(column.flatten())
    return pa.types.is_struct(column.type) and any(map(_has_infinity, column.flatten()))


def moments(texts: pa.Array) -> pa.Array:
    """Return times, as RFC 3339 has them, as timestamps; fractions of a microsecond are cut off.

    Raises:
        ValueError: If one is not a time with an offset.

    Source:
        ``opencqrs_py.model.times.microseconds``, of which this is the bulk version; a test keeps them consistent.
    """
    try:
        return pc.cast(texts, MOMENT)
    except pa.ArrowInvalid:  # such as a leap second, or more than six digits
        return pa.array([microseconds(text) for text in texts.to_pylist()], MOMENT)


def variants(texts: Sequence[str | None]) -> pa.Array:
    """Return JSON texts as VARIANTs, ``None`` as null.

    Raises:
        ValueError: As ``variant_of``.
    """
    pairs = [_NOTHING if text is None else variant_of(text) for text in texts]
    values, metadata = zip(*pairs, strict=True) if pairs else ((), ())
    missing = pa.array([text is None for text in texts], pa.bool_())
    arrays = [pa.array(values, pa.binary()), pa.array(metadata, pa.binary())]
    return pa.StructArray.from_arrays(arrays, fields=list(VARIANT), mask=missing)


def _as_parsed(wanted: pa.DataType) -> pa.DataType:
    """Return the type as which a value is parsed.

    Times and dates are parsed as the texts that they are in JSON. Decimals get the maximum number of digits: Arrow does
    not check whether a whole number still fits after scaling.
    """
    if pa.types.is_timestamp(wanted) or pa.types.is_date(wanted):
        return pa.string()
    if pa.types.is_decimal(wanted):
        return pa.decimal256(_MOST_DIGITS, wanted.scale)
    if pa.types.is_list(wanted):
        return pa.list_(wanted.value_field.with_type(_as_parsed(wanted.value_type)))
    if pa.types.is_struct(wanted):
        return pa.struct([field.with_type(_as_parsed(field.type)) for field in wanted])
    return wanted


def _member(data: dict[str, Any], name: str) -> str | None:
    return json_text.write_json(data[name]) if name in data else None


def _clipped(value: Any) -> str:
    text = json_text.write_parsed(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"

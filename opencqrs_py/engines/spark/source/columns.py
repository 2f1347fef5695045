"""The columns of a data frame of events: which exist, which are wanted, and how rows of a store are converted to them.

The wanted columns are determined on the driver, in Spark's planning workers; the batches are made on executors. Python
data sources are not told which columns a query needs, so only ``.schema(…)`` omits some, and then the store does not
read them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from opencqrs_py.engines.spark.source.data import DataColumns, moments, variants
from opencqrs_py.errors import EngineError, ExplainedError
from opencqrs_py.model import json_text

_PLACE = 'format("opencqrs")'
_MAP = MapType(StringType(), StringType())
_EXTENSIONS = pa.map_(pa.string(), pa.string())
_TYPES: dict[str, tuple[DataType, ...]] = {
    "position": (LongType(),),
    "id": (StringType(),),
    "source": (StringType(),),
    "subject": (StringType(),),
    "type": (StringType(),),
    "time": (TimestampType(), StringType()),
    "content_type": (StringType(),),
    "payload": (VariantType(), StringType()),
    "extensions": (_MAP, StringType()),
}
"""The columns of an event, each with its usual type and the others that it can have."""

_BESIDE_DATA = ("position", "id", "source", "subject", "type", "time", "extensions")
_WAYS = "remove .schema(…), or name some of these columns there; fields of the data are named in the option 'schema'"

Maker = Callable[[Sequence[int], Sequence[Any]], pa.Array]
"""Makes a column from what a store has read; the positions are for messages."""


class ReadColumns:
    """The columns that are read.

    It is pickled: its parts are made where they are used.

    Args:
        schema: The columns, in their order.
        data: Those of them that are fields of the events' data, by their names, each with the field's own name.
    """

    def __init__(self, schema: StructType, data: dict[str, str] | None = None) -> None:
        self.schema = schema
        self._data = data or {}

    @cached_property
    def read(self) -> tuple[str, ...]:
        """The attributes of events that are read, the position first."""
        wanted = {"payload" if name in self._data else name for name in self.schema.names}
        return ("position", *(name for name in _TYPES if name in wanted and name != "position"))

    def batch(self, rows: Sequence[Sequence[Any]]) -> tuple[pa.RecordBatch, int]:
        """Return rows, of which there is at least one, as a batch, and about how many bytes all this takes.

        Args:
            rows: Each with the values of ``read``; a long payload may be reduced to a short column.

        Raises:
            EngineError: OCQ-419, if an event has a value that a column cannot hold.
        """
        # Not zip(*rows): an iterator for each row would cost more garbage collection time than everything else.
        found = {name: list(map(itemgetter(place), rows)) for place, name in enumerate(self.read)}
        positions = found["position"]
        arrays = {name: make(positions, found[name]) for name, make in self._makers.items()}
        if self._data:
            arrays |= zip(self._data, self._fields.arrays(positions, found["payload"]), strict=True)
        columns = [arrays[name] for name in self._arrow.names]
        batch = pa.RecordBatch.from_arrays(columns, schema=self._arrow)
        return batch, max(batch.nbytes, sum(map(len, filter(None, found.get("payload", ())))))

    @cached_property
    def _arrow(self) -> pa.Schema:
        return to_arrow_schema(self.schema, timezone="UTC")

    @cached_property
    def _makers(self) -> dict[str, Maker]:
        return {field.name: _maker(field.name, field.dataType) for field in self.schema if field.name not in self._data}

    @cached_property
    def _fields(self) -> DataColumns:
        return DataColumns([StructField(own, self.schema[name].dataType) for name, own in self._data.items()])

    def __getstate__(self) -> dict[str, Any]:
        return {"schema": self.schema, "_data": self._data}


class Available:
    """The columns that a data frame can have.

    Args:
        fields: The fields of the data that the option ``schema`` names; ``None`` without it.
        prefix: What their columns' names begin with.

    Raises:
        EngineError: OCQ-410, if a field has the name of another column.
    """

    def __init__(self, fields: StructType | None = None, prefix: str = "") -> None:
        self._fields = {prefix + field.name: field for field in fields or ()}
        taken = [name for name in self._fields if name.lower() in _TYPES]
        if taken:
            what = f"the field '{taken[0]}' of the option 'schema' has the name of a column that each event has"
            fix = "set the option fieldPrefix, such as data_, which all columns of fields then begin with"
            raise EngineError("OCQ-410", what, _PLACE, fix)

    def usual(self) -> StructType:
        """Return the columns of a data frame whose reader names none."""
        names = _BESIDE_DATA if self._fields else tuple(_TYPES)
        columns = [StructField(name, _TYPES[name][0]) for name in names]
        return StructType(columns + [StructField(name, field.dataType) for name, field in self._fields.items()])

    def chosen(self, schema: StructType) -> ReadColumns:
        """Return the columns that ``.schema(…)`` or ``usual`` has named.

        Raises:
            EngineError: OCQ-407, if there is no such column, or none of that type.
        """
        for column in schema:
            self._check(column)
        data = {name: self._fields[name].name for name in schema.names if name in self._fields}
        return ReadColumns(schema, data)

    def _check(self, column: StructField) -> None:
        types = self._types(column.name)
        if not types:
            what = f"there is no column '{column.name}'; the columns are {', '.join((*_TYPES, *self._fields))}"
            raise EngineError("OCQ-407", what, _PLACE, _WAYS)
        if _plain(column.dataType) not in map(_plain, types):
            allowed = " or ".join(kind.simpleString().upper() for kind in types)
            what = f"the column '{column.name}' is {allowed}, not {column.dataType.simpleString().upper()}"
            raise EngineError("OCQ-407", what, _PLACE, _WAYS)

    def _types(self, name: str) -> tuple[DataType, ...]:
        field = self._fields.get(name)
        return _TYPES.get(name, ()) if field is None else (field.dataType,)


def _plain(kind: DataType) -> str:
    return kind.simpleString()  # whether a column may hold null is not compared


def _maker(name: str, kind: DataType) -> Maker:
    match name, kind:
        case "position", _:
            return lambda positions, _values: pa.array(positions, pa.int64())
        case "time", TimestampType():
            return _times
        case "payload", VariantType():
            return _variants
        case "extensions", MapType():
            return _extensions
        case _:
            return partial(_texts, name)


def _texts(name: str, positions: Sequence[int], values: Sequence[str | None]) -> pa.Array:
    try:
        return pa.array(values, pa.string())
    except UnicodeEncodeError:
        for position, text in zip(positions, values, strict=True):
            _explain_text(name, position, text)
        raise


def _explain_text(name: str, position: int, text: str | None) -> None:
    try:
        (text or "").encode()
    except UnicodeEncodeError as error:
        fix = "fix it where it is stored, or read other columns"
        raise _unfit(position, f"{name} is not Unicode ({error.reason})", fix) from None


def _times(positions: Sequence[int], values: Sequence[str | None]) -> pa.Array:
    try:
        return moments(pa.array(values, pa.string()))
    except (ValueError, OverflowError):
        number = next(number for number, text in enumerate(values) if not _is_moment(text))
        fix = "take the text as it was sent, .schema(…) with time STRING, or fix it where it is stored"
        raise _unfit(positions[number], f"the time is {values[number]!r}, which is not an RFC 3339 time", fix) from None


def _is_moment(text: str | None) -> bool:
    try:
        moments(pa.array([text], pa.string()))
    except (ValueError, OverflowError):
        return False
    return True


def _variants(positions: Sequence[int], values: Sequence[str | None]) -> pa.Array:
    try:
        return variants(values)
    except ValueError:
        for position, text in zip(positions, values, strict=True):
            _explain_variant(position, text)
        raise


def _explain_variant(position: int, text: str | None) -> None:
    try:
        variants([text])
    except ValueError as error:
        fix = "take the data as text, .schema(…) with payload STRING, or name fields in the option 'schema'"
        raise _unfit(position, f"the data cannot be a VARIANT ({error})", fix) from None


def _extensions(positions: Sequence[int], values: Sequence[str | None]) -> pa.Array:
    if not any(values):
        return pa.nulls(len(values), _EXTENSIONS)
    known: dict[str | None, list[tuple[str, str | None]] | None] = {None: None, "": None}
    for position, text in zip(positions, values, strict=True):
        if text not in known and text is not None:
            known[text] = _pairs(position, text)
    return pa.array([known[text] for text in values], _EXTENSIONS)


def _pairs(position: int, text: str) -> list[tuple[str, str | None]]:
    """Return attributes with their values, texts as they are and others as JSON."""
    try:
        found = json_text.read_json(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        fix = "take them as text, .schema(…) with extensions STRING, or fix them where they are stored"
        raise _unfit(position, "the other attributes are not a JSON object", fix)
    return [(name, _as_text(value)) for name, value in found.items()]


def _as_text(value: Any) -> str | None:
    return value if isinstance(value, str) or value is None else json_text.write_parsed(value)


def _unfit(position: int, what: str, fix: str) -> ExplainedError:
    return EngineError("OCQ-419", f"{what}, in the event at position {position}", _PLACE, fix)

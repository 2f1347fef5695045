"""Quick columns: from JSON to arrays without an object of the event class in between.

Only for classes whose values pydantic takes unchanged: no validator, no constraint, no alias. And only for values of
the usual form, such as times in RFC 3339. Anything else is ``Unusual`` and left to the ordinary decoder. So a table is
the same as if each event had been decoded, or there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import accumulate, chain
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter

from opencqrs_py.model.json_text import loses_digits

Schema = Mapping[str, Any]
Values = Sequence[Any]

UNUSUAL = (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, pa.ArrowException)
"""Errors of reading after which the ordinary decoder takes over; they include Arrow's errors."""

_REQUIRED: Any = object()
_NOTHING = type(None)
_ZONED = r"^[12]\d{3}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-][01]\d:[0-5]\d)$"
_DATE = r"^[12]\d{3}-\d\d-\d\d$"
_UUID = r"^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"


@dataclass(frozen=True, slots=True)
class QuickColumn:
    """How the values of a field are read from JSON.

    Attributes:
        kinds: The types of values in the parsed JSON.
        read: Makes an array from values of these types; raises one of ``UNUSUAL`` if they are unusual.
        default: The value of a missing field.
        exact: Whether digits beyond a float's precision matter.
    """

    kinds: frozenset[type]
    read: Callable[[Values, Any], Any]
    default: Any = _REQUIRED
    exact: bool = False

    def array(self, objects: Sequence[Mapping[str, Any]], name: str, arrow: Any) -> Any:
        """Return the array of a field of JSON objects; raises one of ``UNUSUAL``."""
        if self.default is _REQUIRED:
            values = [one[name] for one in objects]
        else:
            default = self.default
            values = [one.get(name, default) for one in objects]
        return self.checked(values, arrow)

    def checked(self, values: Values, arrow: Any) -> Any:
        """Return the array of values; raises one of ``UNUSUAL``."""
        if not self.kinds.issuperset(map(type, values)):
            raise TypeError("a value is not of the type that the field has")
        return self.read(values, arrow)


class QuickReader:
    """Reads the fields of a class from JSON texts."""

    def __init__(self, columns: Mapping[str, QuickColumn], types: Mapping[str, Any]) -> None:
        self._columns = columns
        self._types = types
        self._exact = any(column.exact for column in columns.values())

    @classmethod
    def of(cls, event_class: type, types: Mapping[str, Any]) -> QuickReader | None:
        """Return a reader of a class's fields, ``None`` if it validates or converts their values.

        Args:
            event_class: A class that pydantic validates.
            types: The Arrow types of its fields.
        """
        try:
            schema: Schema = TypeAdapter(event_class).core_schema
            known: dict[str, Schema] = {}
            while schema["type"] == "definitions":
                known |= {one["ref"]: one for one in schema["definitions"]}
                schema = schema["schema"]
            columns = _fields(schema, known)
        except (PydanticUserError, PydanticUndefinedAnnotation, _NotQuickError):
            return None
        return cls(columns, types) if columns.keys() == types.keys() else None

    def read(self, payloads: Sequence[str | None]) -> list[Any]:
        """Return an array for each field, in the order of ``types``; raises one of ``UNUSUAL``."""
        texts: Any = payloads  # None is one of the unusual
        if self._exact and loses_digits("\n".join(texts).encode()):
            raise ValueError("a number has more digits than a float")
        objects = list(map(orjson.loads, texts))
        if not {dict}.issuperset(map(type, objects)):
            raise TypeError("not all data are JSON objects")
        return [self._columns[name].array(objects, name, arrow) for name, arrow in self._types.items()]


class _NotQuickError(Exception):
    """A schema validates or converts values."""


def _fields(schema: Schema, known: Mapping[str, Schema]) -> dict[str, QuickColumn]:
    """Return the fields of a dataclass or model."""
    schema = _resolved(schema, known)
    allowed = {"title", "frozen"}
    if schema["type"] not in ("dataclass", "model") or not allowed.issuperset(schema.get("config") or {}):
        raise _NotQuickError
    if any(schema.get(name) for name in ("post_init", "custom_init", "root_model", "strict", "custom_new")):
        raise _NotQuickError
    inner = schema["schema"]
    if inner["type"] not in ("dataclass-args", "model-fields") or inner.get("extra_behavior", "ignore") != "ignore":
        raise _NotQuickError
    if inner.get("collect_init_only"):
        raise _NotQuickError
    found = inner["fields"]
    named = found.items() if isinstance(found, Mapping) else [(field["name"], field) for field in found]
    return {name: _field(field, known) for name, field in named}


_OF_FIELDS = {"type", "name", "schema", "metadata", "kw_only", "init", "frozen", "serialization_alias"}


def _field(field: Schema, known: Mapping[str, Schema]) -> QuickColumn:
    if not _OF_FIELDS.issuperset(field) or field.get("init") is False:
        raise _NotQuickError
    schema = field["schema"]
    if schema["type"] != "default":
        return _column(schema, known)
    if not {"type", "schema", "default", "default_factory", "default_factory_takes_data", "metadata"}.issuperset(
        schema
    ):
        raise _NotQuickError
    column, default = _column(schema["schema"], known), schema.get("default", _REQUIRED)
    if type(default) not in column.kinds or (default is not None and column.read is not pa.array):
        return column  # the ordinary decoder fills it in
    return QuickColumn(column.kinds, column.read, default, column.exact)


def _resolved(schema: Schema, known: Mapping[str, Schema]) -> Schema:
    while schema["type"] == "definition-ref":
        schema = known[schema["schema_ref"]]
    return schema


def _column(schema: Schema, known: Mapping[str, Schema]) -> QuickColumn:
    schema = _resolved(schema, known)
    kind = schema["type"]
    allowed = _ALLOWED.get(kind)
    if kind in ("dataclass", "model"):
        if not (fields := _fields(schema, known)):  # Arrow makes an array of no structs of them
            raise _NotQuickError
        return _struct(fields)
    if allowed is None or not {"type", "metadata", "ref", *allowed}.issuperset(schema):
        raise _NotQuickError
    if kind == "nullable":
        inner = _column(schema["schema"], known)
        return QuickColumn(inner.kinds | {_NOTHING}, inner.read, exact=inner.exact)
    if kind == "list":
        return _list(_column(schema["items_schema"], known))
    if kind in ("enum", "literal"):
        values = [one.value for one in schema["members"]] if kind == "enum" else schema["expected"]
        return _chosen(frozenset(values))
    return _SIMPLE[kind]


_ALLOWED: dict[str, tuple[str, ...]] = {
    "str": (),
    "int": (),
    "float": (),
    "bool": (),
    "decimal": (),
    "datetime": ("microseconds_precision",),
    "date": (),
    "uuid": (),
    "enum": ("cls", "members", "sub_type"),
    "literal": ("expected",),
    "list": ("items_schema",),
    "nullable": ("schema",),
}


def _decimals(values: Values, arrow: Any) -> Any:
    return pa.array([None if value is None else Decimal(str(value)) for value in values], arrow)


def _texts(pattern: str) -> Callable[[Values, Any], Any]:
    def read(values: Values, arrow: Any) -> Any:
        texts = pa.array(values, pa.string())
        if pc.all(pc.match_substring_regex(texts, pattern)).as_py() is False:
            raise ValueError("a text is not of the usual form")
        return pc.cast(texts, arrow)

    return read


def _chosen(values: frozenset[Any]) -> QuickColumn:
    def read(found: Values, arrow: Any) -> Any:
        if not values.union({None}).issuperset(found):
            raise ValueError("a value is not among those of the field")
        return pa.array(found, arrow)

    return QuickColumn(frozenset(map(type, values)), read)


def _list(member: QuickColumn) -> QuickColumn:
    def read(values: Values, arrow: Any) -> Any:
        offsets = [0, *accumulate(map(len, values))]
        inner = member.checked(list(chain.from_iterable(values)), arrow.value_type)
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), inner, type=arrow)

    return QuickColumn(frozenset({list}), read, exact=member.exact)


def _struct(columns: Mapping[str, QuickColumn]) -> QuickColumn:
    def read(values: Values, arrow: Any) -> Any:
        members = [arrow.field(index) for index in range(arrow.num_fields)]
        arrays = [columns[member.name].array(values, member.name, member.type) for member in members]
        return pa.StructArray.from_arrays(arrays, fields=members)

    return QuickColumn(frozenset({dict}), read, exact=any(column.exact for column in columns.values()))


_SIMPLE = {
    "str": QuickColumn(frozenset({str}), pa.array),
    "int": QuickColumn(frozenset({int}), pa.array),
    "float": QuickColumn(frozenset({float, int}), pa.array),
    "bool": QuickColumn(frozenset({bool}), pa.array),
    "decimal": QuickColumn(frozenset({str, int, float}), _decimals, exact=True),
    "datetime": QuickColumn(frozenset({str}), _texts(_ZONED)),
    "date": QuickColumn(frozenset({str}), _texts(_DATE)),
    "uuid": QuickColumn(frozenset({str}), _texts(_UUID)),
}

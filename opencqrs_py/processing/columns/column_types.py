"""Column types: the Arrow type of each field of an event class, and how values are converted to it."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NewType, NotRequired, Required, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import pyarrow as pa
from pydantic import BaseModel
from typing_extensions import is_typeddict

ToArrow = Callable[[Any], Any]
"""Converts the value of a field, never ``None``, to what Arrow accepts."""

DIGITS, PLACES = 38, 18
"""Precision and scale of a ``Decimal`` field that declares none."""

_MOST_DIGITS = 76  # that Arrow's decimals have

_SEQUENCES = (list, Sequence, tuple, set, frozenset)
_WRAPPERS = (Annotated, Required, NotRequired)


class NoColumnError(Exception):
    """A field's annotation has no column type: ``BookLent.extra``, and the annotation."""

    def __init__(self, field: str, annotation: object) -> None:
        super().__init__(field, annotation)
        self.field = field
        self.annotation = annotation


@dataclass(frozen=True, slots=True)
class ColumnType:
    """How a field becomes a column.

    Attributes:
        arrow: Its type; each column may hold nulls.
        convert: Converts a value to what Arrow accepts; ``None``: Arrow accepts it as it is.
    """

    arrow: Any
    convert: ToArrow | None = None

    def array(self, values: Iterable[Any]) -> Any:
        """Return values of the field as an array; raises ``ValueError``, ``TypeError`` or ``ArithmeticError``."""
        if self.convert is not None:
            values = [None if value is None else self.convert(value) for value in values]
        return pa.array(values, self.arrow)


def _whole(value: Any) -> Any:
    fraction = isinstance(value, float) and not value.is_integer()
    if fraction or (isinstance(value, Decimal) and value != value.to_integral_value()):  # of more digits than a float
        raise ValueError("it is not a whole number")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise TypeError("bool is not a number")
    return value


def _uuid_text(value: Any) -> str:
    if not isinstance(value, UUID | str):
        raise TypeError(f"{type(value).__name__} is not a UUID")
    return str(value)


def _made(kind: type) -> ToArrow:
    """Return a conversion that refuses anything but ``kind``: Arrow takes any number for microseconds or days."""

    def checked(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(f"{type(value).__name__} is not a {kind.__name__}")
        if isinstance(value, time) and value.tzinfo is not None:
            raise ValueError("its offset would be lost")
        return value

    return checked


# Arrow accepts more than it should: 1.5 as int, true as float, a text as list. Unvalidated classes have such values.
_SCALARS: dict[Any, ColumnType] = {
    str: ColumnType(pa.string()),
    int: ColumnType(pa.int64(), _whole),
    float: ColumnType(pa.float64(), _number),
    bool: ColumnType(pa.bool_()),
    Decimal: ColumnType(pa.decimal128(DIGITS, PLACES)),
    datetime: ColumnType(pa.timestamp("us", "UTC"), _made(datetime)),
    date: ColumnType(pa.date32(), _made(date)),
    time: ColumnType(pa.time64("us"), _made(time)),
    timedelta: ColumnType(pa.duration("us"), _made(timedelta)),
    UUID: ColumnType(pa.string(), _uuid_text),
}


def columns_of(event_class: type) -> dict[str, ColumnType]:
    """Return the columns of a class's fields, in their order; none for a class without fields.

    Raises:
        NoColumnError: If a field has no column.
        NameError: If an annotation cannot be read; or a ``TypeError``.
    """
    return _columns_of(event_class, ())


def _columns_of(cls: Any, above: tuple[type, ...]) -> dict[str, ColumnType]:
    return {
        name: _column(annotation, f"{cls.__name__}.{name}", (*above, cls))
        for name, annotation in annotations_of(cls).items()
    }


def annotations_of(cls: Any) -> Mapping[str, Any]:
    """Return the annotations of a class's fields, in their order."""
    if isinstance(cls, type) and issubclass(cls, BaseModel):
        return {name: Annotated[info.annotation, *info.metadata, None] for name, info in cls.model_fields.items()}
    hints = get_type_hints(cls, include_extras=True)
    if is_dataclass(cls):
        return {field.name: hints[field.name] for field in fields(cls)}
    if hasattr(cls, "__attrs_attrs__"):
        return {field.name: hints.get(field.name, field.type) for field in cls.__attrs_attrs__}
    return hints


def classes_in(annotation: Any) -> Iterator[Any]:
    """Yield the classes with fields in an annotation."""
    bare, _ = _bare(annotation)
    if _has_fields(bare):
        yield bare
    for member in get_args(bare):
        yield from classes_in(member)


def _column(annotation: Any, field: str, above: tuple[type, ...], outer: Sequence[Any] = ()) -> ColumnType:
    """Return the column of an annotation; ``outer`` is the metadata of what it stands in."""
    bare, notes = _bare(annotation)
    origin, members = get_origin(bare), get_args(bare)
    if bare in _SCALARS:
        found: ColumnType | None = _decimal([*notes, *outer]) if bare is Decimal else _SCALARS[bare]
    elif origin in (Union, types.UnionType):
        others = [member for member in members if member is not type(None)]
        found = _column(others[0], field, above, [*notes, *outer]) if len(others) == 1 else None
    elif origin is Literal:
        found = _chosen(members)
    elif origin in _SEQUENCES and (origin is not tuple or members[1:] == (...,)):
        found = _list(_column(members[0], field, above))
    elif isinstance(bare, type) and issubclass(bare, Enum):
        found = _member(bare)
    else:
        found = _struct(bare, above) if _has_fields(bare) and bare not in above else None
    if found is None:
        raise NoColumnError(field, annotation)
    return found


def _bare(annotation: Any) -> tuple[Any, list[Any]]:
    """Return an annotation without its wrappers, and its metadata."""
    notes: list[Any] = []
    while True:
        if get_origin(annotation) in _WRAPPERS:
            annotation, *found = get_args(annotation)
            notes += found
        elif isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        else:
            return annotation, notes


def _decimal(notes: Iterable[Any]) -> ColumnType | None:
    """Return a column with the precision that pydantic enforces for the field, if any; ``None`` if Arrow has none."""
    found = [one for note in notes for one in getattr(note, "metadata", [note])]
    digits = next((n for one in found if (n := getattr(one, "max_digits", None))), DIGITS)
    places = next((n for one in found if (n := getattr(one, "decimal_places", None)) is not None), None)
    if places is None:
        places, digits = PLACES, max(digits, DIGITS)
    if not places <= digits <= _MOST_DIGITS:
        return None
    return ColumnType(pa.decimal128(digits, places) if digits <= DIGITS else pa.decimal256(digits, places))


def _chosen(values: Sequence[Any]) -> ColumnType | None:
    """Return the column of a field that has one of some values."""
    kinds = {type(value) for value in values if value is not None}
    return _SCALARS[kinds.pop()] if len(kinds) == 1 and kinds <= {str, int} else None


def _member(enum: type[Enum]) -> ColumnType | None:
    column = _chosen([member.value for member in enum])
    if column is None:
        return None
    check = column.convert

    def convert(value: Any) -> Any:
        plain = value.value if isinstance(value, Enum) else value
        return plain if check is None else check(plain)

    return ColumnType(column.arrow, convert)


def _list(member: ColumnType) -> ColumnType:
    convert = member.convert

    def converted(values: Any) -> list[Any]:
        if isinstance(values, str | Mapping):
            raise TypeError(f"{type(values).__name__} is not a list")
        return list(values) if convert is None else [None if v is None else convert(v) for v in values]

    return ColumnType(pa.list_(member.arrow), converted)


def _struct(cls: Any, above: tuple[type, ...]) -> ColumnType:
    columns, get = _columns_of(cls, above), getter_of(cls)

    def convert(value: Any) -> dict[str, Any]:
        found = {name: get(value, name) for name in columns}
        return {
            name: found[name] if column.convert is None or found[name] is None else column.convert(found[name])
            for name, column in columns.items()
        }

    return ColumnType(pa.struct([(name, column.arrow) for name, column in columns.items()]), convert)


def _has_fields(cls: Any) -> bool:
    if not isinstance(cls, type):
        return False
    return is_dataclass(cls) or is_typeddict(cls) or issubclass(cls, BaseModel) or hasattr(cls, "__attrs_attrs__")


def getter_of(cls: Any) -> Callable[[Any, str], Any]:
    """Return a getter for the value of a field; a missing key of a TypedDict yields ``None``."""
    return dict.get if is_typeddict(cls) else getattr

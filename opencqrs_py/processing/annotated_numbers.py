"""Numbers as annotations ask for them, in classes that are not validated: TypedDicts and attrs classes."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

__all__ = ["Conversion", "conversion_of_fields", "converted", "mentions_decimal"]

Conversion = Callable[[Any], Any]
"""From a number, as JSON has it, to what an annotation asks for; everything else comes out as it is."""

_TRANSPARENT = (Annotated, Required, NotRequired)
_LISTS = (list, Sequence)
_OBJECTS = (dict, Mapping)


def conversion_of_fields(event_class: type) -> Mapping[str, Conversion]:
    """Return the conversions of a class's fields; fields whose numbers need none are left out.

    ``Decimal`` is made of numbers and of texts, ``float`` of a ``Decimal``; in unions, lists, dictionaries and
    TypedDicts, too.

    Raises:
        NameError, TypeError: If an annotation cannot be read.
    """
    return _fields(event_class, {})


def converted(data: Mapping[str, Any], fields: Mapping[str, Conversion]) -> dict[str, Any]:
    """Return data with the values of fields converted.

    Raises:
        ValueError: If a text that is to become a ``Decimal`` is no number.
    """
    return {name: fields[name](value) if name in fields else value for name, value in data.items()}


def mentions_decimal(core_schema: Any) -> bool:
    """Return whether a schema of pydantic has a ``Decimal`` somewhere."""
    if isinstance(core_schema, Mapping):
        return core_schema.get("type") == "decimal" or any(map(mentions_decimal, core_schema.values()))
    return isinstance(core_schema, list | tuple) and any(map(mentions_decimal, core_schema))


def _fields(cls: type, known: dict[type, dict[str, Conversion]]) -> Mapping[str, Conversion]:
    if cls in known:
        return known[cls]
    fields = known[cls] = {}  # first: it may hold itself
    for name, annotation in get_type_hints(cls, include_extras=True).items():
        if (conversion := _conversion(annotation, known)) is not None:
            fields[name] = conversion
    return fields


def _conversion(annotation: Any, known: dict[type, dict[str, Conversion]]) -> Conversion | None:
    annotation = _bare(annotation)
    origin, members = get_origin(annotation), get_args(annotation)
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if origin in (Union, types.UnionType):
        return _of_union([_bare(member) for member in members], known)
    if is_typeddict(origin or annotation):
        fields = _fields(origin or annotation, known)
        return lambda value: converted(value, fields) if isinstance(value, dict) else value
    if origin in _LISTS:
        return _of_list(_conversion(members[0], known))
    return _of_values(_conversion(members[1], known)) if origin in _OBJECTS else None


def _of_list(each: Conversion | None) -> Conversion | None:
    if each is None:
        return None
    return lambda value: list(map(each, value)) if isinstance(value, list) else value


def _of_values(each: Conversion | None) -> Conversion | None:
    if each is None:
        return None
    return lambda value: {name: each(one) for name, one in value.items()} if isinstance(value, dict) else value


def _bare(annotation: Any) -> Any:
    """Return an annotation without what stands around it: ``NotRequired[Annotated[Decimal, …]]`` is ``Decimal``."""
    while get_origin(annotation) in _TRANSPARENT:
        annotation = get_args(annotation)[0]
    return annotation


def _of_union(members: Sequence[Any], known: dict[type, dict[str, Conversion]]) -> Conversion | None:
    """Return the conversion of a union: what is of one of its types already stays as it is."""
    decimals = [kind for kind in (int, float, str) if kind not in members] if Decimal in members else []
    objects = [member for member in members if is_typeddict(get_origin(member) or member)]
    others = [c for m in members if m not in (Decimal, float, *objects) and (c := _conversion(m, known)) is not None]

    def convert(value: Any) -> Any:
        if type(value) in decimals:
            return _decimal(value)
        if type(value) is Decimal and Decimal not in members and float in members:
            return float(value)
        if isinstance(value, dict) and objects:
            found = next((member for member in objects if _fits(value, get_origin(member) or member)), None)
            return value if found is None else converted(value, _fields(get_origin(found) or found, known))
        for each in others:
            value = each(value)
        return value

    return convert if decimals or float in members or objects or others else None


def _fits(data: Mapping[str, Any], cls: Any) -> bool:
    """Return whether data have the fields that a TypedDict requires, and the values of its literals."""
    hints = get_type_hints(cls)
    literals = {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}
    required = cls.__required_keys__ <= data.keys()
    return required and all(data[name] in values for name, values in literals.items() if name in data)


def _decimal(value: Any) -> Any:
    if type(value) not in (int, float, str):
        return value
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        msg = f"{value!r} is no decimal number"
        raise ValueError(msg)
    return number


def _float(value: Any) -> Any:
    return float(value) if type(value) is Decimal else value


_SCALARS: dict[Any, Conversion] = {Decimal: _decimal, float: _float}

"""Conversions of decoded JSON for fields of type ``Decimal`` or ``float``, which keep every digit."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    NotRequired,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from typing_extensions import ReadOnly, TypeAliasType, is_typeddict

Conversion = Callable[[Any], Any]
"""Converts a JSON number to the annotated type; everything else is returned as it is."""


_TRANSPARENT = (Annotated, Required, NotRequired, ReadOnly)

_OF_TEXTS = frozenset({"str", "bytes", "datetime", "date", "time", "timedelta", "union"})
_AROUND = ("nullable", "default", "function-after")  # schemas around that of a union's choice

_ALIASES = (TypeAliasType, getattr(typing, "TypeAliasType", TypeAliasType))


def conversion_of_fields(event_class: type) -> Mapping[str, Conversion]:
    """Return the conversions of a class's fields; fields whose numbers need none are left out.

    ``Decimal`` is made of numbers and of texts, ``float`` of a ``Decimal``; in unions, lists, dictionaries and
    TypedDicts, too. Raises ``NameError`` or ``TypeError`` if an annotation cannot be read.
    """
    return _fields(event_class, {})


def converted(data: Mapping[str, Any], fields: Mapping[str, Conversion]) -> dict[str, Any]:
    """Return data with the values of fields converted; raise ``ValueError`` if a text is not a ``Decimal``."""
    return {name: fields[name](value) if name in fields else value for name, value in data.items()}


def mentions_decimal(core_schema: Any) -> bool:
    """Return whether a pydantic schema has a ``Decimal`` somewhere."""
    if isinstance(core_schema, Mapping):
        return core_schema.get("type") == "decimal" or any(map(mentions_decimal, core_schema.values()))
    return isinstance(core_schema, list | tuple) and any(map(mentions_decimal, core_schema))


def takes_texts(core_schema: Any) -> bool:
    """Return whether a pydantic schema may convert a number's text to something else than the number itself.

    This applies to values of any type, code of the project before validation, and a union in which a text comes first.
    """
    match core_schema:
        case {"type": "json-or-python", "json_schema": of_json}:
            return takes_texts(of_json)
        case {"type": "any" | "function-before" | "function-wrap" | "function-plain"}:
            return True
        case {"extra_behavior": "allow"} | {"extra_fields_behavior": "allow"} | {"coerce_numbers_to_str": True}:
            return True
        case {"type": "union", "choices": choices} if _prefers_texts([_kind(choice) for choice in choices]):
            return True
        case Mapping():
            return any(map(takes_texts, core_schema.values()))
    return isinstance(core_schema, list | tuple) and any(map(takes_texts, core_schema))


def _kind(choice: Any) -> str:
    schema = choice[0] if isinstance(choice, tuple) else choice  # with its label
    while schema["type"] in _AROUND:
        schema = schema["schema"]
    return str(schema["type"])


def _prefers_texts(kinds: Sequence[str]) -> bool:
    texts = [place for place, kind in enumerate(kinds) if kind in _OF_TEXTS]
    if not texts or not {"decimal", "float", "int", "union"}.intersection(kinds):
        return False
    return "decimal" not in kinds[: texts[0]]


def _fields(cls: type, known: dict[type, dict[str, Conversion]]) -> Mapping[str, Conversion]:
    if cls in known:
        return known[cls]
    fields = known[cls] = {}  # first: it may hold itself
    plain = get_origin(cls) or cls
    arguments = dict(zip(getattr(plain, "__parameters__", ()), get_args(cls), strict=False))
    for name, annotation in get_type_hints(plain, include_extras=True).items():
        if (conversion := _conversion(_filled(annotation, arguments), known)) is not None:
            fields[name] = conversion
    return fields


def _filled(annotation: Any, arguments: Mapping[Any, Any]) -> Any:
    """Return an annotation of a generic class with type arguments in the places of its type variables."""
    if isinstance(annotation, TypeVar):
        return arguments.get(annotation, annotation)
    variables = type_variables(annotation) if arguments else ()
    return annotation[tuple(arguments.get(one, Any) for one in variables)] if variables else annotation


def type_variables(annotation: Any) -> Sequence[Any]:
    """Return the type variables in an annotation."""
    if isinstance(annotation, TypeVar):
        return (annotation,)
    return () if get_origin(annotation) is None else tuple(getattr(annotation, "__parameters__", ()))


def _conversion(annotation: Any, known: dict[type, dict[str, Conversion]]) -> Conversion | None:
    annotation = _bare(annotation)
    origin, members = get_origin(annotation), get_args(annotation)
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if origin in (Union, types.UnionType):
        return _of_union([_bare(member) for member in members], known)
    if is_typeddict(origin or annotation):
        fields = _fields(annotation, known)
        return lambda value: converted(value, fields) if isinstance(value, dict) else value
    if origin is tuple and members[1:] != (...,):
        return _of_tuple([_conversion(member, known) for member in members])
    if not members or not isinstance(origin, type) or not issubclass(origin, Iterable):
        return None
    is_object = issubclass(origin, Mapping) and len(members) > 1
    return _of_values(_conversion(members[1], known)) if is_object else _of_list(_conversion(members[0], known))


def _of_list(each: Conversion | None) -> Conversion | None:
    if each is None:
        return None
    return lambda value: list(map(each, value)) if isinstance(value, list) else value


def _of_tuple(each: Sequence[Conversion | None]) -> Conversion | None:
    if each.count(None) == len(each):
        return None

    def convert(value: Any) -> Any:
        if not isinstance(value, list):
            return value
        found = [one if conversion is None else conversion(one) for conversion, one in zip(each, value, strict=False)]
        return [*found, *value[len(each) :]]

    return convert


def _of_values(each: Conversion | None) -> Conversion | None:
    if each is None:
        return None
    return lambda value: {name: each(one) for name, one in value.items()} if isinstance(value, dict) else value


def _bare(annotation: Any) -> Any:
    """Return an annotation without its wrappers and type aliases.

    ``NotRequired[Annotated[Decimal, …]]`` is ``Decimal``, and so is ``NewType("Money", Decimal)``.
    """
    while True:
        if get_origin(annotation) in _TRANSPARENT:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif isinstance(alias := get_origin(annotation) or annotation, _ALIASES) and not _holds_itself(alias):
            arguments = dict(zip(alias.__type_params__, get_args(annotation), strict=False))
            annotation = _filled(alias.__value__, arguments)
        else:
            return annotation


def _holds_itself(annotation: Any, above: tuple[Any, ...] = ()) -> bool:
    """Return whether a type alias appears within itself."""
    if isinstance(annotation, _ALIASES):
        return annotation in above or _holds_itself(annotation.__value__, (*above, annotation))
    origin = get_origin(annotation)
    return origin is not None and any(_holds_itself(part, above) for part in (origin, *get_args(annotation)))


def _of_union(members: Sequence[Any], known: dict[type, dict[str, Conversion]]) -> Conversion | None:
    """Return the conversion of a union: a value that already has one of its types stays as it is."""
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
            return value if found is None else converted(value, _fields(found, known))
        for each in others:
            value = each(value)
        return value

    return convert if decimals or float in members or objects or others else None


def _fits(data: Mapping[str, Any], cls: Any) -> bool:
    """Return whether data have the required fields of a TypedDict, with the values of its literals."""
    written = get_type_hints(cls, include_extras=True)
    required = {name for name, hint in written.items() if _is_required(hint, name in cls.__required_keys__)}
    hints = {name: _bare(hint) for name, hint in written.items()}
    literals = {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}
    return required <= data.keys() and all(data[name] in values for name, values in literals.items() if name in data)


def _is_required(annotation: Any, by_class: bool) -> bool:  # noqa: FBT001 private
    """Return whether a key is required: its class cannot read ``"NotRequired[…]"``, a text until it is evaluated."""
    while (wrapper := get_origin(annotation)) in _TRANSPARENT:
        if wrapper in (Required, NotRequired):
            return wrapper is Required
        annotation = get_args(annotation)[0]
    return by_class


def _decimal(value: Any) -> Any:
    if type(value) not in (int, float, str):
        return value
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        number = Decimal("NaN")
    if not number.is_finite():
        msg = f"{value!r} is not a decimal number"
        raise ValueError(msg)
    return number


def _float(value: Any) -> Any:
    return float(value) if type(value) is Decimal else value


_SCALARS: dict[Any, Conversion] = {Decimal: _decimal, float: _float}

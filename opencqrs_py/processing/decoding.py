"""Decoding: from an event's JSON data to an object of the class that a handler takes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from decimal import Decimal
from functools import cache
from typing import Any, NamedTuple, cast, get_args, get_origin, get_type_hints

import orjson
from pydantic import BaseModel, PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter, ValidationError
from typing_extensions import is_typeddict

from opencqrs_py.errors import EventFormatError, HandlerSignatureError
from opencqrs_py.model.event import Event
from opencqrs_py.model.json_text import loses_digits, read_json
from opencqrs_py.processing.annotations import written_annotations
from opencqrs_py.processing.columns.conversions import (
    Conversion,
    conversion_of_fields,
    converted,
    mentions_decimal,
    takes_texts,
    type_variables,
)
from opencqrs_py.processing.field_names import spelling_of

Decoder = Callable[[Event], Any]
"""Decodes an event to an object; its errors explain what does not fit."""

QuickDecoder = Callable[[str | None], Any]
"""Decodes JSON text to the same object, or one of ``NO_OBJECTS``; raises any error for other data."""

NO_OBJECTS = frozenset({list, str, int, float, Decimal, bool, type(None)})
"""The types of JSON values that are not objects."""

_read = cast("QuickDecoder", read_json)
_parse = cast("QuickDecoder", orjson.loads)
_NONE: Mapping[str, QuickDecoder] = {}
_PROBLEMS_SHOWN = 5
_OF_ITS_OWN = ("model", "dataclass")  # schemas that make an object of the class itself
_NOT_OF_PROJECTS = frozenset({"builtins", "typing", "pydantic.main", "pydantic.root_model"})


class QuickDecoders(NamedTuple):
    """Decoders for the usual case; on any error, use the general decoder.

    Attributes:
        exact: Decodes any text.
        short: Decodes texts of which no number loses digits. Checking that for a chunk at once takes a tenth of the
            time. The same function as ``exact`` if digits make no difference.
    """

    exact: QuickDecoder
    short: QuickDecoder


class TypeDecoders(NamedTuple):
    """The decoders of event types, for chunks; never changed, as several threads use it.

    Attributes:
        exact: The exact decoder of each type.
        short: The short one; the same mapping if digits make no difference to any type.
    """

    exact: Mapping[str, QuickDecoder] = _NONE
    short: Mapping[str, QuickDecoder] = _NONE

    def with_type(self, event_type: str, decoders: QuickDecoders) -> TypeDecoders:
        """Return these decoders and those of another type."""
        exact = {**self.exact, event_type: decoders.exact}
        short = {**self.short, event_type: decoders.short}
        return TypeDecoders(exact=exact, short=exact if short == exact else short)


def decodable(annotation: object) -> bool:
    """Return whether data can become ``annotation``: dataclass, pydantic, attrs, TypedDict, ``dict``, ``object``."""
    plain = get_origin(annotation) or annotation
    if not isinstance(plain, type):
        return False
    known = plain in (dict, object, Mapping) or is_typeddict(plain) or is_dataclass(plain)
    return known or issubclass(plain, BaseModel) or hasattr(plain, "__attrs_attrs__")


def has_fields(event_class: object) -> bool:
    """Return whether data can become a class whose fields are known: not ``dict``, ``Mapping`` or ``object``."""
    return decodable(event_class) and (get_origin(event_class) or event_class) not in (dict, object, Mapping)


@cache
def decoder_for(event_class: type) -> Decoder:
    """Return the function that decodes an event's data to ``event_class``; unknown fields are ignored.

    Dataclasses and pydantic models are validated by pydantic. ``dict`` and TypedDict get the JSON object as it is,
    attrs classes are called with the fields that they know. No digit of a number is lost: a field that is annotated
    with ``Decimal`` gets one, a number of a ``dict`` is what ``Event.data`` has. The decoder raises
    ``EventFormatError``: OCQ-210 without data, OCQ-211 if the data do not fit.

    Raises:
        HandlerSignatureError: OCQ-208, if a field of the class is annotated with what JSON cannot become.
    """
    plain = get_origin(event_class) or event_class
    if plain is object:
        return lambda event: event.data
    if plain in (dict, Mapping):
        return _json_object
    if is_typeddict(plain):
        return _typed_dict_decoder(event_class)
    if hasattr(plain, "__attrs_attrs__"):
        return _attrs_decoder(event_class)
    return _validating_decoder(event_class)


@cache
def quick_decoders_for(event_class: type) -> QuickDecoders | None:
    """Return the decoders for the usual case, ``None`` if there are none."""
    plain = get_origin(event_class) or event_class
    if plain in (dict, Mapping):
        return QuickDecoders(exact=_read, short=_parse)
    if is_typeddict(plain):
        if not (fields := _conversions(event_class)):
            return QuickDecoders(exact=_read, short=_parse)
        return QuickDecoders(exact=_then_converted(_read, fields), short=_then_converted(_parse, fields))
    if plain is object or hasattr(plain, "__attrs_attrs__"):
        return None
    return _validation(event_class)


@cache
def yields_others(event_class: type) -> bool:
    """Return whether decoding to a class may yield an object of another class, such as a child of it.

    This applies to a class that pydantic creates with the project's code (a validator around or after it, a custom
    schema such as a discriminated union), and to one with its own ``__new__``.
    """
    plain = get_origin(event_class) or event_class
    if not isinstance(plain, type) or plain in (dict, object, Mapping) or is_typeddict(plain):
        return False
    if any("__new__" in vars(cls) for cls in plain.__mro__ if cls.__module__ not in _NOT_OF_PROJECTS):
        return True
    return decodable(plain) and not hasattr(plain, "__attrs_attrs__") and _outermost(plain) not in _OF_ITS_OWN


def _outermost(event_class: type) -> str:
    """Return the type of pydantic's schema of a class, below its definitions."""
    try:
        schema: Mapping[str, Any] = TypeAdapter(event_class).core_schema
    except (PydanticUserError, PydanticUndefinedAnnotation):
        return "model"  # its decoder reports what is wrong
    definitions = {one["ref"]: one for one in schema.get("definitions", ())}
    while schema["type"] in ("definitions", "definition-ref"):
        schema = schema["schema"] if schema["type"] == "definitions" else definitions[schema["schema_ref"]]
    return str(schema["type"])


def _json_object(event: Event) -> dict[str, Any]:
    data = event.data  # decoded for this caller only: no other caller or attempt sees its changes
    if not isinstance(data, dict):
        raise _misfit(event, "a JSON object", [f"the data are {type(data).__name__}"])
    return data


def _typed_dict_decoder(event_class: type) -> Decoder:
    fields = _conversions(event_class)

    def decode(event: Event) -> Any:
        data = _json_object(event)
        try:
            return converted(data, fields) if fields else data
        except ValueError as error:
            raise _misfit(event, _name_of(event_class), [str(error)]) from error

    return decode


def _validating_decoder(event_class: type) -> Decoder:
    _check_variables(get_origin(event_class) or event_class)
    _check_decorated(get_origin(event_class) or event_class)
    try:
        validate = _validation(event_class).exact
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise _undecodable(event_class, error) from error
    spelling = spelling_of(event_class)

    def decode(event: Event) -> Any:
        if event.payload is None:
            return event.data  # raises
        if spelling.left:
            spelling.look(event)
        try:
            return validate(event.payload)
        except ValidationError as error:
            details = error.errors(include_input=False, include_url=False)
            if details[0]["type"] == "json_invalid":
                _ = event.data  # raises, with what to do about it
            raise _misfit(event, _name_of(event_class), list(map(_problem, details))) from None

    return decode


def _check_variables(event_class: type) -> None:
    """Refuse a child of ``Price[Decimal]`` that inherits a field ``amount: T``: pydantic accepts anything for it."""
    if not is_dataclass(event_class):
        return
    given: dict[Any, Any] = {}
    for base in (base for cls in event_class.__mro__ for base in vars(cls).get("__orig_bases__", ())):
        given |= zip(getattr(get_origin(base), "__parameters__", ()), get_args(base), strict=False)
    if not given:
        return
    for name, annotation in get_type_hints(event_class).items():
        for variable in type_variables(annotation):
            if variable in given and variable not in getattr(event_class, "__parameters__", ()):
                what = f"its field '{name}' is a {variable.__name__} of a parent, and may be anything"
                fix = f"annotate the field in {event_class.__name__} itself, with the type that it has there"
                raise _refused(event_class, what, fix)


def _check_decorated(event_class: type) -> None:
    """Refuse a child of a dataclass that annotates fields without ``@dataclass``: no data would ever fill them."""
    known = getattr(event_class, "__dataclass_fields__", {})
    for cls in event_class.__mro__:
        if not is_dataclass(cls) or "__dataclass_fields__" in vars(cls):
            continue
        for name, annotation in written_annotations(cls).items():
            if name not in known and not name.startswith("_") and "ClassVar" not in str(annotation):
                what = f"its field '{name}' is never read: {cls.__name__} inherits from a dataclass but is not one"
                raise _refused(event_class, what, f"decorate {cls.__name__} with @dataclass, like its parent")


def _validation(event_class: type) -> QuickDecoders:
    """Return functions that turn JSON text into an object.

    pydantic reads a number with a point as a double, and makes a ``Decimal`` from that. So where there are more digits
    than a double holds, the exact one validates the data first, and then makes the object from exact numbers: from
    their texts or, where a text may become something else, from decoded data, which a union of types may treat
    differently.
    """
    adapter: TypeAdapter[Any] = TypeAdapter(event_class)
    validator = adapter.validator
    validate = cast("QuickDecoder", validator.validate_json)
    if not mentions_decimal(adapter.core_schema):
        return QuickDecoders(exact=validate, short=validate)
    as_texts = not takes_texts(adapter.core_schema)

    def validate_exactly(payload: str | None) -> Any:
        found = validate(payload)
        if payload is None or not loses_digits(payload.encode()):
            return found
        data = read_json(payload)
        if as_texts:
            with suppress(ValidationError):  # a strict float accepts none
                return validate(json.dumps(data, default=str))
        return validator.validate_python(data, strict=False)

    return QuickDecoders(exact=validate_exactly, short=validate)


def _attrs_decoder(event_class: Any) -> Decoder:
    made = get_origin(event_class) or event_class
    aliases = {field.name: field.alias or field.name for field in made.__attrs_attrs__ if field.init}
    conversions = dict(_conversions(event_class))
    for field in made.__attrs_attrs__:
        if field.converter is not None and field.name in conversions:
            conversions[field.name] = _but_texts(conversions[field.name])

    def decode(event: Event) -> Any:
        data = _json_object(event)
        try:
            exact = converted(data, conversions) if conversions else data
            return made(**{alias: exact[name] for name, alias in aliases.items() if name in exact})
        except (TypeError, ValueError, ArithmeticError) as error:  # a Decimal's errors are of the latter kind
            raise _misfit(event, _name_of(event_class), [str(error)]) from error

    return decode


def _but_texts(conversion: Conversion) -> Conversion:
    """Return a conversion for a field with its own converter, which gets texts unconverted."""
    return lambda value: value if isinstance(value, str) else conversion(value)


def _then_converted(parse: QuickDecoder, fields: Mapping[str, Conversion]) -> QuickDecoder:
    return lambda payload: converted(parse(payload), fields)


def _conversions(event_class: type) -> Mapping[str, Conversion]:
    try:
        return conversion_of_fields(event_class)
    except (NameError, TypeError) as error:
        raise _undecodable(event_class, error) from error


def _undecodable(event_class: type, error: Exception) -> HandlerSignatureError:
    fix = "annotate its fields with types that JSON can become, imported at run time, not only under TYPE_CHECKING"
    return _refused(event_class, str(error).splitlines()[0], fix)


def _refused(event_class: type, why: str, fix: str) -> HandlerSignatureError:
    plain = get_origin(event_class) or event_class
    what = f"{_name_of(event_class)} cannot be decoded from JSON ({why})"
    return HandlerSignatureError("OCQ-208", what, f"class {plain.__module__}.{plain.__qualname__}", fix)


def _name_of(event_class: Any) -> str:
    return str((get_origin(event_class) or event_class).__name__)


def _problem(detail: Mapping[str, Any]) -> str:
    path = ".".join(str(part) for part in detail["loc"])
    return f"{path}: {detail['msg']}" if path else str(detail["msg"])


def _misfit(event: Event, wanted: str, problems: list[str]) -> EventFormatError:
    shown = "; ".join(problems[:_PROBLEMS_SHOWN])
    fix = "change the event class, or use a handler that takes the raw Event"
    return EventFormatError("OCQ-211", f"the event's data do not fit {wanted} ({shown})", event.label, fix)

"""Decoding: from an event's JSON data to an object of the class that a handler asks for."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from decimal import Decimal, InvalidOperation
from functools import cache
from typing import (
    Annotated,
    Any,
    Literal,
    NewType,
    NotRequired,
    Required,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from pydantic import BaseModel, PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter, ValidationError
from typing_extensions import ReadOnly, TypeAliasType, is_typeddict

from opencqrs_py.errors import EventFormatError, HandlerSignatureError
from opencqrs_py.model.event import Event
from opencqrs_py.model.json_text import loses_digits, read_json
from opencqrs_py.processing.field_names import spelling_of

Conversion = Callable[[Any], Any]
"""From a number, as JSON has it, to what an annotation asks for; everything else comes out as it is."""

_TRANSPARENT = (Annotated, Required, NotRequired, ReadOnly)
_ALIASES = (TypeAliasType, getattr(typing, "TypeAliasType", TypeAliasType))


def conversion_of_fields(event_class: type) -> Mapping[str, Conversion]:
    """Return the conversions of a class's fields; fields whose numbers need none are left out.

    ``Decimal`` is made of numbers and of texts, ``float`` of a ``Decimal``; in unions, lists, dictionaries and
    TypedDicts, too. Raises ``NameError`` or ``TypeError`` if an annotation cannot be read.
    """
    return _fields(event_class, {})


def converted(data: Mapping[str, Any], fields: Mapping[str, Conversion]) -> dict[str, Any]:
    """Return data with the values of fields converted; raise ``ValueError`` if a text is no ``Decimal``."""
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
    variables = _variables(annotation) if arguments else ()
    return annotation[tuple(arguments.get(one, Any) for one in variables)] if variables else annotation


def _variables(annotation: Any) -> Sequence[Any]:
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
    """Return an annotation without what stands around it, and names given to it.

    ``NotRequired[Annotated[Decimal, …]]`` is ``Decimal``, and so is ``NewType("Money", Decimal)``.
    """
    while True:
        if get_origin(annotation) in _TRANSPARENT:
            annotation = get_args(annotation)[0]
        elif isinstance(annotation, NewType):
            annotation = annotation.__supertype__
        elif isinstance(annotation, _ALIASES) and _is_simple(annotation.__value__):
            annotation = annotation.__value__
        else:
            return annotation


def _is_simple(annotation: Any) -> bool:
    """Return whether an alias stands for classes and collections of classes: others may hold themselves."""
    return all(isinstance(member, type) for member in get_args(annotation) or (annotation,))


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
            return value if found is None else converted(value, _fields(found, known))
        for each in others:
            value = each(value)
        return value

    return convert if decimals or float in members or objects or others else None


def _fits(data: Mapping[str, Any], cls: Any) -> bool:
    """Return whether data have the fields that a TypedDict requires, and the values of its literals."""
    hints = {name: _bare(hint) for name, hint in get_type_hints(cls).items()}
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


Decoder = Callable[[Event], Any]
"""From an event to an object; explains what is wrong with one that does not fit."""

QuickDecoder = Callable[[str | None], Any]
"""From the data as JSON text to the same object, or one of ``NO_OBJECTS``; raises anything at all without such data."""

_read = cast("QuickDecoder", read_json)

NO_OBJECTS = frozenset({list, str, int, float, Decimal, bool, type(None)})
"""What JSON becomes that is no JSON object."""

_PROBLEMS_SHOWN = 5
_OF_ITS_OWN = ("model", "dataclass")  # schemas that make an object of the class itself
_NOT_OF_PROJECTS = frozenset({"builtins", "typing", "pydantic.main", "pydantic.root_model"})


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
def quick_decoder_for(event_class: type) -> QuickDecoder | None:
    """Return a decoder for the usual case, ``None`` if there is none; on any error of it ask the other one."""
    plain = get_origin(event_class) or event_class
    if plain in (dict, Mapping):
        return _read
    if is_typeddict(plain):
        fields = _conversions(event_class)
        return (lambda payload: converted(_read(payload), fields)) if fields else _read
    if plain is object or hasattr(plain, "__attrs_attrs__"):
        return None
    return _validation(event_class)


@cache
def yields_others(event_class: type) -> bool:
    """Return whether decoding to a class may yield an object of another class, such as a child of it.

    So it is with a class that pydantic makes by code of the project (a validator around or after it, a schema of its
    own, such as a discriminated union), and with one that has a ``__new__`` of its own.
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
        return "model"  # its decoder says what is wrong
    definitions = {one["ref"]: one for one in schema.get("definitions", ())}
    while schema["type"] in ("definitions", "definition-ref"):
        schema = schema["schema"] if schema["type"] == "definitions" else definitions[schema["schema_ref"]]
    return str(schema["type"])


def _json_object(event: Event) -> dict[str, Any]:
    data = event.data  # decoded for this caller: its changes are seen by no other, nor at the next attempt
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
    try:
        validate = _validation(event_class)
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
            problems = [_problem(detail) for detail in error.errors(include_input=False, include_url=False)]
            raise _misfit(event, _name_of(event_class), problems) from None

    return decode


def _check_variables(event_class: type) -> None:
    """Refuse a child of ``Price[Decimal]`` that inherits a field ``amount: T``: pydantic takes anything for it."""
    if not is_dataclass(event_class):
        return
    given: dict[Any, Any] = {}
    for base in (base for cls in event_class.__mro__ for base in vars(cls).get("__orig_bases__", ())):
        given |= zip(getattr(get_origin(base), "__parameters__", ()), get_args(base), strict=False)
    if not given:
        return
    for name, annotation in get_type_hints(event_class).items():
        for variable in _variables(annotation):
            if variable in given and variable not in getattr(event_class, "__parameters__", ()):
                what = f"its field '{name}' is a {variable.__name__} of a parent, and may be anything"
                fix = f"annotate the field in {event_class.__name__} itself, with the type that it has there"
                raise _refused(event_class, what, fix)


def _validation(event_class: type) -> Callable[[Any], Any]:
    """Return what makes an object of JSON text.

    pydantic reads a number with a point as a double, and makes a ``Decimal`` of that. So where there are more digits
    than a double holds, it validates the data first, and then makes the object of exact numbers.
    """
    adapter: TypeAdapter[Any] = TypeAdapter(event_class)
    validator = adapter.validator
    validate = validator.validate_json
    if not mentions_decimal(adapter.core_schema):
        return validate

    def validate_exactly(payload: str) -> Any:
        found = validate(payload)
        if loses_digits(payload.encode()):
            return validator.validate_python(read_json(payload), strict=False)
        return found

    return validate_exactly


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
    """Return a conversion of a field whose own converter takes texts as it will."""
    return lambda value: value if isinstance(value, str) else conversion(value)


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

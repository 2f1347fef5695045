"""Decoding: from an event's JSON data to an object of the class that a handler asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Any, cast, get_origin, is_typeddict

import orjson
from pydantic import BaseModel, PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter, ValidationError

from opencqrs_py.errors import EventFormatError, HandlerSignatureError
from opencqrs_py.model.event import Event

__all__ = ["NO_OBJECTS", "Decoder", "QuickDecoder", "decodable", "decoder_for", "quick_decoder_for"]

Decoder = Callable[[Event], Any]
"""From an event to an object; explains what is wrong with one that does not fit."""

QuickDecoder = Callable[[str | None], Any]
"""From the data as JSON text to the same object, or one of ``NO_OBJECTS``; raises anything at all without such data."""

NO_OBJECTS = frozenset({list, str, int, float, bool, type(None)})
"""What JSON becomes that is no JSON object."""

_PROBLEMS_SHOWN = 5


def decodable(annotation: object) -> bool:
    """Say whether data can become ``annotation``: dataclass, pydantic, attrs, TypedDict, ``dict``, ``object``."""
    plain = get_origin(annotation) or annotation
    if not isinstance(plain, type):
        return False
    known = plain in (dict, object, Mapping) or is_typeddict(plain) or is_dataclass(plain)
    return known or issubclass(plain, BaseModel) or hasattr(plain, "__attrs_attrs__")


@cache
def decoder_for(event_class: type) -> Decoder:
    """Return the function that decodes an event's data to ``event_class``; unknown fields are ignored.

    Dataclasses and pydantic models are validated by pydantic. ``dict`` and TypedDict get the JSON object as it is,
    attrs classes are called with the fields that they know. The decoder raises ``EventFormatError``: OCQ-210 without
    data, OCQ-211 if the data do not fit.

    Raises:
        HandlerSignatureError: OCQ-208, if a field of the class is annotated with what JSON cannot become.
    """
    plain = get_origin(event_class) or event_class
    if plain is object:
        return lambda event: event.data
    if is_typeddict(plain) or plain in (dict, Mapping):
        return _json_object
    if hasattr(plain, "__attrs_attrs__"):
        return _attrs_decoder(plain)
    return _validating_decoder(plain)


@cache
def quick_decoder_for(event_class: type) -> QuickDecoder | None:
    """Return a decoder for the usual case, ``None`` if there is none; on any error of it ask the other one."""
    plain = get_origin(event_class) or event_class
    if is_typeddict(plain) or plain in (dict, Mapping):
        return cast("QuickDecoder", orjson.loads)
    if plain is object or hasattr(plain, "__attrs_attrs__"):
        return None
    return cast("QuickDecoder", TypeAdapter(plain).validator.validate_json)


def _json_object(event: Event) -> Any:
    """Decode anew, so that a handler's changes are seen neither in ``event.data`` nor at the next attempt."""
    if event.payload is None:
        return event.data  # raises
    try:
        data = orjson.loads(event.payload)
    except orjson.JSONDecodeError:
        return event.data  # raises, and names the event
    if not isinstance(data, dict):
        raise _misfit(event, "a JSON object", [f"the data are {type(data).__name__}"])
    return data


def _validating_decoder(event_class: type) -> Decoder:
    try:
        validate = TypeAdapter(event_class).validator.validate_json
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        what = f"{event_class.__name__} cannot be decoded from JSON ({str(error).splitlines()[0]})"
        fix = "annotate its fields with types that JSON can become, imported at run time, not only under TYPE_CHECKING"
        where = f"class {event_class.__module__}.{event_class.__qualname__}"
        raise HandlerSignatureError("OCQ-208", what, where, fix) from error

    def decode(event: Event) -> Any:
        if event.payload is None:
            return event.data  # raises
        try:
            return validate(event.payload)
        except ValidationError as error:
            problems = [_problem(detail) for detail in error.errors(include_input=False, include_url=False)]
            raise _misfit(event, event_class.__name__, problems) from None

    return decode


def _attrs_decoder(event_class: Any) -> Decoder:
    aliases = {field.name: field.alias or field.name for field in event_class.__attrs_attrs__ if field.init}

    def decode(event: Event) -> Any:
        data = _json_object(event)
        try:
            return event_class(**{alias: data[name] for name, alias in aliases.items() if name in data})
        except (TypeError, ValueError) as error:
            raise _misfit(event, event_class.__name__, [str(error)]) from error

    return decode


def _problem(detail: Mapping[str, Any]) -> str:
    path = ".".join(str(part) for part in detail["loc"])
    return f"{path}: {detail['msg']}" if path else str(detail["msg"])


def _misfit(event: Event, wanted: str, problems: list[str]) -> EventFormatError:
    shown = "; ".join(problems[:_PROBLEMS_SHOWN])
    fix = "mend the event class, or handle this type with a handler for the raw Event"
    return EventFormatError("OCQ-211", f"the event's data do not fit {wanted} ({shown})", event.label, fix)

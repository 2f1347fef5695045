"""CloudEvents in their JSON format, to and from events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from opencqrs_py.errors import EventFormatError
from opencqrs_py.model.event import Event
from opencqrs_py.model.json_text import duplicate_key, escapes_a_colon, exact_members, loses_digits
from opencqrs_py.model.times import check_time, is_time, microseconds, surely_a_time

_REQUIRED = ("id", "source", "type")
_TEXTS = (*_REQUIRED, "subject", "time", "datacontenttype")
_ATTRIBUTES = frozenset({*_TEXTS, "specversion", "data", "data_base64"})
_QUOTED_ATTRIBUTES = tuple(f'"{name}"' for name in sorted(_ATTRIBUTES))


def parse_event(line: bytes | str, position: int = 0, *, stored: bool = False) -> Event:
    """Read one CloudEvent from its JSON format.

    A missing ``subject`` is ``/``. All attributes that are not part of the specification's core become
    extensions. Numbers keep every digit. A key that appears twice in an object is refused, also in ``data``.

    Args:
        line: The JSON object.
        position: Position of the event; 0 until a store gives one.
        stored: Whether the line is part of a log already. Then times are accepted that were valid before the rule was
            strict RFC 3339.

    Raises:
        EventFormatError: OCQ-212, naming the wrong attribute and its correct form; OCQ-230, if the line is not
            an unambiguous JSON object; OCQ-231 for binary data.

    Source:
        CloudEvents 1.0, JSON event format.
    """
    try:
        fields = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise EventFormatError("OCQ-230", _unreadable(line, error)) from None
    if not isinstance(fields, dict):
        one_each = "; a list has to be written as one object per line" if isinstance(fields, list) else ""
        raise EventFormatError("OCQ-230", f"a CloudEvent is a JSON object, got {type(fields).__name__}{one_each}")
    colons = _ordinary_colons(fields)
    if colons is None:
        _check(fields, microseconds if stored else check_time)
        colons = sum((fields.get(name) or "").count(":") for name in _TEXTS)
    colons += len(fields)
    take = fields.pop
    take("specversion", None)
    data = take("data", None)
    payload = None if data is None else _json(data, "attribute 'data'")
    event = Event(
        position,
        take("id"),
        take("source"),
        take("subject", None) or "/",
        take("type"),
        take("time", None),
        take("datacontenttype", None) or "application/json",
        payload,
        extensions := _json(fields, "the extensions") if fields else None,
    )
    if payload is not None:
        colons += payload.count(":")
    if extensions is not None:
        colons += extensions.count(":") - len(fields)
    text = line if isinstance(line, bytes) else line.encode()
    if text.count(b":") != colons or escapes_a_colon(text):
        _check_keys(text)
    return _with_exact_numbers(event, text, tuple(fields)) if loses_digits(text) else event


def write_event(event: Event) -> dict[str, Any]:
    """Return an event as an object of the JSON format, with its extensions.

    Returns:
        The object is for ``orjson``: data with numbers that Python's ``float`` cannot hold are in it as their own text.
    """
    optional = {"time": event.time, "data": None if event.payload is None else _exact(event.payload, event.data)}
    return {
        "specversion": "1.0",
        "id": event.id,
        "source": event.source,
        "subject": event.subject,
        "type": event.type,
        "datacontenttype": event.content_type,
        **{name: value for name, value in optional.items() if value is not None},
        **extensions_of(event),
    }


def extensions_of(event: Event) -> dict[str, Any]:
    """Return an event's metadata, except names of CloudEvents' own attributes.

    A log that other programs fill, such as a table with a metadata column, may contain such names; the event's own
    attributes are never replaced by them.

    Returns:
        The object is for ``orjson``: numbers that Python's ``float`` cannot hold are in it as their own text.
    """
    values: Mapping[str, Any] = event.metadata
    if event.extensions is not None and loses_digits(text := event.extensions.encode()):
        values = {name: orjson.Fragment(value) for name, value in exact_members(text).items()}
    return {name: value for name, value in values.items() if name not in _ATTRIBUTES}


def names_of_attributes(event: Event) -> frozenset[str]:
    """Return the names in an event's metadata that are those of attributes; ``extensions_of`` leaves them out."""
    text = event.extensions
    if text is None or not any(name in text for name in _QUOTED_ATTRIBUTES):
        return frozenset()
    return _ATTRIBUTES & event.metadata.keys()


def _check_keys(text: bytes) -> None:
    duplicate = duplicate_key(text)
    if duplicate is not None:
        raise EventFormatError("OCQ-230", f"{duplicate}; JSON parsers would keep one and drop the other")


def _exact(text: str, value: Any) -> Any:
    return orjson.Fragment(text) if loses_digits(text.encode()) else value


def _with_exact_numbers(event: Event, text: bytes, extensions: tuple[str, ...]) -> Event:
    exact = exact_members(text)
    members = ",".join(f"{orjson.dumps(name).decode()}:{exact[name]}" for name in extensions)
    return event._replace(
        payload=None if event.payload is None else exact["data"],
        extensions=f"{{{members}}}" if extensions else None,
    )


def _unreadable(line: bytes | str, error: orjson.JSONDecodeError) -> str:
    """Return why a line is not JSON; for bytes that are not UTF-8 the parser reports no details."""
    if isinstance(line, bytes):
        try:
            line.decode()
        except UnicodeDecodeError as wrong:
            return f"not UTF-8 (0x{line[wrong.start]:02x} at byte {wrong.start + 1} of the line)"
    begins = line.strip() in ("{", "[", b"{", b"[")
    spread = "; each event has to be on a line of its own, as a whole" if begins else ""
    return f"not JSON ({error.msg} at character {error.pos + 1} of the line){spread}"


def _ordinary_colons(fields: dict[str, Any]) -> int | None:
    """Return how many colons the attributes contain if all of them are certainly valid, as in nearly every event.

    Returns:
        ``None`` if they must be checked one by one.
    """
    get = fields.get
    try:
        needed = fields["id"], fields["source"], fields["type"]
        texts = "".join((*needed, get("subject", ""), get("datacontenttype", ""), get("time", "")))
        if (
            "" not in needed
            and "\0" not in texts
            and ("time" not in fields or surely_a_time(fields["time"]) or is_time(fields["time"]))
            and get("specversion", "1.0") == "1.0"
            and "data_base64" not in fields
        ):
            return texts.count(":")
    except (KeyError, TypeError):
        pass
    return None


def _check(fields: dict[str, Any], check_the_time: Callable[[str | None], object]) -> None:
    for name in _REQUIRED:
        value = fields.get(name)
        if not isinstance(value, str) or not value:
            found = f"is {_shown(value)}" if name in fields else "is missing"
            what = f"attribute '{name}' {found}; it must be a text with at least one character"
            raise EventFormatError("OCQ-212", what)
    for name in ("subject", "time", "datacontenttype"):
        if not isinstance(fields.get(name), str | None):
            raise EventFormatError("OCQ-212", f"attribute '{name}' must be a text, got {_shown(fields[name])}")
    for name in _TEXTS:
        if "\0" in (fields.get(name) or ""):
            raise EventFormatError("OCQ-212", f"attribute '{name}' must not contain the character U+0000")
    if fields.get("specversion", "1.0") != "1.0":
        raise EventFormatError("OCQ-212", f"specversion must be '1.0', got {_shown(fields['specversion'])}")
    if "data_base64" in fields:
        raise EventFormatError("OCQ-231", "binary data (data_base64) are not supported; data must be JSON")
    try:
        check_the_time(fields.get("time"))
    except ValueError as error:
        raise EventFormatError("OCQ-212", f"attribute 'time' is not an RFC 3339 time: {error}") from None


def _shown(value: Any) -> str:
    return "null" if value is None else repr(value)


def _json(value: Any, name: str) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError:  # valid JSON can only fail here because of its depth
        raise EventFormatError("OCQ-230", f"{name} must not be nested deeper than 254 levels") from None

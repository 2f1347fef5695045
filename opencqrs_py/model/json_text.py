"""JSON as text: numbers that parsers do not preserve, and duplicate keys, of which they keep only the last."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any

import orjson

Members = Callable[[Any], dict[str, Any]]
"""Returns what is written for an instance of a dataclass."""

_BACKSLASH = ord("\\")  # searching for a number in bytes takes a third of the time
_SHOWN = 100  # characters of a key, and of where it is
_MANY = 17  # characters of a number, with its point; what is shorter is kept
_DIGITS = bytes(ord("0") if chr(byte) in "0123456789." else ord(" ") for byte in range(256))
_MANY_DIGITS = b"0" * _MANY
_NUMBER = re.compile(rb"(?<![^\s:,\[])-?[0-9][0-9.]{%d,}(?:[eE][+-]?[0-9]+)?" % (_MANY - 1))
_SMALLEST, _LARGEST = -(2**63), 2**64 - 1  # what orjson accepts as a whole number
_MOST_DIGITS = 4_000  # of a number that is written; Python reads whole numbers of up to 4,300
_BETWEEN = re.compile(r"[\s,:]*")
_SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|\s+')
_decode_at = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode


def first_duplicate(text: str) -> str | None:
    """Return what :func:`duplicate_key` returns; nearly every text needs no check of its keys.

    Args:
        text: Valid JSON.
    """
    try:
        kept = orjson.dumps(orjson.loads(text))
    except orjson.JSONEncodeError:  # nested deeper than it writes
        return duplicate_key(text)
    return duplicate_key(text) if kept.count(b":") != text.count(":") or escapes_a_colon(text.encode()) else None


def escapes_a_colon(text: bytes) -> bool:
    r"""Return whether a colon may be written as ``\u003a``.

    If none is, counting colons finds every duplicate: each member has one, texts keep theirs, and if a parser drops a
    member, at least one colon is missing when the rest is serialised again.
    """
    return _BACKSLASH in text and b"\\u003a" in text.lower()


def duplicate_key(text: bytes | str) -> str | None:
    """Return a sentence that names the first key that appears twice in an object, and its place; ``None`` without one.

    Checks each key, which takes several times as long as parsing.

    Args:
        text: Valid JSON.
    """
    try:
        members = json.loads(text, object_pairs_hook=_Members, parse_int=str, parse_float=str)
        return next(_duplicates(members, ""), None)
    except RecursionError:  # at a depth that only a dropped member can have: what is kept was written before
        return "a key appears twice"


class _Members(list[tuple[str, Any]]):
    """The members of an object, in their order."""


def _duplicates(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, _Members):
        seen = set()
        for name, inner in value:
            if name in seen:
                yield f"the key {name[:_SHOWN]!r} appears twice" + (f" in {path[:_SHOWN]}" if path else "")
            seen.add(name)
            yield from _duplicates(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _duplicates(inner, f"{path}[{index}]")


def loses_digits(text: bytes) -> bool:
    """Return whether a number of a JSON text changes when it is parsed and serialised again.

    Nearly every text has no long numbers; checking that takes a fraction of the time of parsing.
    """
    digits = text.translate(_DIGITS)
    start = digits.find(_MANY_DIGITS)  # "in" raises and drops an error first, which takes longer
    while start >= 0:
        number = _NUMBER.match(text, start - (text[start - 1 : start] == b"-"))
        if number is not None and _is_lost(number[0]):
            return True
        end = digits.find(b" ", start)
        start = digits.find(_MANY_DIGITS, end) if end >= 0 else -1
    return False


def read_json(text: str) -> Any:
    """Return the value of a JSON text; no digit of its numbers is lost.

    Returns:
        Whole numbers as ``int``, of any size. Numbers with a point or an exponent as ``float``, and as ``Decimal`` if a
        ``float`` would change digits.

    Raises:
        ValueError: If the text is not JSON, or has a whole number of more than 4,300 digits.
    """
    value = orjson.loads(text)
    return _read_exactly(text) if loses_digits(text.encode()) else value


def members_of(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass; ``orjson`` omits ``_id``, and writes the values of cached properties."""
    return {field.name: getattr(instance, field.name) for field in fields(instance)}


def write_json(value: Any, *, in_utc: bool = False, members: Members = members_of) -> str:
    """Return a value as JSON; all digits of ``int`` and ``Decimal`` are kept.

    Args:
        value: What ``orjson`` accepts, with ``Decimal`` and ``int`` of any size.
        in_utc: Whether moments with an offset are written as those of UTC.
        members: Returns what is written for a dataclass.

    Raises:
        TypeError: If it cannot become JSON.
        ValueError: If a number is infinite or no number, or has more than 4,000 digits.
    """
    option = orjson.OPT_PASSTHROUGH_DATACLASS | (orjson.OPT_PASSTHROUGH_DATETIME if in_utc else 0)

    def default(other: Any) -> Any:
        if _is_instance(other):
            return members(other)
        return _moment_or_digits(other) if in_utc else _digits(other)

    try:
        text = orjson.dumps(value, default=default, option=option)
    except orjson.JSONEncodeError:  # a whole number beyond 64 bits; other errors are reported below
        return orjson.dumps(_writable(value, members), default=default, option=option).decode()
    if b"null" in text:  # orjson writes infinity as null, too
        _writable(value, members)
    return text.decode()


def write_parsed(value: Any, *, sort_keys: bool = False) -> str:
    """Return a value of ``read_json`` as JSON.

    Args:
        value: A value of ``read_json``.
        sort_keys: Whether the members of objects are written in the order of their names.
    """
    option = orjson.OPT_SORT_KEYS if sort_keys else 0
    try:
        return orjson.dumps(value, option=option, default=_digits).decode()
    except orjson.JSONEncodeError:
        return orjson.dumps(_writable(value, members_of), option=option, default=_digits).decode()


def exact_members(text: bytes) -> dict[str, str]:
    """Return the value of each member of a JSON object as its own text, without the space between its parts.

    If members have the same name, the last one counts, as in parsers.

    Args:
        text: Valid JSON of an object.
    """
    whole = text.decode()
    members: dict[str, str] = {}
    index = _after_space(whole, whole.index("{") + 1)
    while whole[index] != "}":
        name, end = _decode_at(whole, index)
        start = _after_space(whole, end)
        _, end = _decode_at(whole, start)
        members[name] = without_space(whole[start:end])
        index = _after_space(whole, end)
    return members


def without_space(text: str) -> str:
    """Return a JSON text without white space between its parts."""
    return _SPACE.sub(lambda part: part[1] or "", text)


def _is_lost(number: bytes) -> bool:
    try:
        return orjson.dumps(orjson.loads(number)) != number
    except orjson.JSONDecodeError:  # not a number, but digits and points in a text
        return False


def _after_space(text: str, index: int) -> int:
    found = _BETWEEN.match(text, index)
    return index if found is None else found.end()


def _number(text: str) -> float | Decimal:
    value, exact = float(text), Decimal(text)
    return value if Decimal(repr(value)) == exact else exact


_read_exactly = json.JSONDecoder(parse_float=_number).decode


def _moment_or_digits(value: Any) -> Any:
    if isinstance(value, datetime) and value.tzinfo is not None:
        return value.astimezone(UTC).isoformat()
    return value.isoformat() if isinstance(value, date | time) else _digits(value)


def _digits(value: Any) -> orjson.Fragment:
    """Return a ``Decimal`` in the form that ``orjson`` writes."""
    if not isinstance(value, Decimal):
        raise TypeError(f"a {type(value).__name__} cannot become JSON")
    if not value.is_finite():
        raise _no_number(value)
    if abs(value.adjusted()) > _MOST_DIGITS:
        raise ValueError(f"a number of more than {_MOST_DIGITS:,} digits cannot become JSON")
    return orjson.Fragment(format(value, "f"))


def _writable(value: Any, members: Members) -> Any:
    """Return a value in which numbers that ``orjson`` does not write, or writes as null, are replaced or refused."""
    try:
        return _replaced(value, members)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _replaced(value: Any, members: Members) -> Any:
    if _is_instance(value):
        value = members(value)
    elif type(value) is tuple:
        value = list(value)
    match value:
        case float() if not isfinite(value):
            raise _no_number(value)
        case int() if not _SMALLEST <= value <= _LARGEST:
            return orjson.Fragment(str(int(value)))  # ValueError beyond the digits that Python writes
        case Decimal():
            return _digits(value)
        case Enum():
            return _replaced(value.value, members)
        case list():
            return [_replaced(member, members) for member in value]
        case dict():
            return {name: _replaced(member, members) for name, member in value.items()}
    return value


def _is_instance(value: Any) -> bool:
    """Return whether a value is an instance of a dataclass."""
    return is_dataclass(value) and not isinstance(value, type)


def _no_number(value: object) -> ValueError:
    return ValueError(f"JSON has no {value}")

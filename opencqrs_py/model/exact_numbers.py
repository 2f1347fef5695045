"""JSON with numbers that parsers do not keep: beyond 64 bits, or with more digits than a double holds."""

from __future__ import annotations

import json
import re

import orjson

__all__ = ["exact_members", "loses_digits", "without_space"]

_MANY = 17  # characters of a number, with its point; what is shorter is kept
_DIGITS = bytes(ord("0") if chr(byte) in "0123456789." else ord(" ") for byte in range(256))
_MANY_DIGITS = b"0" * _MANY
_NUMBER = re.compile(rb"(?<![^\s:,\[])-?[0-9][0-9.]{%d,}(?:[eE][+-]?[0-9]+)?" % (_MANY - 1))
_BETWEEN = re.compile(r"[\s,:]*")
_SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|\s+')
_decode_at = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode


def loses_digits(text: bytes) -> bool:
    """Say whether a number of a JSON text comes out with other digits when it is parsed and written again.

    Nearly every text is told by its lack of long numbers, which takes a fraction of the time that parsing it does.
    """
    found = text.translate(_DIGITS).find(_MANY_DIGITS)  # "in" raises and drops an error first, which takes longer
    return found >= 0 and any(map(_is_lost, _NUMBER.findall(text)))


def exact_members(text: bytes) -> dict[str, str]:
    """Return the value of each member of a JSON object as its own text, without the space between its parts.

    Of members with the same name the last one counts, as parsers have it.

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
    """Return a JSON text without the space and the line ends between its parts."""
    return _SPACE.sub(lambda part: part[1] or "", text)


def _is_lost(number: bytes) -> bool:
    try:
        return orjson.dumps(orjson.loads(number)) != number
    except orjson.JSONDecodeError:  # no number, but digits and points in a text
        return False


def _after_space(text: str, index: int) -> int:
    found = _BETWEEN.match(text, index)
    return index if found is None else found.end()

"""Keys that stand twice in an object of JSON, of which parsers silently keep the last."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import orjson

__all__ = ["duplicate_key", "escapes_a_colon", "first_duplicate"]

_BACKSLASH = ord("\\")  # a number is looked for in bytes in a third of the time
_SHOWN = 100  # characters of a key, and of where it stands


def first_duplicate(text: str) -> str | None:
    """Return what :func:`duplicate_key` returns; nearly every text is cleared without a second look at its keys.

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

    Where none is, counting colons finds every duplicate: a member has one of its own, texts keep theirs, and of a
    member that a parser drops at least one is missing when the rest is written again.
    """
    return _BACKSLASH in text and b"\\u003a" in text.lower()


def duplicate_key(text: bytes | str) -> str | None:
    """Return a sentence that names the first key that stands twice in an object, and where; ``None`` without one.

    Looks at each key, which takes several times as long as parsing.

    Args:
        text: Valid JSON.
    """
    try:
        members = json.loads(text, object_pairs_hook=_Members, parse_int=str, parse_float=str)
        return next(_duplicates(members, ""), None)
    except RecursionError:  # at a depth that only a dropped member can have: what is kept was written before
        return "a key stands twice"


class _Members(list[tuple[str, Any]]):
    """The members of an object, in their order."""


def _duplicates(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, _Members):
        seen = set()
        for name, inner in value:
            if name in seen:
                yield f"the key {name[:_SHOWN]!r} stands twice" + (f" in {path[:_SHOWN]}" if path else "")
            seen.add(name)
            yield from _duplicates(inner, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _duplicates(inner, f"{path}[{index}]")

"""Placeholders: ``${key}`` and ``${key:default}``, nested, resolved against all sources."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Found", "PlaceholderError", "has_placeholder", "resolved", "resolved_value"]

_MARK = re.compile(r"\\\$\{|\$\{|[{}:]")


@dataclass(frozen=True, slots=True)
class Found:
    """The text that a placeholder stands for, and whether it is secret."""

    text: str
    secret: bool = False


class PlaceholderError(Exception):
    """A placeholder cannot be resolved; the message names it, and never a value."""


def has_placeholder(text: str) -> bool:
    """Return whether ``text`` holds a placeholder, or one that is escaped."""
    return "${" in text


def resolved(text: str, lookup: Callable[[str], Found | None], stack: tuple[str, ...] = ()) -> Found:
    r"""Return ``text`` with its placeholders replaced; ``\${`` stands for ``${`` itself.

    Args:
        text: Any text.
        lookup: Returns the unresolved text of a key, ``None`` when there is no such key.
        stack: Keys that are being resolved.

    Raises:
        PlaceholderError: A key is unknown and has no default, refers to itself, or its brace is not closed.
    """
    result, secret, position = "", False, 0
    while (start := text.find("${", position)) >= 0:
        if start > 0 and text[start - 1] == "\\":
            result, position = f"{result}{text[position : start - 1]}${{", start + 2
            continue
        end, colon = _end_of(text, start)
        found = _replaced(text[start + 2 : end], colon - start - 2 if colon >= 0 else -1, lookup, stack)
        result, secret, position = (
            f"{result}{text[position:start]}{found.text}",
            secret or found.secret,
            end + 1,
        )
    return Found(result + text[position:], secret)


def resolved_value(value: object, lookup: Callable[[str], Found | None]) -> tuple[object, bool]:
    """Return a text, or each text of a tuple, with its placeholders replaced, and whether that made it secret.

    Raises:
        PlaceholderError: As by :func:`resolved`.
    """
    match value:
        case str(text) if has_placeholder(text):
            found = resolved(text, lookup)
            return found.text, found.secret
        case tuple(items):
            parts = [resolved_value(item, lookup) for item in items]
            return tuple(item for item, _ in parts), any(secret for _, secret in parts)
        case _:
            return value, False


def _end_of(text: str, start: int) -> tuple[int, int]:
    """Return where the placeholder that begins at ``start`` ends, and where its colon is (-1: it has none)."""
    depth, colon = 0, -1
    for match in _MARK.finditer(text, start):
        match match.group():
            case "${" | "\\${" | "{":
                depth += 1
            case "}":
                depth -= 1
                if depth == 0:
                    return match.start(), colon
            case ":" if depth == 1 and colon < 0:
                colon = match.start()
            case _:
                pass
    msg = "a placeholder that begins with ${ is not closed by }"
    raise PlaceholderError(msg)


def _replaced(content: str, colon: int, lookup: Callable[[str], Found | None], stack: tuple[str, ...]) -> Found:
    written = content if colon < 0 else content[:colon]
    name = resolved(written, lookup, stack).text.strip()
    if name in stack:
        msg = f"${{{written}}} refers to itself"
        raise PlaceholderError(msg)
    found = lookup(name)
    if found is not None:
        inner = resolved(found.text, lookup, (*stack, name))
        return Found(inner.text, inner.secret or found.secret)
    if colon >= 0:
        return resolved(content[colon + 1 :], lookup, stack)
    msg = f"nothing is known of ${{{written}}}"
    raise PlaceholderError(msg)

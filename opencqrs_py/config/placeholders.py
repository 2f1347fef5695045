"""Placeholders: ``${key}`` and ``${key:default}``, nested, resolved against all sources."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opencqrs_py.config.limits import MOST_CHAINED, MOST_CHARACTERS, MOST_PLACEHOLDERS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Budget", "Found", "PlaceholderError", "has_placeholder", "resolved", "resolved_value"]

_MARK = re.compile(r"\\\$\{|\$\{|[{}:]")


@dataclass(frozen=True, slots=True)
class Found:
    """The text that a placeholder stands for.

    Args:
        text: The text.
        secret: Whether it is secret by where it stands, a folder of secrets, or by its name.
        values: The secret parts of it.
    """

    text: str
    secret: bool = False
    values: frozenset[str] = frozenset()


class PlaceholderError(Exception):
    """A placeholder cannot be resolved; the message names it, and never a value."""


def has_placeholder(text: str) -> bool:
    """Return whether ``text`` holds a placeholder, or one that is escaped."""
    return "${" in text


class Budget:
    """How many placeholders may still be replaced; shared by all values of a load."""

    def __init__(self, left: int = MOST_PLACEHOLDERS) -> None:
        self._left = left

    def spend(self) -> None:
        """Count a placeholder.

        Raises:
            PlaceholderError: If there were too many.
        """
        self._left -= 1
        if self._left < 0:
            msg = f"more than {MOST_PLACEHOLDERS:,} placeholders have to be replaced"
            raise PlaceholderError(msg)


def resolved(
    text: str, lookup: Callable[[str], Found | None], stack: tuple[str, ...] = (), budget: Budget | None = None
) -> Found:
    r"""Return ``text`` with its placeholders replaced; ``\${`` stands for ``${`` itself.

    Args:
        text: Any text.
        lookup: Returns the unresolved text of a key, ``None`` when there is no such key.
        stack: Keys that are being resolved, and what stands around in the text, as an empty name.
        budget: What may be spent; ``None`` for one of its own.

    Raises:
        PlaceholderError: A key is unknown and has no default, refers to itself, or its brace is not closed; or more
            would have to be replaced than can be wanted.
    """
    if len(stack) > MOST_CHAINED:
        msg = f"more than {MOST_CHAINED} placeholders refer to each other in a chain"
        raise PlaceholderError(msg)
    expansion = _Expansion(lookup, stack, budget or Budget())
    parts: list[str] = []
    secret, values, position, length = False, frozenset[str](), 0, 0
    while (start := text.find("${", position)) >= 0:
        if start > 0 and text[start - 1] == "\\":
            parts += [text[position : start - 1], "${"]
            position = start + 2
            continue
        end, colon = _end_of(text, start)
        found = expansion.replaced(text[start + 2 : end], colon - start - 2 if colon >= 0 else -1)
        parts += [text[position:start], found.text]
        secret, values = secret or found.secret, values | found.values
        position, length = end + 1, length + len(found.text)
        if length > MOST_CHARACTERS:
            msg = f"it comes to more than {MOST_CHARACTERS:,} characters"
            raise PlaceholderError(msg)
    return Found("".join((*parts, text[position:])), secret, values)


def resolved_value(
    value: object, lookup: Callable[[str], Found | None], budget: Budget | None = None
) -> tuple[object, frozenset[str]]:
    """Return a text, or each text of a tuple, with its placeholders replaced, and what of it is secret thereby.

    Raises:
        PlaceholderError: As by :func:`resolved`.
    """
    match value:
        case str(text) if has_placeholder(text):
            found = resolved(text, lookup, budget=budget)
            return found.text, found.values
        case tuple(items):
            parts = [resolved_value(item, lookup, budget) for item in items]
            return tuple(item for item, _ in parts), frozenset[str]().union(*(secrets for _, secrets in parts))
        case _:
            return value, frozenset()


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


@dataclass(frozen=True, slots=True)
class _Expansion:
    """Replaces single placeholders; ``stack`` is what they stand in."""

    lookup: Callable[[str], Found | None]
    stack: tuple[str, ...]
    budget: Budget

    def replaced(self, content: str, colon: int) -> Found:
        """Return what a placeholder stands for.

        Args:
            content: What stands between its braces.
            colon: Where in it the default begins, after a colon; -1 if there is none.
        """
        self.budget.spend()
        written = content if colon < 0 else content[:colon]
        name = self._inside(written).text.strip()
        if name in self.stack:
            msg = f"${{{written}}} refers to itself"
            raise PlaceholderError(msg)
        found = self.lookup(name)
        if found is not None:
            inner = resolved(found.text, self.lookup, (*self.stack, name), self.budget)
            return Found(inner.text, secret=True, values=inner.values | {inner.text}) if found.secret else inner
        if colon >= 0:
            return self._inside(content[colon + 1 :])
        msg = f"nothing is known of ${{{written}}}"
        raise PlaceholderError(msg)

    def _inside(self, text: str) -> Found:
        return resolved(text, self.lookup, (*self.stack, ""), self.budget) if has_placeholder(text) else Found(text)

"""Profiles: their names, and the expressions that select the profiles of a document."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


DEFAULT_PROFILE = "default"
"""The profile that is active when no other is."""

_NAME = r"[A-Za-z0-9_.+@-]+"
_TOKEN = re.compile(rf"[()!&|]|{_NAME}|\S")
_WORDS = {"and": "&", "or": "|", "not": "!"}
_SIGNS = frozenset("()!&|")


def is_profile_name(name: str) -> bool:
    """Return whether ``name`` can be a profile: letters, digits and ``-_.+@``."""
    return re.fullmatch(_NAME, name) is not None and name.casefold() not in _WORDS


def applies(expressions: Sequence[str], active: Collection[str]) -> bool:
    """Return whether one of ``expressions`` holds for the profiles ``active``.

    An expression has names, ``not``, ``and``, ``or`` (or ``!``, ``&``, ``|``) and brackets; ``not`` binds closest,
    and ``and`` may be mixed with ``or`` only by means of brackets.

    Raises:
        ValueError: An expression is invalid; the message says why.

    Source:
        Spring Framework, "Profiles.of".
    """
    holds = False
    for expression in expressions:
        tokens = _tokens(expression)
        holds = _combined(tokens, active) or holds
        if tokens:
            raise ValueError(f"{tokens[0]!r} is not expected there")
    return holds


def mentioned(expressions: Sequence[str]) -> set[str]:
    """Return the names in ``expressions``.

    Raises:
        ValueError: An expression is invalid.
    """
    return {token for expression in expressions for token in _tokens(expression) if token not in _SIGNS}


def _tokens(expression: str) -> list[str]:
    tokens: list[str] = _TOKEN.findall(expression)
    for token in tokens:
        if token not in _SIGNS and not re.fullmatch(_NAME, token):
            raise ValueError(f"{token!r} is not part of an expression")
    return [_WORDS.get(token.casefold(), token) for token in tokens]


def _combined(tokens: list[str], active: Collection[str]) -> bool:
    """Take names with one kind of operator between them from the beginning of ``tokens``, and return their value."""
    result = _single(tokens, active)
    sign = tokens[0] if tokens else ""
    while tokens and tokens[0] in {"&", "|"}:
        if tokens.pop(0) != sign:
            raise ValueError("'and' and 'or' are mixed without brackets")
        other = _single(tokens, active)
        result = (result and other) if sign == "&" else (result or other)
    return result


def _single(tokens: list[str], active: Collection[str]) -> bool:
    match tokens.pop(0) if tokens else "":
        case "!":
            return not _single(tokens, active)
        case "(":
            result = _combined(tokens, active)
            if not tokens or tokens.pop(0) != ")":
                raise ValueError("a bracket is not closed")
            return result
        case "" | ")" | "&" | "|":
            raise ValueError("a name is missing")
        case name:
            return name in active

"""Profiles: their names, and the expressions that say with which of them a document applies."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


DEFAULT_PROFILE = "default"
"""The profile that is active when no other is."""

_NAME = r"[A-Za-z0-9_.+@-]+"
_TOKEN = re.compile(rf"\s*(?:(?P<sign>[()!&|])|(?P<name>{_NAME}))\s*")
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
        ValueError: An expression is no expression; the message says why.

    Source:
        Spring Framework, "Profiles.of".
    """
    values = [_Expression(_tokens(expression), active).value() for expression in expressions]
    return any(values)


def mentioned(expressions: Sequence[str]) -> set[str]:
    """Return the names in ``expressions``.

    Raises:
        ValueError: An expression is no expression.
    """
    return {token for expression in expressions for token in _tokens(expression) if token not in _SIGNS}


def _tokens(expression: str) -> list[str]:
    tokens: list[str] = []
    position = 0
    while position < len(expression.rstrip()):
        match = _TOKEN.match(expression, position)
        if match is None:
            msg = f"{expression.strip()[position:][:1]!r} is no part of an expression"
            raise ValueError(msg)
        tokens.append(_WORDS.get(match[0].strip().casefold(), match[0].strip()))
        position = match.end()
    return tokens


class _Expression:
    """Reads the tokens of one expression from left to right."""

    def __init__(self, tokens: list[str], active: Collection[str]) -> None:
        self._tokens = tokens
        self._active = active

    def value(self) -> bool:
        """Return whether the whole expression holds."""
        result = self._combined()
        if self._tokens:
            msg = f"{self._tokens[0]!r} comes too much"
            raise ValueError(msg)
        return result

    def _combined(self) -> bool:
        result = self._single()
        sign = self._tokens[0] if self._tokens else ""
        while self._tokens and self._tokens[0] in "&|":
            if self._tokens.pop(0) != sign:
                msg = "'and' and 'or' are mixed without brackets"
                raise ValueError(msg)
            other = self._single()
            result = (result and other) if sign == "&" else (result or other)
        return result

    def _single(self) -> bool:
        match self._tokens.pop(0) if self._tokens else "":
            case "!":
                return not self._single()
            case "(":
                result = self._combined()
                if not self._tokens or self._tokens.pop(0) != ")":
                    msg = "a bracket is not closed"
                    raise ValueError(msg)
                return result
            case "" | ")" | "&" | "|":
                msg = "a name is missing"
                raise ValueError(msg)
            case name:
                return name in self._active

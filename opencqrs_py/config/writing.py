"""Values as they would be written in YAML."""

from __future__ import annotations

import json
import math
import re
from enum import Enum

from opencqrs_py.config.durations import INFINITE, duration_text

__all__ = ["written"]

_NEEDS_QUOTES = re.compile(r"^$|^\s|\s$|^[-?:,\[\]{}#&*!|>'\"%@`]|: |:$| #|^(?:~|null)$", re.IGNORECASE)


def written(value: object, *, duration: bool = False) -> str:
    """Return ``value`` as YAML text.

    Args:
        value: A validated value, or a list of such.
        duration: Whether a number is a duration in seconds.
    """
    match value:
        case float() | int() if duration:
            return duration_text(float(value))
        case list() | tuple():
            return f"[{', '.join(written(item) for item in value)}]"
        case None | bool() | float() | Enum():
            return _plain(value)
        case _:
            text = str(value)
            return json.dumps(text, ensure_ascii=False) if _NEEDS_QUOTES.search(text) else text


def _plain(value: bool | float | Enum | None) -> str:  # noqa: FBT001
    match value:
        case None:
            return "null"
        case bool():
            return str(value).lower()
        case Enum():
            return str(value.value)
        case number if math.isinf(number):
            return INFINITE
        case number:
            return str(int(number)) if number.is_integer() else repr(number)

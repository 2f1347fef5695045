"""Values as they would be written in YAML."""

from __future__ import annotations

import json
import re
from enum import Enum

from opencqrs_py.config.durations import duration_text
from opencqrs_py.config.value_types import NO_FACT, Fact

__all__ = ["written"]

_NEEDS_QUOTES = re.compile(r"^$|^\s|\s$|^[-?:,\[\]{}#&*!|>'\"%@`]|: |:$| #|^(?:~|null)$", re.IGNORECASE)


def written(value: object, fact: Fact = NO_FACT) -> str:
    """Return ``value`` as YAML text.

    Args:
        value: A validated value, or a list of such.
        fact: What the model says of the setting.
    """
    match value:
        case None:
            return fact.none
        case float() | int() if fact.is_duration:
            return duration_text(float(value))
        case list() | tuple():
            return f"[{', '.join(written(item) for item in value)}]"
        case bool() | float() | Enum():
            return _plain(value)
        case _:
            text = str(value)
            return json.dumps(text, ensure_ascii=False) if _NEEDS_QUOTES.search(text) else text


def _plain(value: bool | float | Enum) -> str:  # noqa: FBT001
    match value:
        case bool():
            return str(value).lower()
        case Enum():
            return str(value.value)
        case number:
            return str(int(number)) if number.is_integer() else repr(number)

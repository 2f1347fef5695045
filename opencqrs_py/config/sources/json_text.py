"""Settings in JSON: a whole group or list in a variable, or everything in one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opencqrs_py.config.entries import Value

__all__ = ["parsed_json"]


def parsed_json(text: str) -> Value:
    """Return the content of ``text``; numbers stay texts, as they are in all other sources.

    Raises:
        ValueError: ``text`` is no JSON, or names a key twice; the message quotes nothing but that key.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_without_repetition, parse_int=str, parse_float=str, parse_constant=str
        )
    except json.JSONDecodeError as error:
        msg = f"{error.msg} at line {error.lineno}, column {error.colno}"
        raise ValueError(msg) from None
    except RecursionError:
        msg = "it is nested too deeply"
        raise ValueError(msg) from None


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            msg = f"the key {key!r} stands there twice"
            raise ValueError(msg)
        found[key] = value
    return found

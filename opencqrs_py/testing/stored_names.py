"""The names of fields in stored data: those by which pydantic reads them, which may differ from those it writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import RootModel

from opencqrs_py.processing.field_names import field_names, put

_COLLECTIONS = (list, tuple, set, frozenset)


def as_stored(value: Any, written: Any) -> Any:
    """Return the JSON that pydantic has written of an object, with the names by which its classes read their fields.

    Args:
        value: Any object; models and dataclasses may be anywhere in it.
        written: The same as JSON, by alias.
    """
    if isinstance(value, RootModel):
        return as_stored(value.root, written)
    if isinstance(written, list) and isinstance(value, _COLLECTIONS):
        return [as_stored(one, text) for one, text in zip(value, written, strict=True)]
    if not isinstance(written, dict):
        return written
    if isinstance(value, Mapping):
        return {name: as_stored(one, written[name]) for one, name in zip(value.values(), written, strict=True)}
    cls: Any = type(value)
    stored = dict(written)
    fields = [
        (names.read[0], as_stored(getattr(value, names.name), stored.pop(name)))
        for names in field_names(cls)
        if (name := names.written if names.written in stored else names.name) in stored
    ]
    for path, each in fields:
        put(stored, path, each)
    return stored

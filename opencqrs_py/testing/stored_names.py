"""The names that fields have in stored data: those by which pydantic reads them, which may be others than it writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cache
from typing import Any

from pydantic import BaseModel, PydanticUndefinedAnnotation, PydanticUserError, RootModel, TypeAdapter

_COLLECTIONS = (list, tuple, set, frozenset)
_Path = tuple[str, ...]


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
        (path, as_stored(getattr(value, field), stored.pop(key if key in stored else field)))
        for field, key, path in _names(cls)
        if key in stored or field in stored
    ]
    for path, each in fields:
        _put(stored, path, each)
    return stored


def _put(stored: dict[str, Any], path: _Path, value: Any) -> None:
    *above, last = path
    for name in above:
        stored = stored.setdefault(name, {})
    stored[last] = value


@cache
def _names(cls: Any) -> tuple[tuple[str, str, _Path], ...]:
    """Return of each field its name, the one that pydantic writes, and the path that it reads."""
    if not (is_dataclass(cls) or issubclass(cls, BaseModel)):
        return ()
    try:
        fields = tuple(_fields(TypeAdapter(cls).core_schema))
    except (PydanticUserError, PydanticUndefinedAnnotation):  # the decoder says what is wrong with the class
        return ()
    return tuple(
        (name, field.get("serialization_alias", name), _path(field.get("validation_alias", name), name))
        for name, field in fields
    )


def _fields(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    definitions = {one["ref"]: one for one in schema.get("definitions", ())}
    while "fields" not in schema or schema["type"] == "dataclass":
        inner = definitions.get(schema.get("schema_ref", ""), schema.get("schema"))
        if inner is None:
            return
        schema = inner
    fields = schema["fields"]
    yield from fields.items() if isinstance(fields, Mapping) else ((field["name"], field) for field in fields)


def _path(alias: str | list[Any], name: str) -> _Path:
    """Return the first path of an alias that leads through objects only; the field's name if none does."""
    if isinstance(alias, str):
        return (alias,)
    choices = alias if isinstance(alias[0], list) else [alias]
    return next((tuple(path) for path in choices if all(isinstance(part, str) for part in path)), (name,))

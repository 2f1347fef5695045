"""The names by which pydantic reads the fields of a class, and data that spell them differently."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Any, get_origin

from pydantic import BaseModel, PydanticUndefinedAnnotation, PydanticUserError, TypeAdapter

from opencqrs_py.errors import EventFormatError
from opencqrs_py.model.event import Event
from opencqrs_py.model.json_text import members_of
from opencqrs_py.model.naming import canonical

_log = logging.getLogger("opencqrs.processing")
_LOOKS = 20  # at the first events of a class: a misspelled name is misspelled in all of them
_PREPARING = ("function-before", "function-wrap", "function-plain")  # code of the project, which may rename fields
FieldPath = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FieldNames:
    """The names of a field.

    Attributes:
        name: The one in the class.
        written: The one by which pydantic serialises, by alias.
        read: The paths to its value in data, each through objects only, in order of precedence.
        required: Whether it has no default.
    """

    name: str
    written: str
    read: tuple[FieldPath, ...]
    required: bool


@cache
def field_names(cls: Any) -> tuple[FieldNames, ...]:
    """Return the names of the fields of a dataclass or a model; none of other classes."""
    plain = get_origin(cls) or cls
    if not isinstance(plain, type) or not (is_dataclass(plain) or issubclass(plain, BaseModel)):
        return ()
    config = getattr(plain, "model_config", None) or getattr(plain, "__pydantic_config__", None) or {}
    by_name = any(config.get(key) for key in ("validate_by_name", "populate_by_name"))
    return tuple(_names(name, field, by_name=by_name) for name, field in _fields(list(_schemas(cls))))


def _names(name: str, field: Mapping[str, Any], *, by_name: bool) -> FieldNames:
    alias = field.get("validation_alias", name)
    ways = [[alias]] if isinstance(alias, str) else alias if isinstance(alias[0], list) else [alias]
    read = tuple(tuple(way) for way in ways if all(isinstance(part, str) for part in way))
    read += ((name,),) if by_name or not read else ()
    required = field["schema"]["type"] != "default"
    return FieldNames(name, field.get("serialization_alias", name), read, required)


def _schemas(cls: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas of a class in each other, from the outermost one to that of its fields."""
    try:
        schema: Mapping[str, Any] | None = TypeAdapter(cls).core_schema
        definitions = {one["ref"]: one for one in (schema or {}).get("definitions", ())}
    except (PydanticUserError, PydanticUndefinedAnnotation):  # the decoder reports what is wrong with the class
        return
    while schema is not None:
        yield schema
        schema = definitions.get(schema.get("schema_ref", ""), schema.get("schema"))


def _fields(schemas: Sequence[Mapping[str, Any]]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    fields = schemas[-1].get("fields", ()) if schemas else ()
    return fields.items() if isinstance(fields, Mapping) else [(field["name"], field) for field in fields]


def stored_members(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass under the names by which they are read."""
    cls: Any = type(instance)
    read = {names.name: names.read[0] for names in field_names(cls)}
    stored: dict[str, Any] = {}
    for name, value in members_of(instance).items():
        put(stored, read.get(name, (name,)), value)
    return stored


def put(stored: dict[str, Any], path: FieldPath, value: Any) -> None:
    """Set a value at a path in data, with the objects above it."""
    *above, last = path
    for name in above:
        stored = stored.setdefault(name, {})
    stored[last] = value


class SpellingCheck:
    """Checks whether the first events of a class spell a field differently, and warns once.

    ``bookId`` in the data does not fill ``book_id``. A field without a default would raise an error; one with a default
    would silently keep it.
    """

    def __init__(self, cls: Any) -> None:
        self._cls = cls
        prepared = any(schema["type"] in _PREPARING for schema in _schemas(cls)) if field_names(cls) else True
        self._fields = [] if prepared else [field for field in field_names(cls) if not field.required]
        self._read = {way[0] for field in field_names(cls) for way in field.read}
        self.left = _LOOKS if self._fields else 0

    def look(self, event: Event) -> None:
        """Check the data of an event, if it is one of the first; data that are not JSON are reported elsewhere."""
        if self.left:
            self.left -= 1
            self._look(event)

    def _look(self, event: Event) -> None:
        try:
            data = event.data
        except EventFormatError:  # the decoder reports it when the event is handled
            return
        if not isinstance(data, dict):
            return
        others = {canonical(key): key for key in data if key not in self._read}
        for field in self._fields if others else ():
            spelled = {canonical(way[0]) for way in field.read} & others.keys()
            if spelled and not any(way[0] in data for way in field.read):
                self.left = 0
                self._warn(event, field, others[spelled.pop()])

    def _warn(self, event: Event, field: FieldNames, key: str) -> None:
        name = (get_origin(self._cls) or self._cls).__name__
        _log.warning(
            "the data of %s have '%s', but %s reads '%s', so its field %s keeps its default\n"
            "  fix:   give the field the name that the data have, or an alias: Field(alias=%r), with its default",
            *(event.label, key, name, field.read[0][0], field.name, key),
        )


@cache
def spelling_of(cls: Any) -> SpellingCheck:
    """Return this process's only check for a class."""
    return SpellingCheck(cls)

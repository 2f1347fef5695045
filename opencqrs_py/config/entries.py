"""The contents of a source: flat entries with key, value and origin."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from enum import Enum, auto
from typing import TypeAlias

from opencqrs_py.config.inheritance import InheritedSection
from opencqrs_py.config.problems import MOST_LEVELS


class OriginKind(Enum):
    """The kinds of places that a value can come from, each with its text."""

    BUILT_IN = "built-in default"
    CODE = "default given in code"
    FILE = "{place}{numbers}"
    SECRET = "secret file {place}"  # noqa: S105 no secret
    VARIABLE = "environment variable {place}"
    ARGUMENT = "argument {place}"
    SOURCE = "settings given in code"
    TEST = "property of the test"
    STANDARD = "standard ({of})"
    RESET = "built-in default (reset by {of})"
    REPLACED = "replaced by {place} ({of})"


@dataclass(frozen=True, slots=True)
class Origin:
    """The place that a value comes from.

    Args:
        kind: What sort of place it is.
        place: Path of the file, name of the variable, key of the argument, or class of the user's own source.
        line: Line in the file, from 1; 0 when there is none or it is unknown.
        column: Column in the line, from 1; 0 when unknown.
        of: For ``STANDARD``, ``RESET`` and ``REPLACED``: the place of the value itself.
    """

    kind: OriginKind
    place: str = ""
    line: int = 0
    column: int = 0
    of: Origin | None = None

    @property
    def is_default(self) -> bool:
        """Whether the value is the built-in default."""
        return self.kind in {OriginKind.BUILT_IN, OriginKind.RESET}

    @property
    def is_secret(self) -> bool:
        """Whether the value was kept in a secrets folder, so that it must not be shown."""
        return self.kind is OriginKind.SECRET or (self.of is not None and self.of.is_secret)

    def __str__(self) -> str:
        if self.kind is OriginKind.SOURCE and self.place:
            return f"source {self.place}"
        numbers = "".join(f":{number}" for number in (self.line, self.column) if number)
        return self.kind.value.format(place=self.place, numbers=numbers, of=self.of)


BUILT_IN = Origin(OriginKind.BUILT_IN)
"""The origin of a built-in default."""


class Nothing(Enum):
    """What a key can have instead of a value."""

    EMPTY = auto()  # a key without anything after it: no value for a setting, an empty section
    UNSET = auto()  # an empty variable: as if it did not exist
    SECTION = auto()  # a section without content
    NESTED_LIST = auto()  # a list that holds more than single values


Value: TypeAlias = object
"""A text, a list of texts (a tuple), ``None`` for null, a :class:`Nothing`, or from code any object."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One key and value of a source."""

    key: tuple[str, ...]  # as written, from the outermost; each may be dotted
    value: Value
    origin: Origin  # of the value
    key_origins: tuple[Origin, ...] = ()  # of each key; empty if it is the place of the value

    def key_origin(self, index: int) -> Origin:
        """Return the place of the written key ``index``."""
        return self.key_origins[index] if self.key_origins else self.origin


class LayerKind(Enum):
    """How the keys of a layer are read."""

    FILE = auto()  # dotted keys below ``opencqrs``; all other keys belong to the user
    KEYS = auto()  # dotted keys, with ``opencqrs`` in front or without
    VARIABLES = auto()  # names of environment variables


@dataclass(frozen=True, slots=True)
class Layer:
    """The entries that have one rank: a document of a file, a folder of secrets, the environment, an argument."""

    kind: LayerKind
    entries: tuple[Entry, ...]


def keys_layer(value: object, origin: Origin) -> Layer:
    """Return the layer of nested mappings, whose keys may be dotted, of one place."""
    return Layer(LayerKind.KEYS, tuple(flattened(value, origin)))


def flattened(value: object, origin: Origin, key: tuple[str, ...] = ()) -> Iterator[Entry]:
    """Yield the entries of nested mappings, sections made in code, sequences and scalars, all of one place."""
    if hasattr(value, "model_fields_set"):
        value = {name: getattr(value, name) for name in value.model_fields_set}
    elif isinstance(value, InheritedSection):
        value = value.given()
    match value:
        case Mapping() as values if values and len(key) <= MOST_LEVELS:  # a longer key is refused when it is bound
            for name, below in values.items():
                yield from flattened(below, origin, (*key, str(name)))
        case Mapping():
            yield from [Entry(key, Nothing.SECTION, origin)] if key else []
        case Sequence() if not isinstance(value, str | bytes):
            is_flat = all(isinstance(item, str) or not isinstance(item, Mapping | Sequence) for item in value)
            yield Entry(key, tuple(map(_scalar, value)) if is_flat else Nothing.NESTED_LIST, origin)
        case _:
            yield Entry(key, _scalar(value), origin)


def _scalar(value: object) -> Value:
    if isinstance(value, bool):
        return "true" if value else "false"
    return value.isoformat() if isinstance(value, datetime | date | time) else value


def text_items(value: Value) -> tuple[str, ...]:
    """Return the texts of a list, which may be one text with commas."""
    items = value.split(",") if isinstance(value, str) else value if isinstance(value, list | tuple) else ()
    return tuple(str(item).strip() for item in items if item is not None and str(item).strip())


def parsed_json(text: str) -> Value:
    """Return the content of ``text``; numbers stay texts, as they are in all other sources.

    Raises:
        ValueError: ``text`` is not JSON, or names a key twice; the message quotes nothing but that key.
    """
    try:
        return json.loads(
            text, object_pairs_hook=_without_repetition, parse_int=str, parse_float=str, parse_constant=str
        )
    except json.JSONDecodeError as error:
        reason = f"{error.msg} at line {error.lineno}, column {error.colno}"
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:
        reason = str(error)
    raise ValueError(f"holds broken JSON: {reason}")


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} appears twice")
        found[key] = value
    return found

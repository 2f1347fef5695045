"""The contents of a source: flat entries with key, value and origin."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from enum import Enum, auto
from typing import TypeAlias

from opencqrs_py.config.groups import GroupSection
from opencqrs_py.config.keys import split_key
from opencqrs_py.config.problems import MOST_LEVELS


class OriginKind(Enum):
    """The kinds of places that a value can come from."""

    BUILT_IN = auto()
    CODE = auto()
    FILE = auto()
    SECRET = auto()
    VARIABLE = auto()
    ARGUMENT = auto()
    SOURCE = auto()
    TEST = auto()
    STANDARD = auto()
    RESET = auto()
    REPLACED = auto()


@dataclass(frozen=True, slots=True)
class Origin:
    """The place that a value comes from.

    Args:
        kind: What sort of place it is.
        place: Path of the file, name of the variable, key of the argument, or class of the user's own source.
        line: Line in the file, from 1; 0 when there is none or it is unknown.
        column: Column in the line, from 1; 0 when unknown.
        of: For ``STANDARD``, ``RESET`` and ``REPLACED``: the place that the value really stands in.
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
        return _TEXTS[self.kind].format(place=self.place, numbers=numbers, of=self.of)


_TEXTS = {
    OriginKind.BUILT_IN: "built-in default",
    OriginKind.CODE: "default given in code",
    OriginKind.FILE: "{place}{numbers}",
    OriginKind.SECRET: "secret file {place}",
    OriginKind.VARIABLE: "environment variable {place}",
    OriginKind.ARGUMENT: "argument {place}",
    OriginKind.SOURCE: "settings given in code",
    OriginKind.TEST: "property of the test",
    OriginKind.STANDARD: "standard ({of})",
    OriginKind.RESET: "built-in default (reset by {of})",
    OriginKind.REPLACED: "replaced by {place} ({of})",
}

BUILT_IN = Origin(OriginKind.BUILT_IN)
"""The origin of a built-in default."""


class Nothing(Enum):
    """What a key can have instead of a value."""

    EMPTY = "nothing"
    """A key without anything after it: no value for a setting, nothing said for a section."""
    UNSET = "unset"
    """An empty variable: as if it were not there."""
    SECTION = "section"
    """A section without content."""
    NESTED_LIST = "list of sections"
    """A list that holds more than single values."""


Value: TypeAlias = object
"""A text, a list of texts (a tuple), ``None`` for null, a :class:`Nothing`, or from code any object."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One key and value of a source.

    Args:
        key: The keys as they were written, from the outermost; each may be dotted.
        value: What is said, unconverted.
        origin: Where the value stands.
        key_origins: Where each of the keys stands; empty when that is where the value stands.
    """

    key: tuple[str, ...]
    value: Value
    origin: Origin
    key_origins: tuple[Origin, ...] = ()

    def key_origin(self, index: int) -> Origin:
        """Return the place of the written key ``index``."""
        return self.key_origins[index] if self.key_origins else self.origin

    @property
    def levels(self) -> int:
        """How many names the key has, at most; brackets are not looked at."""
        return len(self.key) + "".join(self.key).count(".")

    @property
    def pieces(self) -> tuple[tuple[str, ...], ...]:
        """The written keys, each split at its dots."""
        return tuple(map(split_key, self.key))


class LayerKind(Enum):
    """How the keys of a layer are read."""

    FILE = auto()
    """Dotted keys below ``opencqrs``; all other keys belong to the user."""
    KEYS = auto()
    """Dotted keys, with ``opencqrs`` in front or without."""
    VARIABLES = auto()
    """Names of environment variables."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The entries that have one rank: a document of a file, a folder of secrets, the environment, an argument."""

    kind: LayerKind
    entries: tuple[Entry, ...]


def flattened(value: object, origin: Origin, key: tuple[str, ...] = ()) -> Iterator[Entry]:
    """Yield the entries of nested mappings that carry no positions of their own (JSON, TOML, defaults in code).

    Args:
        value: Mappings (their keys may be dotted), sequences, scalars.
        origin: Where all of it stands.
        key: Keys below which ``value`` stands.
    """
    value = _as_mapping(value)
    match value:
        case Mapping() as values if values and len(key) <= MOST_LEVELS:  # a longer key is refused when it is bound
            for name, below in values.items():
                yield from flattened(below, origin, (*key, str(name)))
        case Mapping():
            yield from [Entry(key, Nothing.SECTION, origin)] if key else []
        case Sequence() if not isinstance(value, str | bytes):
            yield Entry(key, _items(value), origin)
        case _:
            yield Entry(key, _scalar(value), origin)


def _as_mapping(value: object) -> object:
    """Return the values given to a section that is made in code; anything else unchanged."""
    if hasattr(value, "model_fields_set"):
        return {name: getattr(value, name) for name in value.model_fields_set}
    if isinstance(value, GroupSection):
        return value.given()
    return value


def text_items(value: Value) -> tuple[str, ...]:
    """Return the texts of a list, which may be one text with commas."""
    match value:
        case str(text):
            items: tuple[object, ...] = tuple(text.split(","))
        case tuple(items):
            pass
        case _:
            items = ()
    return tuple(str(item).strip() for item in items if item is not None and str(item).strip())


def _items(values: Sequence[object]) -> Value:
    if any(isinstance(item, Mapping | Sequence) and not isinstance(item, str) for item in values):
        return Nothing.NESTED_LIST
    return tuple(_scalar(item) for item in values)


def _scalar(value: object) -> Value:
    match value:
        case bool():
            return "true" if value else "false"
        case datetime() | date() | time():
            return value.isoformat()
        case _:
            return value


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

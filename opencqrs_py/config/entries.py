"""What a source yields: flat entries, each a key, a value and where they stand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time
from enum import Enum, auto
from typing import TYPE_CHECKING, TypeAlias

from opencqrs_py.config.limits import MOST_LEVELS
from opencqrs_py.config.names import canonical, split_key

if TYPE_CHECKING:
    from opencqrs_py.config.matching import Key
    from opencqrs_py.config.origin import Origin

__all__ = ["Entry", "Layer", "LayerKind", "Nothing", "Value", "flattened", "text_items"]


class Nothing(Enum):
    """What can stand in place of a value."""

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
    """One setting as one source says it.

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
        """Return where the written key ``index`` stands."""
        return self.key_origins[index] if self.key_origins else self.origin

    @property
    def levels(self) -> int:
        """How many names the key has, at most; brackets are not looked at."""
        return sum(1 + key.count(".") for key in self.key)

    @property
    def pieces(self) -> Key:
        """The written keys, each split at its dots."""
        return tuple(map(split_key, self.key))

    @property
    def names(self) -> tuple[str, ...]:
        """The key in its canonical form, without the number of a list's item."""
        names = tuple(canonical(piece) for pieces in self.pieces for piece in pieces)
        return names[:-1] if names and names[-1].isdecimal() else names


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
    match value:
        case Mapping() if value and len(key) <= MOST_LEVELS:  # a longer key is refused when it is bound
            for name, below in value.items():
                yield from flattened(below, origin, (*key, str(name)))
        case Mapping():
            yield from [Entry(key, Nothing.SECTION, origin)] if key else []
        case Sequence() if not isinstance(value, str | bytes):
            yield Entry(key, _items(value), origin)
        case _:
            yield Entry(key, _scalar(value), origin)


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

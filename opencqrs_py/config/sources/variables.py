"""Environment variables: which of them are settings, and how their names are read."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from opencqrs_py.config.entries import Entry, Layer, LayerKind, Nothing, Value
from opencqrs_py.config.matching import Dialect, Key
from opencqrs_py.config.names import split_key
from opencqrs_py.config.origin import Origin, OriginKind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from opencqrs_py.config.tree import Path

__all__ = [
    "INLINE_JSON",
    "environment_layer",
    "is_ours",
    "keys_of_variable",
    "text_value",
    "variable_name",
]

INLINE_JSON = "OPENCQRS_APPLICATION_JSON"
"""The variable that holds settings as one JSON object."""

_OURS = re.compile(r"opencqrs(?:$|[_.])", re.IGNORECASE)
_PREFIX_LENGTH = len("opencqrs")


def is_ours(name: str) -> bool:
    """Return whether the variable ``name`` claims to be a setting of this package."""
    return _OURS.match(name) is not None and name.upper() != INLINE_JSON


def environment_layer(environ: Mapping[str, str]) -> Layer:
    """Return all variables of ``environ`` as entries; the binder leaves those alone that are not ours."""
    entries = (
        Entry((name,), text_value(text), Origin(OriginKind.VARIABLE, name))
        for name, text in environ.items()
        if name.upper() != INLINE_JSON
    )
    return Layer(LayerKind.VARIABLES, tuple(entries))


def text_value(text: str) -> Value:
    """Return what a text says where there are only texts: empty is unset, ``null`` is null."""
    if not text.strip():
        return Nothing.UNSET
    return None if text.strip() == "null" else text


def keys_of_variable(name: str, prefix_length: int = _PREFIX_LENGTH) -> Iterable[tuple[Key, Dialect]]:
    """Yield the ways to split the variable ``name``; the first that means something counts.

    ``OPENCQRS__A_B__C`` is split at ``__`` (the style of pydantic-settings) and, when that means nothing or there is
    no ``__``, at every ``_`` (the style of Spring Boot). A name with dots, which shells cannot set but containers
    can, is a dotted key.
    """
    rest = name[prefix_length:]
    if rest.startswith("."):
        yield (split_key(rest),), Dialect.DOTTED
        return
    segments = tuple((segment.strip("_"),) for segment in rest.strip("_").split("__") if segment.strip("_"))
    if len(segments) > 1:
        yield segments, Dialect.VARIABLE
    words = tuple(word for word in rest.split("_") if word)
    yield (words,) if words else (), Dialect.VARIABLE


def variable_name(path: Path) -> str:
    """Return the variable that documents recommend for the setting at ``path``."""
    names = (re.sub(r"[^A-Z0-9]+", "_", name.upper()).strip("_") for name in path)
    return "__".join(("OPENCQRS", *names))

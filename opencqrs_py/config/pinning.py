"""Properties that a test sets: they win over every source."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from opencqrs_py.config.origin import OriginKind
from opencqrs_py.config.sources.arguments import code_layer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from opencqrs_py.config.entries import Layer

__all__ = ["pinned", "pinned_layers"]

_pinned: ContextVar[tuple[Mapping[str, object], ...]] = ContextVar("pinned", default=())


@contextmanager
def pinned(properties: Mapping[str, object]) -> Iterator[None]:
    """Let ``properties`` win over every source of each ``load`` within the ``with`` block; meant for tests.

    Args:
        properties: Values by dotted key, or nested; of nested blocks the inner one wins.
    """
    token = _pinned.set((*_pinned.get(), properties))
    try:
        yield
    finally:
        _pinned.reset(token)


def pinned_layers() -> list[Layer]:
    """Return the pinned properties, from the outer block to the inner."""
    return [code_layer(properties, OriginKind.TEST) for properties in _pinned.get()]

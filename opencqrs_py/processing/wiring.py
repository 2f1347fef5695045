"""Wiring: the parameters that dependency-injector fills itself, by ``@inject`` and markers such as ``Provide[…]``.

Its markers and what it has wrapped are recognised by their attributes, so that nothing here imports it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

MARKER_FIX = (
    "annotate it with a class that a provider makes, and leave {marker} out; or put @inject directly above the "
    "function, and wire the container, as by wiring_config = containers.WiringConfiguration(modules=[__name__])"
)
"""How to fix a parameter whose default is a marker that wiring does not replace."""


def marker_in(default: object) -> str:
    """Return the name of the marker that a parameter has as its default, such as ``Provide``; empty if it has none."""
    return type(default).__name__ if getattr(type(default), "__IS_MARKER__", False) is True else ""


def wired_parameters(layers: Iterable[Any]) -> frozenset[str]:
    """Return the parameters that wiring fills of a function, given with what it wraps.

    ``@inject`` has wrapped one of these, and a container is wired that has the providers.
    """
    registry: Any = getattr(sys.modules.get("dependency_injector.wiring"), "_patched_registry", None)
    if registry is None:  # nothing was wired
        return frozenset()
    functions = (getattr(layer, "__func__", layer) for layer in layers)
    wrapped = (registry.get_callable(function) for function in functions if function.__hash__ is not None)
    return frozenset(name for each in wrapped if each is not None for name in each.injections)

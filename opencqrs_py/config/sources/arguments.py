"""Settings given on the command line (``--set key=value``) and in code."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opencqrs_py.config.entries import Entry, Layer, LayerKind, flattened
from opencqrs_py.config.origin import Origin, OriginKind
from opencqrs_py.config.problems import Code, Findings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["argument_layers", "code_layer"]


def argument_layers(overrides: Sequence[str], findings: Findings) -> list[Layer]:
    """Return each ``key=value`` as a layer of its own, so that the last one wins."""
    layers: list[Layer] = []
    for override in overrides:
        key, sign, text = override.partition("=")
        origin = Origin(OriginKind.ARGUMENT, f"--set {key.strip()}")
        if not sign or not key.strip():
            what = f"the argument --set {key.strip()} says no value" if key.strip() else "an argument --set has no key"
            findings.error(
                Code.ARGUMENT, what, origin, "write it like --set event-handling.groups.books.fetch.subject=/books"
            )
            continue
        value = None if text.strip() == "null" else text
        layers.append(Layer(LayerKind.KEYS, (Entry((key.strip(),), value, origin),)))
    return layers


def code_layer(values: Mapping[str, object], kind: OriginKind = OriginKind.CODE) -> Layer:
    """Return values given in code, nested or with dotted keys."""
    return Layer(LayerKind.KEYS, tuple(flattened(values, Origin(kind))))

"""All settings in one variable: ``OPENCQRS_APPLICATION_JSON``."""

from __future__ import annotations

from collections.abc import Mapping

from opencqrs_py.config.entries import Layer, LayerKind, flattened
from opencqrs_py.config.origin import Origin, OriginKind
from opencqrs_py.config.problems import Code, Findings
from opencqrs_py.config.sources.json_text import parsed_json
from opencqrs_py.config.sources.variables import INLINE_JSON

__all__ = ["inline_json_layer"]


def inline_json_layer(environ: Mapping[str, str], findings: Findings) -> Layer:
    """Return what ``OPENCQRS_APPLICATION_JSON`` sets; its keys may be dotted, and leave ``opencqrs`` out."""
    name, text = next(((name, text) for name, text in environ.items() if name.upper() == INLINE_JSON), ("", ""))
    if not text.strip():
        return Layer(LayerKind.KEYS, ())
    origin = Origin(OriginKind.VARIABLE, name)
    try:
        content = parsed_json(text)
    except ValueError as error:
        findings.error(Code.WRONG_SHAPE, f"{name} holds broken JSON: {error}", origin, "mend the JSON")
        return Layer(LayerKind.KEYS, ())
    if not isinstance(content, Mapping):
        fix = 'write it like {"event-handling": {"groups": {}}}'
        findings.error(Code.WRONG_SHAPE, f"{name} holds no JSON object", origin, fix)
        return Layer(LayerKind.KEYS, ())
    return Layer(LayerKind.KEYS, tuple(flattened(content, origin)))

"""Settings as one JSON object in a variable, wherever variables are set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from opencqrs_py.config.entries import Entry, Layer, LayerKind, flattened, parsed_json
from opencqrs_py.config.keys import INLINE_JSON
from opencqrs_py.config.problems import Code, Findings


def variable_layers(variables: Iterable[Entry], findings: Findings) -> list[Layer]:
    """Return the layer of the variables of one place, and above it that of the JSON object that one of them holds."""
    single: list[Entry] = []
    inline: list[Entry] = []
    for entry in variables:
        if entry.key[0].upper() == INLINE_JSON:
            inline += inline_entries(entry, findings)
        else:
            single.append(entry)
    layers = [Layer(LayerKind.VARIABLES, tuple(single)), Layer(LayerKind.KEYS, tuple(inline))]
    return [layer for layer in layers if layer.entries]


def inline_entries(variable: Entry, findings: Findings) -> Iterator[Entry]:
    """Yield the settings in the JSON object of a variable; its keys may be dotted, and leave ``opencqrs`` out."""
    (name,), text = variable.key, variable.value
    if not isinstance(text, str) or not text.strip():
        return
    try:
        content = parsed_json(text)
    except ValueError as error:
        what, fix = f"{name} {error}", "correct the JSON"
    else:
        if isinstance(content, Mapping):
            yield from flattened(content, variable.origin)
            return
        what, fix = f"{name} holds no JSON object", 'write it like {"event-handling": {"groups": {}}}'
    findings.error(Code.WRONG_SHAPE, what, variable.origin, fix)

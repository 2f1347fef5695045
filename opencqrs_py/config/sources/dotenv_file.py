"""The file ``.env``: variables that are not set in the environment."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

from dotenv.parser import parse_stream

from opencqrs_py.config.entries import Entry, Layer, LayerKind, Nothing
from opencqrs_py.config.origin import Origin, OriginKind
from opencqrs_py.config.problems import Code, Findings
from opencqrs_py.config.sources.variables import text_value

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["dotenv_layer"]


def dotenv_layer(file: Path, text: str, findings: Findings) -> Layer:
    """Return the variables of the ``.env`` file with the content ``text``."""
    entries: list[Entry] = []
    for binding in parse_stream(StringIO(text)):
        origin = Origin(OriginKind.FILE, file.name, binding.original.line)
        if binding.error:
            findings.error(Code.FILE_UNREADABLE, "it is no variable", origin, "write it like NAME=value")
        elif binding.key is not None:
            value = Nothing.UNSET if binding.value is None else text_value(binding.value)
            entries.append(Entry((binding.key,), value, origin))
    return Layer(LayerKind.VARIABLES, tuple(entries))

"""A folder of secrets, as container platforms mount it: the name of a file is the key, its content the value."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from opencqrs_py.config.entries import Entry, Layer, LayerKind
from opencqrs_py.config.origin import Origin, OriginKind
from opencqrs_py.config.presence import why_no_file, why_no_folder
from opencqrs_py.config.problems import Code, Findings
from opencqrs_py.config.sources.variables import is_ours

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["secrets_layers"]


def secrets_layers(folder: Path, shown: str, findings: Findings) -> list[Layer]:
    """Return the files below ``folder``: those named like variables, and those named like keys.

    ``opencqrs.database.url``, ``opencqrs/database/url`` and ``OPENCQRS__DATABASE__URL`` are one key. Hidden files, by
    which platforms keep versions, are left out, and so are files of others that hold no text.

    Args:
        folder: The folder.
        shown: How messages call it.
        findings: Takes the problems.
    """
    by_key: list[Entry] = []
    by_variable: list[Entry] = []
    for file in _files(folder):
        parts = file.relative_to(folder).parts
        is_variable = len(parts) == 1 and "." not in parts[0] and is_ours(parts[0])
        origin = Origin(OriginKind.SECRET, f"{shown.rstrip('/')}/{'/'.join(parts)}")
        text = _text(file)
        if text is not None:
            (by_variable if is_variable else by_key).append(Entry(parts, text, origin))
        elif is_ours(parts[0]):
            fix = "check its rights and encoding"
            findings.error(Code.FILE_UNREADABLE, "the secret cannot be read as text", origin, fix)
    return [Layer(LayerKind.FILE, tuple(by_key)), Layer(LayerKind.VARIABLES, tuple(by_variable))]


def _files(folder: Path) -> Iterator[Path]:
    """Yield all that is below ``folder``, and folders that cannot be looked into."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if os.path.isdir(path) and not why_no_folder(path):  # noqa: PTH112 which does not raise
            yield from _files(path)
        else:
            yield path


def _text(file: Path) -> str | None:
    """Return what a file holds; ``None`` if that is no text, or it is no file that can be read."""
    if why_no_file(file):
        return None
    try:
        return file.read_bytes().decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError):
        return None

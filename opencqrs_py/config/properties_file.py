"""``.properties`` files: ``key=value`` lines with Java's escapes and continuations, documents separated by ``#---``.

Source:
    java.util.Properties, "load"; Spring Boot reference, "Working With Multi-Document Files".
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from opencqrs_py.config.entries import Entry
from opencqrs_py.config.problems import Code, Findings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opencqrs_py.config.entries import Origin

_SEPARATOR = re.compile(r"[#!]---\s*")
_KEY = re.compile(r"((?:\\.|[^\\\s=:])*)\s*[=:]?\s*", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def properties_documents(text: str, file: Origin, findings: Findings) -> list[list[Entry]]:
    """Return the entries of each document in ``text``; duplicate keys are reported."""
    documents: list[list[Entry]] = [[]]
    for line, place in _logical_lines(text, file):
        if _SEPARATOR.fullmatch(line):
            documents.append([])
        elif line[0] not in "#!":
            documents[-1].append(_entry(line, place))
    for document in documents:
        seen: dict[tuple[str, ...], Entry] = {}
        for entry in document:
            first = seen.setdefault(entry.key, entry)
            if first is not entry:
                what = f"the key {entry.key[0]} appears twice, first in line {first.origin.line}"
                findings.error(Code.SET_TWICE, what, entry.key_origin(0), "remove one of them")
    return documents


def _logical_lines(text: str, file: Origin) -> Iterator[tuple[str, Origin]]:
    """Yield each line that is not blank, with its place; an odd number of backslashes at the end continues a line."""
    parts: list[str] = []
    place, lines = file, text.splitlines()
    for number, line in enumerate(lines, start=1):
        stripped = line.lstrip()
        if not parts:
            place = replace(file, line=number, column=len(line) - len(stripped) + 1)
            is_comment = stripped[:1] in {"#", "!"}
        is_open = (len(stripped) - len(stripped.rstrip("\\"))) % 2 == 1 and not is_comment
        parts.append(stripped[:-1] if is_open else stripped)
        if not is_open or number == len(lines):
            if whole := "".join(parts):
                yield whole, place
            parts = []


def _entry(line: str, place: Origin) -> Entry:
    match = next(_KEY.finditer(line))
    value = _unescaped(line[match.end() :])
    origin = replace(place, column=place.column + match.end())
    return Entry((_unescaped(match[1]),), None if value == "null" else value, origin, (place,))


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda m: chr(int(m[1][1:], 16)) if len(m[1]) > 1 else _CONTROL.get(m[1], m[1]), text)

"""``.properties`` files: ``key=value`` lines with Java's escapes and continuations, documents separated by ``#---``.

Source:
    java.util.Properties, "load"; Spring Boot reference, "Working With Multi-Document Files".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
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


@dataclass(frozen=True, slots=True)
class _Line:
    """A logical line: its text, continuations joined, the number of its first line, and how far that is indented."""

    text: str
    number: int
    indent: int


def properties_documents(text: str, file: Origin, findings: Findings) -> list[list[Entry]]:
    """Return the entries of each document in ``text``.

    Args:
        text: Content of the file.
        file: The file, without a line.
        findings: Takes the problems: keys that stand there twice.
    """
    documents: list[list[Entry]] = [[]]
    for line in _logical_lines(text):
        if _SEPARATOR.fullmatch(line.text):
            documents.append([])
        elif line.text[0] not in "#!":
            documents[-1].append(_entry(line, file))
    for document in documents:
        _check_repetition(document, findings)
    return documents


def _logical_lines(text: str) -> Iterator[_Line]:
    """Yield the lines that are not blank; an odd number of backslashes at the end continues a line."""
    parts: list[str] = []
    first, indent = 0, 0
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.lstrip()
        if not parts:
            first, indent = number, len(line) - len(stripped)
            is_comment = stripped[:1] in {"#", "!"}
        if _ends_open(stripped) and not is_comment:
            parts.append(stripped[:-1])
            continue
        if whole := "".join((*parts, stripped)):
            yield _Line(whole, first, indent)
        parts = []
    if whole := "".join(parts):
        yield _Line(whole, first, indent)


def _ends_open(line: str) -> bool:
    """Return whether ``line`` ends in an odd number of backslashes."""
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _entry(line: _Line, file: Origin) -> Entry:
    match = _KEY.match(line.text)
    end = match.end() if match else 0
    key = _unescaped(match[1]) if match else ""
    value = _unescaped(line.text[end:])
    place = replace(file, line=line.number, column=line.indent + 1)
    return Entry((key,), None if value == "null" else value, replace(place, column=place.column + end), (place,))


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: _character(match[1]), text)


def _character(escaped: str) -> str:
    return chr(int(escaped[1:], 16)) if len(escaped) > 1 else _CONTROL.get(escaped, escaped)


def _check_repetition(document: list[Entry], findings: Findings) -> None:
    seen: dict[tuple[str, ...], Entry] = {}
    for entry in document:
        first = seen.setdefault(entry.key, entry)
        if first is not entry:
            what = f"the key {entry.key[0]} stands there twice, first in line {first.origin.line}"
            findings.error(Code.SET_TWICE, what, entry.key_origin(0), "remove one of them")

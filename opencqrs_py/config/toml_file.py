"""TOML files: entries with the line and column of their key, as far as they can be found."""

from __future__ import annotations

import re
import tomllib
from dataclasses import replace
from typing import TYPE_CHECKING

from opencqrs_py.config.entries import Entry, flattened
from opencqrs_py.config.problems import MOST_LEVELS, Code, Findings

if TYPE_CHECKING:
    from opencqrs_py.config.entries import Origin


_HEADER = re.compile(r"^\s*\[(?!\[)\s*(?P<key>[^\]]+?)\s*\]\s*(?:#.*)?$")
_KEY = re.compile(
    r"^(?P<space>\s*)(?P<key>(?:[A-Za-z0-9_-]+|\"[^\"\\]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"\\]*\"|'[^']*'))*)\s*=\s*"
)
_NAME = re.compile(r"\"([^\"\\]*)\"|'([^']*)'|([A-Za-z0-9_-]+)")
_LONG_NUMBER = re.compile(r"[0-9_]{4300,}")
_PLACE = re.compile(r"\(at line (\d+), column (\d+)\)")


def toml_documents(text: str, file: Origin, findings: Findings) -> list[list[Entry]]:
    """Return the entries of ``text`` as one document.

    Args:
        text: Content of the file.
        file: The file, without a line.
        findings: Takes the problems; a broken file has no documents.
    """
    try:
        content = tomllib.loads(text, parse_float=str)
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        where = replace(file, line=int(place[1]), column=int(place[2])) if place else file
        reason = _PLACE.sub("", str(error)).strip()
        findings.error(Code.FILE_UNREADABLE, f"it is no TOML: {reason}", where, "check brackets and quotes there")
        return []
    except RecursionError:
        what, where = f"it is nested deeper than {MOST_LEVELS} levels", replace(file, line=_deepest_line(text))
        findings.error(Code.TOO_MUCH, what, where, "write fewer levels")
        return []
    except ValueError:  # of Python itself: a number of more than 4,300 digits
        where = replace(
            file, line=1 + text.count("\n", 0, found.start()) if (found := _LONG_NUMBER.search(text)) else 0
        )
        findings.error(Code.FILE_UNREADABLE, "a number has too many digits", where, "put it in quotes")
        return []
    places = _places(text, file)
    return [[_placed(_with_texts(entry), places) for entry in flattened(content, file)]] if content else []


def _deepest_line(text: str) -> int:
    """Return the line with the most brackets, in which the nesting is."""
    lines = text.splitlines()
    return 1 + max(range(len(lines)), key=lambda number: lines[number].count("[") + lines[number].count("{"))


def _with_texts(entry: Entry) -> Entry:
    """Return ``entry`` with its numbers as texts, as in all other files."""
    match entry.value:
        case int(number):
            return replace(entry, value=str(number))
        case tuple(items):
            return replace(entry, value=tuple(str(item) for item in items))
        case _:
            return entry


def _placed(entry: Entry, places: dict[tuple[str, ...], tuple[Origin, Origin]]) -> Entry:
    """Return ``entry`` with the place of its key, else with that of the table or inline table around it."""
    key_origins = tuple(
        next((places[entry.key[:n]][0] for n in range(length, 0, -1) if entry.key[:n] in places), entry.origin)
        for length in range(1, len(entry.key) + 1)
    )
    if len(entry.key) > MOST_LEVELS:  # it was cut off, and is refused by the name of its file and line
        whole = next((place for key, place in places.items() if key[: len(entry.key)] == entry.key), None)
        key_origins = (whole[0],) * len(entry.key) if whole else key_origins
    value = places[entry.key][1] if entry.key in places else key_origins[-1]
    return replace(entry, origin=value, key_origins=key_origins)


def _places(text: str, file: Origin) -> dict[tuple[str, ...], tuple[Origin, Origin]]:
    """Return the places of keys and values, line by line; multi-line texts are skipped."""
    places: dict[tuple[str, ...], tuple[Origin, Origin]] = {}
    table: tuple[str, ...] = ()
    quotes = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if quotes:
            quotes = "" if quotes in line else quotes
            continue
        if header := _HEADER.match(line):
            table = _names(header["key"])
            here = replace(file, line=number, column=header.start("key") + 1)
            places.setdefault(table, (here, here))
        elif match := _KEY.match(line):
            key = (*table, *_names(match["key"]))
            start = replace(file, line=number, column=match.start("key") + 1)
            places.setdefault(key, (start, replace(start, column=match.end() + 1)))
        quotes = next((mark for mark in ('"""', "'''") if line.count(mark) % 2), "")
    return places


def _names(key: str) -> tuple[str, ...]:
    return tuple(double or single or bare for double, single, bare in _NAME.findall(key))

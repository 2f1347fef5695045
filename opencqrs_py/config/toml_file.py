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
_NAMED = r"(?:[A-Za-z0-9_-]+|\"[^\"\\]*\"|'[^']*')"
_KEY = re.compile(rf"^\s*(?P<key>{_NAMED}(?:\s*\.\s*{_NAMED})*)\s*=\s*")
_NAME = re.compile(r"\"([^\"\\]*)\"|'([^']*)'|([A-Za-z0-9_-]+)")
_LONG_NUMBER = re.compile(r"[0-9_]{4300,}")
_PLACE = re.compile(r"\(at line (\d+), column (\d+)\)")


def toml_documents(text: str, file: Origin, findings: Findings) -> list[list[Entry]]:
    """Return the entries of ``text`` as one document; a broken file has none."""
    try:
        content = tomllib.loads(text, parse_float=str)
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        where = replace(file, line=int(place[1]), column=int(place[2])) if place else file
        reason = _PLACE.sub("", str(error)).strip()
        findings.error(Code.FILE_UNREADABLE, f"it is not TOML: {reason}", where, "check brackets and quotes there")
        return []
    except RecursionError:
        places = _places(text, file)
        if (too_long := next((key for key in places if len(key) > MOST_LEVELS), None)) is not None:
            cut_off = too_long[: MOST_LEVELS + 1]  # as flattened() does; it is refused when it is bound
            return [[_placed(Entry(cut_off, "", file), places)]]
        brackets = [line.count("[") + line.count("{") for line in text.splitlines()]
        where = replace(file, line=brackets.index(max(brackets)) + 1)
        findings.error(Code.TOO_MUCH, f"it is nested deeper than {MOST_LEVELS} levels", where, "write fewer levels")
        return []
    except ValueError:  # of Python itself: a number of more than 4,300 digits
        found = _LONG_NUMBER.search(text)
        where = replace(file, line=1 + text.count("\n", 0, found.start()) if found else 0)
        findings.error(Code.FILE_UNREADABLE, "a number has too many digits", where, "put it in quotes")
        return []
    places = _places(text, file)
    return [[_placed(entry, places) for entry in flattened(content, file)]] if content else []


def _placed(entry: Entry, places: dict[tuple[str, ...], tuple[Origin, Origin]]) -> Entry:
    """Return ``entry`` with the place of its key, else with that of the table or inline table around it.

    Its numbers become texts, as in all other files.
    """
    key = entry.key
    key_origins = tuple(
        next((places[key[:n]][0] for n in range(length, 0, -1) if key[:n] in places), entry.origin)
        for length in range(1, len(key) + 1)
    )
    if len(key) > MOST_LEVELS:  # it was cut off, and is refused by the name of its file and line
        whole = next((place for each, place in places.items() if each[: len(key)] == key), None)
        key_origins = (whole[0],) * len(key) if whole else key_origins
    value = tuple(map(str, entry.value)) if isinstance(entry.value, tuple) else entry.value
    value = str(value) if isinstance(value, int) else value
    return Entry(key, value, places[key][1] if key in places else key_origins[-1], key_origins)


def _places(text: str, file: Origin) -> dict[tuple[str, ...], tuple[Origin, Origin]]:
    """Return the places of keys and values, line by line; multi-line texts are skipped."""
    places: dict[tuple[str, ...], tuple[Origin, Origin]] = {}
    table: tuple[str, ...] = ()
    quotes = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if quotes:
            quotes = "" if quotes in line else quotes
            continue
        if found := _HEADER.match(line) or _KEY.match(line):
            names = tuple("".join(each) for each in _NAME.findall(found["key"]))
            is_table = found.re is _HEADER
            table, key = (names, names) if is_table else (table, (*table, *names))
            start = replace(file, line=number, column=found.start("key") + 1)
            places.setdefault(key, (start, start if is_table else replace(start, column=found.end() + 1)))
        quotes = next((mark for mark in ('"""', "'''") if line.count(mark) % 2), "")
    return places

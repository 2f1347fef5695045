"""Many lines with one CloudEvent each, taken together: column by column."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import chain, repeat
from operator import itemgetter
from secrets import token_hex
from typing import Any

import orjson

from opencqrs_py.model.chunk import EventRow
from opencqrs_py.model.event import Event

Columns = Mapping[str, Sequence[Any]]
"""The attributes of several events by name; each has one value for each event. That of ``data`` is JSON text."""

_REQUIRED = frozenset({"id", "source", "type"})
_TEXTS = (*_REQUIRED, "subject", "datacontenttype")
_SAME = {"specversion": "1.0", "datacontenttype": "application/json"}  # in nearly every event, and if they are missing
_CORE = frozenset({*_TEXTS, "specversion", "time", "data"})
_IF_ABSENT = {**_SAME, "subject": "", "time": None, "data": None}
_ABSENT = object()
"""The value of an extension that an event does not have, where others beside it do."""
_MARK = token_hex(16)  # no line can contain it, so no line can extend into the next one
_BETWEEN = f',"{_MARK}",'
_BETWEEN_LINES = _BETWEEN.encode()
_BACKSLASH = ord("\\")
_SPACE = b" \t\r"
_ESCAPES = re.compile(r"\\(?:\\|u(?!00[0-7])[0-9A-Fa-f]{4}(?:\\u(?!00[0-7])[0-9A-Fa-f]{4})*)")
"""Escaped characters beyond ASCII (what ASCII means outside texts no escape does), and escaped backslashes."""
_SHAPES = 64  # that are remembered; to compile one takes as long as to read some hundred lines
_load, _dump = orjson.loads, orjson.dumps
_time_of = datetime.fromisoformat


def columns_of(lines: Sequence[bytes]) -> Columns | None:
    """Return the attributes of the events of a stored log, unless a line has to be parsed individually.

    In most logs all lines have the same attributes in the same order, all of them texts, and the data at the end: then
    a regular expression splits them, and only data are parsed. Otherwise the lines are.
    What was parsed is serialised again, all of it together. If that gives the same text, except for space between the
    parts, then no digit of a number was lost and no key appears twice. The rest is done by columns. Lines for which
    that does not hold are not errors: they are left to ``parse_event``.

    Args:
        lines: At least one, each with its line end, except for the last one.

    Returns:
        ``None`` if a line has to be parsed individually.
    """
    text, number = b"".join(lines), len(lines)
    try:
        if _BACKSLASH in text and b"\\u" in text:
            text = _ESCAPES.sub(_unescaped, text.decode()).encode()
        columns = _split(text, number)
        if columns is None and (fields := _fields(text, number)):
            columns = _columns(fields)
        return columns if columns and _have_times(columns) else None
    except (ValueError, TypeError, LookupError, OverflowError):  # not JSON, no text, an attribute missing, no such time
        return None


def events_of(columns: Columns, positions: Iterable[int]) -> list[Event]:
    """Return the events with these attributes, as ``parse_event`` makes them."""
    values = zip(
        positions,
        columns["id"],
        columns["source"],
        subjects_of(columns),
        columns["type"],
        columns.get("time") or repeat(None),
        _or(columns.get("datacontenttype"), "application/json"),
        columns.get("data") or repeat(None),
        _extensions(columns),
        strict=False,
    )
    return list(map(tuple.__new__, repeat(Event), values))


def rows_of(columns: Columns, positions: Iterable[int]) -> list[EventRow]:
    """Return position, type, payload and subject of each event."""
    payloads = columns.get("data") or repeat(None)
    return list(zip(positions, columns["type"], payloads, subjects_of(columns), strict=False))


def subjects_of(columns: Columns) -> Iterable[str]:
    """Return the subjects of the events; an endless iterator if none of them has one."""
    return _or(columns.get("subject"), "/")


def _unescaped(escapes: re.Match[str]) -> str:
    r"""Return escaped characters as themselves; that of an escaped backslash escapes nothing after it."""
    return escapes[0] if escapes[0] == r"\\" else str(_load(f'"{escapes[0]}"'))


def _split(text: bytes, number: int) -> dict[str, Sequence[Any]] | None:
    """Return the attributes of lines that have the same shape as the first one, ``None`` if one of them has not.

    What stands between two quotation marks is the text that a parser returns if it contains neither a backslash nor a
    control character; without a line feed it cannot extend into the next line.
    """
    line, *_ = text.split(b"\n", 1)
    first = _load(line)
    if not _is_plain(first) or _has_zero(text):
        return None
    shape = _shape(tuple(first), is_spaced=line.partition(b":")[2].startswith(b" "))
    found = shape.findall("\n" + text.decode()) if shape else ()
    if len(found) != number:
        return None
    names = [name for name in first if name not in _SAME]
    columns: dict[str, Sequence[Any]] = dict(zip(names, zip(*found, strict=True), strict=True))
    payloads = columns.pop("data", ())
    joined = "".join(map("".join, columns.values()))
    if _dump(joined)[1:-1] != joined.encode():
        return None
    return _with_data(columns, payloads) if payloads else columns


def _is_plain(fields: Any) -> bool:
    """Return whether a line is an object of texts besides its data, with the usual values of what nearly all share."""
    return (
        isinstance(fields, dict)
        and all(fields.get(name, value) == value for name, value in _SAME.items())
        and all(isinstance(value, str) for name, value in fields.items() if name != "data")
    )


@lru_cache(_SHAPES)
def _shape(names: Sequence[str], *, is_spaced: bool) -> re.Pattern[str] | None:
    """Return what matches lines with these attributes in this order, with or without spaces as Python writes them."""
    if not _REQUIRED.issubset(names) or "data_base64" in names or "data" in names[:-1]:
        return None
    values = {name: re.escape(f'"{value}"') for name, value in _SAME.items()}
    values |= {"data": "(.*)", **dict.fromkeys(_REQUIRED, '"([^"]+)"')}
    colon, comma = (": ", ", ") if is_spaced else (":", ",")
    members = (re.escape(_dump(name).decode()) + colon + values.get(name, '"([^"]*)"') for name in names)
    return re.compile(r"\n\{" + comma.join(members) + r"\}[ \t\r]*$", re.MULTILINE)


def _with_data(columns: dict[str, Sequence[Any]], texts: Sequence[str]) -> dict[str, Sequence[Any]] | None:
    """Return columns and their data, ``None`` if a text is not JSON, or not what its value is written as."""
    text = f"[{_BETWEEN.join(texts)}]".encode()
    values = _parsed(text, len(texts))
    if values is None:
        return None
    written = _dump(values)
    if written != text:
        if not _differ_in_space(written, text):
            return None
        texts = written[1:-1].decode().split(_BETWEEN)
    payloads = [None if each == "null" else each for each in texts] if "null" in texts else texts
    return {**columns, "data": payloads}


def _parsed(text: bytes, number: int) -> list[Any] | None:
    """Return the values of a JSON array with marks between them, with the marks; ``None`` if it has others."""
    every: list[Any] = _load(text)
    return every if len(every) == 2 * number - 1 and every[1::2].count(_MARK) == number - 1 else None


def _differ_in_space(one: bytes, other: bytes) -> bool:
    """Return whether two JSON texts are the same except for space between their parts."""
    return one.translate(None, _SPACE) == other.translate(None, _SPACE)


def _has_zero(text: bytes) -> bool:
    return _BACKSLASH in text and b"\\u0000" in text


def _fields(text: bytes, number: int) -> list[dict[str, Any]] | None:
    if _has_zero(text):
        return None
    text = b"[%s]" % text.removesuffix(b"\n").replace(b"\n", _BETWEEN_LINES)
    every = _parsed(text, number)
    if every is None:
        return None
    written = _dump(every)
    return every[::2] if written == text or _differ_in_space(written, text) else None


def _columns(fields: list[dict[str, Any]]) -> dict[str, Sequence[Any]] | None:
    """Return the values by attribute; ``None`` if extensions come in an order that not all events share."""
    shapes = dict.fromkeys(map(tuple, fields))
    names = tuple(dict.fromkeys(chain.from_iterable(shapes)))
    extensions = _extensions_in(names)
    if any(_extensions_in(each) != [name for name in extensions if name in each] for each in shapes):
        return None
    columns: dict[str, Sequence[Any]]
    if len(shapes) == 1:
        columns = dict(zip(names, zip(*map(itemgetter(*names), fields), strict=True), strict=True))
    else:
        columns = {name: _column(fields, name) for name in names}
    if "data" in columns:
        columns["data"] = tuple(None if each is None else _dump(each).decode() for each in columns["data"])
    return columns if _are_right(columns) else None


def _extensions_in(names: Iterable[str]) -> list[str]:
    return [name for name in names if name not in _CORE]


def _column(fields: list[dict[str, Any]], name: str) -> list[Any]:
    if name in _REQUIRED:
        return [each[name] for each in fields]
    absent, value_in = _IF_ABSENT.get(name, _ABSENT), dict.get  # which raises for what is not an object
    return [value_in(each, name, absent) for each in fields]


def _are_right(columns: Columns) -> bool:
    for name in _TEXTS:
        "".join(each for each in columns.get(name, ()) if each is not None)  # raises if a value is not a text
    return (
        all(all(columns[name]) for name in _REQUIRED)
        and "data_base64" not in columns
        and set(columns.get("specversion", ("1.0",))) == {"1.0"}
    )


def _have_times(columns: Columns) -> bool:
    times = [each for each in columns.get("time", ()) if each is not None]
    return not times or max(map(_time_of, times)).tzinfo is not None


def _or(column: Sequence[str] | None, otherwise: str) -> Iterable[str]:
    if column is None:
        return repeat(otherwise)
    return column if all(column) else [each or otherwise for each in column]


def _extensions(columns: Columns) -> Iterable[str | None]:
    names = _extensions_in(columns)
    if not names:
        return repeat(None)
    rows = zip(*map(columns.__getitem__, names), strict=True)
    extensions = ({name: each for name, each in zip(names, row, strict=True) if each is not _ABSENT} for row in rows)
    return [_dump(each).decode() if each else None for each in extensions]

"""Many lines with one CloudEvent each, taken together: column by column."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import chain, repeat
from operator import itemgetter
from secrets import token_hex
from typing import Any

import orjson

from opencqrs_py.model.chunk import EventRow
from opencqrs_py.model.event import Event
from opencqrs_py.model.line_shapes import CORE, REQUIRED, SAME, Shapes, Splitter

Columns = Mapping[str, Sequence[Any]]
"""The attributes of several events by name; each has one value for each event. That of ``data`` is JSON text."""

_TEXTS = (*REQUIRED, "subject", "datacontenttype")
_IF_ABSENT = {**SAME, "subject": "", "time": None, "data": None}
_ABSENT = object()
"""The value of an extension that an event does not have, where others in the same batch do."""
_MARK = token_hex(8)  # which no line can guess, so none can extend into the next one; a short one is faster
_BETWEEN = f',"{_MARK}",'
_BETWEEN_LINES = _BETWEEN.encode()
_BACKSLASH = ord("\\")
_SPACE = b" \t\r"
_ESCAPES = re.compile(rb"(\\(?:\\|u(?!00[0-7])[0-9A-Fa-f]{4}(?:\\u(?!00[0-7])[0-9A-Fa-f]{4})*))")
"""Escaped characters beyond ASCII (what ASCII means outside texts no escape does), and escaped backslashes."""
_load, _dump = orjson.loads, orjson.dumps
_time_of = datetime.fromisoformat


def columns_of(lines: Sequence[bytes], shapes: Shapes | None = None) -> Columns | None:
    """Return the attributes of the events of a stored log, unless a line has to be parsed individually.

    In most logs the attributes come in one order, and all but the data are texts or numbers: then a regular expression
    splits the lines, and only data are parsed. Otherwise the lines are parsed. What was parsed is serialised again, all
    together. If that gives the same text, except for white space, then no digit of a number was lost and no key appears
    twice. The rest is done by columns. Lines for which this is not the case are not errors: they are left to
    ``parse_event``.

    Args:
        lines: At least one, each with its line end, except for the last one.
        shapes: What is known about the shapes of such lines; it learns from these.

    Returns:
        ``None`` if a line has to be parsed individually.
    """
    text, number, shapes = b"".join(lines), len(lines), shapes or Shapes()
    try:
        if _BACKSLASH in text and b"\\u" in text:
            text = _unescaped(text)
        columns = _split(text, number, shapes)
        if columns is None and (fields := _fields(text, number)):
            shapes.learn(fields, text)
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


def _unescaped(text: bytes) -> bytes:
    r"""Return a text with escaped characters as themselves; that of an escaped backslash escapes nothing after it."""
    parts = _ESCAPES.split(text)
    escapes = parts[1::2]
    meant = {each: each if each == rb"\\" else _load(b'"%s"' % each).encode() for each in set(escapes)}
    parts[1::2] = map(meant.__getitem__, escapes)
    return b"".join(parts)


def _split(text: bytes, number: int, shapes: Shapes) -> dict[str, Sequence[Any]] | None:
    """Return the attributes of lines that have known shapes, ``None`` if one of them has not."""
    splitter = shapes.splitter(text, number)
    if splitter is None or _has_zero(text):
        return None
    found = splitter.find_all("\n" + text.decode())
    columns = None
    if len(found) == number:
        with suppress(ValueError):  # what seemed to be JSON is not
            columns = _values(dict(zip(splitter.names, zip(*found, strict=True), strict=True)), splitter)
    if columns is not None:
        shapes.have_split()
    return columns


def _values(columns: dict[str, Sequence[Any]], splitter: Splitter) -> dict[str, Sequence[Any]] | None:
    """Return the values of attributes, given their texts; ``None`` if a value is not written as its text.

    What stands between two quotation marks is the text that a parser returns if it contains neither a backslash nor a
    control character; without a line feed it cannot extend into the next line.
    """
    optional, scalars = splitter.optional, splitter.scalars
    joined = "".join("".join(texts) for name, texts in columns.items() if name != "data" and name not in scalars)
    if _dump(joined)[1:-1] != joined.encode():
        return None
    for name in optional - scalars - {"data"}:
        absent = _IF_ABSENT.get(name, _ABSENT)
        columns[name] = [each or absent for each in columns[name]]
    for name in scalars:
        if (parsed := _parsed_exactly([each for each in columns[name] if each])) is None:
            return None
        values = iter(parsed[0])
        columns[name] = [next(values) if each else _ABSENT for each in columns[name]]
    if "data" in columns:
        texts = _data_alone(columns["data"], splitter.comma)
        if (parsed := _parsed_exactly([each or "null" for each in texts] if "data" in optional else texts)) is None:
            return None
        columns["data"] = _payloads(parsed[1])
    return columns


def _data_alone(texts: Sequence[str], comma: str) -> Sequence[str]:
    return [each.removesuffix(comma) for each in texts] if comma else texts


def _payloads(texts: Sequence[str]) -> Sequence[str | None]:
    return [None if each == "null" else each for each in texts] if "null" in texts else texts


def _parsed_exactly(texts: Sequence[str]) -> tuple[Sequence[Any], Sequence[str]] | None:
    """Return the values of JSON texts, and these without spaces; ``None`` if a value is not written as its text.

    Raises:
        ValueError: If one is not JSON.
    """
    if not texts:
        return (), ()
    text = f"[{_BETWEEN.join(texts)}]".encode()
    values = _parsed(text, len(texts))
    if values is None:
        return None
    written = _dump(values)
    if written != text:
        if not _differ_in_space(written, text):
            return None
        texts = written[1:-1].decode().split(_BETWEEN)
    return values[::2], texts


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
    for each in shapes:
        there = frozenset(each)
        if _extensions_in(each) != [name for name in extensions if name in there]:
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
    return [name for name in names if name not in CORE]


def _column(fields: list[dict[str, Any]], name: str) -> list[Any]:
    if name in REQUIRED:
        return [each[name] for each in fields]
    absent, value_in = _IF_ABSENT.get(name, _ABSENT), dict.get  # which raises if it is not an object
    return [value_in(each, name, absent) for each in fields]


def _are_right(columns: Columns) -> bool:
    for name in _TEXTS:
        "".join(each for each in columns.get(name, ()) if each is not None)  # raises if a value is not a text
    return (
        all(all(columns[name]) for name in REQUIRED)
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

"""Many CloudEvents at once, from lines of JSON: what nearly all lines look like, at a third of the cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import repeat
from operator import itemgetter
from secrets import token_hex
from typing import Any

import orjson

from opencqrs_py.model.event import Event
from opencqrs_py.model.rows import Row

__all__ = ["Columns", "columns_of", "events_of", "rows_of", "subjects_of"]

Columns = Mapping[str, Sequence[Any]]
"""The attributes of several events by name; each has one value for each event."""

_MARK = token_hex(16)  # no line can hold it, so no line can reach over into the next one
_BETWEEN = b',"%s",' % _MARK.encode()
_BACKSLASH = ord("\\")
_SPACE = b" \t\r"
_CORE = frozenset({"specversion", "id", "source", "subject", "type", "time", "datacontenttype", "data"})
_TEXTS = ("id", "source", "type", "subject", "datacontenttype")

_load, _dump = orjson.loads, orjson.dumps
_time_of = datetime.fromisoformat


def columns_of(lines: Sequence[bytes]) -> Columns | None:
    """Return the attributes of the events of a stored log if none of the lines needs a closer look.

    All lines are parsed together, and written again together. If that gives the same text, but for the space between
    the parts, then no digit of a number was lost and no key stands twice. What follows is done by columns. Lines of
    which that cannot be said (escaped characters, attributes of other lines missing, anything wrong) are no error:
    they are for ``parse_event``.

    Args:
        lines: At least one, each with its line end but for the last one.

    Returns:
        ``None`` if one of the lines needs a closer look.
    """
    try:
        fields = _fields(lines)
        columns = _columns(fields) if fields else None
        return columns if columns and _are_right(columns) else None
    except (ValueError, TypeError, KeyError, OverflowError):  # not JSON, no text, an attribute missing, no such time
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
        _texts(columns.get("data")),
        _extensions(columns),
        strict=False,
    )
    return list(map(tuple.__new__, repeat(Event), values))


def rows_of(columns: Columns, positions: Iterable[int]) -> list[Row]:
    """Return position, type, payload and subject of each event."""
    payloads = _texts(columns.get("data"))
    return list(zip(positions, columns["type"], payloads, subjects_of(columns), strict=False))


def subjects_of(columns: Columns) -> Iterable[str]:
    """Return the subjects of the events; without end if none of them has one."""
    return _or(columns.get("subject"), "/")


def _fields(lines: Sequence[bytes]) -> list[dict[str, Any]] | None:
    text = b"".join(lines)
    if _BACKSLASH in text and b"\\u0000" in text:
        return None
    text = b"[%s]" % text.removesuffix(b"\n").replace(b"\n", _BETWEEN)
    every, number = _load(text), len(lines)
    if len(every) != 2 * number - 1 or every[1::2].count(_MARK) != number - 1:
        return None
    written = _dump(every)
    if written != text and written.translate(None, _SPACE) != text.translate(None, _SPACE):
        return None
    fields: list[dict[str, Any]] = every[::2]
    return fields


def _columns(fields: list[dict[str, Any]]) -> Columns | None:
    """Return the values by attribute if all events have the same ones."""
    names = tuple(fields[0])
    if sum(map(len, fields)) != len(names) * len(fields):
        return None
    if not _CORE.issuperset(names) and any(tuple(each) != names for each in fields):  # extensions keep their order
        return None
    return dict(zip(names, zip(*map(itemgetter(*names), fields), strict=True), strict=True))


def _are_right(columns: Columns) -> bool:
    for name in _TEXTS:
        "".join(columns.get(name, ()))  # raises if there is one that is no text
    return (
        all(all(columns[name]) for name in ("id", "source", "type"))
        and "data_base64" not in columns
        and set(columns.get("specversion", ("1.0",))) == {"1.0"}
        and ("time" not in columns or max(map(_time_of, columns["time"])).tzinfo is not None)
    )


def _or(column: Sequence[str] | None, otherwise: str) -> Iterable[str]:
    if column is None:
        return repeat(otherwise)
    return column if all(column) else [each or otherwise for each in column]


def _texts(column: Sequence[Any] | None) -> Iterable[str | None]:
    if column is None:
        return repeat(None)
    return [None if each is None else _dump(each).decode() for each in column]


def _extensions(columns: Columns) -> Iterable[str | None]:
    names = [name for name in columns if name not in _CORE]
    if not names:
        return repeat(None)
    rows = zip(*map(columns.__getitem__, names), strict=True)
    return [_dump(dict(zip(names, row, strict=True))).decode() for row in rows]

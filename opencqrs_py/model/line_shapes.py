"""The shapes of lines with one CloudEvent each, and what splits them: one regular expression for all shapes.

A shape is an object's attributes in their order. Lines of one log have few shapes, which agree on the order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import chain, pairwise
from typing import Any, NamedTuple

import orjson

REQUIRED = frozenset({"id", "source", "type"})
SAME = {"specversion": "1.0", "datacontenttype": "application/json"}  # in nearly every event, and if they are missing
CORE = frozenset({*REQUIRED, *SAME, "subject", "time", "data"})

_MAY_BE_EMPTY = frozenset({"subject", "datacontenttype"})  # which then means the same as if it is missing
_ANY_TEXT, _NON_EMPTY, _SCALAR = '"([^"]*)"', '"([^"]+)"', r'("[^"]*"|[^\s",:{}\[\]]+)'
_EXPRESSIONS = 64  # that are kept; compiling one takes as long as reading some hundred lines
_ATTRIBUTES = 40  # at most; each optional one makes splitting slower
_NAME = 64  # characters of an attribute, at most; they are compiled for each shape
_FOLLOWERS = 12  # attributes that may follow the data, at most: lines without them are searched for each
_SHORT = 2_048  # bytes of a line that is searched for several; parsing a longer one as a whole is as fast
_LESSONS = 8  # shapes that are learnt one after the other
_MISSES = 8  # in a row, after which most lines are not split
_SELDOM = 64  # every how many times it is tried again


class _Shape(NamedTuple):
    """What lines of several shapes have in common.

    Attributes:
        pairs: Attributes that stand next to each other, in their order.
        needed: Attributes that every line has.
        varied: Extensions that are not always a non-empty text, and ``datacontenttype`` if it varies.
        is_spaced: Whether there are spaces as Python writes them.
    """

    pairs: frozenset[tuple[str, str]]
    needed: frozenset[str]
    varied: frozenset[str]
    is_spaced: bool


class Splitter(NamedTuple):
    """Splits lines.

    Attributes:
        find_all: Returns the values of each line that fits, given lines with a line feed before each.
        names: The attributes with these values, in the order that all lines share.
        optional: Those that lines may lack; their value is then empty, and never otherwise if that makes a difference.
        scalars: Extensions whose values are JSON.
        comma: What is found with data if another member follows; empty if none ever does.
        followers: How many attributes may follow the data directly.
    """

    find_all: Callable[[str], list[Any]]
    names: Sequence[str]
    optional: frozenset[str]
    scalars: frozenset[str]
    comma: str
    followers: int


class Shapes:
    """The shapes of the lines of one file, learnt while it is read. Not safe for several threads.

    If lines repeatedly do not fit, splitting is only tried now and then, and shapes are learnt again.
    """

    def __init__(self) -> None:
        self._shape: _Shape | None = None
        self._lessons = 0
        self._misses = 0
        self._is_trying = True

    def splitter(self, text: bytes, number: int) -> Splitter | None:
        """Return what probably splits these lines, ``None`` if nothing does."""
        self._misses += 1
        self._is_trying = self._misses <= _MISSES or self._misses % _SELDOM == 0
        if not self._is_trying:
            return None
        if self._shape is None:
            line, *_ = text.split(b"\n", 1)
            self.learn([orjson.loads(line)], text)
        found = None if self._shape is None else _splitter(self._shape)
        return None if found is None or (found.followers > 1 and len(text) > _SHORT * number) else found

    def have_split(self) -> None:
        """Record that the lines were split."""
        self._misses = 0

    def learn(self, fields: Sequence[Any], text: bytes) -> None:
        """Add the shapes of lines that did not fit to the known ones if they agree on the order; else replace these."""
        if not self._is_trying:
            return
        if self._misses > _MISSES:  # the lines have been different for a long time
            self._shape, self._lessons = None, 0
        if self._lessons >= _LESSONS:
            return
        found = _shape_of(fields, is_spaced=text.partition(b":")[2].startswith(b" "))
        if found is not None:
            self._lessons += 1
            together = found if self._shape is None else _together(self._shape, found)
            self._shape = next(filter(_splitter, (together, found)), None)


def _shape_of(fields: Sequence[Any], *, is_spaced: bool) -> _Shape | None:
    """Return what lines have in common, ``None`` if they cannot be split."""
    if set(map(type, fields)) != {dict} or max(map(len, fields)) > _ATTRIBUTES:
        return None
    shapes = list(dict.fromkeys(map(tuple, fields)))
    needed = frozenset(shapes[0]).intersection(*shapes)
    names = set(chain.from_iterable(shapes))
    varied = frozenset(name for name in names if _is_varied(name, [each[name] for each in fields if name in each]))
    if not needed >= REQUIRED or "data_base64" in names or varied & CORE - {"datacontenttype"}:
        return None
    if len(names) > _ATTRIBUTES or any(len(name) > _NAME for name in names):
        return None
    return _Shape(frozenset(chain.from_iterable(map(pairwise, shapes))), needed, varied, is_spaced)


def _is_varied(name: str, values: list[Any]) -> bool:
    if name in SAME:
        return set(map(str, values)) != {SAME[name]}
    may_be_empty = name in CORE
    return name != "data" and not all(isinstance(each, str) and (each or may_be_empty) for each in values)


def _together(one: _Shape, other: _Shape) -> _Shape:
    needed, varied = one.needed & other.needed, one.varied | other.varied
    return _Shape(one.pairs | other.pairs, needed, varied, other.is_spaced)


@lru_cache(_EXPRESSIONS)
def _splitter(shape: _Shape) -> Splitter | None:
    """Return what splits lines, ``None`` if they differ in the order of their attributes, or have too many."""
    sorter = TopologicalSorter[str]()
    for before, name in sorted(shape.pairs):
        sorter.add(name, before)
    try:
        names = tuple(sorter.static_order())
    except CycleError:
        return None
    followers = _next(shape, names[names.index("data") + 1 :]) if "data" in names else ()
    if len(names) > _ATTRIBUTES or len(followers) > _FOLLOWERS:
        return None
    find_all = re.compile(rf"\n\{{{''.join(_members(shape, names))}\}}[ \t\r]*$", re.MULTILINE).findall
    found = tuple(name for name in names if name not in SAME or name in shape.varied)
    return Splitter(
        find_all,
        found,
        frozenset(found) - shape.needed,
        shape.varied - CORE,
        "" if names[-1] == "data" else _separators(shape)[1],
        len(followers),
    )


def _members(shape: _Shape, names: Sequence[str]) -> Iterable[str]:
    """Yield expressions for the members, with the commas between them."""
    colon, comma = _separators(shape)
    keys = {name: re.escape(orjson.dumps(name).decode()) + colon for name in names}
    before = ""  # up to the first member that every line has, commas follow members
    for at, name in enumerate(names):
        followers = _next(shape, names[at + 1 :]) if name == "data" else ()
        value = _data(shape, followers, keys) if name == "data" else _value(shape, name)
        after = "" if before or followers else comma
        yield f"{before}{keys[name]}{value}" if name in shape.needed else f"(?:{before}{keys[name]}{value}{after})?"
        if name in shape.needed:
            before = comma
        if before and followers:
            before = f"(?:(?<={comma})|{comma})"  # data take the comma after them


def _separators(shape: _Shape) -> tuple[str, str]:
    return (": ", ", ") if shape.is_spaced else (":", ",")


def _next(shape: _Shape, names: Sequence[str]) -> Sequence[str]:
    """Return which attributes may come next, given all later ones."""
    needed = next((at for at, name in enumerate(names, 1) if name in shape.needed), len(names))
    return names[:needed]


def _data(shape: _Shape, followers: Sequence[str], keys: Mapping[str, str]) -> str:
    """Return what matches data and, if a member follows, the comma: that is found quickly, from the end of the line."""
    _, comma = _separators(shape)
    ends = [f".+{comma}(?={keys[each]})" for each in followers]
    if shape.needed.isdisjoint(followers):
        ends.append(f".+(?<!{comma})")
    return f"({'|'.join(ends)})"


def _value(shape: _Shape, name: str) -> str:
    if name in SAME and name not in shape.varied:
        return re.escape(f'"{SAME[name]}"')
    if name in _MAY_BE_EMPTY:
        return _ANY_TEXT
    return _SCALAR if name in shape.varied else _NON_EMPTY

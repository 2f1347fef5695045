"""What the data source reads: by its checked options, and by the filters of a query.

Runs on the driver, in a Python worker that Spark starts for planning. Scopes are pickled: they hold nothing open.

Spark no longer checks a filter that is accepted *exactly*. It still checks one that only excludes part of what it
should. Times are not bounds of positions, since events may be stored in another order than they happened in; and stores
do not search by id. So filters on time, id, source and the payload are left to Spark alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from opencqrs_py.engines.spark.source.ddl import parse_ddl
from opencqrs_py.errors import EngineError
from opencqrs_py.model.mapping import TableMapping
from opencqrs_py.model.selection import Selection
from opencqrs_py.processing.ports import EventSource

if TYPE_CHECKING:
    from opencqrs_py.engines.spark.source.classes import EventClass

OPTIONS = (
    "url",
    "subject",
    "recursive",
    "types",
    "from",
    "to",
    "schema",
    "fieldPrefix",
    "ranges",
    "maxEventsPerTrigger",
)

_PREFIX = "mapping."
_PARTS = tuple(part.name for part in fields(TableMapping) if part.name != "said_in")
MAPPING_OPTIONS = tuple(_PREFIX + part.replace("_", "-") for part in _PARTS)

_PLACE = 'format("opencqrs")'
_GREATEST = 2**63 - 1  # positions are a bigint in Spark
_CLASS = re.compile(r"[^\W\d][\w.]*:[^\W\d][\w.]*")  # module:Class
_LIST = re.compile(r"""[\[({]\s*(['"].*['"],?)?\s*[\])}]""", re.DOTALL)  # as Python shows one of texts
_POSITION_OR_TIME = "a position from 1 (a whole number) or a time with its offset, such as 2026-01-05T00:00:00Z"


@dataclass(frozen=True)
class Scope:
    """What is read.

    Attributes:
        url: Where the log is; not shown, since it may hold a password.
        selection: Which events.
        first: First position, or the time that the first event has at least.
        last: Last position, or the time before whose first event reading ends; ``None`` for the end of the log.
        after: Position before the first one, by conditions; 0 for none.
        upto: Position that conditions set as the last one, ``None`` for none.
        ranges: Most parts that are read in parallel.
        events_per_trigger: Most events of a micro-batch, ``None`` for all that there are.
        mapping: The table of another system that is read, ``None`` for a store of ours.
        fields: The fields of the data that become columns, ``None`` for none.
        field_prefix: What the names of these columns begin with.
    """

    url: str = field(repr=False)
    selection: Selection = field(default_factory=Selection)
    first: int | datetime = 1
    last: int | datetime | None = None
    after: int = 0
    upto: int | None = None
    ranges: int = 1
    events_per_trigger: int | None = None
    mapping: TableMapping | None = None
    fields: StructType | None = None
    field_prefix: str = ""

    def start(self, source: EventSource) -> int:
        """Return the position after which reading begins."""
        first = self.first - 1 if isinstance(self.first, int) else source.position_before(self.first)
        return max(self.after, first)

    def end(self, source: EventSource, head: int) -> int:
        """Return the position at which reading ends, at most ``head``; looked up again for a time."""
        last = source.position_before(self.last) if isinstance(self.last, datetime) else self.last
        return min(bound for bound in (head, last, self.upto) if bound is not None)


def scope_of(options: Mapping[str, str], ranges: int) -> Scope:
    """Return the scope that the options describe; case does not matter. ``ranges`` applies if no option sets it.

    Raises:
        EngineError: OCQ-410, naming the option, its value and the right form.
        EventStoreError: OCQ-313, if a mapping lacks a part.
    """
    given = {_plain(name): text.strip() for name, text in options.items()}
    _refuse_unknown(given)
    if not given.get("url"):
        fix = 'spark.read.format("opencqrs").option("url", "sqlite:////path/events.db")'
        raise EngineError("OCQ-410", "the option 'url' is missing", _PLACE, fix)
    event_class = _class_in(given)
    return Scope(
        given["url"],
        Selection(_subject(given), _recursive(given), _types(given, event_class)),
        _bound(given, "from", least=1) or 1,
        _bound(given, "to", least=0),
        ranges=_count(given, "ranges") or ranges,
        events_per_trigger=_count(given, "maxEventsPerTrigger"),
        mapping=_mapping_in(given),
        fields=_fields(given) if event_class is None else event_class.fields,
        field_prefix=given.get(_plain("fieldPrefix"), ""),
    )


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = {_plain(name): name for name in (*OPTIONS, *MAPPING_OPTIONS)}
    for name in given:
        if name not in known:
            meant = _meant(name, known)
            near = f"; did you mean '{known[meant]}'?" if meant else ""
            listed = MAPPING_OPTIONS if name.startswith("mapping") else OPTIONS
            more = "" if listed is MAPPING_OPTIONS else "; mapping.table and others name a table of another system"
            fix = f"the options are {', '.join(listed)}{more}"
            raise EngineError("OCQ-410", f"there is no option '{name}'{near}", _PLACE, fix)


def _meant(name: str, known: Iterable[str]) -> str | None:
    """Return the option that was probably meant: Spark's own word, one with a similar name, or a part of a mapping."""
    parts = {option.removeprefix("mapping."): option for option in known if option.startswith("mapping.")}
    _, inside, part = name.rpartition("mapping.")  # as in settings: event-store.mapping.table
    if inside:
        return next((parts[near] for near in get_close_matches(_plain_part(part), parts, 1)), None)
    if name == "path":
        return "url"
    others = [option for option in known if option not in parts.values()]
    return next(iter(get_close_matches(name, others, 1)), parts.get(_plain_part(name)))


def _subject(given: Mapping[str, str]) -> str:
    subject = given.get("subject", "/")
    if not subject:
        raise _wrong("subject", subject, "a subject, such as /books", "omit it to read all subjects")
    return subject


def _recursive(given: Mapping[str, str]) -> bool:
    text = given.get("recursive", "true").lower()
    if text not in ("true", "false"):
        raise _wrong("recursive", given["recursive"], "true or false")
    return text == "true"


def _types(given: Mapping[str, str], event_class: EventClass | None) -> frozenset[str] | None:
    """Return the types wanted; a pattern is refused, since it would silently match nothing as a type."""
    if "types" not in given:
        return None if event_class is None or event_class.type is None else frozenset({event_class.type})
    if _LIST.fullmatch(given["types"]):
        fix = "Spark makes a text of each option: write ','.join(types)"
        raise _wrong("types", given["types"], "types separated by commas, not a list", fix)
    types = frozenset(t.strip() for t in given["types"].split(",") if t.strip())
    if not types:
        raise _wrong("types", given["types"], "types separated by commas", "omit it to read all types")
    if any("*" in t for t in types):
        fix = """for a pattern, omit it and write .where("type like 'library.%'")"""
        raise _wrong("types", given["types"], "whole types separated by commas", fix)
    return types


def _class_in(given: Mapping[str, str]) -> EventClass | None:
    text = given.get("schema", "")
    if _CLASS.fullmatch(text) is None:
        return None
    from opencqrs_py.engines.spark.source.classes import read_class  # noqa: PLC0415 loads pydantic, for classes only

    return read_class(text)


def _fields(given: Mapping[str, str]) -> StructType | None:
    text = given.get("schema")
    if text is None:
        return None
    try:
        return parse_ddl(text)
    except ValueError as error:
        what = f"the option 'schema' cannot be read: {error}"
        fix = (
            "name fields with their types, such as isbn STRING, amount DECIMAL(10,2), or an event class as module:Class"
        )
        raise EngineError("OCQ-410", what, _PLACE, fix) from None


def _bound(given: Mapping[str, str], option: str, least: int) -> int | datetime | None:
    text = given.get(option)
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        if least <= int(text) <= _GREATEST:
            return int(text)
    else:
        moment = _moment(text)
        if moment is not None:
            return moment
    raise _wrong(option, text, _POSITION_OR_TIME)


def _moment(text: str) -> datetime | None:
    """Return an RFC 3339 time, ``None`` when it is none: without its offset it could be anywhere on Earth."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None


def _count(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _GREATEST):
        raise _wrong(option, text, "a whole number from 1")
    return int(text)


def _wrong(option: str, text: str, form: str, fix: str = "") -> EngineError:
    return EngineError("OCQ-410", f"the option '{option}' must be {form}, got {text!r}", _PLACE, fix)


def _plain(name: str) -> str:
    """Return an option's name as it is looked up: Spark ignores case."""
    name = name.lower()
    return _PREFIX + _plain_part(name.removeprefix(_PREFIX)) if name.startswith(_PREFIX) else name


def _plain_part(name: str) -> str:
    """Return the name of a part as it is looked up: kebab, snake and camel case are one name, as in settings."""
    return name.lower().replace("-", "").replace("_", "")


def _mapping_in(given: Mapping[str, str]) -> TableMapping | None:
    """Return the table that known options name, by their plain names; ``None`` when they name none."""
    named = {}
    for part, option in zip(_PARTS, MAPPING_OPTIONS, strict=True):
        text = given.get(_plain(option))
        if text == "":
            what = f"the option '{option}' must be a name, as it is written in the database, got ''"
            raise EngineError("OCQ-410", what, _PLACE, "omit it if no column holds it")
        if text is not None:
            named[part] = text
    return TableMapping.of(named, "mapping", _PLACE)


class Narrowed(NamedTuple):
    """A scope narrowed by a filter, and whether it is exact, so that Spark need not check again."""

    scope: Scope
    exact: bool = True


def narrowed(scope: Scope, condition: Filter) -> Narrowed | None:
    """Return the scope narrowed by a filter, or ``None`` if only Spark can check it."""
    match condition:
        case EqualTo((column,), value) | EqualNullSafe((column,), value):
            return _one_of(scope, column, [value])
        case In((column,), values):
            return _one_of(scope, column, [value for value in values if value is not None])
        case StringStartsWith(("subject",), str(beginning)):
            return _below(scope, beginning)
        case _:
            return _compared(scope, condition)


def _one_of(scope: Scope, column: str, values: list[Any]) -> Narrowed | None:
    match column, values:
        case "type", [*types] if all(isinstance(t, str) for t in types):
            return Narrowed(_of_types(scope, types))
        case "subject", [str(subject)] if _is_ordinary(subject):
            return Narrowed(_of_subject(scope, Selection(subject, recursive=False)))
        case "position", [int(), *_]:
            return Narrowed(_between(scope, min(values) - 1, max(values)), exact=len(set(values)) == 1)
        case _:
            return None


def _compared(scope: Scope, condition: Filter) -> Narrowed | None:
    match condition:
        case GreaterThan(("position",), int(value)):
            return Narrowed(_between(scope, value, None))
        case GreaterThanOrEqual(("position",), int(value)):
            return Narrowed(_between(scope, value - 1, None))
        case LessThan(("position",), int(value)):
            return Narrowed(_between(scope, 0, value - 1))
        case LessThanOrEqual(("position",), int(value)):
            return Narrowed(_between(scope, 0, value))
        case _:
            return None


def _below(scope: Scope, beginning: str) -> Narrowed | None:
    """Narrow to a prefix of subjects, up to its last slash: ``/books/97`` reads ``/books`` and what is below it."""
    root = beginning.rpartition("/")[0].rstrip("/")
    return Narrowed(_of_subject(scope, Selection(root)), exact=False) if _is_ordinary(root) else None


def _is_ordinary(subject: str) -> bool:
    """Return whether every store can search for a subject; Spark searches for all others itself."""
    return subject == "/" or (subject.startswith("/") and not subject.endswith("/") and "//" not in subject)


def _of_types(scope: Scope, types: Iterable[str]) -> Scope:
    selection = scope.selection
    wanted = frozenset(types) if selection.types is None else selection.types & frozenset(types)
    return replace(scope, selection=replace(selection, types=wanted)) if wanted else _of_nothing(scope)


def _of_subject(scope: Scope, other: Selection) -> Scope:
    """Keep the events of both selections; of two subjects, one contains the other or they are disjoint."""
    own = scope.selection
    if _contains(own, other):
        selection = replace(own, subject=other.subject, recursive=other.recursive)
        return replace(scope, selection=selection)
    if _contains(other, own):
        return scope
    return _of_nothing(scope)


def _contains(outer: Selection, inner: Selection) -> bool:
    """Return whether ``outer`` includes all the subjects of ``inner``."""
    if outer.everything:
        return True
    if inner.everything or (inner.recursive and not outer.recursive):
        return False
    return inner.subject == outer.subject or (outer.recursive and inner.subject.startswith(outer.prefix))


def _between(scope: Scope, after: int, upto: int | None) -> Scope:
    last = [bound for bound in (scope.upto, upto) if bound is not None]
    return replace(scope, after=max(scope.after, after), upto=min(last, default=None))


def _of_nothing(scope: Scope) -> Scope:
    return replace(scope, upto=0)

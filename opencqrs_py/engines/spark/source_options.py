"""Options of the data source: what stands in ``option(…)``, checked, and the scope that it means.

Runs on the driver, in a Python worker that Spark starts for planning. Scopes are pickled: they hold nothing open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from difflib import get_close_matches

from opencqrs_py.engines.spark.source_mapping import MAPPING_OPTIONS, mapping_in, plain, plain_part
from opencqrs_py.errors import EngineError
from opencqrs_py.model.mapping import TableMapping
from opencqrs_py.model.selection import Selection
from opencqrs_py.processing.ports import EventSource

__all__ = ["OPTIONS", "Scope", "scope_of"]

OPTIONS = ("url", "subject", "recursive", "types", "from", "to", "ranges", "maxEventsPerTrigger")

_PLACE = 'format("opencqrs")'
_GREATEST = 2**63 - 1  # positions are a bigint in Spark
_POSITION_OR_TIME = "a position from 1 (a whole number) or a time with its offset, such as 2026-01-05T00:00:00Z"


@dataclass(frozen=True)
class Scope:
    """What is read.

    Attributes:
        url: Where the log is; not shown, since it may hold a password.
        selection: Which events.
        first: First position, or the time that the first event has at least.
        last: Last position, or the time before whose first event reading ends; ``None`` for the end of the log.
        after: Position that conditions put before the first one, 0 for none.
        upto: Position that conditions set as the last one, ``None`` for none.
        ranges: Most parts that are read side by side.
        events_per_trigger: Most events of a micro-batch, ``None`` for all that there are.
        mapping: The table of another system that is read, ``None`` for a store of ours.
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

    def start(self, source: EventSource) -> int:
        """Return the position after which reading begins."""
        first = self.first - 1 if isinstance(self.first, int) else source.position_before(self.first)
        return max(self.after, first)

    def end(self, source: EventSource, head: int) -> int:
        """Return the position at which reading ends, at most ``head``; looked up again for a time."""
        last = source.position_before(self.last) if isinstance(self.last, datetime) else self.last
        return min(bound for bound in (head, last, self.upto) if bound is not None)


def scope_of(options: Mapping[str, str], ranges: int) -> Scope:
    """Return what the options mean.

    Args:
        options: As Spark passes them; upper and lower case are the same.
        ranges: Number of ranges when no option says it.

    Raises:
        EngineError: OCQ-410, naming the option, its value and the right form.
        EventStoreError: OCQ-313, if a mapping lacks a part.
    """
    given = {plain(name): text.strip() for name, text in options.items()}
    _refuse_unknown(given)
    if not given.get("url"):
        fix = 'spark.read.format("opencqrs").option("url", "sqlite:////path/events.db")'
        raise EngineError("OCQ-410", "the option 'url' is missing", _PLACE, fix)
    return Scope(
        given["url"],
        Selection(_subject(given), _recursive(given), _types(given)),
        _bound(given, "from", least=1) or 1,
        _bound(given, "to", least=0),
        ranges=_count(given, "ranges") or ranges,
        events_per_trigger=_count(given, "maxEventsPerTrigger"),
        mapping=mapping_in(given),
    )


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = {plain(name): name for name in (*OPTIONS, *MAPPING_OPTIONS)}
    for name in given:
        if name not in known:
            meant = _meant(name, known)
            near = f"; did you mean '{known[meant]}'?" if meant else ""
            listed = MAPPING_OPTIONS if name.startswith("mapping") else OPTIONS
            more = "" if listed is MAPPING_OPTIONS else "; mapping.table and others name a table of another system"
            fix = f"the options are {', '.join(listed)}{more}"
            raise EngineError("OCQ-410", f"there is no option '{name}'{near}", _PLACE, fix)


def _meant(name: str, known: Iterable[str]) -> str | None:
    """Return the option that was probably meant: Spark's own word, one of nearly this name, a part of a mapping."""
    parts = {option.removeprefix("mapping."): option for option in known if option.startswith("mapping.")}
    _, inside, part = name.rpartition("mapping.")  # as in settings: event-store.mapping.table
    if inside:
        return next((parts[near] for near in get_close_matches(plain_part(part), parts, 1)), None)
    if name == "path":
        return "url"
    others = [option for option in known if option not in parts.values()]
    return next(iter(get_close_matches(name, others, 1)), parts.get(plain_part(name)))


def _subject(given: Mapping[str, str]) -> str:
    subject = given.get("subject", "/")
    if not subject:
        raise _wrong("subject", subject, "a subject, such as /books", "leave it out to read all subjects")
    return subject


def _recursive(given: Mapping[str, str]) -> bool:
    text = given.get("recursive", "true").lower()
    if text not in ("true", "false"):
        raise _wrong("recursive", given["recursive"], "true or false")
    return text == "true"


def _types(given: Mapping[str, str]) -> frozenset[str] | None:
    """Return the types wanted; a pattern is refused, since as a type it would silently find nothing."""
    if "types" not in given:
        return None
    types = frozenset(t.strip() for t in given["types"].split(",") if t.strip())
    if not types:
        raise _wrong("types", given["types"], "types separated by commas", "leave it out to read all types")
    if any("*" in t for t in types):
        fix = """for a pattern leave it out and write .where("type like 'library.%'")"""
        raise _wrong("types", given["types"], "whole types separated by commas", fix)
    return types


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

"""Sequence resolvers: what must be handled in order, and checks that a resolver is reliable."""

from __future__ import annotations

import dis
import inspect
import logging
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain, cycle
from types import CodeType
from typing import Any, ClassVar, NoReturn

from opencqrs_py.errors import EventFormatError, HandlerSignatureError, ProjectCodeError
from opencqrs_py.model.event import Event
from opencqrs_py.model.json_text import write_parsed

_log = logging.getLogger("opencqrs.processing")


def cut_subject(subject: str, level: int) -> str:
    """Return the first ``level`` levels of a subject.

    Text before the first slash is dropped; empty segments count; a trailing slash is removed only beyond the cut.

    Source:
        OpenCQRS configurable-level sequence resolver; for subjects that begin with a slash the same as Spark's
        ``substring_index(subject, '/', level + 1)``.
    """
    parts = subject.split("/", level + 1)
    return "/" + "/".join(parts[1 : level + 1]) if len(parts) > 1 else ""


@dataclass(frozen=True, slots=True)
class NoSequence:
    """Every event is its own sequence: events are spread over partitions, without any order."""

    looks_at: ClassVar[frozenset[str]] = frozenset({"id"})

    def __call__(self, event: Event, /) -> str:
        """Return the event's id."""
        return event.id


@dataclass(frozen=True, slots=True)
class PerSubject:
    """Events of one subject stay in order."""

    looks_at: ClassVar[frozenset[str]] = frozenset({"subject"})

    def __call__(self, event: Event, /) -> str:
        """Return the whole subject."""
        return event.subject


@dataclass(frozen=True, slots=True)
class PerSubjectLevel:
    """Events below one ancestor subject stay in order.

    Attributes:
        level: Number of levels kept, at least 1. OpenCQRS' default is 2.
    """

    level: int = 2

    looks_at: ClassVar[frozenset[str]] = frozenset({"subject"})

    def __post_init__(self) -> None:
        if self.level < 1:
            msg = f"level must be at least 1, got {self.level}"
            raise ValueError(msg)

    def __call__(self, event: Event, /) -> str:
        """Return the subject cut to ``level`` levels."""
        return cut_subject(event.subject, self.level)


@dataclass(frozen=True, slots=True)
class PerDataField:
    """Events with equal values of a data field stay in order.

    Attributes:
        path: Names of nested members, such as ``("reader", "id")``.
    """

    path: tuple[str, ...]

    looks_at: ClassVar[frozenset[str]] = frozenset({"data"})

    def __call__(self, event: Event, /) -> str:
        """Return the field's value: a text as it is, anything else as JSON.

        Raises:
            EventFormatError: OCQ-214, if the event has no such field, or ``null`` in it.
        """
        value = event.data
        for name in self.path:
            value = value.get(name) if isinstance(value, dict) else None
        return _sequence_id(value, f"data field '{'.'.join(self.path)}'", event)


@dataclass(frozen=True, slots=True)
class PerMetadataKey:
    """Events with equal values of a metadata key stay in order.

    Attributes:
        key: Name of the CloudEvent's extension attribute, or of the envelope's metadata.
    """

    key: str

    looks_at: ClassVar[frozenset[str]] = frozenset({"metadata"})

    def __call__(self, event: Event, /) -> str:
        """Return the value of the key: a text as it is, anything else as JSON.

        Raises:
            EventFormatError: OCQ-214, if the event has no such key, or ``null`` in it.
        """
        return _sequence_id(event.metadata.get(self.key), f"metadata '{self.key}'", event)


def _sequence_id(value: Any, name: str, event: Event) -> str:
    if value is None:
        fix = "give every event of the group that field, or narrow fetch.subject, or choose another sequence.resolution"
        raise EventFormatError("OCQ-214", f"the event has no {name}, which determines its sequence", event.label, fix)
    return value if isinstance(value, str) else write_parsed(value, sort_keys=True)


OWN_CALLS = {cls.__call__ for cls in (NoSequence, PerSubject, PerSubjectLevel, PerDataField, PerMetadataKey)}


_FIELDS = {name: name for name in Event._fields} | {"data": "payload", "metadata": "extensions", "timestamp": "time"}
_EVERYTHING = frozenset(Event._fields)
_FIRST, _EVERY = 8, 1_024  # calls that are made twice: the first ones, then every 1,024th
_STABLE = "return a text that depends on the event alone: no clock, no random number, no counter, no hash()"


def fields_looked_at(resolver: Any, place: str) -> frozenset[str]:
    """Return the attributes of an event that a resolver uses.

    It declares them by ``looks_at``: names of attributes of ``Event``, on the function, object or class. Resolvers
    without it are assumed to use all of them. A class that overrides ``__call__`` does not inherit it: its parent's
    declaration does not apply to it.

    Raises:
        HandlerSignatureError: OCQ-224, if ``looks_at`` is not a set of names that an event has.
    """
    declared = _declared(resolver)
    if declared is None:
        return _EVERYTHING
    names = list(declared) if isinstance(declared, Iterable) and not isinstance(declared, str) else [declared]
    if isinstance(declared, str) or not all(isinstance(name, str) and name in _FIELDS for name in names):
        what = f"looks_at of the sequence resolver is {declared!r}"
        fix = f'write a set of some of {", ".join(sorted(_FIELDS))}: looks_at = frozenset({{"subject"}})'
        raise HandlerSignatureError("OCQ-224", what, place, fix)
    return frozenset(_FIELDS[name] for name in names)


def _declared(resolver: Any) -> Any:
    if inspect.isroutine(resolver) or "looks_at" in getattr(resolver, "__dict__", {}):
        return getattr(resolver, "looks_at", None)
    for cls in type(resolver).__mro__:
        if "looks_at" in vars(cls):
            return resolver.looks_at
        if "__call__" in vars(cls):
            break
    return None


def check_plain(
    resolver: Callable[..., Any],
    place: str,
    what: str = "a sequence resolver must be a plain function that returns a text",
    fix: str = "def by_reader(event: BookLent) -> str",
) -> None:
    """Raise OCQ-204 for a function that cannot return its answer: an ``async`` or a generator function."""
    function = inspect.unwrap(resolver if inspect.isroutine(resolver) else type(resolver).__call__)
    kinds = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)
    if any(is_kind(function) for is_kind in kinds):
        raise HandlerSignatureError("OCQ-204", what, place, fix)


def warn_of_hash(resolver: Callable[..., Any], place: str) -> None:
    """Warn about a resolver whose own code calls ``hash()``: checks within one process cannot see that it differs.

    There is no warning where ``PYTHONHASHSEED`` fixes it, nor about a function of the project with that name.
    """
    if os.environ.get("PYTHONHASHSEED", "random") not in ("", "random"):
        return
    function: Any = inspect.unwrap(resolver if inspect.isroutine(resolver) else type(resolver).__call__)
    code = getattr(function, "__code__", None)
    if code is None or "hash" in function.__globals__ or not _calls_hash(code):
        return
    _log.warning(
        "the sequence resolver %s calls hash(), which returns a different number for a text in each process: after a "
        "restart, or with several processes, an event is handled by no partition, or by two\n"
        "  fix:   return the text itself, or str() of a number; to shorten a long one, use hashlib",
        place,
    )


def _calls_hash(code: CodeType) -> bool:
    loaded = any(each.opname == "LOAD_GLOBAL" and each.argval == "hash" for each in dis.get_instructions(code))
    return loaded or any(isinstance(each, CodeType) and _calls_hash(each) for each in code.co_consts)


def checked_ids(ask: Callable[[Event], Any], place: str, *, only_subject: bool = False) -> Callable[[Event], str]:
    """Return a function that calls a resolver of the project and checks its results.

    An event whose sequence differs from call to call would be handled by no partition, or by two. So the first
    calls are made twice, and later every 1,024th. It raises ``ProjectCodeError``: OCQ-216, if the result is not
    a text, or differs the second time; OCQ-224, if the resolver uses more than it declares.

    Args:
        ask: The resolver.
        place: How messages name it.
        only_subject: Whether it declares to use nothing but the subject. It is then called once for a subject,
            and sees nothing else.
    """
    sure = chain([False] * _FIRST, cycle([True] * (_EVERY - 1) + [False]))  # in C: this runs for each event

    def refused(what: str) -> ProjectCodeError:
        return ProjectCodeError("OCQ-216", f"the sequence resolver {what}", place, _STABLE)

    def checked(event: Event) -> str:
        if only_subject:
            event = _SubjectOnly.of(event, place)
        found = ask(event)
        if type(found) is str and next(sure):
            return found
        if not isinstance(found, str):
            if inspect.iscoroutine(found):
                found.close()
            raise refused(f"returned {_shown(found)}, which is not text")
        if (again := ask(event)) != found:
            what = f"returned {_shown(found)}, and {_shown(again)} when called again for the same event"
            raise refused(what)
        return str.__str__(found)

    return checked


def _shown(answer: Any) -> str:
    return repr(answer)[:100] if isinstance(answer, str | bytes | int | float | None) else f"a {type(answer).__name__}"


class _SubjectOnly(Event):
    """An event of which only the subject is accessible."""

    @classmethod
    def of(cls, event: Event, place: str) -> _SubjectOnly:
        seen = cls(0, "", "", event.subject, "", None, "", None, None)
        seen.__dict__["_place"] = place
        return seen

    def _hidden(self, what: str) -> NoReturn:
        fix = "add it to looks_at of the resolver, or remove looks_at: then the resolver is called for each event"
        what = f"the sequence resolver declares that it uses the subject alone, but it uses {what}"
        raise ProjectCodeError("OCQ-224", what, self.__dict__["_place"], fix)

    def __iter__(self) -> Any:
        self._hidden("all of the event")

    def __getitem__(self, index: Any) -> Any:
        self._hidden("all of the event")

    def __getattribute__(self, name: str) -> Any:
        if name in _HIDDEN:
            self._hidden(f"'{name}'")
        return super().__getattribute__(name)


_HIDDEN = (frozenset(_FIELDS) | {"label"}) - {"subject"}

"""The input of a test: the handlers of one group, and events, made from objects that describe what happened."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from types import ModuleType
from typing import Any

from pydantic_core import to_jsonable_python

from opencqrs_py.assembly.discovery.members import Member, marks_of, members_of, methods_of
from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.declarations import Declaration
from opencqrs_py.model.event import Event
from opencqrs_py.model.handler import event_type_of
from opencqrs_py.model.json_text import write_json
from opencqrs_py.model.naming import canonical
from opencqrs_py.processing.checkpoints.participants import checkpointed_groups
from opencqrs_py.testing.stored_names import as_stored

_SOURCE = "urn:test"


class GivenEvents:
    """The log of a test, and what its events were made from.

    Event types that are not marked with ``@event_type`` are given with their classes; data may be ``enveloped`` in
    metadata and payload, as in OpenCQRS.
    """

    def __init__(self, event_types: Mapping[str, type], *, enveloped: bool) -> None:
        self._types = {cls: name for name, cls in event_types.items()}
        self._enveloped = enveloped
        self._given: list[tuple[Any, Event]] = []

    def make(self, given: Any, subject: str, time: datetime | str, metadata: Mapping[str, Any]) -> Event:
        """Return an object as an event; its id and position are the next number, unless it has an id.

        The object is an event; a ``dict`` with the attributes of a CloudEvent, at least ``type``; or an object of a
        class that represents an event type. It gets the subject and time, unless it has them, and the metadata, unless
        it is an event.

        Raises:
            TypeError: If it is none of these, or an attribute of the ``dict`` is spelled with capitals.
        """
        position = len(self._given) + 1
        if isinstance(given, Event):
            event = given._replace(position=position)
        else:
            moment = time.isoformat() if isinstance(time, datetime) else time
            known = {"id": str(position), "source": _SOURCE, "subject": subject, "time": moment}
            attributes = {**known, **self._attributes(given)}
            event = parse_event(write_json(self._with(metadata, attributes)), position)
        self._given.append((given, event))
        return event

    def find(self, wanted: Any) -> Event:
        """Return the event that was made from ``wanted``: the same object, an equal one, or a position.

        Raises:
            LookupError: If no such event was given, or several equal ones.
        """
        same = [event for given, event in self._given if given is wanted or event is wanted]
        equal = [event for given, event in self._given if wanted in (event, given) or wanted == event.position]
        found = same or equal
        if len(found) != 1:
            how = "several such events were given: name one by its position" if found else "no such event was given"
            raise LookupError(f"{how}: {wanted!r}")
        return found[0]

    def at(self, position: int) -> Event:
        """Return the event at a position."""
        return self._given[position - 1][1]

    def _attributes(self, given: Any) -> dict[str, Any]:
        if isinstance(given, dict) and isinstance(given.get("type"), str):
            if odd := [name for name in given if name != str(name).lower()]:
                shown = f"'{odd[0]}', write '{str(odd[0]).lower()}'"
                raise TypeError(f"the attributes of an event are lower-case: not {shown}; fields go into 'data'")
            return {**given, "data": _plain(given.get("data"))}
        name = self._types.get(type(given)) or event_type_of(type(given))
        if name is None:
            shown = "a dict without 'type'" if isinstance(given, dict) else f"a {type(given).__name__}"
            msg = (
                f'{shown} is not an event: write @event_type("…") above its class, or pass a dict such as '
                '{"type": "library.book-lent.v1", "data": {…}}'
            )
            raise TypeError(msg)
        return {"type": name, "data": _plain(given)}

    def _with(self, metadata: Mapping[str, Any], attributes: dict[str, Any]) -> dict[str, Any]:
        if self._enveloped:
            return {**attributes, "data": {"metadata": _plain(dict(metadata)), "payload": attributes.get("data")}}
        return {**_plain(dict(metadata)), **attributes}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it in a log; of attrs classes, their fields."""
    return as_stored(value, to_jsonable_python(value, by_alias=True, fallback=_fields))


def _fields(value: Any) -> Any:
    fields = getattr(type(value), "__attrs_attrs__", None)
    if fields is None:
        raise TypeError(f"a {type(value).__name__} cannot become JSON")
    return {field.name: getattr(value, field.name) for field in fields}


def choose(given: Sequence[Any], wanted: str) -> tuple[str, list[Member]]:
    """Return the group of a test, the named or the only one, and what belongs to it.

    Takes modules, functions and classes. Handler classes of other groups are left out: their dependencies need not be
    provided.

    Raises:
        TypeError: If something else is given.
        ValueError: If there are no handlers, or handlers of several groups and none is named.
        HandlerSignatureError: OCQ-209, if something in a module is decorated in a way that would leave it out.
    """
    members = members_given(given, "a HandlerTest")
    group = _only(list(dict.fromkeys(name for member in members for name in _groups(member.value))), wanted)
    groups = [(member, {canonical(name) for name in _groups(member.value)}) for member in members]
    return group, [member for member, its in groups if canonical(group) in its or not its]


def by_type(provide: Mapping[type, object] | None) -> Mapping[type, object] | None:
    """Return what a test provides.

    Raises:
        TypeError: If something is not provided by its type.
    """
    for wanted in provide or ():
        if not isinstance(wanted, type):
            raise TypeError(f"provide takes objects by the requested type, such as {{Mailer: …}}, got {wanted!r}")
    return provide


def members_given(given: Sequence[Any], taker: str) -> list[Member]:
    """Return what belongs to modules, functions and classes.

    Raises:
        TypeError: If something else is given, naming the taker.
    """
    return [member for each in given for member in _members(each, taker)]


def _members(given: Any, taker: str) -> Iterator[Member]:
    if isinstance(given, ModuleType):
        yield from members_of(given)
    elif isinstance(given, type) or (hasattr(given, "__qualname__") and not inspect.ismethod(given)):
        yield Member(given, given.__module__, f"{given.__module__}:{given.__qualname__}")
    else:
        raise TypeError(f"{taker} takes modules, functions and classes, got {given!r}")


def _groups(member: Any) -> list[str]:
    """Return the groups that a function or class handles events for."""
    if isinstance(member, type) and (groups := checkpointed_groups(member)):
        return groups
    methods = methods_of(member) if isinstance(member, type) else []
    marks = [*marks_of(member, Declaration.HANDLER), *(mark for method in methods for mark in method.marks)]
    return [mark.group for mark in marks if mark.group]


def _only(groups: list[str], wanted: str) -> str:
    """Return the wanted or the only group; which spelling of it does not matter."""
    if wanted and (spelled := [group for group in groups if canonical(group) == canonical(wanted)]):
        return spelled[0]
    shown = ", ".join(groups)
    if wanted:
        raise ValueError(f"no handler belongs to a group '{wanted}'; the groups are: {shown or 'none'}")
    if len({*map(canonical, groups)}) != 1:
        msg = f"handlers of several groups: choose one of {shown} with group=…" if groups else "no handlers were found"
        raise ValueError(msg)
    return groups[0]

"""Events that are given in a test, made from whatever says what happened."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic_core import to_jsonable_python

from opencqrs_py.model.cloudevents import parse_event
from opencqrs_py.model.event import Event
from opencqrs_py.model.handler import event_type_of
from opencqrs_py.model.json_text import write_json

__all__ = ["GivenEvents"]

_SOURCE = "urn:test"


class GivenEvents:
    """The log of a test, and what its events were made from.

    Args:
        event_types: Event types that are not marked with ``@event_type``, each with its class.
        enveloped: Whether data come in OpenCQRS' envelope of metadata and payload.
    """

    def __init__(self, event_types: Mapping[str, type], *, enveloped: bool) -> None:
        self._types = {cls: name for name, cls in event_types.items()}
        self._enveloped = enveloped
        self._given: list[tuple[Any, Event]] = []

    def make(self, given: Any, subject: str, time: datetime | str, metadata: Mapping[str, Any]) -> Event:
        """Return what is given as an event; its id and position are the next number, unless it brings an id.

        Args:
            given: An event; a ``dict`` with the attributes of a CloudEvent, at least ``type``; an object of a class
                that stands for an event type.
            subject: Its subject, unless it brings one.
            time: Its time, unless it brings one.
            metadata: Its metadata, unless it is an event.

        Raises:
            TypeError: If it is nothing of that.
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
            msg = f"{how}: {wanted!r}"
            raise LookupError(msg)
        return found[0]

    def at(self, position: int) -> Event:
        """Return the event at a position."""
        return self._given[position - 1][1]

    def _attributes(self, given: Any) -> dict[str, Any]:
        if isinstance(given, dict) and isinstance(given.get("type"), str):
            return {**given, "data": _plain(given.get("data"))}
        name = self._types.get(type(given)) or event_type_of(type(given))
        if name is None:
            shown = "a dict without 'type'" if isinstance(given, dict) else f"a {type(given).__name__}"
            msg = (
                f'{shown} is no event: write @event_type("…") above its class, or give a dict such as '
                '{"type": "library.book-lent.v1", "data": {…}}'
            )
            raise TypeError(msg)
        return {"type": name, "data": _plain(given)}

    def _with(self, metadata: Mapping[str, Any], attributes: dict[str, Any]) -> dict[str, Any]:
        if self._enveloped:
            return {**attributes, "data": {"metadata": _plain(dict(metadata)), "payload": attributes.get("data")}}
        return {**_plain(dict(metadata)), **attributes}


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; of attrs classes, their fields."""
    return to_jsonable_python(value, by_alias=True, fallback=_fields)


def _fields(value: Any) -> Any:
    fields = getattr(type(value), "__attrs_attrs__", None)
    if fields is None:
        msg = f"a {type(value).__name__} cannot become JSON"
        raise TypeError(msg)
    return {field.name: getattr(value, field.name) for field in fields}

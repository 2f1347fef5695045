"""Translation of events between the client of EventSourcingDB and this package."""

from __future__ import annotations

import json
from datetime import UTC

import eventsourcingdb as esdb

from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.appending import Precondition, SubjectIsOnEventId, SubjectIsPopulated, SubjectIsPristine
from opencqrs_py.model.event import Event

__all__ = ["candidate_of", "event_of", "position_of", "precondition_of"]

_JSON = "application/json"
_PASSED_ON = {"traceparent": "trace_parent", "tracestate": "trace_state"}
_MADE_BY_SERVER = {"hash", "predecessorhash", "signature"}

# Not orjson: it knows no whole number beyond 64 bits.
_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def position_of(event_id: str) -> int:
    """Return the position of an event: its id, which is a number from 0 as text, plus 1.

    Raises:
        ValueError: If the id is no such number.
    """
    if not (event_id.isascii() and event_id.isdigit()):
        msg = f"an event's id must be a number, got {event_id!r}"
        raise ValueError(msg)
    return int(event_id) + 1


def event_of(read: esdb.Event) -> Event:
    """Return an event as this package has it.

    The data are written anew from what the client has parsed: equal in value, without the server's spacing. The time
    is the server's own text, to the nanosecond, which the client keeps to verify the hash; its ``datetime`` is cut to
    microseconds and has no zone.
    """
    extensions = {
        "predecessorhash": read.predecessor_hash,
        "hash": read.hash,
        "signature": read.signature,
        "traceparent": read.trace_parent,
        "tracestate": read.trace_state,
    }
    return Event(
        position_of(read.event_id),
        read.event_id,
        read.source,
        read.subject,
        read.type,
        getattr(read, "_time_from_server", None) or read.time.replace(tzinfo=UTC).isoformat(),
        read.data_content_type,
        _text(read.data),
        _text({name: value for name, value in extensions.items() if value is not None}),
    )


def candidate_of(event: Event, source: str) -> esdb.EventCandidate:
    """Return what is sent to have an event stored. Its id and time are left out: the server gives its own.

    Hashes and a signature are left out, too, as they belong to the store that the event came from.

    Args:
        event: The event.
        source: Its source, if it names none itself.

    Raises:
        EventStoreError: OCQ-336, if the server has no place for something that the event holds.
    """
    data = json.loads(event.payload) if event.payload is not None else None
    if not isinstance(data, dict):
        raise _unfit(event, "its data are no JSON object", "put the data into an object")
    if event.content_type != _JSON:
        raise _unfit(event, f"its data are {event.content_type}", f"EventSourcingDB takes {_JSON} only")
    foreign = sorted(event.metadata.keys() - _PASSED_ON.keys() - _MADE_BY_SERVER)
    if foreign:
        raise _unfit(event, f"it has the extension '{foreign[0]}'", "put what it says into the data")
    traces = {_PASSED_ON[name]: value for name, value in event.metadata.items() if name in _PASSED_ON}
    return esdb.EventCandidate(event.source or source, event.subject, event.type, data, **traces)


def precondition_of(condition: Precondition) -> esdb.Precondition:
    """Return a precondition as the client has it."""
    match condition:
        case SubjectIsPristine(subject):
            return esdb.IsSubjectPristine(subject)
        case SubjectIsPopulated(subject):
            return esdb.IsSubjectPopulated(subject)
        case SubjectIsOnEventId(subject, event_id):
            return esdb.IsSubjectOnEventId(subject, event_id)


def _unfit(event: Event, reason: str, fix: str) -> EventStoreError:
    return EventStoreError("OCQ-336", f"EventSourcingDB cannot keep the event: {reason}", event.label, fix)

"""The envelope of OpenCQRS: data that hold metadata and payload."""

from __future__ import annotations

from opencqrs_py.errors import EventFormatError
from opencqrs_py.model.event import Event
from opencqrs_py.model.json_text import write_parsed

__all__ = ["unwrapped"]

_FIX = 'set events.format: plain if the log is not written by OpenCQRS; else mend the event: {"payload": {...}}'


def unwrapped(event: Event) -> Event:
    """Return the event with the envelope's payload as its data and the envelope's metadata as its metadata.

    No metadata is an empty mapping. The extension attributes of the CloudEvent are those of the raw event.

    Raises:
        EventFormatError: OCQ-215, if the data are no envelope.

    Source:
        OpenCQRS data envelope; decision K14.
    """
    data = event.data
    if not isinstance(data, dict) or data.get("payload") is None:
        raise EventFormatError("OCQ-215", "the event's data are no envelope with a payload", event.label, _FIX)
    metadata = data.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        what = f"the envelope's metadata are {type(metadata).__name__}, not a JSON object"
        raise EventFormatError("OCQ-215", what, event.label, _FIX)
    extensions = write_parsed(metadata) if metadata else None
    return event._replace(payload=write_parsed(data["payload"]), extensions=extensions)

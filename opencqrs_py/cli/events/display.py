"""What the commands show of events, and of the progress of long work."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import orjson

from opencqrs_py.cli.output import stderr
from opencqrs_py.errors import EventFormatError
from opencqrs_py.model.cloudevents import extensions_of, write_event
from opencqrs_py.model.event import Event
from opencqrs_py.model.json_text import exact_members
from opencqrs_py.model.naming import counted
from opencqrs_py.processing.notices import in_words

DATA_SHOWN = 60  # characters of an event's data that people see
_REPORT_EVERY = 2.0  # seconds between two lines


class ProgressReport:
    """Reports progress on standard error, at intervals.

    Args:
        done: The word for it, such as ``read``.
        total: How much there is, if that is known.
        monotonic: Seconds that never go back.
    """

    def __init__(self, done: str, total: int | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._word = done
        self._total = total
        self._monotonic = monotonic
        self._began = self._reported = monotonic()

    def __call__(self, done: int) -> None:
        """Report the number of events so far, if a report is due."""
        now = self._monotonic()
        if now - self._reported < _REPORT_EVERY:
            return
        self._reported = now
        speed = done / (now - self._began)
        known = f"{counted(done, 'event')} {self._word} ({speed:,.0f}/s) …"
        if self._total and speed:
            left = in_words(max(0.0, (self._total - done) / speed))
            known = f"{done:,} of {counted(self._total, 'event')} {self._word} ({speed:,.0f}/s), {left} left …"
        stderr().print(known, markup=False)


def rate(events: int, seconds: float) -> str:
    """Return the speed in brackets; empty if it took too short a time to have one."""
    return f" ({events / seconds:,.0f}/s)" if events >= 1_000 and seconds > 0 else ""


def positioned(event: Event) -> dict[str, Any]:
    """Return an event as the object of CloudEvents' JSON format, preceded by its position.

    An extension attribute of that name, which CloudEvents allow, is left out: programs page by the position. Lone
    surrogates, which some logs contain, are escaped.

    Returns:
        The object is for ``orjson``, alone or as a part of one list or object.

    Raises:
        EventFormatError: OCQ-210, if its data or metadata are not JSON.
    """
    try:
        written = write_event(event)
        orjson.dumps([written])
    except (EventFormatError, orjson.JSONEncodeError) as error:
        written = _escaped(event, error)
    return {"position": 0, **written} | {"position": event.position}


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


_SURROGATE = re.compile("[\ud800-\udfff]")
_WITH_SURROGATES = json.JSONDecoder(parse_constant=_refuse)  # orjson accepts none, not even as escapes


def _escaped(event: Event, error: Exception) -> dict[str, Any]:
    """Return an event like ``write_event``, with escapes for lone surrogates.

    Raises:
        Exception: ``error``, if its data or metadata are not JSON for another reason.
    """
    payload, extensions = (None if text is None else _escapes(text) for text in (event.payload, event.extensions))
    try:
        if payload is not None:
            _WITH_SURROGATES.decode(payload)
        metadata = _metadata(event, extensions) if extensions else {}
    except (ValueError, TypeError, RecursionError):
        raise error from error.__cause__
    attributes = write_event(event._replace(payload=None, extensions=None))
    written = {name: _escapes(json.dumps(text, ensure_ascii=False)) for name, text in attributes.items()}
    written |= {} if payload is None else {"data": payload}
    return {name: orjson.Fragment(text) for name, text in {**written, **metadata}.items()}


def _metadata(event: Event, extensions: str) -> dict[str, str]:
    """Return the metadata that are shown, each value as JSON; ``extensions`` are all, with escapes."""
    if not isinstance(_WITH_SURROGATES.decode(extensions), dict):
        raise TypeError("the metadata are not an object")
    members = exact_members(extensions.encode())
    shown = extensions_of(event._replace(extensions=orjson.dumps(dict.fromkeys(members)).decode()))
    return {name: members[name] for name in shown}


def _escapes(text: str) -> str:
    """Return a text with escapes for its lone surrogates, as JSON has them."""
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def summed_up(added: int, given: int, done: str) -> str:
    """Return how many events were added and skipped, in words; ``done`` is the word for it, such as ``imported``."""
    skipped = f", skipped {given - added:,} (already stored)" if given != added else ""
    return f"{done} {counted(added, 'event')}{skipped}"

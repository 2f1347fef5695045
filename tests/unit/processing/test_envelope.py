"""The envelope of OpenCQRS: metadata and payload in the data of an event."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py import Event
from opencqrs_py.errors import EventFormatError
from opencqrs_py.processing.reading import unwrapped


def event(payload: str | None) -> Event:
    return Event(7, "4711", "s", "/books/1", "lent", None, "application/json", payload, '{"traceparent": "00-1"}')


@pytest.mark.parametrize(
    ("payload", "data", "metadata"),
    [
        ('{"payload": {"isbn": "1"}, "metadata": {"by": "Ada"}}', {"isbn": "1"}, {"by": "Ada"}),
        ('{"payload": {"isbn": "1"}}', {"isbn": "1"}, {}),
        ('{"payload": {"isbn": "1"}, "metadata": null}', {"isbn": "1"}, {}),
        ('{"payload": {"isbn": "1"}, "metadata": {}}', {"isbn": "1"}, {}),
        ('{"payload": [1, 2], "more": 3}', [1, 2], {}),
        ('{"payload": "text"}', "text", {}),
        ('{"payload": 0}', 0, {}),
        ('{"payload": false}', False, {}),
        ('{"payload": {"payload": 1}}', {"payload": 1}, {}),
    ],
)
def test_an_envelope_is_unwrapped_to_data_and_metadata(payload: str, data: Any, metadata: Any) -> None:
    opened = unwrapped(event(payload))
    assert (opened.data, opened.metadata) == (data, metadata)
    assert opened._replace(payload=payload, extensions=event(payload).extensions) == event(payload)


@pytest.mark.parametrize(
    ("payload", "code", "what"),
    [
        ("[]", "OCQ-215", "the event's data are not an envelope with a payload"),
        ('"text"', "OCQ-215", "the event's data are not an envelope with a payload"),
        ("{}", "OCQ-215", "the event's data are not an envelope with a payload"),
        ('{"isbn": "1"}', "OCQ-215", "the event's data are not an envelope with a payload"),
        ('{"payload": null}', "OCQ-215", "the event's data are not an envelope with a payload"),
        ('{"payload": {}, "metadata": []}', "OCQ-215", "the envelope's metadata are list, not a JSON object"),
        ('{"payload": {}, "metadata": "by"}', "OCQ-215", "the envelope's metadata are str, not a JSON object"),
        (None, "OCQ-210", "the event has no data"),
    ],
)
def test_data_without_an_envelope_raise_an_error_that_names_the_event(
    payload: str | None, code: str, what: str
) -> None:
    with pytest.raises(EventFormatError) as caught:
        unwrapped(event(payload))
    error = caught.value
    assert (error.code, error.what) == (code, what)
    assert error.where == "event 4711 at position 7 (lent, /books/1)"


def test_the_message_names_the_setting_to_change() -> None:
    with pytest.raises(EventFormatError) as caught:
        unwrapped(event("{}"))
    assert caught.value.fix == (
        'set events.format: plain if the log is not written by OpenCQRS; else fix the event: {"payload": {...}}'
    )


values = st.recursive(
    st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(values, st.none() | st.dictionaries(st.text("abc", max_size=3), values, max_size=3))
def test_a_wrapped_event_is_unwrapped_unchanged(payload: Any, metadata: dict[str, Any] | None) -> None:
    opened = unwrapped(event(orjson.dumps({"metadata": metadata, "payload": payload}).decode()))
    assert opened.data == payload
    assert opened.metadata == (metadata or {})

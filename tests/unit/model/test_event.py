"""Events: decoded on first access, and named in every message about them."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest

from opencqrs_py import Metadata
from opencqrs_py.errors import EventFormatError
from opencqrs_py.model import Event
from opencqrs_py.model.event import NOT_UTF_8


def event(**fields: object) -> Event:
    usual: dict[str, object] = {
        "position": 12,
        "id": "4711",
        "source": "https://library.example",
        "subject": "/books/1",
        "type": "book-lent.v1",
        "time": "2026-01-02T03:04:05.678901Z",
        "content_type": "application/json",
        "payload": '{"isbn": "1"}',
        "extensions": '{"traceparent": "00-1"}',
    }
    return Event(**(usual | fields))  # type: ignore[arg-type]


def test_a_message_names_an_event_in_one_line_whatever_its_attributes_hold() -> None:
    named = event(id="1\nall is well", type="a\tb", subject="/\x1b[2J\u202e").label
    assert named == r"event 1\nall is well at position 12 (a\tb, /\x1b[2J\u202e)"


def test_each_access_to_data_or_metadata_returns_a_fresh_copy() -> None:
    read = event()
    read.data["isbn"] = "2"
    read.metadata.clear()
    assert read.data == {"isbn": "1"}
    assert read.metadata == {"traceparent": "00-1"}


@pytest.mark.parametrize("name", ["data", "metadata", "subject", "note"])
def test_attributes_of_an_event_cannot_be_set(name: str) -> None:
    with pytest.raises(AttributeError):
        setattr(event(), name, "mine")
    assert not hasattr(event(), "__dict__")


def test_a_replaced_event_has_its_own_data() -> None:
    read = event()
    assert read.data == {"isbn": "1"}
    assert read._replace(payload='{"isbn": "2"}').data == {"isbn": "2"}


def test_missing_data_raise_an_error_that_names_the_event() -> None:
    with pytest.raises(EventFormatError) as caught:
        _ = event(payload=None).data
    assert str(caught.value) == (
        "[OCQ-210] the event has no data\n  where: event 4711 at position 12 (book-lent.v1, /books/1)\n"
        "  fix:   fix the event where it is stored, or use a handler that takes the raw Event and reads no data"
    )


def test_data_that_are_not_json_raise_an_error_that_names_the_event() -> None:
    with pytest.raises(EventFormatError) as caught:
        _ = event(payload="{").data
    assert caught.value.code == "OCQ-210"
    assert caught.value.what.startswith("the event's data are not JSON (")
    assert caught.value.where == "event 4711 at position 12 (book-lent.v1, /books/1)"


@pytest.mark.parametrize(("part", "column"), [("data", "payload"), ("metadata", "extensions")])
def test_data_or_metadata_of_bytes_that_are_not_utf_8_raise_an_error_that_says_so(part: str, column: str) -> None:
    with pytest.raises(EventFormatError) as caught:
        getattr(event(**{column: NOT_UTF_8 + r"\xff"}), part)
    assert caught.value.code == "OCQ-210"
    assert caught.value.what == f"the event's {part} are not JSON (the bytes are not UTF-8)"


def test_metadata_are_the_extensions() -> None:
    assert event().metadata == {"traceparent": "00-1"}
    assert isinstance(event().metadata, Metadata)


@pytest.mark.parametrize(
    ("extensions", "what"),
    [("[1]", "are not a JSON object"), ('"x"', "are not a JSON object"), ("{", "are not JSON (")],
)
def test_metadata_other_than_an_object_raise_an_error_that_names_the_event(extensions: str, what: str) -> None:
    with pytest.raises(EventFormatError) as caught:
        _ = event(extensions=extensions).metadata
    assert caught.value.code == "OCQ-210"
    assert caught.value.what.startswith(f"the event's metadata {what}")
    assert caught.value.where == "event 4711 at position 12 (book-lent.v1, /books/1)"


@pytest.mark.parametrize("extensions", [None, "", "{}"])
def test_missing_metadata_are_an_empty_mapping(extensions: str | None) -> None:
    metadata = event(extensions=extensions).metadata
    assert metadata == {}
    assert isinstance(metadata, Metadata)


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (None, None),
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05.123456789Z", datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)),
        ("2016-12-31t23:59:60z", datetime(2017, 1, 1, tzinfo=UTC)),
        ("20260102T030405Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),  # formerly accepted
        ("2026-01-02 03:04:05", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),  # as other programs may write it
        ("2026-01-02T03:04:05+01:00", datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=1)))),
    ],
)
def test_the_timestamp_is_aware_and_exact_to_the_microsecond(time: str | None, expected: datetime | None) -> None:
    assert event(time=time).timestamp == expected


@pytest.mark.parametrize("time", ["1767261600", "yesterday", "2026-01-02T25:00:00Z", "2026-02-30T00:00:00Z"])
def test_an_invalid_time_raises_an_error_that_names_the_event_and_the_value(time: str) -> None:
    with pytest.raises(EventFormatError) as caught:
        _ = event(time=time).timestamp
    assert caught.value.code == "OCQ-210"
    assert caught.value.what == f"the event's time is '{time}', which is not an RFC 3339 time of the years 1 to 9999"
    assert caught.value.where == "event 4711 at position 12 (book-lent.v1, /books/1)"
    assert "Event.time" in caught.value.fix


def test_an_event_pickles_whether_decoded_or_not() -> None:
    fresh, decoded = event(), event()
    assert decoded.data
    assert decoded.metadata
    for original in (fresh, decoded):
        copy = pickle.loads(pickle.dumps(original))
        assert copy == original
        assert (copy.data, copy.metadata) == (original.data, original.metadata)


def test_a_replaced_payload_is_decoded_again() -> None:
    first = event()
    assert first.data == {"isbn": "1"}
    second = first._replace(payload='{"isbn": "2"}')
    assert second.data == {"isbn": "2"}

"""CloudEvents in JSON: a valid event is kept to the letter, an invalid one is refused by name."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opencqrs_py.errors import EventFormatError
from opencqrs_py.model import Event
from opencqrs_py.model.cloudevents import parse_event, write_event

RIGHT = {"specversion": "1.0", "id": "4711", "source": "https://library.example", "type": "book-lent.v1"}


def line(**fields: object) -> str:
    return json.dumps({**RIGHT, **fields})


def without(name: str) -> str:
    return json.dumps({key: value for key, value in RIGHT.items() if key != name})


def test_every_attribute_is_parsed_into_its_field() -> None:
    event = parse_event(
        line(
            subject="/books/1",
            time="2026-01-02T03:04:05.123456789Z",
            datacontenttype="application/vnd.library+json",
            data={"isbn": "1", "title": "Größe"},
            traceparent="00-1",
            priority=3,
        )
    )
    assert event == Event(
        position=0,
        id="4711",
        source="https://library.example",
        subject="/books/1",
        type="book-lent.v1",
        time="2026-01-02T03:04:05.123456789Z",
        content_type="application/vnd.library+json",
        payload='{"isbn":"1","title":"Größe"}',
        extensions='{"traceparent":"00-1","priority":3}',
    )


def test_optional_attributes_have_defaults() -> None:
    event = parse_event(b'{"id": "1", "source": "s", "type": "t"}')
    assert event == Event(0, "1", "s", "/", "t", None, "application/json", None, None)


@pytest.mark.parametrize("empty", [{"subject": ""}, {"subject": None}, {"datacontenttype": ""}, {"data": None}])
def test_an_empty_attribute_counts_as_missing(empty: dict[str, Any]) -> None:
    assert parse_event(line(**empty)) == parse_event(line())


@pytest.mark.parametrize("data", [0, False, "", [], {}, "text", 1.5, [1, {"a": None}]])
def test_data_may_be_any_json_value_but_null(data: object) -> None:
    assert parse_event(line(data=data)).data == data


TOO_DEEP: object = json.loads("[" * 255 + "]" * 255)

# "…" stands for the parser's own words
BAD_LINES = [
    ("", "not JSON (…"),
    ('{"id": "1"', "not JSON (…"),
    ("{", "not JSON (…; each event has to be on a line of its own, as a whole"),
    (b"[\r\n", "not JSON (…; each event has to be on a line of its own, as a whole"),
    (b"\xff", "not UTF-8 (0xff at byte 1 of the line)"),
    (b'{"id":"gr\xfc\xdfe"}', "not UTF-8 (0xfc at byte 10 of the line)"),
    (line(data="X").replace("X", "\\ud800"), "not JSON (…"),
    ("[]", "a CloudEvent is a JSON object, got list; a list has to be written as one object per line"),
    ('"text"', "a CloudEvent is a JSON object, got str"),
    ("null", "a CloudEvent is a JSON object, got NoneType"),
    (without("id"), "attribute 'id' is missing; it must be a text with at least one character"),
    (without("source"), "attribute 'source' is missing; it must be a text with at least one character"),
    (without("type"), "attribute 'type' is missing; it must be a text with at least one character"),
    (line(id=4711), "attribute 'id' is 4711; it must be a text with at least one character"),
    (line(source=""), "attribute 'source' is ''; it must be a text with at least one character"),
    (line(type=["a"]), "attribute 'type' is ['a']; it must be a text with at least one character"),
    (line(id=None), "attribute 'id' is null; it must be a text with at least one character"),
    (line(source=None), "attribute 'source' is null; it must be a text with at least one character"),
    (line(type=None), "attribute 'type' is null; it must be a text with at least one character"),
    (line(subject=1), "attribute 'subject' must be a text, got 1"),
    (line(time=1767323045), "attribute 'time' must be a text, got 1767323045"),
    (line(datacontenttype={}), "attribute 'datacontenttype' must be a text, got {}"),
    (line(subject="/a\0b"), "attribute 'subject' must not contain the character U+0000"),
    (line(id="\0"), "attribute 'id' must not contain the character U+0000"),
    (line(time="2026-01-02\0" + "03:04:05Z"), "attribute 'time' must not contain the character U+0000"),
    (line(specversion="0.3"), "specversion must be '1.0', got '0.3'"),
    (line(specversion=1.0), "specversion must be '1.0', got 1.0"),
    (line(specversion=None), "specversion must be '1.0', got null"),
    (line(data_base64="AA=="), "binary data (data_base64) are not supported; data must be JSON"),
    (line(time="yesterday"), "attribute 'time' is not an RFC 3339 time: …"),
    (line(time=""), "attribute 'time' is not an RFC 3339 time: …"),
    (
        line(time="2026-01-02T03:04:05"),
        "attribute 'time' is not an RFC 3339 time: an offset is missing, got '2026-01-02T03:04:05'; …",
    ),
    (
        line(time="2026-02-30T00:00:00Z"),
        "attribute 'time' is not an RFC 3339 time: the day must be 01 to 28, got …; write …",
    ),
    (
        line(time="20260102T030405Z"),
        "attribute 'time' is not an RFC 3339 time: the date must be written as YYYY-MM-DD, got …",
    ),
    (line(data=TOO_DEEP), "attribute 'data' must not be nested deeper than 254 levels"),
    (line(extra=TOO_DEEP), "the extensions must not be nested deeper than 254 levels"),
]

UNREADABLE = ("not JSON", "not UTF-8", "JSON object", "nested deeper")
CODES = {"binary data": "OCQ-231", **dict.fromkeys(UNREADABLE, "OCQ-230")}


@pytest.mark.parametrize(("bad", "what"), BAD_LINES)
def test_a_bad_line_is_refused_with_the_reason(bad: bytes | str, what: str) -> None:
    with pytest.raises(EventFormatError) as caught:
        parse_event(bad)
    assert caught.value.code == next((code for part, code in CODES.items() if part in what), "OCQ-212")
    assert re.fullmatch(re.escape(what).replace("…", ".+"), caught.value.what)


def test_missing_attributes_are_omitted_when_written() -> None:
    assert write_event(parse_event(line())) == {
        **RIGHT,
        "subject": "/",
        "datacontenttype": "application/json",
    }


def test_an_extension_never_replaces_an_attribute() -> None:
    """The metadata column of another system may contain any name."""
    others = b'{"specversion":"9","id":"x","subject":"/x","time":"never","data":1,"data_base64":"","user":"ada"}'
    event = parse_event(line())._replace(extensions=others.decode())
    assert write_event(event) == {**write_event(parse_event(line())), "user": "ada"}


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    # U+0000 is allowed inside data: JSON writes it as an escape
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
core = {"specversion", "id", "source", "subject", "type", "time", "datacontenttype", "data", "data_base64"}
cloud_events = st.fixed_dictionaries(
    {"specversion": st.just("1.0"), "id": texts, "source": texts, "type": texts},
    optional={
        "subject": texts,
        "time": st.datetimes(timezones=st.just(UTC)).map(datetime.isoformat),
        "datacontenttype": texts,
        "data": json_values.filter(lambda value: value is not None),
    },
)
extensions = st.dictionaries(texts.filter(lambda name: name not in core), json_values, max_size=3)


@given(cloud_events, extensions)
def test_what_is_read_is_written_back_unchanged(attributes: dict[str, Any], more: dict[str, Any]) -> None:
    given_event = {**attributes, **more}
    event = parse_event(orjson.dumps(given_event))
    written = write_event(event)
    assert written == {"subject": "/", "datacontenttype": "application/json", **given_event}
    assert parse_event(orjson.dumps(written)) == event


@pytest.mark.parametrize(
    "time",
    ["2016-12-31T23:59:60Z", "2026-01-02t03:04:05z", "2026-01-02 03:04:05.1234567890-00:00", "0000-02-29T00:00:00Z"],
)
def test_a_time_is_kept_as_it_was_sent(time: str) -> None:
    event = parse_event(line(time=time))
    assert event.time == time
    assert write_event(event)["time"] == time


@pytest.mark.parametrize("time", ["20260102T030405Z", "2026-01-02T03:04Z", "2026-W01-5T03:04:05Z"])
def test_a_stored_time_that_was_once_accepted_can_be_read(time: str) -> None:
    with pytest.raises(EventFormatError, match="OCQ-212"):
        parse_event(line(time=time))
    assert parse_event(line(time=time), stored=True).time == time


@pytest.mark.parametrize("time", ["2026-01-02T03:04:05", "2026-02-30T00:00:00Z", "now", 1])
def test_a_stored_time_that_was_never_valid_is_refused(time: object) -> None:
    with pytest.raises(EventFormatError, match="OCQ-212"):
        parse_event(line(time=time), stored=True)

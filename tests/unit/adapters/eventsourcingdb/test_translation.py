"""Translation of events: ids, times and numbers, with and without the server's text."""

from __future__ import annotations

import json

import eventsourcingdb as esdb
import pytest

from opencqrs_py.adapters.eventsourcingdb.reading import candidate_of, event_of, position_of, precondition_of
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model import Event
from opencqrs_py.model.appending import Precondition, SubjectIsOnEventId, SubjectIsPopulated, SubjectIsPristine

SENT = {
    "specversion": "1.0",
    "id": "9",
    "time": "2026-01-01T12:00:00.123456789Z",
    "source": "s",
    "subject": "/größe",
    "type": "t",
    "datacontenttype": "application/json",
    "data": {"b": 1, "a": "ü"},
    "predecessorhash": "p",
    "hash": "h",
    "signature": "esdb:signature:v1:00",
}


@pytest.mark.parametrize(
    ("event_id", "position"), [("0", 1), ("9", 10), ("10", 11), ("12345678901234", 12345678901235)]
)
def test_a_position_is_the_id_plus_one(event_id: str, position: int) -> None:
    assert position_of(event_id) == position


@pytest.mark.parametrize("event_id", ["", "-1", "+1", "1.0", " 1", "1_0", "a", "٣", "²"])
def test_an_id_that_is_not_a_number_is_refused(event_id: str) -> None:
    with pytest.raises(ValueError, match="must be a number"):
        position_of(event_id)


def test_all_attributes_from_the_client_are_kept() -> None:
    event = event_of(esdb.Event.parse(SENT))
    assert event.time == SENT["time"]
    assert event.payload == '{"b":1,"a":"ü"}'
    assert event.metadata == {"predecessorhash": "p", "hash": "h", "signature": "esdb:signature:v1:00"}


def test_without_the_servers_text_times_have_microseconds() -> None:
    parsed = esdb.Event.parse(SENT)
    del parsed._time_from_server
    assert event_of(parsed).time == "2026-01-01T12:00:00.123456+00:00"


def received(data: str) -> Event:
    """Return an event as the client returns it after reading it from the server."""
    sent = {**SENT, "data": json.loads(data)}
    return event_of(esdb.Event._parse_from_server(sent, data.encode))


@pytest.mark.parametrize(
    ("data", "payload"),
    [
        ('{ "price": 12345678901234567.89 }', '{"price":12345678901234567.89}'),
        ('{"a": [1, 0.1234567890123456789], "b": " ü "}', '{"a":[1,0.1234567890123456789],"b":" ü "}'),
        ('{"rate": 62.590000000000003}', '{"rate":62.590000000000003}'),
        ('{"tiny": 1.2345678901234567e-300}', '{"tiny":1.2345678901234567e-300}'),
        ('{"rate": 1.50}', '{"rate":1.5}'),
        ('{"id": 18446744073709551617}', '{"id":18446744073709551617}'),
        ('{"at": "2026-01-01T12:00:00.123"}', '{"at":"2026-01-01T12:00:00.123"}'),
    ],
)
def test_numbers_keep_the_digits_sent_by_the_server(data: str, payload: str) -> None:
    assert received(data).payload == payload


def test_without_the_servers_text_numbers_are_those_parsed_by_the_client() -> None:
    parsed = esdb.Event.parse({**SENT, "data": {"price": 12345678901234567.89}})
    assert event_of(parsed).payload == '{"price":1.2345678901234568e+16}'


def to_be_sent(number: str) -> Event:
    return Event(0, "1", "s", "/x", "t", None, "application/json", f'{{"a":[{{"b":{number}}}]}}', None)


@pytest.mark.parametrize(
    "number", ["12345678901234567.89", "0.1234567890123456789", "-999999999999999.99", "12345678901234567.8e900"]
)
def test_a_number_that_the_client_would_round_is_refused(number: str) -> None:
    with pytest.raises(EventStoreError, match=f"OCQ-336.*round the number {number}") as caught:
        candidate_of(to_be_sent(number), "s")
    assert caught.value.fix == f'put it in the data as text: "{number}"'


@pytest.mark.parametrize(
    "number",
    ["0.1", "0.30000000000000004", "62.590000000000003", "1.50000000000000000000", "18446744073709551617", "1e2"],
)
def test_a_number_that_is_exact_or_the_shortest_form_of_a_double_is_sent(number: str) -> None:
    assert candidate_of(to_be_sent(number), "s").data == {"a": [{"b": json.loads(number)}]}


@pytest.mark.parametrize(
    ("condition", "kind", "payload"),
    [
        (SubjectIsPristine("/a"), "isSubjectPristine", {"subject": "/a"}),
        (SubjectIsPopulated("/a"), "isSubjectPopulated", {"subject": "/a"}),
        (SubjectIsOnEventId("/a", "10"), "isSubjectOnEventId", {"subject": "/a", "eventId": "10"}),
    ],
)
def test_preconditions_are_translated_to_those_of_the_server(
    condition: Precondition, kind: str, payload: dict[str, str]
) -> None:
    assert precondition_of(condition).to_json() == {"type": kind, "payload": payload}

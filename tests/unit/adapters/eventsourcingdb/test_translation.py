"""Translation of events: ids are numbers, times are kept, and a client without the server's text is done with."""

from __future__ import annotations

import eventsourcingdb as esdb
import pytest

from opencqrs_py.adapters.eventsourcingdb.reading import event_of, position_of, precondition_of
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
def test_an_id_that_is_no_number_is_refused(event_id: str) -> None:
    with pytest.raises(ValueError, match="must be a number"):
        position_of(event_id)


def test_everything_that_the_client_gives_is_kept() -> None:
    event = event_of(esdb.Event.parse(SENT))
    assert event.time == SENT["time"]
    assert event.payload == '{"b":1,"a":"ü"}'
    assert event.metadata == {"predecessorhash": "p", "hash": "h", "signature": "esdb:signature:v1:00"}


def test_a_client_that_hides_the_servers_text_gives_the_time_to_the_microsecond() -> None:
    parsed = esdb.Event.parse(SENT)
    del parsed._time_from_server
    assert event_of(parsed).time == "2026-01-01T12:00:00.123456+00:00"


@pytest.mark.parametrize(
    ("condition", "kind", "payload"),
    [
        (SubjectIsPristine("/a"), "isSubjectPristine", {"subject": "/a"}),
        (SubjectIsPopulated("/a"), "isSubjectPopulated", {"subject": "/a"}),
        (SubjectIsOnEventId("/a", "10"), "isSubjectOnEventId", {"subject": "/a", "eventId": "10"}),
    ],
)
def test_preconditions_are_those_of_the_server(condition: Precondition, kind: str, payload: dict[str, str]) -> None:
    assert precondition_of(condition).to_json() == {"type": kind, "payload": payload}

"""The log of the EventSourcingDB stand-in: what it refuses, and how it assigns ids and times."""

from __future__ import annotations

from typing import Any

import pytest

from opencqrs_py.testing.eventsourcingdb import EventLog
from opencqrs_py.testing.eventsourcingdb.requests import RefusedError

WELL_FORMED: dict[str, Any] = {"source": "s", "subject": "/a", "type": "t", "data": {}}
ALL = {"recursive": True}


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"source": ""}, "source-missing"),
        ({"subject": None}, "subject-missing"),
        ({"type": 1}, "event-type-missing"),
        ({"data": []}, "data-malformed"),
        ({"data": None}, "data-missing"),
        ({"subject": "a"}, "subject-malformed"),
    ],
    ids=str,
)
def test_a_malformed_event_is_refused_with_all_events_of_its_call(changed: dict[str, Any], code: str) -> None:
    log = EventLog()
    with pytest.raises(RefusedError) as refused:
        log.write([WELL_FORMED, {**WELL_FORMED, **changed}])
    assert refused.value.code == code
    assert log.read("/", ALL) == []


@pytest.mark.parametrize(
    "precondition",
    [
        {"type": "isSubjectPristine", "payload": {"subject": "/a"}},
        {"type": "isSubjectPopulated", "payload": {"subject": "/"}},
        {"type": "isSubjectPristine", "payload": {"subject": "/", "options": {"recursive": True}}},
        {"type": "isSubjectOnEventId", "payload": {"subject": "/a", "eventId": "1"}},
        {"type": "isEventQlQueryTrue", "payload": {"query": "FROM e IN events PROJECT INTO true"}},
        {"type": "isSomething", "payload": {"subject": "/a"}},
    ],
    ids=str,
)
def test_events_whose_preconditions_fail_are_refused(precondition: dict[str, Any]) -> None:
    log = EventLog()
    log.write([WELL_FORMED])
    with pytest.raises(RefusedError):
        log.write([WELL_FORMED], [precondition])
    assert len(log.read("/", ALL)) == 1


def test_an_empty_write_is_refused() -> None:
    with pytest.raises(RefusedError, match="must not be empty"):
        EventLog().write([])


def test_ids_count_from_zero_and_times_have_nanoseconds() -> None:
    moments = iter([0, 1_767_268_800_000_000_007])
    first, second = EventLog(lambda: next(moments)).write([WELL_FORMED, {**WELL_FORMED, "traceparent": "00"}])
    assert [first["id"], second["id"]] == ["0", "1"]
    assert [first["time"], second["time"]] == ["1970-01-01T00:00:00.000000000Z", "2026-01-01T12:00:00.000000007Z"]
    assert second["predecessorhash"] == first["hash"] != second["hash"]
    assert second["traceparent"] == "00"

from __future__ import annotations

import pytest

from opencqrs_py.cli.events.statistics import Tally, top_level
from opencqrs_py.model.event import Event


def event(position, subject="/a/1", event_type="t", payload="{}", time=None):
    return Event(position, str(position), "s", subject, event_type, time, "application/json", payload, None)


@pytest.mark.parametrize(
    ("subject", "level"),
    [
        ("/", "/"),
        ("/fines", "/fines"),
        ("/fines/", "/fines"),
        ("/fines/S1/payments/2", "/fines"),
        ("//a", "/"),
        ("no slash", "no slash"),
        ("a/b", "a"),
        ("", ""),
    ],
)
def test_the_first_level_of_a_subject_is_its_first_segment(subject, level):
    assert top_level(subject) == level


def test_without_events_first_and_last_are_null():
    tally = Tally()
    tally.add([])
    rows = tally.rows(10)
    assert (rows["events"], rows["first"], rows["last"]) == (0, None, None)
    assert rows["types"] == {"different": 0, "not_told_apart": 0, "top": []}


def test_events_are_counted_by_type_and_by_first_level():
    tally = Tally()
    tally.add([event(2, time="2026-01-01T00:00:00Z"), event(3, "/b", "u", None)])
    tally.add([event(7, "/a", "u", '{"ü":1}')])
    rows = tally.rows(10)
    assert rows["first"] == {"position": 2, "time": "2026-01-01T00:00:00Z"}
    assert rows["last"] == {"position": 7, "time": None}
    assert (rows["events"], rows["data_characters"]) == (3, 9)
    assert rows["types"]["top"] == [{"type": "u", "events": 2}, {"type": "t", "events": 1}]
    assert rows["subjects"]["top"] == [{"subject": "/a", "events": 2}, {"subject": "/b", "events": 1}]


def test_the_top_is_sorted_by_frequency_then_by_name():
    tally = Tally()
    tally.add([event(n, event_type=name) for n, name in enumerate("cabbc")])
    assert [row["type"] for row in tally.rows(2)["types"]["top"]] == ["b", "c"]
    assert tally.rows(2)["types"]["different"] == 3


def test_memory_does_not_grow_with_the_number_of_names():
    tally = Tally(most=3)
    tally.add([event(n, f"/{n}") for n in range(10)])
    tally.add([event(11, "/0"), event(12, "/9")])
    subjects = tally.rows(10)["subjects"]
    assert subjects["different"] == 3
    assert subjects["not_told_apart"] == 8
    assert sum(row["events"] for row in subjects["top"]) + subjects["not_told_apart"] == 12

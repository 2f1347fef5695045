from __future__ import annotations

import io
import json

import orjson
import pytest
from rich.console import Console

from opencqrs_py.cli.events import display
from opencqrs_py.cli.events.display import ProgressReport, positioned, rate
from opencqrs_py.errors import EventFormatError
from opencqrs_py.model.event import Event
from opencqrs_py.testing import FakeClock


@pytest.fixture
def screen(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(display, "stderr", lambda: Console(file=out, width=200))
    return out


def stored(payload: str | None) -> Event:
    return Event(1, "a", "s", "/x", "t", None, "application/json", payload, '{"trace":"b"}')


@pytest.mark.parametrize(
    ("payload", "printed"),
    [
        ('{"x":"\ud83d cut 😀"}', '{"x":"\\ud83d cut 😀"}'),
        ('{"x":"\\ud83d cut", "y": 1.10}', '{"x":"\\ud83d cut", "y": 1.10}'),
        ('"\udfff\ud800"', '"\\udfff\\ud800"'),
    ],
)
def test_lone_surrogates_in_data_are_escaped(payload, printed):
    line = orjson.dumps(positioned(stored(payload))).decode()
    assert f'"datacontenttype":"application/json","data":{printed},"trace":"b"' in line
    assert json.loads(line)["data"] == json.loads(payload)


@pytest.mark.parametrize("name", ["id", "source", "subject", "type", "time"])
def test_lone_surrogates_in_attributes_are_escaped(name):
    event = stored('{"n":12345678901234567890123}')._replace(**{name: 'ö "\ud83d'})
    shown = json.loads(orjson.dumps(positioned(event)))
    assert shown == {**json.loads(orjson.dumps(positioned(event._replace(**{name: "x"})))), name: 'ö "\ud83d'}


@pytest.mark.parametrize(
    ("extensions", "shown"),
    [
        ('{"trace":"\ud83d ö"}', {"trace": "\ud83d ö"}),
        ('{"trace": "\\ud83d", "n": 12345678901234567890123}', {"trace": "\ud83d", "n": 12345678901234567890123}),
        ('{"id":"other","position":7,"trace":["\ud83d"]}', {"trace": ["\ud83d"]}),
    ],
)
def test_lone_surrogates_in_metadata_are_escaped(extensions, shown):
    known = json.loads(orjson.dumps(positioned(stored("1")._replace(extensions=None))))
    assert json.loads(orjson.dumps(positioned(stored("1")._replace(extensions=extensions)))) == {**known, **shown}


@pytest.mark.parametrize("extensions", ["\ud83d", '["\ud83d"]', '{"\ud83d":1}', '{"x":"\ud83d","y":NaN}'])
def test_metadata_that_are_no_json_object_are_an_error_that_names_the_event(extensions):
    with pytest.raises(EventFormatError, match=r"OCQ-210[\s\S]*event a at position 1"):
        positioned(stored("1")._replace(extensions=extensions))


@pytest.mark.parametrize("payload", ["no JSON", "\ud83d", '{"x":"\ud83d","y":NaN}', '["\ud83d",' + "[" * 100_000])
def test_data_that_are_not_json_are_an_error_that_names_the_event(payload):
    with pytest.raises(EventFormatError, match=r"OCQ-210[\s\S]*event a at position 1"):
        positioned(stored(payload))


def shown(screen, total, *steps):
    clock = FakeClock()
    progress = ProgressReport("read", total, clock.monotonic)
    for seconds, done in steps:
        clock.advance(seconds)
        progress(done)
    return screen.getvalue().splitlines()


def test_short_work_shows_no_progress(screen):
    assert shown(screen, None, (0.5, 1), (1.4, 1_000)) == []


def test_progress_lines_appear_at_most_every_two_seconds(screen):
    lines = shown(screen, None, (1, 500), (1, 1_000), (0.1, 1_050), (2, 4_100))
    assert lines == ["1,000 events read (500/s) …", "4,100 events read (1,000/s) …"]


def test_the_time_left_is_shown_if_the_total_is_known(screen):
    assert shown(screen, 10_000, (2, 1_000)) == ["1,000 of 10,000 events read (500/s), 18 s left …"]


def test_no_time_left_is_shown_before_the_first_event(screen):
    assert shown(screen, 10, (3, 0)) == ["0 events read (0/s) …"]


@pytest.mark.parametrize(("events", "seconds", "text"), [(999, 1, ""), (1_000, 0, ""), (3_000, 1.5, " (2,000/s)")])
def test_a_rate_is_shown_only_for_enough_events_and_time(events, seconds, text):
    assert rate(events, seconds) == text

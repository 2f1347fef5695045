"""Options of the data source: what they mean, and what a person reads who gets one wrong."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.config.settings import MappingSettings
from opencqrs_py.engines.spark.source_mapping import MAPPING_OPTIONS
from opencqrs_py.engines.spark.source_options import OPTIONS, Scope, scope_of
from opencqrs_py.errors import EngineError, EventStoreError
from opencqrs_py.model.event import Event
from opencqrs_py.model.mapping import TableMapping
from opencqrs_py.model.selection import Selection

MIDNIGHT = datetime(2026, 1, 5, tzinfo=UTC)
TIMES = ["2026-01-04T12:00:00Z", "2026-01-05T00:00:00Z", "2026-01-04T23:00:00Z", "2026-01-06T00:00:00Z"]
MAPPING = {
    "mapping.table": "Log",
    "mapping.position": "nr",
    "mapping.id": "key",
    "mapping.type": "Kind",
    "mapping.data": "body",
}
STORE = InMemoryEventStore(
    Event(0, str(n), "s", "/x", "t", time, "application/json", None, None) for n, time in enumerate(TIMES)
)


def scope(**options):
    return scope_of({"url": "memory", **options}, ranges=4)


def test_everything_is_read_by_default():
    assert scope() == Scope("memory", Selection(), first=1, last=None, ranges=4)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"subject": "/books"}, {"selection": Selection("/books")}),
        ({"subject": "/books", "recursive": "false"}, {"selection": Selection("/books", recursive=False)}),
        ({"recursive": "TRUE"}, {}),
        ({"types": "a, b,,a"}, {"selection": Selection(types=frozenset({"a", "b"}))}),
        ({"from": "7", "to": "9"}, {"first": 7, "last": 9}),
        ({"from": "1", "to": "0"}, {"last": 0}),
        ({"from": "2026-01-05T00:00:00Z"}, {"first": MIDNIGHT}),
        ({"to": "2026-01-05T01:00:00+01:00"}, {"last": MIDNIGHT.astimezone(timezone(timedelta(hours=1)))}),
        ({"ranges": "2", "maxEventsPerTrigger": "100"}, {"ranges": 2, "events_per_trigger": 100}),
        (
            {"TYPES": "a", "MaxEventsPerTrigger": "1"},
            {"selection": Selection(types=frozenset("a")), "events_per_trigger": 1},
        ),
    ],
)
def test_options_say_what_is_read(options, expected):
    assert scope(**options) == Scope(**{"url": "memory", "ranges": 4, **expected})


TIME = "a time with its offset, such as 2026-01-05T00:00:00Z"
BOUND = f"must be a position from 1 (a whole number) or {TIME}, got {{!r}}".format


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"url": ""}, "the option 'url' is missing"),
        ({"url": " "}, "the option 'url' is missing"),
        ({"recursive": "yes"}, "the option 'recursive' must be true or false, got 'yes'"),
        ({"recursive": ""}, "the option 'recursive' must be true or false, got ''"),
        ({"subject": ""}, "the option 'subject' must be a subject, such as /books, got ''"),
        ({"types": " , "}, "the option 'types' must be types separated by commas, got ','"),
        ({"types": "library.*"}, "the option 'types' must be whole types separated by commas, got 'library.*'"),
        ({"from": "one"}, "the option 'from' " + BOUND("one")),
        ({"from": "0"}, "the option 'from' " + BOUND("0")),
        ({"from": "-1"}, "the option 'from' " + BOUND("-1")),
        ({"from": "²"}, "the option 'from' " + BOUND("²")),
        ({"to": ""}, "the option 'to' " + BOUND("")),
        ({"to": "9223372036854775808"}, "the option 'to' " + BOUND("9223372036854775808")),
        ({"to": "2026-01-05"}, "the option 'to' " + BOUND("2026-01-05")),
        ({"to": "2026-01-05T00:00:00"}, "the option 'to' " + BOUND("2026-01-05T00:00:00")),
        ({"ranges": "0"}, "the option 'ranges' must be a whole number from 1, got '0'"),
        ({"maxEventsPerTrigger": "1e6"}, "the option 'maxEventsPerTrigger' must be a whole number from 1, got '1e6'"),
        ({"path": "events.db"}, "there is no option 'path'; did you mean 'url'?"),
        ({"type": "a"}, "there is no option 'type'; did you mean 'types'?"),
        ({"maxEventPerTrigger": "1"}, "there is no option 'maxeventpertrigger'; did you mean 'maxEventsPerTrigger'?"),
        ({"zzz": "1"}, "there is no option 'zzz'"),
        ({"mapping.postion": "nr"}, "there is no option 'mapping.postion'; did you mean 'mapping.position'?"),
        (
            {"event-store.mapping.source_value": "x"},
            "there is no option 'event-store.mapping.source_value'; did you mean 'mapping.source-value'?",
        ),
        ({"table": "log"}, "there is no option 'table'; did you mean 'mapping.table'?"),
        ({"mapping.zzz": "1"}, "there is no option 'mapping.zzz'"),
        ({"mapping": "log"}, "there is no option 'mapping'"),
        (
            {**MAPPING, "mapping.time": " "},
            "the option 'mapping.time' must be a name, as it is written in the database, got ''",
        ),
    ],
)
def test_a_wrong_option_is_named_with_its_value_and_the_right_form(options, says):
    with pytest.raises(EngineError) as caught:
        scope(**options)
    assert (caught.value.code, caught.value.what) == ("OCQ-410", says)
    assert caught.value.where == 'format("opencqrs")'


def test_an_unknown_option_is_answered_with_all_that_there_are():
    with pytest.raises(EngineError) as caught:
        scope(zzz="1")
    assert caught.value.fix.startswith(f"the options are {', '.join(OPTIONS)}; mapping.table and others ")
    with pytest.raises(EngineError) as caught:
        scope(**{"mapping.zzz": "1"})
    assert caught.value.fix == f"the options are {', '.join(MAPPING_OPTIONS)}"


def test_the_options_of_a_mapping_are_the_settings_of_one():
    settings = {f"mapping.{name.replace('_', '-')}" for name in MappingSettings.model_fields}
    assert set(MAPPING_OPTIONS) == settings


@pytest.mark.parametrize("name", ["mapping.source-value", "mapping.source_value", "MAPPING.sourceValue"])
def test_a_mapping_names_a_table_of_another_system(name):
    read = scope(**MAPPING, **{name: "urn:Shop", "mapping.Subject": "stream"})
    assert read.mapping == TableMapping("Log", "nr", "key", "Kind", "body", subject="stream", source_value="urn:Shop")
    assert pickle.loads(pickle.dumps(read)) == read


def test_a_mapping_that_lacks_a_part_says_which():
    with pytest.raises(EventStoreError) as caught:
        scope(**{"mapping.table": "log", "mapping.id": "key"})
    assert str(caught.value) == (
        "[OCQ-313] the mapping of a table lacks position, type, data\n"
        '  where: format("opencqrs")\n'
        "  fix:   set mapping.position, mapping.type, mapping.data"
    )


@pytest.mark.parametrize(
    ("options", "start", "end"),
    [
        ({}, 0, 4),
        ({"from": "3", "to": "3"}, 2, 3),
        ({"from": "99", "to": "99"}, 98, 4),
        ({"from": "2026-01-05T00:00:00Z"}, 1, 4),
        ({"to": "2026-01-05T00:00:00Z"}, 0, 1),
        ({"from": "2026-01-05T00:00:00Z", "to": "2026-01-06T00:00:00Z"}, 1, 3),
        ({"from": "2027-01-01T00:00:00Z", "to": "2027-01-01T00:00:00Z"}, 4, 4),
    ],
)
def test_a_time_is_the_place_of_the_first_event_that_has_it_at_least(options, start, end):
    read = scope(**options)
    assert (read.start(STORE), read.end(STORE, STORE.head())) == (start, end)


def test_following_times_leave_no_event_out_and_read_none_twice():
    days = [f"2026-01-0{day}T00:00:00Z" for day in range(3, 8)]
    stretches = [scope(**{"from": first, "to": last}) for first, last in pairwise(days)]
    bounds = [(read.start(STORE), read.end(STORE, 4)) for read in stretches]
    assert bounds == [(0, 0), (0, 1), (1, 3), (3, 4)]


def test_the_password_of_the_url_is_not_shown_and_the_scope_travels():
    read = scope_of({"url": "postgresql://ada:secret@host/db"}, ranges=1)
    assert "secret" not in repr(read)
    assert pickle.loads(pickle.dumps(read)) == read

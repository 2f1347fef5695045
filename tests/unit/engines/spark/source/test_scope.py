"""Options and filters: what is pushed down to the store, and what Spark must still check."""

from __future__ import annotations

import operator
import pickle
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.config.settings import MappingSettings
from opencqrs_py.engines.spark.source.scope import MAPPING_OPTIONS, OPTIONS, Scope, narrowed, scope_of
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
def test_options_select_what_is_read(options, expected):
    assert scope(**options) == Scope(**{"url": "memory", "ranges": 4, **expected})


TIME = "a time with its offset, such as 2026-01-05T00:00:00Z"
LISTED = "the option 'types' must be types separated by commas, not a list, got"
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
        ({"types": str(["a", "b"])}, f"{LISTED} \"['a', 'b']\""),
        ({"types": str({"a"})}, f"{LISTED} \"{{'a'}}\""),
        ({"types": str(("a",))}, f"{LISTED} \"('a',)\""),
        ({"types": str([])}, f"{LISTED} '[]'"),
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
def test_a_wrong_option_is_refused_with_its_value_and_the_right_form(options, says):
    with pytest.raises(EngineError) as caught:
        scope(**options)
    assert (caught.value.code, caught.value.what) == ("OCQ-410", says)
    assert caught.value.where == 'format("opencqrs")'


def test_an_unknown_option_is_refused_with_the_list_of_options():
    with pytest.raises(EngineError) as caught:
        scope(zzz="1")
    assert caught.value.fix.startswith(f"the options are {', '.join(OPTIONS)}; mapping.table and others ")
    with pytest.raises(EngineError) as caught:
        scope(**{"mapping.zzz": "1"})
    assert caught.value.fix == f"the options are {', '.join(MAPPING_OPTIONS)}"


def test_the_mapping_options_match_the_mapping_settings():
    settings = {f"mapping.{name.replace('_', '-')}" for name in MappingSettings.model_fields}
    assert set(MAPPING_OPTIONS) == settings


@pytest.mark.parametrize("name", ["mapping.source-value", "mapping.source_value", "MAPPING.sourceValue"])
def test_a_mapping_selects_a_table_of_another_system(name):
    read = scope(**MAPPING, **{name: "urn:Shop", "mapping.Subject": "stream"})
    assert read.mapping == TableMapping("Log", "nr", "key", "Kind", "body", subject="stream", source_value="urn:Shop")
    assert pickle.loads(pickle.dumps(read)) == read


def test_an_incomplete_mapping_is_refused_with_the_missing_parts():
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
def test_a_time_selects_from_the_first_event_at_or_after_it(options, start, end):
    read = scope(**options)
    assert (read.start(STORE), read.end(STORE, STORE.head())) == (start, end)


def test_consecutive_time_windows_read_every_event_exactly_once():
    days = [f"2026-01-0{day}T00:00:00Z" for day in range(3, 8)]
    stretches = [scope(**{"from": first, "to": last}) for first, last in pairwise(days)]
    bounds = [(read.start(STORE), read.end(STORE, 4)) for read in stretches]
    assert bounds == [(0, 0), (0, 1), (1, 3), (3, 4)]


def test_the_scope_hides_the_password_of_the_url_and_survives_pickling():
    read = scope_of({"url": "postgresql://ada:secret@host/db"}, ranges=1)
    assert "secret" not in repr(read)
    assert pickle.loads(pickle.dumps(read)) == read


SUBJECTS = ["/", "/a", "/a/b", "/a/b/c", "/ab", "/a/", "/a//b", "//", "b", "", "/A", "/b", "/ä/😀", "/%", "/a_b"]
TYPES = ["x", "y", "x.z", "X", ""]
ALL = Scope("u")


def typed(*types):
    return Scope("u", Selection(types=frozenset(types)))


def under(subject, *, recursive=True):
    return Scope("u", Selection(subject, recursive))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (EqualTo(("type",), "x"), typed("x")),
        (EqualNullSafe(("type",), "x"), typed("x")),
        (In(("type",), ("x", "y", None)), typed("x", "y")),
        (EqualTo(("subject",), "/a"), under("/a", recursive=False)),
        (EqualTo(("subject",), "/"), under("/", recursive=False)),
        (In(("subject",), ("/a",)), under("/a", recursive=False)),
        (EqualTo(("position",), 7), Scope("u", after=6, upto=7)),
        (In(("position",), (7, 7)), Scope("u", after=6, upto=7)),
        (GreaterThan(("position",), 7), Scope("u", after=7)),
        (GreaterThanOrEqual(("position",), 7), Scope("u", after=6)),
        (LessThan(("position",), 7), Scope("u", upto=6)),
        (LessThanOrEqual(("position",), 7), Scope("u", upto=7)),
        (LessThan(("position",), -7), Scope("u", upto=-8)),
        (GreaterThan(("position",), -7), ALL),
    ],
)
def test_exact_filters_are_pushed_down_to_the_store(condition, expected):
    assert narrowed(ALL, condition) == (expected, True)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (StringStartsWith(("subject",), "/a/"), under("/a")),
        (StringStartsWith(("subject",), "/a/b"), under("/a")),
        (StringStartsWith(("subject",), "/a//b"), under("/a")),
        (In(("position",), (7, 3)), Scope("u", after=2, upto=7)),
    ],
)
def test_approximate_filters_are_pushed_down_and_checked_again_by_spark(condition, expected):
    assert narrowed(ALL, condition) == (expected, False)


@pytest.mark.parametrize(
    "condition",
    [
        StringStartsWith(("subject",), "/"),
        StringStartsWith(("subject",), "/a"),
        StringStartsWith(("subject",), "a/b"),
        StringStartsWith(("subject",), ""),
        StringStartsWith(("type",), "x"),
        StringContains(("subject",), "/a/"),
        EqualTo(("subject",), "a"),
        EqualTo(("subject",), "/a/"),
        EqualTo(("subject",), "/a//b"),
        EqualTo(("type",), None),
        EqualNullSafe(("type",), None),
        In(("subject",), ("/a", "/b")),
        EqualTo(("id",), "1"),
        EqualTo(("source",), "s"),
        EqualTo(("time",), "2026-01-05T00:00:00Z"),
        GreaterThanOrEqual(("time",), "2026-01-05T00:00:00Z"),
        LessThan(("payload",), "x"),
        EqualTo(("type", "inner"), "x"),
        IsNotNull(("subject",)),
        Not(EqualTo(("type",), "x")),
    ],
)
def test_all_other_filters_are_left_to_spark(condition):
    assert narrowed(ALL, condition) is None


@pytest.mark.parametrize(
    ("scope", "condition", "expected"),
    [
        (typed("x", "y"), EqualTo(("type",), "x"), typed("x")),
        (under("/a"), EqualTo(("subject",), "/a/b"), under("/a/b", recursive=False)),
        (under("/a/b"), StringStartsWith(("subject",), "/a/"), under("/a/b")),
        (under("/a", recursive=False), StringStartsWith(("subject",), "/a/"), under("/a", recursive=False)),
        (under("/a/"), StringStartsWith(("subject",), "/a/"), under("/a/")),
        (Scope("u", after=4, upto=6), GreaterThan(("position",), 2), Scope("u", after=4, upto=6)),
        (Scope("u", after=4, upto=6), LessThan(("position",), 6), Scope("u", after=4, upto=5)),
    ],
)
def test_the_narrower_of_option_and_filter_applies(scope, condition, expected):
    assert narrowed(scope, condition).scope == expected


@pytest.mark.parametrize(
    ("scope", "condition"),
    [
        (typed("x"), EqualTo(("type",), "y")),
        (ALL, In(("type",), ())),
        (under("/a"), EqualTo(("subject",), "/ab")),
        (under("/a"), EqualTo(("subject",), "/")),
        (under("/a", recursive=False), EqualTo(("subject",), "/b")),
        (under("/a/b"), StringStartsWith(("subject",), "/b/")),
    ],
)
def test_contradicting_conditions_read_nothing(scope, condition):
    assert narrowed(scope, condition).scope.upto == 0


# --------------------------------------------------------------------------------- the rule, compared with plain Python

COMPARED = {
    EqualTo: operator.eq,
    EqualNullSafe: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, wanted: value in wanted,
    StringStartsWith: str.startswith,
    StringEndsWith: str.endswith,
    StringContains: operator.contains,
}


def holds(condition, event):
    if isinstance(condition, Not):
        return not holds(condition.child, event)
    return COMPARED[type(condition)](getattr(event, condition.attribute[0]), condition.value)


def passes(scope, event):
    upto = float("inf") if scope.upto is None else scope.upto
    return scope.selection.matches(event) and scope.after < event.position <= upto


def made(position, subject, kind):
    return Event(position, str(position), "s", subject, kind, None, "application/json", None, None)


def on(column, values):
    kinds = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
    single = st.builds(lambda kind, value: kind((column,), value), st.sampled_from(kinds), values)
    several = st.builds(lambda found: In((column,), tuple(found)), st.lists(values, max_size=3))
    return single | several


def on_text(column, texts):
    kinds = st.sampled_from([StringStartsWith, StringEndsWith, StringContains])
    return on(column, texts) | st.builds(lambda kind, text: kind((column,), text), kinds, texts)


subjects = st.sampled_from(SUBJECTS) | st.text("/ab", max_size=5)
types = st.sampled_from(TYPES)
positions = st.integers(-1, 9)
plain = on_text("subject", subjects) | on_text("type", types) | on("position", positions)
filters = st.lists(plain | plain.map(Not), max_size=4)
selections = st.builds(Selection, subjects, st.booleans(), st.none() | st.frozensets(types))
scopes = st.builds(
    Scope, st.just("u"), selections, after=st.integers(0, 4), upto=st.none() | st.integers(0, 9), ranges=st.just(1)
)
events = st.lists(st.builds(made, st.integers(1, 8), subjects, types), max_size=12)
EVERY_SUBJECT = [made(n, subject, "x") for n, subject in enumerate(SUBJECTS, 1)]


@given(scopes, filters, events)
@example(ALL, [StringStartsWith(("subject",), "/a/")], EVERY_SUBJECT)
@example(under("/a/"), [EqualTo(("subject",), "/a")], EVERY_SUBJECT)
def test_store_and_spark_together_keep_exactly_the_events_that_pass_all_filters(scope, conditions, log):
    wider, left = scope, []
    for condition in conditions:
        found = narrowed(wider, condition)
        if found is not None:
            wider = found.scope
        if found is None or not found.exact:
            left.append(condition)
    kept = [event for event in log if passes(wider, event) and all(holds(c, event) for c in left)]
    assert kept == [event for event in log if passes(scope, event) and all(holds(c, event) for c in conditions)]

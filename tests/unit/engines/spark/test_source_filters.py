"""Filters: what the store takes in, what Spark must still check, and that nothing is lost between them."""

from __future__ import annotations

import operator

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

from opencqrs_py.engines.spark.source_filters import narrowed
from opencqrs_py.engines.spark.source_options import Scope
from opencqrs_py.model.event import Event
from opencqrs_py.model.selection import Selection

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
def test_these_filters_are_the_stores_alone(condition, expected):
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
def test_these_filters_leave_events_out_in_the_store_and_are_checked_by_spark_as_well(condition, expected):
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
def test_all_other_filters_are_sparks_alone(condition):
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
def test_the_narrower_of_option_and_filter_holds(scope, condition, expected):
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
def test_what_contradicts_itself_reads_nothing(scope, condition):
    assert narrowed(scope, condition).scope.upto == 0


# ------------------------------------------------------------------------------------- the law, against plain Python

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
def test_store_and_spark_together_keep_exactly_what_all_filters_keep(scope, conditions, log):
    wider, left = scope, []
    for condition in conditions:
        found = narrowed(wider, condition)
        if found is not None:
            wider = found.scope
        if found is None or not found.exact:
            left.append(condition)
    kept = [event for event in log if passes(wider, event) and all(holds(c, event) for c in left)]
    assert kept == [event for event in log if passes(scope, event) and all(holds(c, event) for c in conditions)]

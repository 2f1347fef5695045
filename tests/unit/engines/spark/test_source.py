"""The data source's parts, called as Spark calls them, without Spark."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringContains,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StructType

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.engines.spark.source import EventLogSource, Range
from opencqrs_py.errors import EngineError
from opencqrs_py.model.event import Event

COUNT = 50_000
STORE = InMemoryEventStore(
    Event(0, str(n), "s", f"/x/{n % 2}", "odd" if n % 2 else "even", None, "application/json", None, None)
    for n in range(1, COUNT + 1)
)


class MemorySource(EventLogSource):
    @staticmethod
    def open_source(url):
        assert url == "memory"
        return STORE


def source(**options):
    return MemorySource({"url": "memory", **options})


def positions(reader, ranges):
    return [p for part in ranges for batch in reader.read(part) for p in batch.column("position").to_pylist()]


def read(filters=(), **options):
    reader = source(**options).reader(StructType())
    left = list(reader.pushFilters(list(filters)))
    return positions(reader, reader.partitions()), left


def test_the_ranges_cover_the_log_once_and_are_several_for_a_long_one():
    reader = source().reader(StructType())
    ranges = reader.partitions()
    assert len(ranges) == 3
    assert positions(reader, ranges) == list(range(1, COUNT + 1))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (EqualTo(("position",), 7), [7]),
        (GreaterThan(("position",), COUNT - 1), [COUNT]),
        (GreaterThanOrEqual(("position",), COUNT), [COUNT]),
        (LessThan(("position",), 3), [1, 2]),
        (LessThanOrEqual(("position",), 2), [1, 2]),
    ],
)
def test_a_condition_on_the_position_is_taken_in(condition, expected):
    assert read([condition]) == (expected, [])


@pytest.mark.parametrize("condition", [EqualTo(("type",), "odd"), In(("type",), ("odd", "none"))])
def test_a_condition_on_the_type_is_taken_in_and_narrows_the_option(condition):
    assert read([condition], to="5") == ([1, 3, 5], [])
    assert read([condition], to="5", types="even") == ([], [])


def test_all_other_conditions_are_left_to_spark():
    other = StringContains(("subject",), "x")
    assert read([other, LessThan(("position",), 2)]) == ([1], [other])


def test_bounds_from_options_and_conditions_are_both_kept():
    assert read([GreaterThan(("position",), 4)], **{"from": "3", "to": "6"})[0] == [5, 6]
    assert read([GreaterThan(("position",), 1)], **{"from": "3", "to": "4"})[0] == [3, 4]


def test_a_stream_goes_from_one_head_to_the_next():
    reader = source(**{"from": "49999"}).streamReader(StructType())
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    assert (start, end) == ({"position": 49_998}, {"position": COUNT})
    assert positions(reader, reader.partitions(start, end)) == [49_999, 50_000]
    assert reader.partitions(end, reader.latestOffset(end, ReadAllAvailable())) == []


def test_a_range_ends_where_it_should_although_the_log_goes_on():
    reader = source(types="odd").reader(StructType())
    assert positions(reader, [Range(10, 14)]) == [11, 13]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "the option 'url' is missing"),
        ({"url": "memory", "to": "x"}, "'to' is a position, a whole number, got 'x'"),
    ],
)
def test_a_wrong_option_shows_when_the_columns_are_asked_for(options, says):
    with pytest.raises(EngineError, match=says):
        MemorySource(options).schema()


def test_the_columns_are_those_of_an_event():
    columns = [part.split()[0] for part in source().schema().split(", ")]
    assert columns == list(Event._fields)
    assert MemorySource.name() == "opencqrs"

"""The data source as called by Spark, without Spark."""

from __future__ import annotations

import os
from functools import cache

import pytest
from pyspark.sql.types import LongType, StringType, StructType

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.engines.spark.source.source import BatchReader, EventLogSource, FilteringReader, StreamReader
from opencqrs_py.errors import EngineError, EventStoreError
from opencqrs_py.model.event import Event

COLUMNS = StructType().add("position", LongType()).add("payload", StringType())


@cache
def store():
    return InMemoryEventStore(
        Event(0, str(n), "s", "/x", "t", None, "application/json", None, None) for n in range(60_000)
    )


class MemorySource(EventLogSource):
    ranges = 3

    @staticmethod
    def open_source(url, mapping=None):
        if url != "memory":
            raise EventStoreError("OCQ-301", "the database URL cannot be read")
        return store()


def source(**options):
    return MemorySource({"url": "memory", **options})


@pytest.fixture(autouse=True)
def _tracebacks(monkeypatch):
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


def test_the_format_of_the_source_is_opencqrs():
    assert MemorySource.name() == "opencqrs"


def test_the_columns_are_those_of_an_event():
    assert source().schema().names == list(Event._fields)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"to": "x"}, "the option 'to' must be"), ({"url": "nowhere"}, "the database URL cannot be read")],
)
def test_a_wrong_option_is_refused_when_the_source_is_created(options, says):
    with pytest.raises((EngineError, EventStoreError), match=says):
        source(**options)


def test_batches_and_streams_have_separate_readers():
    assert isinstance(source().reader(COLUMNS), BatchReader)
    assert isinstance(source().streamReader(COLUMNS), StreamReader)


def test_filters_are_left_to_spark_unless_the_source_pushes_them_down():
    class PushingSource(MemorySource):
        push_filters = True

    assert type(source().reader(COLUMNS)) is BatchReader
    assert type(PushingSource({"url": "memory"}).reader(COLUMNS)) is FilteringReader


def test_the_number_of_ranges_is_that_of_the_source_unless_an_option_sets_it():
    assert len(source().reader(COLUMNS).partitions()) == 3
    assert len(source(ranges="2").reader(COLUMNS).partitions()) == 2


@pytest.mark.parametrize("ask", [MemorySource.reader, MemorySource.streamReader])
def test_unknown_columns_are_refused(ask):
    with pytest.raises(EngineError, match=r"OCQ-407.* there is no column 'isbn'; the columns are position, id, source"):
        ask(source(), StructType().add("id", StringType()).add("isbn", StringType()))


@pytest.mark.parametrize("ask", [MemorySource.writer, MemorySource.streamWriter])
def test_writing_is_refused_without_a_stack_trace(ask):
    with pytest.raises(EngineError) as caught:
        ask(source(), COLUMNS, overwrite=False)
    assert str(caught.value) == (
        "[OCQ-413] Spark cannot add events to an event store\n"
        '  where: format("opencqrs")\n'
        "  fix:   write Parquet files with Spark, and add them with opencqrs events import"
    )
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"

"""The readers, called as Spark calls them, without Spark."""

from __future__ import annotations

import json
import os
import pickle
from functools import cache

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, LessThan, StringContains, StringStartsWith
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.engines.spark.source.columns import Available
from opencqrs_py.engines.spark.source.ddl import parse_ddl
from opencqrs_py.engines.spark.source.ranges import Range
from opencqrs_py.engines.spark.source.scope import scope_of
from opencqrs_py.engines.spark.source.source import BatchReader, FilteringReader, StreamReader
from opencqrs_py.errors import EngineError, EventStoreError, OtherLogError
from opencqrs_py.model.event import Event

COUNT = 50_000
ALL = ReadAllAvailable()
COLUMNS = Available().chosen(parse_ddl("position BIGINT, type STRING"))


def made(number):
    time = f"2026-01-{1 + number // 10:02}T00:00:00Z" if number < 300 else None
    kind = "odd" if number % 2 else "even"
    return Event(0, str(number), "s", f"/x/{number % 2}", kind, time, "application/json", None, None)


@cache
def store():
    return InMemoryEventStore(made(n) for n in range(1, COUNT + 1))


def open_store(url, mapping=None):
    assert url == "memory"
    return store()


@pytest.fixture(autouse=True)
def _tracebacks(monkeypatch):
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")


def batch_reader(opened=open_store, **options):
    return BatchReader(opened, scope_of({"url": "memory", **options}, ranges=8), COLUMNS)


def stream_reader(opened=open_store, **options):
    return StreamReader(opened, scope_of({"url": "memory", **options}, ranges=8), COLUMNS)


def offset(position):
    """Return the offset of a stream at an event created by ``made``."""
    return {"position": position, "log": json.dumps([position, "s", str(position)]) if position else "[0]"}


def positions(reader, ranges):
    return [p for part in ranges for batch in reader.read(part) for p in batch.column("position").to_pylist()]


def read(filters=(), **options):
    reader = FilteringReader(open_store, scope_of({"url": "memory", **options}, ranges=8), COLUMNS)
    left = list(reader.pushFilters(list(filters)))
    return positions(reader, reader.partitions()), left


# -------------------------------------------------------------------------------------------------------------- batches


def test_ranges_cover_the_log_once_and_a_long_log_has_several():
    reader = batch_reader()
    ranges = reader.partitions()
    assert len(ranges) == 3
    assert positions(reader, ranges) == list(range(1, COUNT + 1))


def test_the_option_sets_the_maximum_number_of_ranges():
    assert len(batch_reader(ranges="2").partitions()) == 2


@pytest.mark.parametrize(
    "options", [{"from": "60000"}, {"to": "0"}, {"from": "5", "to": "4"}, {"from": "2100-01-01T00:00Z"}]
)
def test_an_empty_selection_is_one_range_without_events(options):
    reader = batch_reader(**options)
    assert len(reader.partitions()) == 1
    assert positions(reader, reader.partitions()) == []


def test_a_range_survives_pickling():
    assert pickle.loads(pickle.dumps(Range(3, 7))) == Range(3, 7)


def test_times_select_positions_in_the_log():
    assert read(**{"from": "2026-01-02T00:00:00Z", "to": "2026-01-02T12:00:00Z"})[0] == list(range(10, 20))


def test_filters_that_the_store_cannot_check_exactly_are_left_to_spark():
    subject, other = StringStartsWith(("subject",), "/x/1"), StringContains(("id",), "1")
    found, left = read([other, subject, EqualTo(("type",), "odd"), LessThan(("position",), 4)])
    assert (found, left) == ([1, 3], [other, subject])


def test_bounds_from_options_and_filters_both_apply():
    assert read([GreaterThan(("position",), 4)], **{"from": "3", "to": "6"})[0] == [5, 6]
    assert read([GreaterThan(("position",), 1)], **{"from": "3", "to": "4"})[0] == [3, 4]


# -------------------------------------------------------------------------------------------------------------- streams


def test_a_stream_advances_from_one_head_to_the_next():
    reader = stream_reader(**{"from": "49999"})
    start = reader.initialOffset()
    end = reader.latestOffset(start, ALL)
    assert (start, end) == (offset(49_998), offset(COUNT))
    assert positions(reader, reader.partitions(start, end)) == [49_999, 50_000]
    assert reader.latestOffset(end, ALL) == end
    assert reader.partitions(end, end) == []


def test_the_progress_of_a_stream_shows_the_latest_head():
    reader = stream_reader()
    assert reader.reportLatestOffset() is None
    reader.latestOffset({"position": 0}, ReadMaxRows(1))
    assert reader.reportLatestOffset() == {"position": COUNT}


def test_a_stream_can_begin_at_a_time_or_after_the_head():
    assert stream_reader(**{"from": "2026-01-02T00:00:00Z"}).initialOffset() == offset(9)
    later = stream_reader(**{"from": "60000"})
    assert later.latestOffset(later.initialOffset(), ALL) == later.initialOffset() == {"position": 59_999}


@pytest.mark.parametrize(("last", "end"), [("7", 7), ("2026-01-02T00:00:00Z", 9), ("60000", COUNT)])
def test_a_stream_ends_at_the_position_or_time_of_the_option(last, end):
    reader = stream_reader(to=last)
    assert reader.latestOffset({"position": 0}, ALL) == offset(end)
    assert reader.latestOffset(offset(end), ALL) == offset(end)


def test_micro_batches_hold_at_most_the_number_of_events_set_by_the_option():
    reader = stream_reader(types="odd", maxEventsPerTrigger="100", to="1000")
    assert reader.getDefaultReadLimit() == ReadMaxRows(100)
    offset, sizes = reader.initialOffset(), []
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        sizes.append(len(positions(reader, reader.partitions(offset, end))))
        offset = end
    assert sum(sizes) == 500
    assert max(sizes) == 100
    assert len(sizes) in (5, 6)


def test_without_the_option_a_micro_batch_holds_all_available_events():
    assert stream_reader().getDefaultReadLimit() == ALL


def test_events_added_after_the_start_of_an_available_now_query_are_left_to_the_next_one():
    store = InMemoryEventStore(made(n) for n in range(1, 6))
    reader = stream_reader(lambda _url, _mapping: store)
    reader.prepareForTriggerAvailableNow()
    store.append([made(6)])
    assert reader.latestOffset({"position": 0}, ReadMaxRows(3)) == offset(3)
    assert reader.latestOffset(offset(3), ReadMaxRows(3)) == offset(5)
    assert reader.latestOffset(offset(5), ReadMaxRows(3)) == offset(5)


OTHER = InMemoryEventStore(made(n)._replace(id=f"other {n}") for n in range(1, 10))
SHORT = InMemoryEventStore(made(n) for n in range(1, 4))


@pytest.mark.parametrize(
    ("there", "found"),
    [(OTHER, "the log has event other 5 of s at position 5"), (SHORT, "there is none: the log ends at position 3")],
)
@pytest.mark.parametrize(
    "resume",
    [
        lambda reader: reader.latestOffset(offset(5), ALL),
        lambda reader: reader.partitions(offset(2), offset(5)),  # a micro-batch that was planned but not finished
    ],
)
def test_a_checkpoint_of_another_log_is_refused(there, found, resume):
    with pytest.raises(EngineError) as caught:
        resume(stream_reader(lambda _url, _mapping: there))
    assert caught.value.code == "OCQ-411"
    assert caught.value.what.endswith(f"belongs to: expected event 5 of s at position 5, but {found}")
    assert "name the event store that the checkpoint belongs to" in caught.value.fix


class ReplacedWhileRead(InMemoryEventStore):
    """A store that detects that its log was replaced."""

    def fingerprint(self, position):
        raise OtherLogError("OCQ-316", "the file no longer begins with what was read", "events.ndjson", "progress!")


@pytest.mark.parametrize(
    "resume", [lambda reader: reader.initialOffset(), lambda reader: reader.latestOffset({"position": 0}, ALL)]
)
def test_a_log_replaced_while_it_is_read_is_an_error_with_advice_for_the_query(resume):
    log = ReplacedWhileRead([made(1)])
    with pytest.raises(EngineError, match=r"OCQ-411.* no longer begins with what was read") as caught:
        resume(stream_reader(lambda _url, _mapping: log))
    assert "name the event store that the checkpoint belongs to" in caught.value.fix


def test_a_checkpoint_is_compared_when_events_follow_and_one_without_a_fingerprint_only_by_its_position():
    class Counted(InMemoryEventStore):
        compared = 0

        def verify(self, position, fingerprint):
            self.compared += 1
            super().verify(position, fingerprint)

    log = Counted(made(n) for n in range(1, 10))
    reader = stream_reader(lambda _url, _mapping: log)
    assert reader.latestOffset({"position": 2}, ReadMaxRows(3)) == offset(5)
    assert log.compared == 0
    assert reader.partitions({"position": 2}, offset(5))
    assert reader.latestOffset(offset(5), ALL) == offset(9)
    assert reader.partitions(offset(5), offset(9))
    assert log.compared == 2
    assert reader.latestOffset(offset(9), ALL) == offset(9)
    assert log.compared == 2
    old = {"position": 50_007}
    with pytest.raises(
        EngineError, match=r"OCQ-411.* the log ends at position 50000, but position 50007 existed before"
    ):
        stream_reader().latestOffset(old, ALL)
    assert stream_reader().latestOffset({"position": COUNT}, ALL) == {"position": COUNT}


def test_a_restored_log_that_has_grown_since_is_refused_by_a_running_query():
    log = InMemoryEventStore(made(n) for n in range(1, 4))
    reader = stream_reader(lambda _url, _mapping: log)
    assert reader.latestOffset(reader.initialOffset(), ALL) == offset(3)
    assert reader.latestOffset(offset(3), ALL) == offset(3)
    log = InMemoryEventStore(made(n)._replace(id=f"other {n}") for n in range(1, 6))
    with pytest.raises(EngineError, match=r"OCQ-411.* expected event 3 of s at position 3, but the log has event oth"):
        reader.latestOffset(offset(3), ALL)


# -------------------------------------------------------------------------------------------------------- replaced logs


class Replaced(InMemoryEventStore):
    """A store that records the calls about its state."""

    def __init__(self):
        super().__init__(made(n) for n in range(1, 6))
        self.noted = []

    def renew(self):
        self.noted.append("renew")

    def state(self):
        return "a state"

    def expect(self, state):
        self.noted.append(state)


def test_a_query_begins_with_the_current_log_and_each_task_expects_it():
    store = Replaced()
    reader = batch_reader(lambda _url, _mapping: store)
    assert positions(reader, reader.partitions()) == [1, 2, 3, 4, 5]
    assert store.noted == ["renew", "a state"]


def test_a_stream_stays_with_the_log_it_began_with():
    store = Replaced()
    reader = stream_reader(lambda _url, _mapping: store)
    reader.prepareForTriggerAvailableNow()
    end = reader.latestOffset(reader.initialOffset(), ALL)
    assert positions(reader, reader.partitions({"position": 0}, end)) == [1, 2, 3, 4, 5]
    assert store.noted == ["renew", "a state"]


def test_a_stream_resumed_from_its_checkpoint_begins_with_the_current_log():
    store = Replaced()
    assert stream_reader(lambda _url, _mapping: store).partitions({"position": 0}, {"position": 3}) == [
        Range(0, 3, "a state")
    ]
    assert store.noted == ["renew"]


# --------------------------------------------------------------------------------------------------------------- errors


class Unavailable(InMemoryEventStore):
    """An unavailable store that fails like a database driver."""

    def head(self):
        raise ConnectionError("connection lost\nand much more")

    def read(self, after, limit, selection, upto=None):
        raise ConnectionError("connection lost\nand much more")

    def is_outage(self, error):
        return isinstance(error, ConnectionError)


@pytest.mark.parametrize(
    "ask",
    [
        lambda opened: batch_reader(opened).partitions(),
        lambda opened: list(batch_reader(opened).read(Range(0, 5))),
        lambda opened: stream_reader(opened).latestOffset({"position": 0}, ALL),
        lambda opened: stream_reader(opened).prepareForTriggerAvailableNow(),
        lambda opened: list(stream_reader(opened).read(Range(0, 5))),
    ],
)
def test_an_unavailable_store_is_reported_in_one_line_without_a_stack_trace(ask):
    with pytest.raises(EngineError) as caught:
        ask(lambda _url, _mapping: Unavailable())
    assert (caught.value.code, caught.value.what) == ("OCQ-412", "the event store is unavailable (connection lost)")
    assert os.environ["SPARK_HIDE_TRACEBACK"]


def test_an_explained_error_is_raised_unchanged():
    def refuse(_url, _mapping):
        raise EventStoreError("OCQ-301", "the database URL cannot be read")

    with pytest.raises(EventStoreError, match="OCQ-301"):
        batch_reader(refuse).partitions()
    assert os.environ["SPARK_HIDE_TRACEBACK"]


def test_an_internal_error_keeps_its_stack_trace():
    class Broken(Unavailable):
        def is_outage(self, error):
            return False

    with pytest.raises(ConnectionError):
        batch_reader(lambda _url, _mapping: Broken()).partitions()
    assert not os.environ["SPARK_HIDE_TRACEBACK"]

"""Handlers that get data frames, tested by HandlerTest on a real Spark."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from sqlalchemy import Connection, text

from opencqrs_py import (
    Event,
    EventFrames,
    NonTransientError,
    Upcast,
    bulk,
    dataframe_handler,
    event_handling,
    event_type,
    on_start,
    upcaster,
)
from opencqrs_py.engines.spark.frame_errors import job_error, raised_for, worker_error
from opencqrs_py.engines.spark.frames import session_of_group
from opencqrs_py.errors import AssemblyError, EventFormatError, HandlerSignatureError, ProjectCodeError
from opencqrs_py.processing.frames import EventOfRangeError, WorkerLostError
from opencqrs_py.processing.recovery import FixedBackOff, NoRetry
from opencqrs_py.testing import HandlerTest

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]


class Shelf(Enum):
    FICTION = "fiction"
    HISTORY = "history"


@event_type("library.book-lent.v1")
@dataclass(frozen=True)
class BookLent:
    isbn: str
    fee: Decimal = Decimal("0.10")
    shelf: Shelf = Shelf.FICTION


@event_type("library.book-returned.v1")
@dataclass(frozen=True)
class BookReturned:
    isbn: str


@on_start("popular")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE popular (isbn VARCHAR(20) PRIMARY KEY, loans BIGINT, back BIGINT)"))


def counted(frame: DataFrame, name: str) -> DataFrame:
    return frame.groupBy("isbn").agg(sf.count("*").alias(name))


@dataframe_handler("popular", events=BookLent)
def lent(loans: DataFrame, connection: Connection) -> None:
    assert dict(loans.dtypes) == {
        "isbn": "string",
        "fee": "decimal(38,18)",
        "shelf": "string",
        "position": "bigint",
        "subject": "string",
        "time": "timestamp",
    }
    if loans.where("isbn = '13'").count():
        raise ValueError("thirteen")
    bulk.upsert(connection, "popular", counted(loans, "loans"), keys="isbn", add="loans")


@dataframe_handler("popular")
def both(events: EventFrames, connection: Connection) -> None:
    bulk.upsert(connection, "popular", counted(events.of(BookLent), "loans"), keys="isbn", add="loans")
    bulk.upsert(connection, "popular", counted(events.of(BookReturned), "back"), keys="isbn", add="back")


LOANS = "SELECT isbn, loans FROM popular ORDER BY isbn"


def numbered(*numbers: int) -> list[BookLent]:
    return [BookLent(str(number)) for number in numbers]


def test_events_of_a_class_come_as_a_data_frame_with_its_fields() -> None:
    test = HandlerTest(tables, lent).given(*numbered(1, 2), BookReturned("1"), *numbered(1)).handle()
    test.expect_rows(LOANS, [("1", 2), ("2", 1)]).expect_progress(4)
    test.given(*numbered(2)).handle().expect_rows(LOANS, [("1", 2), ("2", 2)]).expect_progress(5)


def test_each_class_has_its_own_data_frame() -> None:
    test = HandlerTest(tables, both).given(*numbered(1, 2), BookReturned("1")).handle()
    test.expect_rows("SELECT isbn, loans, back FROM popular ORDER BY isbn", [("1", 1, 1), ("2", 1, None)])


@pytest.mark.few
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_failing_range_is_halved_until_the_event_is_alone_and_skipped(size: int) -> None:
    test = HandlerTest(tables, lent, retry=FixedBackOff(1, max_attempts=2), batch_size=size)
    given = numbered(1, 2, 13, 3, 4)
    test.given(*given[:2], given[2], *given[3:]).handle()
    test.expect_rows(LOANS, [("1", 1), ("2", 1), ("3", 1), ("4", 1)]).expect_skipped(3).expect_waits([1, 1])
    test.expect_attempts(3, 3).expect_attempts(1, 1).expect_progress(5)


def test_a_failing_range_stops_its_partition_after_the_events_before_the_failure() -> None:
    test = HandlerTest(tables, lent, retry=NoRetry(), on_exhausted="stop")
    test.given(*numbered(1, 2, 13, 3)).handle()
    test.expect_failed(ValueError).expect_progress(2).expect_rows(LOANS, [("1", 1), ("2", 1)])


def test_without_retry_the_error_is_raised() -> None:
    with pytest.raises(ValueError, match="thirteen"):
        HandlerTest(tables, lent).given(*numbered(1, 13)).handle()


def test_an_event_that_cannot_become_a_row_is_named_and_those_before_it_are_handled() -> None:
    wrong = {"type": "library.book-lent.v1", "data": {"isbn": ["no", "text"]}}
    test = HandlerTest(tables, lent, retry=NoRetry()).given(*numbered(1, 2), wrong, *numbered(3)).handle()
    test.expect_failed(EventFormatError).expect_progress(2).expect_rows(LOANS, [("1", 1), ("2", 1)])
    test.expect_log("OCQ-211")


def test_upcast_events_become_rows() -> None:
    @upcaster("library.book-lent.v0")
    def renamed(data: dict) -> Upcast:
        return Upcast("library.book-lent.v1", {"isbn": data["book"]})

    old = {"type": "library.book-lent.v0", "data": {"book": "1"}}
    HandlerTest(tables, lent, renamed).given(old, *numbered(1)).handle().expect_rows(LOANS, [("1", 2)])


def test_as_stored_events_have_their_data_as_texts_for_all_types() -> None:
    seen: list[tuple[int, str, str]] = []

    @dataframe_handler("popular", types=["library.*"])
    def stored(events: DataFrame) -> None:
        seen.extend(tuple(row) for row in events.select("position", "type", "data").collect())

    HandlerTest(stored).given({"type": "other"}, BookReturned("1"), {"type": "other"}).handle().expect_progress(3)
    assert seen == [(2, "library.book-returned.v1", '{"isbn":"1"}')]


def test_a_range_without_matching_events_calls_no_handler() -> None:
    @dataframe_handler("popular", events=BookLent)
    def never(loans: DataFrame) -> None:
        raise AssertionError(loans)

    HandlerTest(never).given(BookReturned("1"), {"type": "other"}).handle().expect_progress(2)


def test_files_named_by_batch_contain_each_event_once(tmp_path: Path, spark: SparkSession) -> None:
    attempts: list[str] = []

    @dataframe_handler("lake")
    def write(events: EventFrames) -> None:
        lent = events.of(BookLent)
        lent.write.mode("overwrite").parquet(f"{tmp_path}/batch={events.batch}")
        attempts.append(events.batch)
        if len(attempts) in (1, 3):
            raise ConnectionError("after the files were written")

    test = HandlerTest(write, retry=FixedBackOff(1), batch_size=4).given(*numbered(1, 2, 3, 4, 5)).handle()
    test.expect_progress(5)
    assert len(attempts) > 3
    found = spark.read.parquet(str(tmp_path)).select("isbn").collect()
    assert sorted(row[0] for row in found) == ["1", "2", "3", "4", "5"]


def test_types_that_the_handler_leaves_out_are_refused() -> None:
    @dataframe_handler("popular", types=["library.book-lent.*"])
    def narrow(events: EventFrames) -> None:
        events.of(BookReturned)

    with pytest.raises(ProjectCodeError, match=r"(?s)OCQ-241.*library.book-returned.v1"):
        HandlerTest(narrow).given(*numbered(1)).handle()


def test_a_data_frame_handler_must_be_alone_in_its_group() -> None:
    @event_handling("popular")
    def other(event: BookLent) -> None: ...

    with pytest.raises(AssemblyError, match=r"OCQ-541.*no other handler"):
        HandlerTest(lent, other, group="popular")


def refused(make: Callable[[], object]) -> str:
    with pytest.raises(HandlerSignatureError) as caught:
        make()
    return str(caught.value)


def test_decorator_and_parameter_belong_together() -> None:
    @event_handling("popular", types=["*"])
    def undecorated(frame: DataFrame) -> None: ...

    @dataframe_handler("popular")
    def of_no_data(frame: DataFrame) -> None: ...

    @dataframe_handler("popular")
    def single(event: BookLent) -> None: ...

    @dataframe_handler("popular", events=BookLent)
    def twice(events: EventFrames) -> None: ...

    @dataframe_handler("popular", events=BookLent)
    def again(frame: DataFrame, raw: Event) -> None: ...

    @dataframe_handler("popular", events=int)
    def no_fields(frame: DataFrame) -> None: ...

    assert "needs its own decorator" in refused(lambda: HandlerTest(undecorated))
    assert "which events the data frame holds" in refused(lambda: HandlerTest(of_no_data))
    assert "takes no data frame" in refused(lambda: HandlerTest(single))
    assert "takes EventFrames" in refused(lambda: HandlerTest(twice))
    assert "OCQ-203" in refused(lambda: HandlerTest(again))
    assert "int has none" in refused(lambda: HandlerTest(no_fields))


@pytest.mark.parametrize(
    "end",
    [
        pytest.param(lambda: os.kill(os.getpid(), signal.SIGKILL), id="kill"),
        pytest.param(lambda: os._exit(3), id="exit", marks=pytest.mark.release),
    ],
)
def test_a_worker_that_ends_is_recognised_by_the_error_of_spark(spark: SparkSession, end: Callable[[], None]) -> None:
    def ended(batches: Any) -> Any:
        end()
        yield from batches

    with pytest.raises(Py4JJavaError) as caught:
        spark.range(1).mapInArrow(ended, "id long").toArrow()
    assert type(job_error(caught.value)) is WorkerLostError


def unreadable(batches: Any) -> Any:
    raise raised_for(EventOfRangeError(7, EventFormatError("OCQ-211", "isbn: not a text")), None)
    yield from batches


@pytest.mark.parametrize(
    "use",
    [
        pytest.param(lambda frame, folder: frame.toArrow(), id="toArrow", marks=pytest.mark.release),
        pytest.param(lambda frame, folder: frame.write.parquet(str(folder / "lake")), id="write"),
        pytest.param(
            lambda frame, folder: list(frame.toLocalIterator()), id="toLocalIterator", marks=pytest.mark.release
        ),
    ],
)
def test_an_event_that_cannot_become_a_row_is_reported_however_the_frame_is_used(
    spark: SparkSession, tmp_path: Path, use: Callable[[DataFrame, Path], object]
) -> None:
    with pytest.raises(Exception, match="OCQ-211") as caught:
        use(spark.range(1).mapInArrow(unreadable, "id long"), tmp_path)
    found = worker_error(caught.value)
    assert isinstance(found, EventOfRangeError)
    assert (found.position, type(found.error)) == (7, EventFormatError)


def test_a_view_of_another_session_is_reported_as_existing(spark: SparkSession) -> None:
    session_of_group(spark).range(1).createOrReplaceTempView("rides")
    with pytest.raises(AnalysisException) as caught:
        spark.sql("SELECT * FROM rides")
    said = str(job_error(caught.value))
    assert "`rides` cannot be found" in said
    assert said.endswith("is found by the session of its data frame only, such as events.sparkSession")


def test_a_permanent_error_stops_at_once() -> None:
    class WrongError(NonTransientError): ...

    @dataframe_handler("popular", events=BookLent)
    def fails(loans: DataFrame) -> None:
        raise WrongError

    HandlerTest(fails, retry=FixedBackOff(1)).given(*numbered(1, 2)).handle().expect_waits([]).expect_failed(WrongError)

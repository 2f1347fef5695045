"""Data frames of a range: errors of workers as seen on the driver, and column types of Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark import Accumulator
from pyspark.accumulators import _accumulatorRegistry
from pyspark.errors import PySparkException, PythonException

from opencqrs_py.engines.spark.frame_errors import (
    STAGE,
    RangeFailedError,
    SparkJobError,
    error_of_failed_job,
    raised_for,
)
from opencqrs_py.engines.spark.frames import SparkFrames, _Counts, _RangeReader, events_in, schema_of
from opencqrs_py.engines.spark.jobs import SparkJob
from opencqrs_py.errors import (
    BulkWriteError,
    EventFormatError,
    HandlerSignatureError,
    ProjectCodeError,
    UnavailableError,
)
from opencqrs_py.processing.dispatch import ChunkFailedError
from opencqrs_py.processing.frames import EventOfRangeError, WorkerLostError
from opencqrs_py.processing.ranges import PositionRange


@dataclass
class Lent:
    isbn: str


class Processing:
    """A group whose tables cannot be created because of an error."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.source = self.tracker = SimpleNamespace(is_outage=lambda error: isinstance(error, ConnectionError))
        handler = SimpleNamespace(mark=SimpleNamespace(events=None), place="here.py:1 (lent)")
        self.frames = SimpleNamespace(schema=pa.schema([]), bound=SimpleNamespace(handler=handler))

    def tables(self, _event_class: Any, _after: int, _upto: int) -> Any:
        raise self.error

    def __hash__(self) -> int:
        return id(self)


def raised_by_a_worker(error: Exception) -> PythonException:
    """Return the exception that the driver gets for an error in a worker."""
    processing = Processing(error)
    reader = _RangeReader(lambda: processing, "", ((0, 10),), schema_of(None, pa.schema([]), ""), None)
    numbers = pa.record_batch({"id": [0]})
    with pytest.raises(RangeFailedError) as caught:
        list(reader([numbers]))
    text = f'Traceback (most recent call last):\n  File "x.py", line 1\nopencqrs_py.RangeFailedError: {caught.value}\n'
    return PythonException(text)


def java_error(what: str, of_the_jvm: str) -> Py4JJavaError:
    """Return an error as py4j raises it for an exception in the JVM."""
    escaped = of_the_jvm.replace("\\", "\\\\").replace("\n", "\\n")
    answer = SimpleNamespace(send_command=lambda _command: f"ys{escaped}")
    java: Any = SimpleNamespace(_target_id="o1", _gateway_client=answer)
    return Py4JJavaError(what, java)


def explained(error: BaseException, *, stopped: bool = True) -> BaseException:
    context = SimpleNamespace(_jsc=SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=lambda: stopped)))
    maker = SparkFrames(SimpleNamespace(sparkContext=context), None, Processing(ValueError()))
    return maker.explained(error)


def test_an_event_that_cannot_become_a_row_is_reported_with_its_position_and_error() -> None:
    wrong = EventFormatError("OCQ-211", "isbn: not a text", "event 7 at position 7", "fix the class")
    found = explained(raised_by_a_worker(EventOfRangeError(7, wrong)))
    assert isinstance(found, EventOfRangeError)
    assert (found.position, str(found.error), type(found.error)) == (7, str(wrong), EventFormatError)


def test_an_error_of_project_code_for_an_event_becomes_a_project_code_error() -> None:
    found = explained(raised_by_a_worker(EventOfRangeError(7, ValueError("broken upcaster"))))
    assert isinstance(found, EventOfRangeError)
    assert isinstance(found.error, ProjectCodeError)
    assert "broken upcaster" in str(found.error)


def raised_by_an_iterator(error: Exception) -> Py4JJavaError:
    """Return the exception that the driver gets for an error in a worker whose rows are iterated."""
    return java_error(
        "An error occurred while calling o712.getResult.\n",
        "org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 1 times\n"
        "\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2844)\n"
        f"Caused by: org.apache.spark.api.python.PythonException: {raised_by_a_worker(error).getMessage()}\n"
        "\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(Some.scala:518)\n",
    )


def raised_by_the_handler(error: Exception) -> Exception:
    """Return the exception of a handler that has caught an error of a data frame."""
    raised = ValueError("the loans cannot be counted")
    raised.__context__ = raised_by_a_worker(error)
    return raised


@pytest.mark.parametrize("raised", [raised_by_an_iterator, raised_by_the_handler])
def test_an_error_of_a_worker_is_recognised_in_any_exception_that_wraps_it(
    raised: Callable[[Exception], Exception],
) -> None:
    wrong = EventFormatError("OCQ-211", 'isbn: not "a text"', "event 7 at position 7", "fix\nthe class")
    found = explained(raised(EventOfRangeError(7, wrong)))
    assert isinstance(found, EventOfRangeError)
    assert (found.position, str(found.error), type(found.error)) == (7, str(wrong), EventFormatError)
    assert isinstance(explained(raised(ConnectionError("refused"))), UnavailableError)


def test_an_error_of_an_earlier_call_is_not_attributed_to_the_handler() -> None:
    own, earlier = ValueError("own"), ChunkFailedError(None, ValueError("of the whole range"))
    earlier.__cause__ = raised_by_a_worker(ConnectionError("refused"))
    own.__context__ = earlier  # as the range is handled again in halves
    assert explained(own) is own


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("refused"),
        EventOfRangeError(7, ConnectionError("refused")),
        UnavailableError("OCQ-420", "refused"),
    ],
)
def test_an_outage_in_a_worker_is_an_outage_on_the_driver(error: Exception) -> None:
    found = explained(raised_by_a_worker(error))
    assert isinstance(found, UnavailableError)
    assert "refused" in str(found)


def test_a_cancelled_job_and_a_dead_jvm_are_outages() -> None:
    assert isinstance(explained(PySparkException("[SPARK_JOB_CANCELLED] by opencqrs-1")), UnavailableError)
    assert isinstance(explained(Py4JNetworkError()), UnavailableError)


def test_other_errors_are_attributed_to_the_handler() -> None:
    own = ValueError("own")
    assert explained(own) is own
    lost = ConnectionError("to another server")
    assert explained(lost, stopped=False) is lost


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            PythonException(
                "\n  An exception was thrown from the Python worker. Please see the stack trace below.\n"
                'Traceback (most recent call last):\n  File "handlers.py", line 3, in twice\n    1 / 0\n'
                "ZeroDivisionError: division by zero\n"
            ),
            "ZeroDivisionError: division by zero",
        ),
        (
            java_error(
                "An error occurred while calling o712.getResult.\n",
                "org.apache.spark.SparkException: Job aborted: Python worker exited unexpectedly (crashed)\n"
                "\tat org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:2844)\n",
            ),
            "org.apache.spark.SparkException: Job aborted: Python worker exited unexpectedly (crashed)",
        ),
    ],
)
def test_a_failed_spark_job_is_explained_in_one_line(error: Exception, says: str) -> None:
    found = explained(error, stopped=False)
    assert type(found) is (WorkerLostError if "exited" in says else SparkJobError)
    assert str(found) == says


@pytest.mark.parametrize(
    ("said", "lost"),
    [
        ("Python worker exited unexpectedly (crashed)", True),
        ("ExecutorLostFailure (executor 1 exited caused by one of the running tasks) Reason: worker lost", True),
        ("java.net.SocketException: Connection reset", True),
        ("java.io.IOException: Broken pipe", True),
        ("org.apache.spark.SparkArithmeticException: [DIVIDE_BY_ZERO] Division by zero", False),
        ("java.io.FileNotFoundException: /lake/exited unexpectedly", False),
    ],
)
def test_a_lost_worker_is_distinguished_from_a_failed_job(said: str, lost: bool) -> None:  # noqa: FBT001 a case
    found = explained(
        java_error("An error occurred while calling o1.collect.\n", f"Job aborted: {said}\n"), stopped=False
    )
    assert type(found) is (WorkerLostError if lost else SparkJobError)


def worker_text(error: Exception) -> str:
    return (
        f"[PYTHON_EXCEPTION] An exception was thrown from the Python worker: {raised_by_a_worker(error).getMessage()}"
    )


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("Job aborted due to stage failure: Python worker exited unexpectedly (crashed)", WorkerLostError),
        ("Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited)", WorkerLostError),
        (worker_text(ConnectionError("refused")), UnavailableError),
        (worker_text(EventOfRangeError(7, ConnectionError("refused"))), UnavailableError),
        (worker_text(EventOfRangeError(7, ValueError("not a text"))), EventOfRangeError),
        (worker_text(ValueError("broken")), ProjectCodeError),
    ],
)
def test_a_failed_job_that_lost_events_is_an_error_even_if_the_handler_catches_it(
    reason: str, kind: type[Exception]
) -> None:
    assert type(error_of_failed_job(reason)) is kind


@pytest.mark.parametrize(
    "reason",
    [
        "Job aborted due to stage failure: [DIVIDE_BY_ZERO] Division by zero",
        "Job 7 cancelled part of cancelled job group g",
        "Traceback (most recent call last):\n  File 'handlers.py'\nConnectionResetError: Connection reset by peer\n",
        f"RangeFailedError: {raised_for(BulkWriteError('OCQ-360', 'total: too long'), None, STAGE)}\n",
    ],
)
def test_other_failed_jobs_are_left_to_the_handler(reason: str) -> None:
    assert error_of_failed_job(reason) is None


def test_events_read_both_as_stored_and_by_class_are_counted_once() -> None:
    assert events_in({("", 0, 5): 4, ("shop:Sold", 0, 5): 3, ("shop:Sold", 5, 9): 2, ("shop:Back", 5, 9): 1}) == 7


def test_a_part_that_is_read_twice_is_counted_once() -> None:
    counts = _Counts()
    both = counts.addInPlace({("", 0, 10): 7}, {("", 0, 10): 7})
    assert counts.addInPlace(both, {("", 10, 20): 3}) == {("", 0, 10): 7, ("", 10, 20): 3}
    assert counts.zero(both) == {}


def test_a_range_knows_its_count_after_closing_and_leaves_no_accumulator_in_pyspark() -> None:
    before = dict(_accumulatorRegistry)
    context = SimpleNamespace(accumulator=lambda value, kind: Accumulator(10**9, value, kind))
    maker = SparkFrames(SimpleNamespace(sparkContext=context), None, Processing(ValueError()))
    for _ in range(3):
        frames = maker.frames(PositionRange(0, 10, lambda _after, _upto: None), SimpleNamespace(position=1))
        _accumulatorRegistry[10**9] += {("", 0, 10): 7}
        frames.close()
        frames.close()
        assert frames.handled == 7
        assert before == _accumulatorRegistry


@pytest.mark.parametrize(
    "kind",
    [
        pa.decimal256(60, 2),
        pa.list_(pa.decimal256(60, 2)),
        pa.struct([("a", pa.decimal256(60, 2))]),
        pa.month_day_nano_interval(),
    ],
)
def test_a_column_type_that_spark_lacks_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(HandlerSignatureError, match=r"OCQ-238.*Lent.amount: Spark has no column for"):
        schema_of(Lent, pa.schema([("isbn", pa.string()), ("amount", kind)]), "here")


def test_other_columns_are_mapped_to_spark_types() -> None:
    kinds = {"a": pa.list_(pa.string()), "b": pa.struct([("c", pa.decimal128(38, 18))]), "d": pa.timestamp("us", "UTC")}
    found = schema_of(Lent, pa.schema(list(kinds.items())), "here")
    assert found.simpleString() == "struct<a:array<string>,b:struct<c:decimal(38,18)>,d:timestamp>"


def test_a_handler_that_swallows_the_cancellation_of_its_job_is_not_taken_as_done() -> None:
    """A stop cancels slow jobs. The range is handled again, so nothing of this call must be committed."""
    tags: set[str] = set()
    context = SimpleNamespace(
        accumulator=lambda start, param: Accumulator(0, start, param),
        getJobTags=lambda: tags,
        cancelJobsWithTag=lambda _tag: None,
    )
    maker = SparkFrames(SimpleNamespace(sparkContext=context), None, Processing(ValueError()))
    frames = maker.frames(PositionRange(0, 10, lambda _after, _upto: None), SimpleNamespace(position=1))
    job = SparkJob[None](context, lambda _: None)
    tags.add(job.tag)
    raised: list[str] = []

    def handle() -> None:
        frames.require_read()
        job.abandon()
        with pytest.raises(UnavailableError) as caught:
            frames.require_read()
        raised.append(str(caught.value))

    job.run(handle)
    assert ["a Spark job was cancelled" in one for one in raised] == [True]
    frames.require_read()  # by another job on the same thread
    frames.close()

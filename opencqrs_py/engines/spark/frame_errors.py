"""Errors of data frame tasks, and how the driver gets them: as a line of JSON in a Python exception.

``raised_for`` runs on executors, ``worker_error`` on the driver.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from py4j.protocol import Py4JError, Py4JJavaError
from pydantic import TypeAdapter
from pyspark.errors import AnalysisException, PythonException

from opencqrs_py import errors
from opencqrs_py.engines.spark.jobs import TRACEBACK, raised_last, reason_of
from opencqrs_py.errors import ExplainedError, ProjectCodeError, UnavailableError
from opencqrs_py.processing.dispatch import ChunkFailedError
from opencqrs_py.processing.exceptions import one_line
from opencqrs_py.processing.frames import EventOfRangeError, WorkerLostError
from opencqrs_py.processing.groups import GroupProcessing

_LOST = re.compile(
    "Python worker (exited unexpectedly|failed to connect back)|ExecutorLostFailure|Connection reset|Broken pipe"
)  # what Spark reports about a worker, or an executor, that has ended

_VIEWS = (
    "a view that the handler has created is found by the session of its data frame only, such as events.sparkSession"
)

READ = "read the log"
STAGE = "store rows in a table"


@dataclass(frozen=True, slots=True)
class _WorkerFailure:
    """A worker's report of an error: the event's position if an event caused it, what it is, and the failed action."""

    position: int | None
    outage: bool
    kind: str
    code: str
    what: str
    where: str
    fix: str
    action: str = READ


_FAILURE = TypeAdapter(_WorkerFailure)


class SparkJobError(Exception):
    """A Spark job that a handler of data frames started has failed."""


def job_error(error: BaseException) -> BaseException:
    """Return the error of a failed job as one line, instead of Spark's, which includes a page of JVM output."""
    if isinstance(error, AnalysisException) and error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
        return SparkJobError(f"{one_line(error)}; {_VIEWS}").with_traceback(error.__traceback__)
    if not isinstance(error, PythonException | Py4JJavaError):
        return error
    if isinstance(error, Py4JJavaError) and _LOST.search(str(error)):
        return WorkerLostError(reason_of(error)).with_traceback(error.__traceback__)
    return SparkJobError(reason_of(error)).with_traceback(error.__traceback__)


class RangeFailedError(Exception):
    """A part of a range cannot be read, or rows cannot be written; its text is one line of JSON."""


_FAILURE_LINE = re.compile(rf"^(?:\w+\.)*{RangeFailedError.__name__}: (\{{.*\}})\s*$", re.MULTILINE)


def raised_for(error: Exception, processing: GroupProcessing | None, action: str = READ) -> RangeFailedError:
    """Return what a worker raises for an error, with its reason; ``processing`` says whether it is an outage."""
    return RangeFailedError(_FAILURE.dump_json(_failure(error, processing, action)).decode())


def _failure(error: Exception, processing: GroupProcessing | None, action: str) -> _WorkerFailure:
    position = error.position if isinstance(error, EventOfRangeError) else None
    cause: BaseException = error.error if isinstance(error, EventOfRangeError) else error
    reasons = [each for each in (cause, cause.__cause__) if each is not None]
    outage = isinstance(cause, UnavailableError) or (
        processing is not None and any(_is_outage(processing, reason) for reason in reasons)
    )
    if isinstance(cause, ExplainedError):
        return _WorkerFailure(
            position, outage, type(cause).__name__, cause.code, cause.what, cause.where, cause.fix, action
        )
    return _WorkerFailure(position, outage, "", "", one_line(cause), "", "", action)


def _is_outage(processing: GroupProcessing, error: BaseException) -> bool:
    return processing.source.is_outage(error) or processing.tracker.is_outage(error)


def error_of_failed_job(reason: str) -> BaseException | None:
    """Return the error of a job that failed because of a lost worker, an outage or events that could not be read.

    A handler cannot handle these, even if it has caught them. ``None`` for other reasons, which are up to the handler.
    """
    if lines := _FAILURE_LINE.findall(reason):
        failure = _FAILURE.validate_json(lines[-1])
        return _error_of(failure) if failure.outage or failure.action == READ else None
    if TRACEBACK in reason or not _LOST.search(reason):  # code in a worker may raise with the same words
        return None
    return WorkerLostError(reason_of(RuntimeError(reason)))


def worker_error(error: BaseException) -> BaseException | None:
    """Return the error of a worker, ``None`` if it is not one of ours; ``EventOfRangeError`` names its event.

    The handler may have raised its own error because of it.
    """
    failure = next((failure for each in _chained(error) if (failure := _failure_of_worker(each)) is not None), None)
    return None if failure is None else _error_of(failure)


def _error_of(failure: _WorkerFailure) -> BaseException:
    cause = _rebuilt(failure)
    return cause if failure.position is None or failure.outage else EventOfRangeError(failure.position, cause)


def _chained(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes; not those of an earlier call of the handler."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and not isinstance(following, ChunkFailedError) and id(following) not in seen:
        yield following
        seen.add(id(following))
        following = following.__context__ if following.__cause__ is None else following.__cause__


def _failure_of_worker(error: BaseException) -> _WorkerFailure | None:
    if isinstance(error, Py4JJavaError):  # of rows that come one by one: it is among the causes
        with suppress(Py4JError, OSError):  # the JVM, which has the text, may be gone
            lines = _FAILURE_LINE.findall(str(error))
            return _FAILURE.validate_json(lines[-1]) if lines else None
    if not isinstance(error, PythonException):
        return None
    _, found, line = raised_last(error.getMessage() or "").partition(f"{RangeFailedError.__name__}: ")
    return _FAILURE.validate_json(line) if found else None


def _rebuilt(failure: _WorkerFailure) -> BaseException:
    """Return the error of a worker."""
    if failure.outage:
        return UnavailableError("OCQ-420", f"a task on Spark could not {failure.action}: {failure.what}")
    kind = getattr(errors, failure.kind, None)
    if isinstance(kind, type) and issubclass(kind, ExplainedError):
        return kind(failure.code, failure.what, failure.where, failure.fix)
    return ProjectCodeError("OCQ-217", f"a task on Spark could not {failure.action}: {failure.what}")

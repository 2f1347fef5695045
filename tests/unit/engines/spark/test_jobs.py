"""What a round that Spark could not finish is reported as."""

from __future__ import annotations

import pytest
from pyspark.errors import PythonException

from opencqrs_py.engines.spark.jobs import spark_failure
from opencqrs_py.model.outcome import Origin

OF_A_WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/env/opencqrs_py/processing/dispatch.py", line 127, in handle
    raise ChunkFailedError(index, error) from error
opencqrs_py.processing.dispatch.ChunkFailedError: (0, PanicException())

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/env/pyspark/worker.py", line 2070, in main
    raise RuntimeError("boom")
RuntimeError: a worker's own reason
and its second line

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:601)
"""


def test_a_python_error_is_reported_by_what_was_raised_and_never_by_a_line_of_source() -> None:
    failure = spark_failure(PythonException(OF_A_WORKER))
    assert (failure.origin, failure.permanent) == (Origin.FRAMEWORK, True)
    assert failure.message == "RuntimeError: a worker's own reason"


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError("Python worker exited (crashed)\n\tat org.apache.spark"), "Python worker exited (crashed)"),
        (RuntimeError("first\n at x\nExecutor lost: killed"), "Executor lost: killed"),
        (OSError(), "OSError"),
    ],
)
def test_all_else_may_pass(error: Exception, message: str) -> None:
    failure = spark_failure(error)
    assert (failure.origin, failure.permanent) == (Origin.OUTAGE, False)
    assert failure.message == message

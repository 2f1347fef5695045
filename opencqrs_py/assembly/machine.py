"""What this machine offers to Spark."""

from __future__ import annotations

import os

from opencqrs_py.engines.spark.java import Java, find_java


def find_java_here() -> Java:
    """Return the Java that Spark would use here.

    Raises:
        EngineError: OCQ-401, if there is none.
    """
    return find_java(os.environ)


def try_spark() -> str:
    """Start a small local Spark, have a worker answer, and return the worker's Python version.

    Raises:
        EngineError: OCQ-401 or OCQ-402, if it does not come up.
    """
    from opencqrs_py.engines.spark.session import Sessions, SessionSettings  # noqa: PLC0415 loads PySpark
    from opencqrs_py.engines.spark.worker import python_of_workers  # noqa: PLC0415 loads PySpark

    sessions = Sessions(SessionSettings(master="local[1]", name="opencqrs doctor"))
    try:
        return python_of_workers(sessions.open())
    finally:
        sessions.close()

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from opencqrs_py.engines.spark.session import Sessions, SessionSettings


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    sessions = Sessions(SessionSettings(master="local[2]", name="tests"))
    yield sessions.open()
    sessions.close()


@pytest.fixture
def kind() -> str:
    """The kind of database of a log, where a test does not name others."""
    return "sqlite"

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from opencqrs_py.engines.spark.session import Sessions, SessionSettings


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    quick = {"spark.sql.shuffle.partitions": "1", "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true"}
    sessions = Sessions(SessionSettings(master="local[2]", conf=quick, name="tests"))
    yield sessions.open()
    sessions.close()


@pytest.fixture
def kind() -> str:
    """The kind of database of a log, where a test does not name others."""
    return "sqlite"

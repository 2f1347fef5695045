"""Captured logs are shown to tests as the program wrote them."""

from __future__ import annotations

import logging

import pytest
from pyspark.logger import PySparkLogger

CONTEXTS = ["DataFrameQueryContextLogger", "SQLQueryContextLogger"]


@pytest.fixture
def a_query_that_failed(request: pytest.FixtureRequest) -> None:
    """Leave a logger as PySpark does when a query fails."""
    PySparkLogger.getLogger(request.param).propagate = False


@pytest.mark.parametrize("a_query_that_failed", CONTEXTS, indirect=True)
@pytest.mark.usefixtures("a_query_that_failed")
def test_a_failed_spark_query_does_not_change_the_formatters_of_tests(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("of the test").warning('says "this"')
    assert 'says "this"\n' in caplog.text
    assert caplog.records[0].message == 'says "this"'

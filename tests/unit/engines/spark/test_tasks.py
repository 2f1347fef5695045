from __future__ import annotations

from opencqrs_py.engines.spark.tasks import Task, TaskResult, read_result, read_task, write_result, write_task
from opencqrs_py.model.outcome import Failure, Origin, Outcome
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor, Skip

CURSOR = Cursor(Partition(4, 3), epoch=2, stored=7, position=9, attempt=3, failing=10, skip=True)


def test_an_order_survives_its_journey_as_one_line():
    task = Task((CURSOR, Cursor(Partition(4, 1), 1, 0, 0)), seconds=1.5)
    line = write_task(task)
    assert "\n" not in line
    assert read_task(line) == task


def test_a_report_with_a_traceback_survives_its_journey_as_one_line():
    failure = Failure(
        Origin.HANDLER, permanent=False, error="ValueError", message="a\nb ü", traceback="x\n  y", position=10
    )
    skip = Skip("g", CURSOR.partition, 9, "9", "s", "/ü", "lent", 3, "a\nb", "2026-01-01T00:00:00+00:00")
    result = TaskResult((Outcome(CURSOR, handled=5, skips=(skip,), idle=True, failure=failure),))
    line = write_result(result)
    assert "\n" not in line
    assert read_result(line) == result

"""Rows of data frames on executors: few are returned inline, many are staged for each run of a task."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PythonException

from opencqrs_py.engines.spark import frame_rows
from opencqrs_py.engines.spark.frame_errors import RangeFailedError, worker_error
from opencqrs_py.engines.spark.frame_rows import ExecutorRows, _InFile, _InStage, _read, _RowTaker, _unpacked
from opencqrs_py.engines.spark.tasks import KeptRecipe
from opencqrs_py.errors import BulkWriteError, ProjectCodeError, UnavailableError
from opencqrs_py.processing.staging import RowStaging, Stage

STAGE = Stage(None, "opencqrs_staged_x", "", ("number",), ("",), ("number",), "numbers")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_rows, "MOST_ROWS", 3)


def batches(*sizes: int) -> Iterator[pa.RecordBatch]:
    return iter([pa.record_batch({"number": pa.array(range(size), pa.int64())}) for size in sizes])


def taken(keeper: Any, *sizes: int) -> list[dict[str, Any]]:
    return [row for batch in _RowTaker(keeper)(batches(*sizes)) for row in batch.to_pylist()]


def numbers(found: Iterable[pa.RecordBatch]) -> list[int]:
    return [number for batch in found for number in batch.column(0).to_pylist()]


def test_few_rows_are_returned_inline_and_no_rows_give_no_result(tmp_path: Path) -> None:
    (result,) = taken(_InFile(str(tmp_path)), 1, 0, 2)
    assert (result["run"], result["count"]) == ("", 3)
    assert numbers(_unpacked([result["rows"]])) == [0, 0, 1]
    assert taken(_InFile(str(tmp_path)), 0, 0) == []
    assert list(tmp_path.iterdir()) == []


def test_many_rows_are_written_to_a_file_for_each_run_of_a_task(tmp_path: Path) -> None:
    first, second = (taken(_InFile(str(tmp_path)), 2, 1, 2)[0] for _ in range(2))
    assert (first["rows"], first["count"]) == (b"", 5)
    assert first["run"] != second["run"]
    assert {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()} == {0o600}
    assert numbers(_read([tmp_path / second["run"]])) == [0, 1, 0, 0, 1]
    assert [file.name for file in tmp_path.iterdir()] == [first["run"]]


def test_large_rows_are_written_to_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame_rows, "MOST_BYTES", 10)
    (result,) = taken(_InFile(str(tmp_path)), 2)
    assert result["run"]


class Tracker(RowStaging):
    """A tracker that keeps the rows that tasks stage, or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.left: dict[str, list[int]] = {}

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionError)

    def stage(self, stage: Stage, run: str, tables: Iterable[Any]) -> int:
        if self.error is not None:
            raise self.error
        assert stage is STAGE
        self.left[run] = numbers(tables)
        return len(self.left[run])


def recipe_of(tracker: object) -> Any:
    processing = SimpleNamespace(group="numbers", tracker=tracker, source=SimpleNamespace(is_outage=lambda _: False))
    return lambda: processing


def test_many_rows_are_staged_under_the_name_of_the_run() -> None:
    tracker = Tracker()
    (result,) = taken(_InStage(recipe_of(tracker), STAGE), 2, 2)
    assert (tracker.left, result["count"]) == ({result["run"]: [0, 1, 0, 1]}, 4)


def raised_by_a_worker(tracker: object) -> BaseException | None:
    with pytest.raises(RangeFailedError) as caught:
        taken(_InStage(recipe_of(tracker), STAGE), 4)
    line = f"opencqrs_py.RangeFailedError: {caught.value}"
    return worker_error(PythonException(f'Traceback (most recent call last):\n  File "x.py", line 1\n{line}\n'))


def test_errors_while_staging_rows_reach_the_driver() -> None:
    outage = raised_by_a_worker(Tracker(ConnectionError("refused")))
    assert isinstance(outage, UnavailableError)
    assert "a task on Spark could not store rows in a table: ConnectionError: refused" in str(outage)
    refused = raised_by_a_worker(Tracker(BulkWriteError("OCQ-360", "the key number of a row is null", "numbers", "")))
    assert isinstance(refused, BulkWriteError)
    other = raised_by_a_worker(SimpleNamespace(is_outage=lambda _: False))
    assert isinstance(other, ProjectCodeError)
    assert "progress tracker of group 'numbers' differs between" in str(other)


class Frame:
    """A data frame whose tasks run here; the first run of each task is lost."""

    def __init__(self, *tasks: tuple[int, ...]) -> None:
        self.tasks = tasks

    def mapInArrow(self, taker: Any, schema: str) -> Frame:  # noqa: N802 Spark's name
        assert schema == "rows binary, run string, count bigint"
        self.taker = taker
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802 as above
        runs = [list(self.taker(batches(*task))) for _ in range(2) for task in self.tasks]
        return pa.Table.from_batches([batch for run in runs[len(self.tasks) :] for batch in run])

    def toLocalIterator(self, *, prefetchPartitions: bool) -> Iterator[dict[str, Any]]:  # noqa: N802, N803 as above
        assert prefetchPartitions
        return (row for task in self.tasks for batch in self.taker(batches(*task)) for row in batch.to_pylist())


def test_only_runs_that_spark_accepts_are_named() -> None:
    tracker = Tracker()
    rows = ExecutorRows(recipe_of(tracker), recipe_of(tracker)())
    assert rows.can_stage()
    with rows.collected(Frame((4,), (1,), (2, 2)), STAGE) as collected:
        assert numbers(collected.tables) == [0]
        assert [staged.count for staged in collected.staged] == [4, 4]
        assert {staged.run for staged in collected.staged} < tracker.left.keys()
        assert len(tracker.left) == 4


def test_with_a_local_master_rows_pass_through_files_that_are_deleted(tmp_path: Path) -> None:
    rows = ExecutorRows(KeptRecipe(str(tmp_path / "recipe")), recipe_of(object())())
    assert not rows.can_stage()
    with rows.collected(Frame((4,), (1,)), None) as collected:
        assert sorted(numbers(collected.tables)) == [0, 0, 1, 2, 3]
        assert collected.staged == ()
    assert list(tmp_path.iterdir()) == []


def test_without_staging_or_files_the_driver_fetches_rows_partition_by_partition() -> None:
    rows = ExecutorRows(recipe_of(object()), recipe_of(object())())
    with rows.collected(Frame((4, 0), (1,)), None) as collected:
        assert numbers(collected.tables) == [0, 1, 2, 3, 0]


def test_an_error_of_the_data_frame_itself_is_raised_unchanged() -> None:
    class Failing(Frame):
        def toArrow(self) -> pa.Table:  # noqa: N802 Spark's name
            raise ValueError("in a task")

    rows = ExecutorRows(recipe_of(Tracker()), recipe_of(Tracker())())
    with pytest.raises(ValueError, match="in a task"), rows.collected(Failing(), STAGE):
        pass

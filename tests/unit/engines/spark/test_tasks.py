"""What travels between driver and executors: tasks, results and recipes."""

from __future__ import annotations

import pickle
import stat
from dataclasses import dataclass
from pathlib import Path

import pytest

from opencqrs_py.engines.spark.tasks import (
    Task,
    TaskResult,
    TaskRunner,
    keep,
    read_result,
    read_task,
    write_result,
    write_task,
)
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


@dataclass(frozen=True)
class Recipe:
    url: str

    def __call__(self):
        raise NotImplementedError


RECIPE = Recipe("postgresql://library:s3cret@host/library")


def test_a_kept_recipe_is_in_a_file_for_its_owner_alone_and_equal_when_fetched(tmp_path):
    kept = keep(RECIPE, tmp_path)
    assert stat.S_IMODE(Path(kept.file).stat().st_mode) == 0o600
    assert kept.fetch() == RECIPE
    assert hash(kept.fetch()) == hash(RECIPE)


def test_what_travels_in_the_place_of_a_kept_recipe_holds_no_secret(tmp_path):
    assert b"s3cret" in pickle.dumps(TaskRunner(RECIPE))
    travelling = pickle.dumps(TaskRunner(keep(RECIPE, tmp_path)))
    assert b"s3cret" not in travelling
    assert pickle.loads(travelling).recipe.fetch() == RECIPE


def test_the_same_recipe_kept_twice_is_one_recipe_to_a_worker(tmp_path):
    assert len({keep(RECIPE, tmp_path).fetch() for _ in range(2)}) == 1


def test_a_recipe_of_a_run_that_is_over_is_an_error(tmp_path):
    kept = keep(RECIPE, tmp_path)
    Path(kept.file).unlink()
    with pytest.raises(FileNotFoundError):
        kept.fetch()

"""What is sent between driver and executors: tasks, results and recipes."""

from __future__ import annotations

import os
import pickle
import shutil
import stat
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from opencqrs_py.engines.spark.tasks import (
    KeptRecipe,
    KeptRecipes,
    Permit,
    Task,
    TaskResult,
    TaskRunner,
    read_result,
    read_task,
    write_result,
    write_task,
)
from opencqrs_py.errors import UnavailableError
from opencqrs_py.model.outcome import Failure, Origin, Outcome
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor, Skip

CURSOR = Cursor(Partition(4, 3), epoch=2, stored=7, position=9, attempt=3, failing=10, skip=True)


def test_a_task_is_serialised_as_one_line_and_read_back():
    task = Task((CURSOR, Cursor(Partition(4, 1), 1, 0, 0)), seconds=1.5)
    line = write_task(task)
    assert "\n" not in line
    assert read_task(line) == task


def test_a_result_with_a_traceback_is_serialised_as_one_line_and_read_back():
    failure = Failure(
        Origin.HANDLER,
        permanent=False,
        error="ValueError",
        message="a\nb ü",
        traceback="x\n  y",
        position=10,
        untried=True,
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


def test_a_kept_recipe_is_in_a_private_file_and_equal_when_fetched(tmp_path):
    kept = KeptRecipes().keep(RECIPE, tmp_path)
    assert stat.S_IMODE(Path(kept.file).stat().st_mode) == 0o600
    assert kept.fetch() == RECIPE
    assert hash(kept.fetch()) == hash(RECIPE)


def test_the_reference_to_a_kept_recipe_contains_no_secret(tmp_path):
    assert b"s3cret" in pickle.dumps(TaskRunner(RECIPE))
    travelling = pickle.dumps(TaskRunner(KeptRecipes().keep(RECIPE, tmp_path)))
    assert b"s3cret" not in travelling
    assert pickle.loads(travelling).recipe.fetch() == RECIPE


def test_a_worker_treats_a_recipe_kept_twice_as_the_same(tmp_path):
    assert len({KeptRecipes().keep(RECIPE, tmp_path).fetch() for _ in range(2)}) == 1


def test_a_missing_recipe_file_is_an_outage(tmp_path):
    recipe = KeptRecipe(str(tmp_path / "recipe-1"))
    with pytest.raises(UnavailableError, match=r"OCQ-420.*recipe-1"):
        recipe.fetch()
    (outcome,) = read_result(TaskRunner(recipe)(write_task(Task((CURSOR,), 1)))).outcomes
    assert outcome.failure is not None
    assert (outcome.failure.origin, outcome.failure.permanent) == (Origin.OUTAGE, False)
    assert outcome.cursor == CURSOR


@pytest.mark.parametrize("gone", ["file", "folder", "parent"])
def test_files_removed_by_a_temporary_folder_cleaner_are_restored_for_the_next_task(tmp_path, gone):
    folder = tmp_path / "spark-1" / "pyspark-1"
    folder.mkdir(parents=True)
    recipes = KeptRecipes()
    kept, permit = recipes.keep(RECIPE, folder), Permit.in_folder(str(folder))
    remove = {
        "file": Path(kept.file).unlink,
        "folder": partial(shutil.rmtree, folder),
        "parent": partial(shutil.rmtree, folder.parent),
    }
    remove[gone]()
    permit.give()
    recipes.restore()
    assert permit.holds
    assert kept.fetch() == RECIPE
    assert stat.S_IMODE(Path(kept.file).stat().st_mode) == 0o600
    assert gone == "file" or stat.S_IMODE(folder.stat().st_mode) == 0o700
    recipes.remove()
    assert not Path(kept.file).exists()


@pytest.mark.parametrize("gone", ["file", "folder"])
def test_concurrent_tasks_may_restore_a_recipe_and_no_worker_reads_a_partial_file(tmp_path, monkeypatch, gone):
    folder = tmp_path / "pyspark-1"
    folder.mkdir()
    recipes = KeptRecipes()
    kept = recipes.keep(RECIPE, folder)
    Path(kept.file).unlink() if gone == "file" else shutil.rmtree(folder)
    opened, seen = os.open, []

    def slowly(*arguments, **options):
        monkeypatch.setattr(os, "open", opened)
        recipes.restore()  # by another task, just before
        Path(kept.file).unlink()
        handle = opened(*arguments, **options)
        seen.append(Path(kept.file).exists())
        return handle

    monkeypatch.setattr(os, "open", slowly)
    recipes.restore()
    assert seen == [False], "it is there when it is whole"
    assert kept.fetch() == RECIPE
    assert [each.name for each in folder.iterdir()] == [Path(kept.file).name]


def test_concurrent_tasks_may_both_write_a_recipe(tmp_path, monkeypatch):
    recipes = KeptRecipes()
    kept = recipes.keep(RECIPE, tmp_path)
    Path(kept.file).unlink()
    opened = os.open

    def late(*arguments, **options):
        monkeypatch.setattr(os, "open", opened)
        recipes.restore()
        return opened(*arguments, **options)

    monkeypatch.setattr(os, "open", late)
    recipes.restore()
    assert kept.fetch() == RECIPE


def test_restoring_a_recipe_renews_the_age_of_its_file(tmp_path):
    recipes = KeptRecipes()
    kept = recipes.keep(RECIPE, tmp_path)
    os.utime(kept.file, (0, 0))
    recipes.restore()
    assert Path(kept.file).stat().st_mtime > 0


def test_a_recipe_is_not_written_to_a_folder_of_another_user(tmp_path, monkeypatch):
    folder = tmp_path / "spark-1" / "pyspark-1"
    folder.mkdir(parents=True)
    recipes = KeptRecipes()
    kept = recipes.keep(RECIPE, folder)
    shutil.rmtree(folder)
    monkeypatch.setattr(os, "geteuid", lambda: 4710)
    monkeypatch.setattr(Path, "stat", lambda self, **_: os.stat_result((0o40700, 0, 0, 0, 4711, 0, 0, 0, 0, 0)))
    with pytest.raises(PermissionError, match="belongs to another user"):
        recipes.restore()
    monkeypatch.undo()
    assert not Path(kept.file).exists()

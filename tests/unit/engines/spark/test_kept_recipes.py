"""Recipes of which only the place travels."""

from __future__ import annotations

import pickle
import stat
from dataclasses import dataclass
from pathlib import Path

import pytest

from opencqrs_py.engines.spark.kept_recipes import keep
from opencqrs_py.engines.spark.worker import TaskRunner


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

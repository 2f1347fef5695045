"""Jobs that cannot run on Spark are refused at the start, and a worker runs the job of its recipe."""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from dataclasses import replace

import pytest

from opencqrs_py import Application, JobContext, job
from opencqrs_py.assembly.blueprint import Blueprint
from opencqrs_py.assembly.jobs.recipes import JobRecipe
from opencqrs_py.engines.spark.job_tasks import JobTask, JobTaskRunner, read_ending, write_job_task
from opencqrs_py.errors import AssemblyError, JobError
from opencqrs_py.jobs.binding import bind_job
from opencqrs_py.jobs.rules import JobRule
from opencqrs_py.jobs.runs import JobRun
from opencqrs_py.model.choices import JobTransaction
from opencqrs_py.model.job import Trigger
from opencqrs_py.testing import FakeClock


def numbers() -> Iterable[int]:
    """Return the items."""
    return [1, 2, 3]


@job("count", input=numbers)
def count(context: JobContext) -> None:
    """Do nothing."""


@job("named")
def named(context: JobContext) -> None:
    """Do nothing."""


@job("alone")
def alone() -> None:
    """Do nothing."""


FILE = {"database.url": "sqlite:///jobs.db", "event-store.url": "sqlite:///jobs.db"}

IN_MEMORY = "sqlite:///file:/jobs?vfs=memdb&uri=true"
MEMORY = {"database.url": IN_MEMORY, "event-store.url": IN_MEMORY}


@pytest.mark.parametrize(
    ("function", "settings", "code", "words"),
    [
        (alone, FILE, "OCQ-671", "input="),
        (named, FILE, "OCQ-671", "input="),
        (count, {**FILE, "jobs.count.transaction": "run"}, "OCQ-672", "jobs.count.transaction to page or item"),
        (count, MEMORY, "OCQ-673", "set database.url"),
        (named, {**MEMORY, "jobs.named.transaction": "item"}, "OCQ-673", "set database.url"),
    ],
)
def test_a_job_that_cannot_run_on_spark_is_refused_with_the_fix(tmp_path, function, settings, code, words):
    name = function.__name__
    said = {**settings, f"jobs.{name}.processing.engine": "spark"}
    application = Application(said, [function], tmp_path)
    with application, pytest.raises(JobError) as raised:
        application.start()
    assert raised.value.code == code
    assert words in str(raised.value)
    assert f"jobs.{name}.processing.engine: thread" in str(raised.value)


@pytest.fixture
def recipe(tmp_path) -> JobRecipe:
    application = Application(FILE, [count, named], tmp_path)
    blueprint = application.blueprint
    (found,) = [each for each in blueprint.discover().jobs if each.name == "count"]
    bound = bind_job(found, JobRule("count", transaction=JobTransaction.ITEM), blueprint.discover().injector)
    return JobRecipe.of(blueprint, bound)


def test_a_worker_builds_the_job_of_its_recipe(recipe):
    travelled = pickle.loads(pickle.dumps(recipe))
    assert (travelled, hash(travelled)) == (recipe, hash(recipe))
    made = travelled()
    assert (made.job.job.name, made.job.rule.transaction, made.job.input) == ("count", JobTransaction.ITEM, None)


@pytest.mark.parametrize("change", [{"job": "gone"}, {"reference": "elsewhere:count"}])
def test_a_worker_that_finds_another_job_reports_a_permanent_error(recipe, change):
    other = replace(recipe, **change)
    with pytest.raises(AssemblyError, match="OCQ-674"):
        other()
    run = JobRun("run/1", "count", Trigger.MANUAL, FakeClock().now(), ids=(1,))
    ending = read_ending(JobTaskRunner(other)(write_job_task(JobTask(run))))
    assert ending is not None
    assert ending.permanent
    assert "found a different job" in ending.error


def test_recipes_of_different_blueprints_differ(recipe, tmp_path):
    assert isinstance(recipe.blueprint, Blueprint)
    assert recipe != replace(recipe, blueprint=Application({}, [count], tmp_path).blueprint)

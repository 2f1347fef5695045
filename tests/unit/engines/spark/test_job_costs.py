"""SQL statements of job runs on Spark: a fixed number for a page and a task, and one for an item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import event
from support.spark import Context, Sessions

from opencqrs_py.adapters.sql import Database, SqlJobStore
from opencqrs_py.engines.spark.job_spreading import SparkForJobs
from opencqrs_py.engines.spark.job_tasks import JobOnExecutor
from opencqrs_py.jobs.binding import BoundJob, JobInput
from opencqrs_py.jobs.execution import Surroundings
from opencqrs_py.jobs.rules import JobRule
from opencqrs_py.jobs.runs import JobRun, RunStatus
from opencqrs_py.model.choices import JobTransaction
from opencqrs_py.model.job import Job, JobMark, JobPage, RunSignals, Trigger
from opencqrs_py.testing import FakeClock


class NoSelector:
    def limited(self, statement: object, unit: object) -> None:
        return None

    def ids(self, statement: object, page: JobPage, unit: object) -> None:
        return None


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    database = Database(f"sqlite:///{tmp_path / 'jobs.db'}")
    yield database
    database.close()


def costs(database: Database, items: int, limit: int, transaction: JobTransaction) -> tuple[Counter[str], int]:
    """Return the number of statements of a run by their first word, and the number of its Spark jobs."""
    store, clock, context = SqlJobStore(database), FakeClock(), Context()
    context.executors = 2
    input_ = JobInput(
        lambda page, _: range((page.after or 0) + 1, min(items, (page.after or 0) + page.limit) + 1),
        transactional=False,
        paged=True,
        place="x",
    )
    rule = JobRule("remind", transaction=transaction, limit=limit)
    job = BoundJob(Job(JobMark("remind"), print, "x"), rule, lambda _context, _work: None, False, input_)  # noqa: FBT003
    around = Surroundings(store, None, NoSelector(), clock, lambda _seconds, _signals: None)
    spark = SparkForJobs(Sessions(context), {"remind": lambda: JobOnExecutor(replace(job, input=None), around)})
    run = JobRun(f"run {items} {limit}", "remind", Trigger.MANUAL, clock.now(), status=RunStatus.RUNNING, token=1)
    with store.open(["remind"]) as book:
        book.put(replace(run, owner="node", started_at=clock.now()))
    sent: Counter[str] = Counter()

    def count(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        sent[statement.split(maxsplit=1)[0]] += not statement.startswith("BEGIN")

    event.listen(database.engine, "before_cursor_execute", count)
    try:
        ending = spark.attempt(job, run, around, RunSignals(), lambda: False).execute()
    finally:
        event.remove(database.engine, "before_cursor_execute", count)
    assert ending is not None
    assert (ending.error, ending.position.items, ending.position.done) == ("", items, True)
    return sent, len(context.groups)


def test_an_item_costs_one_statement_and_a_page_one_spark_job(database):
    few, jobs = costs(database, 20, 1_000, JobTransaction.ITEM)
    many, jobs_of_many = costs(database, 220, 1_000, JobTransaction.ITEM)
    assert (jobs, jobs_of_many) == (1, 1)
    assert many - few == Counter(UPDATE=200)
    assert few["INSERT"] == 2  # a child for each task
    assert few["DELETE"] == 2  # after the page, and after the empty one that ends the run


def test_a_task_costs_one_statement_if_its_part_is_one_transaction(database):
    few, _ = costs(database, 20, 1_000, JobTransaction.PAGE)
    many, _ = costs(database, 220, 1_000, JobTransaction.PAGE)
    assert +many == +few
    # The run is taken, spread and advanced, last by an empty page; children are taken and record their parts.
    assert few["UPDATE"] == 7


def test_each_page_costs_the_same(database):
    one, jobs_of_one = costs(database, 99, 100, JobTransaction.PAGE)
    three, jobs = costs(database, 299, 100, JobTransaction.PAGE)
    assert (jobs_of_one, jobs) == (1, 3)
    assert three - one == Counter({"INSERT": 4, "UPDATE": 8, "DELETE": 2})

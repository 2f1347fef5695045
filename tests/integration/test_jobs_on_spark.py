"""Jobs on a real Spark and real databases: spread over workers, and each item once, whatever is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import text

from opencqrs_py import Application
from opencqrs_py.adapters.sql import Database
from opencqrs_py.jobs.runs import RunStatus

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark", "databases_closed")]

SECONDS = 300  # longest wait for a Spark on a busy machine
ITEMS = 40
SOURCE = """
import os, signal, time
from pathlib import Path
from opencqrs_py import JobContext, job
from sqlalchemy import Connection, column, select, table, text

FOLDER = Path({folder!r})
SECONDS = {seconds}

def due():
    return select(column("id")).select_from(table("invoices"))

def once(name):
    try:
        (FOLDER / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

def wait_for(condition):
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)

@job("remind", input=due)
def remind(context: JobContext, connection: Connection) -> None:
    for id_ in context.ids:
        values = {{"id": id_, "pid": os.getpid(), "run": context.run}}
        connection.execute(text("INSERT INTO reminded (id, pid, run) VALUES (:id, :pid, :run)"), values)
        {special}
"""
OF_TWO_WORKERS = """
        (FOLDER / f"worker-{os.getpid()}").touch()
        if connection.dialect.name != "sqlite":  # where one transaction writes at a time
            wait_for(lambda: len(list(FOLDER.glob("worker-*"))) > 1)
        if id_ == 17 and once("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        if id_ == 23 and once("failed"):
            raise ValueError("not now")
"""
UNTIL_KILLED = """
        if id_ in (7, 13):
            (FOLDER / f"reached-{id_}").touch()
            wait_for((FOLDER / "go-on").exists)
"""
UNTIL_CANCELLED = """
        (FOLDER / "begun").touch()
        wait_for(lambda: context.cancelled)
"""
DRIVER = """
import sys, time
from opencqrs_py import Application
import {module}

application = Application({settings!r}, [{module}], {folder!r})
application.start()
print(application.jobs.request("remind").id, flush=True)
while True:
    time.sleep(1)
    application.check()
"""


class Project:
    """A job that writes each id of an item to a table, in a separate folder."""

    def __init__(self, folder: Path, url: str, module: ModuleType, **settings: Any) -> None:
        self.folder = folder
        self.module = module
        self.database = Database(url)
        self.settings = {
            "database.url": url,
            "event-store.url": url,
            "spark.master": "local[2]",
            "jobs.remind.processing.engine": "spark",
            **{f"jobs.remind.{name}": value for name, value in settings.items()},
        }
        self.execute("CREATE TABLE invoices (id INTEGER PRIMARY KEY)")
        self.execute("CREATE TABLE reminded (id INTEGER, pid INTEGER, run VARCHAR(200))")
        self.execute("INSERT INTO invoices VALUES " + ", ".join(f"({n})" for n in range(1, ITEMS + 1)))

    def execute(self, statement: str) -> None:
        with self.database.writing() as connection:
            connection.execute(text(statement))

    def rows(self) -> list[tuple[int, int, str]]:
        with self.database.reading() as connection:
            return [tuple(row) for row in connection.execute(text("SELECT id, pid, run FROM reminded"))]

    def times(self) -> dict[int, int]:
        """Return how often each item was handled."""
        return dict(Counter(id_ for id_, _, _ in self.rows()))

    def children(self) -> int:
        with self.database.reading() as connection:
            return connection.execute(text("SELECT count(*) FROM opencqrs_job_runs WHERE parent <> ''")).scalar_one()

    def application(self) -> Application:
        return Application(self.settings, [self.module], self.folder)


@pytest.fixture
def make_project(
    tmp_path: Path, make_module: Callable[[str], ModuleType], fresh_url: Callable[[str], str]
) -> Callable[..., Project]:
    def make(special: str, kind: str, **settings: Any) -> Project:
        source = SOURCE.format(folder=str(tmp_path), seconds=SECONDS, special=special.strip())
        url = f"sqlite:///{tmp_path / 'jobs.db'}" if kind == "sqlite" else fresh_url(kind)
        return Project(tmp_path, url, make_module(source), **settings)

    return make


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


EACH_ONCE = dict.fromkeys(range(1, ITEMS + 1), 1)


@pytest.mark.release(kind="sqlite")
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_items_are_spread_over_workers_and_handled_once_even_if_one_is_killed_and_one_item_fails(
    make_project, spark, kind
):
    again = {"retry.policy": "fixed", "retry.initial-interval": "10ms", "retry.max-attempts": 3}
    project = make_project(OF_TWO_WORKERS, kind, transaction="item", limit=ITEMS // 2, **again)
    before = len(spark.sparkContext.statusTracker().getJobIdsForGroup("job:remind"))
    with project.application() as application:
        run = application.run_job("remind")
    assert (run.status, run.attempt, run.position.items) == (RunStatus.SUCCEEDED, 2, ITEMS)
    assert project.times() == EACH_ONCE
    assert len({pid for _, pid, _ in project.rows()}) > 1
    assert os.getpid() not in {pid for _, pid, _ in project.rows()}
    assert {run_id for _, _, run_id in project.rows()} == {run.id}
    assert project.children() == 0
    # two pages, one of them again after the worker was killed, and one for the item that has failed
    assert len(spark.sparkContext.statusTracker().getJobIdsForGroup("job:remind")) - before == 4


@pytest.mark.release  # as a run on threads
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_run_whose_driver_is_killed_continues_in_another_process_and_repeats_nothing(make_project, kind):
    project = make_project(UNTIL_KILLED, kind, transaction="item", limit=ITEMS // 2)
    module, code = project.module, str(Path(str(project.module.__file__)).parent)
    script = DRIVER.format(module=module.__name__, settings=project.settings, folder=str(project.folder))
    path = os.pathsep.join([code, *filter(None, sys.path)])
    driver = subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, text=True
    )
    with driver:
        try:
            assert driver.stdout is not None
            id_ = driver.stdout.readline().strip()
            at_once = 1 if kind == "sqlite" else 2  # transactions that write
            until(lambda: driver.poll() is not None or len(list(project.folder.glob("reached-*"))) == at_once)
            assert driver.poll() is None
            assert project.times()
        finally:
            driver.kill()
    (project.folder / "go-on").touch()
    with project.application() as application:
        application.start()
        run = application.jobs.wait(id_, SECONDS)
    assert (run.status, run.deaths, run.position.items) == (RunStatus.SUCCEEDED, 1, ITEMS)
    assert project.times() == EACH_ONCE
    assert project.children() == 0


def test_a_run_is_cancelled_while_its_items_are_handled(make_project):
    project = make_project(UNTIL_CANCELLED, "postgresql", transaction="item")
    with project.application() as application:
        application.start()
        id_ = application.jobs.request("remind").id
        until((project.folder / "begun").exists)
        application.jobs.cancel("remind")
        run = application.jobs.wait(id_, SECONDS)
        assert run.status is RunStatus.CANCELLED
        assert 0 < len(project.rows()) < ITEMS
        assert set(project.times().values()) == {1}
        assert project.children() == 0

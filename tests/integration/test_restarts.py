"""What outlives a process: attempts, skips, and which log the progress belongs to. On both engines."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import text
from support.observers import Watching

from opencqrs_py import Application
from opencqrs_py.adapters.sql import Database
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model import Event, ProcessorState

HANDLER = """
import json
from pathlib import Path
from opencqrs_py import Event, ProcessingContext, event_handling, on_start
from sqlalchemy import Connection, text

FOLDER = Path(__file__).parent

@on_start("rows")
def tables(connection: Connection) -> None:
    connection.execute(text("CREATE TABLE IF NOT EXISTS handled (position INTEGER)"))

@event_handling("rows")
def handle(raw: Event, connection: Connection, context: ProcessingContext) -> None:
    if json.loads((FOLDER / "failing.json").read_text()) and raw.id == "e3":
        with (FOLDER / "attempts.txt").open("a") as attempts:
            attempts.write(f"{context.attempt}\\n")
        raise ValueError("no e3")
    connection.execute(text("INSERT INTO handled VALUES (:position)"), {"position": raw.position})
"""

SPARK = {
    "event-handling.standard.processing.engine": "spark",
    "spark.master": "local[2]",
    "spark.driver-handles": "never",
}
ENGINES = [
    pytest.param({"event-handling.standard.processing.engine": "thread"}, id="thread"),
    pytest.param(SPARK, id="spark", marks=[pytest.mark.spark, pytest.mark.release(url=("postgresql_url", "mariadb"))]),
]

pytestmark = pytest.mark.release(url="mariadb")
"""What is stored is what test_progress_trackers.py stores there; the rest is not in SQL."""

_numbers = count()


class Project:
    """A group in a separate module, whose handler fails for one event while it is set to."""

    def __init__(self, folder: Path, url: str, engine: dict[str, str]) -> None:
        self.folder = folder
        self.url = url
        self.engine = engine
        self.name = f"restarted_project_{next(_numbers)}"
        (folder / f"{self.name}.py").write_text(HANDLER)
        self.made: list[Application] = []
        self.fails(failing=True)

    def fails(self, *, failing: bool) -> None:
        (self.folder / "failing.json").write_text(json.dumps(failing))

    @property
    def attempts(self) -> list[int]:
        """The numbers of the attempts, as the handler saw them."""
        file = self.folder / "attempts.txt"
        return [int(line) for line in file.read_text().splitlines()] if file.exists() else []

    def application(self, **retry: object) -> Application:
        settings = {f"event-handling.standard.retry.{key.replace('_', '-')}": value for key, value in retry.items()}
        module: ModuleType = __import__(self.name)
        self.made.append(Application({"event-store.url": self.url, **self.engine, **settings}, [module], self.folder))
        return self.made[-1]

    def close(self) -> None:
        for application in self.made:
            application.stop()

    def add(self, *numbers: int) -> None:
        self.application().event_store.append(
            Event(0, f"e{n}", "shop", "/", "sold", None, "application/json", "{}", None) for n in numbers
        )

    def rows(self) -> list[int]:
        database = Database(self.url)
        with database.reading() as connection:
            found = list(connection.execute(text("SELECT position FROM handled ORDER BY position")).scalars())
        database.close()
        return found


@pytest.fixture(
    params=[
        pytest.param("sqlite_url", id="sqlite"),
        pytest.param("postgresql_url", id="postgresql", marks=pytest.mark.postgresql),
        pytest.param("mariadb", id="mariadb", marks=pytest.mark.mariadb),
    ]
)
def url(request: pytest.FixtureRequest, fresh_url: Callable[[str], str]) -> str:
    if request.param == "mariadb":
        return fresh_url("mariadb")
    found: str = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def make_project(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Project]]:
    monkeypatch.syspath_prepend(tmp_path)
    made: list[Project] = []

    def make(engine: dict[str, str]) -> Project:
        made.append(Project(tmp_path, url, engine))
        made[-1].add(1, 2, 3, 4, 5)
        return made[-1]

    yield make
    for project in made:
        project.close()
        sys.modules.pop(project.name, None)


def failure_of(application: Application) -> Any:
    (status,) = application.status()[0].partitions
    return status.failure


def run_until(application: Application, attempts: int) -> None:
    """Run until the event has failed so often and that is recorded, and stop, as a service that is restarted."""
    application.start()
    try:
        while (failure := failure_of(application)) is None or failure.attempts < attempts:
            assert application._life.processors is not None
            assert application._life.processors.going_on(until_caught_up=False)
    finally:
        application.stop()


@pytest.mark.release(url="postgresql_url")
@pytest.mark.parametrize("engine", ENGINES)
def test_attempts_continue_after_a_restart_until_they_are_exhausted_and_the_skip_is_recorded(
    make_project: Callable[..., Project], engine: dict[str, str]
) -> None:
    project = make_project(engine)
    retry = {"policy": "fixed", "initial_interval": "1h", "max_attempts": 3}
    for attempt in (1, 2, 3):
        application = project.application(**retry)
        run_until(application, attempt)
        (partition,) = project.application(**retry).status()[0].partitions
        assert (partition.failure.position, partition.failure.event_id) == (3, "e3")
        assert (partition.failure.attempts, partition.failure.retries) == (attempt, attempt)
        assert partition.failure.last_error == "ValueError: no e3"
        assert partition.failure.next_attempt_at is not None
        due_now(project, partition.failure.next_attempt_at)
    result = project.application(**retry).run(until_caught_up=True)
    assert (result.failed, result.skipped) == (False, 1)
    assert project.attempts == [1, 2, 3, 4]
    assert project.rows() == [1, 2, 4, 5]
    (skip,) = project.application().skipped()
    assert (skip.position, skip.event_id, skip.event_type, skip.attempts) == (3, "e3", "sold", 4)
    assert skip.reason == "ValueError: no e3"
    (status,) = project.application().status()[0].partitions
    assert (status.skipped, status.failure, status.error) == (1, None, "")


def due_now(project: Project, moment: str) -> None:
    """Let an hour pass, as far as the record says."""
    database = Database(project.url)
    with database.writing() as connection:
        (row,) = connection.execute(text("SELECT failure FROM opencqrs_progress")).scalars()
        earlier = row.replace(moment, "2026-01-01T00:00:00.000+00:00")
        connection.execute(text("UPDATE opencqrs_progress SET failure = :failure"), {"failure": earlier})
    database.close()


@pytest.mark.parametrize("engine", ENGINES[:1])
def test_a_restart_waits_until_the_next_attempt_is_due(
    make_project: Callable[..., Project], engine: dict[str, str]
) -> None:
    project = make_project(engine)
    retry = {"policy": "fixed", "initial_interval": "1h", "max_attempts": 3}
    run_until(project.application(**retry), 1)
    again = project.application(**retry)
    again.start()
    try:
        (partition,) = again.status()[0].partitions
        while partition.state is not ProcessorState.BACKING_OFF:
            (partition,) = again.status()[0].partitions
        assert partition.error == "ValueError: no e3"
        assert partition.next_attempt_at is not None
    finally:
        again.stop()
    assert project.attempts == [1]


@pytest.mark.release(url="postgresql_url")
@pytest.mark.release(engine=SPARK)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_failed_partition_is_retried_at_the_next_start_and_recovers_when_the_handler_is_fixed(
    make_project: Callable[..., Project], engine: dict[str, str]
) -> None:
    project = make_project(engine)
    retry = {"policy": "none", "on_exhausted": "stop"}
    for attempts in (1, 2, 3):
        result = project.application(**retry).run(until_caught_up=True)
        assert result.failed
        failure = failure_of(project.application())
        assert (failure.position, failure.attempts) == (3, attempts)
    assert (failure.first_error, failure.last_error) == ("ValueError: no e3", "ValueError: no e3")
    project.fails(failing=False)
    watching = Watching()
    result = project.application(**retry).run(observer=watching, until_caught_up=True)
    assert (result.failed, result.skipped) == (False, 0)
    assert [notice.failure for notice in watching.notices] == [None], "it says that it has recovered"
    assert project.rows() == [1, 2, 3, 4, 5]
    assert failure_of(project.application()) is None


@pytest.mark.release(url="postgresql_url")
@pytest.mark.release(engine=SPARK)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_restored_store_that_has_grown_is_refused_and_nothing_is_handled(
    make_project: Callable[..., Project], engine: dict[str, str]
) -> None:
    project = make_project(engine)
    project.fails(failing=False)
    assert not project.application().run(until_caught_up=True).failed
    database = Database(project.url)
    with database.writing() as connection:
        connection.execute(text("UPDATE opencqrs_events SET id = 'other' WHERE position = 5"))
    database.close()
    project.add(6, 7)
    with pytest.raises(EventStoreError) as caught:
        project.application().run(until_caught_up=True)
    assert caught.value.code == "OCQ-316"
    assert caught.value.what.startswith("group 'rows' partition 0/1: ")
    assert "expected event e5 of shop at position 5, but the log has event other of shop" in caught.value.what
    assert project.rows() == [1, 2, 3, 4, 5]
    (partition,) = project.application().status()[0].partitions
    assert partition.state is ProcessorState.FAILED
    assert partition.error.startswith("[OCQ-316] group 'rows' partition 0/1: the event store is not the one")


def test_for_progress_beyond_the_newest_event_status_says_that_the_store_is_another(
    make_project: Callable[..., Project],
) -> None:
    project = make_project({"event-handling.standard.processing.engine": "thread"})
    project.fails(failing=False)
    project.application().run(until_caught_up=True)
    database = Database(project.url)
    with database.writing() as connection:
        connection.execute(text("DELETE FROM opencqrs_events WHERE position > 2"))
    database.close()
    (status,) = project.application().status()
    assert status.lag == 0
    assert "[OCQ-316] the event store ends at position 2, before this progress" in status.partitions[0].error

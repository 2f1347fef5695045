"""bulk.upsert of data frames with more rows than come to the driver: each row once, whatever is killed or fails."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import inspect, text

from opencqrs_py import Application, Event, SqlEventStore
from opencqrs_py.adapters.sql import Database
from opencqrs_py.adapters.sql.bulk.staging import StagedMerge

SOURCE = Path(__file__).with_name("everywhere") / "many_rows_everywhere.py"
EVENTS, EACH, SECONDS = 300, 120, 300

pytestmark = pytest.mark.spark


@pytest.fixture
def project(tmp_path: Path) -> Iterator[ModuleType]:
    shutil.copy(SOURCE, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        yield __import__("many_rows_everywhere")
    del sys.modules["many_rows_everywhere"]


@pytest.fixture
def database(request: pytest.FixtureRequest, fresh_url: Callable[[str], str], tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path}/log.db" if request.param == "sqlite" else fresh_url(request.param))
    SqlEventStore(opened).append(
        Event(0, str(n), "urn:test", "/n", "counted", None, "application/json", json.dumps({"number": n % 200}), None)
        for n in range(EVENTS)
    )
    yield opened
    opened.close()


DATABASES = ["sqlite", *(pytest.param(n, marks=getattr(pytest.mark, n)) for n in ("postgresql", "mariadb"))]


def settings_for(database: Database) -> dict[str, object]:
    return {
        "event-store.url": database.engine.url.render_as_string(hide_password=False),
        "event-handling.standard.processing.batch-size": 200,
        "event-handling.standard.retry.initial-interval": "1ms",
        "event-handling.standard.retry.max-attempts": 4,
        "event-handling.standard.retry.on-exhausted": "stop",
    }


@pytest.fixture
def merges(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the stages that are merged."""
    seen: list[str] = []
    merge = StagedMerge.merge

    def noted(self: StagedMerge) -> int:
        seen.append(self.stage.name)
        return merge(self)

    monkeypatch.setattr(StagedMerge, "merge", noted)
    return seen


def run_to_the_end(database: Database, project: ModuleType) -> None:
    application = Application(settings_for(database), [project], Path(str(project.__file__)).parent)
    try:
        result = application.run(until_caught_up=True)
    finally:
        application.stop()
    assert [status.error for status in result.partitions if status.error] == []


def assert_each_row_once(database: Database) -> None:
    with database.reading() as connection:
        counted = text("SELECT times, COUNT(*), MIN(part), MAX(part) FROM parts GROUP BY times ORDER BY times")
        found = [tuple(row) for row in connection.execute(counted)]
        tables = [name for name in inspect(connection).get_table_names() if name.startswith("opencqrs_staged")]
    assert found == [(1, 100 * EACH, 1, EACH), (2, 100 * EACH, 1, EACH)]
    assert tables == []


@pytest.mark.release(database="sqlite")
@pytest.mark.release(database="mariadb")
@pytest.mark.parametrize("database", DATABASES, indirect=True)
def test_rows_are_merged_once_even_if_a_worker_is_killed_and_the_handler_fails(
    database: Database, project: ModuleType, spark: object, merges: list[str]
) -> None:
    folder = Path(str(project.__file__)).parent
    for fault in ("kill-worker", "fail"):
        (folder / fault).touch()
    run_to_the_end(database, project)
    assert not [fault for fault in ("kill-worker", "fail") if (folder / fault).exists()]
    assert_each_row_once(database)
    assert len(set(merges)) == len(merges)
    if database.kind != "sqlite":
        assert len(merges) >= 3  # two ranges, the first of them twice


@pytest.mark.release
@pytest.mark.parametrize("database", [pytest.param("sqlite", marks=pytest.mark.release), DATABASES[1]], indirect=True)
def test_a_driver_killed_after_the_merge_repeats_nothing_and_its_leftovers_are_removed(
    database: Database, project: ModuleType, java: dict[str, str]
) -> None:
    folder = Path(str(project.__file__)).parent
    (folder / "kill-driver").touch()
    arguments = [f"--set={key}={value}" for key, value in settings_for(database).items()]
    command = [sys.executable, "-m", "opencqrs_py", "run", "--until-caught-up", *arguments]

    def run(**variables: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **variables}
        return subprocess.run(
            command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS
        )

    killed = run()  # in a separate JVM, as a shared one would keep the Spark of a killed program
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run(**java)
    assert done.returncode == 0, done.stderr
    assert_each_row_once(database)

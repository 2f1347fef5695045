"""Handlers that get data frames, on Spark and three databases: each event is handled once, and none is lost."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow.parquet as pq
import pytest
from sqlalchemy import text

from opencqrs_py import Application, Event, Observer, SqlEventStore
from opencqrs_py.adapters.sql import Database
from opencqrs_py.errors import ExplainedError
from opencqrs_py.model import Outcome, Partition
from opencqrs_py.processing.notices import Notice, line_of
from opencqrs_py.processing.recovery import Action

SOURCE = Path(__file__).with_name("everywhere") / "frames_everywhere.py"
EVENTS, ACCOUNTS, WRONG = 400, 7, 251
SECONDS = 300  # that a run may take at most


@pytest.fixture
def project(tmp_path: Path) -> Iterator[ModuleType]:
    shutil.copy(SOURCE, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        yield __import__("frames_everywhere")
    del sys.modules["frames_everywhere"]


@pytest.fixture
def database(request: pytest.FixtureRequest, fresh_url: Callable[[str], str], tmp_path: Path) -> Iterator[Database]:
    kind = getattr(request, "param", "sqlite")
    opened = Database(f"sqlite:///{tmp_path}/log.db" if kind == "sqlite" else fresh_url(kind))
    SqlEventStore(opened).append(map(event, range(1, EVENTS + 1)))
    yield opened
    opened.close()


def event(number: int) -> Event:
    data: dict[str, Any] = {"account": f"account {number % ACCOUNTS}", "amount": number}
    if number == WRONG:
        data["amount"] = "many"
    kind = "paid" if number % 10 else "other"
    subject, time = f"/accounts/{number % ACCOUNTS}", "2026-03-01T12:00:00Z"
    return Event(0, str(number), "urn:bank", subject, kind, time, "application/json", json.dumps(data), None)


def settings_for(database: Database) -> dict[str, object]:
    return {
        "event-store.url": database.engine.url.render_as_string(hide_password=False),
        "event-handling.standard.processing.batch-size": 150,
        "event-handling.standard.retry.initial-interval": "1ms",
    }


class Seen(Observer):
    """Counts handled events; records failures."""

    def __init__(self) -> None:
        self.handled = 0
        self.notices: list[Notice] = []

    def advanced(self, _group: str, _partition: Partition, outcome: Outcome) -> None:
        self.handled += outcome.handled

    def noticed(self, notice: Notice) -> None:
        self.notices.append(notice)


def hide_wrong(database: Database) -> None:
    with database.writing() as connection:
        connection.execute(text(f"UPDATE opencqrs_events SET type = 'other' WHERE position = {WRONG}"))


def assert_totals(database: Database, numbers: list[int]) -> None:
    totals: dict[str, tuple[int, int]] = {}
    for number in numbers:
        events, amount = totals.get(f"account {number % ACCOUNTS}", (0, 0))
        totals[f"account {number % ACCOUNTS}"] = (events + 1, amount + number)
    with database.reading() as connection:
        found = connection.execute(text("SELECT account, events, amount FROM totals")).all()
    assert {account: tuple(row) for account, *row in found} == totals


RIGHT = [number for number in range(1, EVENTS + 1) if number % 10 and number != WRONG]
DATABASES = ["sqlite", *(pytest.param(n, marks=getattr(pytest.mark, n)) for n in ("postgresql", "mariadb"))]


@pytest.mark.release(database=("postgresql", "mariadb"))  # whose upserts are tested with many rows
@pytest.mark.spark
@pytest.mark.parametrize("database", DATABASES, indirect=True)
def test_events_in_data_frames_are_handled_once_on_every_database(
    database: Database, project: ModuleType, spark: object
) -> None:
    hide_wrong(database)
    seen = Seen()
    application = Application(settings_for(database), [project], Path(str(project.__file__)).parent)
    try:
        result = application.run(observer=seen, until_caught_up=True)
    finally:
        application.stop()
    assert [status.error for status in result.partitions if status.error] == []
    assert [line_of(notice) for notice in seen.notices if notice.action not in (None, Action.RETRY)] == []
    assert (Path(str(project.__file__)).parent / "failed").exists()
    assert seen.handled == 2 * len(RIGHT)
    assert_totals(database, RIGHT)
    assert_files(Path(str(project.__file__)).parent / "lake", RIGHT)


def assert_files(lake: Path, expected: list[Any], column: str = "amount") -> None:
    found = [value for file in lake.rglob("*.parquet") for value in pq.read_table(file)[column].to_pylist()]
    assert sorted(found) == expected


@pytest.mark.release
@pytest.mark.spark
def test_an_event_that_a_worker_cannot_decode_stops_its_partition_after_those_before_it(
    database: Database, project: ModuleType, spark: object
) -> None:
    seen = Seen()
    application = Application(settings_for(database), [project], Path(str(project.__file__)).parent)
    try:
        result = application.run(["frames"], seen, until_caught_up=True)
    finally:
        application.stop()
    (status,) = result.partitions
    assert status.position == WRONG - 1
    (stop,) = [line_of(notice) for notice in seen.notices if notice.action is Action.STOP]
    assert f"event {WRONG} at position {WRONG}" in stop
    assert "OCQ-211" in stop
    assert_totals(database, [number for number in RIGHT if number < WRONG])


WITH_VIEWS = """
from pyspark.sql import DataFrame
from opencqrs_py import dataframe_handler

FOUND = {}

def note(group: str, events: DataFrame) -> None:
    session = events.sparkSession
    before = session.catalog.tableExists("events"), session.conf.get("spark.sql.shuffle.partitions")
    events.createOrReplaceTempView("events")
    session.conf.set("spark.sql.shuffle.partitions", "77")
    FOUND[group] = *before, session.sql("SELECT count(*) AS events FROM events").first().events

@dataframe_handler("few", types=["other"])
def few(events: DataFrame) -> None:
    note("few", events)

@dataframe_handler("most", types=["paid"])
def most(events: DataFrame) -> None:
    note("most", events)
"""


@pytest.mark.release  # as tests/spark shows of its session
@pytest.mark.spark
def test_views_and_settings_of_a_group_are_separate_from_other_groups(
    database: Database, project: ModuleType, spark: Any
) -> None:
    folder = Path(str(project.__file__)).parent
    (folder / "with_views.py").write_text(WITH_VIEWS)
    module = __import__("with_views")
    settings = settings_for(database) | {"event-handling.standard.processing.batch-size": EVENTS}
    application = Application(settings, [module], folder)
    try:
        application.run(["few", "most"], until_caught_up=True)
    finally:
        application.stop()
        del sys.modules["with_views"]
    parts = spark.conf.get("spark.sql.shuffle.partitions")
    assert {"few": (False, parts, EVENTS // 10), "most": (False, parts, EVENTS - EVENTS // 10)} == module.FOUND


CARELESS = """
import logging
from pyspark.sql import DataFrame
from frames_everywhere import Paid
from opencqrs_py import dataframe_handler

@dataframe_handler("catching", events=Paid)
def catch(payments: DataFrame) -> None:
    try:
        print(payments.count(), "payments")
    except Exception:
        logging.info("never mind")

@dataframe_handler("looking-away", events=Paid)
def look_away(payments: DataFrame) -> None: ...

@dataframe_handler("peeping", events=Paid)
def peep(payments: DataFrame) -> None:
    payments.first()
"""


@pytest.mark.spark
@pytest.mark.release(group=("looking-away", "peeping"))
@pytest.mark.parametrize("group", ["catching", "looking-away", "peeping"])
def test_a_handler_that_catches_a_decoding_error_or_reads_no_event_skips_none(
    database: Database, project: ModuleType, spark: object, group: str
) -> None:
    folder = Path(str(project.__file__)).parent
    (folder / "careless.py").write_text(CARELESS)
    module = __import__("careless")
    seen = Seen()
    application = Application(settings_for(database), [module], folder)
    try:
        result = application.run([group], seen, until_caught_up=True)
    finally:
        application.stop()
        del sys.modules["careless"]
    (status,) = result.partitions
    assert status.position == WRONG - 1
    (stop,) = [line_of(notice) for notice in seen.notices if notice.action is Action.STOP]
    assert f"event {WRONG} at position {WRONG}" in stop
    assert "OCQ-211" in stop


CRASHING = """
import logging, os, signal
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf
from sqlalchemy import Connection, text
from frames_everywhere import HERE, Paid
from opencqrs_py import bulk, dataframe_handler, on_start

def crash(batches):
    for batch in batches:
        if (HERE / "crash").exists():
            (HERE / "crash").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch

@on_start("catching")
def create_totals(connection: Connection) -> None:
    columns = "account VARCHAR(40) PRIMARY KEY, events BIGINT, amount BIGINT"
    connection.execute(text(f"CREATE TABLE IF NOT EXISTS totals ({columns})"))

@dataframe_handler("catching", events=Paid)
def catch(payments: DataFrame, connection: Connection) -> None:
    try:
        print(payments.count(), "payments")  # so each event was read, before the crash
        rows = payments.mapInArrow(crash, payments.schema).groupBy("account")
        rows = rows.agg(sf.count("*").alias("events"), sf.sum("amount").alias("amount"))
        bulk.upsert(connection, "totals", rows, keys="account", add=["events", "amount"])
    except Exception:
        logging.info("never mind")
"""


@pytest.mark.release  # as the unit tests of frames
@pytest.mark.spark
def test_a_handler_that_catches_the_loss_of_a_worker_skips_no_event(
    database: Database, project: ModuleType, spark: object
) -> None:
    hide_wrong(database)
    folder = Path(str(project.__file__)).parent
    (folder / "crashing.py").write_text(CRASHING)
    (folder / "crash").touch()
    module = __import__("crashing")
    application = Application(settings_for(database), [module], folder)
    try:
        application.run(["catching"], until_caught_up=True)
    finally:
        application.stop()
        del sys.modules["crashing"]
    assert not (folder / "crash").exists()
    assert_totals(database, RIGHT)


COMMAND = [sys.executable, "-m", "opencqrs_py", "run", "--until-caught-up"]


@pytest.mark.release
@pytest.mark.spark
@pytest.mark.parametrize(
    ("database", "group", "kill"),
    [
        pytest.param("sqlite", "frames", "kill", marks=pytest.mark.release),
        pytest.param("postgresql", "frames", "kill", marks=pytest.mark.postgresql),
        pytest.param("sqlite", "lake", "kill-lake", marks=pytest.mark.release),
    ],
    indirect=["database"],
)
def test_a_driver_killed_within_a_range_loses_and_repeats_nothing(
    database: Database, project: ModuleType, java: dict[str, str], group: str, kill: str
) -> None:
    hide_wrong(database)
    folder = Path(str(project.__file__)).parent
    (folder / kill).touch()
    arguments = [f"--set={key}={value}" for key, value in settings_for(database).items()]

    def run(**variables: str) -> subprocess.CompletedProcess[str]:
        command, environment = [*COMMAND, *arguments, f"--group={group}"], {**os.environ, **variables}
        return subprocess.run(
            command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS
        )

    killed = run()  # in a separate JVM, as a shared one would keep the Spark of a killed program
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run(**java)
    assert done.returncode == 0, done.stderr
    if group == "frames":
        assert_totals(database, RIGHT)
    else:
        assert_files(folder / "lake", RIGHT)


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "data-frames.md"
SHOWN = re.compile(r'^```python title="(?P<file>[^"]+)"\n(?P<text>.*?)^```$', re.MULTILINE | re.DOTALL)


@pytest.mark.release
@pytest.mark.spark
def test_the_handlers_of_the_how_to_handle_events(tmp_path: Path, java: dict[str, str]) -> None:
    for shown in SHOWN.finditer(PAGE.read_text("utf-8")):
        (tmp_path / shown["file"]).write_text(shown["text"], "utf-8")
    data = [("lent", {"isbn": "1", "reader": "Ada", "pages": 300}), ("lent", {"isbn": "2", "reader": "Ada"})]
    data += [("lost", {}), ("returned", {"isbn": "2"}), ("lent", {"isbn": "1", "reader": "Bob", "pages": 20})]
    with closing(Database(f"sqlite:///{tmp_path}/opencqrs.db")) as database:
        SqlEventStore(database).append(
            Event(0, str(n), "s", "/b", f"library.book-{kind}.v1", None, "application/json", json.dumps(fields), None)
            for n, (kind, fields) in enumerate(data)
        )
        environment = {**os.environ, **java}
        first = [*COMMAND, "--set", "event-handling.groups.lake.processing.batch-size=1"]
        run = subprocess.run(first, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        with database.reading() as connection:
            popular = connection.execute(text("SELECT * FROM popular ORDER BY isbn")).all()
            balance = connection.execute(text("SELECT * FROM balance ORDER BY isbn")).all()
    assert popular == [("1", 2, 320), ("2", 1, 0)]
    assert balance == [("1", 2), ("2", 0)]
    assert_files(tmp_path / "lake", ["1", "1", "2"], column="isbn")
    reset = [*COMMAND[: COMMAND.index("run")], "groups", "reset", "lake", "--to", "tail"]
    for command in (reset, COMMAND):  # whose only range has the events that several had before
        done = subprocess.run(command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert_files(tmp_path / "lake", ["1", "1", "2"], column="isbn")


@pytest.mark.parametrize(
    ("setting", "value", "fix"),
    [
        ("processing.engine", "thread", "processing.engine: spark"),
        ("life-cycle.partitions", 2, "life-cycle.partitions: 1"),
        ("processing.handler-timeout", "5s", "processing.handler-timeout: infinite"),
        ("retry.on-exhausted", "park", "retry.on-undecodable: skip or stop"),
    ],
)
def test_settings_that_do_not_fit_data_frames_are_refused_at_the_start(
    database: Database, project: ModuleType, setting: str, value: object, fix: str
) -> None:
    settings = {**settings_for(database), f"event-handling.groups[frames].{setting}": value}
    application = Application(settings, [project], Path(str(project.__file__)).parent)
    with pytest.raises(ExplainedError) as caught:
        application.start(["frames"])
    assert fix in str(caught.value)

"""Handlers that take columns, on both engines and three databases: each event is handled once, and none is lost."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import text

from opencqrs_py import Application, Event, Observer, SqlEventStore
from opencqrs_py.adapters.sql import Database
from opencqrs_py.model import Outcome, Partition
from opencqrs_py.processing.notices import Notice, line_of
from opencqrs_py.processing.recovery import Action

SOURCE = Path(__file__).with_name("everywhere") / "columns_everywhere.py"
EVENTS, ACCOUNTS, WRONG = 400, 7, 251


@pytest.fixture
def project(tmp_path: Path) -> Iterator[ModuleType]:
    shutil.copy(SOURCE, tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        yield __import__("columns_everywhere")
    del sys.modules["columns_everywhere"]


@pytest.fixture
def database(request: pytest.FixtureRequest, fresh_url: Callable[[str], str], tmp_path: Path) -> Iterator[Database]:
    kind = request.param
    opened = Database(f"sqlite:///{tmp_path}/log.db" if kind == "sqlite" else fresh_url(kind))
    SqlEventStore(opened).append(map(event, range(1, EVENTS + 1)))
    yield opened
    opened.close()


def account_of(number: int) -> str:
    return f"account {number % ACCOUNTS}"


def rate_of(number: int) -> str:
    return f"1234567890.{number:018}"


def event(number: int) -> Event:
    data: dict[str, Any] = {"account": account_of(number), "amount": number, "rate": rate_of(number)}
    if number == WRONG:
        data["amount"] = "many"
    kind = "paid" if number % 10 else "other"
    subject, time = f"/accounts/{number % ACCOUNTS}", "2026-03-01T12:00:00Z"
    return Event(0, str(number), "urn:bank", subject, kind, time, "application/json", json.dumps(data), None)


class Seen(Observer):
    """Counts handled events; ends the run at unexpected notices."""

    handled = 0

    def advanced(self, _group: str, _partition: Partition, outcome: Outcome) -> None:
        self.handled += outcome.handled

    def noticed(self, notice: Notice) -> None:
        assert notice.action in (None, Action.RETRY), line_of(notice)


DATABASES = ["sqlite", *(pytest.param(n, marks=getattr(pytest.mark, n)) for n in ("postgresql", "mariadb"))]


@pytest.mark.release(engine="thread", database="postgresql")  # as on Spark
@pytest.mark.release(engine="spark", database=("sqlite", "mariadb"))
@pytest.mark.parametrize("database", DATABASES, indirect=True)
@pytest.mark.parametrize("engine", ["thread", pytest.param("spark", marks=pytest.mark.spark)])
@pytest.mark.release(engine="thread", database="mariadb")  # columns are made of events
def test_columns_are_handled_once_on_every_engine_and_database(
    engine: str, database: Database, project: ModuleType
) -> None:
    settings = {
        "event-store.url": database.engine.url.render_as_string(hide_password=False),
        "event-handling.standard.processing.engine": engine,
        "event-handling.standard.processing.batch-size": 64,
        "event-handling.standard.life-cycle.partitions": 2,
        "event-handling.standard.retry.initial-interval": "1ms",
    }
    with database.writing() as connection:  # later events wait for another run
        connection.execute(text(f"UPDATE opencqrs_events SET type = 'other' WHERE position = {WRONG}"))
    seen = Seen()
    application = Application(settings, [project], Path(str(project.__file__)).parent)
    try:
        result = application.run(observer=seen, until_caught_up=True)
        assert [status.error for status in result.partitions if status.error] == []
    finally:
        application.stop()
    numbers = [number for number in range(1, EVENTS + 1) if number % 10 and number != WRONG]
    assert seen.handled == 2 * len(numbers)  # in both groups
    assert project.NOTE.exists()
    assert_read_model(database, numbers)


def assert_read_model(database: Database, numbers: list[int]) -> None:
    totals: dict[str, tuple[int, int, int]] = {}
    for number in numbers:
        events, amount, _ = totals.get(account_of(number), (0, 0, 0))
        totals[account_of(number)] = (events + 1, amount + number, number)
    with database.reading() as connection:
        found = connection.execute(text("SELECT account, events, amount, last_position FROM totals")).all()
        assert {account: tuple(row) for account, *row in found} == totals
        rates = connection.execute(text("SELECT position, rate FROM rates ORDER BY position")).all()
        assert [(position, Decimal(rate)) for position, rate in rates] == [(n, Decimal(rate_of(n))) for n in numbers]


def test_a_row_with_an_invalid_value_stops_its_partition_after_the_events_before_it(
    tmp_path: Path, project: ModuleType
) -> None:
    url = f"sqlite:///{tmp_path}/log.db"
    with closing(Database(url)) as database:
        SqlEventStore(database).append(map(event, range(1, EVENTS + 1)))
        settings = {"event-store.url": url, "event-handling.standard.processing.engine": "thread"}
        application = Application(settings, [project], tmp_path)
        try:
            result = application.run(until_caught_up=True)
        finally:
            application.stop()
        (stopped,) = (status for status in result.partitions if status.error)
        assert (stopped.group, stopped.position) == ("columns", WRONG - 2)  # the one between is of another type
        assert "amount: Input should be a valid integer" in stopped.error
        assert_read_model(database, [number for number in range(1, WRONG) if number % 10])

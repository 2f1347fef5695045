"""The example whose job ships orders whose event was lost, run as its README says; and its job, run twice."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError
from support.readmes import ROOT, RunningReadme

from opencqrs_py import JobContext, job
from opencqrs_py.testing import HandlerTest, JobTest, assert_idempotent

EXAMPLE = ROOT / "examples" / "lost_payments"
VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "(time)"),
    (re.compile(r"reconcile:[0-9a-f]{12}"), "(run)"),
    (re.compile(r"manual, .+"), "manual, (person)"),
    (re.compile(r"node: +.+"), "node: (node)"),
)


def unvaried(line: str) -> str:
    for pattern, name in VARYING:
        line = pattern.sub(name, line)
    return line.rstrip()


@pytest.fixture
def example(tmp_path: Path) -> RunningReadme:
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("*.db*", "__pycache__"))
    return RunningReadme(folder, unvaried)


@pytest.mark.release
def test_j22_the_job_ships_orders_whose_event_was_lost_as_the_readme_shows(example: RunningReadme) -> None:
    for line, shown in (command for console in example.consoles() for command in console):
        if line == "opencqrs run":
            example.run_until(line, shown[-1])
        else:
            assert example.run(line) == shown, line


# ---------------------------------------------------------------------------------------------------- its parts


@pytest.fixture
def handlers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lost_payments", EXAMPLE / "handlers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return ""
    fresh: Callable[[str], str] = request.getfixturevalue("fresh_url")
    return fresh(request.param)


def test_j22_the_job_ships_each_order_that_is_paid_once_and_no_other(handlers: ModuleType, url: str) -> None:
    test = JobTest(handlers, database=url, settings={"transaction": "item"})
    test.run()  # creates the tables; there is nothing to do yet
    with test.connection() as connection:
        connection.execute(handlers.orders.insert(), [{"order_id": f"o{n}"} for n in range(5)])
        connection.execute(handlers.statement.insert(), [{"order_id": f"o{n}"} for n in (1, 2, 3, 9)])
        connection.execute(handlers.shipments.insert(), {"order_id": "o1", "shipped_by": "event"})
    assert_idempotent(test)
    shipped = [("o1", "event"), ("o2", "job"), ("o3", "job")]
    test.expect_rows("SELECT order_id, shipped_by FROM shipments ORDER BY order_id", shipped)
    assert [run.position.items for run in test.runs] == [0, 2, 0]


def test_j10_an_item_handled_meanwhile_by_its_event_is_refused_by_the_key_and_then_left_out(
    handlers: ModuleType, url: str
) -> None:
    @job("reconcile", input=handlers.paid_but_not_shipped)
    def reconcile(context: JobContext, connection: Connection) -> None:
        handlers.reconcile(context, connection)
        if context.id == "o1":  # the payment of the other order comes after the page was read
            connection.execute(handlers.shipments.insert(), {"order_id": "o2", "shipped_by": "event"})

    test = JobTest(reconcile, handlers.create_tables, database=url, settings={"transaction": "item"})
    test.run()
    with test.connection() as connection:
        connection.execute(handlers.orders.insert(), [{"order_id": f"o{n}"} for n in (1, 2)])
        connection.execute(handlers.statement.insert(), [{"order_id": f"o{n}"} for n in (1, 2)])
    with pytest.raises(IntegrityError):
        test.run()
    test.advance(3_600).expect_statuses("succeeded", "succeeded")
    assert [run.attempt for run in test.runs] == [1, 2]
    shipped = [("o1", "job"), ("o2", "event")]
    test.expect_rows("SELECT order_id, shipped_by FROM shipments ORDER BY order_id", shipped)


def test_j10_an_event_that_comes_after_the_job_ships_nothing_again(handlers: ModuleType) -> None:
    test = HandlerTest(handlers)
    with test.connection() as connection:
        handlers.tables.create_all(connection)
        connection.execute(handlers.shipments.insert(), {"order_id": "o2", "shipped_by": "job"})
    paid = [handlers.PaymentReceived("o2"), handlers.PaymentReceived("o1")]
    test.given(handlers.OrderPlaced("o1"), handlers.OrderPlaced("o2"), *paid).handle().expect_no_failure()
    shipped = [("o1", "event"), ("o2", "job")]
    test.expect_rows("SELECT order_id, shipped_by FROM shipments ORDER BY order_id", shipped)

"""The example whose job ships what a lost event has not, as its README says to run it; and its job, run twice."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Timer
from types import ModuleType

import pytest

from opencqrs_py.testing import HandlerTest, JobTest, assert_idempotent

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "lost_payments"
VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "(time)"),
    (re.compile(r"reconcile:[0-9a-f]{12}"), "(run)"),
    (re.compile(r"manual, .+"), "manual, (person)"),
    (re.compile(r"node: +.+"), "node: (node)"),
)
SECONDS = 60


@pytest.fixture
def example(tmp_path: Path) -> Path:
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("*.db*", "__pycache__"))
    return folder


def start(example: Path, line: str) -> subprocess.Popen[str]:
    program, *arguments = line.split()
    command = [sys.executable, *(["-m", "opencqrs_py"] if program == "opencqrs" else []), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=example, env=environment, text=True, **pipes)


def run(example: Path, line: str) -> list[str]:
    process = start(example, line)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, out + err
    return [unvaried(one) for one in out.splitlines()]


def unvaried(line: str) -> str:
    for pattern, name in VARYING:
        line = pattern.sub(name, line)
    return line.rstrip()


def consoles() -> list[list[tuple[str, list[str]]]]:
    """Return, for each console of the README, its commands, each with what is printed."""
    readme = (EXAMPLE / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    parts = [[part.splitlines() for part in block.split("$ ")[1:]] for block in blocks]
    return [[(line, [unvaried(one) for one in shown]) for line, *shown in part] for part in parts]


def run_until(example: Path, line: str, last: str) -> None:
    """Run a command that does not end by itself until it has printed a line."""
    with start(example, line) as process:
        assert process.stderr is not None
        limit = Timer(SECONDS, process.kill)
        limit.start()
        try:
            if not any(unvaried(one) == last for one in process.stderr):  # which ends when the process does
                pytest.fail(f"it never printed: {last}")
        finally:
            limit.cancel()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=SECONDS)


def test_the_job_ships_what_a_lost_event_has_not_as_the_readme_shows(example: Path) -> None:
    for console in consoles():
        for line, shown in console:
            if line == "opencqrs run":
                run_until(example, line, shown[-1])
            else:
                assert run(example, line) == shown, line


# ---------------------------------------------------------------------------------------------------- its parts


@pytest.fixture
def handlers() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lost_payments", EXAMPLE / "handlers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        return ""
    fresh: Callable[[str], str] = request.getfixturevalue("fresh_url")
    return fresh(request.param)


def test_the_job_ships_each_order_that_is_paid_once_and_no_other(handlers: ModuleType, url: str) -> None:
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


def test_an_event_that_comes_after_the_job_ships_nothing_again(handlers: ModuleType) -> None:
    test = HandlerTest(handlers)
    with test.connection() as connection:
        handlers.tables.create_all(connection)
        connection.execute(handlers.shipments.insert(), {"order_id": "o2", "shipped_by": "job"})
    paid = [handlers.PaymentReceived("o2"), handlers.PaymentReceived("o1")]
    test.given(handlers.OrderPlaced("o1"), handlers.OrderPlaced("o2"), *paid).handle().expect_no_failure()
    shipped = [("o1", "event"), ("o2", "job")]
    test.expect_rows("SELECT order_id, shipped_by FROM shipments ORDER BY order_id", shipped)

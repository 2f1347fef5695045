"""The example whose orders wait for their customers, as its README says to run it."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from support.readmes import ROOT, RunningReadme

EXAMPLE = ROOT / "examples" / "orders_before_customers"
CAUGHT_UP_WITH_PARKED = 3
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)")


@pytest.fixture
def example(tmp_path: Path) -> RunningReadme:
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("*.db*", "__pycache__"))
    return RunningReadme(folder, lambda line: TIME.sub("(time)", line.rstrip()))


@pytest.mark.release  # a walk; test_inbox_commands.py shows waiting events
def test_an_order_waits_for_its_customer_as_the_readme_shows(example: RunningReadme) -> None:
    before, (imported, running), (reported,) = example.consoles()
    for line, shown in before:
        code = CAUGHT_UP_WITH_PARKED if "until-caught-up" in line else 0
        assert example.run(line, code) == shown
    assert example.run(imported[0]) == imported[1]
    example.run_until(running[0], running[1][-1])
    assert example.run(reported[0]) == reported[1]
    assert example.run("opencqrs inbox list") == []

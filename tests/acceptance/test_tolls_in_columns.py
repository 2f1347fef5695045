"""The example that takes events in columns, as its README says to run it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter, defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "tolls_in_columns"


@pytest.fixture
def example(tmp_path: Path) -> Path:
    folder = tmp_path / "example"
    unwanted = shutil.ignore_patterns("*.db*", "*.ndjson", "__pycache__")
    shutil.copytree(EXAMPLE, folder, ignore=unwanted)
    return folder


def run(example: Path, line: str) -> list[str]:
    program, *arguments = line.split()
    command = [sys.executable, *(["-m", "opencqrs_py"] if program == "opencqrs" else []), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=example, env=environment, check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [re.sub(r"\([\d,]+/s\)", "(…/s)", line.rstrip()) for line in done.stdout.splitlines()]


@pytest.mark.release  # a walk; integration/test_columns.py shows columns
def test_the_example_prints_what_the_readme_shows_and_its_sums_match_the_log(example: Path) -> None:
    (console,) = re.findall(
        r"^```console\n(.*?)^```$", (EXAMPLE / "README.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    for part in console.split("$ ")[1:]:
        line, *expected = part.splitlines()
        assert run(example, line) == [re.sub(r"\([\d,]+/s\)", "(…/s)", shown) for shown in expected]
    with closing(sqlite3.connect(example / "read_models.db")) as database:
        found = {(station, day): tuple(sums) for station, day, *sums in database.execute("SELECT * FROM revenue")}
        assert found == sums_of(example / "tolls.ndjson")
    assert [line.split()[-1] for line in run(example, "opencqrs run --until-caught-up")[1:]] == ["0", "0", "0"]


def sums_of(log: Path) -> dict[tuple[str, str], tuple[int, int]]:
    sums: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for line in log.read_text("utf-8").splitlines():
        event: dict[str, Any] = json.loads(line)
        if event["type"] == "tolls.paid.v1":
            data = event["data"]
            sums[data["station"], event["time"][:10]].update(vehicles=1, cents=data["cents"])
    return {key: (counted["vehicles"], counted["cents"]) for key, counted in sums.items()}

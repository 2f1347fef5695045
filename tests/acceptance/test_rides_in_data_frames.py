"""The example that takes events as data frames of Spark, as its README says to run it."""

from __future__ import annotations

import csv
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
EXAMPLE = ROOT / "examples" / "rides_in_data_frames"
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    folder = tmp_path / "example"
    unwanted = shutil.ignore_patterns("*.db*", "*.ndjson", "__pycache__")
    shutil.copytree(EXAMPLE, folder, ignore=unwanted)
    return folder


def run(example: Path, java: dict[str, str], line: str) -> list[str]:
    program, *arguments = line.split()
    command = [sys.executable, *(["-m", "opencqrs_py"] if program == "opencqrs" else []), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **java}
    done = subprocess.run(
        command, cwd=example, env=environment, check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return [re.sub(r"\([\d,]+/s\)", "(…/s)", line.rstrip()) for line in done.stdout.splitlines()]


@pytest.mark.release
@pytest.mark.spark
def test_the_example_prints_what_the_readme_shows_and_its_sums_match_the_log(
    example: Path, java: dict[str, str]
) -> None:
    (console,) = CONSOLE.findall((EXAMPLE / "README.md").read_text("utf-8"))
    for part in console.split("$ ")[1:]:
        line, *expected = part.splitlines()
        assert run(example, java, line) == [re.sub(r"\([\d,]+/s\)", "(…/s)", shown) for shown in expected]
    income, stock = sums_of(example)
    with closing(sqlite3.connect(example / "read_models.db")) as database:
        found = {(district, day): tuple(sums) for district, day, *sums in database.execute("SELECT * FROM income")}
        assert found == income
        assert {station: (came, went) for station, came, went in database.execute("SELECT * FROM stock")} == stock
    assert [line.split()[-1] for line in run(example, java, "opencqrs run --until-caught-up")[1:]] == ["0", "0"]


def sums_of(example: Path) -> tuple[dict[tuple[str, str], tuple[int, ...]], dict[str, tuple[int, int]]]:
    with (example / "stations.csv").open(encoding="utf-8", newline="") as lines:
        districts = {row["station"]: row["district"] for row in csv.DictReader(lines)}
    income: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    moved: dict[str, Counter[str]] = defaultdict(Counter)
    for line in (example / "rides.ndjson").read_text("utf-8").splitlines():
        event: dict[str, Any] = json.loads(line)
        data = event["data"]
        moved[data["station"]].update([event["type"]])
        if event["type"] == "bikes.ride-ended.v1":
            district = districts.get(data["station"], "elsewhere")
            income[district, event["time"][:10]].update(rides=1, minutes=data["minutes"], cents=data["cents"])
    sums = {key: (counted["rides"], counted["minutes"], counted["cents"]) for key, counted in income.items()}
    counts = {key: (each["bikes.ride-ended.v1"], each["bikes.ride-begun.v1"]) for key, each in moved.items()}
    return sums, counts

"""The example that explores an event log, run as a user runs it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "event_log_notebook"

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.release]


@pytest.fixture
def example(tmp_path: Path) -> Path:
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns(".data", "__pycache__"))
    return folder


def explore(example: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONUNBUFFERED", None)  # as a person has it
    command = [sys.executable, "explore.py", *arguments]
    done = subprocess.run(
        command, cwd=example, env=environment, check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def promised() -> str:
    """Return the output that the README shows."""
    block = re.compile(r"^```\n\$ python explore\.py --text\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return block.findall((EXAMPLE / "README.md").read_text("utf-8"))[0]


def without_speed(text: str) -> list[str]:
    return re.sub(r" \([\d,]+/s\)", "", text).splitlines()


def test_the_example_prints_what_the_readme_shows(example: Path) -> None:
    assert without_speed(explore(example, "--text")) == without_speed(promised())


def test_the_notebook_draws_a_bar_for_each_day(example: Path) -> None:
    assert "drawn: .data/orders.png" in explore(example)
    picture = imread(example / ".data" / "orders.png")
    tops = [height_of_bar(column) for column in picture.swapaxes(0, 1)]
    bars = [max(run) for is_bar, run in groupby(tops, bool) if is_bar]
    assert len(bars) == len(amounts())
    most = max(amounts())
    assert [height / max(bars) for height in bars] == pytest.approx([each / most for each in amounts()], abs=0.02)


def height_of_bar(column: Any) -> int:
    """Return how many points of a column of the picture have the colour of the bars."""
    return int((abs(column[:, :3] - to_rgb("C0")) < 0.01).all(axis=1).sum())


def amounts() -> list[float]:
    """Return the amounts that the README shows."""
    return [
        float(found.replace(",", ""))
        for found in re.findall(r"^\w{3} \d\d \w{3} +([\d,.]+) ", promised(), re.MULTILINE)
    ]

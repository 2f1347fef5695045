"""The example for somebody who only wants to look at an event log, as it is run by hand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "event_log_notebook"

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.fixture
def example(tmp_path: Path) -> Path:
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns(".data", "__pycache__"))
    return folder


def explore(example: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
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


def test_it_prints_what_the_readme_shows(example: Path) -> None:
    assert without_speed(explore(example, "--text")) == without_speed(promised())


@pytest.mark.skipif(find_spec("matplotlib") is None, reason="matplotlib is not installed")
def test_it_draws_a_picture_when_it_can(example: Path) -> None:
    assert "drawn: .data/orders.png" in explore(example)
    assert (example / ".data" / "orders.png").read_bytes().startswith(b"\x89PNG")

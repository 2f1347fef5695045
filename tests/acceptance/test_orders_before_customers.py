"""The example whose orders wait for their customers, as its README says to run it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from threading import Timer

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "orders_before_customers"
CAUGHT_UP_WITH_PARKED = 3
TIME = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(Z|\+00:00)")
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


def run(example: Path, line: str, code: int = 0) -> list[str]:
    process = start(example, line)
    out, err = process.communicate(timeout=SECONDS)
    assert process.returncode == code, out + err
    return timeless(out)


def timeless(text: str) -> list[str]:
    return [TIME.sub("(time)", line.rstrip()) for line in text.splitlines()]


def consoles() -> list[list[tuple[str, list[str]]]]:
    """Return, for each console of the README, its commands, each with what is printed."""
    readme = (EXAMPLE / "README.md").read_text("utf-8")
    blocks = re.findall(r"^```console\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    parts = [[part.splitlines() for part in block.split("$ ")[1:]] for block in blocks]
    return [[(line, [TIME.sub("(time)", one) for one in shown]) for line, *shown in part] for part in parts]


def test_an_order_waits_for_its_customer_as_the_readme_shows(example: Path) -> None:
    before, (imported, running), (reported,) = consoles()
    for line, shown in before:
        code = CAUGHT_UP_WITH_PARKED if "until-caught-up" in line else 0
        assert run(example, line, code) == shown
    assert run(example, imported[0]) == imported[1]
    last = running[1][-1]
    with start(example, running[0]) as process:
        assert process.stderr is not None
        limit = Timer(SECONDS, process.kill)
        limit.start()
        try:
            for line in process.stderr:  # ends when the process does
                if timeless(line) == [last]:
                    break
            else:
                pytest.fail("the order has not left the inbox")
        finally:
            limit.cancel()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=SECONDS)
    assert run(example, reported[0]) == reported[1]
    assert run(example, "opencqrs inbox list") == []

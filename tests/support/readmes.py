"""Examples, run as their READMEs say."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Timer

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 300


@dataclass(frozen=True)
class RunningReadme:
    """The commands of a README, run in a copy of its folder.

    Attributes:
        folder: The copy.
        unvaried: Returns a line without the parts that differ from run to run.
    """

    folder: Path
    unvaried: Callable[[str], str]

    def consoles(self) -> list[list[tuple[str, list[str]]]]:
        """Return, for each console of the README, its commands, each with its output."""
        readme = (self.folder / "README.md").read_text("utf-8")
        blocks = re.findall(r"^```console\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
        parts = [[part.splitlines() for part in block.split("$ ")[1:]] for block in blocks]
        return [[(line, list(map(self.unvaried, shown))) for line, *shown in part] for part in parts]

    def run(self, line: str, code: int = 0) -> list[str]:
        """Run a command until it ends; return its output."""
        process = self._start(line)
        out, err = process.communicate(timeout=SECONDS)
        assert process.returncode == code, out + err
        return [self.unvaried(one) for one in out.splitlines()]

    def run_until(self, line: str, last: str) -> None:
        """Run a command that does not end until it has printed a line on standard error."""
        with self._start(line) as process:
            assert process.stderr is not None
            limit = Timer(SECONDS, process.kill)
            limit.start()
            try:
                if not any(self.unvaried(one) == last for one in process.stderr):  # which ends when the process does
                    pytest.fail(f"it never printed: {last}")
            finally:
                limit.cancel()
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=SECONDS)

    def _start(self, line: str) -> subprocess.Popen[str]:
        program, *arguments = line.split()
        command = [sys.executable, *(["-m", "opencqrs_py"] if program == "opencqrs" else []), *arguments]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=self.folder, env=environment, text=True, **pipes)

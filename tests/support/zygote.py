"""Commands of the package, run without starting an interpreter for each of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROCESS = Path(__file__).with_name("zygote_process.py")


@dataclass
class Ran:
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Zygote:
    """Runs commands in forks of one process that has loaded everything: nothing is imported for each of them."""

    def __init__(self, process: subprocess.Popen[str], into: Path) -> None:
        self._process = process
        self._into = into

    def opencqrs(
        self,
        folder: Path,
        arguments: Sequence[str],
        environment: dict[str, str],
        prepare: str = "",
        stdin: str | None = None,
    ) -> Ran:
        request = {"arguments": arguments, "folder": str(folder), "environment": environment, "prepare": prepare}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        places = {"into": str(self._into), "input": self._file_with(stdin)}
        self._process.stdin.write(json.dumps({**request, **places}) + "\n")
        self._process.stdin.flush()
        code = int(self._process.stdout.readline())
        return Ran(code, *((self._into / name).read_text(encoding="utf-8") for name in ("out", "err")))

    def _file_with(self, stdin: str | None) -> str:
        if stdin is None:
            return os.devnull
        file = self._into / "in"
        file.write_text(stdin, encoding="utf-8")
        return str(file)


@contextmanager
def running_zygote(into: Path) -> Iterator[Zygote]:
    """Run a zygote; the output of its commands goes to a folder."""
    command = [sys.executable, "-P", str(PROCESS)]
    environment = {name: value for name, value in os.environ.items() if "OPENCQRS" not in name}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True) as process:
        yield Zygote(process, into)
        assert process.stdin is not None
        process.stdin.close()

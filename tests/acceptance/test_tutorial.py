"""The tutorials, executed: their files are written, their commands are typed, their output is compared.

A block ```` ```python title="handlers.py" ```` is a file. In a block ```` ```console ```` a line that begins with ``$``
is a command, and what follows is its output: there ``…`` stands for any text, as a line of its own for any lines.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.output import without_times

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))
BLOCK = re.compile(r"^```(?P<language>\w+)(?P<options>[^\n]*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)
TITLE = re.compile(r'title="(?P<title>[^"]+)"')
EXIT_CODE = re.compile(r"exit=(?P<code>\d+)")
TIMEOUT = 600
"""Seconds that one command may take."""


@dataclass(frozen=True)
class Block:
    """One block of a tutorial.

    Attributes:
        line: Its line in the tutorial, from 1.
        language: What it is.
        title: The file that it is, if any.
        exit_code: What its last command ends with.
        text: What stands in it.
    """

    line: int
    language: str
    title: str | None
    exit_code: int
    text: str


@dataclass(frozen=True)
class Command:
    """One command of a console block, and the output that is promised."""

    line: str
    output: str
    exit_code: int


def blocks_of(tutorial: Path) -> Iterator[Block]:
    text = tutorial.read_text("utf-8")
    for found in BLOCK.finditer(text):
        title, code = TITLE.search(found["options"]), EXIT_CODE.search(found["options"])
        line = text.count("\n", 0, found.start()) + 1
        yield Block(line, found["language"], title and title["title"], int(code["code"]) if code else 0, found["text"])


def commands_in(block: Block) -> Iterator[Command]:
    first, *parts = re.split(r"^\$ ", block.text, flags=re.MULTILINE)
    assert not first, f"line {block.line}: a console block begins with a command"
    for number, part in enumerate(parts, 1):
        line, _, output = part.partition("\n")
        yield Command(line, output, block.exit_code if number == len(parts) else 0)


def pattern_of(output: str) -> str:
    """Return a regular expression for a promised output."""
    lines = output.rstrip("\n").split("\n")
    anything = [r"(?:[^\n]*\n)*?" if line.strip() == "…" else _line_pattern(line) for line in lines]
    return "".join(anything) if output.strip() else ""


def _line_pattern(line: str) -> str:
    return ".*?".join(re.escape(part) for part in line.rstrip().split("…")) + r"[ ]*\n"


class Desk:
    """A reader who follows a tutorial in an empty folder.

    Args:
        folder: Where they begin.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        tools = folder.parent / "tools"
        tools.mkdir()
        for name, command in {"python": [], "opencqrs": ["-m", "opencqrs_py"]}.items():
            tool = tools / name
            tool.write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, *command])} "$@"\n')
            tool.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if "OPENCQRS" not in name}
        paths = {"PATH": f"{tools}{os.pathsep}{kept['PATH']}", "PYTHONPATH": str(ROOT)}
        self.environment = {**kept, **paths, "COLUMNS": "80"}

    def write(self, block: Block) -> None:
        assert block.title is not None
        file = self.folder / block.title
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(block.text, "utf-8")

    def type(self, command: Command) -> tuple[int, str]:
        """Return exit code and output; ``cd`` changes the folder for all that follows."""
        words = shlex.split(command.line)
        if words[0] == "cd":
            self.folder = self.folder / words[1]
            return 0, ""
        done = subprocess.run(
            ["/bin/sh", "-c", command.line],
            cwd=self.folder,
            env=self.environment,
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
        )
        return done.returncode, without_times(done.stdout)


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.release  # half a minute; its commands are those of other tests, and unit/test_docs.py runs the how-tos
@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda tutorial: tutorial.stem)
def test_each_tutorial_works_when_followed_to_the_letter(tutorial: Path, tmp_path: Path, java: dict[str, str]) -> None:
    """The first run starts its own JVM, as every user's does; the others use a running one."""
    folder = tmp_path / "home"
    folder.mkdir()
    desk = Desk(folder)
    for block in blocks_of(tutorial):
        if block.title:
            desk.write(block)
        elif block.language == "console":
            for command in commands_in(block):
                code, output = desk.type(command)
                if command.line.startswith("opencqrs run"):
                    desk.environment.update(java)
                where = f"{tutorial.name}:{block.line}: $ {command.line}\n{output}"
                assert code == command.exit_code, where
                assert re.fullmatch(pattern_of(command.output), output), f"{where}\ninstead of\n{command.output}"


@pytest.mark.parametrize(
    ("promised", "printed", "fits"),
    [
        ("a\n", "a\n", True),
        ("a\n", "a   \n", True),
        ("a\n", "b\n", False),
        ("a\n", "a\nb\n", False),
        ("…\nb\n", "x\ny\nb\n", True),
        ("…\n", "", True),
        ("took … s\n", "took 1.2 s\n", True),
        ("took … s\n", "took 1.2 s\nb\n", False),
        ("", "", True),
        ("", "a\n", False),
    ],
)
def test_promised_output_is_compared_line_by_line(promised: str, printed: str, *, fits: bool) -> None:
    assert bool(re.fullmatch(pattern_of(promised), printed)) is fits


def test_at_least_one_tutorial_is_found() -> None:
    assert TUTORIALS

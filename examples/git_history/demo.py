"""Run the whole example: load the history of a git repository, run the three groups on it, show the result.

    python demo.py ~/src/flask

Each step is printed as the command that you could type yourself. The results stay in .data/<repository>, so a
second run adds only new commits.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from load import data_folder
from loader.repository import Repository, RepositoryError
from rich.console import Console
from rich.text import Text

HERE = Path(__file__).resolve().parent
PROGRAMS = {"python": [sys.executable], "opencqrs": [sys.executable, "-m", "opencqrs_py"]}
"""The program for the first word of a command: always the Python that runs this one, whatever is on the PATH."""

INTERRUPTED = 130

Pipe = Sequence[Sequence[str]]
"""Commands, each of which reads the output of the one before it."""


def steps(repository: Path, data: Path) -> list[Pipe]:
    """Return the steps of the example.

    Args:
        repository: The repository to load.
        data: Folder of its databases, relative to the example's folder.
    """
    return [
        [["python", "load.py", str(repository)], ["opencqrs", "events", "import", "-"]],
        [["opencqrs", "run", "--until-caught-up"]],
        [["python", "report.py", "--database", str(data / "read_models.db")]],
    ]


def settings(data: Path) -> dict[str, str]:
    """Return the variables that override the two databases of application.yaml."""
    return {
        "OPENCQRS__EVENT_STORE__URL": f"sqlite:///{(data / 'events.db').as_posix()}",
        "OPENCQRS__DATABASE__URL": f"sqlite:///{(data / 'read_models.db').as_posix()}",
    }


def run(pipe: Pipe, environment: Mapping[str, str]) -> int:
    """Run the commands of a pipe in the example's folder.

    Returns:
        The exit code of the last command that failed, since its failure makes those before it fail, too; else 0. After
        signal n the code is 128 + n.
    """
    started: list[subprocess.Popen[bytes]] = []
    with _signals_left_to(started):
        for word, *arguments in pipe:
            before = started[-1].stdout if started else None
            after = None if len(started) == len(pipe) - 1 else subprocess.PIPE
            command = [*PROGRAMS[word], *arguments]
            program = subprocess.Popen(command, cwd=HERE, env=environment, stdin=before, stdout=after)
            started.append(program)
            if before is not None:
                before.close()
        codes = [program.wait() for program in reversed(started)]
    return next((128 - code if code < 0 else code for code in codes if code != 0), 0)


def run_steps(repository: Path, data: Path, console: Console) -> int:
    """Print and run each step until one fails, and return its exit code, else 0."""
    variables = settings(data)
    _show(console, shlex.join(["cd", str(HERE)]))
    for name, value in variables.items():
        _show(console, f"export {name}={shlex.quote(value)}")
    for pipe in steps(repository, data):
        line = " | ".join(map(shlex.join, pipe))
        console.print()
        _show(console, line)
        began = time.monotonic()
        code = run(pipe, {**os.environ, **variables})
        if code != 0:
            what = "interrupted in" if code == INTERRUPTED else f"stopped with exit code {code} by"
            sys.stderr.write(f"demo.py: {what}: {line}\n")
            return code
        console.print(f"done in {time.monotonic() - began:.1f} s", style="dim")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run the demo and return the exit code of the step that failed, else 0."""
    parser = argparse.ArgumentParser(prog="demo.py", description=(__doc__ or "").split("\n", maxsplit=1)[0])
    which = "any folder of the repository (default: the clone that contains this program)"
    parser.add_argument("repository", nargs="?", default=HERE, type=Path, help=which)
    path: Path = parser.parse_args(arguments).repository.absolute()
    try:
        folder = data_folder(Repository(path))
    except RepositoryError as error:
        sys.stderr.write(f"demo.py: error: {error}\n")
        return 2
    folder.mkdir(parents=True, exist_ok=True)
    return run_steps(path, folder.relative_to(HERE), Console(highlight=False))


@contextmanager
def _signals_left_to(programs: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Leave signals to the programs: Ctrl-C reaches them from the terminal, and SIGTERM is forwarded."""

    def pass_on(_signal: int, _frame: FrameType | None) -> None:
        for program in programs:
            program.terminate()

    interrupt = signal.signal(signal.SIGINT, lambda _signal, _frame: None)
    terminate = signal.signal(signal.SIGTERM, pass_on)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, interrupt)
        signal.signal(signal.SIGTERM, terminate)


def _show(console: Console, command: str) -> None:
    console.print(Text(f"$ {command}", style="bold"), soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())

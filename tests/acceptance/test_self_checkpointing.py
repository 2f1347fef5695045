"""The examples of handlers that say what is durable, as their READMEs run them, and after processes are killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.sqlite import rows_of

ROOT = Path(__file__).parents[2]
EXAMPLES = ["leaderboard_in_memory", "parquet_archive", "search_index"]
AGO = re.compile(r"\d+:\d\d:\d\d ago")
RATE = re.compile(r" \([\d,]+/s\)")
SECONDS = 120


def example(name: str, folder: Path) -> Path:
    copy = folder / name
    shutil.copytree(ROOT / "examples" / name, copy, ignore=shutil.ignore_patterns("*.db*", "__pycache__"))
    return copy


def command(line: str) -> list[str]:
    program, *arguments = line.split()
    return [sys.executable, *(["-m", "opencqrs_py"] if program == "opencqrs" else []), *arguments]


def run(folder: Path, line: str, **variables: str) -> list[str]:
    environment = {**os.environ, **variables, "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command(line), cwd=folder, env=environment, text=True, **pipes) as process:
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 0, out + err
    return lines_of(out)


def lines_of(text: str) -> list[str]:
    return [AGO.sub("(time)", RATE.sub("", line)).rstrip() for line in text.splitlines()]


def console(name: str) -> list[tuple[str, list[str]]]:
    readme = (ROOT / "examples" / name / "README.md").read_text("utf-8")
    (block,) = re.findall(r"^```console\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL)
    parts = [part.splitlines() for part in block.split("$ ")[1:]]
    return [(line, lines_of("\n".join(shown))) for line, *shown in parts]


@pytest.mark.release(name=("leaderboard_in_memory", "search_index"))
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_does_what_its_readme_shows(name: str, tmp_path: Path) -> None:
    folder = example(name, tmp_path)
    for line, shown in console(name):
        assert run(folder, line) == shown
    before = {file: file.read_bytes() for file in folder.rglob("*.parquet")}
    run(folder, "opencqrs run --until-caught-up")  # nothing more
    assert run(folder, console(name)[-1][0]) == console(name)[-1][1]
    assert {file: file.read_bytes() for file in folder.rglob("*.parquet")} == before


@pytest.mark.release(name=("leaderboard_in_memory", "search_index"))
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_that_is_killed_in_between_comes_to_the_same(name: str, tmp_path: Path) -> None:
    folder = example(name, tmp_path)
    made, imported, running, (report, shown) = console(name)
    run(folder, made[0])
    run(folder, imported[0])
    handlers = folder / "handlers.py"
    slow = handlers.read_text("utf-8").replace("    def on_checkpoint(", "    def on_checkpoint_(", 1)
    slow += "\n\nimport os, signal, threading\n_done = []\n\n\n"  # the process ends after the second checkpoint
    (cls,) = re.findall(r"^@checkpointing.*\nclass (\w+)", slow, re.MULTILINE)
    slow += (
        f"def _on_checkpoint(self, partition, requested):\n"
        f"    answer = {cls}.on_checkpoint_(self, partition, requested)\n"
        f"    _done.append(answer)\n"
        f"    if len(_done) == 2:\n"
        f"        os.kill(os.getpid(), signal.SIGKILL)\n"
        f"    return answer\n\n\n"
        f"{cls}.on_checkpoint = _on_checkpoint\n"
    )
    whole = handlers.read_text("utf-8")
    handlers.write_text(slow, "utf-8")
    killed = subprocess.run(
        command(running[0]),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        timeout=SECONDS,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    positions = dict(rows_of(folder / "events.db", "SELECT residue, position FROM opencqrs_progress"))
    handlers.write_text(whole, "utf-8")
    assert min(positions.values()) < 5_000 * 5
    run(folder, running[0])
    assert run(folder, report) == shown


@pytest.mark.release
@pytest.mark.spark
def test_the_archive_comes_to_the_same_on_spark_when_a_worker_is_killed(tmp_path: Path) -> None:
    folder = example("parquet_archive", tmp_path)
    made, imported, running, (report, shown) = console("parquet_archive")
    run(folder, made[0])
    run(folder, imported[0])
    handlers = folder / "handlers.py"
    text = handlers.read_text("utf-8")
    text = text.replace(
        '        """Keep a chunk of events, as columns."""\n',
        '        """Keep a chunk of events, as columns."""\n'
        '        if context.position > 15_000 and not Path("killed").exists():\n'
        '            Path("killed").touch()\n'
        "            import os, signal\n\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n",
    )
    handlers.write_text(text, "utf-8")
    where = "--set spark.master=local[2] --set event-handling.groups.archive.processing.engine=spark"
    (_, row) = run(folder, f"{running[0]} {where}")
    assert (folder / "killed").exists()
    assert "25000" in row
    (first, second) = run(folder, report)
    assert first.startswith("25,000 trips in ")
    assert first.endswith(" files, 25,000 of them different")
    assert second == shown[1]

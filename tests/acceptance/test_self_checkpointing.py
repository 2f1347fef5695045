"""The examples of self-checkpointing handlers, as their READMEs run them, and after processes are killed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pytest
from support.sqlite import rows_of

from opencqrs_py.model import Partition

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


@pytest.mark.release(name=("leaderboard_in_memory", "parquet_archive"))  # the fastest one stays
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_does_what_its_readme_shows(name: str, tmp_path: Path) -> None:
    folder = example(name, tmp_path)
    for line, shown in console(name):
        assert run(folder, line) == shown
    before = {file: file.read_bytes() for file in folder.rglob("*.parquet")}
    run(folder, "opencqrs run --until-caught-up")  # nothing more
    assert run(folder, console(name)[-1][0]) == console(name)[-1][1]
    assert {file: file.read_bytes() for file in folder.rglob("*.parquet")} == before


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.release  # contract/test_checkpoint_cases.py has a crash
def test_an_example_killed_in_between_has_the_same_result(name: str, tmp_path: Path) -> None:
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


RESETS = [  # how events are handled otherwise, and how the report shows that
    ("leaderboard_in_memory", "+ event.points", "+ 2 * event.points", "1. Ada       7,404"),
    ("search_index", "= event.text", "= ''", "0 pages with"),
]


@pytest.mark.release(name="search_index")
@pytest.mark.parametrize(("name", "before", "after", "shown"), RESETS)
@pytest.mark.release  # a walk; contract/test_checkpoint_cases.py has resets
def test_the_data_of_an_example_are_rebuilt_after_a_reset(
    name: str, before: str, after: str, shown: str, tmp_path: Path
) -> None:
    folder = example(name, tmp_path)
    made, imported, running, (report, _) = console(name)
    for line in (made[0], imported[0], running[0]):
        run(folder, line)
    handlers = folder / "handlers.py"
    text = handlers.read_text("utf-8")
    assert before in text
    handlers.write_text(text.replace(before, after), "utf-8")
    (group,) = re.findall(r'^@checkpointing\("(\w+)"\)', text, re.MULTILINE)
    run(folder, f"opencqrs groups reset {group} --to tail")
    run(folder, running[0])
    assert run(folder, report)[0].startswith(shown)


@pytest.mark.release
def test_the_archive_has_each_trip_once_after_resets(tmp_path: Path) -> None:
    folder = example("parquet_archive", tmp_path)
    made, imported, running, (report, shown) = console("parquet_archive")
    for line in (made[0], imported[0], running[0]):
        run(folder, line)
    with pytest.raises(AssertionError, match=r"has events before and after 700: reset to 0, or --to tail"):
        run(folder, "opencqrs groups reset archive --to-position 700")  # its file would be removed as a whole
    run(folder, "opencqrs groups partitions archive 2")
    run(folder, "opencqrs groups reset archive --to tail")
    run(folder, running[0])
    (first, second) = run(folder, report)
    assert first.startswith("25,000 trips in ")
    assert first.endswith(" files, 25,000 of them different")
    assert second == shown[1]


@pytest.mark.release
@pytest.mark.parametrize(
    ("name", "said"), [("leaderboard_in_memory", " ends at 10, "), ("search_index", " is at 10, ")]
)
def test_an_example_refuses_data_older_than_the_progress(name: str, said: str, tmp_path: Path) -> None:
    folder = example(name, tmp_path)
    for line, _ in console(name)[:3]:
        run(folder, line)
    if name == "search_index":
        with closing(sqlite3.connect(folder / "index.db")) as index, index:
            index.execute("UPDATE positions SET position = 10")
    else:
        for file in (folder / "snapshots").iterdir():
            file.write_text('{"position": 10, "points": {}}')
    with subprocess.Popen(
        command("opencqrs run"),
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        assert any("on_partition_claimed has failed" in line and said in line for line in process.stderr)
        process.kill()


@pytest.mark.release
@pytest.mark.spark
def test_the_archive_is_the_same_on_spark_if_a_worker_is_killed(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("name", ["leaderboard_in_memory", "parquet_archive"])
def test_a_file_that_an_example_confirms_is_synced_before_it_is_renamed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType(f"handlers_of_{name}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile((ROOT / "examples" / name / "handlers.py").read_text("utf-8"), name, "exec"), vars(module))
    monkeypatch.chdir(tmp_path)
    synced: list[tuple[int, list[str]]] = []
    sync = os.fsync

    def fsync(opened: int) -> None:
        synced.append((os.fstat(opened).st_ino, [file.name for file in module.FOLDER.iterdir()]))
        sync(opened)

    monkeypatch.setattr(os, "fsync", fsync)
    one = Partition(1, 0)
    if name == "parquet_archive":
        archive = module.Archive()
        archive.on_partition_claimed(one, 0, None)
        archive.buffers[one].tables.append(pa.table({"position": [1, 2]}))
        archive.on_checkpoint(one, 2)
    else:
        module.Leaderboard().on_partition_claimed(one, 0, None)
    (file,) = module.FOLDER.iterdir()
    (content, names), (folder, then) = synced
    assert (content, folder) == (file.stat().st_ino, module.FOLDER.stat().st_ino)
    assert file.name not in names
    assert then == [file.name]

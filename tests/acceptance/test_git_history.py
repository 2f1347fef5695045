"""The main example, from a repository to the report, on each engine; its read models against a plain computation."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from pathlib import Path
from posixpath import dirname
from typing import Any
from urllib.parse import unquote_to_bytes

import pytest
from support.engines import ENGINES

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "git_history"
MAKE_REPOSITORY = ROOT / "benchmarks" / "make_repository.py"
COMMITS = 40
ODD_NAMES = (b"a\tb\nc.txt", b"caf\xe9.txt", b"\x1b[31mred.txt", b"-dash", b"100%")

pytestmark = pytest.mark.slow


@dataclass
class Expected:
    """The read models, computed commit by commit with a git command for each."""

    churn: dict[bytes, list[int]] = field(default_factory=lambda: defaultdict(lambda: [0, 0, 0]))
    authors: dict[bytes, set[str]] = field(default_factory=lambda: defaultdict(set))
    last_change: dict[bytes, datetime] = field(default_factory=dict)
    deleted: dict[bytes, bool] = field(default_factory=dict)
    previous: dict[bytes, bytes] = field(default_factory=dict)
    activity: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    hotspots: dict[tuple[bytes, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))


def git(repository: Path, *arguments: str) -> bytes:
    command = ["git", "-C", str(repository), *arguments]
    return subprocess.run(command, check=True, capture_output=True).stdout


def expected_of(repository: Path) -> Expected:
    expected = Expected()
    for sha in git(repository, "rev-list", "--reverse", "--date-order", "HEAD").decode().split():
        author, time = origin_of(repository, sha)
        moment = datetime.fromisoformat(time)
        week = "{}-W{:02}".format(*moment.isocalendar())
        expected.activity[week]["commits"] += 1
        for status, paths, added, deleted in changes_of(repository, sha):
            path = paths[-1]
            expected.activity[week].update(files=1, lines=added + deleted)
            expected.hotspots[dirname(path) or b".", f"{moment:%Y-%m}"].update(changes=1, lines=added + deleted)
            expected.churn[path] = [a + b for a, b in zip(expected.churn[path], (1, added, deleted), strict=True)]
            expected.authors[path].add(author)
            expected.last_change[path] = moment
            expected.deleted[path] = status == b"D"
            if status == b"R":
                expected.previous[path] = paths[0]
    return expected


@cache
def origin_of(repository: Path, sha: str) -> tuple[str, str]:
    """Return author and time of a commit."""
    shown = git(repository, "show", "--no-patch", "--format=%ae%x00%aI", sha)
    author, time = shown.decode().strip().split("\0")
    return author, time


@cache
def changes_of(repository: Path, sha: str) -> list[tuple[bytes, Sequence[bytes], int, int]]:
    """Return status, paths and lines of each file of a commit that is not a merge."""
    return list(read_changes(repository, sha))


def read_changes(repository: Path, sha: str) -> Iterator[tuple[bytes, Sequence[bytes], int, int]]:
    show = ("diff-tree", "--root", "--no-commit-id", "-r", "-z", "-M", sha)
    names = iter(git(repository, *show, "--name-status").split(b"\0")[:-1])
    counts = iter(git(repository, *show, "--numstat").split(b"\0")[:-1])
    for status in names:
        paths = [next(names) for _ in range(2 if status.startswith(b"R") else 1)]
        added, deleted, path = next(counts).split(b"\t", 2)
        assert ([path] if path else [next(counts), next(counts)]) == paths
        yield status[:1], paths, lines(added), lines(deleted)


def lines(count: bytes) -> int:
    return 0 if count == b"-" else int(count)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """A copy of the folder of the example."""
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns(".data", "*.db*", "__pycache__"))
    return folder


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    bare, folder = tmp_path / "made.git", tmp_path / "some repository"
    subprocess.run([sys.executable, str(MAKE_REPOSITORY), str(COMMITS), "3", str(bare)], check=True)
    git(tmp_path, "clone", "--quiet", str(bare), str(folder))
    return folder


def add_odd_names(repository: Path) -> None:
    for name in ODD_NAMES:
        (repository / os.fsdecode(name)).write_bytes(name + b"\nline" * 900)
    git(repository, "add", "--all")
    who = ["-c", "user.name=Odd", "-c", "user.email=odd@example.org"]
    git(repository, *who, "commit", "--quiet", "--message", "odd names", "--date", "2025-01-02T03:04:05+01:00")


def demo(example: Path, repository: Path, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80", **variables}
    command = [sys.executable, str(example / "demo.py"), str(repository)]
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(example: Path, query: str) -> list[tuple[Any, ...]]:
    (file,) = example.glob(".data/*/read_models.db")
    with closing(sqlite3.connect(file)) as database:
        return database.execute(query).fetchall()


def assert_read_models(example: Path, expected: Expected) -> None:
    columns = "path, commits, lines_added, lines_deleted, authors, last_change, deleted"
    churn = {unquote_to_bytes(path): other for path, *other in rows(example, f"SELECT {columns} FROM churn")}
    assert {path: row[:3] for path, row in churn.items()} == expected.churn
    assert {path: row[3] for path, row in churn.items()} == {p: len(a) for p, a in expected.authors.items()}
    assert {path: datetime.fromisoformat(row[4]) for path, row in churn.items()} == expected.last_change
    assert {path: bool(row[5]) for path, row in churn.items()} == expected.deleted
    renames = rows(example, "SELECT path, previous_path FROM churn_renames")
    assert {unquote_to_bytes(new): unquote_to_bytes(old) for new, old in renames} == expected.previous
    activity = rows(example, "SELECT week, commits, files, lines FROM activity")
    weeks = {week: (c["commits"], c["files"], c["lines"]) for week, c in expected.activity.items()}
    assert {week: tuple(row) for week, *row in activity} == weeks
    hotspots = rows(example, "SELECT folder, month, changes, lines FROM hotspots")
    heat = {key: (counter["changes"], counter["lines"]) for key, counter in expected.hotspots.items()}
    assert {(unquote_to_bytes(folder), month): tuple(row) for folder, month, *row in hotspots} == heat


@pytest.mark.release(engine="spark")  # test_spark_tasks.py runs there
@pytest.mark.parametrize("engine", ENGINES)
def test_the_read_models_agree_with_git_and_a_second_run_adds_new_commits(
    example: Path, repository: Path, engine: str, request: pytest.FixtureRequest
) -> None:
    chosen = {"OPENCQRS__EVENT_HANDLING__STANDARD__PROCESSING__ENGINE": engine}
    if engine == "spark":
        chosen.update(request.getfixturevalue("java"))
    printed = demo(example, repository, **chosen)

    assert_read_models(example, expected_of(repository))
    assert "$ opencqrs run --until-caught-up" in printed

    add_odd_names(repository)
    printed = demo(example, repository, **chosen)

    assert_read_models(example, expected_of(repository))
    assert f"imported {1 + len(ODD_NAMES)} events" in printed
    for heading in ("Churn", "Hotspots", "Activity"):
        assert heading in printed
    assert "nothing yet" not in printed
    assert all(char.isprintable() or char == "\n" for char in printed)
    assert r"\x1b[31mred" in printed
    assert max(map(len, printed[printed.index("Churn ") :].splitlines())) <= 80


def test_an_invalid_repository_ends_the_demo_at_once(example: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(example / "demo.py"), str(tmp_path)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)

    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == f"demo.py: error: {tmp_path} is not a git repository: name the folder of one\n"


@pytest.mark.release  # wording
def test_a_failed_step_ends_the_demo_with_its_exit_code(example: Path, repository: Path) -> None:
    with (example / "application.yaml").open("a") as settings:
        settings.write("  no-such-setting: 1\n")
    command = [sys.executable, str(example / "demo.py"), str(repository)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)

    assert done.returncode == 2
    assert "no-such-setting" in done.stderr
    assert done.stderr.splitlines()[-1] == (
        f"demo.py: stopped with exit code 2 by: python load.py '{repository}' | opencqrs events import -"
    )
    assert "Traceback" not in done.stderr

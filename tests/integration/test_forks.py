"""What a process and its fork have in common: open files, and locks of threads that the fork does not have."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing import get_context
from pathlib import Path

import pytest

from opencqrs_py.adapters import forks
from opencqrs_py.adapters.files import FileEventSource
from opencqrs_py.adapters.sql import Database
from opencqrs_py.errors import DatabaseFileError
from opencqrs_py.model.selection import Selection

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork here")

FORK = get_context("fork")
EVENTS = 1000  # in 9 MB, more than is read at once


def in_fork(function: Callable[[], object]) -> object:
    """Return the result of a function in a fork of this process, or the error that it raises."""
    here, there = FORK.Pipe()
    child = FORK.Process(target=lambda: there.send(_result_of(function)))
    child.start()
    try:
        assert here.poll(60), "the fork hangs"
        return here.recv()
    finally:
        child.kill()
        child.join()


def _result_of(function: Callable[[], object]) -> object:
    try:
        return function()
    except Exception as error:
        return error


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "log.ndjson.gz"
    with gzip.open(file, "wt", compresslevel=0) as opened:
        for number in range(EVENTS):
            opened.write(json.dumps({"id": str(number), "source": "s", "type": "t", "data": "x" * 9000}) + "\n")
    return file


def ids(source: FileEventSource, after: int, limit: int) -> list[str]:
    return [event.id for event in source.read(after, limit, Selection()).events]


def test_reading_files_in_a_fork_does_not_move_the_positions_of_the_parent(log: Path) -> None:
    """Both share the offset in a file opened before, and the parent would miss lines read by the fork."""
    source = FileEventSource(log)
    assert ids(source, 0, 100) == [str(number) for number in range(100)]
    assert in_fork(lambda: ids(source, 100, 800)) == [str(number) for number in range(100, 900)]
    assert ids(source, 100, 800) == [str(number) for number in range(100, 900)]


def test_a_fork_does_not_wait_for_a_thread_of_its_parent_that_reads_files(log: Path) -> None:
    source = FileEventSource(log)
    with ThreadPoolExecutor(1) as another:
        assert another.submit(source._lock.acquire).result()
        assert in_fork(source.head) == EVENTS
        another.submit(source._lock.release).result()


def write(database: Database) -> int:
    with database.writing() as connection:
        connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS seen (id INTEGER)")
        connection.exec_driver_sql("INSERT INTO seen VALUES (1)")
        return int(connection.exec_driver_sql("SELECT count(*) FROM seen").scalar_one())


def test_a_fork_uses_an_sqlite_file_that_no_thread_of_its_parent_uses(tmp_path: Path) -> None:
    with closing(Database(f"sqlite:///{tmp_path}/events.db")) as database:
        assert write(database) == 1
        assert database.fetch("SELECT count(*) FROM seen") == [(1,)]
        assert in_fork(lambda: write(database)) == 2
        assert write(database) == 3


@pytest.mark.parametrize("url", ["sqlite:///{}", "sqlite:///file:{}?uri=true"], ids=["path", "uri"])
def test_no_fork_uses_an_sqlite_file_that_its_parent_has_open(url: str, tmp_path: Path) -> None:
    """It would wait for locks of threads that it does not have, or read what its parent overwrites."""
    named = url.format(tmp_path / "events.db")
    with closing(Database(named)) as database, ThreadPoolExecutor(1) as another:
        write(database)
        reads = database.reading(apart=True)
        another.submit(reads.__enter__).result()
        for use in (lambda: write(database), lambda: database.fetch("SELECT 1"), lambda: write(Database(named))):
            error = in_fork(use)
            assert isinstance(error, DatabaseFileError)
            assert (error.code, error.where) == ("OCQ-353", str(tmp_path / "events.db"))
        assert in_fork(lambda: write(Database(f"sqlite:///{tmp_path}/other.db"))) == 1
        another.submit(reads.__exit__, None, None, None).result()
        assert write(database) == 2


def test_no_fork_uses_an_sqlite_file_within_the_transaction_of_its_parent(tmp_path: Path) -> None:
    with closing(Database(f"sqlite:///{tmp_path}/events.db")) as database:
        write(database)
        with database.writing() as connection:
            connection.exec_driver_sql("INSERT INTO seen VALUES (1)")
            error = in_fork(lambda: database.fetch("SELECT 1"))
        assert isinstance(error, DatabaseFileError)
        assert error.code == "OCQ-353"
        assert write(database) == 3


def test_no_fork_uses_an_sqlite_file_that_other_code_of_its_parent_has_open(tmp_path: Path) -> None:
    with closing(Database(f"sqlite:///{tmp_path}/events.db")) as database:
        write(database)
        with closing(sqlite3.connect(tmp_path / "events.db")) as connection:
            connection.execute("SELECT * FROM seen").fetchone()
            error = in_fork(lambda: write(database))
        assert isinstance(error, DatabaseFileError)
        assert error.code == "OCQ-353"


def test_open_files_are_found_even_if_the_system_does_not_list_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with (tmp_path / "open").open("w") as file:
        seen = os.fstat(file.fileno())
        assert (seen.st_dev, seen.st_ino) in forks._open_files()
        monkeypatch.setattr(Path, "iterdir", lambda _: (_ for _ in ()).throw(FileNotFoundError()))
        assert (seen.st_dev, seen.st_ino) in forks._open_files()
    assert (seen.st_dev, seen.st_ino) not in forks._open_files()

"""Long reads and writers of the same process: on SQLite they keep out of each other's way, and never wait forever."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event as Signal

import pytest

from opencqrs_py.adapters.sql import Database
from opencqrs_py.adapters.sql.dialects import sqlite_file

SECONDS = 30  # longest wait for another thread


def read(database: Database) -> int:
    with database.guard.quiet():
        ((found,),) = database.fetch("SELECT 7")
        return int(found)


def test_a_long_read_continues_although_a_writer_does_not_end(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "_QUIET_SECONDS", 0.01)
    with ThreadPoolExecutor(1) as threads, database.writing():
        assert threads.submit(read, database).result(SECONDS) == 7


def test_a_long_read_inside_a_transaction_of_the_same_thread_does_not_wait(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_file, "_QUIET_SECONDS", SECONDS)
    began = time.monotonic()
    with database.writing():
        assert read(database) == 7
    assert time.monotonic() - began < SECONDS


def test_a_writer_can_write_after_a_long_read_has_ended(database: Database) -> None:
    reading, over, written = Signal(), Signal(), Signal()

    def read_long() -> None:
        with database.guard.quiet():
            reading.set()
            assert over.wait(SECONDS)

    def write() -> None:
        with database.writing():
            written.set()

    with ThreadPoolExecutor(2) as threads:
        reader = threads.submit(read_long)
        assert reading.wait(SECONDS)
        writer = threads.submit(write)
        if database.kind != "sqlite":
            assert written.wait(SECONDS)
        over.set()
        reader.result(SECONDS)
        writer.result(SECONDS)
    assert written.is_set()

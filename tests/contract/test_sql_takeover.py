"""Taking over from a process suspended in its transaction, and what that process does when it resumes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import dedent

import pytest
from sqlalchemy import text

from opencqrs_py.adapters.sql import Database, SqlProgressTracker
from opencqrs_py.adapters.sql.dialects.dialect import Dialect
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model import Cursor, layout

OWNER = """
import sys
from sqlalchemy import text
from opencqrs_py.adapters.sql import Database, SqlProgressTracker
from opencqrs_py.errors import FencedError
from opencqrs_py.model import Cursor, layout

tracker = SqlProgressTracker(Database(sys.argv[1]))
(cursor,) = tracker.claim("group", layout(1), 0, "owner-of-old")
with tracker.unit("group", cursor, 1) as unit:
    unit.connection.execute(text("INSERT INTO written (value) VALUES ('first')"))
cursor = cursor.moved_to(1, stored=True)
try:
    with tracker.unit("group", cursor, 5) as unit:
        unit.connection.execute(text("INSERT INTO written (value) VALUES ('zombie')"))
        print("open", flush=True)
        sys.stdin.readline()
        unit.connection.execute(text("INSERT INTO written (value) VALUES ('zombie again')"))
    print("committed", flush=True)
except Exception as error:
    print("outage" if tracker.is_outage(error) else f"{type(error).__name__}: {error}", flush=True)
try:
    with tracker.unit("group", cursor, 5):
        pass
    print("committed", flush=True)
except FencedError:
    print("fenced", flush=True)
"""


@contextmanager
def owner(url: str) -> Iterator[subprocess.Popen[str]]:
    """Run a process that has a unit open, until it ends."""
    command = [sys.executable, "-c", dedent(OWNER), url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert said(process) == "open"
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.kill()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wake(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.send_signal(signal.SIGCONT)
    process.stdin.write("go on\n")
    process.stdin.flush()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Dialect, "take_over_seconds", 1.0)


@pytest.fixture
def tracker(database: Database) -> SqlProgressTracker:
    with database.writing() as connection:
        connection.execute(text("CREATE TABLE written (value VARCHAR(20) NOT NULL)"))
    tracker = SqlProgressTracker(database)
    tracker.statuses()
    return tracker


def values(database: Database) -> list[str]:
    with database.reading() as connection:
        return list(connection.execute(text("SELECT value FROM written")).scalars())


def claimed(tracker: SqlProgressTracker) -> Cursor:
    (cursor,) = tracker.claim("group", layout(1), 0, "heir")
    return cursor


SERVERS = pytest.mark.parametrize(
    "kind",
    [
        pytest.param("postgresql", marks=pytest.mark.postgresql),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ],
)


@SERVERS
def test_the_session_of_a_suspended_owner_is_ended_and_its_chunk_handled_once(
    url: str, database: Database, tracker: SqlProgressTracker
) -> None:
    with owner(url) as process:
        os.kill(process.pid, signal.SIGSTOP)
        heir = claimed(tracker)
        assert heir.stored == 1
        with tracker.unit("group", heir, 5) as unit:
            unit.connection.execute(text("INSERT INTO written (value) VALUES ('heir')"))
        wake(process)
        assert said(process) == "outage"  # its session was ended, and its writes rolled back
        assert said(process) == "fenced"
    assert values(database) == ["first", "heir"]
    assert [status.position for status in tracker.statuses()] == [5]


@pytest.mark.release(kind="postgresql")  # as on MariaDB
@SERVERS
def test_the_session_of_an_owner_that_finishes_in_time_is_not_ended(
    url: str, database: Database, tracker: SqlProgressTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(database.dialect), "end_session", lambda *_: pytest.fail("it was ended"))
    monkeypatch.setattr(Dialect, "take_over_seconds", 60.0)
    with owner(url) as process:
        wake(process)
        assert claimed(tracker).stored in (1, 5)
        assert said(process) in ("committed", "FencedError: ")


@pytest.mark.release  # as on SQLite, below
@SERVERS
def test_without_the_privilege_to_end_the_owners_session_the_error_names_the_owner(
    url: str, database: Database, tracker: SqlProgressTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(database.dialect), "holder_of", lambda *_: None)
    with owner(url) as process:
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(EventStoreError) as caught:
            claimed(tracker)
    assert caught.value.code == "OCQ-305"
    assert "group 'group' cannot be taken over: its owner owner-of-old" in caught.value.what
    assert tracker.is_outage(caught.value)


@pytest.mark.parametrize("kind", ["sqlite"])
def test_on_sqlite_a_suspended_owner_is_named_and_can_be_waited_for(
    url: str, database: Database, tracker: SqlProgressTracker
) -> None:
    with owner(url) as process:
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(EventStoreError) as caught:
            claimed(tracker)
        assert caught.value.code == "OCQ-305"
        assert "its owner owner-of-old" in caught.value.what
        assert "1 seconds" in caught.value.what
        assert tracker.is_outage(caught.value)
        wake(process)
        assert said(process) == "committed"
        assert claimed(tracker).stored == 5
        assert said(process) == "fenced"
    assert values(database) == ["first", "zombie", "zombie again"]


def test_a_claim_does_not_wait_for_transactions_of_another_partition(
    url: str, database: Database, tracker: SqlProgressTracker
) -> None:
    if database.kind == "sqlite":
        pytest.skip("there is one writer at a time")
    two = layout(2)
    (first,) = tracker.claim("two", two[:1], 0, "first", layout=two)
    with tracker.unit("two", first, 5):
        (second,) = SqlProgressTracker(database).claim("two", two[1:], 0, "second", layout=two)
    assert second.stored == 0
    assert sorted(status.position for status in tracker.statuses()) == [0, 5]

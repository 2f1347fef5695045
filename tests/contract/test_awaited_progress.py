"""Waiting for the stored progress of a group, on each tracker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import text

from opencqrs_py.adapters.memory import InMemoryProgressTracker
from opencqrs_py.adapters.sql import Database, SqlControlStore, SqlProgressTracker, progress_watching
from opencqrs_py.model import Cursor, layout
from opencqrs_py.model.partition import Partition
from opencqrs_py.processing.ports import Watch
from opencqrs_py.processing.reaching import WatchableTracker, WatchedGroup

SECONDS = 30  # longest wait for another thread
FOREVER = 3_600.0
OF_DATABASES = [
    "sqlite",
    pytest.param("postgresql", marks=pytest.mark.postgresql),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]
ALL = pytest.mark.parametrize("kind", ["memory", "polled", *OF_DATABASES])
POSTGRESQL = pytest.mark.parametrize("kind", [pytest.param("postgresql", marks=pytest.mark.postgresql)])


class Polled:
    """A tracker of a user that shows its progress by ``statuses`` only."""

    def __init__(self) -> None:
        self._tracker = InMemoryProgressTracker()
        self.claim, self.unit, self.statuses = self._tracker.claim, self._tracker.unit, self._tracker.statuses
        self.is_outage = self._tracker.is_outage


@pytest.fixture
def tracker(kind: str, request: pytest.FixtureRequest) -> Any:
    if kind in ("memory", "polled"):
        return InMemoryProgressTracker() if kind == "memory" else Polled()
    return SqlProgressTracker(request.getfixturevalue("database"))


@pytest.fixture
def another(kind: str, tracker: Any, request: pytest.FixtureRequest) -> Any:
    """The tracker of another process, where there can be one."""
    if kind in ("memory", "polled"):
        return tracker
    return SqlProgressTracker(request.getfixturevalue("open_database")())


@contextmanager
def watched(tracker: Any, group: str = "group") -> Iterator[Watch]:
    with WatchedGroup(tracker, group).watched() as watch:
        yield watch


def reached(tracker: Any) -> int:
    return WatchedGroup(tracker, "group").head()


class Progress:
    """Moves the partitions of a group, claimed once."""

    def __init__(self, tracker: Any, partitions: int = 1, group: str = "group") -> None:
        self._tracker = tracker
        self._group = group
        cursors = tracker.claim(group, layout(partitions), 0, "owner")
        self._cursors: dict[Partition, Cursor] = {each.partition: each for each in cursors}

    def move(self, to: int, residue: int = 0) -> None:
        partition = Partition(len(self._cursors), residue)
        with self._tracker.unit(self._group, self._cursors[partition], to):
            pass
        self._cursors[partition] = self._cursors[partition].moved_to(to, stored=True)


@ALL
def test_a_group_has_reached_the_position_of_its_slowest_partition(tracker: Any) -> None:
    assert reached(tracker) == 0
    Progress(tracker, group="other").move(9)
    assert reached(tracker) == 0
    progress = Progress(tracker, 2)
    assert reached(tracker) == 1
    progress.move(5)
    assert reached(tracker) == 1
    progress.move(3, residue=1)
    assert reached(tracker) == 4


@pytest.mark.release(kind="mariadb")  # as on PostgreSQL
@pytest.mark.parametrize("kind", OF_DATABASES)
def test_a_group_whose_progress_lacks_a_partition_has_reached_nothing(tracker: Any, database: Database) -> None:
    for count in (3, 7, 300):
        group = f"group of {count}"
        progress = Progress(tracker, count, group)
        for residue in range(count if count < 10 else 0):
            progress.move(5, residue)
        whole = WatchedGroup(tracker, group)
        with whole.watched() as watch:
            assert (whole.head(), watch.wait(0, SECONDS)) == ((6, 6) if count < 10 else (1, 1))
        with database.writing() as connection:
            connection.execute(
                text("DELETE FROM opencqrs_progress WHERE group_name = :g AND residue = 2"), {"g": group}
            )
        assert whole.head() == 0
        with whole.watched() as watch:
            assert watch.wait(0, 0.01) == 0


@ALL
def test_a_watch_returns_when_the_last_partition_has_stored_its_progress(tracker: Any, another: Any) -> None:
    progress = Progress(another, 2)
    with ThreadPoolExecutor(1) as threads, watched(tracker) as watch:
        for number in range(1, 5):
            waiting = threads.submit(watch.wait, number, SECONDS)
            progress.move(number)
            progress.move(number, residue=1)
            assert waiting.result(SECONDS) == number + 1


@ALL
def test_a_watch_that_begins_before_the_first_claim_sees_the_progress(tracker: Any, another: Any) -> None:
    with ThreadPoolExecutor(1) as threads, watched(tracker) as watch:
        assert watch.wait(0, 0) == 0
        waiting = threads.submit(watch.wait, 3, SECONDS)
        Progress(another).move(3)
        assert waiting.result(SECONDS) == 4


@ALL
def test_a_woken_watch_returns_early(tracker: Any) -> None:
    with watched(tracker) as watch:
        watch.wake()
        assert watch.wait(5, SECONDS) == 0


@ALL
def test_a_watch_ends_when_its_time_is_over(tracker: Any) -> None:
    Progress(tracker).move(2)
    with watched(tracker) as watch:
        assert watch.wait(7, 0.01) == 3


# ------------------------------------------------------------------------------------------------- PostgreSQL


def rows(database: Database, statement: str) -> list[Any]:
    with database.reading() as connection:
        return list(connection.exec_driver_sql(statement).scalars())


@pytest.fixture
def never_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A watch that polls once, and then relies on notifications."""
    monkeypatch.setattr(progress_watching, "_SHORTEST_LOOK", FOREVER)
    monkeypatch.setattr(progress_watching, "_LONGEST_PAUSE", FOREVER)


@POSTGRESQL
@pytest.mark.parametrize("schema", [None, "Other"])
@pytest.mark.usefixtures("never_polls")
def test_postgresql_notifies_waiting_processes(url: str, schema: str | None) -> None:
    ours, theirs = Database(url, schema), Database(url, schema)
    progress = Progress(SqlProgressTracker(theirs), 2)
    for residue in range(2):
        progress.move(1, residue)  # the first unit of a connection prepares the statements, and notifies of nothing
    tracker = SqlProgressTracker(ours)
    with ThreadPoolExecutor(1) as threads, watched(tracker) as watch:
        assert watch.wait(1, 0) == 2
        for number in range(2, 5):
            waiting = threads.submit(watch.wait, number, SECONDS)
            progress.move(number)
            progress.move(number, residue=1)
            assert waiting.result(SECONDS) == number + 1
    ours.close()
    theirs.close()


@POSTGRESQL
@pytest.mark.usefixtures("never_polls")
def test_a_watch_is_not_notified_of_other_groups(tracker: SqlProgressTracker, another: SqlProgressTracker) -> None:
    Progress(tracker).move(1)
    other = Progress(another, group="other")
    other.move(1)
    with watched(tracker) as watch, watched(tracker, "other") as watch_of_other:
        assert (watch.wait(1, 0), watch_of_other.wait(1, 0)) == (2, 2)
        other.move(2)
        assert watch_of_other.wait(2, SECONDS) == 3
        assert watch.wait(2, 0.05) == 2


@POSTGRESQL
def test_progress_sends_no_notifications_while_no_process_waits(
    database: Database, another: SqlProgressTracker
) -> None:
    progress = Progress(another)
    progress.move(1)
    with database.reading(apart=True) as connection:
        connection.exec_driver_sql(f"LISTEN {progress_watching.CHANNEL}")
        driver: Any = connection.connection.dbapi_connection
        progress.move(2)
        assert list(driver.notifies(timeout=0)) == []
        with watched(another) as watch:
            assert watch.wait(1, 0) == 3
            progress.move(3)
            assert len(list(driver.notifies(timeout=SECONDS, stop_after=1))) == 1
        progress.move(4)
        assert list(driver.notifies(timeout=0)) == []


@POSTGRESQL
@pytest.mark.usefixtures("never_polls")
def test_processes_learn_which_groups_are_waited_for(
    database: Database, tracker: SqlProgressTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqlControlStore(database, shared=True)
    long_name = "x" * 10_000  # too long for a notification
    with store.notices() as notices:  # type: ignore[union-attr]
        assert notices.awaited() == frozenset()
        for group in ("group", long_name):
            with watched(tracker, group) as watch:
                watch.wait(0, 0)
        assert not notices.wait(SECONDS)  # it is not a change of the control tables
        assert notices.awaited() == {"group"}
        assert notices.awaited() == frozenset()
        assert not notices.wait(0.05)
        assert notices.awaited() == frozenset()
        monkeypatch.setattr(progress_watching, "_AGAIN_SECONDS", 0.0)
        with watched(tracker) as watch:
            watch.wait(0, 0)
            assert not notices.wait(SECONDS)
            assert notices.awaited() == {"group"}


@POSTGRESQL
def test_a_commit_that_began_before_the_watch_is_still_seen(
    tracker: SqlProgressTracker, open_database: Callable[[], Database]
) -> None:
    Progress(tracker).move(1)
    lock = progress_watching.lock_of_partition(None)
    with ThreadPoolExecutor(1) as threads:
        with open_database().writing() as connection:
            connection.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({lock}) FROM opencqrs_progress")
            connection.exec_driver_sql("UPDATE opencqrs_progress SET position = 2")
            began = Barrier(2)

            def wait() -> int:
                with watched(tracker) as watch:
                    assert watch.wait(1, 0) == 2
                    began.wait(SECONDS)
                    return watch.wait(2, SECONDS)

            waiting = threads.submit(wait)
            began.wait(SECONDS)
        assert waiting.result(SECONDS) == 3


@POSTGRESQL
def test_a_watch_releases_its_locks_channels_and_connections(database: Database, tracker: SqlProgressTracker) -> None:
    Progress(tracker, 3).move(1)
    held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'"
    connections = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend'"
    with watched(tracker) as watch:
        watch.wait(0, 0)
        assert rows(database, held) == [3]
    before = rows(database, connections)
    for _ in range(5):
        with watched(tracker) as watch:
            watch.wait(0, 0)
    assert rows(database, held) == [0]
    assert rows(database, "SELECT pg_listening_channels()") == []
    assert rows(database, connections) == before


@POSTGRESQL
def test_locks_of_a_killed_process_end_with_its_connection(database: Database, another: SqlProgressTracker) -> None:
    progress = Progress(another)
    held = "SELECT pid FROM pg_locks WHERE locktype = 'advisory'"
    with pytest.raises(Exception, match=r"terminating connection|closed"), watched(another) as watch:  # noqa: PT012
        watch.wait(0, 0)
        (pid,) = rows(database, held)
        rows(database, f"SELECT pg_terminate_backend({pid}, 10000)")
        assert rows(database, held) == []
        watch.wait(5, SECONDS)
    progress.move(1)
    assert reached(another) == 2


@POSTGRESQL
def test_a_group_of_many_partitions_takes_a_bounded_number_of_locks(
    database: Database, tracker: SqlProgressTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_watching, "_MOST_LOCKS", 2)
    progress = Progress(tracker, 4)
    with watched(tracker) as watch:
        assert watch.wait(0, 0) == 1
        assert rows(database, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == [2]
        for residue in range(4):
            progress.move(1, residue)
        assert watch.wait(1, SECONDS) == 2


def test_all_our_trackers_are_watchable() -> None:
    assert issubclass(SqlProgressTracker, WatchableTracker)
    assert isinstance(InMemoryProgressTracker(), WatchableTracker)

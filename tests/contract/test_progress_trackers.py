"""The contract of progress trackers, kept by each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from opencqrs_py.adapters.memory import InMemoryProgressTracker
from opencqrs_py.adapters.sql import Database, SqlProgressTracker
from opencqrs_py.errors import FencedError
from opencqrs_py.model import Cursor, PartitionStatus, ProcessorState, layout
from opencqrs_py.testing.contracts import (
    ProgressTrackerContract,
    ReadModel,
    RepartitioningTrackerContract,
    ResettableTrackerContract,
)

SECONDS = 60  # to wait at most


class InMemoryReadModel:
    """A list to which a transaction's values are added when it commits."""

    def __init__(self) -> None:
        self._committed: list[str] = []
        self.lost: Exception | None = None

    @contextmanager
    def begin(self) -> Iterator[Any]:
        added: list[str] = []
        yield SimpleNamespace(connection=added, session=added)
        if self.lost is not None:
            raise self.lost
        self._committed += added

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, TimeoutError)

    def write(self, unit: Any, value: str) -> None:
        unit.connection.append(value)

    def values(self) -> list[str]:
        return list(self._committed)


class TestInMemoryProgressTracker(ResettableTrackerContract, RepartitioningTrackerContract, ProgressTrackerContract):
    @pytest.fixture
    def read_model(self) -> InMemoryReadModel:
        return InMemoryReadModel()

    @pytest.fixture
    def tracker(self, read_model: InMemoryReadModel) -> InMemoryProgressTracker:
        return InMemoryProgressTracker(read_model)

    @pytest.fixture
    def another(self, tracker: InMemoryProgressTracker) -> InMemoryProgressTracker:
        return tracker

    def test_on_a_spark_worker_succeeding_changes_nothing(self, tracker: InMemoryProgressTracker) -> None:
        cursor = Cursor(layout(1)[0], 4, 10, 10)
        assert tracker.succeed("group", cursor) == cursor

    def test_a_unit_whose_partition_is_claimed_during_it_writes_nothing(
        self, tracker: InMemoryProgressTracker, read_model: InMemoryReadModel
    ) -> None:
        (old,) = tracker.claim("group", layout(1), 0, "old")
        unit_of_the_old = tracker.unit("group", old, 5)
        read_model.write(unit_of_the_old.__enter__(), "lost")
        (heir,) = tracker.claim("group", layout(1), 0, "new")
        with pytest.raises(FencedError):
            unit_of_the_old.__exit__(None, None, None)
        assert read_model.values() == []
        with tracker.unit("group", heir, 5) as unit:
            read_model.write(unit, "kept")
        assert read_model.values() == ["kept"]

    def test_progress_stays_when_the_commit_fails(
        self, tracker: InMemoryProgressTracker, read_model: InMemoryReadModel
    ) -> None:
        (cursor,) = tracker.claim("group", layout(1), 0, "owner")
        read_model.lost = TimeoutError("no answer")
        with pytest.raises(TimeoutError) as caught, tracker.unit("group", cursor, 5):
            pass
        assert tracker.is_outage(caught.value)
        read_model.lost = None
        with tracker.unit("group", cursor, 5):
            pass
        assert [status.position for status in tracker.statuses()] == [5]

    def test_without_a_claim_the_tracker_only_opens_transactions(
        self, tracker: InMemoryProgressTracker, read_model: InMemoryReadModel
    ) -> None:
        with tracker.unit("group", Cursor(layout(1)[0], 4, 10, 10), 12) as unit:
            read_model.write(unit, "written on a worker")
        assert read_model.values() == ["written on a worker"]
        assert tracker.statuses() == []


@pytest.mark.few(
    "test_any_text_of_an_error_can_be_reported", kind=("postgresql", "mariadb")
)  # one column is compared, whatever the value
class TestSqlProgressTracker(ResettableTrackerContract, RepartitioningTrackerContract, ProgressTrackerContract):
    @pytest.fixture
    def tracker(self, database: Database) -> SqlProgressTracker:
        return SqlProgressTracker(database)

    @pytest.fixture
    def another(self, open_database: Callable[[], Database]) -> SqlProgressTracker:
        return SqlProgressTracker(open_database())

    @pytest.fixture
    def read_model(self, written: ReadModel) -> ReadModel:
        return written

    def test_a_chunk_that_is_in_hand_is_waited_for(
        self, tracker: SqlProgressTracker, another: SqlProgressTracker
    ) -> None:
        (first,) = tracker.claim("group", layout(1), 0, "owner")
        with ThreadPoolExecutor(1) as threads:
            with tracker.unit("group", first, 5):
                succeeding = threads.submit(another.succeed, "group", first)
            assert succeeding.result(SECONDS).epoch == first.epoch + 1
        assert another.renewed("group", succeeding.result()).stored == 5

    def test_a_partition_that_was_never_claimed_is_fenced(self, tracker: SqlProgressTracker) -> None:
        cursor = Cursor(layout(1)[0], 1, 0, 0)
        with pytest.raises(FencedError), tracker.unit("unknown", cursor, 5):
            pytest.fail("the unit was opened")
        assert tracker.statuses() == []

    def test_the_layout_error_says_how_to_fix_it(self, tracker: SqlProgressTracker) -> None:
        tracker.claim("books", layout(2), 0, "owner")
        with pytest.raises(Exception, match="OCQ-310") as caught:
            tracker.claim("books", layout(3), 0, "owner")
        assert str(caught.value) == (
            "[OCQ-310] group 'books' has progress for 2 partitions, but is configured with 3\n"
            "  where: table opencqrs_progress\n"
            "  fix:   use the existing number; or opencqrs groups partitions books 3"
        )

    def test_each_claim_records_its_time(self, tracker: SqlProgressTracker) -> None:
        tracker.claim("group", layout(1), 0, "owner")
        (status,) = tracker.statuses()
        assert status.updated_at is not None
        assert status.updated_at.endswith("+00:00")

    def test_a_report_is_not_progress_and_keeps_the_time_unless_it_has_one(self, tracker: SqlProgressTracker) -> None:
        (cursor,) = tracker.claim("group", layout(1), 0, "owner")
        before = "2026-01-07T10:00:00.000+00:00"
        known = PartitionStatus("group", layout(1)[0], 0, ProcessorState.RUNNING)
        tracker.report(replace(known, updated_at=before), cursor.epoch)
        tracker.report(replace(known, state=ProcessorState.WAITING, error="OperationalError"), cursor.epoch)
        (status,) = tracker.statuses()
        assert (status.state, status.updated_at) == (ProcessorState.WAITING, before)

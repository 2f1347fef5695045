"""The contract of progress trackers, kept by each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from opencqrs_py.adapters.memory import InMemoryProgressTracker
from opencqrs_py.adapters.sql import Database, SqlProgressTracker
from opencqrs_py.errors import FencedError
from opencqrs_py.model import Cursor, layout
from opencqrs_py.testing.contracts import ProgressTrackerContract, ReadModel


class InMemoryReadModel:
    """A list that takes on what a transaction added when it is committed."""

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


class TestInMemoryProgressTracker(ProgressTrackerContract):
    @pytest.fixture
    def read_model(self) -> InMemoryReadModel:
        return InMemoryReadModel()

    @pytest.fixture
    def tracker(self, read_model: InMemoryReadModel) -> InMemoryProgressTracker:
        return InMemoryProgressTracker(read_model)

    def test_a_unit_whose_partition_is_claimed_meanwhile_writes_nothing(
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

    def test_where_nothing_was_claimed_it_only_opens_transactions(
        self, tracker: InMemoryProgressTracker, read_model: InMemoryReadModel
    ) -> None:
        with tracker.unit("group", Cursor(layout(1)[0], 4, 10, 10), 12) as unit:
            read_model.write(unit, "written on a worker")
        assert read_model.values() == ["written on a worker"]
        assert tracker.statuses() == []


class TestSqlProgressTracker(ProgressTrackerContract):
    @pytest.fixture
    def tracker(self, database: Database) -> SqlProgressTracker:
        return SqlProgressTracker(database)

    @pytest.fixture
    def another(self, open_database: Callable[[], Database]) -> SqlProgressTracker:
        return SqlProgressTracker(open_database())

    @pytest.fixture
    def read_model(self, written: ReadModel) -> ReadModel:
        return written

    def test_what_was_never_claimed_is_fenced(self, tracker: SqlProgressTracker) -> None:
        cursor = Cursor(layout(1)[0], 1, 0, 0)
        with pytest.raises(FencedError), tracker.unit("unknown", cursor, 5):
            pytest.fail("the unit was opened")
        assert tracker.statuses() == []

    def test_the_layout_error_says_how_to_go_on(self, tracker: SqlProgressTracker) -> None:
        tracker.claim("books", layout(2), 0, "owner")
        with pytest.raises(Exception, match="OCQ-310") as caught:
            tracker.claim("books", layout(3), 0, "owner")
        assert str(caught.value) == (
            "[OCQ-310] group 'books' has progress for 2 partition(s), but 3 are configured\n"
            "  where: table opencqrs_progress\n"
            "  fix:   set life-cycle.partitions of 'books' back to 2; or, to handle all events again, "
            "delete the group's read model and its rows in opencqrs_progress"
        )

    def test_each_claim_and_report_is_dated(self, tracker: SqlProgressTracker) -> None:
        tracker.claim("group", layout(1), 0, "owner")
        (status,) = tracker.statuses()
        assert status.updated_at is not None
        assert status.updated_at.endswith("+00:00")

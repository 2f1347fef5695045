"""The contract of inboxes, kept by each of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import delete

from opencqrs_py.adapters.memory import InMemoryProgressTracker
from opencqrs_py.adapters.sql import Database, SqlProgressTracker
from opencqrs_py.adapters.sql.tables import PROGRESS
from opencqrs_py.model import Cursor
from opencqrs_py.testing.contracts import InboxContract
from opencqrs_py.testing.contracts.inbox import WHOLE, entry, parked


class TestInMemoryInbox(InboxContract):
    @pytest.fixture
    def tracker(self) -> InMemoryProgressTracker:
        return InMemoryProgressTracker()


class TestSqlInbox(InboxContract):
    @pytest.fixture
    def tracker(self, database: Database) -> SqlProgressTracker:
        return SqlProgressTracker(database)

    @pytest.fixture
    def another(self, open_database: Callable[[], Database]) -> SqlProgressTracker:
        return SqlProgressTracker(open_database())

    @pytest.mark.parametrize(("initial", "left"), [(0, []), (4, [3])])
    def test_events_that_a_group_reads_again_do_not_wait_any_more(
        self, tracker: SqlProgressTracker, cursor: Cursor, database: Database, initial: int, left: list[int]
    ) -> None:
        self.put(tracker, cursor, parked(3), entry(7), parked(8, "books/2"))
        with database.writing() as connection:
            connection.execute(delete(database.table(PROGRESS)))
        (begun,) = tracker.claim("group", [WHOLE], initial, "owner")
        assert [one.position for one in tracker.entries("group")] == left
        self.put(tracker, begun, parked(8))

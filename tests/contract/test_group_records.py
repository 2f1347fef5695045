"""The records of groups: their contract, kept by each tracker, and further rules of SQL databases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import delete, func, insert, select, text
from sqlalchemy.exc import DBAPIError

from opencqrs_py.adapters.memory import InMemoryProgressTracker
from opencqrs_py.adapters.sql import Database, SqlProgressTracker, progress
from opencqrs_py.adapters.sql.shadows.rebuild_records import rebuild_row
from opencqrs_py.adapters.sql.tables import GROUPS, PROGRESS, REBUILDS, SCHEMA
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.group_record import FoundGroup
from opencqrs_py.model.rebuild import RebuildPhase, RebuildRecord
from opencqrs_py.testing.contracts import GroupRecordsContract
from opencqrs_py.testing.contracts.group_records import RECORD, TWO, UndoneError, keeping, refuse
from opencqrs_py.testing.contracts.inbox import InboxContract as Inbox
from opencqrs_py.testing.contracts.inbox_units import WHOLE, entry, parked

REBUILD = RebuildRecord("group", RebuildPhase.ENDED, "1:a", started_at="2026")


class TestInMemoryGroupRecords(GroupRecordsContract):
    @pytest.fixture
    def tracker(self) -> InMemoryProgressTracker:
        return InMemoryProgressTracker()


@pytest.mark.few(kind=("postgresql", "mariadb"))  # records are one column
@pytest.mark.release(kind="mariadb")  # one table, whose statements SQLAlchemy makes
class TestSqlGroupRecords(GroupRecordsContract):
    @pytest.fixture
    def tracker(self, database: Database) -> SqlProgressTracker:
        return SqlProgressTracker(database)

    @pytest.fixture
    def another(self, open_database: Callable[[], Database]) -> SqlProgressTracker:
        return SqlProgressTracker(open_database())

    def test_a_group_whose_rebuild_cannot_be_read_does_not_count_as_never_rebuilt(
        self, tracker: SqlProgressTracker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert tracker.rebuilt(["group"]) == []  # there are no tables yet
        tracker.claim("group", TWO, 3, "owner", keep=keeping(RECORD))
        unreadable = SimpleNamespace(c=SimpleNamespace(group_name=func.no_such_function()))
        monkeypatch.setattr(tracker._records, "_rebuilds", unreadable)
        with pytest.raises(DBAPIError):
            tracker.rebuilt(["group"])

    @pytest.mark.parametrize(
        "damage",
        [
            "ALTER TABLE {}opencqrs_rebuilds RENAME COLUMN group_name TO other_name",
            "ALTER TABLE {}opencqrs_rebuilds RENAME COLUMN phase TO other_phase",
            "ALTER TABLE {}opencqrs_groups RENAME TO other_groups",
        ],
        ids=["no name of a rebuild", "no phase of a rebuild", "no groups"],
    )
    def test_a_group_whose_rebuild_is_incomplete_does_not_count_as_never_rebuilt(
        self, tracker: SqlProgressTracker, database: Database, damage: str
    ) -> None:
        tracker.claim("group", TWO, 3, "owner", keep=keeping(RECORD))
        with database.writing() as connection:
            connection.execute(insert(database.table(REBUILDS)).values(**rebuild_row(REBUILD)))
        assert [record.group for record in tracker.rebuilt(["group"])] == ["group"]
        with database.writing() as connection:
            connection.execute(text(damage.format(database.prefix)))
        with pytest.raises(EventStoreError, match="OCQ-304"):
            tracker.rebuilt(["group"])

    @pytest.mark.parametrize("lost", [1, 2])
    def test_a_claim_finds_that_progress_is_lost(
        self, tracker: SqlProgressTracker, database: Database, lost: int
    ) -> None:
        tracker.claim("group", TWO, 3, "owner", keep=keeping(RECORD))
        lose(database, *TWO[:lost])
        seen: list[FoundGroup] = []
        cursors = tracker.claim("group", TWO, 9, "owner", keep=keeping(replace(RECORD, position=9), seen))
        assert seen[0].record == RECORD
        assert seen[0].missing == [*TWO[:lost]]
        assert [cursor.stored for cursor in cursors] == [9, 9][:lost] + [3] * (2 - lost)
        assert tracker.records() == [replace(RECORD, position=9)]

    def test_partly_lost_progress_without_a_record_is_another_layout(
        self, tracker: SqlProgressTracker, database: Database
    ) -> None:
        tracker.claim("group", TWO, 3, "owner")
        lose(database, TWO[0])
        with pytest.raises(EventStoreError, match="OCQ-310"):
            tracker.claim("group", TWO, 3, "owner", keep=refuse)

    def test_a_claim_sees_whether_events_wait(self, tracker: SqlProgressTracker) -> None:
        (cursor,) = tracker.claim("group", [WHOLE], 0, "owner", keep=keeping(RECORD))
        Inbox().put(tracker, cursor, parked(3), entry(7))
        waiting: list[bool] = []

        def keep(found: FoundGroup) -> Any:
            waiting.append(found.has_waiting())
            return RECORD

        for name in ("group", "other"):
            tracker.claim(name, [WHOLE], 0, "owner", keep=keep if name == "group" else None)
        assert waiting == [True]

    def test_a_crash_before_the_commit_leaves_neither_progress_nor_record(
        self, tracker: SqlProgressTracker, another: SqlProgressTracker, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_arguments: object) -> None:
            raise UndoneError

        with monkeypatch.context() as patch:
            patch.setattr(progress, "held", Held(progress.held, fail))
            with pytest.raises(UndoneError):
                tracker.claim("group", TWO, 3, "owner", keep=keeping(RECORD))
        assert (another.records(), another.statuses()) == ([], [])

    def test_a_look_creates_nothing(self, database: Database) -> None:
        assert SqlProgressTracker(database).records() == []
        tracker = SqlProgressTracker(database)
        tracker.claim("group", TWO, 0, "owner")
        assert tracker.records() == []
        with database.reading() as connection:
            assert "opencqrs_groups" not in connection.execute(select(SCHEMA.c.table_name)).scalars().all()

    def test_a_record_of_a_newer_package_is_refused(
        self, tracker: SqlProgressTracker, another: SqlProgressTracker, database: Database
    ) -> None:
        tracker.claim("group", TWO, 0, "owner", keep=keeping(RECORD))
        with database.writing() as connection:
            connection.execute(text("UPDATE opencqrs_schema SET version = 99 WHERE table_name = 'opencqrs_groups'"))
        with pytest.raises(EventStoreError, match=r"OCQ-311.*opencqrs_groups has version 99"):
            another.claim("group", TWO, 0, "owner", keep=refuse)

    def test_a_record_adds_one_statement_to_a_claim(
        self, tracker: SqlProgressTracker, noted_statements: Callable[..., AbstractContextManager[None]]
    ) -> None:
        tracker.claim("group", TWO, 0, "owner", keep=keeping(RECORD))

        def sent(**options: Any) -> list[str]:
            found: list[str] = []
            with noted_statements(lambda statement, _values: found.append(statement)):
                tracker.claim("group", TWO, 0, "owner", **options)
            return found

        assert len(sent(keep=keeping(RECORD))) == len(sent()) + 1
        assert len(sent(keep=keeping(replace(RECORD, handlers="1:c")))) == len(sent()) + 2

    def test_a_row_inserted_by_hand_is_read(self, tracker: SqlProgressTracker, database: Database) -> None:
        tracker.claim("group", TWO, 0, "owner", keep=keeping(RECORD))
        row = {"group_name": "other", "initial_setting": "tail", "initial_position": 0, "began_at": "2026"}
        with database.writing() as connection:
            connection.execute(insert(database.table(GROUPS)).values(**row, handlers="", sequencing="", changes="[]"))
        assert [record.group for record in tracker.records()] == ["group", "other"]


class Held:
    """A read of the rows of a group that fails the second time in a claim."""

    def __init__(self, look: Callable[..., Any], fail: Callable[..., None]) -> None:
        self._looks = [look, fail]

    def __call__(self, *arguments: Any) -> Any:
        return self._looks.pop(0)(*arguments)


def lose(database: Database, *partitions: Any) -> None:
    table = database.table(PROGRESS)
    with database.writing() as connection:
        for one in partitions:
            connection.execute(delete(table).where(table.c.modulus == one.modulus, table.c.residue == one.residue))

"""Which groups a process must not run because of rebuilds, and the queries of each heartbeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.statements import sent_statements

from opencqrs_py.adapters.sql import Database, SqlProgressTracker
from opencqrs_py.adapters.sql.shadows.rebuild_records import rebuild_row
from opencqrs_py.adapters.sql.tables import REBUILDS
from opencqrs_py.assembly.rebuilds.bars import RebuildBars
from opencqrs_py.model.group_record import GroupRecord
from opencqrs_py.model.rebuild import RebuildPhase, RebuildRecord
from opencqrs_py.processing.group_records import GroupCode, RecordRule

OURS = "the handlers of this process"


@pytest.fixture
def new_tracker(tmp_path: Path) -> Iterator[Callable[[], SqlProgressTracker]]:
    """Return a function that creates a tracker with a new database."""
    numbers, made = count(), list[Database]()

    def new() -> SqlProgressTracker:
        made.append(Database(f"sqlite:///{tmp_path / f'{next(numbers)}.db'}"))
        tracker = SqlProgressTracker(made[-1])
        tracker._records.prepare()
        return tracker

    yield new
    for each in made:
        each.close()


def run_of(group: str, tracker: SqlProgressTracker) -> Any:
    rule = RecordRule(group, "tail", lambda: GroupCode(OURS), lambda: datetime.now(UTC))
    return SimpleNamespace(group=group, record=rule, processing=SimpleNamespace(tracker=tracker))


def refuse(group: str, tracker: SqlProgressTracker) -> None:
    """Record that the group was rebuilt by other handlers than those of this process."""
    rebuild, database = RebuildRecord(group, RebuildPhase.SWAPPED, "others", refused=(OURS,)), tracker.database
    with database.writing() as connection:
        record = GroupRecord(group, began_at="2026-01-05", handlers="others")
        tracker._records.write(connection, record, None)
        connection.execute(database.table(REBUILDS).insert().values(**rebuild_row(rebuild)))


def test_groups_rebuilt_by_other_handlers_are_found_in_each_database(
    new_tracker: Callable[[], SqlProgressTracker],
) -> None:
    one, other = new_tracker(), new_tracker()
    bars = RebuildBars([run_of("books", one), run_of("loans", one), run_of("mail", other), run_of("fines", other)])
    assert set(bars()) == set()
    refuse("loans", one)
    refuse("fines", other)
    assert set(bars()) == {"loans", "fines"}


def test_a_rebuild_of_a_group_of_the_same_name_in_another_database_does_not_apply(
    new_tracker: Callable[[], SqlProgressTracker],
) -> None:
    one, other = new_tracker(), new_tracker()
    refuse("books", other)
    assert set(RebuildBars([run_of("books", one), run_of("mail", other)])()) == set()


@pytest.mark.parametrize("groups", [1, 50])
def test_a_heartbeat_queries_each_database_once_for_any_number_of_groups(
    new_tracker: Callable[[], SqlProgressTracker], groups: int
) -> None:
    trackers = [new_tracker(), new_tracker()]
    bars = RebuildBars([run_of(f"group-{number}", each) for each in trackers for number in range(groups)])
    with sent_statements() as sent:
        bars()
    assert len(sent) == len(trackers), sent

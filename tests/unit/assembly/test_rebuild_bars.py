"""Which groups a process must not run because of rebuilds, and what each heartbeat asks the databases for that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, event

from opencqrs_py.adapters.sql import Database, SqlProgressTracker
from opencqrs_py.adapters.sql.rebuild_rows import rebuild_row
from opencqrs_py.adapters.sql.tables import REBUILDS
from opencqrs_py.assembly.rebuild_bars import RebuildBars
from opencqrs_py.model.group_record import GroupRecord
from opencqrs_py.model.rebuild import RebuildPhase, RebuildRecord
from opencqrs_py.processing.group_records import GroupCode, RecordRule

OURS = "the handlers of this process"


@pytest.fixture
def new_database(tmp_path: Path) -> Iterator[Callable[[], Database]]:
    numbers, made = count(), list[Database]()

    def new() -> Database:
        made.append(Database(f"sqlite:///{tmp_path / f'{next(numbers)}.db'}"))
        SqlProgressTracker(made[-1])._records.prepare()
        return made[-1]

    yield new
    for each in made:
        each.close()


@pytest.fixture
def asked() -> Iterator[list[str]]:
    """The statements that are sent to all databases."""
    sent: list[str] = []

    def hear(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        sent.append(statement)

    event.listen(Engine, "before_cursor_execute", hear)
    yield sent
    event.remove(Engine, "before_cursor_execute", hear)


def run_of(group: str, database: Database) -> Any:
    """A group with a tracker of its own, as each has it."""
    rule = RecordRule(group, "tail", lambda: GroupCode(OURS), lambda: datetime.now(UTC))
    return SimpleNamespace(group=group, record=rule, processing=SimpleNamespace(tracker=SqlProgressTracker(database)))


def refuse(group: str, database: Database) -> None:
    """Record that the group was rebuilt by other handlers than those of this process."""
    rebuild = RebuildRecord(group, RebuildPhase.SWAPPED, "others", refused=(OURS,))
    records = SqlProgressTracker(database)._records
    with database.writing() as connection:
        records.write(connection, GroupRecord(group, began_at="2026-01-05", handlers="others"), None)
        connection.execute(database.table(REBUILDS).insert().values(**rebuild_row(rebuild)))


def test_groups_that_others_have_rebuilt_are_found_in_each_database(new_database: Callable[[], Database]) -> None:
    one, other = new_database(), new_database()
    bars = RebuildBars([run_of("books", one), run_of("loans", one), run_of("mail", other), run_of("fines", other)])
    assert set(bars()) == set()
    refuse("loans", one)
    refuse("fines", other)
    assert set(bars()) == {"loans", "fines"}


def test_a_group_is_not_refused_for_its_name_in_another_database(new_database: Callable[[], Database]) -> None:
    one, other = new_database(), new_database()
    refuse("books", other)
    assert set(RebuildBars([run_of("books", one), run_of("mail", other)])()) == set()


@pytest.mark.parametrize("groups", [1, 50])
def test_a_heartbeat_asks_each_database_once_however_many_groups_there_are(
    new_database: Callable[[], Database], asked: list[str], groups: int
) -> None:
    databases = [new_database(), new_database()]
    bars = RebuildBars([run_of(f"group-{number}", each) for each in databases for number in range(groups)])
    asked.clear()
    bars()
    assert len(asked) == len(databases), asked

"""Commands on a database that may be read only: a replica, a user without a privilege, a file that is protected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from urllib.parse import quote

import pytest

from opencqrs_py.adapters.sql import Database, SqlProgressTracker
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model.inbox import InboxChange
from opencqrs_py.model.partition import layout
from opencqrs_py.model.replay import Reset
from opencqrs_py.testing.contracts.inbox_units import NOON, at, brought_in, entry

READ_ONLY = {
    "postgresql": f"options={quote('-c default_transaction_read_only=on')}",
    "mariadb": f"init_command={quote('SET SESSION TRANSACTION READ ONLY')}",
}
WAITING = entry(1, "books/1")


def _reset(tracker: SqlProgressTracker) -> None:
    with tracker.resetting(Reset("group", 0, "", at(NOON)), layout(1)):
        pass


CHANGES: dict[str, Callable[[SqlProgressTracker], object]] = {
    "inbox": lambda tracker: tracker.change("group", InboxChange(at(NOON), removed=(WAITING,))),
    "claim": lambda tracker: tracker.claim("group", layout(1), 0, "me"),
    "reset": _reset,
    "split": lambda tracker: tracker.repartition("group", layout(2), lambda found: found),
}


@pytest.fixture
def read_only(database: Database, url: str, kind: str) -> Iterator[SqlProgressTracker]:
    """A group with an event in its inbox, on a database that may be read only."""
    tracker = SqlProgressTracker(database)
    (cursor,) = tracker.claim("group", layout(1), 0, "me")
    with tracker.unit("group", cursor, 1, change=brought_in(WAITING)):
        pass
    path = url.removeprefix("sqlite:///")
    sqlite = f"sqlite:///file:{path}?mode=ro&uri=true"
    opened = Database(sqlite if kind == "sqlite" else f"{url}{'&' if '?' in url else '?'}{READ_ONLY[kind]}")
    yield SqlProgressTracker(opened)
    opened.close()


@pytest.mark.parametrize("name", CHANGES)
def test_a_read_only_database_refuses_changes_of_progress_or_inbox_with_the_reason(
    read_only: SqlProgressTracker, name: str
) -> None:
    assert [one.position for one in read_only.entries("group")] == [1]
    with pytest.raises(EventStoreError) as caught:
        CHANGES[name](read_only)
    assert caught.value.code == "OCQ-304"
    assert caught.value.what.startswith("the database cannot be used (")
    assert "may write" in caught.value.fix

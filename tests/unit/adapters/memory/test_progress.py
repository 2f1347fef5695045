"""Progress in memory that several threads use at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from opencqrs_py.adapters.memory import InMemoryProgressTracker
from opencqrs_py.model import Cursor, layout
from opencqrs_py.model.inbox import InboxChange
from opencqrs_py.model.replay import Reset

NOW = "2026-01-01T00:00:00.000+00:00"
BOTH = layout(2)
Call = Callable[[InMemoryProgressTracker, Cursor], object]


class OnlyLocked(dict[Any, Any]):
    """A dictionary that refuses to be iterated without the lock: another thread may change it meanwhile."""

    def __init__(self, tracker: InMemoryProgressTracker) -> None:
        super().__init__()
        self.lock = tracker._lock

    def __iter__(self) -> Iterator[Any]:
        assert self.lock.locked()
        return super().__iter__()

    def items(self) -> Any:
        assert self.lock.locked()
        return super().items()


def reset(tracker: InMemoryProgressTracker, _: Cursor) -> None:
    with tracker.resetting(Reset("group", 0), BOTH):
        pass


def end_replay(tracker: InMemoryProgressTracker, cursor: Cursor) -> None:
    with tracker.ending_replay("group", cursor):
        pass


def handle(tracker: InMemoryProgressTracker, cursor: Cursor) -> None:
    with tracker.unit("group", cursor, 1):
        pass


@pytest.mark.parametrize(
    "call",
    [
        reset,
        end_replay,
        handle,
        lambda tracker, _: tracker.claim("group", BOTH, 0, "other"),
        lambda tracker, _: tracker.repartition(
            "group", layout(1), lambda _: {layout(1)[0]: Cursor(layout(1)[0], 0, 0, 0)}
        ),
        lambda tracker, _: tracker.change("group", InboxChange(NOW)),
        lambda tracker, _: tracker.statuses(),
        lambda tracker, _: tracker.skipped(),
        lambda tracker, _: tracker.reached("group"),
    ],
)
def test_progress_is_iterated_only_under_its_lock(call: Call) -> None:
    tracker = InMemoryProgressTracker()
    tracker._progress = OnlyLocked(tracker)
    cursor, _ = tracker.claim("group", BOTH, 0, "owner")
    call(tracker, cursor)

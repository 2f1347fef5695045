"""How often a database without notifications is polled: less often the longer it is idle."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from opencqrs_py.adapters.sql import watching
from opencqrs_py.adapters.sql.watching import Poll

HEAD = 7


class QuietTime:
    """A clock that runs only while the poll pauses, and the pauses: when each began, and how long it was."""

    def __init__(self) -> None:
        self.now = 0.0
        self.pauses: list[tuple[float, float]] = []

    def pause(self, seconds: float) -> bool:
        self.pauses.append((self.now, seconds))
        self.now += seconds
        return False


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> QuietTime:
    made = QuietTime()
    monkeypatch.setattr(watching, "time", SimpleNamespace(monotonic=lambda: made.now))
    monkeypatch.setattr(watching, "Event", lambda: SimpleNamespace(wait=made.pause, clear=lambda: None))
    return made


def poll_of(counter: Callable[[], int]) -> Poll:
    database: Any = SimpleNamespace(guard=SimpleNamespace(check=lambda _: None))
    connection: Any = None
    return Poll(database, connection, lambda _: HEAD, counter)


def test_an_idle_log_is_polled_twenty_times_a_second(quiet: QuietTime) -> None:
    assert poll_of(lambda: 0).wait(HEAD, 60) == HEAD
    assert len([began for began, _ in quiet.pauses if began >= 50]) == pytest.approx(200, abs=2)


def test_an_event_is_noticed_within_a_fiftieth_of_the_time_since_the_previous_one(quiet: QuietTime) -> None:
    poll_of(lambda: 0).wait(HEAD, 60)
    assert all(pause <= max(0.001, began / 49.99) for began, pause in quiet.pauses)


def test_pauses_are_short_again_after_a_change(quiet: QuietTime) -> None:
    changes_at = 30.0
    poll_of(lambda: int(quiet.now >= changes_at)).wait(HEAD, 60)
    assert min(pause for began, pause in quiet.pauses if changes_at <= began < changes_at + 0.1) == pytest.approx(0.001)

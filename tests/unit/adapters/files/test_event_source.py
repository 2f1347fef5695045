"""How often files are checked."""

from __future__ import annotations

import pytest

from opencqrs_py.adapters.files.event_source import FileWatch
from opencqrs_py.testing import FakeClock


class Folder:
    """A log whose head moves at known times."""

    def __init__(self, *changes: tuple[float, int]) -> None:
        self.clock = FakeClock()
        self.pauses: list[float] = []
        self._changes = changes
        self.watch = FileWatch(self.head, self.clock, self.pause)

    def head(self) -> int:
        return max((head for time, head in self._changes if time <= self.clock.monotonic()), default=0)

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.clock.advance(seconds)


def test_existing_lines_are_reported_at_once() -> None:
    folder = Folder((0, 3))
    assert folder.watch.wait(2, 10) == 3
    assert folder.pauses == []


def test_pauses_grow_up_to_40_milliseconds() -> None:
    folder = Folder()
    assert folder.watch.wait(0, 10) == 0
    assert folder.pauses[:3] == [0.01, 0.015, 0.0225]
    assert max(folder.pauses) == 0.04
    assert sum(folder.pauses) == pytest.approx(10)
    assert folder.clock.monotonic() == pytest.approx(10)


@pytest.mark.parametrize("idle", [0.0, 0.013, 1.0, 3_600.0])
def test_a_new_line_is_seen_within_50_milliseconds_after_any_idle_time(idle: float) -> None:
    folder = Folder((idle, 1))
    assert folder.watch.wait(0, idle + 10) == 1
    assert folder.clock.monotonic() - idle <= 0.05
    assert max(folder.pauses, default=0) <= 0.05


def test_pauses_are_short_again_after_a_new_line() -> None:
    folder = Folder((5, 1))
    assert folder.watch.wait(0, 10) == 1
    assert 5 <= folder.clock.monotonic() <= 5.04
    folder.pauses.clear()
    folder.watch.wait(1, 1)
    assert folder.pauses[0] == 0.01


def test_a_wait_with_a_timeout_of_0_checks_once() -> None:
    folder = Folder()
    assert folder.watch.wait(0, 0) == 0
    assert folder.pauses == []


@pytest.mark.parametrize(("look", "most"), [(0.001, 0.04), (0.05, 0.2), (60, 1.0)])
def test_slow_checks_are_farther_apart(look: float, most: float) -> None:
    folder = Folder()

    def slow() -> int:
        folder.clock.advance(look)
        return 0

    FileWatch(slow, folder.clock, folder.pause).wait(0, 10 + 100 * look)
    assert max(folder.pauses) == pytest.approx(most)


def test_a_single_slow_check_does_not_lengthen_the_pauses() -> None:
    folder = Folder()
    looks = iter([0.001, 0.2, *[0.001] * 1_000])

    def held_up_once() -> int:
        folder.clock.advance(next(looks))
        return 0

    FileWatch(held_up_once, folder.clock, folder.pause).wait(0, 1)
    assert max(folder.pauses) == 0.04

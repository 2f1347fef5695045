from __future__ import annotations

import io

import pytest
from rich.console import Console

from opencqrs_py.cli.events import display
from opencqrs_py.cli.events.display import ProgressReport, rate
from opencqrs_py.testing import FakeClock


@pytest.fixture
def screen(monkeypatch):
    out = io.StringIO()
    monkeypatch.setattr(display, "stderr", lambda: Console(file=out, width=200))
    return out


def shown(screen, total, *steps):
    clock = FakeClock()
    progress = ProgressReport("read", total, clock.monotonic)
    for seconds, done in steps:
        clock.advance(seconds)
        progress(done)
    return screen.getvalue().splitlines()


def test_short_work_shows_no_progress(screen):
    assert shown(screen, None, (0.5, 1), (1.4, 1_000)) == []


def test_progress_lines_appear_at_most_every_two_seconds(screen):
    lines = shown(screen, None, (1, 500), (1, 1_000), (0.1, 1_050), (2, 4_100))
    assert lines == ["1,000 events read (500/s) …", "4,100 events read (1,000/s) …"]


def test_the_time_left_is_shown_if_the_total_is_known(screen):
    assert shown(screen, 10_000, (2, 1_000)) == ["1,000 of 10,000 events read (500/s), 18 s left …"]


def test_no_time_left_is_shown_before_the_first_event(screen):
    assert shown(screen, 10, (3, 0)) == ["0 events read (0/s) …"]


@pytest.mark.parametrize(("events", "seconds", "text"), [(999, 1, ""), (1_000, 0, ""), (3_000, 1.5, " (2,000/s)")])
def test_a_rate_is_shown_only_for_enough_events_and_time(events, seconds, text):
    assert rate(events, seconds) == text

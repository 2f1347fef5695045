from __future__ import annotations

import io

import pytest
from rich.console import Console

from opencqrs_py.cli import monitor as monitors
from opencqrs_py.cli.monitor import Look, Monitor, monitor_for
from opencqrs_py.model.outcome import Outcome
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor


@pytest.fixture
def screen(monkeypatch):
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None)
    monkeypatch.setattr(monitors, "stderr", lambda: console)
    return out


LOOKS = [Look("books", "0/2", 250, 1_000, 50.0), Look("books", "1/2", 1_000, 1_000, 0.0)]


def test_figures_are_events_rate_lag_and_time_left():
    assert LOOKS[0].figures == "250 of 1,000, lag 750, 50/s, 15 s left"
    assert LOOKS[1].figures == "1,000 of 1,000, lag 0, 0/s"


def test_plain_lines_tell_only_of_partitions_that_moved(screen):
    monitor_for(None, terminal=False).show(LOOKS)
    assert screen.getvalue() == "[books 0/2] 250 of 1,000, lag 750, 50/s, 15 s left\n"


def test_a_terminal_gets_a_bar_for_each_partition(screen):
    monitor = monitor_for(None, terminal=True)
    monitor.show(LOOKS)
    monitor.show([Look("books", "0/2", 300, 1_000, 50.0)])
    monitor._bars.refresh()
    tasks = [(task.description, task.completed, task.total) for task in monitor._bars.tasks]
    assert tasks == [("books 0/2", 300, 1_000), ("books 1/2", 1_000, 1_000)]


def test_a_rate_is_that_of_late_and_not_of_the_whole_run():
    monitor = Monitor(None, every=4.0)  # so that two looks are kept
    monitor._seen["books", "0/1"] = monitors.deque([(-100.0, 0), (-1.0, 500)], maxlen=2)
    look = monitor._look("books", "0/1", 500, 1_000)
    assert look.rate == 0.0


def test_what_was_handled_is_added_up_per_partition():
    monitor = Monitor(None, every=1.0)
    partition = Partition(1, 0)
    for handled in (3, 4):
        monitor.advanced("books", partition, Outcome(Cursor(partition, 1, 0, 0), handled=handled))
    assert monitor.handled == {("books", "0/1"): 7}

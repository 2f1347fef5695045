from __future__ import annotations

import io
import logging
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event

import pytest
from rich.console import Console

from opencqrs_py.assembly.status import GroupStatus
from opencqrs_py.cli import monitor as monitors
from opencqrs_py.cli.monitor import Monitor, SeenPartition, held_up, monitor_for
from opencqrs_py.model.outcome import Outcome
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import Cursor, PartitionStatus, ProcessorState


@pytest.fixture
def screen(monkeypatch):
    out = io.StringIO()
    console = Console(file=out, width=100, force_terminal=True, color_system=None)
    monkeypatch.setattr(monitors, "stderr", lambda: console)
    return out


LOOKS = [SeenPartition("books", "0/2", 250, 1_000, 50.0), SeenPartition("books", "1/2", 1_000, 1_000, 0.0)]


def test_figures_are_position_lag_rate_and_time_left():
    assert LOOKS[0].figures == "250 of 1,000, lag 750, 50/s, 15 s left"
    assert LOOKS[1].figures == "1,000 of 1,000, lag 0, 0/s"
    assert replace(LOOKS[0], head=None).figures == "250, newest event unknown, 50/s"
    assert replace(LOOKS[0], head=None, held_up="waiting").figures == "250, newest event unknown, waiting"


def test_plain_lines_report_only_partitions_that_moved(caplog):
    with caplog.at_level(logging.INFO):
        monitor_for(None, terminal=False).show(LOOKS)
    assert caplog.messages == ["[books 0/2] 250 of 1,000, lag 750, 50/s, 15 s left"]


WAITS = "there are no new events: all partitions wait for more"
AT_HEAD = SeenPartition("books", "0/2", 5, 5, 0.0)


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (SeenPartition("books", "1/2", 5, 5, 0.0), [WAITS]),
        (SeenPartition("mail", "0/1", 0, 0, 0.0), [WAITS]),
        (SeenPartition("books", "1/2", 4, 5, 0.0), []),
        (SeenPartition("books", "1/2", 5, None, 0.0), []),
        (SeenPartition("books", "1/2", 5, 5, 0.2), ["[books 1/2] 5 of 5, lag 0, 0/s"]),
        (SeenPartition("books", "1/2", 5, 5, 0.0, "failed"), []),
    ],
    ids=["at head", "empty log", "lagging", "unknown", "just moved", "held up"],
)
def test_plain_lines_report_that_all_partitions_are_at_the_head(caplog, other, says):
    with caplog.at_level(logging.INFO):
        monitor_for(None, terminal=False).show([AT_HEAD, other])
    assert caplog.messages == says


def test_plain_lines_report_once_that_all_partitions_are_at_the_head(caplog):
    monitor = monitor_for(None, terminal=False)
    with caplog.at_level(logging.INFO):
        for looks in ([], [AT_HEAD], [AT_HEAD]):
            monitor.show(looks)
    assert caplog.messages == [WAITS]


def test_a_run_that_ends_at_the_head_does_not_report_it(caplog):
    with caplog.at_level(logging.INFO):
        monitor_for(None, terminal=False, ends=True).show([AT_HEAD])
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("state", "seconds", "says"),
    [
        (ProcessorState.RUNNING, 5, "1/s"),
        (ProcessorState.STARTING, None, "1/s"),
        (ProcessorState.BACKING_OFF, 4.5, "backing-off, attempt 2, retry in 4.5 s"),
        (ProcessorState.BACKING_OFF, -1, "backing-off, attempt 2, retry at once"),
        (ProcessorState.WAITING, 2, "waiting for the database or event store, retry in 2.0 s"),
        (ProcessorState.FAILED, 30, "failed, next attempt in 30 s"),
        (ProcessorState.FAILED, None, "failed"),
        (ProcessorState.STOPPED, None, "stopped"),
    ],
)
def test_the_obstacle_of_a_partition_is_shown_instead_of_its_rate(state, seconds, says):
    now = datetime(2026, 1, 5, tzinfo=UTC)
    due = None if seconds is None else (now + timedelta(seconds=seconds)).isoformat()
    status = PartitionStatus("books", Partition(1, 0), 5, state, attempt=2, next_attempt_at=due)
    assert SeenPartition("books", "0/1", 5, 5, 1.0, held_up(status, now)).figures == f"5 of 5, lag 0, {says}"


class _Application:
    """An application that records which groups it was asked about."""

    def __init__(self):
        self.asked = []

    def status(self, groups=()):
        self.asked.append(groups)
        return [GroupStatus(g, 9, (PartitionStatus(g, Partition(1, 0), 3, ProcessorState.FAILED),)) for g in groups]


def test_only_groups_that_run_here_are_watched(screen):
    application = _Application()
    monitor = monitor_for(application, terminal=True)
    shown, looks = Event(), []

    def show(now):
        looks.extend(now)
        if now:
            shown.set()

    monitor.show = show
    monitor._every = 0.001
    with monitor:
        monitor.claimed("books", Partition(1, 0), 3)
        assert shown.wait(30)
    assert {look.group for look in looks} == {"books"}
    assert {look.held_up for look in looks} == {"failed"}
    assert application.asked == [["books"]] * len(application.asked)


def test_a_terminal_gets_a_bar_for_each_partition(screen):
    monitor = monitor_for(None, terminal=True)
    monitor.show(LOOKS)
    monitor.show([SeenPartition("books", "0/2", 300, 1_000, 50.0)])
    monitor._bars.refresh()
    tasks = [(task.description, task.completed, task.total) for task in monitor._bars.tasks]
    assert tasks == [("books 0/2", 300, 1_000), ("books 1/2", 1_000, 1_000)]
    monitor.show([SeenPartition("books", "0/2", 400, None, 50.0), SeenPartition("mail", "0/1", 0, None, 0.0)])
    assert [(task.completed, task.total) for task in monitor._bars.tasks] == [(400, 1_000), (1_000, 1_000), (0, None)]


def test_a_rate_is_that_of_the_last_samples_and_not_of_the_whole_run():
    monitor = Monitor(None, every=4.0)  # so that two samples are kept
    monitor._seen["books", "0/1"] = monitors.deque([(-100.0, 0), (-1.0, 500)], maxlen=2)
    look = monitor._look(PartitionStatus("books", Partition(1, 0), 500, ProcessorState.RUNNING), 1_000)
    assert look.rate == 0.0


def test_handled_events_are_added_up_per_partition():
    monitor = Monitor(None, every=1.0)
    partition = Partition(1, 0)
    for handled in (3, 4):
        monitor.advanced("books", partition, Outcome(Cursor(partition, 1, 0, 0), handled=handled))
    assert monitor.handled == {("books", "0/1"): 7}

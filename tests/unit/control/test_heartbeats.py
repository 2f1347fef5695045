"""When a node counts as silent, regardless of the database clock."""

from __future__ import annotations

import pytest

from opencqrs_py.control.heartbeats import Heartbeats
from opencqrs_py.control.records import ControlView, Node, NodeRecord, ProcessIdentity

TIMINGS = [(1, 0.1), (1, 0.3), (1, 0.5), (2, 0.9), (2, 1), (3, 1), (10, 0.3), (10, 3), (10, 5), (60, 30)]


def view_of(duration: float, seconds_left: float) -> ControlView:
    node = Node("a-0", "a", ProcessIdentity("boot", "pids", 1, "1"), lease_seconds=duration)
    return ControlView((NodeRecord(node, seconds_left, seconds_left > 0),))


@pytest.mark.parametrize("phase", [0.01, 0.5, 0.99])
@pytest.mark.parametrize(("duration", "heartbeat"), TIMINGS)
def test_a_node_that_renews_its_leases_in_time_is_always_seen_alive(duration, heartbeat, phase):
    heartbeats = Heartbeats()
    for beat in range(40):
        for look in (phase, phase + 0.5 * (1 - phase)):
            view = view_of(duration, duration - look * heartbeat)
            (seen,) = heartbeats.corrected(view, (beat + look) * heartbeat).nodes
            assert seen.alive


@pytest.mark.parametrize(("duration", "heartbeat"), TIMINGS)
def test_a_silent_node_is_dead_after_its_lease_duration_even_if_the_database_clock_was_set_back(duration, heartbeat):
    heartbeats = Heartbeats()
    heartbeats.corrected(view_of(duration, duration), 0.0)
    for at, alive in ((heartbeat, True), (0.99 * duration, True), (1.01 * duration, False)):
        (seen,) = heartbeats.corrected(view_of(duration, 3_600 + duration - at), at).nodes
        assert seen.alive is alive


@pytest.mark.parametrize("late", [-0.09, 0.0, 0.09])
def test_a_slightly_late_answer_does_not_revive_a_silent_node(late):
    heartbeats = Heartbeats()
    heartbeats.corrected(view_of(1, 1.0), 0.0)
    for at in (0.5, 3_599.6):  # the database clock was set back by an hour
        heartbeats.corrected(view_of(1, 3_600 - at), at)
    (seen,) = heartbeats.corrected(view_of(1, 0.3 - late), 3_599.7).nodes
    assert not seen.alive

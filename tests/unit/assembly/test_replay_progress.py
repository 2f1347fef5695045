"""The progress of a replay, as shown by status."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from opencqrs_py import Reset
from opencqrs_py.assembly.status import ReplayProgress
from opencqrs_py.model import Partition, PartitionStatus, ProcessorState
from opencqrs_py.model.replay import Replay

NOW = datetime(2026, 1, 1, 0, 0, 10, tzinfo=UTC)
REPLAY = Replay(Reset("books", 100, reset_at="2026-01-01T00:00:00.000+00:00"), 300)


@pytest.mark.parametrize(
    ("position", "measured", "percent", "rate", "left"),
    [
        pytest.param(150, None, 25.0, 5.0, 30.0, id="the-rate-since-the-reset"),
        pytest.param(150, 50.0, 25.0, 50.0, 3.0, id="the-measured-rate"),
        pytest.param(100, None, 0.0, None, None, id="nothing-done-yet"),
        pytest.param(150, 0.0, 25.0, 0.0, None, id="no-progress"),
        pytest.param(310, None, 100.0, 21.0, 0.0, id="beyond-the-end"),
    ],
)
def test_replay_progress_has_percent_rate_and_time_left(
    position: int, measured: float | None, percent: float, rate: float | None, left: float | None
) -> None:
    status = PartitionStatus("books", Partition(1, 0), position, ProcessorState.RUNNING, replay=REPLAY)
    assert ReplayProgress.of(status, measured, NOW) == ReplayProgress(100, 300, percent, rate, left)


def test_without_a_replay_there_is_no_replay_progress() -> None:
    status = PartitionStatus("books", Partition(1, 0), 5, ProcessorState.RUNNING)
    assert ReplayProgress.of(status, 1.0, NOW) is None

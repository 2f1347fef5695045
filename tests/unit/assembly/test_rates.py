from __future__ import annotations

import pytest

from opencqrs_py.assembly.rates import Rates
from opencqrs_py.assembly.status import GroupStatus
from opencqrs_py.model.partition import Partition
from opencqrs_py.model.progress import PartitionStatus, ProcessorState

ONE = Partition(1, 0)


def look(position: int) -> list[GroupStatus]:
    return [GroupStatus("books", 100, (PartitionStatus("books", ONE, position, ProcessorState.RUNNING),))]


@pytest.mark.parametrize(
    ("looks", "rate"),
    [
        ([(0.0, 10)], None),
        ([(0.0, 10), (2.0, 60)], 25.0),
        ([(0.0, 10), (2.0, 10)], 0.0),
        ([(0.0, 10), (2.0, 60), (4.0, 62)], 1.0),
        ([(0.0, 10), (0.0, 60)], None),
        ([(0.0, 60), (2.0, 10)], None),  # after a reset
    ],
)
def test_a_rate_is_the_progress_between_the_last_two_samples(looks, rate):
    rates = Rates()
    for now, position in looks:
        (status,) = rates.measured(look(position), now)
    assert status.events_per_second == {ONE: rate}

"""Resets: new events of partitions that are sequenced differently now."""

from __future__ import annotations

import pytest

from opencqrs_py.assembly.resets import _new_for_all
from opencqrs_py.errors import ResetError
from opencqrs_py.model import Cursor, Partition, PartitionStatus, ProcessorState

HALVES = Partition(2, 0), Partition(2, 1)
LOOKED_AT = [PartitionStatus("catalog", half, 10, ProcessorState.RUNNING) for half in HALVES]


@pytest.mark.parametrize("half", HALVES)
def test_new_events_apply_to_each_partition_that_has_not_moved(half: Partition) -> None:
    assert _new_for_all(LOOKED_AT, {3, 4}, Cursor(half, 2, 10, 10)) == {3, 4}


def test_a_partition_that_has_moved_meanwhile_is_refused() -> None:
    with pytest.raises(ResetError, match=r"OCQ-613\] partition 1/2 has handled events meanwhile"):
        _new_for_all(LOOKED_AT, {3, 4}, Cursor(HALVES[1], 2, 13, 13))

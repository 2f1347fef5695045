"""Hostile handlers of processors made by hand: the read model is right, or the partition stops with a message."""

from __future__ import annotations

import pytest
from harness.arena import Arena
from harness.engines import run_by_hand
from harness.lanes import Combination
from harness.ordeal import undergone

ENGINE = "hand"

pytestmark = pytest.mark.filterwarnings("ignore")  # attacks may leave things open


def test_an_attack_leaves_a_correct_read_model_or_a_stopped_partition(combination: Combination, arena: Arena) -> None:
    targets = arena.targets([combination])
    (ordeal,) = undergone(targets, lambda those: {target.group: run_by_hand(target) for target in those}).values()
    ordeal.check()

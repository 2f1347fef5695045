"""What a restart of groups forgets."""

from __future__ import annotations

from pathlib import Path

from opencqrs_py.adapters.memory import InMemoryControlStore, InMemoryProgressTracker
from opencqrs_py.assembly.control import Control
from opencqrs_py.config import load
from opencqrs_py.model.partition import layout
from opencqrs_py.model.progress import FailureRecord, PartitionStatus, ProcessorState

CRASHED = FailureRecord(8, "e8", "lent", 0, 0, "", "", "2026-01-05T09:00:00+00:00", crashes=3)


def test_a_restart_of_groups_in_one_database_forgets_the_crashes_of_each(tmp_path: Path) -> None:
    tracker, partitions = InMemoryProgressTracker(), {"books": 2, "loans": 3}
    for group, number in partitions.items():
        for cursor in tracker.claim(group, layout(number), 0, "a process"):
            status = PartitionStatus(group, cursor.partition, 0, ProcessorState.FAILED, failure=CRASHED)
            tracker.report(status, cursor.epoch)
    configuration = load(tmp_path, environ={})
    groups = {group: configuration.group(group) for group in partitions}
    control = Control(groups, frozenset(groups), InMemoryControlStore(), lambda _: tracker)
    assert not control.restart(*groups), "no node runs them"
    assert {status.failure for status in tracker.statuses()} == {None}

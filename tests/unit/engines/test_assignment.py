"""The partitions assigned to an engine."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.observers import Watching

from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.control.records import GroupPartition
from opencqrs_py.engines import driver as driving
from opencqrs_py.engines.assignment import Assignment
from opencqrs_py.model import Cursor, ProcessorState, layout
from opencqrs_py.processing.recovery import Action, FixedBackOff
from opencqrs_py.testing import FakeClock

TWO = layout(2)


class Processing:
    """The parts of a group that a claim uses."""

    def __init__(self) -> None:
        self.group = "books"
        self.source = InMemoryEventStore()
        self.tracker = InMemoryProgressTracker()
        self.batch_size = 10
        self.has_inbox = True
        self.schedule = self.checkpointing = None

    def processor(self, *_: object) -> object:
        return object()

    def forget_earlier(self, cursors: Sequence[Cursor]) -> None:
        pass

    def look(self, cursors: Sequence[Cursor], _: object) -> Sequence[Cursor]:
        return cursors


class Run:
    """A group whose preparations are counted."""

    group, partitions, back_off, on_exhausted, on_undecodable, record = "books", TWO, None, None, None, None
    rebuilding = False

    def __init__(self) -> None:
        self.processing = Processing()
        self.prepared = 0

    def initial(self) -> int:
        return 0

    def prepare(self) -> None:
        self.prepared += 1


@pytest.fixture
def run() -> Run:
    return Run()


@pytest.fixture
def assignment(run: Run) -> Assignment:
    return Assignment([run], "owner", FakeClock())  # type: ignore[list-item]


def test_a_claimed_partition_is_assigned_until_it_is_removed(assignment):
    assert assignment.assigned() == []
    first, _ = assignment.claim("books", TWO)
    assert assignment.assigned() == [GroupPartition("books", each) for each in TWO]
    assignment.remove(first)
    assert assignment.assigned() == [GroupPartition("books", TWO[1])]


def test_a_partition_lost_to_another_process_is_not_assigned(assignment):
    first, _ = assignment.claim("books", TWO)
    first.supervised.state = ProcessorState.STOPPED
    assert assignment.assigned() == [GroupPartition("books", TWO[1])]


def test_a_group_is_prepared_again_after_all_its_partitions_were_released(assignment, run):
    first, second = *assignment.claim("books", TWO[:1]), *assignment.claim("books", TWO[1:])
    assert run.prepared == 1
    assignment.remove(first)
    assignment.claim("books", TWO[:1])
    assert run.prepared == 1
    for driver in (second, *assignment.of("books", TWO[:1])):
        assignment.remove(driver)
    assignment.claim("books", TWO)
    assert run.prepared == 2


def test_nothing_is_claimed_after_a_stop(assignment, run):
    assignment.stop()
    assert assignment.claim("books", TWO) == []
    assert assignment.assigned() == []
    assert run.processing.tracker.statuses() == []


def test_an_outage_during_a_claim_is_reported_for_a_partition_of_the_claim(run, monkeypatch):
    def unavailable(*_: object, **_named: object) -> None:
        monkeypatch.setattr(run.processing.tracker, "claim", claim)
        raise ConnectionError

    watching, claim = Watching(), run.processing.tracker.claim
    monkeypatch.setattr(driving, "OUTAGE_BACK_OFF", FixedBackOff(0))
    monkeypatch.setattr(run.processing.tracker, "claim", unavailable)
    monkeypatch.setattr(run.processing.tracker, "is_outage", lambda error: isinstance(error, ConnectionError))
    assignment = Assignment([run], "owner", FakeClock(), watching)
    assignment.claim("books", TWO[1:])
    assert [(notice.partition, notice.action) for notice in watching.notices] == [(TWO[1], Action.WAIT)]

"""What engines share: claiming a group's partitions, settling steps, and telling others about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.engines.runs import GroupRun, claim, publish, release, settle
from opencqrs_py.model import (
    Cursor,
    Event,
    Origin,
    Outcome,
    Partition,
    PartitionStatus,
    ProcessorState,
    Trouble,
    layout,
)
from opencqrs_py.processing.backoff import FixedBackOff
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.group import GroupProcessing
from opencqrs_py.processing.ports import UnitOfWork
from opencqrs_py.processing.recovery import Action, OnExhausted
from opencqrs_py.processing.sequencing import PerSubject, SequencingByEvent
from opencqrs_py.processing.supervision import Notice, Observer, SupervisedPartition
from opencqrs_py.testing import FakeClock


class Tracker:
    """Notes claims and reports; reports may fail."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.error: Exception | None = None

    def claim(
        self, group: str, partitions: Sequence[Partition], initial: int, owner: str, **recorded: Any
    ) -> tuple[Cursor, ...]:
        self.log.append(("claim", group, initial, owner))
        return tuple(Cursor(partition, 1, initial, initial) for partition in partitions)

    def unit(self, group: str, cursor: Cursor, to: int, **recorded: Any) -> AbstractContextManager[UnitOfWork]:
        return nullcontext(SimpleNamespace(connection=None, session=None))

    def renewed(self, group: str, cursor: Cursor) -> Cursor | None:
        return None

    def report(self, status: PartitionStatus, epoch: int) -> None:
        if self.error is not None:
            raise self.error
        self.log.append((status.state, status.position, epoch))

    def statuses(self) -> list[PartitionStatus]:
        return []

    def skipped(self) -> list[Any]:
        return []

    def is_outage(self, error: BaseException) -> bool:
        return isinstance(error, ConnectionError)


class Watching(Observer):
    """Notes what an observer is told."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self.steps: list[tuple[str, Partition, Outcome]] = []
        self.moments: list[tuple[Any, ...]] = []

    def claimed(self, group: str, partition: Partition, position: int) -> None:
        self.moments.append(("claimed", group, str(partition), position))

    def stopped(self, group: str, partition: Partition) -> None:
        self.moments.append(("stopped", group, str(partition)))

    def noticed(self, notice: Notice) -> None:
        self.notices.append(notice)

    def advanced(self, group: str, partition: Partition, outcome: Outcome) -> None:
        self.steps.append((group, partition, outcome))


@pytest.fixture
def tracker() -> Tracker:
    return Tracker()


def run_of(tracker: Tracker, prepare: Callable[[], None], initial: Callable[[], int], partitions: int = 2) -> GroupRun:
    processing = GroupProcessing(
        "books",
        InMemoryEventStore(Event(0, str(n), "s", "/", "lent", None, "application/json", "{}", None) for n in range(5)),
        tracker,
        Dispatcher([], []),
        subject="/",
        recursive=True,
        sequencing=SequencingByEvent(PerSubject()),
        partitions=partitions,
        batch_size=None,
    )
    recipe: Any = None
    return GroupRun(processing, recipe, layout(partitions), initial, prepare, FixedBackOff(3), OnExhausted.SKIP)


def supervised(position: int = 0) -> SupervisedPartition:
    cursor = Cursor(Partition(1, 0), 4, position, position)
    return SupervisedPartition("books", cursor, FixedBackOff(3), OnExhausted.SKIP, FakeClock())


def failed(cursor: Cursor) -> Outcome:
    return Outcome(cursor, trouble=Trouble(Origin.HANDLER, permanent=False, error="E", message="m", position=1))


def test_a_group_is_prepared_before_it_is_claimed_and_the_claim_is_published(tracker: Tracker) -> None:
    def prepare() -> None:
        tracker.log.append("prepared")

    def initial() -> int:
        tracker.log.append("asked where to start")
        return 5

    run = run_of(tracker, prepare, initial)
    partitions = claim(run, "me", FakeClock())
    assert tracker.log == [
        "prepared",
        "asked where to start",
        ("claim", "books", 5, "me"),
        (ProcessorState.STARTING, 5, 1),
        (ProcessorState.STARTING, 5, 1),
    ]
    assert [str(partition.partition) for partition in partitions] == ["0/2", "1/2"]
    assert {partition.group for partition in partitions} == {run.group} == {"books"}


def test_an_observer_is_told_of_each_partition_that_was_claimed(tracker: Tracker) -> None:
    observer = Watching()
    claim(run_of(tracker, lambda: None, lambda: 5), "me", FakeClock(), observer)
    assert observer.moments == [("claimed", "books", "0/2", 5), ("claimed", "books", "1/2", 5)]


def test_a_partition_that_is_let_go_of_is_published_before_the_observer_is_told(tracker: Tracker) -> None:
    observer = Watching()
    release(supervised(3), tracker, observer)
    assert tracker.log == [(ProcessorState.STOPPED, 3, 4)]
    assert observer.moments == [("stopped", "books", "0/1")]


def test_the_observer_is_told_of_the_end_even_if_it_cannot_be_published(tracker: Tracker) -> None:
    observer = Watching()
    tracker.error = LookupError("no such table")
    release(supervised(3), tracker, observer)
    assert observer.moments == [("stopped", "books", "0/1")]


def test_a_group_that_cannot_be_prepared_is_not_claimed(tracker: Tracker) -> None:
    def prepare() -> None:
        raise LookupError("no such table")

    with pytest.raises(LookupError):
        claim(run_of(tracker, prepare, lambda: 0), "me", FakeClock())
    assert tracker.log == []


def test_an_outage_while_a_group_is_prepared_is_waited_for_and_reported(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("opencqrs_py.engines.runs.time.sleep", waits.append)
    errors = [ConnectionError("away"), ConnectionError("still away")]

    def prepare() -> None:
        if errors:
            raise errors.pop(0)

    observer = Watching()
    (first, _) = claim(run_of(tracker, prepare, lambda: 0), "me", FakeClock(), observer)
    assert waits == [0.5, 1.0]
    assert [(notice.action, str(notice.trouble), notice.wait) for notice in observer.notices] == [
        (Action.WAIT, "ConnectionError: away", 0.5),
        (Action.WAIT, "ConnectionError: still away", 1.0),
    ]
    assert first.cursor.stored == 0


def test_a_database_that_cannot_be_reached_at_all_is_an_error(tracker: Tracker) -> None:
    def statuses() -> list[PartitionStatus]:
        raise ConnectionError("no such host")

    tracker.statuses = statuses  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        claim(run_of(tracker, lambda: None, lambda: 0), "me", FakeClock())


def test_an_outage_is_not_made_worse_by_what_cannot_be_published(tracker: Tracker) -> None:
    tracker.error = ConnectionError("away")
    publish(tracker, supervised())


def test_any_other_error_of_publishing_is_logged_and_ends_nothing(
    tracker: Tracker, caplog: pytest.LogCaptureFixture
) -> None:
    tracker.error = LookupError("no such table")
    publish(tracker, supervised())
    assert caplog.messages == ["[books 0/1] its state cannot be reported: LookupError: no such table"]


def test_a_change_of_state_is_published_and_a_further_step_is_not(tracker: Tracker) -> None:
    partition, observer = supervised(), Watching()
    for position in (1, 2, 3):
        settle(partition, Outcome(partition.cursor.moved_to(position, stored=True), handled=1), tracker, observer)
    assert tracker.log == [(ProcessorState.RUNNING, 1, 4)]
    assert [outcome.cursor.position for _, _, outcome in observer.steps] == [1, 2, 3]
    assert {(group, part) for group, part, _ in observer.steps} == {("books", Partition(1, 0))}
    assert observer.notices == []
    assert partition.handled == 3


def test_each_failure_is_noticed_and_published(tracker: Tracker) -> None:
    partition, observer = supervised(), Watching()
    for _ in range(2):
        settle(partition, failed(partition.cursor), tracker, observer)
    assert tracker.log == [(ProcessorState.BACKING_OFF, 0, 4)] * 2
    assert [(notice.action, notice.attempt, notice.wait) for notice in observer.notices] == [
        (Action.RETRY, 1, 3),
        (Action.RETRY, 2, 3),
    ]


def test_recovery_is_noticed_and_published(tracker: Tracker) -> None:
    partition, observer = supervised(), Watching()
    settle(partition, failed(partition.cursor), tracker, observer)
    settle(partition, Outcome(partition.cursor.moved_to(1, stored=True), handled=1), tracker, observer)
    assert tracker.log[-1] == (ProcessorState.RUNNING, 1, 4)
    assert [notice.action for notice in observer.notices] == [Action.RETRY, None]
    assert len(observer.steps) == 2

"""The driver of a partition: claims, settled steps and releases; and outages at the start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import count
from threading import Event as Signal
from types import SimpleNamespace
from typing import Any

import pytest
from support.observers import Watching

from opencqrs_py.adapters.memory import InMemoryEventStore
from opencqrs_py.engines.assignment import Assignment
from opencqrs_py.engines.driver import PartitionDriver
from opencqrs_py.engines.runs import GroupRun
from opencqrs_py.errors import EventStoreError
from opencqrs_py.model import (
    Cursor,
    Event,
    Failure,
    Origin,
    Outcome,
    Partition,
    PartitionStatus,
    ProcessorState,
    Skip,
    layout,
)
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.exceptions import failure_of
from opencqrs_py.processing.groups import GroupProcessing
from opencqrs_py.processing.notices import NO_OBSERVER, Notice, Observer
from opencqrs_py.processing.ports import UnitOfWork
from opencqrs_py.processing.recovery import Action, FixedBackOff, NoRetry
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent
from opencqrs_py.testing import FakeClock


class Tracker:
    """A tracker that records claims and reports; reports may fail."""

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


@pytest.fixture
def tracker() -> Tracker:
    return Tracker()


def run_of(
    tracker: Tracker,
    prepare: Callable[[], None],
    initial: Callable[[], int],
    partitions: int = 2,
    source: InMemoryEventStore | None = None,
) -> GroupRun:
    events = (Event(0, str(n), "s", "/", "lent", None, "application/json", "{}", None) for n in range(5))
    processing = GroupProcessing(
        "books",
        source or InMemoryEventStore(events),
        tracker,
        Dispatcher([], []),
        subject="/",
        recursive=True,
        sequencing=SequencingByEvent(PerSubject()),
        partitions=partitions,
        batch_size=None,
    )
    return GroupRun(processing, layout(partitions), initial, FixedBackOff(3), OnExhausted.SKIP, prepare)


def claimed(run: GroupRun, observer: Observer = NO_OBSERVER) -> list[PartitionDriver]:
    return Assignment([run], "me", FakeClock(), observer).claim("books", run.partitions)


def driver_of(tracker: Tracker, observer: Observer = NO_OBSERVER, position: int = 0) -> PartitionDriver:
    """Return a driver as after a claim, with an empty record of calls."""
    cursor = Cursor(Partition(1, 0), 4, position, position)
    driver = PartitionDriver(run_of(tracker, lambda: None, lambda: 0, 1), cursor, FakeClock(), observer)
    tracker.log.clear()
    if isinstance(observer, Watching):
        observer.told.clear()
    return driver


def failed(cursor: Cursor) -> Outcome:
    return Outcome(cursor, failure=Failure(Origin.HANDLER, permanent=False, error="E", message="m", position=1))


def test_a_group_is_prepared_before_it_is_claimed_and_the_claim_is_published(tracker: Tracker) -> None:
    def prepare() -> None:
        tracker.log.append("prepared")

    def initial() -> int:
        tracker.log.append("asked where to start")
        return 5

    run = run_of(tracker, prepare, initial)
    drivers = claimed(run)
    assert tracker.log == [
        "prepared",
        "asked where to start",
        ("claim", "books", 5, "me"),
        (ProcessorState.STARTING, 5, 1),
        (ProcessorState.STARTING, 5, 1),
    ]
    assert [str(driver.partition) for driver in drivers] == ["0/2", "1/2"]
    assert {driver.supervised.group for driver in drivers} == {run.group} == {"books"}


def test_an_observer_is_notified_of_each_claimed_partition(tracker: Tracker) -> None:
    observer = Watching()
    claimed(run_of(tracker, lambda: None, lambda: 5), observer)
    assert observer.moments == [("claimed", "books", "0/2", 5), ("claimed", "books", "1/2", 5)]


def test_a_release_is_published_before_the_observer_is_notified(tracker: Tracker) -> None:
    observer = Watching()
    driver_of(tracker, observer, 3).release()
    assert tracker.log == [(ProcessorState.STOPPED, 3, 4)]
    assert observer.moments == [("stopped", "books", "0/1")]


def test_the_observer_is_notified_of_a_release_that_cannot_be_published(tracker: Tracker) -> None:
    observer = Watching()
    driver = driver_of(tracker, observer, 3)
    tracker.error = LookupError("no such table")
    driver.release()
    assert observer.moments == [("stopped", "books", "0/1")]


def test_a_group_that_cannot_be_prepared_is_not_claimed(tracker: Tracker) -> None:
    def prepare() -> None:
        raise LookupError("no such table")

    with pytest.raises(LookupError):
        claimed(run_of(tracker, prepare, lambda: 0))
    assert tracker.log == []


def test_preparing_a_group_waits_for_the_end_of_an_outage_and_reports_it(
    tracker: Tracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr("threading.Event.wait", lambda _self, seconds=None: waits.append(seconds))
    errors = [ConnectionError("no answer"), ConnectionError("still no answer")]

    def prepare() -> None:
        if errors:
            raise errors.pop(0)

    observer = Watching()
    (first, _) = claimed(run_of(tracker, prepare, lambda: 0), observer)
    assert waits == [0.5, 1.0]
    assert [(notice.action, str(notice.failure), notice.wait) for notice in observer.notices] == [
        (Action.WAIT, "ConnectionError: no answer", 0.5),
        (Action.WAIT, "ConnectionError: still no answer", 1.0),
    ]
    assert first.cursor.stored == 0


class UnavailableStore(InMemoryEventStore):
    """An event store that is unavailable at the first call."""

    def head(self) -> int:
        self.head = super().head  # type: ignore[method-assign]
        raise OUTAGE

    def is_outage(self, error: BaseException) -> bool:
        return error is OUTAGE


OUTAGE = EventStoreError("OCQ-331", "it cannot be reached (refused)", "store://host:1", "start it")
ADVICE = ["  where: store://host:1", "  fix:   start it"]


@pytest.mark.parametrize(("source", "says"), [(UnavailableStore(), "the event store is unavailable: "), (None, "")])
def test_a_start_in_an_outage_logs_once_what_is_unavailable_and_what_to_do(
    tracker: Tracker, source: UnavailableStore | None, says: str, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr("threading.Event.wait", lambda _self, seconds=None: None)
    tracker.is_outage = lambda error: error is OUTAGE  # type: ignore[method-assign]
    errors = [OUTAGE, OUTAGE]

    def prepare() -> None:
        if errors:
            raise errors.pop()

    claimed(run_of(tracker, prepare, lambda: 0, source=source))
    first, second = caplog.messages
    line = "[books 0/2] could not continue ([OCQ-331] EventStoreError: {}it cannot be reached (refused)); no attempt is"
    assert first.splitlines()[0].startswith(line.format(says))
    assert first.splitlines()[1:] == ADVICE
    assert second.startswith(line.format(""))
    assert len(second.splitlines()) == 1


def test_only_the_first_step_logs_what_to_do_about_an_outage(tracker: Tracker, caplog: Any) -> None:
    driver = driver_of(tracker)
    failure = failure_of(OUTAGE, Origin.OUTAGE)
    for _ in range(2):
        driver.settle(Outcome(driver.cursor, failure=failure))
    driver.settle(Outcome(driver.cursor, failure=None))
    driver.settle(Outcome(driver.cursor, failure=failure))  # a step has succeeded, so the URL is right
    assert [message.splitlines()[1:] for message in caplog.messages] == [ADVICE, [], []]


def test_a_database_that_was_never_reached_is_an_error(tracker: Tracker) -> None:
    def statuses() -> list[PartitionStatus]:
        raise ConnectionError("no such host")

    tracker.statuses = statuses  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        claimed(run_of(tracker, lambda: None, lambda: 0))


def test_a_release_in_an_outage_succeeds_without_being_published(tracker: Tracker) -> None:
    driver = driver_of(tracker)
    tracker.error = ConnectionError("no answer")
    driver.release()
    assert driver.over


def test_a_state_left_unpublished_by_an_outage_is_published_by_the_next_step(tracker: Tracker) -> None:
    """Otherwise other processes would show the failure until the next one."""
    driver = driver_of(tracker)
    driver.settle(failed(driver.cursor))
    tracker.error = ConnectionError("no answer")
    driver.settle(Outcome(driver.cursor.moved_to(1, stored=True), handled=1))
    tracker.error = None
    for position in (2, 3):
        driver.settle(Outcome(driver.cursor.moved_to(position, stored=True), handled=1))
    assert tracker.log == [(ProcessorState.BACKING_OFF, 0, 4), (ProcessorState.RUNNING, 2, 4)]


def test_any_other_error_of_publishing_is_logged_and_ignored(
    tracker: Tracker, caplog: pytest.LogCaptureFixture
) -> None:
    driver = driver_of(tracker)
    tracker.error = LookupError("no such table")
    driver.release()
    assert caplog.messages == ["[books 0/1] its status cannot be published: LookupError: no such table"]


def test_only_changes_of_state_are_published(tracker: Tracker) -> None:
    observer = Watching()
    driver = driver_of(tracker, observer)
    for position in (1, 2, 3):
        driver.settle(Outcome(driver.cursor.moved_to(position, stored=True), handled=1))
    assert tracker.log == [(ProcessorState.RUNNING, 1, 4)]
    assert [outcome.cursor.position for _, _, outcome in observer.steps] == [1, 2, 3]
    assert {(group, part) for group, part, _ in observer.steps} == {("books", Partition(1, 0))}
    assert observer.notices == []
    assert driver.supervised.handled == 3


def test_each_failure_is_reported_to_the_observer_and_published(tracker: Tracker) -> None:
    observer = Watching()
    driver = driver_of(tracker, observer)
    for _ in range(2):
        driver.settle(failed(driver.cursor))
    assert tracker.log == [(ProcessorState.BACKING_OFF, 0, 4)] * 2
    assert [(notice.action, notice.attempt, notice.wait) for notice in observer.notices] == [
        (Action.RETRY, 1, 3),
        (Action.RETRY, 2, 3),
    ]


def test_recovery_is_reported_to_the_observer_and_published(tracker: Tracker) -> None:
    observer = Watching()
    driver = driver_of(tracker, observer)
    driver.settle(failed(driver.cursor))
    driver.settle(Outcome(driver.cursor.moved_to(1, stored=True), handled=1))
    assert tracker.log[-1] == (ProcessorState.RUNNING, 1, 4)
    assert [notice.action for notice in observer.notices] == [Action.RETRY, None]
    assert len(observer.steps) == 2


@pytest.mark.parametrize("on_exhausted", [OnExhausted.SKIP, OnExhausted.PARK])
def test_the_published_error_of_an_abandoned_event_is_withdrawn(
    tracker: Tracker, on_exhausted: OnExhausted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise other processes would show its error until the partition moved, and exit with 1."""
    reported: list[tuple[int, bool]] = []
    monkeypatch.setattr(tracker, "report", lambda status, _: reported.append((status.attempt, status.error != "")))
    observer = Watching()
    run = replace(run_of(tracker, lambda: None, lambda: 0, 1), on_exhausted=on_exhausted, back_off=NoRetry())
    driver = PartitionDriver(run, Cursor(Partition(1, 0), 4, 0, 0), FakeClock(), observer)
    reported.clear()
    driver.settle(failed(driver.cursor))
    skip = Skip("books", Partition(1, 0), 1, "1", "s", "/", "lent", 1, "E: m", "2026-01-01T00:00:00+00:00")
    gone = (skip,) if on_exhausted is OnExhausted.SKIP else ()
    driver.settle(Outcome(driver.cursor.moved_to(1, stored=True), skips=gone))
    driver.settle(Outcome(driver.cursor.moved_to(2, stored=True), handled=1))
    assert reported == [(1, True), (0, False)]
    assert len(observer.notices) == 1


def test_stopping_the_engine_ends_the_wait_for_an_outage_at_the_start(tracker: Tracker) -> None:
    def prepare() -> None:
        raise ConnectionError

    class Stopping(Observer):
        def noticed(self, notice: Notice) -> None:
            assignment.stop()

    run = run_of(tracker, prepare, lambda: 0)
    assignment = Assignment([run], "me", FakeClock(), Stopping())
    assert assignment.claim("books", run.partitions) == []
    assert tracker.log == []


def test_a_group_is_prepared_once_and_a_partition_claimed_once(tracker: Tracker) -> None:
    run = run_of(tracker, lambda: tracker.log.append("prepared"), lambda: 0)
    first, second = run.partitions
    assignment = Assignment([run], "me", FakeClock())
    for wanted in ([first], [first, second], [second]):
        assignment.claim("books", wanted)
    assert [one for one in tracker.log if one == "prepared" or one[0] == "claim"] == [
        "prepared",
        ("claim", "books", 0, "me"),
        ("claim", "books", 0, "me"),
    ]
    assert [str(driver.partition) for driver in assignment.of("books")] == ["0/2", "1/2"]
    assert [str(driver.partition) for driver in assignment.of("books", [second])] == ["1/2"]


def test_a_later_claim_reads_the_log_again(tracker: Tracker, monkeypatch: pytest.MonkeyPatch) -> None:
    run, epochs = run_of(tracker, lambda: None, lambda: 0), count(1)
    monkeypatch.setattr(
        tracker,
        "claim",
        lambda group, partitions, *_, **__: tuple(Cursor(one, next(epochs), 0, 0) for one in partitions),
    )
    claimed(run)
    page = run.processing.feed.read(0)
    assert run.processing.feed.read(2) is page
    claimed(run)
    assert run.processing.feed.read(2) is not page


def test_a_removed_partition_keeps_its_last_state_and_can_be_claimed_again(tracker: Tracker) -> None:
    run = run_of(tracker, lambda: None, lambda: 0)
    assignment = Assignment([run], "me", FakeClock())
    (driver, _) = assignment.claim("books", run.partitions)
    driver.release()
    assignment.remove(driver)
    assert [one.state for one in assignment.partitions()] == [ProcessorState.STOPPED, ProcessorState.STARTING]
    assignment.claim("books", run.partitions)
    assert [one.state for one in assignment.partitions()] == [ProcessorState.STARTING] * 2


def test_a_lost_partition_is_claimed_only_when_it_is_assigned_again(tracker: Tracker) -> None:
    run = run_of(tracker, lambda: None, lambda: 0)
    lost, held = run.partitions
    assignment = Assignment([run], "me", FakeClock())
    (old, kept) = assignment.claim("books", run.partitions)
    fenced = Failure(Origin.FENCED, permanent=True, error="FencedError", message="m")
    old.settle(Outcome(old.cursor, failure=fenced))
    claims: list[Sequence[Partition]] = []
    claim, tracker.claim = (
        tracker.claim,
        lambda group, partitions, *more, **also: (  # type: ignore[method-assign]
            claims.append(list(partitions)) or claim(group, partitions, *more, **also)
        ),
    )
    assignment.claim_again("books", [old, kept], crashed=False)
    assert claims == [[held]]
    (new,) = assignment.claim("books", run.partitions)
    assert claims == [[held], [lost]]
    assert not assignment.remove(old)  # whose thread ends late
    assert assignment.of("books") == [new, kept]
    assert assignment.remove(new)


def test_a_partition_assigned_by_two_threads_at_the_same_time_is_claimed_once(tracker: Tracker) -> None:
    begun, go = Signal(), Signal()

    def initial() -> int:
        begun.set()
        assert go.wait(60)
        return 0

    run = run_of(tracker, lambda: None, initial)
    assignment = Assignment([run], "me", FakeClock())
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(assignment.claim, "books", run.partitions)
        assert begun.wait(60)
        second = threads.submit(assignment.claim, "books", run.partitions)
        go.set()
        assert (len(first.result(60)), second.result(60)) == (2, [])


def test_a_group_that_the_engine_does_not_run_cannot_be_assigned(tracker: Tracker) -> None:
    assignment = Assignment([run_of(tracker, lambda: None, lambda: 0)], "me", FakeClock())
    for refused in (assignment.claim, assignment.of):
        with pytest.raises(ValueError, match="this engine does not run group 'boks'"):
            refused("boks", [Partition(2, 0)])


FENCED = Failure(Origin.FENCED, permanent=True, error="FencedError", message="m")


@pytest.mark.parametrize("rebuilding", [False, True])
def test_the_loss_of_a_partition_is_logged_except_for_a_rebuild_that_is_swapped(
    tracker: Tracker, caplog: pytest.LogCaptureFixture, *, rebuilding: bool
) -> None:
    run = replace(run_of(tracker, lambda: None, lambda: 0, 1), rebuilding=rebuilding)
    driver = PartitionDriver(run, Cursor(Partition(1, 0), 4, 0, 0), FakeClock())
    driver.settle(Outcome(driver.cursor, failure=FENCED))
    assert driver.over
    assert [record.levelname for record in caplog.records] == ([] if rebuilding else ["WARNING"])


def test_releasing_a_partition_that_another_process_has_claimed_is_not_reported(
    tracker: Tracker, caplog: pytest.LogCaptureFixture
) -> None:
    observer = Watching()
    driver = driver_of(tracker, observer)
    driver.processor.release = lambda cursor: Outcome(cursor, failure=FENCED)  # type: ignore[method-assign]
    driver.release()
    assert (driver.over, caplog.messages, observer.notices) == (True, [], [])

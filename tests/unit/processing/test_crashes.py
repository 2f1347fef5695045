"""Events that end processes: found by handling one event at a time after a crash, and held after three of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Thread
from typing import TYPE_CHECKING, Any

import pytest
from support.isolation import PatientMarkedEvents

from opencqrs_py import Event
from opencqrs_py.adapters.memory import InMemoryEventStore, InMemoryProgressTracker
from opencqrs_py.model import Cursor, FailureRecord, Handler, HandlerMark, Outcome, Partition, Selection, layout
from opencqrs_py.model.choices import OnExhausted
from opencqrs_py.model.outcome import Origin
from opencqrs_py.processing.binding import bind
from opencqrs_py.processing.dispatch import Dispatcher
from opencqrs_py.processing.feed import Feed
from opencqrs_py.processing.notices import text_of
from opencqrs_py.processing.processor import PartitionProcessor, ProcessorParts
from opencqrs_py.processing.recovery import Action, FixedBackOff
from opencqrs_py.processing.sequence_resolvers import PerSubject
from opencqrs_py.processing.sequencing import SequencingByEvent
from opencqrs_py.processing.supervision import SupervisedPartition
from opencqrs_py.testing import FakeClock

if TYPE_CHECKING:
    from sqlalchemy import Connection

BATCH = 4


class CrashError(KeyboardInterrupt):
    """The end of the process: nothing is recorded after it."""


class Group:
    """A group with one handler; some events kill its process, or make it fail."""

    def __init__(self, database: Any, injector: Any, events: int) -> None:
        self.database = database
        self.tracker = InMemoryProgressTracker(database)
        self.deadly: set[int] = set()
        self.failing: set[int] = set()
        self.called: list[tuple[int, FailureRecord | None]] = []
        self.during_call: Callable[[], None] = lambda: None
        self._store = InMemoryEventStore()
        self._store.append(
            Event(0, f"id {n}", "s", f"/{n}", "lent", None, "application/json", "{}", None)
            for n in range(1, events + 1)
        )

        def handle(raw: Event, connection: Connection) -> None:
            (status, *_) = (one for one in self.tracker.statuses() if one.partition == self._partition)
            self.called.append((raw.position, status.failure))
            self.during_call()
            if raw.position in self.deadly:
                raise CrashError
            if raw.position in self.failing:
                raise ValueError("no")
            connection.append(raw.position)  # type: ignore[attr-defined]

        self._bound = bind(Handler(HandlerMark("group"), handle, "handlers.py:7"), injector)
        self._partition = Partition(1, 0)

    def claimed(self, partition: Partition | None = None) -> Cursor:
        """Claim as a driver does."""
        self._partition = partition or self._partition
        whole = layout(self._partition.modulus)
        (cursor,) = self.tracker.claim("group", [self._partition], 0, "owner", layout=whole)
        return replace(cursor, isolate=BATCH) if cursor.unreleased else cursor

    def step(self, cursor: Cursor) -> Outcome:
        feed = Feed(self._store, Selection("/"), SequencingByEvent(PerSubject()), 100)
        dispatcher = Dispatcher([self._bound], [])
        return PartitionProcessor(
            cursor.partition, ProcessorParts("group", feed, self.tracker, dispatcher, BATCH)
        ).step(cursor)

    def runs(self, partition: Partition | None = None) -> Outcome | None:
        """Run a process until it has nothing to do or fails; ``None`` if it has crashed."""
        cursor = self.claimed(partition)
        try:
            while not (outcome := self.step(cursor)).idle and outcome.failure is None:
                cursor = outcome.cursor
        except CrashError:
            return None
        return outcome


@pytest.fixture
def new_group(database: Any, injector: Any) -> Callable[[int], Group]:
    return lambda events: Group(database, injector, events)


def test_normal_operation_marks_no_events(new_group: Callable[[int], Group]) -> None:
    group = new_group(6)
    group.runs()
    assert group.called == [(position, None) for position in range(1, 7)]


def test_events_in_hand_at_a_crash_are_handled_alone_and_marked(
    new_group: Callable[[int], Group],
) -> None:
    group = new_group(6)
    group.claimed()
    cursor, done = group.claimed(), []
    while not (outcome := group.step(cursor)).idle:
        done.append((outcome.handled, outcome.cursor.isolate))
        cursor = outcome.cursor
    assert done == [(1, 3), (1, 2), (1, 1), (1, 0), (2, 0)]
    marks = [(position, mark is not None and (mark.position, mark.in_hand)) for position, mark in group.called]
    assert marks == [(1, (1, True)), (2, (2, True)), (3, (3, True)), (4, (4, True)), (5, False), (6, False)]
    assert group.database.rows == [1, 2, 3, 4, 5, 6]


def test_a_crash_counts_only_against_the_event_that_was_marked(new_group: Callable[[int], Group]) -> None:
    group = new_group(4)
    group.deadly = {3}
    assert group.runs() is None  # in a chunk: the event that caused it is unknown
    assert group.claimed().failure is None
    assert group.runs() is None
    found = group.claimed()
    assert (found.stored, found.failing, found.attempt) == (2, 3, 1)
    assert found.failure is not None
    assert (found.failure.position, found.failure.event_id, found.failure.crashes) == (3, "id 3", 1)


def test_after_three_crashes_the_event_is_reported_and_not_handled_again(new_group: Callable[[int], Group]) -> None:
    group = new_group(4)
    group.deadly = {3}
    assert [group.runs() for _ in range(4)] == [None] * 4
    group.called.clear()
    for _ in range(2):  # not by later owners either
        outcome = group.runs()
        assert outcome is not None
        assert outcome.failure is not None
        assert (outcome.failure.position, outcome.failure.held, outcome.failure.code) == (3, True, "OCQ-236")
        assert "3 processes" in outcome.failure.message
        assert "id 3" in outcome.failure.event
        assert "opencqrs groups restart group:0/1" in outcome.failure.advice
    assert group.called == []
    assert group.database.rows == [1, 2]


def test_other_partitions_continue(new_group: Callable[[int], Group]) -> None:
    group = new_group(12)
    first, second = layout(2)
    group.deadly = set(range(1, 13))
    assert [group.runs(first) for _ in range(4)] == [None] * 4
    group.deadly = set()
    (held, other) = group.runs(first), group.runs(second)
    assert held is not None
    assert held.failure is not None
    assert other is not None
    assert (other.idle, other.failure) == (True, None)
    assert group.database.rows


def test_partitions_handle_marked_events_in_turn_so_that_a_crash_counts_against_one(
    new_group: Callable[[int], Group], monkeypatch: pytest.MonkeyPatch
) -> None:
    deadly, other = new_group(1), new_group(1)
    for group in (deadly, other):
        group.claimed()
    cursor = other.claimed()
    marked = PatientMarkedEvents()
    monkeypatch.setattr("opencqrs_py.processing.processor.OF_PROCESS", marked)
    thread = Thread(target=other.step, args=(cursor,))
    deadly.deadly = {1}

    def during_call() -> None:
        thread.start()
        while not marked.waiting and thread.is_alive():
            pass
        assert (other.called, [status.failure for status in other.tracker.statuses()]) == ([], [None])

    deadly.during_call = during_call
    assert deadly.runs() is None
    thread.join()
    assert other.database.rows == [1]


def test_an_event_that_raises_after_crashes_resets_their_count(new_group: Callable[[int], Group]) -> None:
    group = new_group(2)
    group.deadly = {1}
    assert [group.runs() for _ in range(3)] == [None] * 3  # two of them marked
    group.deadly, group.failing = set(), {1}
    cursor = group.claimed()
    assert cursor.failure is not None
    assert cursor.failure.crashes == 2
    partition = SupervisedPartition("group", cursor, FixedBackOff(1, 9), OnExhausted.SKIP, FakeClock())
    partition.take(group.step(cursor))
    group.tracker.report(partition.status(), cursor.epoch)
    failure = group.claimed().failure
    assert failure is not None
    assert (failure.crashes, failure.attempts, failure.last_error) == (0, 1, "ValueError: no")


def test_an_event_that_finally_succeeds_leaves_no_failure(new_group: Callable[[int], Group]) -> None:
    group = new_group(2)
    group.deadly = {1}
    assert [group.runs() for _ in range(3)] == [None] * 3
    group.deadly = set()
    assert group.runs() is not None
    assert group.database.rows == [1, 2]
    assert group.claimed().failure is None


def test_a_mark_that_cannot_be_written_does_not_count_against_the_event(new_group: Callable[[int], Group]) -> None:
    group = new_group(1)
    group.claimed()
    cursor = group.claimed()
    group.tracker.report = _unreachable  # type: ignore[method-assign]
    outcome = group.step(cursor)
    assert outcome.failure is not None
    assert outcome.failure.origin is Origin.OUTAGE
    assert group.called == []


def _unreachable(*_: object) -> None:
    raise ConnectionError("gone")


# How supervision reacts


@pytest.fixture
def held(new_group: Callable[[int], Group]) -> tuple[SupervisedPartition, Outcome]:
    group = new_group(1)
    group.deadly = {1}
    assert [group.runs() for _ in range(4)] == [None] * 4
    cursor = group.claimed()
    partition = SupervisedPartition("group", cursor, FixedBackOff(1, 9), OnExhausted.SKIP, FakeClock())
    return partition, group.step(cursor)


def test_a_held_partition_has_failed_and_schedules_no_attempt(
    held: tuple[SupervisedPartition, Outcome],
) -> None:
    partition, outcome = held
    notice = partition.take(outcome)
    assert notice is not None
    assert (notice.action, notice.attempt) == (Action.HOLD, 0)
    status = partition.status()
    assert (status.state.value, status.next_attempt_at) == ("failed", None)
    assert partition.wait() == 3_600
    assert status.failure is not None
    assert (status.failure.crashes, status.failure.attempts) == (3, 0)
    assert status.failure.last_error.startswith("[OCQ-236] HandlerCrashError: 3 processes have ended")
    assert "could not continue at event id 1 at position 1 (lent, /1) ([OCQ-236]" in text_of(notice)
    assert "in handler handlers.py:7" in text_of(notice)
    assert "is not tried again until it is restarted" in text_of(notice)
    assert "fix:   fix its handler, then: opencqrs groups restart group:0/1" in text_of(notice)


def test_the_reminder_of_a_held_partition_uses_no_attempts(held: tuple[SupervisedPartition, Outcome]) -> None:
    partition, outcome = held
    for _ in range(3):
        partition.take(replace(outcome, cursor=partition.cursor))
    assert partition.record is not None
    assert partition.record.attempts == 0


@pytest.mark.parametrize(("isolate", "kept"), [(BATCH, 1), (0, 0)], ids=["crashed", "cancelled"])
def test_a_new_claim_of_a_running_partition_inherits_the_mark_of_a_crash(isolate: int, kept: int) -> None:
    cursor = Cursor(Partition(1, 0), epoch=1, stored=0, position=0)
    partition = SupervisedPartition("group", cursor, FixedBackOff(1, 9), OnExhausted.SKIP, FakeClock())
    mark = FailureRecord(1, "id 1", "lent", 0, 0, "", "", "2026-01-01T00:00:00.000+00:00", in_hand=True)
    partition.claimed_again(replace(replace(cursor, epoch=2).resuming(mark), isolate=isolate))
    assert (partition.cursor.epoch, partition.cursor.isolate) == (2, isolate)
    assert (partition.record.crashes if partition.record else 0) == kept
